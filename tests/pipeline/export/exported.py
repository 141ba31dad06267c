"""An export by the command, and what must be in it, found by loops over rows."""

from __future__ import annotations

import io

from rich.console import Console

from pipeline import Corpus
from pipeline.export import ExportOptions, export_corpus
from pipeline.select.command import SelectOptions
from stages.scaler.robust import RobustScaler

WHERE = "chars >= 20 and (autobleu is null or autobleu >= 1)"


Sequence = tuple[str, int, str, list[str], list[bytes]]  # doc_id, piece, split, sentences, embeddings


def export(
    corpus: Corpus, kind: str, to: object, rules: SelectOptions | None = None, scaler: RobustScaler | None = None
) -> str:
    shown = io.StringIO()
    options = ExportOptions(kind, str(to), rules or SelectOptions())
    export_corpus(Console(file=shown, width=200), corpus.url, corpus, options, scaler)
    return shown.getvalue()


def expected(corpus: Corpus, broken: str) -> list[Sequence]:
    """The sequences that `WHERE` leaves, by loops over rows."""
    found: list[Sequence] = []
    for part in corpus.parts:
        matrix = corpus.embeddings(part)
        rows = corpus.table("doc", "doc_id", "split", "text", "chars", "autobleu", part=part).to_pylist()
        last = None
        for number, row in enumerate(rows):
            keep = row["chars"] >= 20 and (row["autobleu"] is None or row["autobleu"] >= 1)
            if keep:
                new_document = not found or found[-1][0] != row["doc_id"]
                if new_document or (broken == "split-documents" and last != number - 1):
                    piece = 0 if new_document else found[-1][1] + 1
                    found.append((row["doc_id"], piece, row["split"], [], []))
                found[-1][3].append(row["text"])
                found[-1][4].append(matrix[number].tobytes())
                last = number
    return found
