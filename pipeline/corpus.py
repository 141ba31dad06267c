"""Reading a corpus back: columns side by side, part by part, exactly what the receipts of the newest run vouch for.

from pipeline import Corpus
corpus = Corpus("runs/sample")
table = corpus.table("text", "embedding", "autobleu", part=0)
for table in corpus.scan("embedding"): ...
matrix = corpus.embeddings(part=0)          # (rows, dim) float16
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.errors import CorpusError
from pipeline.receipts import DataFile
from pipeline.runs import newest_view
from pipeline.state import ChunkState, PartState, View, read_state
from pipeline.store import Store


class Corpus:
    """A corpus on any fsspec filesystem, as the newest run describes it; opens only files that a receipt names.

    Raises `CorpusError` if the folder is no corpus.
    """

    def __init__(self, url: str, view: View | None = None) -> None:
        self.url = url
        self.store = Store(url)
        self.view = view or newest_view(self.store)

    @cached_property
    def chunks(self) -> list[ChunkState]:
        """Chunks of the newest run, in its order."""
        return read_state(self.store, self.view)

    @cached_property
    def _states(self) -> dict[str, PartState]:
        parts = [part for chunk in self.chunks for part in chunk.parts]
        return {part.ref.part: part for part in sorted(parts, key=lambda part: part.ref.part)}

    @cached_property
    def parts(self) -> list[str]:
        """Names of the parts, sorted."""
        return list(self._states)

    @property
    def rows(self) -> int:
        """Sentences in all parts."""
        return sum(part.rows for part in self._states.values())

    @cached_property
    def columns(self) -> list[str]:
        """Columns that every part has and `table` gives."""
        families = [self._families(part) for part in self.parts]
        common = set.intersection(*map(set, families)) if families else set()
        return [column for family in layout.ROW_FAMILIES if family in common for column in family_columns(family)]

    def _families(self, part: str) -> dict[str, DataFile]:
        return {file.family: file for receipt in self._states[part].receipts.values() for file in receipt.files}

    def _part(self, part: str | int) -> str:
        names = self.parts
        if isinstance(part, int):
            if not -len(names) <= part < len(names):
                raise CorpusError(f"{self.url} has {len(names)} parts; there is no part number {part}")
            return names[part]
        if part not in self._states:
            raise CorpusError(f"{self.url} has no part {part}; the first of {len(names)} is {(names or ['none'])[0]}")
        return part

    def table(self, *columns: str, part: str | int | None = None) -> pa.Table:
        """Row columns side by side (all that there are, if none is named).

        `part`: a name or number; all parts one after the other if left out. Row columns are `text`, `lang`, `chars`,
        `tokens`, `doc`, `position`, `start`, `end`, `u`, `embedding`, `status`, `autobleu`, `decoded`.
        """
        if part is None:
            tables = list(self.scan(*columns))
            if not tables:
                raise CorpusError(f"{self.url} has no finished part; run: pipeline run corpus.yaml")
            return pa.concat_tables(tables)
        name = self._part(part)
        wanted = columns or tuple(self.columns)
        files = self._families(name)
        found: dict[str, pa.ChunkedArray] = {}
        for family in dict.fromkeys(_family_of(column) for column in wanted):
            names = [column for column in wanted if _family_of(column) == family]
            if family not in files:
                raise CorpusError(
                    f"part {name} has no {', '.join(names)}: its stage has not run; it has {', '.join(self.columns)}"
                )
            table = self._read(files[family], names)
            found |= {column: table[column] for column in names}
        return pa.table({column: found[column] for column in wanted})

    def scan(self, *columns: str) -> Iterator[pa.Table]:
        """`table` of one part after the other."""
        for part in self.parts:
            yield self.table(*columns, part=part)

    def documents(self, part: str | int) -> pa.Table:
        """Documents of a part: id, language, split, source, first row, rows and the metadata that was kept."""
        return self._read(self._families(self._part(part))["documents"], None)

    def embeddings(self, part: str | int) -> npt.NDArray[np.float16]:
        """(rows, dim) float16 of a part; no Python object is made for a row."""
        array = self.table("embedding", part=part)["embedding"].combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        return np.asarray(array.flatten().to_numpy(zero_copy_only=True)).reshape(len(array), -1)

    def _read(self, file: DataFile, columns: list[str] | None) -> pa.Table:
        with self.store.open(file.path) as handle:
            return pq.read_table(handle, columns=columns)


def family_columns(family: str) -> list[str]:
    """Column names of a row family."""
    return list(layout.schema(family, dim=1).names)


def _family_of(column: str) -> str:
    for family in layout.ROW_FAMILIES:
        if column in family_columns(family):
            return family
    allowed = [name for family in layout.ROW_FAMILIES for name in family_columns(family)]
    raise CorpusError(f"there is no row column {column}; allowed: {', '.join(allowed)}")
