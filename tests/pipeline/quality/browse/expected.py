"""What a question about a corpus finds, by plain loops."""

from __future__ import annotations

from pipeline import Corpus
from pipeline.quality.browse.find import Question


def expected(corpus: Corpus, question: Question) -> list[tuple[str, int]]:
    """Places of the whole answer, by Python's own sorting."""
    names = dict.fromkeys(["part", "row", *([question.sort] if question.sort else [])])
    rows = corpus.to_arrow(*names, where=question.where).to_pylist()
    if question.sort:
        column = question.sort
        known = [row for row in rows if row[column] is not None]
        known.sort(key=lambda row: row[column], reverse=question.descending)  # stable: equal values stay in order
        rows = known + [row for row in rows if row[column] is None]
    return [(row["part"], row["row"]) for row in rows]
