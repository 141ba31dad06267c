"""A thread that sends heartbeats for what a process holds, and notices when the process is asked to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType

from pipeline.base.errors import PipelineError

AGAIN_SECONDS = 15.0  # libraries may swallow what a signal raises: Ray does, at some moments of its start


class Heartbeat:
    """Sends heartbeats inside a `with` statement.

    `beat` is called every `seconds`. Once it returns a reason, `stopped` holds it, and the process is asked to stop as
    by Ctrl-C, again and again until it leaves the block or has `noticed`.
    """

    def __init__(self, beat: Callable[[], str | None], seconds: float) -> None:
        self._beat, self._seconds = beat, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self.stopped: str | None = None

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(self._seconds)

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self.stopped = self._beat()
            except (PipelineError, OSError):
                continue  # the store is asked again; if it does not answer for long, the lease expires
            if self.stopped:
                while not self._over.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                    self._over.wait(AGAIN_SECONDS)
                return

    def noticed(self) -> None:
        """End the heartbeats: the process is stopping."""
        self._over.set()
