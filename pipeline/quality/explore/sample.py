"""Takes the sample of a corpus that the interactive report shows: rows with the smallest `u`, and a map of embeddings.

`u` is uniform and independent of everything else, and scores that are measured for a sample are measured for the rows
with the smallest `u`: so this sample is fair, and has as many scores as possible. The map is of the sampled rows among
about the first `MAX_VECTORS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import visible
from pipeline.corpus.reader import Corpus
from pipeline.quality.explore.places import Places, placed
from pipeline.quality.measures import LENGTHS
from pipeline.quality.report.rows import MAX_VECTORS, NON_FINITE, TRUNCATED
from pipeline.quality.report.text_kinds import KINDS, kind_bits
from stages.arrow import embedding_matrix
from stages.noise.settings import SENTENCE_COLUMNS

SAMPLE = 12_000  # rows; texts of about 100 characters make 4 MB of them
LONGEST = 240  # characters of a text
LABELS = {
    "autobleu": "AutoBLEU",
    "fragility_cosine": "fragility, cosine",
    "fragility_bleu": "fragility, BLEU",
    "fragility_predicted_cosine": "predicted fragility",
    "weight": "sample weight",
    "chars": "characters",
    "tokens": "tokens",
    "lang_confidence_detected": "language confidence",
    **{name: name.replace("_", " ") for name in SENTENCE_COLUMNS},
    "duplicate_count": "times in the corpus",
    "near_duplicate_count": "nearly equal documents",
    "semantic_duplicate_count": "sentences that mean the same",
    "doc_words": "words of the document",
}  # columns of numbers, in the order of the page
SKEWED = 20  # a column is shown on a logarithmic scale if its largest value is this many times its median
OTHER_LANGUAGE, REPEATED, CUT, BROKEN, SHORT = (
    "another language", "repeated", "truncated", "not finite", f"at most {LENGTHS[0][1]} characters",
)  # fmt: skip
CAUSES = (*KINDS, OTHER_LANGUAGE, REPEATED, CUT, BROKEN, SHORT)  # bits of a row's cause, in this order
SHOWN = ("text", "decoded", "lang", "source", "doc_id", "part", "row")
FLAGS = ("lang_differs", "status", "u", "codes")


@dataclass(frozen=True)
class Sample:
    """The rows of the sample, by rising `u`. `read`: how many rows it is taken from."""

    table: pa.Table
    causes: npt.NDArray[np.uint16]
    places: Places
    read: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.table.num_rows)

    def columns(self, rows: int) -> dict[str, Any]:
        """Return the first `rows` rows as the page needs them: values by column, names and codes of groups."""
        table = self.table.slice(0, rows)
        there = [(name, table[name].to_numpy()) for name in LABELS if name in table.column_names]
        numbers = [one for name, values in there if (one := _numbers(name, values)) is not None]
        texts = {name: _texts(table, name) for name in ("text", "decoded", "doc_id")}
        mapped = self.places.place[:rows]
        return {
            "numbers": numbers,
            "constants": [said for name, values in there if (said := _constant(name, values))],
            "lang": _coded(table["lang"]),
            "source": _coded(table["source"]),
            "cluster": _clusters(table),
            "causes": {"names": CAUSES, "bits": self.causes[:rows].tolist()},
            "lengths": [[low, high] for low, high in LENGTHS],
            "text": texts["text"],
            "decoded": texts["decoded"],
            "document": texts["doc_id"],
            "map": {
                "x": mapped[:, 0].tolist(),
                "y": mapped[:, 1].tolist(),
                "rows": int((mapped[:, 0] >= 0).sum()),
                "explained": [round(one, 4) for one in self.places.explained],
                "pacmap": self.places.pacmap,
                "instead": self.places.instead,
            },
        }


def read_sample(corpus: Corpus, max_rows: int, rows: int = SAMPLE, max_vectors: int = MAX_VECTORS) -> Sample:
    """Take a random sample of rows.

    Args:
        corpus: the corpus.
        max_rows: sample only about the first rows, this many.
        rows: how many rows the sample has, about.
        max_vectors: how many embeddings are looked through for those of the map, at most.

    Returns:
        The rows with their places in two dimensions.
    """
    rate = min(1.0, rows / max(1, min(corpus.rows, max_rows)))
    where = corpus.condition(f"u < {rate!r}")
    names = [name for name in dict.fromkeys((*SHOWN, *FLAGS, *LABELS)) if name in corpus.catalogue]
    tables, read = [corpus.schema(*names).empty_table()], 0
    for batch in corpus.batches(*names, where=where, max_rows=max_rows):
        tables.append(batch.table)
        read += batch.rows
    table = pa.concat_tables(tables)
    vectors = _vectors(corpus, where, table.num_rows, min(max_vectors, max_rows))
    order = np.lexsort((np.arange(table.num_rows), table["u"].to_numpy()))
    table = table.take(pa.array(order))
    return Sample(table, _causes(table), placed(vectors[order]), read)


def _vectors(corpus: Corpus, where: Any, rows: int, most: int) -> npt.NDArray[np.float32]:
    """Return (rows, dim): embeddings of the first rows of the sample; NaN where one is not finite or is not read."""
    found = [np.zeros((0, 0), np.float32)]
    if "embedding" in corpus.catalogue:
        for batch in corpus.batches("embedding", "status", where=where, max_rows=most):
            vectors = embedding_matrix(batch.table["embedding"]).astype(np.float32)
            vectors[batch.table["status"].to_numpy() == NON_FINITE] = np.nan
            found.append(vectors)
    found = [one for one in found if len(one)]
    vectors = np.concatenate(found)[:rows] if found else np.zeros((0, 1), np.float32)
    missing = np.full((rows - len(vectors), vectors.shape[1]), np.nan, np.float32)
    return np.concatenate([vectors, missing])


def _causes(table: pa.Table) -> npt.NDArray[np.uint16]:
    """Return (rows,): a bit for each of `CAUSES` that may explain what becomes of a sentence."""
    bits = kind_bits(table["text"].to_pylist(), table["lang"].to_pylist()).astype(np.uint16)
    there = table.column_names
    flags = {
        OTHER_LANGUAGE: pc.fill_null(table["lang_differs"], False) if "lang_differs" in there else None,
        REPEATED: pc.greater(pc.fill_null(table["duplicate_count"], 1), 1) if "duplicate_count" in there else None,
        CUT: pc.equal(table["status"], TRUNCATED) if "status" in there else None,
        BROKEN: pc.equal(table["status"], NON_FINITE) if "status" in there else None,
        SHORT: pc.less_equal(table["chars"], LENGTHS[0][1]),
    }
    for name, flag in flags.items():
        if flag is not None:
            bits |= flag.to_numpy().astype(np.uint16) << CAUSES.index(name)
    return bits


def _numbers(name: str, values: npt.NDArray[Any]) -> dict[str, Any] | None:
    """Return a column for the page; None if it has no value, or the same one everywhere."""
    numbers = np.asarray(values, np.float64)
    known = numbers[np.isfinite(numbers)]
    if not len(known) or known.min() == known.max():
        return None
    skewed = known.min() >= 0 and known.max() > SKEWED * max(float(np.median(known)), 1.0)
    shown = [float(f"{one:.4g}") if np.isfinite(one) else None for one in numbers.tolist()]
    whole = [int(one) if one is not None and one == int(one) else one for one in shown]
    return {"name": name, "label": LABELS[name], "log": bool(skewed), "values": whole}


def _constant(name: str, values: npt.NDArray[Any]) -> str:
    """Return `AutoBLEU 100` for a column that has the same value in all rows that have one; empty for others."""
    numbers = np.asarray(values, np.float64)
    known = numbers[np.isfinite(numbers)]
    if not len(known) or known.min() != known.max():
        return ""
    missing = len(numbers) - len(known)
    return f"{LABELS[name]} {known[0]:.4g}" + (f" ({missing} without)" if missing else "")


def _coded(column: pa.ChunkedArray) -> dict[str, Any]:
    """Return names, the commonest first, and the place of each row's name."""
    coded = column.combine_chunks().dictionary_encode()
    names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    counts = np.bincount(codes, minlength=len(names))
    order = sorted(range(len(names)), key=lambda place: (-counts[place], names[place]))
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    return {"names": [visible(str(names[place])) for place in order], "codes": ranks[codes].tolist()}


def _clusters(table: pa.Table) -> dict[str, Any] | None:
    """Return the first code of each row, that of the section `rvq`, as names and places; None if there are no codes."""
    if "codes" not in table.column_names:
        return None
    names = [None if one is None else f"code {one[0]}" for one in table["codes"].to_pylist()]
    return _coded(pa.chunked_array([pa.array(names, pa.string()).fill_null("none")]))


def _texts(table: pa.Table, name: str) -> list[str | None]:
    """Return texts, cut, with control and direction characters made visible."""
    if name not in table.column_names:
        return [None] * table.num_rows
    cut = (one if one is None or len(one) <= LONGEST else f"{one[:LONGEST]}…" for one in table[name].to_pylist())
    return [None if one is None else visible(one) for one in cut]
