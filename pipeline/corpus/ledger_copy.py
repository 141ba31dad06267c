"""Copies of ledgers on this machine, from which the receipts of any chunk are read on their own.

A ledger is read in row groups of 256 chunks. The parts of a corpus are sorted by their names, which are hashes, and
ledgers list chunks as they were finished: without a copy, a pass over the parts would read a row group for each chunk.
The copy is a temporary file that has no name any more (TMPDIR), and disappears with the process. Cost: about as many
bytes as the ledgers have, and 24 bytes of memory per chunk.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from pipeline.base.errors import StorageError

_LEVEL = 1


class LedgerCopy:
    """The receipts of whole ledgers in one temporary file, those of each row compressed on their own."""

    def __init__(self) -> None:
        self._codec = pa.Codec("zstd", compression_level=_LEVEL)
        self._first: dict[int, int] = {}  # number of a ledger → place of its first row in the arrays
        self._sizes, self._ends = array("q"), array("q", [0])
        self._file: int | None = None

    def __contains__(self, ledger: int) -> bool:
        return ledger in self._first

    def add(self, ledger: int, texts: Iterable[pa.StringScalar], origin: str) -> None:
        """Copy the receipts of a ledger.

        Args:
            ledger: the number of the ledger.
            texts: the receipts of each of its rows.
            origin: the address of the ledger, for messages.

        Raises:
            StorageError: if there is no space for the copy.
        """
        first = len(self._sizes)
        for text in texts:
            data = text.as_buffer()
            compressed = self._codec.compress(data)
            try:
                os.pwrite(self._opened(), compressed, self._ends[-1])
            except OSError as error:
                raise StorageError(
                    f"{origin} cannot be copied to {tempfile.gettempdir()}: {error}; set TMPDIR to a folder with space"
                ) from error
            self._sizes.append(data.size)
            self._ends.append(self._ends[-1] + compressed.size)
        self._first[ledger] = first

    def text(self, ledger: int, row: int) -> str:
        """Return the receipts of a row of a ledger that was copied."""
        at = self._first[ledger] + row
        data = os.pread(self._opened(), self._ends[at + 1] - self._ends[at], self._ends[at])
        return str(self._codec.decompress(data, self._sizes[at], asbytes=True), "utf-8")

    def _opened(self) -> int:
        if self._file is None:
            self._file, name = tempfile.mkstemp()
            Path(name).unlink()
            weakref.finalize(self, os.close, self._file)
        return self._file
