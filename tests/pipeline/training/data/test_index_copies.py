"""An index on an object store is copied once to a machine, whatever the number of processes and which are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.base.errors import StorageError
from pipeline.storage.store import Store
from pipeline.training.data.row_range_files import ROW_RANGE, RowRanges, RowRangeWriter

COUNT = 5000
READS = """import sys
from pipeline.storage.store import Store
read, whole = 0, Store.read_range
def counted(store, path, start, end):
    global read
    data = whole(store, path, start, end)
    read += len(data)
    return data
Store.read_range = counted
from pipeline.training.data.row_range_files import RowRanges
found = RowRanges(Store(sys.argv[1]), sys.argv[2], "train", [int(sys.argv[3])])
print(read, len(found), found.between(0, len(found))["doc"].sum(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def corpus(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address with the row ranges of two indexes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for digest in ("1" * 32, "2" * 32):
        writer, row_ranges = RowRangeWriter(Store(bucket), digest, "train"), np.zeros(COUNT, ROW_RANGE)
        row_ranges["doc"] = np.arange(COUNT)
        writer.add(row_ranges)
        writer.close()
    return bucket


def process(corpus: str, digest: str = "1" * 32) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READS, corpus, digest, str(COUNT)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(one: subprocess.Popen[str]) -> int:
    """How many bytes a process has read, when it has all row ranges."""
    assert one.stdout
    read, *content = map(int, one.stdout.readline().split())
    assert content == [COUNT, COUNT * (COUNT - 1) // 2]
    return read


def copies(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.runs"))


def test_processes_of_a_machine_share_a_copy_that_the_last_deletes(corpus: str, tmp_path: Path) -> None:
    processes = [process(corpus) for _ in range(4)]
    assert sum(map(told, processes)) == COUNT * ROW_RANGE.itemsize
    for one in processes[1:]:
        one.communicate()
    more = process(corpus)
    assert told(more) == 0 and len(copies(tmp_path)) == 1
    for one in (more, processes[0]):
        one.communicate()
    assert copies(tmp_path) == [] and not list(tmp_path.rglob("*.begun"))


def test_a_killed_process_leaves_a_copy_that_is_used_or_deleted(corpus: str, tmp_path: Path) -> None:
    first = process(corpus)
    assert told(first) == COUNT * ROW_RANGE.itemsize
    first.kill()
    first.communicate()
    (name,) = copies(tmp_path)
    assert len(RowRanges(Store(corpus), "2" * 32, "train", [COUNT])) == COUNT
    assert name not in copies(tmp_path)


def test_a_folder_of_another_user_is_not_used(corpus: str, tmp_path: Path) -> None:
    RowRanges(Store(corpus), "1" * 32, "train", [COUNT])
    (folder,) = tmp_path.glob("sonar-pipeline-index-*")
    folder.chmod(0o777)
    with pytest.raises(StorageError, match=r"this user alone may write to.*set TMPDIR to a folder with space"):
        RowRanges(Store(corpus), "1" * 32, "train", [COUNT])
