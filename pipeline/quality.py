"""Quality columns of a corpus: quantiles by language and by length, and the worst rows with their decoded text.

Reads only the small columns; of a large corpus the first parts in the order of their (random) names, up to
`max_rows` rows, and says so.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus import Corpus

LENGTHS = ((1, 25), (26, 50), (51, 100), (101, 150), (151, 200), (201, None))  # characters
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Group:
    """Sentences of one language or length. `quantiles` of AutoBLEU (NaN where none is scored)."""

    name: str
    sentences: int
    tokens: float  # mean
    scored: int
    mean: float
    quantiles: tuple[float, ...]
    poor: float  # share of the scored below 20


@dataclass(frozen=True)
class Row:
    """One sentence with its score."""

    autobleu: float
    lang: str
    part: str
    row: int
    text: str
    decoded: str


@dataclass(frozen=True)
class Quality:
    """What `inspect` shows."""

    by_lang: list[Group]
    by_length: list[Group]
    everything: Group
    parts_read: int
    parts: int


def measure(corpus: Corpus, max_rows: int) -> Quality:
    """Quantiles over at most about `max_rows` rows."""
    scored = "autobleu" in corpus.columns
    columns = ("lang", "chars", "tokens", *(("autobleu",) if scored else ()))
    tables: list[pa.Table] = []
    rows = 0
    for name in corpus.parts:
        tables.append(corpus.table(*columns, part=name))
        rows += tables[-1].num_rows
        if rows >= max_rows:
            break
    table = pa.concat_tables(tables)
    langs = np.asarray(table["lang"].to_pylist(), dtype=object)
    chars, tokens = table["chars"].to_numpy(), table["tokens"].to_numpy()
    scores = table["autobleu"].to_numpy() if scored else np.full(len(chars), np.nan, np.float32)
    names, counts = np.unique(langs.astype(str), return_counts=True)
    by_lang = [_group(str(name), langs == name, tokens, scores) for name in names[np.argsort(-counts, kind="stable")]]
    by_length = []
    for low, high in LENGTHS:
        inside = (chars >= low) & (chars <= high) if high else chars >= low
        if inside.any():
            by_length.append(_group(f"{low}–{high}" if high else f"{low}+", inside, tokens, scores))
    everything = _group("all", np.ones(len(chars), np.bool_), tokens, scores)
    return Quality(by_lang, by_length, everything, len(tables), len(corpus.parts))


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


def worst_rows(corpus: Corpus, count: int, *, lang: str | None = None, max_rows: int) -> list[Row]:
    """The rows with the lowest AutoBLEU; equal scores in the order of the corpus."""
    found: list[tuple[float, int, Row]] = []
    seen = 0
    for name in corpus.parts:
        table = corpus.table("autobleu", "lang", "text", "decoded", part=name)
        seen += table.num_rows
        table = table.append_column("row", pa.array(np.arange(table.num_rows)))
        table = table.filter(pc.is_valid(table["autobleu"]))
        if lang:
            table = table.filter(pc.equal(table["lang"], lang))
        table = table.sort_by([("autobleu", "ascending"), ("row", "ascending")]).slice(0, count)
        for one in table.to_pylist():
            row = Row(one["autobleu"], one["lang"], name, one["row"], one["text"], one["decoded"])
            found.append((one["autobleu"], len(found), row))
        found = heapq.nsmallest(count, found)
        if seen >= max_rows:
            break
    return [row for _, _, row in found]
