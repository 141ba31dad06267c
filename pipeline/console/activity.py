"""Announces work that takes longer than a few seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

PATIENT_SECONDS = 3.0


@contextmanager
def announced(console: Console, doing: str, after: float = PATIENT_SECONDS) -> Iterator[None]:
    """Print `doing …` if the `with` block takes longer than `after` seconds."""
    timer = threading.Timer(after, lambda: console.print(Text(f"{doing} …", "dim")))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
