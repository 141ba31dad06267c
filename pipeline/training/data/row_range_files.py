"""Row ranges of an index in files: records of 22 bytes one after the other, which processes map and do not hold.

Each split has files of its own, in the order of the corpus, so that the row ranges of a shuffle block are together. On
a mounted file system all processes of a machine share the pages that they read; from an object store each process reads
a small split whole, and of others the shuffle blocks of its own streams, in one request each. A file ends with a part,
at `FILE_ROW_RANGES`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.base.errors import CorpusError, DamagedError, MissingError
from pipeline.base.parallel import in_parallel
from pipeline.corpus.fingerprint import content_digest
from pipeline.storage import layout
from pipeline.storage.store import Store

Records = npt.NDArray[np.void]
ROW_RANGE = np.dtype(
    [
        ("part", "<i4"),  # number in the table of parts
        ("doc", "<i4"),  # number of the document in the part
        ("first_row", "<i4"),
        ("rows", "<i4"),
        ("answer", "<i4"),  # for prompts and answers: the first row of the answer; otherwise −1
        ("new", "?"),  # whether a sequence begins; with `drop-sentences` a sequence has several row ranges
        ("after", "i1"),  # what follows it, or that it is a plan: one of the five below
    ]
)
NOTHING, CLOSING, BREAK, PLAN, GIVEN = range(5)  # CLOSING: its document ends here; BREAK: its paragraph does
PLANS = (PLAN, GIVEN)  # PLAN: a sentence again; GIVEN: the plan that stands in this row
FILE_ROW_RANGES = 1 << 22  # 92 MB
_WHOLE = 1 << 20  # row ranges of a split that is read from an object store at once, 23 MB
_LEAST = 3000  # row ranges of a request, 66 kB: no slower than fewer, and the next ones often follow
_KEPT = 8  # requests whose row ranges stay in memory


def concatenated_ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return start, start + 1, … of every range, one after the other."""
    before = np.cumsum(lengths) - lengths
    found: npt.NDArray[np.int64] = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return found


class RowRangeWriter:
    """Writes the row ranges of one split of an index. `files`: how many each written file holds; `digests`: of each.

    Args:
        store: the corpus.
        digest: the digest of the index.
        split: `train`, `validation` or `test`.
    """

    def __init__(self, store: Store, digest: str, split: str) -> None:
        self._store, self._digest, self._split = store, digest, split
        self._waiting: list[Records] = []
        self._waiting_ranges = 0  # row ranges that wait
        self.files: list[int] = []
        self.digests: list[str] = []

    def add(self, row_ranges: Records) -> None:
        """Add the row ranges of one part."""
        self._waiting.append(row_ranges)
        self._waiting_ranges += len(row_ranges)
        if self._waiting_ranges >= FILE_ROW_RANGES:
            self.close()

    def close(self) -> None:
        """Write what waits."""
        row_ranges = np.concatenate([*self._waiting, np.empty(0, ROW_RANGE)])
        self._waiting, self._waiting_ranges = [], 0
        if len(row_ranges):
            path = layout.index_row_ranges_path(self._digest, self._split, len(self.files))
            data = row_ranges.tobytes()
            self._store.write(path, data)
            self.files.append(len(row_ranges))
            self.digests.append(content_digest(data))


def damaged_files(
    store: Store, digest: str, split: str, files: Sequence[int], digests: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the files of a split that have changed.

    Args:
        store: the corpus.
        digest: the digest of the index.
        split: `train`, `validation` or `test`.
        files: how many row ranges each file holds.
        digests: the digest of each file; empty for older indexes.

    Yields:
        (path, what is wrong).
    """
    for number, row_ranges in enumerate(files):
        path = layout.index_row_ranges_path(digest, split, number)
        try:
            data = store.read(path)
        except MissingError:
            yield path, "is missing"
            continue
        except DamagedError as error:  # no file at all
            yield path, f"{error.what}; {error.remedy}"
            continue
        if len(data) != row_ranges * ROW_RANGE.itemsize:
            yield path, f"has {len(data)} bytes instead of {row_ranges * ROW_RANGE.itemsize}"
        elif digests and content_digest(data) != digests[number]:
            yield path, f"has another digest than {digests[number][:8]}…"


class RowRanges:
    """The row ranges of one split.

    Args:
        store: the corpus.
        digest: the digest of the index.
        split: `train`, `validation` or `test`.
        files: how many row ranges each file holds.

    Raises:
        CorpusError: if a file is gone or damaged; of a large split on an object store only when it is read.
    """

    def __init__(self, store: Store, digest: str, split: str, files: Sequence[int]) -> None:
        self._store = store
        self._paths = [layout.index_row_ranges_path(digest, split, number) for number in range(len(files))]
        self._first = np.cumsum([0, *files]).tolist()
        self._files: list[Records] = []
        if store.local or len(self) <= _WHOLE:
            self._files = list(map(self._whole, self._paths, files))
        self._kept: deque[tuple[int, Records]] = deque(maxlen=_KEPT)  # the first, and what was read from there on

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def at_hand(self) -> bool:
        """Whether all are mapped or in memory, so that nothing is gained by looking them up ahead of time."""
        return bool(self._files)

    def of(self, spans: Sequence[tuple[int, int]]) -> list[Records]:
        """Return the row ranges of spans, which are in one file each as those of a part are.

        Args:
            spans: the first row range of each, and the one after its last.

        Returns:
            The row ranges of each span.

        Raises:
            CorpusError: if a file is gone or too short.
        """
        return list(map(self._between, spans)) if self.at_hand else in_parallel(self._between, spans)

    def damaged(self, row_range: int, what: str) -> CorpusError:
        """Return the error for the file that holds a row range. `what`: what is wrong with it."""
        return self._error(self._paths[self._file(row_range)], what)

    def _file(self, row_range: int) -> int:
        return bisect_right(self._first, row_range, hi=len(self._paths)) - 1

    def _between(self, span: tuple[int, int]) -> Records:
        first, end = span
        file = self._file(first)
        before = self._first[file]
        if self._files:
            return self._files[file][first - before : end - before]
        for start, kept in list(self._kept):
            if start <= first and end <= start + len(kept):
                return kept[first - start : end - start]
        stop, size = max(end, min(first + _LEAST, self._first[file + 1])), ROW_RANGE.itemsize
        try:
            data = self._store.read_range(self._paths[file], (first - before) * size, (stop - before) * size)
        except MissingError:
            raise self._error(self._paths[file], "is missing") from None
        if len(data) != (stop - first) * size:
            there, expected = self._store.size(self._paths[file]), (self._first[file + 1] - before) * size
            raise self._error(self._paths[file], f"has {there} bytes instead of {expected}")
        found = np.frombuffer(data, ROW_RANGE)
        self._kept.append((first, found))
        return found[: end - first]

    def _whole(self, path: str, row_ranges: int) -> Records:
        try:
            if self._store.local:
                with self._store.open(path) as handle:  # the mapping stays valid after closing
                    data: Any = handle.read_buffer()
            else:
                data = self._store.read(path)
        except MissingError:
            raise self._error(path, "is missing") from None
        if len(data) != row_ranges * ROW_RANGE.itemsize:
            raise self._error(path, f"has {len(data)} bytes instead of {row_ranges * ROW_RANGE.itemsize}")
        return np.frombuffer(data, ROW_RANGE)

    def _error(self, path: str, what: str) -> CorpusError:
        return CorpusError(
            f"{self._store.url}/{path} {what}; delete {path.split('.')[0]}.parquet and run the same command again, "
            "which makes the index again"
        )
