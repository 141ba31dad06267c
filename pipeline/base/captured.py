"""Captures warnings together with the work that raised them, for the accounting of a corpus.

A worker's standard error is rarely read; the accounting of a corpus is.
"""

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
_show: Any = None  # the function that showed warnings before


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Collect the warnings that this thread raises inside the `with` block.

    The list holds the text of each warning once, on one line. Python's own `catch_warnings` replaces the state of the
    whole process, so threads would capture each other's warnings.
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
    """Route every warning to `_hear`, even one that was raised before at the same place.

    Filters that were set by somebody else take precedence.
    """
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
