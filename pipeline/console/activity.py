"""Announces work that takes longer than a few seconds, and logs how long it took."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

PATIENT_SECONDS = 3.0
_log = logging.getLogger(__name__)


@contextmanager
def announced(console: Console, doing: str, after: float = PATIENT_SECONDS) -> Iterator[None]:
    """Print `doing …` if the `with` block takes longer than `after` seconds.

    Args:
        console: where the line is printed.
        doing: what the block does, such as `checking the inputs`.
        after: seconds.

    Yields:
        Nothing; the block runs once.
    """
    timer = threading.Timer(after, lambda: console.print(Text(f"{doing} …", "dim")))
    timer.daemon = True
    timer.start()
    started = time.monotonic()
    try:
        yield
        _log.info("%s: done in %.2f s", doing, time.monotonic() - started)
    finally:
        timer.cancel()
