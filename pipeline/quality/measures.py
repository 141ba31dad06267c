"""Measures the quality of a corpus: quantiles by language and by length, and the worst rows with their decoded text.

Only the small columns are read, row group by row group; of a large corpus the first rows in the (random) order of the
names of parts, up to about `max_rows`, which the output states. `StartsOfDocuments` and `JudgedLanguages` say which
rows a measure counts where no condition on columns does; they are given rows in the order of the corpus.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.conditions.condition import Condition
from pipeline.corpus.accounting import Accounting
from pipeline.corpus.reader import Corpus
from stages.autobleu.bleu import STATISTICS, corpus_bleu

LENGTHS = ((1, 25), (26, 50), (51, 100), (101, 150), (151, 200), (201, None))  # characters
SCORES = ("autobleu", "fragility_bleu", "fragility_cosine", "fragility_predicted", "weight")
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def mean_over_documents(values: npt.NDArray[np.floating], documents: npt.NDArray[np.integer]) -> tuple[float, float]:
    """Return the mean of (rows,) values, and its standard error with whole documents as what was drawn (clusters).

    The mean of nothing, and the error of fewer than two documents, are NaN. `documents`: (rows,) their numbers.
    """
    if not len(values):
        return math.nan, math.nan
    exact = np.asarray(values, np.float64)
    mean = float(exact.mean())
    count = len(np.unique(documents))
    if count < 2:
        return mean, math.nan
    moved = np.bincount(documents, exact - mean)
    return mean, math.sqrt(count / (count - 1) * float(np.square(moved).sum())) / len(exact)


@dataclass(frozen=True)
class Group:
    """Sentences of one language or length. `quantiles` are those of AutoBLEU (NaN if none is scored)."""

    name: str
    sentences: int
    tokens: float  # mean
    scored: int
    mean: float
    quantiles: tuple[float, ...]
    poor: float  # share of scored sentences below 20


@dataclass(frozen=True)
class ScoreSummary:
    """One column of scores over the rows that have it."""

    name: str
    scored: int
    mean: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True)
class ScoredRow:
    """One sentence with its score."""

    autobleu: float
    lang: str
    part: str
    row: int
    text: str
    decoded: str


@dataclass(frozen=True)
class Quality:
    """What `inspect` shows.

    `least_sample`: about the smallest sample of autobleu that draws one of these rows, if all parts are scored and no
    row is; `unscored_parts`: parts that have no AutoBLEU yet, though the newest run asks for it.
    """

    by_lang: list[Group]
    by_length: list[Group]
    everything: Group
    rows_read: int
    rows: int
    least_sample: float | None = None
    unscored_parts: int = 0


def measure(corpus: Corpus, max_rows: int, where: Condition | None = None) -> Quality:
    """Measure lengths and AutoBLEU by language and by length.

    Args:
        corpus: the corpus.
        max_rows: read only about this many rows, the first ones.
        where: a condition that rows must satisfy.

    Returns:
        Quantiles over the rows that satisfy the condition.
    """
    scored = "autobleu" in corpus.columns
    columns = ("lang", "chars", "tokens", *(("autobleu",) if scored else ()))
    tables = [corpus.schema(*columns).empty_table()]
    read = 0
    for batch in corpus.batches(*columns, where=where, max_rows=max_rows):
        tables.append(batch.table)
        read += batch.rows
    table = pa.concat_tables(tables)
    coded = table["lang"].combine_chunks().dictionary_encode()
    langs, names = coded.indices.to_numpy(), coded.dictionary.to_pylist()
    chars, tokens = table["chars"].to_numpy(), table["tokens"].to_numpy()
    scores = table["autobleu"].to_numpy() if scored else np.full(len(chars), np.nan, np.float32)
    counts = np.bincount(langs, minlength=len(names))
    order = sorted(range(len(names)), key=lambda number: (-counts[number], names[number]))
    by_lang = [_group(names[number], langs == number, tokens, scores) for number in order]
    by_length = []
    for low, high in LENGTHS:
        inside = (chars >= low) & (chars <= high) if high else chars >= low
        if inside.any():
            by_length.append(_group(f"{low}–{high}" if high else f"{low}+", inside, tokens, scores))
    everything = _group("all", np.ones(len(chars), np.bool_), tokens, scores)
    least = (
        _least_sample(corpus, max_rows, where) if scored and everything.sentences and not everything.scored else None
    )
    unscored = int(corpus.chunks.total.get("autobleu/left", 0))
    return Quality(by_lang, by_length, everything, read, corpus.rows, least, unscored)


def _least_sample(corpus: Corpus, max_rows: int, where: Condition | None) -> float:
    """Return a sample, in two digits, that draws at least one of the rows, and no much smaller one does."""
    batches = corpus.batches("u", where=where, max_rows=max_rows)
    least: float = min(batch.table["u"].to_numpy().min() for batch in batches if batch.table.num_rows)
    digits = 1 - math.floor(math.log10(max(least, 1e-12)))
    above: float = round(math.floor(least * 10**digits + 1) / 10**digits, digits)
    return min(1.0, above)


def measure_scores(corpus: Corpus, max_rows: int, where: Condition | None = None) -> list[ScoreSummary]:
    """Measure every column of scores that the corpus has, over the same rows as `measure`.

    Args:
        corpus: the corpus.
        max_rows: read only about this many rows, the first ones.
        where: a condition that rows must satisfy.

    Returns:
        One summary for each column that has values.
    """
    names = [name for name in SCORES if name in corpus.columns]
    values: dict[str, list[npt.NDArray[np.float32]]] = {name: [] for name in names}
    for batch in corpus.batches(*names, where=where, max_rows=max_rows) if names else ():
        for name in names:
            values[name].append(batch.table[name].drop_null().to_numpy())
    found = {name: np.concatenate(of_name).astype(np.float64) for name, of_name in values.items() if of_name}
    return [
        ScoreSummary(name, len(one), float(one.mean()), tuple(map(float, np.quantile(one, QUANTILES))))
        for name, one in found.items()
        if len(one)
    ]


def corpus_bleu_of(corpus: Corpus, accounting: Accounting) -> dict[str, float]:
    """Return corpus BLEU by language over every scored sentence, from the statistics in the receipts.

    Nothing while these count purged documents, too.
    """
    if corpus.hides_documents:
        return {}
    counts = accounting.counts.get("autobleu", {})
    langs = sorted({key.split(".")[1] for key in counts if key.startswith("bleu.")})
    return {lang: corpus_bleu([counts[f"bleu.{lang}.{k}"] for k in range(STATISTICS)]) for lang in langs}


def _group(
    name: str, inside: npt.NDArray[np.bool_], tokens: npt.NDArray[np.int32], scores: npt.NDArray[np.float32]
) -> Group:
    values = scores[inside]
    values = values[~np.isnan(values)].astype(np.float64)
    quantiles = np.quantile(values, QUANTILES) if len(values) else np.full(len(QUANTILES), np.nan)
    return Group(
        name=name,
        sentences=int(inside.sum()),
        tokens=float(tokens[inside].mean()) if inside.any() else float("nan"),
        scored=len(values),
        mean=float(values.mean()) if len(values) else float("nan"),
        quantiles=tuple(float(value) for value in quantiles),
        poor=float((values < 20).mean()) if len(values) else float("nan"),
    )


def worst_rows(corpus: Corpus, count: int, *, max_rows: int, where: Condition | None = None) -> list[ScoredRow]:
    """Return the rows with the lowest AutoBLEU; equal scores in the order of the corpus.

    Args:
        corpus: the corpus.
        count: how many rows.
        max_rows: read only about this many rows, the first ones.
        where: a condition that rows must satisfy.

    Returns:
        The rows, the lowest score first.
    """
    found: list[tuple[float, int, ScoredRow]] = []
    order = 0
    shown = ("autobleu", "lang", "text", "decoded", "part", "row")
    for batch in corpus.batches(*shown, where=where, max_rows=max_rows):
        table = batch.table.filter(pc.is_valid(batch.table["autobleu"]))
        table = table.sort_by([("autobleu", "ascending"), ("row", "ascending")]).slice(0, count)
        for one in table.to_pylist():
            order += 1
            found.append((one["autobleu"], order, ScoredRow(**one)))
        found = heapq.nsmallest(count, found)
    return [row for _, _, row in found]


class StartsOfDocuments:
    """The first sentence of each document, and of each sub-document of one that was cut."""

    columns = ("doc_id", "subdocument", "position")

    def __init__(self, corpus: Corpus | None = None) -> None:
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return (rows,) whether a row is such a sentence; `table` follows the one before."""
        if not table.num_rows:
            return np.zeros(0, np.bool_)
        found: npt.NDArray[np.bool_] = table["position"].to_numpy() == 0
        documents = table["doc_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        parts = table["subdocument"].to_numpy()
        found[1:] |= (documents[1:] != documents[:-1]) | (parts[1:] != parts[:-1])
        ends = [(table["doc_id"][row].as_py(), int(parts[row])) for row in (0, -1)]
        found[0] |= ends[0] != self._last
        self._last = ends[1]
        return found


class JudgedLanguages:
    """Sentences that are long enough, of a stated language that the identification model knows."""

    columns = ("text", "lang", "lang_detected")

    def __init__(self, corpus: Corpus) -> None:
        self._settings = corpus.view.stages["language"]["language"]

    def __call__(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return (rows,) whether a row is such a sentence."""
        from stages.language.stage import is_judged

        text, stated, detected = (table[name] for name in self.columns)
        return np.asarray(is_judged(text, stated, detected, self._settings), np.bool_)
