"""Row ranges of an index in files: records of 22 bytes one after the other, which processes map and do not hold.

Each split has files of its own, in the order of the corpus, so that the row ranges of a shuffle block are together. On
a mounted file system all processes of a machine share the pages that they read; from an object store each copies the
files to a temporary one that no other process sees (TMPDIR) and that disappears with the process. A file ends with a
part, at `FILE_ROW_RANGES`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.base.errors import CorpusError, DamagedError, MissingError, StorageError
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
_COPIED = 1 << 24  # bytes at a time


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
        files: how many row ranges each file holds; `CorpusError` is raised if a file is gone or damaged.
    """

    def __init__(self, store: Store, digest: str, split: str, files: Sequence[int]) -> None:
        paths = [layout.index_row_ranges_path(digest, split, number) for number in range(len(files))]
        handles = (
            _opened(store, path, row_ranges * ROW_RANGE.itemsize) for path, row_ranges in zip(paths, files, strict=True)
        )
        self._files = list(map(_mapped, handles)) if store.local else [_copied(store, handles)]
        self._first = np.cumsum([0, *map(len, self._files)]).tolist()

    def __len__(self) -> int:
        return int(self._first[-1])

    def between(self, first: int, end: int) -> Records:
        """Return those from `first` to before `end`, which are in one file as the row ranges of a part are."""
        file = bisect_right(self._first, first) - 1
        return self._files[file][first - self._first[file] : end - self._first[file]]


def _opened(store: Store, path: str, size: int) -> Any:
    try:
        handle = store.open(path)
        found = f"has {handle.seek(0, os.SEEK_END)} bytes instead of {size}"
    except MissingError:
        found = "is missing"
    else:
        if handle.tell() == size:
            handle.seek(0)
            return handle
    raise CorpusError(
        f"{store.url}/{path} {found}; delete {path.split('.')[0]}.parquet and run the same command again, which makes "
        "the index again"
    )


def _mapped(handle: Any) -> Records:
    with handle:  # the mapping stays valid after closing
        return np.frombuffer(handle.read_buffer(), ROW_RANGE)


def _copied(store: Store, handles: Iterable[Any]) -> Records:
    """Copy all files one after the other into a temporary one that has no name any more."""
    try:
        with tempfile.TemporaryFile() as file:
            for handle in handles:
                shutil.copyfileobj(handle, file, _COPIED)
            file.flush()
            return np.memmap(file, ROW_RANGE, "r")
    except OSError as error:
        raise StorageError(
            f"the index of {store.url} cannot be copied to {tempfile.gettempdir()}: {error}; set TMPDIR to a folder "
            "with space"
        ) from error
