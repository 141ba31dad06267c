"""A part on disk: which files its receipts vouch for, and the tables of them that are in memory."""

from __future__ import annotations

import pyarrow as pa

from pipeline.base.errors import CorpusError
from pipeline.corpus.fingerprint import content_digest
from pipeline.corpus.receipts import DataFile, Receipt
from pipeline.corpus.recipes import SEGMENT
from pipeline.storage.store import Store
from stages.arrow import scattered, table_of


class OpenPart:
    """A part during a visit."""

    def __init__(self, store: Store, segmented: Receipt) -> None:
        self.store = store
        self.name = segmented.part
        self.rows = segmented.rows
        self.replaces = segmented.replaces
        self.receipts: dict[str, Receipt] = {}
        self.digests: dict[str, str] = {}
        self._files: dict[str, DataFile] = {}
        self._tables: dict[str, pa.Table] = {}
        self.add(SEGMENT, segmented, {})

    def add(self, stage: str, receipt: Receipt, tables: dict[str, pa.Table]) -> None:
        """Add the result of a stage.

        Args:
            stage: the name of the stage.
            receipt: its receipt for this part.
            tables: family → rows, of what is in memory; other files are read when they are needed.
        """
        self.receipts[stage] = receipt
        self.digests |= receipt.columns
        self._files |= {file.family: file for file in receipt.files}
        self._tables |= tables

    def family(self, name: str) -> pa.Table:
        """Return all columns of a family. Raises `CorpusError` if its file is not what its receipt vouches for."""
        if name not in self._tables:
            self._tables[name] = read_file(self.store, self._files[name])
        return self._tables[name]

    def columns(self, names: tuple[str, ...]) -> pa.Table:
        """Return the named columns ("family.column"), side by side; a column of documents beside one of rows has its
        values in the first row of each document, and null in the others.
        """
        families = [name.partition(".")[0] for name in names]
        columns = {name: self.family(one)[name.partition(".")[2]] for name, one in zip(names, families, strict=True)}
        if {"documents"} < set(families):
            first = self.family("documents")["first_row"].to_numpy()
            columns |= {
                name: scattered(columns[name].combine_chunks(), first, self.rows)
                for name, one in zip(names, families, strict=True)
                if one == "documents"
            }
        return pa.table(columns)


def read_file(store: Store, file: DataFile) -> pa.Table:
    """Read a whole data file, verified against its receipt. Raises `CorpusError` if its bytes changed."""
    data = store.read(file.path)
    if content_digest(data) != file.digest:
        raise CorpusError(
            f"{store.url}/{file.path} has {len(data)} bytes that its receipt does not vouch for ({file.bytes} bytes, "
            f"digest {file.digest[:8]}…): it was changed or damaged; delete its receipt and run again"
        )
    return table_of(data)
