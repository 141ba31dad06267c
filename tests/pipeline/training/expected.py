"""What the loader must give, found by plain loops over `Corpus.table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline import Corpus

COLUMNS = ("doc_id", "split", "text", "chars", "codes", "weight", "end", "answer", "paragraph")
Row = dict[str, Any]
Sentence = tuple[str, bytes, tuple[int, ...], float]  # text, embedding, codes, weight


@dataclass
class Sequence:
    """What is kept of a document without a gap; `ends`: whether its document ends with it."""

    doc_id: str
    sentences: list[Sentence] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    paragraphs: list[int] = field(default_factory=list)
    ends: bool = False


def sequences_of(corpus: Corpus, split: str, keep: Callable[[Row], bool] = lambda row: True) -> list[Sequence]:
    """Runs of rows that are kept, in the order of the corpus."""
    found: list[Sequence] = []
    for part in corpus.parts:
        rows = corpus.table(*COLUMNS, part=part).to_pylist()
        matrix = corpus.embeddings(part)
        last = None
        for number, row in enumerate(rows):
            if row["split"] == split and keep(row):
                if not found or last != number - 1 or found[-1].doc_id != row["doc_id"]:
                    found.append(Sequence(row["doc_id"]))
                one = found[-1]
                one.sentences.append((row["text"], matrix[number].tobytes(), tuple(row["codes"]), row["weight"]))
                one.answers.append(row["answer"] is None or row["end"] > int(row["answer"]))
                one.paragraphs.append(row["paragraph"])
                one.ends = number + 1 == len(rows) or rows[number + 1]["doc_id"] != row["doc_id"]
                last = number
    return found
