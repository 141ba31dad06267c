"""The state of a phase as seen from outside: its shards, its workers and their pace, and its failures.

Times of a worker are compared with its own clock, heartbeats with the store's, so clocks need not agree.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from pipeline.base.errors import CorpusError
from pipeline.base.parallel import in_parallel
from pipeline.coordination.leases import Held, Leases
from pipeline.planning.requests import shards_of
from pipeline.run.phases import ShardResult, WorkerReport, failures_of, read_phase, read_result, read_worker
from pipeline.storage.store import Store

SLOW = 3.0  # a shard that takes this many times the median is a straggler
ENOUGH = 3  # finished shards that are needed for a median


@dataclass
class WorkerState:
    """A worker and its shard, `claim`. `seconds`: in this shard; `parts`, `sentences`: since it started.

    `silent`: seconds since its last heartbeat; `slow`: how many times longer than usual its shard takes, if much
    longer.
    """

    name: str
    host: str
    claim: str  # the shard; the names are keys of status --json
    seconds: float
    parts: int
    sentences: int
    rate: float
    silent: float
    quiet: bool
    lost: bool
    slow: float | None = None


@dataclass
class PhaseState:
    """The state of a phase. `seconds`: since work on it began, None before.

    Shards are `done`, `held`, `lost` (their worker died) or free.
    """

    kind: str
    number: int = 0
    over: bool = False
    claims: int = 0  # shards; this and the other names are keys of status --json
    done: int = 0
    held: int = 0
    lost: int = 0
    chunks: int = 0
    chunks_done: int = 0
    parts: int = 0
    parts_in_all: int = 0  # an estimate while chunks are not segmented
    sentences: int = 0
    sentences_in_all: int = 0  # likewise, if the driver knows
    seconds: float | None = None
    left: float | None = None  # seconds
    fitted: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # in words, the newest last
    failed: int = 0
    workers: list[WorkerState] = field(default_factory=list)
    resting: int = 0  # workers without a shard

    @property
    def free(self) -> int:
        """The number of shards that nobody has taken, or that were released."""
        return self.claims - self.done - self.held - self.lost

    @property
    def rate(self) -> float:
        """Sentences per second since work on the phase began."""
        return self.sentences / self.seconds if self.seconds else 0.0


class PhaseReader:
    """Reads a phase repeatedly; what cannot change is cached.

    Args:
        store: the corpus.
        folder: the folder of the phase.
        number: the number of the phase in its run, from 0.
    """

    def __init__(self, store: Store, folder: str, number: int) -> None:
        self._store, self._folder, self._number = store, folder, number
        self._spec = read_phase(store, folder)
        launcher = self._spec.launcher
        self._seconds: float = launcher.lease_seconds
        cuts = shards_of(self._spec.chunks, launcher.chunks_per_claim, launcher.tasks)
        self._sizes = [end - start for start, end in cuts] if not self._spec.is_alone else [0]
        self._done: dict[str, ShardResult] = {}
        self._workers: dict[str, tuple[float, WorkerReport]] = {}  # file → time of writing, content
        self._last: PhaseState | None = None

    def poll(self, now: float, over: bool) -> PhaseState:
        """Return the state of the phase now. `over`: another phase follows it already."""
        if self._last and self._last.over:
            return self._last
        leases = Leases(self._store, f"{self._folder}/claims", self._seconds)
        leases.see(self._store.listing(leases.folder), now)
        self._read_done(leases)
        self._read_workers()
        spec, done = self._spec, list(self._done.values())
        state = PhaseState(spec.kind, self._number, over, claims=spec.ranges, done=len(done))
        open_shards = [name for name in leases.held if name not in self._done and not leases.held[name].released]
        state.held = sum(leases.alive(name) for name in open_shards)
        state.lost = len(open_shards) - state.held
        state.chunks, state.chunks_done = sum(self._sizes), sum(self._sizes[int(name)] for name in self._done)
        state.failures = failures_of(done)
        state.fitted = [name for one in done for name in one.fitted]
        in_shards = self._see_workers(state, leases, now)
        state.parts = sum(one.parts for one in done) + in_shards["parts"]
        state.sentences = sum(one.sentences for one in done) + in_shards["sentences"]
        now_failing = (said.last_error for _, said in self._workers.values())
        state.failures += [error for error in dict.fromkeys(now_failing) if error and error not in state.failures]
        state.failed = len(state.failures)
        began = [one.ended - one.seconds for one in done]
        began += [now - one.seconds for one in state.workers]
        ended = max((one.ended for one in done), default=now) if over or state.done == state.claims else now
        state.seconds = max(0.0, ended - min(began)) if began else None
        self._estimate(state)
        self._last = state
        return state

    def _read_done(self, leases: Leases) -> None:
        new = [file for file in leases.files if file.endswith(".done") and file[:-5] not in self._done]
        read = in_parallel(lambda file: read_result(self._store, f"{leases.folder}/{file}"), new)
        self._done |= {file[:-5]: result for file, result in zip(new, read, strict=True)}

    def _read_workers(self) -> None:
        found = self._store.listing(f"{self._folder}/workers")
        changed = [path for path, when in found.items() if self._workers.get(path, (None,))[0] != when]

        def read(path: str) -> WorkerReport | None:
            try:
                return read_worker(self._store, path)
            except CorpusError:
                return None  # it is being replaced; read it next time

        for path, said in zip(changed, in_parallel(read, changed), strict=True):
            if said:
                self._workers[path] = (found[path], said)

    def _see_workers(self, state: PhaseState, leases: Leases, now: float) -> Counter[str]:
        """Add the workers that hold a shard. Returns parts and sentences of shards that are not done."""
        in_shards: Counter[str] = Counter()
        times = [one.seconds / self._sizes[int(name)] for name, one in self._done.items() if self._sizes[int(name)]]
        usual = statistics.median(times) if len(times) >= ENOUGH else None  # seconds per chunk
        finished: dict[str, list[ShardResult]] = {}
        for one in self._done.values():
            finished.setdefault(one.worker, []).append(one)
        for when, said in self._workers.values():
            shard, held = said.range or "", leases.held.get(said.range or "")
            if not held or shard in self._done or held.released or held.generation != said.generation:
                state.resting += 1
                continue
            worker, here = self._worker(said, held, when, now, finished.get(said.worker, []))
            in_shards.update(here)
            if usual and self._sizes[int(shard)] and worker.seconds > SLOW * usual * self._sizes[int(shard)]:
                worker.slow = worker.seconds / (usual * self._sizes[int(shard)])
            state.workers.append(worker)
        state.workers.sort(key=lambda one: (-one.silent if one.quiet else 0.0, -(one.slow or 0.0), one.name))
        return in_shards

    def _worker(
        self, said: WorkerReport, held: Held, when: float, now: float, finished: list[ShardResult]
    ) -> tuple[WorkerState, dict[str, int]]:
        """Return a worker, and what it did in its present shard."""
        silent = max(0.0, now - max(when, held.beat))
        seconds = (said.beat - (said.range_since or said.since)).total_seconds() + silent
        mine = [one for one in finished if one.ended >= said.since.timestamp()]  # it may have been restarted, and then
        here = {  # counts from zero
            "parts": max(0, said.parts - sum(one.parts for one in mine)),
            "sentences": max(0, said.sentences - sum(one.sentences for one in mine)),
        }
        worker = WorkerState(
            name=said.worker, host=said.host, claim=said.range or "", seconds=seconds,
            parts=said.parts, sentences=said.sentences,
            rate=here["sentences"] / seconds if seconds > 0 else 0.0,
            silent=silent, quiet=silent > self._seconds / 2, lost=now - held.beat > self._seconds,
        )  # fmt: skip
        return worker, here

    def _estimate(self, state: PhaseState) -> None:
        """Estimate parts in all and the time left from the finished chunks; nothing before there are any."""
        state.parts_in_all = max(self._spec.parts, state.parts)
        if state.chunks_done:
            parts = sum(one.parts for one in self._done.values())
            state.parts_in_all = max(state.parts_in_all, round(parts * state.chunks / state.chunks_done))
            if state.seconds and not state.over:
                state.left = state.seconds / state.chunks_done * (state.chunks - state.chunks_done)
