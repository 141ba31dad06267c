"""Exports by several processes: each writes one of N equal shares of the parts, and the last one completes the export.

`export.3-of-100.json` says what share 3 has written, and from what: shares of another corpus, state of a corpus or
selection do not mix. The process that finds all N notes adds them up, compares the folder with them, and completes the
export as a single one would; where two find them at the same time, both write the same. Files are named after the parts
of the corpus, so they are those of an export by one process. A share that was killed is written again under the same
names; one whose note is there is not. Cost: a small file per share.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.base.errors import ConfigError, CorpusError, MissingError
from pipeline.corpus.exports import FINISHED
from pipeline.export.lcm import CARDS
from pipeline.export.pieces import Written
from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import Counts
from pipeline.storage.export_target import ExportTarget
from pipeline.storage.records import read_json, sealed
from pipeline.storage.store import Store

FORMATS: dict[str, tuple[str, ...]] = {"parquet": (), "lcm": CARDS}  # files named after parts; what completes these
_AGAIN = "delete the folder, and export all shares again"


class ShareNote(BaseModel):
    """What a share has written: how many sentences there were, where they went, and the files (size, SHA-256)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    identity: dict[str, Any]
    counts: Counts
    written: Written
    files: dict[str, dict[str, Any]]


class Shares:
    """The notes of the shares of one export.

    Args:
        target: the folder of the export.
        share: (which, of how many); the first is 1.
        identity: what decides the bytes of the export.
    """

    def __init__(self, target: ExportTarget, share: tuple[int, int], identity: dict[str, Any]) -> None:
        self.which, self.of = share
        self._target, self._identity = target, identity
        self._store = Store(target.url)

    def note(self, counts: Counts, written: Written) -> None:
        """Note what this share has written."""
        note = ShareNote(identity=self._identity, counts=counts, written=written, files=self._target.written)
        self._store.write(_name(self.which, self.of), sealed(note.model_dump_json(indent=1)))

    def there(self) -> dict[int, ShareNote]:
        """Return the notes that are there, by share. Raises `CorpusError` for one that is damaged or of another
        export.
        """
        found = {}
        for which in range(1, self.of + 1):
            name = _name(which, self.of)
            try:
                note = read_json(self._store, name, ShareNote, _AGAIN)
            except MissingError:
                continue
            other = [key for key in self._identity if note.identity.get(key) != self._identity[key]]
            if other:
                raise CorpusError(
                    f"{self._target.url}: {name} is of another export: {', '.join(other)} was different, as after a "
                    f"run or a purge; {_AGAIN}"
                )
            found[which] = note
        return found

    def together(self, notes: dict[int, ShareNote]) -> tuple[Counts, Written]:
        """Add up the notes of all shares, whose files the folder of the export must have now.

        Raises `CorpusError` if it has others, or no sentence was written.
        """
        counts, written = Counts(), Written()
        for note in notes.values():
            counts.add(note.counts)
            written.add(note.written)
            self._target.written |= note.files
        if not counts.kept:
            raise CorpusError("the selection keeps no sentence in any share; there is nothing to complete")
        written.by_split = {split: written.by_split[split] for split in SPLITS if split in written.by_split}
        self._target.check(apart_from=_name_of_all(self.of) | set(CARDS))
        return counts, written

    def forget(self) -> None:
        """Delete the notes of an export that is complete."""
        for name in _name_of_all(self.of):
            self._store.delete(name)


def check_share(share: tuple[int, int], format: str) -> None:
    """Raise `ConfigError` for a format that one process must write."""
    if format not in FORMATS:
        raise ConfigError(
            f"--share {share[0]}/{share[1]} is an option of --format {', '.join(FORMATS)}; --format {format} is "
            "written by one process: leave it out"
        )


def is_finished(target: ExportTarget, identity: dict[str, Any]) -> bool:
    """Return whether a folder holds this very export, complete."""
    try:
        found = read_json(Store(target.url), FINISHED, dict[str, Any], _AGAIN)
    except CorpusError:
        return False
    return found | identity == found


def _name(which: int, of: int) -> str:
    return f"export.{which}-of-{of}.json"


def _name_of_all(of: int) -> set[str]:
    return {_name(which, of) for which in range(1, of + 1)}
