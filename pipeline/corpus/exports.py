"""The record of exports: `exports/<time>-<id>.json`, written just before an export is complete.

An export does not change with its corpus. Its record says from which view it was made, so that `purge` can name exports
that hold purged documents, `gc` keeps the files that they were made from, and `status` and `plan` say which are older
than the corpus. The place of an export is shown to people; of one on a local disk, `status` looks whether its files are
still there, and as large as they were. An export to the place of an earlier one replaces it, because exports are
written to empty folders only. Cost: one small file per export.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.base.errors import CorpusError, DamagedError, visible
from pipeline.corpus.fingerprint import column_digest, fingerprint
from pipeline.corpus.runs import newest_folder
from pipeline.corpus.view import View
from pipeline.storage import layout
from pipeline.storage.records import Record, parse_json, read_json, sealed
from pipeline.storage.remote import is_remote, without_credentials
from pipeline.storage.store import Store, leaves, named

FOLDER = "exports"
FINISHED = "export.json"  # in the folder of a finished export
_RUN = r"[0-9A-Za-z.-]+"
REMEDY = (
    "pipeline verify --repair deletes this record; the export itself stays, but no command will name it until it is "
    "made again"
)


class ExportRecord(Record):
    """A finished export.

    name: of this record, without `.json`. place: of the export, relative to the corpus if both lie in one folder.
    run: the run whose view was exported. view: the digest of that view. rows: sentences of the corpus. select,
    selection: the rules and the digest of the rows that they leave. sentences, sequences: how many were written. lost:
    whether the view is lost, so that nobody knows which files the export was made from: purge then names the export
    whatever is purged, and gc keeps nothing for it.
    """

    name: str
    place: str
    format: str
    run: str
    view: str
    rows: int
    select: dict[str, Any]
    selection: str
    sentences: int
    sequences: int
    made: str
    lost: bool = False

    @property
    def path(self) -> str:
        """The path of this record in the corpus."""
        return f"{FOLDER}/{self.name}.json"

    def __str__(self) -> str:
        return f"{visible(self.place)} ({visible(self.format)}, {visible(self.made[:10])})"


@dataclass(frozen=True)
class Exports:
    """The exports of a corpus, oldest first, without replaced ones. damaged: path of another record → what is wrong."""

    records: tuple[ExportRecord, ...]
    damaged: dict[str, CorpusError]


def view_digest(view: View) -> str:
    """Return a digest of everything that decides on the rows of a view, but not of where its inputs lie."""
    chunks = pa.table({"id": view.listed.chunks.table["id"], "print": view.listed.fingerprints}).sort_by("id")
    return fingerprint([view.stages, view.fits, *(column_digest(chunks[name]) for name in ("id", "print"))])


def record_export(
    store: Store, view: View, place: str, rows: int, select: dict[str, Any], selection: str, *, format: str,
    sentences: int, sequences: int,
) -> ExportRecord:  # fmt: skip
    """Record an export of which all files but `export.json` are written.

    Args:
        store: the corpus.
        view: what was exported.
        place: the folder of the export.
        rows: how many rows the view had.
        select: the settings of the selection.
        selection: their digest.
        format: the format of the export, one of `pipeline export --format`.
        sentences: how many sentences were written.
        sequences: how many sequences were written.

    Returns:
        The record as it was written.

    Raises:
        StorageError: if the corpus cannot be written to.
    """
    now = datetime.now(UTC)
    record = ExportRecord(
        name=f"{now:%Y%m%dT%H%M%S.%f}-{secrets.token_hex(3)}", place=_relative(place, store.url), format=format,
        run=_run_of(store, view), view=view_digest(view), rows=rows, select=select, selection=selection,
        sentences=sentences, sequences=sequences, made=now.isoformat(timespec="seconds"),
    )  # fmt: skip
    store.create(record.path, sealed(record.model_dump_json(indent=1)))
    return record


def is_recorded(store: Store, view: View, place: str, selection: str) -> bool:
    """Return whether the newest record of a place is of an export like one.

    Args:
        store: the corpus.
        view: what was exported.
        place: the folder of the export.
        selection: the digest of the rows that the rules leave.

    Returns:
        Whether it is recorded.
    """
    wanted = _relative(place, store.url), view_digest(view), selection
    return any((one.place, one.view, one.selection) == wanted for one in exports_of(store).records)


def read_export(store: Store, path: str) -> ExportRecord:
    """Read the record of an export. Raises `CorpusError` if it is missing or damaged."""
    record = read_json(store, path, ExportRecord, REMEDY)
    if record.path != path:
        raise DamagedError(f"{store.url}/{path}", f"it is the record {visible(record.name)}", REMEDY)
    named(record.run, layout.RUNS, _RUN, by=f"{store.url}/{path}", remedy=REMEDY)
    return record


def exports_of(store: Store) -> Exports:
    """Read the records of all exports; a damaged one hides no other."""
    found: dict[str, ExportRecord] = {}
    damaged: dict[str, CorpusError] = {}
    for path in record_paths(store):
        try:
            record = read_export(store, path)
        except CorpusError as error:
            damaged[path] = error
            continue
        found.pop(record.place, None)
        found[record.place] = record
    return Exports(tuple(found.values()), damaged)


def is_gone(store: Store, record: ExportRecord) -> bool:
    """Return whether an export that was written to a local disk is not there. Other stores are not asked."""
    folder = _local_folder(store, record)
    if folder is None:
        return False
    try:
        (folder / FINISHED).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # nobody may look
        return False
    return False


def changed_files(store: Store, record: ExportRecord) -> list[str]:
    """Return the files of an export on a local disk that are missing, or have another size than `export.json` says;
    that itself if it is damaged. Other stores are not asked, and exports of earlier versions do not say. Cost: a look
    at each file's size.
    """
    folder = _local_folder(store, record)
    if folder is None:
        return []
    try:
        files = parse_json((folder / FINISHED).read_bytes(), _Finished, FINISHED, "").files
    except OSError:  # it is gone, or nobody may look
        return []
    except DamagedError:
        return [FINISHED]
    return sorted(name for name, one in files.items() if leaves(name) or _size(folder / name) not in (one.bytes, None))


@dataclass(frozen=True)
class _Sized:
    bytes: int


@dataclass(frozen=True)
class _Finished:
    """What `export.json` says of its files; earlier versions say nothing."""

    files: dict[str, _Sized] = field(default_factory=dict)


def _size(path: Path) -> int | None:
    """Return the size of a file, −1 if there is none; None if nobody may look."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except OSError:
        return None


def _local_folder(store: Store, record: ExportRecord) -> Path | None:
    """Return the folder of an export; None if it is not on a disk of this machine."""
    remote = record.place.startswith("../") and "://" in store.url
    return None if remote or "://" in record.place else Path(os.path.realpath(store.url), record.place)


def record_paths(store: Store) -> list[str]:
    """Return the paths of all records, oldest first."""
    return [path for path in store.find(FOLDER) if path.endswith(".json")]


def view_of(store: Store, record: ExportRecord) -> View:
    """Return the view that was exported. Raises `CorpusError` if no run has it any more."""
    if record.lost:
        raise CorpusError(f"the view from which the export {record} was made is lost")
    try:
        return View.read(store, record.run)
    except CorpusError as error:
        view = View.read(store, newest_folder(store))  # made again by `verify --repair`, say
        if view_digest(view) == record.view:
            return view
        raise CorpusError(
            f"the view from which the export {record} was made is lost ({error}); restore it from a copy, or run "
            f"pipeline verify {store.url} --repair, which notes the loss: purge then names this export whatever is "
            "purged, and gc keeps no files for it"
        ) from error


def note_loss(store: Store, record: ExportRecord) -> None:
    """Write the record of an export again, without a view."""
    store.write(record.path, sealed(record.model_copy(update={"lost": True}).model_dump_json(indent=1)))


def _run_of(store: Store, view: View) -> str:
    """Return the run that has this view: the newest one, unless another was begun meanwhile."""
    digest = view_digest(view)
    for name in reversed(store.folders(layout.RUNS)):
        folder = f"{layout.RUNS}/{name}"
        try:
            if view_digest(View.read(store, folder)) == digest:
                return folder
        except CorpusError:  # of a run that has just begun, or of an older version
            continue
    return newest_folder(store)


def _relative(place: str, corpus: str) -> str:
    """Return where an export lies, relative to the corpus if it is in the same folder or below that."""
    remote = is_remote(corpus) or "://" in corpus
    here = corpus.rstrip("/") if remote else os.path.realpath(corpus)
    beside = here.rpartition("/")[0]
    return f"../{place.removeprefix(f'{beside}/')}" if place.startswith(f"{beside}/") else without_credentials(place)
