"""The state of a run: who holds the corpus, its phases, shards, workers, failures, and how it ended.

It is judged by leases, heartbeats and what workers committed, by the store's clock; what SLURM says of the jobs only
tells whether a run that nobody closed still has any. Cost of a poll: one small file of the run, and for the present
phase one listing of its leases and one of its workers, whose small files are read if they changed; what is done of a
shard is read once, and a finished phase is not read again. No receipt is read.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.base.errors import PipelineError, StorageError, visible
from pipeline.config.launcher import LauncherSettings
from pipeline.coordination.leases import Leases, beats
from pipeline.coordination.lock import FOLDER, NAME, command_of, is_held, who_stopped
from pipeline.corpus.runs import CONFIG, PROGRESS, SUMMARY, read_config, read_progress, read_summary
from pipeline.corpus.view import AGAIN
from pipeline.monitor.phase_status import PhaseReader, PhaseState
from pipeline.run.phases import SPEC_FILE, phase_folder
from pipeline.run.tasks import ASIDE
from pipeline.storage import layout
from pipeline.storage.records import parse_json
from pipeline.storage.store import Store

STATES_SECONDS = 10.0  # seconds between requests to the controller of a cluster, to spare it
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
ADVICE = {  # by SLURM's word for how a job ended
    "OUT_OF_MEMORY": "give it more launcher.memory",
    "TIMEOUT": "give it more launcher.time",
    "DEADLINE": "give it more launcher.time",
}

_LEASE_SECONDS = (
    LauncherSettings().lease_seconds
)  # if a run's own value is not known yet, or the run is older than leases


@dataclass(frozen=True)
class Cluster:
    """What a cluster can be asked. Every function raises `PipelineError` if the cluster does not answer.

    `states`: job or task → its state, without those that it has forgotten; `cancel`: end jobs; `logs`: (folder of the
    jobs, job or task) → its log files; `folder`: (launcher.folder, output, run) → that folder.
    """

    states: Callable[[Sequence[str]], dict[str, str]]
    cancel: Callable[[Sequence[str]], None]
    logs: Callable[[Path, str], list[Path]]
    folder: Callable[[str | None, str, str], Path]


@dataclass
class RunState:
    """The state of a run at one moment.

    `run`: its folder, empty while one is planned or another command holds the corpus. `beat`: seconds since the last
    heartbeat of its process, if it has one; `lost`: why nobody works on it though nobody closed it; `summary`: how it
    ended.
    """

    run: str
    holder: dict[str, Any]  # empty if nobody holds the corpus for it
    launcher: str
    lease_seconds: float
    started: float
    now: float
    beat: float | None = None
    phases: list[PhaseState] = field(default_factory=list)
    jobs: dict[str, str] = field(default_factory=dict)
    no_jobs: str = ""  # why SLURM does not answer
    lost: str = ""
    stopped: str = ""  # who asked it to stop, if somebody did
    summary: dict[str, Any] | None = None

    @property
    def command(self) -> str:
        """Return the command that holds the corpus, such as `pipeline purge`, if that is not a run."""
        return command_of(self.holder)

    @property
    def name(self) -> str:
        """Return the name of the run, or what else holds the corpus."""
        return self.run.removeprefix("runs/") or self.command or "a run that is being planned"

    @property
    def over(self) -> bool:
        """Whether nobody works on the run any more."""
        return bool(self.lost) or not self.holder

    @property
    def done(self) -> bool:
        """Whether the run ended well."""
        return bool(self.summary and self.summary.get("done"))

    @property
    def failures(self) -> list[str]:
        """Return what failed: for a finished run what it could not repair, otherwise failures of all phases so far."""
        if self.summary is not None:
            return list(self.summary.get("failures", ()))
        return list(dict.fromkeys(error for phase in self.phases for error in phase.failures))

    @property
    def set_aside(self) -> list[str]:
        """Return the parts and chunks that killed their workers repeatedly."""
        return [one.partition(": ")[0] for one in self.failures if ASIDE in one]


class _Progress(BaseModel):
    phases: list[PhaseState]


class _Launcher(BaseModel):
    kind: str
    lease_seconds: float = _LEASE_SECONDS
    folder: str | None = None


class _Config(BaseModel):
    launcher: _Launcher


def launcher_of(store: Store, run: str) -> _Launcher:
    """Return how a run works, by its settings. Raises `CorpusError` if they are missing or damaged."""
    path = f"{run}/{CONFIG}"
    return parse_json(json.dumps(read_config(store, run), default=str), _Config, f"{store.url}/{path}", AGAIN).launcher


class RunWatcher:
    """Polls a corpus.

    Args:
        store: the corpus.
        cluster: answers whether SLURM or Ray still has the run's jobs.
        run: the folder of the run, `runs/NAME`; None for the one under way, or else the newest.
        phases: whether its phases are read, too.
    """

    def __init__(self, store: Store, cluster: Cluster, run: str | None = None, *, phases: bool = True) -> None:
        self.store = store
        self._with_phases = phases
        self._cluster = cluster
        self._run = run
        self._ahead: float | None = None  # seconds by which the store's clock is ahead of ours
        self._launchers: dict[str, _Launcher] = {}
        self._phases: dict[str, PhaseReader] = {}
        self._asked: tuple[list[str], float] = ([], 0.0)
        self._jobs: dict[str, str] = {}
        self._no_jobs = ""

    def poll(self) -> RunState | None:
        """Return the state of the run now; None if the corpus has none."""
        now, holder, beat, beating = self._lock()
        run = self._run or holder.get("run")
        if holder and not run:
            launcher = holder.get("launcher", "a command")
            state = RunState("", holder, launcher, _LEASE_SECONDS, _since(holder, now), now, beat)
            state.lost = self._lost(state, beating)
            return state
        if not run:
            names = self.store.folders(layout.RUNS)
            if not names:
                return None
            run = f"{layout.RUNS}/{names[-1]}"
        if holder.get("run") != run:
            holder = {}
        launcher = self._launcher(run)
        state = RunState(run, holder, launcher.kind, launcher.lease_seconds, _started(run, now), now)
        summary = f"{run}/{SUMMARY}"
        if holder:
            state.beat = None if holder.get("jobs") else beat
            state.lost = self._lost(state, beating)
            state.now = self._now()  # SLURM may have taken its time to answer, and workers sent heartbeats meanwhile
        if self._with_phases:
            state.phases = self._phases_of(run, state.now, launcher)
        if state.over or self.store.exists(summary):
            ended = read_summary(self.store, run)
            state.summary = ended.model_dump() if ended else None
        if state.over or state.summary or holder.get("jobs"):
            state.stopped = who_stopped(self.store, run)
        if state.lost and holder.get("jobs") and state.summary is None:
            state.lost = self._last_words(holder, begun=bool(state.phases))
        return state

    def _lock(self) -> tuple[float, dict[str, Any], float, bool]:
        """Return (now by the store's clock, who holds the corpus, seconds since the last heartbeat, whether that
        counts).
        """
        found = self.store.listing(FOLDER)
        if self._ahead is None and found:
            self._ahead = _ahead(self.store)
        now = self._now()
        leases = Leases(self.store, FOLDER, 0.0)
        leases.see(found, now)
        held = leases.held.get(NAME)
        holder = leases.holder(NAME) if held and not held.released else {}
        if not held or not holder:
            return now, {}, 0.0, False
        seconds = self._launcher(holder["run"]).lease_seconds if holder.get("run") else _LEASE_SECONDS
        silent = now - held.beat
        return now, holder, max(0.0, silent), beats(silent, seconds)

    def _now(self) -> float:
        """Return the time by the store's clock."""
        return time.time() + (self._ahead or 0.0)

    def _launcher(self, run: str) -> _Launcher:
        if run not in self._launchers:
            self._launchers[run] = launcher_of(self.store, run)
        return self._launchers[run]

    def _lost(self, state: RunState, beating: bool) -> str:
        """Say why nobody works on a run that nobody closed; empty if somebody does, or it is not known."""
        jobs = state.holder.get("jobs")
        if not jobs:
            if is_held(state.holder, beating, lambda jobs: True):
                return ""
            return f"its process sent no heartbeat for {state.beat:.0f} s: it was killed, or its machine failed"
        if self._asked[0] != jobs or time.monotonic() - self._asked[1] >= STATES_SECONDS:
            self._asked = (list(jobs), time.monotonic())
            try:
                self._jobs, self._no_jobs = self._cluster.states(jobs), ""
            except PipelineError as error:  # from a machine without SLURM, say: heartbeats are what counts
                self._jobs, self._no_jobs = {}, str(error)
        state.jobs, state.no_jobs = self._jobs, self._no_jobs
        if self._no_jobs or any(one.split(" ")[0] not in OVER for one in self._jobs.values()):
            return ""
        if self._lock()[1].get("jobs") != jobs:  # they have handed the run on
            return ""
        return "its jobs are over"

    def _last_words(self, holder: dict[str, Any], begun: bool) -> str:
        """Say how the last job of a run ended that should have closed it, or queued more."""
        folder, job = Path(holder.get("folder", "")), holder["jobs"][-1]
        stopped = who_stopped(self.store, holder.get("run", ""))
        if stopped:
            return f"it was {stopped}; its jobs are over"
        if begun:
            ended = self._jobs.get(job, "")
            how = f"is {ended}" if ended and ended != "COMPLETED" else "failed or was cancelled"
            what = f"its jobs are over, but job {job}, which decides what comes next, {how}"
        else:
            what = (
                f"its first job ({job}) ended without having written anything: the nodes do not see {self.store.url}, "
                "or Python failed there"
            )
        logs = self._cluster.logs(folder, job)
        tail = [f"  {visible(line)}" for log in logs for line in last_lines(log, 12)]
        if tail:
            return "\n".join([f"{what}; the end of {logs[0]}:", *tail])
        return what if begun else f"{what}; it left no log in {folder}: do the nodes see that folder?"

    def _phases_of(self, run: str, now: float, launcher: _Launcher) -> list[PhaseState]:
        progress = f"{run}/{PROGRESS}"
        if launcher.kind != "slurm":
            said = json.dumps({"phases": read_progress(self.store, run)})
            found = parse_json(said, _Progress, f"{self.store.url}/{progress}", "delete it").phases
            return [replace(one, number=number) for number, one in enumerate(found, 1)]
        readers: list[PhaseReader] = []
        while True:
            folder = phase_folder(run, len(readers) + 1)
            if folder not in self._phases:
                if not self.store.exists(f"{folder}/{SPEC_FILE}"):
                    break
                self._phases[folder] = PhaseReader(self.store, folder, len(readers) + 1)
            readers.append(self._phases[folder])
        return [reader.poll(now, over=reader is not readers[-1]) for reader in readers]


def last_lines(log: Path, lines: int) -> list[str]:
    """Return the last lines of a log file that this machine sees."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - (lines << 9)))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError as error:
        return [f"({error.strerror})"]


def _ahead(store: Store) -> float:
    """Return the seconds by which the store's clock is ahead of ours; without permission to write, 0 is assumed."""
    probe = f"{FOLDER}/.now-{secrets.token_hex(4)}"
    try:
        store.write(probe, b"")
        ahead = store.modified(probe) - time.time()
        store.delete(probe)
    except StorageError:
        return 0.0
    return ahead


def _started(run: str, now: float) -> float:
    """Return when a run began, as its name says; the present time if a person named the folder, or if that would be
    later, by the clock of another machine.
    """
    name = run.rpartition("/")[2].partition("-")[0]
    try:
        return min(now, datetime.strptime(name, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return now


def _since(holder: dict[str, Any], now: float) -> float:
    """Return since when a command has held the corpus, as `_started` does."""
    try:
        return min(now, datetime.fromisoformat(holder["since"]).timestamp())
    except (KeyError, ValueError):
        return now
