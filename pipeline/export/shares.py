"""Exports by several processes: each writes one of N equal shares of the parts, and the last one completes the export.

`shares/3-of-100.json` says what share 3 has written, and from what: shares of another corpus, state of a corpus or
selection do not mix. The process that finds all N notes adds them up, compares the folder with them, and completes the
export as a single one would (`pipeline/storage/share_notes.py`). Files are named after the parts of the corpus.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.base.errors import ConfigError, CorpusError, MissingError
from pipeline.base.formats import counted
from pipeline.corpus.exports import FINISHED
from pipeline.corpus.receipts import CHECKED_BYTES
from pipeline.export.lcm import CARDS
from pipeline.export.pieces import Written
from pipeline.select.selection import Counts
from pipeline.storage.export_target import ExportTarget, first_of
from pipeline.storage.records import Record, read_json
from pipeline.storage.share_notes import Share, ShareNotes, check_share, note_name
from pipeline.storage.store import Store

FORMATS: dict[str, tuple[str, ...]] = {"parquet": (), "lcm": CARDS}  # files named after parts; what completes these
_FOLDER = "shares"


class _File(BaseModel):
    bytes: int
    sha256: str


class ShareNote(Record):
    """What a share has written: how many sentences there were, where they went, and the files."""

    identity: dict[str, Any]
    counts: Counts
    written: Written
    files: dict[str, _File]


class Shares:
    """The notes of the shares of one export.

    Args:
        target: the folder of the export.
        share: the share of this process.
        identity: what decides the bytes of the export.
    """

    def __init__(self, target: ExportTarget, share: Share, identity: dict[str, Any]) -> None:
        self._target, self._identity = target, identity
        self._store = Store(target.url)
        self._notes = ShareNotes(self._store, f"{_FOLDER}/", share, ShareNote)

    def is_written(self) -> bool:
        """Return whether this share is written already. Raises `CorpusError` if its note, or another one, is damaged or
        of another export.
        """
        there, mine = self._notes.present(), self._notes.mine
        for path in {*there[:1], *({mine} & set(there))}:
            with contextlib.suppress(MissingError):  # deleted by a process that has completed the export
                self._checked(self._notes.read(path), path)
        return mine in there

    def note(self, counts: Counts, written: Written) -> None:
        """Note what this share has written."""
        files = {name: _File(**about) for name, about in self._target.written.items()}
        self._notes.write(ShareNote(identity=self._identity, counts=counts, written=written, files=files))

    def missing(self) -> list[int]:
        """Return the shares that have no note yet."""
        return self._notes.missing()

    def together(self, format: str) -> tuple[Counts, Written]:
        """Add up the notes of all shares, whose files the folder must have now.

        Raises `CorpusError` if it has others or changed ones, a note is of another export, or no sentence was written.
        """
        counts, written = Counts(), Written()
        for which, note in enumerate(self._notes.every(), 1):
            self._checked(note, self._notes.path(which))
            counts.add(note.counts)
            written.add(note.written)
            self._target.written |= {name: file.model_dump() for name, file in note.files.items()}
        if not counts.kept:
            raise CorpusError("the selection keeps no sentence in any share; there is nothing to complete")
        self._target.check((f"{_FOLDER}/", FINISHED, *FORMATS[format]))
        compare(self._target, self._target.written)
        return counts, written

    def forget(self) -> None:
        """Delete the notes of an export that is complete, if no other process writes one again."""
        self._notes.forget()
        if self._store.local:
            with contextlib.suppress(OSError):
                Path(self._store.url, _FOLDER).rmdir()

    def _checked(self, note: ShareNote, path: str) -> None:
        other = [key for key in self._identity if note.identity.get(key) != self._identity[key]]
        if other:
            raise CorpusError(
                f"{self._target.url}: {path} is of another export: {', '.join(other)} was different, as after a run or "
                "a purge; delete the folder, and export all shares again"
            )


def shared_files(share: Share, format: str) -> frozenset[str]:
    """Return names and folders of what shares write.

    Raises `ConfigError` for a format that one process must write, and for too many shares.
    """
    which, of = share
    if format not in FORMATS:
        raise ConfigError(
            f"--share {which}/{of} is an option of --format {', '.join(FORMATS)}; --format {format} is written by one "
            "process: leave it out"
        )
    check_share(share)
    return frozenset(
        ("data/", FINISHED, *(f"{_FOLDER}/{note_name(one, of)}" for one in range(1, of + 1)), *FORMATS[format])
    )


def is_finished(target: ExportTarget, identity: dict[str, Any]) -> bool:
    """Return whether `export.json` in a folder is of this very export.

    Raises `CorpusError` if it is damaged, or if it is of this export and the folder holds other files than it names.
    """
    found = read_json(Store(target.url), FINISHED, dict[str, Any], "delete it, and export one share again")
    if found | identity != found:
        return False
    files = found.get("files")
    compare(target, files if isinstance(files, dict) else {})  # earlier versions named none
    return True


def compare(target: ExportTarget, files: Mapping[str, Any]) -> None:
    """Compare the files of an export with what is said of them: sizes, and, of exports of at most 1 GiB, digests.

    Raises `CorpusError` if files are missing or changed.
    """
    there = target.sizes()
    wrong = sorted(name for name, about in files.items() if there.get(name) != about["bytes"])
    if not wrong and sum(about["bytes"] for about in files.values()) <= CHECKED_BYTES:
        store = Store(target.url)
        digests = {name: about.get("sha256") for name, about in files.items()}  # Lance's have none
        wrong = sorted(name for name, said in digests.items() if said and said != _sha256(store, name))
    if wrong:
        raise CorpusError(
            f"{target.url}: after they were written, {counted(len(wrong), 'file')} of this export changed or went away "
            f"({first_of(wrong)}); delete the folder, and export all shares again"
        )


def _sha256(store: Store, name: str) -> str:
    found = hashlib.sha256()
    with store.open(name) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()
