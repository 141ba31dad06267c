"""Warnings, kept with the work that raised them: nobody reads a worker's standard error, everybody reads the
accounting of a corpus."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

LONGEST = 500  # characters kept of one warning
MOST = 20  # different warnings kept of one piece of work

_listeners = threading.local()
_installing = threading.Lock()
_show: Any = None  # what showed warnings before


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Gather the warnings that this thread raises inside the `with`: their texts, each once, in one line.

    Python's own `catch_warnings` swaps the state of the whole process, so that threads would take each other's.
    """
    _install()
    heard: list[str] = []
    outer = getattr(_listeners, "heard", None)
    _listeners.heard = heard
    try:
        yield heard
    finally:
        _listeners.heard = outer


def _install() -> None:
    """Hear every warning, also one that was raised before at the same place; filters that someone set come first."""
    global _show
    with _installing:
        if warnings.showwarning is not _hear:
            _show = warnings.showwarning
            warnings.showwarning = _hear
        warnings.simplefilter("always", append=True)


def _hear(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    heard = getattr(_listeners, "heard", None)
    if heard is None:
        _show(message, category, filename, lineno, file, line)
        return
    text = " ".join(str(message).split())[:LONGEST]
    if text not in heard and len(heard) < MOST:
        heard.append(text)
