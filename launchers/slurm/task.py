"""A task of an array: claims shards of a phase, one after the other, and brings their chunks up to date on this node.

It keeps its lease on a shard by heartbeats; what it finished is in receipts. So it may be killed, preempted or
restarted at any moment: another task, or the next phase, does the rest, and only the parts in flight are done twice. It
stops claiming when its time is nearly over, and when it is asked to stop it releases its shard at once.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from rich.console import Console

from launchers.devices import devices
from launchers.inline import InlineWorkers
from launchers.launch import launch
from launchers.slurm import jobs
from launchers.slurm.sbatch import WARNING
from launchers.slurm.submit import read_options
from pipeline.base.errors import CorpusError, DamagedError, PipelineError
from pipeline.base.interrupts import StoppedWithProgress
from pipeline.config.frozen import Frozen
from pipeline.config.launcher import seconds_of
from pipeline.config.stages import FITS
from pipeline.coordination.heartbeat import Heartbeat
from pipeline.coordination.identity import check_identity
from pipeline.coordination.leases import BEATS, Lease, Leases
from pipeline.coordination.lock import CANCEL, holder_info, who_stopped
from pipeline.corpus.events import Event
from pipeline.corpus.ledger import compact
from pipeline.corpus.leftovers import sweep
from pipeline.corpus.runs import SUMMARY, newest_view
from pipeline.corpus.states import fold, read_state
from pipeline.planning.plan import Plan
from pipeline.run.phases import ShardResult, after_losses, plan_of_shard, read_phase, read_worker, run_of
from pipeline.run.run import plan_run
from pipeline.run.steps import compare, decide, next_step
from pipeline.run.tasks import attempts_at, clear_attempts, marks_of
from pipeline.storage.remote import AwayError
from pipeline.storage.retry import LONGEST_PAUSE, give_up_soon, seconds_waited
from pipeline.storage.store import Store

NEAR = 8  # free shards for each task, of which it claims a random one: tasks that start together rarely collide
COMPACT_EVERY = 64  # shards, each of which leaves a ledger
SPARE_SECONDS = 180.0  # with less time left, no further shard is claimed


class Task:
    """One worker of a phase.

    Args:
        console: where progress is shown.
        url: the corpus.
        folder: the folder of the phase, `runs/NAME/phase-N`.
    """

    def __init__(self, console: Console, url: str, folder: str) -> None:
        self.console = console
        self.store = Store(url)
        self.folder = folder
        self.run, self._phase = run_of(folder)
        self.spec = read_phase(self.store, folder)
        self.config = self.spec.resolved()
        self.seconds = self.config.launcher.lease_seconds
        self.name = jobs.this_task() or f"{socket.gethostname()}-{holder_info()['pid']}"
        self.out_of_time = False
        self._lost = False  # the present shard was lost to another worker
        self._progress = 0  # chunks and parts finished, and checkpoints, since this process began
        self._state: dict[str, Any] = holder_info(worker=self.name, range=None, parts=0, sentences=0, last_error="")
        self._events: list[str] = []
        self._lease: Lease | None = None
        self._after_losses = after_losses(self.store, folder)
        self._interrupted = ""  # the shard that this task held when SLURM stopped it, before it was restarted
        self._launch: Callable[[Plan, str], Iterator[Event]] = launch
        self._writing = threading.Lock()

    def work(self) -> None:
        """Work until nothing can be claimed. Raises `CorpusError` for what would fail everywhere."""
        signal.signal(WARNING, self._near_the_limit)
        mine = self._before()
        if mine and jobs.restarts():
            self._interrupted = mine.name
        try:
            check_identity(self.spec.identity, self.config)
            with Heartbeat(self._beat, self.seconds / BEATS) as heart:
                try:
                    self._claim_and_do(mine)
                except KeyboardInterrupt as stopped:
                    self._progress += isinstance(stopped, StoppedWithProgress)
                    heart.noticed()
                    give_up_soon()
                    with contextlib.suppress(AwayError):  # then the lease expires
                        self._let_go()
                    said = f"stopped: {heart.stopped or 'asked to'}; finished work is kept"
                    self.console.print(said, markup=False)
            if self.out_of_time and not self.store.exists(f"{self.run}/{CANCEL}"):
                away = seconds_waited() > seconds_of(self.config.launcher.time) / 4
                if not self._progress and not away:
                    raise CorpusError(self._too_short())
                jobs.requeue()
        except AwayError:
            raise  # this task is queued again
        except PipelineError as error:
            self._state["last_error"] = str(error)
            self._tell()
            raise

    def _too_short(self) -> str:
        """Say that nothing was finished within the time limit, and what to do."""
        said = f"nothing was finished within launcher.time {self.config.launcher.time}: give a longer one"
        if not self.spec.is_alone:
            return f"{said}, or smaller parts (part_sentences)"
        fits = [name for name in FITS if getattr(self.config, name) and name not in self.spec.fits]
        if self.config.decoder and fits == ["decoder"]:
            said += f" (it is saved every {self.config.decoder.checkpoint_seconds:g} s)"
        return f"{', '.join(fits)}: {said}" if fits and self.spec.kind == "fit" else said

    def _claim_and_do(self, mine: Lease | None) -> None:
        rng = random.Random(self.name)
        with self._engine():
            while (lease := self._claim(rng, mine)) is not None:
                self._do(lease)

    def _engine(self) -> contextlib.AbstractContextManager[object]:
        """Keep what stays up over all shards."""
        if self.spec.is_alone:
            return contextlib.nullcontext()
        if self.config.launcher.inside == "inline":
            workers = InlineWorkers()
            self._launch = workers.run
            return contextlib.closing(workers)
        from launchers.actor_pool import ActorPool
        from launchers.local import ray_on_this_machine

        pool, stack = ActorPool(), contextlib.ExitStack()
        stack.enter_context(ray_on_this_machine())
        stack.callback(pool.close)
        self._launch = pool.run
        return stack

    def _near_the_limit(self, number: int, frame: FrameType | None) -> None:
        self.out_of_time = True
        raise KeyboardInterrupt

    def _claim(self, rng: random.Random, mine: Lease | None) -> Lease | None:
        if any(self.store.exists(f"{self.run}/{end}") for end in (CANCEL, SUMMARY)):
            return None
        leases = Leases(self.store, f"{self.folder}/claims", self.seconds)
        waited = seconds_waited()
        leases.poll()
        if seconds_waited() - waited > self.seconds / BEATS:  # holders could send no heartbeats either
            time.sleep(self.seconds / BEATS + LONGEST_PAUSE)
            leases.poll()
        names = [name for name in map(name_of, range(self.spec.ranges)) if f"{name}.done" not in leases.files]
        left = jobs.seconds_left()
        spare = min(SPARE_SECONDS, seconds_of(self.config.launcher.time) / 4)
        if names and left is not None and left < spare:
            self.out_of_time = True
            return None
        wanted = in_order_of_claims(names, leases, mine, self.config.launcher.tasks, rng)
        return leases.first_free(wanted, holder_info(worker=self.name), mine)

    def _do(self, lease: Lease) -> None:
        started = time.monotonic()
        with self._writing:
            self._lease, self._lost, self._events = lease, False, []
            self._state |= {"range": lease.name, "generation": lease.generation, "range_since": _now()}
        self._tell()
        failures: list[dict[str, str]] = []
        fitted: list[str] = []
        chunks = parts = sentences = 0
        if self.spec.is_alone:
            fitted = self._fit()
        else:
            with contextlib.closing(self._events_of(int(lease.name), lease.generation)) as events:
                for event in events:
                    if self._lost:
                        self._let_go()
                        self.console.print(f"shard {lease.name} was taken over by another worker; going on with others")
                        return
                    if event.away:
                        with contextlib.suppress(AwayError):
                            self._let_go()
                        raise AwayError(f"{event.where}: {event.error}")
                    if event.kind == "failed":
                        failures.append({"where": event.where, "error": event.error})
                        if event.fatal:
                            self._let_go()
                            raise CorpusError(f"{event.where}: {event.error}")
                        continue
                    self._progress += 1
                    if event.kind == "chunk":
                        chunks += 1
                    elif event.kind == "part":
                        parts += 1
                        sentences += event.rows
        done = ShardResult(worker=self.name, chunks=chunks, parts=parts, sentences=sentences, failures=failures,
                    fitted=fitted, seconds=round(time.monotonic() - started, 3), ended=time.time())  # fmt: skip
        self._tell()
        self.store.create(f"{self.folder}/claims/{lease.name}.done", done.model_dump_json().encode())
        with self._writing:
            self._lease = None

    def _events_of(self, number: int, generation: int) -> Generator[Event]:
        plan, marks = plan_of_shard(self.store, self.folder, self.spec, number), self._marks(number)
        if self._interrupted == name_of(number):  # by preemption, a limit or a lost node, which no part is to blame for
            clear_attempts(self.store, marks)
        self._interrupted = ""
        for event in self._launch(plan, marks):
            with self._writing:
                line = {"time": _now(), "worker": self.name} | event.model_dump(exclude_defaults=True)
                self._events.append(json.dumps(line, ensure_ascii=False))
                if event.kind == "part":
                    self._state["parts"] += 1
                    self._state["sentences"] += event.rows
                elif event.kind == "failed":
                    self._state["last_error"] = f"{event.where}: {event.error}"
            yield event
        state = read_state(self.store, plan.view, ledgers=False)
        if (
            generation or self._after_losses or attempts_at(self.store, marks)
        ):  # another worker wrote files and was lost
            sweep(self.store, state, whole=False)
        fold(self.store, state)
        if number % COMPACT_EVERY == COMPACT_EVERY - 1:
            compact(self.store)

    def _fit(self) -> list[str]:
        chunks = newest_view(self.store).listed.chunks
        config = self.config.with_frozen(Frozen())  # as it was submitted
        plan, _ = plan_run(config, read_options(self.store, self.run, config), self.spec.refit, chunks)
        step = next_step(plan, "")
        if step.kind == "compare":
            compare(self.console, plan, lambda: devices()[0])
        return decide(self.console, step, self.spec.refit, lambda: devices()[0]) if step.kind == "fit" else []

    def _beat(self) -> str | None:
        if stopped := who_stopped(self.store, self.run):
            return stopped
        lease = self._lease
        self._tell()
        if lease and not lease.beat() and lease is self._lease:
            self._lost = True
        return None

    def _tell(self) -> None:
        """Record what this worker does, and what happened in its shard, for those who watch."""
        with self._writing:
            lease, events = self._lease, "\n".join(self._events)
            state = json.dumps(self._state | {"beat": _now()}, ensure_ascii=False)
        self.store.write(f"{self.folder}/workers/{self.name}.json", state.encode())
        if lease and events:
            name = f"{lease.name}-{lease.generation:03d}"
            self.store.write(f"{self.folder}/events/{name}.jsonl", f"{events}\n".encode())

    def _let_go(self) -> None:
        """Release the shard: the next worker need not wait, and no part is blamed for the stop."""
        self._tell()
        lease, self._lease = self._lease, None
        if lease:
            clear_attempts(self.store, self._marks(int(lease.name)))
            lease.release()

    def _marks(self, number: int) -> str:
        """Return the folder of a shard's marks."""
        return marks_of(self.run, self._phase, number)

    def _before(self) -> Lease | None:
        """Return the lease that this very task held before it was restarted; nobody else can hold it in its place."""
        path = f"{self.folder}/workers/{self.name}.json"
        if not self.store.exists(path):
            return None
        try:
            said = read_worker(self.store, path)
        except DamagedError:  # then it waits for that lease as every other task does
            return None
        return Lease(self.store, f"{self.folder}/claims", said.range, said.generation) if said.range else None


def in_order_of_claims(
    unfinished: Sequence[str], leases: Leases, mine: Lease | None, tasks: int, rng: random.Random
) -> list[str]:
    """Return the shards to try to claim, the best first: this task's own from before it was restarted, then free ones.

    The first free ones, `NEAR` for each task, come in random order: tasks that see the same listing would otherwise all
    try the same shard, and all but one would fail. The small shards at the end of a phase stay last.

    Args:
        unfinished: the names of unfinished shards, in order.
        leases: who holds which shard.
        mine: the lease that this task held before it was restarted.
        tasks: how many tasks work on the phase.
        rng: decides on the order.

    Returns:
        The names.
    """
    own = [mine.name] if mine and mine.name in unfinished else []
    free = [name for name in unfinished if name not in own and not leases.alive(name)]
    near = free[: NEAR * tasks]
    rng.shuffle(near)
    return [*own, *near, *free[NEAR * tasks :]]


def name_of(number: int) -> str:
    """Return the name of a shard."""
    return f"{number:05d}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
