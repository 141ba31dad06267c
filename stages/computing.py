"""What this process computes at the moment: a stage, and how much of a part it has done. Code that shows progress asks
for it.

A part may take minutes on a CPU, and nothing is known of its rows before all of them are done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SEGMENTING = "segment"  # the stage that computes documents, not a part


@dataclass
class Computing:
    """A stage that computes a part. share: how much of its batches is done, 0 to 1; since: when it began, monotonic."""

    stage: str
    share: float = 0.0
    since: float = field(default_factory=time.monotonic)

    def left(self) -> float | None:
        """Return the seconds until it is done, at the pace so far; None before the first batch is done."""
        return (time.monotonic() - self.since) * (1 - self.share) / self.share if self.share else None


_current: Computing | None = None  # where several threads compute, the one that began last


@contextmanager
def computing(stage: str) -> Iterator[None]:
    """Tell that a stage computes, in the `with` block."""
    global _current
    mine = _current = Computing(stage)
    try:
        yield
    finally:
        if _current is mine:
            _current = None


def advance(share: float) -> None:
    """Tell how much of its batches the stage has done."""
    mine = _current  # which another thread may replace
    if mine:
        mine.share = share


_segmented = _batch = 0  # characters that have been segmented, and those of the batch that is


@contextmanager
def segmenting(characters: int) -> Iterator[None]:
    """Tell that so many characters of documents are segmented, in the `with` block."""
    global _segmented, _batch
    _batch = characters
    with computing(SEGMENTING):
        try:
            yield
        finally:
            _segmented, _batch = _segmented + characters, 0


def tell_segmented(characters: int) -> None:
    """Tell how many characters another process has segmented for this one."""
    global _segmented
    _segmented = characters


def segmented() -> int:
    """Return how many characters of documents have been segmented since this process began."""
    now = _current
    share = now.share if now and now.stage == SEGMENTING else 0.0
    return _segmented + int(share * _batch)


def current() -> Computing | None:
    """Return what this process computes; None: nothing, or another process does."""
    return _current
