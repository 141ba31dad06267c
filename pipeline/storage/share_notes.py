"""Notes of shares: N processes each do an N-th of a command's work, and the one that finds all N notes completes it.

`3-of-100.json`, after a prefix that names the work, says what share 3 has done. Nothing is locked: what shares write
has names of its own and appears whole, so a share that was killed is done again, and two processes with the same share,
or two that complete the work, write the same. Cost: a small file per share, and a listing of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted
from pipeline.storage.records import Record, read_json, sealed
from pipeline.storage.store import Store, is_unfinished

MOST = 10_000  # shares
_SHOWN = 10
Note = TypeVar("Note", bound=Record)
Share = tuple[int, int]  # (which, of how many); the first is 1


def check_share(share: Share) -> None:
    """Raise `ConfigError` if there are too many shares."""
    which, of = share
    if of > MOST:
        raise ConfigError(f"--share {which}/{of}: there are at most {MOST} shares; give fewer")


def note_name(which: int, of: int) -> str:
    """Return the name of the note of a share, after the prefix of its work."""
    return f"{which}-of-{of}.json"


class ShareNotes(Generic[Note]):
    """The notes of the shares of one work.

    Args:
        store: the folder that holds them.
        prefix: what their paths in it begin with.
        share: the share of this process; `ConfigError` is raised if there are too many.
        kind: what a note says.
    """

    def __init__(self, store: Store, prefix: str, share: Share, kind: type[Note]) -> None:
        self._store, self._prefix, self._kind = store, prefix, kind
        self._which, self._of = share
        check_share(share)

    def present(self) -> list[str]:
        """Return the paths of all notes, also of other numbers of shares."""
        folder, _, begins = self._prefix.rpartition("/")
        return [path for path in self._store.find(folder, begins) if not is_unfinished(path) and path.endswith(".json")]

    def path(self, which: int) -> str:
        """Return the path of the note of a share."""
        return f"{self._prefix}{note_name(which, self._of)}"

    @property
    def mine(self) -> str:
        """The path of the note of this share."""
        return self.path(self._which)

    def is_written(self) -> bool:
        """Return whether this share is done. Raises `CorpusError` if its note is damaged."""
        there = self.mine in self.present()
        if there:
            self.read(self.mine)
        return there

    def write(self, note: Note) -> None:
        """Note that this share is done."""
        self._store.write(self.mine, sealed(note.model_dump_json(indent=1)))

    def read(self, path: str) -> Note:
        """Return a note. Raises `MissingError` if it is gone, `CorpusError` if it is damaged."""
        return read_json(self._store, path, self._kind, "delete it, and do that share again")

    def every(self) -> Iterator[Note]:
        """Yield the notes of all shares in their order. Raises `MissingError` if one is gone, `CorpusError` if it is
        damaged.
        """
        yield from (self.read(self.path(which)) for which in range(1, self._of + 1))

    def missing(self) -> list[int]:
        """Return the shares that have no note yet."""
        there = set(self.present())
        return [which for which in range(1, self._of + 1) if self.path(which) not in there]

    def forget(self) -> None:
        """Delete everything that begins with the prefix, when the work is complete."""
        folder, _, begins = self._prefix.rpartition("/")
        for path in self._store.find(folder, begins):
            self._store.delete(path)


def to_be_written(missing: list[int], work: str) -> str:
    """Say which shares are still to be done of a work, `the export`, which the last one completes."""
    shown = ", ".join(map(str, missing[:_SHOWN])) + (", …" if len(missing) > _SHOWN else "")
    return f"{counted(len(missing), 'share')} to be written ({shown}); the last completes {work}"
