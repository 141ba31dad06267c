"""What the page learns about work that takes long: how many rows were looked at, and how the work is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class GivenUpError(Exception):
    """Nobody waits for the result any more."""


class Watch:
    """Stands between work in a thread and those who wait for it."""

    def __init__(self) -> None:
        self.read = self.found = 0
        self._given_up = threading.Event()

    def see(self, read: int, found: int = 0) -> None:
        """Note how far the work is. Raises `GivenUpError` if nobody waits for it; so call it often."""
        self.read, self.found = read, found
        self.check()

    def check(self) -> None:
        """Raise `GivenUpError` if nobody waits for the work."""
        if self._given_up.is_set():
            raise GivenUpError

    def give_up(self) -> None:
        """Let the work end at its next check."""
        self._given_up.set()

    @contextmanager
    def holding(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock; a caller that gives up stops waiting for it."""
        while not lock.acquire(timeout=0.1):
            self.check()
        try:
            yield
        finally:
            lock.release()
