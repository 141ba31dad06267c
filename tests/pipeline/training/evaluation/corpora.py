"""A corpus with documents that are held out."""

from __future__ import annotations

from pathlib import Path

from pipeline import Corpus
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.runs import run as run_corpus

CONTEXT = 12


def make_corpus(folder: Path, split: dict[str, float]) -> Corpus:
    write_jsonl(
        folder / "in/all.jsonl", [*sample_documents("libreoffice-eng", 6), *sample_documents("libreoffice-deu", 6)]
    )
    run_corpus(path := write_config(folder, split=split, scaler={}, autobleu=None))
    return Corpus(str(path.parent / "out"))
