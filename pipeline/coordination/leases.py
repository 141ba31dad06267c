"""Leases: who works on what, among workers that share nothing but the store. Create-if-absent, heartbeats, expiry.

A lease on a name is a file `<name>-<generation>.lease` that only one worker could create. Its modification time is the
last heartbeat by the store's clock, so the clocks of workers do not matter. When a lease was released, or its last
heartbeat is older than `seconds`, the next generation may be created. For example, worker A creates `0007-000.lease`;
if A dies, its heartbeats stop, and after `seconds` worker B creates `0007-001.lease`. Leases only avoid duplicate work:
results are committed by receipts, so a worker that is wrongly considered dead does no harm.

Cost: one listing and one small write per claim, one small write per heartbeat.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.base.errors import CorpusError, DamagedError, MissingError, StorageError
from pipeline.storage.records import Values, read_json
from pipeline.storage.store import Store

_FILE = re.compile(r"(?P<name>.+)-(?P<generation>[0-9]{3,})\.(?P<kind>lease|released)")
_JOB = re.compile(r"[0-9]+(_[0-9]+)?")
MOST_JOBS = 10_000  # that a lease may name: a run has two, or one for each task where a site has no arrays


def _is_job(value: Any) -> bool:
    return isinstance(value, str) and bool(_JOB.fullmatch(value))


_SAID: dict[str, Callable[[Any], bool]] = {  # the fields that a holder writes, and how they are checked
    **dict.fromkeys(
        ("user", "host", "born", "since", "launcher", "folder", "place", "mark"), lambda value: isinstance(value, str)
    ),
    "pid": lambda value: isinstance(value, int),
    "run": lambda value: isinstance(value, str) and bool(re.fullmatch(r"runs/[0-9A-Za-z.-]+", value)),
    "jobs": lambda value: (
        isinstance(value, list)
        and len(value) <= MOST_JOBS
        and all(isinstance(one, str) and _JOB.fullmatch(one) for one in value)
    ),
}
BEATS = 4.0  # heartbeats while a lease lasts


@dataclass(frozen=True)
class Lease:
    """One generation of a name, held by the worker that created its file."""

    store: Store
    folder: str
    name: str
    generation: int

    @classmethod
    def of(cls, store: Store, path: str) -> Lease:
        """Return the lease that a file stands for."""
        folder, _, file = path.rpartition("/")
        found = _FILE.fullmatch(file)
        assert found, path
        return cls(store, folder, found["name"], int(found["generation"]))

    @property
    def path(self) -> str:
        """The file that is the lease."""
        return f"{self.folder}/{self.name}-{self.generation:03d}.lease"

    def beat(self) -> bool:
        """Send a heartbeat. Returns False if another worker has taken over the name."""
        try:
            self.store.touch(self.path)
        except MissingError:
            return False
        return not self.store.exists(Lease(self.store, self.folder, self.name, self.generation + 1).path)

    def release(self) -> None:
        """Release the lease, so that another worker can take it at once."""
        self.store.create(self.path.removesuffix("lease") + "released", b"")


@dataclass
class Held:
    """The state of one name in a listing. `beat`: seconds by the store's clock."""

    generation: int = -1
    beat: float = 0.0
    released: bool = False


def beats(silent: float, seconds: float) -> bool:
    """Return whether a heartbeat that was sent `silent` seconds ago, by the store's clock, still counts.

    A heartbeat further in the future than a lease lasts comes from another clock, or from before the clock was put
    back; a live worker sends another one before that.
    """
    return -seconds <= silent <= seconds


@dataclass
class Leases:
    """The leases in a folder as of the last `poll`. `seconds`: how long a lease lasts without a heartbeat."""

    store: Store
    folder: str
    seconds: float
    now: float = 0.0  # by the store's clock
    held: dict[str, Held] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)  # names of all files in the folder

    def poll(self) -> None:
        """Read the folder and the store's clock."""
        probe = f"{self.folder}/.now-{secrets.token_hex(4)}"
        self.store.write(probe, b"")
        found = self.store.listing(self.folder)
        try:
            now = found.get(probe) or self.store.modified(probe)
        except MissingError as error:
            if self.store.local:
                raise CorpusError(
                    f"{self.store.url}: {self.folder} was deleted while this command worked; run it again"
                ) from error
            raise StorageError(
                f"{self.store.url} has answered that {probe} is written, and does not have it: nothing that is written "
                "there can be relied on; mend the store, then run the same command again"
            ) from error
        self.store.delete(probe)
        self.see(found, now)

    def see(self, found: dict[str, float], now: float) -> None:
        """Use a listing of the folder and the time by the store's clock."""
        self.now = now
        self.files = {path.rpartition("/")[2] for path in found}
        self.held = {}
        for path, beat in found.items():
            file = _FILE.fullmatch(path.rpartition("/")[2])
            if not file:
                continue
            one = self.held.setdefault(file["name"], Held())
            generation = int(file["generation"])
            if generation > one.generation:
                one.generation, one.released = generation, False
            if generation == one.generation:
                if file["kind"] == "lease":
                    one.beat = beat
                else:
                    one.released = True

    def alive(self, name: str) -> bool:
        """Return whether a worker holds the name, as of the last `poll`."""
        one = self.held.get(name)
        return bool(one and not one.released and beats(self.now - one.beat, self.seconds))

    def holder(self, name: str) -> dict[str, Any]:
        """Return what the newest holder of a name wrote about itself; empty if its file has disappeared.

        Unreadable fields, and fields that no holder writes, are left out, and `lease` names the file: then only its
        heartbeats count.
        """
        one = self.held.get(name)
        if not one:
            return {}
        path = self._lease(name, one.generation).path
        try:
            said = read_json(self.store, path, Values, "")
        except MissingError:
            return {}
        except DamagedError:
            said = {}
        known = {key: value for key, value in said.items() if key not in _SAID or _SAID[key](value)}
        return known if known and known == said else known | {"lease": path}

    def take(self, name: str, who: dict[str, Any]) -> Lease | None:
        """Create the next generation of a name; None if another worker was faster."""
        one = self.held.get(name)
        lease = self._lease(name, one.generation + 1 if one else 0)
        return lease if self.store.create(lease.path, json.dumps(who, ensure_ascii=False).encode()) else None

    def forget_older(self, lease: Lease) -> None:
        """Delete the files of earlier generations."""
        for file in self.files:
            found = _FILE.fullmatch(file)
            if found and found["name"] == lease.name and int(found["generation"]) < lease.generation:
                self.store.delete(f"{self.folder}/{file}")

    def first_free(self, names: Iterable[str], who: dict[str, Any], mine: Lease | None = None) -> Lease | None:
        """Take a lease on the first of these names that is free.

        Args:
            names: the names to try, in this order.
            who: the holder, as `holder_info` describes it.
            mine: the lease that this worker held before it was restarted; it counts as free.

        Returns:
            The lease, or None if another holder is alive for every name.
        """
        for name in names:
            held = self.held.get(name)
            was_mine = mine and held and (name, held.generation) == (mine.name, mine.generation)
            if (was_mine or not self.alive(name)) and (lease := self.take(name, who)):
                return lease
        return None

    def _lease(self, name: str, generation: int) -> Lease:
        return Lease(self.store, self.folder, name, generation)
