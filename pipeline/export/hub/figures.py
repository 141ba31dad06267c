"""Adds up what a dataset card says of the rows of an export, while they are written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MOST_ROWS = 2_000_000  # kept for quantiles and plots: the first ones, in the random order of the parts


@dataclass
class ExportFigures:
    """Counts of all rows; lengths and scores of the first `MOST_ROWS`."""

    schema: pa.Schema | None = None
    rows: Counter[str] = field(default_factory=Counter)  # by split
    bytes: Counter[str] = field(default_factory=Counter)  # in Arrow's memory, by split
    langs: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)  # by language
    _kept: list[tuple[npt.NDArray[np.object_], npt.NDArray[np.int32], npt.NDArray[np.float32]]] = field(
        default_factory=list
    )
    kept_rows: int = 0

    def add(self, split: str, table: pa.Table) -> None:
        """Count the rows of a table as it is written."""
        self.schema = table.schema
        self.rows[split] += table.num_rows
        self.bytes[split] += table.nbytes
        for one in (
            table.select(["lang", "tokens"])
            .group_by("lang")
            .aggregate([("tokens", "sum"), ("lang", "count")])
            .to_pylist()
        ):
            self.langs[one["lang"]] += one["lang_count"]
            self.tokens[one["lang"]] += one["tokens_sum"]
        if self.kept_rows < MOST_ROWS:
            scored = "autobleu" in table.column_names
            scores = table["autobleu"].to_numpy() if scored else np.full(table.num_rows, np.nan)
            langs = np.asarray(table["lang"].to_pylist(), dtype=object)
            self._kept.append((langs, table["chars"].to_numpy(), scores.astype(np.float32)))
            self.kept_rows += table.num_rows

    def arrays(self) -> tuple[list[str], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return languages, those with most sentences first, and of each kept row its language's place there, its
        length in characters, and its AutoBLEU or NaN.
        """
        names = sorted(self.langs, key=lambda name: (-self.langs[name], name))
        place = {name: number for number, name in enumerate(names)}
        lang = np.array([place[one] for langs, _, _ in self._kept for one in langs], np.int32)
        chars = np.concatenate([chars for _, chars, _ in self._kept]).astype(np.int32)
        return names, lang, chars, np.concatenate([scores for _, _, scores in self._kept])
