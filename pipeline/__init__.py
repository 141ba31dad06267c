"""Data preparation for SONAR embedding corpora. `from pipeline import Corpus` reads a corpus back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.corpus.reader import Corpus

__all__ = ["Corpus"]


def __getattr__(name: str) -> Any:
    if name == "Corpus":  # imported when asked for: the command line starts without pyarrow
        from pipeline.corpus.reader import Corpus

        return Corpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
