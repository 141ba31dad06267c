"""Copies of ledgers on this machine, from which the receipts of any chunk are read on their own.

A ledger is read in row groups of 256 chunks. The parts of a corpus are sorted by their names, which are hashes, and
ledgers list chunks as they were finished: without a copy, a pass over the parts reads a row group for each chunk.
The copy is a temporary file that has no name any more (TMPDIR), and disappears with the process. Cost: about as many
bytes as the ledgers have, and 24 bytes of memory per chunk. Where there is no space for it, nothing is copied any more.
"""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

_LEVEL = 1
_log = logging.getLogger(__name__)


class LedgerCopy:
    """The receipts of whole ledgers in one temporary file, those of each row compressed on their own.

    `given_up`: whether the file could not be written or read; what it holds is then let go, and no ledger is added.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._codec = pa.Codec("zstd", compression_level=_LEVEL)
        self._first: dict[int, int] = {}  # number of a ledger → place of its first row in the arrays
        self._sizes, self._ends = array("q"), array("q", [0])
        self._file: int | None = None
        self._owner = 0  # the process that writes it

    def __contains__(self, ledger: int) -> bool:
        return ledger in self._first

    def add(self, ledger: int, texts: Iterable[pa.StringScalar]) -> OSError | None:
        """Copy the receipts of a ledger, given by row. Returns why there is no space for them, or None."""
        if self._owner != os.getpid():  # the process that this one was forked from writes there, too
            self._let_go()
        first = len(self._sizes)
        for text in texts:
            data = text.as_buffer()
            compressed = self._codec.compress(data)
            try:
                self._write(memoryview(compressed))
            except OSError as error:
                return error
            self._sizes.append(data.size)
            self._ends.append(self._ends[-1] + compressed.size)
        self._first[ledger] = first
        return None

    def text(self, ledger: int, row: int) -> str | None:
        """Return the receipts of a row of a copied ledger; give up, and return None, if they cannot be read."""
        at = self._first[ledger] + row
        try:
            data = os.pread(self._opened(), self._ends[at + 1] - self._ends[at], self._ends[at])
            return str(self._codec.decompress(data, self._sizes[at], asbytes=True), "utf-8")
        except (OSError, ValueError) as error:  # errors of Arrow and of UTF-8 are among them
            self.give_up(error)
            return None

    def _write(self, data: memoryview) -> None:
        """Append all of the data: on a disk that is nearly full, a write may end early without an error."""
        end = self._ends[-1]
        while data:
            written = os.pwrite(self._opened(), data, end)
            data, end = data[written:], end + written

    def _opened(self) -> int:
        if self._file is None:
            self._file, name = tempfile.mkstemp()
            self._owner, self._close = os.getpid(), weakref.finalize(self, os.close, self._file)
            Path(name).unlink()
        return self._file

    def give_up(self, error: Exception) -> None:
        """Let go what was copied, and say why."""
        self.given_up = True
        self._let_go()
        _log.warning(
            "ledgers are read again and again, since they cannot be copied to the folder for temporary files (%s); to "
            "have that faster, set TMPDIR to a folder with space",
            error,
        )

    def _let_go(self) -> None:
        self._first.clear()
        self._sizes, self._ends = array("q"), array("q", [0])
        if self._file is not None:
            self._close()
            self._file = None
