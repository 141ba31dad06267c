"""Reads the rows of a report: small columns as arrays, and the rows with extreme scores; and computes statistics of
them.

Rows are read row group by row group, in the (random) order of the parts, until about `max_rows`; about 60 bytes per row
stay in memory, and 72 more for a row whose fragility was measured. Vectors of fewer rows are read, and only their norms
stay. Statistics are values by length and by language, and what a plot needs of them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.corpus.reader import Corpus
from pipeline.quality.report.text_kinds import kind_bits
from stages.arrow import embedding_matrix

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

MAX_ROWS = 2_000_000
MAX_VECTORS = 262_144  # half a gigabyte to read at 1024 dimensions
EXAMPLES = 15
TRUNCATED, NON_FINITE = 1, 2  # of the column status

SCORES = (
    "autobleu",
    "fragility_bleu",
    "fragility_cosine",
    "fragility_predicted_bleu",
    "fragility_predicted_cosine",
    "weight",
)
BY_NOISE = ("bleu_by_noise", "cosine_by_noise")
ENDS = ("autobleu", "fragility_cosine", "fragility_bleu")
SHOWN = ("text", "lang", "decoded", "autobleu", "fragility_bleu", "fragility_cosine", "part", "row")


@dataclass(frozen=True)
class ReportDocuments:
    """Whole documents among the rows: sentences and tokens of each, and its split and source as places in the names."""

    sentences: Ints
    tokens: npt.NDArray[np.int64]
    split: Ints
    splits: list[str]
    source: Ints
    sources: list[str]


@dataclass(frozen=True)
class ReportRows:
    """Arrays over the rows that were read. `scores`: NaN where a row has none; `by_noise`: (measured rows, levels)."""

    total: int
    langs: list[str]
    lang: Ints  # place in `langs`
    chars: Ints
    tokens: Ints
    status: npt.NDArray[np.uint8] | None
    starts: npt.NDArray[np.bool_]  # first sentence of its document
    splits: Counter[str]  # sentences by split
    scores: dict[str, Floats]
    by_noise: dict[str, Floats]
    norms: Floats  # of the first rows, NaN where an embedding is not finite; empty without embeddings
    norm_lang: Ints
    worst: list[dict[str, Any]]  # lowest AutoBLEU
    fragile: list[dict[str, Any]]  # highest fragility, by cosine where it was measured
    documents: ReportDocuments
    kinds: npt.NDArray[np.uint8]  # bits of `text_kinds.KINDS`; 0 where no fragility was measured

    @property
    def read(self) -> int:
        """The number of rows."""
        return len(self.chars)

    def has(self, name: str) -> bool:
        """Return whether any row has this score."""
        return name in self.scores and bool(np.isfinite(self.scores[name]).any())


class _Codes:
    """Numbers languages in the order of their first occurrence."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._place: dict[str, int] = {}

    def of(self, column: pa.ChunkedArray) -> Ints:
        coded = column.combine_chunks().dictionary_encode()
        names = coded.dictionary.to_pylist()
        for name in names:
            if name not in self._place:
                self._place[name] = len(self.names)
                self.names.append(name)
        places = np.asarray([self._place[name] for name in names], dtype=np.int32)
        return places[coded.indices.to_numpy()] if len(places) else np.zeros(0, np.int32)


class _Extremes:
    """Rows with the lowest (or highest) values of a column, each text once; ties in the order of the corpus."""

    def __init__(self, column: str, *, highest: bool) -> None:
        self.column = column
        self.rows: list[dict[str, Any]] = []
        self._sign = -1.0 if highest else 1.0

    def add(self, table: pa.Table) -> None:
        values = self._sign * _floats(table[self.column]).astype(np.float64)
        order = np.argsort(values, kind="stable")[: 4 * EXAMPLES]
        order = order[np.isfinite(values[order])]
        found = table.take(pa.array(order)).to_pylist()
        ordered = sorted([*self.rows, *found], key=lambda row: self._sign * float(row[self.column]))
        distinct: dict[str, dict[str, Any]] = {}
        for row in ordered:
            distinct.setdefault(row["text"], row)
        self.rows = list(distinct.values())[:EXAMPLES]


def read_rows(corpus: Corpus, max_rows: int = MAX_ROWS) -> ReportRows:
    """Read what the report shows of rows: of about `max_rows`, the first ones."""
    there = corpus.catalogue
    scores = [name for name in SCORES if name in there]
    lists = [name for name in BY_NOISE if name in there]
    plain = [name for name in ("chars", "tokens", "status") if name in there]
    shown = [name for name in SHOWN if name in there]
    names = dict.fromkeys((*plain, *scores, *lists, *shown, "position", "subdocument", "split", "source"))
    always = ("chars", "tokens", "lang", "starts", "kinds", "of_split", "of_source")
    kept: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in (*always, *plain, *scores, *lists)}
    codes, split_codes, source_codes, splits = _Codes(), _Codes(), _Codes(), Counter[str]()
    ends = {name: _Extremes(name, highest=name != "autobleu") for name in ENDS if name in there}
    measured = next((name for name in ("fragility_cosine", "fragility_bleu") if name in scores), None)
    read = 0
    for batch in corpus.batches(*names, max_rows=max_rows) if corpus.parts else ():
        table = batch.table
        kept["lang"].append(codes.of(table["lang"]))
        kept["starts"].append((table["position"].to_numpy() == 0) & (table["subdocument"].to_numpy() == 0))
        of_document = table.filter(pa.array(kept["starts"][-1]))
        kept["of_split"].append(split_codes.of(of_document["split"]))
        kept["of_source"].append(source_codes.of(of_document["source"]))
        for name in (*plain, *scores):
            kept[name].append(_floats(table[name]) if name in scores else table[name].to_numpy())
        for name in lists:
            kept[name].append(_matrix(table[name]))
        kept["kinds"].append(_kinds(table, measured))
        for value in table["split"].value_counts().to_pylist():
            splits[str(value["values"])] += value["counts"]
        for end in ends.values():
            end.add(table.select(shown))
        read += batch.rows
    norms, norm_lang = _norms(corpus, codes, min(MAX_VECTORS, max_rows))
    found = {name: ends[name].rows if name in ends else [] for name in ENDS}
    whole = {name: _joined(arrays) for name, arrays in kept.items()}
    return ReportRows(
        total=corpus.rows,
        langs=codes.names,
        lang=whole["lang"].astype(np.int32),
        chars=whole["chars"].astype(np.int32),
        tokens=whole["tokens"].astype(np.int32),
        status=whole.get("status"),
        starts=whole["starts"].astype(np.bool_),
        splits=splits,
        scores={name: whole[name] for name in scores},
        by_noise={name: whole[name] for name in lists if len(whole[name])},
        norms=norms,
        norm_lang=norm_lang,
        worst=found["autobleu"],
        fragile=found["fragility_cosine"] or found["fragility_bleu"],
        documents=_documents(whole, read < corpus.rows, split_codes.names, source_codes.names),
        kinds=whole["kinds"].astype(np.uint8),
    )


def _documents(whole: dict[str, npt.NDArray[Any]], cut: bool, splits: list[str], sources: list[str]) -> ReportDocuments:
    """Return the documents; of those whose reading was cut short the last is left out."""
    starts = np.flatnonzero(whole["starts"].astype(np.bool_))
    last = len(starts) - 1 if cut else len(starts)
    sentences = np.diff(np.append(starts, len(whole["starts"])))[:last].astype(np.int32)
    sums = np.add.reduceat(whole["tokens"].astype(np.int64), starts) if len(starts) else np.zeros(0, np.int64)
    split, source = (whole[name][:last].astype(np.int32) for name in ("of_split", "of_source"))
    return ReportDocuments(sentences, sums[:last], split, splits, source, sources)


def _kinds(table: pa.Table, measured: str | None) -> npt.NDArray[np.uint8]:
    """Return the kinds of text of the rows that have this score; 0 for the others."""
    found = np.zeros(table.num_rows, np.uint8)
    if measured:
        valid = table[measured].is_valid()
        texts, langs = (table[name].filter(valid).to_pylist() for name in ("text", "lang"))
        found[valid.to_numpy()] = kind_bits(texts, langs)
    return found


def _norms(corpus: Corpus, codes: _Codes, most: int) -> tuple[Floats, Ints]:
    norms, langs = [np.zeros(0, np.float32)], [np.zeros(0, np.int32)]
    if "embedding" in corpus.catalogue:
        for batch in corpus.batches("lang", "embedding", "status", max_rows=most):
            matrix = embedding_matrix(batch.table["embedding"]).astype(np.float32)
            found = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))
            found[batch.table["status"].to_numpy() == NON_FINITE] = np.nan
            norms.append(found)
            langs.append(codes.of(batch.table["lang"]))
    return np.concatenate(norms), np.concatenate(langs)


def _floats(column: pa.ChunkedArray) -> Floats:
    """Convert a column; null becomes NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float32)


def _matrix(column: pa.ChunkedArray) -> Floats:
    """Convert lists of equal length to (rows that are not null, length)."""
    lists = column.drop_null().combine_chunks()
    values = lists.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float32).reshape(len(lists), -1) if len(lists) else np.zeros((0, 0), np.float32)


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join arrays; blocks without rows say nothing of the width."""
    filled = [one for one in arrays if len(one)]
    return np.concatenate(filled) if filled else np.zeros(0, np.float32)


Array = npt.NDArray[np.floating] | npt.NDArray[np.integer]

WIDTHS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000)
BINS = 24  # at most, besides the open one
BAND = (0.1, 0.9)


@dataclass(frozen=True)
class Bin:
    """Values of one group of rows; mean and quantiles are NaN if it is empty. `first`: its smallest length."""

    first: int
    count: int
    mean: float
    low: float
    median: float
    high: float


def finite(values: Array) -> npt.NDArray[np.float64]:
    """Return the values that are finite."""
    found = np.asarray(values, dtype=np.float64)
    return found[np.isfinite(found)]


def summarise(values: Array, first: int = 0) -> Bin:
    """Return the mean, and the quantiles of `BAND` with the median, of the values that are finite."""
    numbers = finite(values)
    if not len(numbers):
        return Bin(first, 0, math.nan, math.nan, math.nan, math.nan)
    low, median, high = np.quantile(numbers, (BAND[0], 0.5, BAND[1]))
    return Bin(first, len(numbers), float(numbers.mean()), float(low), float(median), float(high))


def bin_width(lengths: Array) -> int:
    """Return a round width with which 99.5 % of the lengths fall into at most `BINS` bins."""
    most = float(np.quantile(lengths, 0.995)) if len(lengths) else 0.0
    return next((width for width in WIDTHS if most / width <= BINS), WIDTHS[-1])


def by_length(lengths: Array, values: Array) -> list[Bin]:
    """Group values by length: bins of equal width from 1, the last one open."""
    wanted = np.isfinite(values)
    lengths, values = lengths[wanted], values[wanted]
    if not len(lengths):
        return []
    width = bin_width(lengths)
    last = min(BINS, int(max(lengths.max() - 1, 0)) // width)
    place = np.clip((lengths - 1) // width, 0, last)
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(1, last + 1))
    groups = np.split(values[order], edges)
    return [summarise(np.asarray(group, np.float64), number * width + 1) for number, group in enumerate(groups)]


def pearson(first: Array, second: Array) -> tuple[float, int]:
    """Return (correlation, number) of the pairs in which both are finite; NaN if one does not vary."""
    both = np.isfinite(first) & np.isfinite(second)
    one, other = first[both].astype(np.float64), second[both].astype(np.float64)
    if len(one) < 2 or not one.std() or not other.std():
        return math.nan, len(one)
    return float(np.corrcoef(one, other)[0, 1]), len(one)
