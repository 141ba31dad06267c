"""Compares the files of a finished export with what its `export.json` says of them, before they are uploaded.

Sizes are compared first, then digests. An `export.json` of an earlier version names no files; the row counts of its
Parquet files must then add up. Cost: every file is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from pipeline.base.errors import CorpusError, visible
from pipeline.base.formats import counted
from pipeline.base.messages import print_plain
from pipeline.corpus.exports import FINISHED
from pipeline.storage.export_target import first_of, is_hidden
from stages.fetch import sha256_of

_AGAIN = "delete the folder, and run the same command again, which exports anew"


def compare_files(console: Console, folder: str, record: Mapping[str, Any]) -> None:
    """Compare the files of a finished export with its record.

    Args:
        console: where it is said that not everything could be compared.
        folder: the folder of the export, on this machine.
        record: its `export.json`.

    Raises:
        CorpusError: if files are missing or changed, or there are others.
    """
    root = Path(folder)
    there = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    there.pop(FINISHED, None)
    files = record.get("files")
    if not isinstance(files, dict):
        print_plain(
            console,
            f"{folder}/{FINISHED} is of an earlier version and does not say what the files hold: only the numbers of "
            "their rows are compared",
            style="dim",
        )
        _compare_rows(folder, there, record["written"]["sentences"])
        return
    wrong = {
        "missing": sorted(files.keys() - there.keys()),
        "changed": sorted(name for name in files.keys() & there.keys() if not _same(there[name], files[name])),
        "not of this export": sorted(name for name in there.keys() - files.keys() if not is_hidden(name)),
    }
    said = [f"{counted(len(names), 'file')} {what} ({first_of(names)})" for what, names in wrong.items() if names]
    if said:
        only_more = not wrong["missing"] and not wrong["changed"]
        todo = "delete or move what is not of this export, and run the same command again" if only_more else _AGAIN
        raise CorpusError(
            f"{folder} is not as it was written: {'; '.join(said)}; nothing is uploaded. To go on, {todo}"
        )


def _compare_rows(folder: str, there: Mapping[str, Path], sentences: int) -> None:
    rows = 0
    for name, path in there.items():
        if not name.endswith(".parquet"):
            continue
        try:
            rows += pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(
                f"{folder}: {visible(name)} is damaged ({str(error).splitlines()[0]}); nothing is uploaded. To go on, "
                + _AGAIN
            ) from error
    if rows != sentences:
        raise CorpusError(
            f"{folder} is not as it was written: {FINISHED} says {counted(sentences, 'sentence')}, and its Parquet "
            f"files hold {rows}; nothing is uploaded. To go on, {_AGAIN}"
        )


def _same(path: Path, about: Any) -> bool:
    size, digest = (about.get("bytes"), about.get("sha256")) if isinstance(about, dict) else (None, None)
    return path.stat().st_size == size and sha256_of(path) == digest
