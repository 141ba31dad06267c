"""Implements `pipeline run`: the pilot, the fits, the main pass, progress on the screen; `finish.py` ends it.

Cost beside the work itself: reading every receipt of the corpus once per phase.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from pipeline.base.errors import ConfigError, CorpusError, PipelineError, visible
from pipeline.base.formats import counted
from pipeline.config.run_config import RunConfig
from pipeline.config.stages import FITS
from pipeline.console.activity import announced
from pipeline.console.progress import RunProgress
from pipeline.coordination.heartbeat import Heartbeat
from pipeline.coordination.leases import BEATS, Lease
from pipeline.coordination.lock import (
    check_held,
    holder_info,
    last_holder,
    lost,
    release,
    set_holder,
    take_lock,
    who_stopped,
)
from pipeline.corpus.events import Event
from pipeline.corpus.fits import check_used
from pipeline.corpus.recipes import SEGMENT, compares_ids
from pipeline.corpus.runs import (
    PROGRESS,
    RunRecord,
    check_corpus,
    is_begun,
)
from pipeline.corpus.states import States, View, forget_gone
from pipeline.inputs import Chunk
from pipeline.planning.estimate import FILE as ESTIMATE
from pipeline.planning.estimate import estimate_of, kept_estimate
from pipeline.planning.plan import Plan, make_plan
from pipeline.planning.removal import ViewChange, show_change, view_change
from pipeline.planning.tables import show_aliases, show_same
from pipeline.run.compare_ids import compare_ids
from pipeline.run.expected import check_strict, raise_if_unexpected
from pipeline.run.finish import close_unfinished, finish, nothing_to_do, report_again
from pipeline.run.lineage import tell
from pipeline.run.options import RunOptions, ends_with_training
from pipeline.run.steps import compare, decide, next_step
from pipeline.storage.retry import be_patient, give_up_soon
from pipeline.storage.store import Store
from pipeline.training.record import RECORD as TRAINING
from pipeline.training.record import changed_since, check_initial_weights, refuse
from pipeline.training.status import training_status

Launch = Callable[[Plan, str], Iterator[Event]]  # plan, folder of the run → events
Submit = Callable[[RunRecord, Lease], None]
BEAT_SECONDS = 5.0  # the longest pause between heartbeats, which also carry the progress
TOLD_FAILURES = 20
_log = logging.getLogger(__name__)
_STARTED = {"local": "starting Ray and ", "ray": "joining the Ray cluster, then "}
_SUBMITTED = """submitted; the corpus is complete when its last job says so
  pipeline status {output} --watch   how far it is
  pipeline logs {output}             what failed, and what workers say
  pipeline cancel {output}           stop it; finished work is kept"""


@dataclass(frozen=True)
class Backend:
    """What a launcher can do.

    `launch`: do a plan here; `device`: where fits and comparisons compute; `train`: train, or hand the training over;
    `submit`: hand the run to a cluster instead; `jobs_alive`: whether SLURM still has one of these jobs; `choose`:
    which launcher `auto` stands for with a plan and how many sentences segmenting will yield, and why; `close`: end
    what was started for launching.
    """

    launch: Launch
    device: Callable[[], str]
    train: Callable[[Console, RunConfig], object]
    submit: Submit | None = None
    jobs_alive: Callable[[Sequence[str]], bool] = lambda jobs: True
    choose: Callable[[Plan, float], tuple[str, str]] = lambda plan, new: ("inline", "no other launcher is available")
    close: Callable[[], None] = lambda: None


def run(console: Console, config: RunConfig, options: RunOptions, backend: Backend) -> str | None:
    """Bring a corpus up to date, then train on it if there is a section `train`.

    Args:
        console: where progress is shown.
        config: the configuration of the corpus.
        options: the options of the command; with `strict`, `CorpusError` is raised before the training if something
            that the report expects does not hold.
        backend: carries out the work.

    Returns:
        What was submitted to a cluster; None if the work is done.
    """
    if options.strict:
        check_strict(config, whole=not (options.only or options.until))
    if ends_with_training(config, options):
        _check_training(config)
    submitted = _bring_up_to_date(console, config, options, backend)
    if options.strict and submitted is None:
        raise_if_unexpected(Store(config.output))
    if submitted is None and ends_with_training(config, options) and backend.train(console, config) is None:
        report_again(console, config)
    return submitted


def _check_training(config: RunConfig) -> None:
    """Raise `ConfigError` before any work if the training was begun with other settings, or would begin with the
    weights of another model.
    """
    store = Store(config.output)
    assert config.train
    folder = config.train.folder
    with contextlib.suppress(CorpusError):  # of damaged records, which the training itself reports
        if store.exists(f"{folder}/{TRAINING}") and training_status(store, folder).holds_model:
            refuse(folder, changed_since(store, config))
            return
    check_initial_weights(config)


def _bring_up_to_date(console: Console, config: RunConfig, options: RunOptions, backend: Backend) -> str | None:
    """Do everything except training. Raises `CorpusError` if some of it is not done, or the accounting does not
    balance.

    A store that is away is waited for, for `launcher.storage_patience` seconds. Ctrl-C raises `KeyboardInterrupt`,
    after the run's record is closed. If the work is handed to a cluster, this returns at once with the run's folder,
    and the jobs hold the corpus's lock.
    """
    be_patient(config.launcher.storage_patience)
    store = Store(config.output)
    if is_begun(store):
        check_corpus(store)
    who = holder_info(launcher=config.launcher.kind)
    lease, plan, seen, change = _locked_plan(console, config, options, backend, who)
    handed_over = False
    try:
        if compares_ids(config):
            with _kept(lease, config):
                tell_ids = functools.partial(console.print, highlight=False)
                compare_ids(store, plan.config, plan.view.listed.chunks, tell_ids)
            plan, seen = plan_run(config, options, options.refit, _chunks(plan))
        if plan.nothing_to_do:
            with _kept(lease, config):
                nothing_to_do(console, plan, lease)
            return None
        if isinstance(plan.chunks, States) and plan.chunks.gone:
            with _kept(lease, config):
                forget_gone(plan.chunks)  # which writes ledgers again
                plan, seen = plan_run(config, options, options.refit, _chunks(plan))
        with announced(console, "loading libraries"), _kept(lease, config):
            estimate = estimate_of(plan)
            config, plan, why = _with_launcher(config, plan, backend, estimate.sentences)
        check_held(lease)
        record = RunRecord(store, plan.config, seen.keeping_contents(change.before) if change else seen)
        store.write(f"{record.folder}/{ESTIMATE}", kept_estimate(plan, estimate))
        set_holder(lease, who | {"launcher": config.launcher.kind, "run": record.folder})
        if not lease.beat():  # who took over before the lease named the run could not ask it to stop
            store.delete_folder(record.folder)
            raise lost(lease)
        tell(console, plan.config, store, record.folder, ended=False)
        console.print(
            f"[bold]{escape(visible(plan.config.name))}[/] → {escape(plan.config.output)}: {', '.join(plan.stages)} "
            f"({_in_words(plan)}); launcher {config.launcher.kind}{why}"
        )
        if backend.submit:
            try:
                with _kept(lease, config):
                    backend.submit(record, lease)
            except BaseException as error:  # a job that was queued all the same finds the run closed
                with contextlib.suppress(PipelineError):  # the first error is the one to report
                    close_unfinished(record, error, [])
                raise
            handed_over = True
            console.print(_SUBMITTED.format(output=escape(config.output)), highlight=False)
            return record.folder
        under_way = _Run(console, config, options, backend, record, lease, set(options.refit))

        def beat() -> str | None:
            if stopped := who_stopped(store, record.folder):
                return stopped
            if not lease.beat():
                return "taken over by another run"
            under_way.tell()
            return None

        with Heartbeat(beat, min(BEAT_SECONDS, config.launcher.lease_seconds / BEATS)) as heart:
            under_way.all(plan, heart)
        return None
    finally:
        try:
            backend.close()
        finally:  # also where it is interrupted
            if not handed_over:
                release(lease)


def _locked_plan(
    console: Console, config: RunConfig, options: RunOptions, backend: Backend, who: dict[str, Any]
) -> tuple[Lease, Plan, View, ViewChange | None]:
    """Take the corpus's lock, and return it with the plan, the view and its change as `_planned` returns them.

    A plan is made and agreed to before the lock is taken. If another command held the corpus meanwhile, it is made
    again from the files and receipts as they are now; if other documents would leave then, all begins again. Files that
    were listed earlier are listed again if documents would leave or enter.
    """
    store = Store(config.output)
    while True:
        before = last_holder(store)
        plan, seen, change = _planned(console, config, options)
        if change and change.lines() and options.chunks is not None:  # perhaps by another run since they were listed
            options = replace(options, chunks=None)
            plan, seen, change = _planned(console, config, options)
        show_same(console, plan)
        show_aliases(console, plan)
        _check_consent(console, change, options)
        lease = take_lock(store, config.launcher.lease_seconds, who, options.take_over, backend.jobs_alive)
        if before is not None and lease.generation == before + 1:
            return lease, plan, seen, change
        agreed, options = change, replace(options, chunks=None)
        try:
            with _kept(lease, config):
                plan, seen, change = _planned(console, config, options)
        except BaseException:
            release(lease)
            raise
        if change is None or change.like(agreed):
            return lease, plan, seen, change
        if not change.needs_consent or options.accept_removal:
            show_change(console, change)
            return lease, plan, seen, change
        release(lease)
        console.print("The corpus has changed since this run was planned.", highlight=False)


def _planned(console: Console, config: RunConfig, options: RunOptions) -> tuple[Plan, View, ViewChange | None]:
    """Return the plan, the view that readers see first, and what changes for them.

    Raises `CorpusError` if fits that the corpus was made with are others now.
    """
    with announced(console, "listing the inputs and reading receipts"):
        plan, seen = plan_run(config, options, options.refit, options.chunks)
        change = view_change(Store(config.output), plan.view)
        if change:
            check_used(Store(config.output), plan.config, change.before, options.refit)
    return plan, seen, change


def _check_consent(console: Console, change: ViewChange | None, options: RunOptions) -> None:
    """Say what enters and leaves the corpus. Raises `ConfigError` if documents leave and nobody agrees to that."""
    if change is None or not change.needs_consent or options.accept_removal:
        show_change(console, change)
        return
    if options.ask is None:
        raise ConfigError(change.refusal())
    show_change(console, change)
    if not options.ask(
        "Run it, although documents leave the corpus?" if change.documents else "Is it the same corpus?"
    ):
        raise ConfigError("Nothing was changed: restore the inputs, or give another `output`")


def _with_launcher(config: RunConfig, plan: Plan, backend: Backend, new: float) -> tuple[RunConfig, Plan, str]:
    """Return the configuration with the launcher that `auto` stands for, which the run's record then names, and the
    reason in brackets.
    """
    if config.launcher.kind != "auto":
        return config, plan, ""
    kind, why = backend.choose(plan, new)
    chosen = {"launcher": config.launcher.model_copy(update={"kind": kind})}
    return config.model_copy(update=chosen), replace(plan, config=plan.config.model_copy(update=chosen)), f" ({why})"


@contextlib.contextmanager
def _kept(lease: Lease, config: RunConfig) -> Iterator[None]:
    """Send heartbeats for the corpus's lock during work other than the run's steps.

    Raises `CorpusError` if another process takes it over.
    """
    beat = min(BEAT_SECONDS, config.launcher.lease_seconds / BEATS)
    heart = Heartbeat(lambda: None if lease.beat() else "taken over by another run", beat)
    try:
        with heart:
            yield
    except KeyboardInterrupt:
        if heart.stopped:
            raise lost(lease) from None
        raise


def plan_run(
    config: RunConfig, options: RunOptions, refit: Collection[str], chunks: Sequence[Chunk] | None = None
) -> tuple[Plan, View]:
    """Return the plan, and the view that readers see until the fits that are to be repeated exist.

    Args:
        config: the configuration of the corpus.
        options: the options of the command.
        refit: the fits that are still to be made again.
        chunks: the chunks of the inputs, as found when the run began; None to list them.

    Returns:
        (plan, view).

    Raises:
        ConfigError: for a fit that the run does not have.
    """
    plan = make_plan(config, options.only, options.until, chunks=chunks)
    fits = [name for name in FITS if name in plan.stages]
    for name in options.refit:
        if name not in fits:
            raise ConfigError(f"--refit {name}: this run does not fit that; it fits {', '.join(fits) or 'nothing'}")
    seen = plan.view
    return (make_plan(config, options.only, options.until, refit, _chunks(plan)) if refit else plan), seen


def _chunks(plan: Plan) -> Sequence[Chunk]:
    """Return the chunks of the inputs, as found when the run began."""
    return plan.view.listed.chunks


@dataclass
class _Run:
    """One run in this process. `refit`: the fits that are still to be made again."""

    console: Console
    config: RunConfig
    options: RunOptions
    backend: Backend
    record: RunRecord
    lease: Lease
    refit: set[str]
    failures: list[str] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)  # what each phase did, as in `PhaseState`
    progress: RunProgress | None = None  # progress of the present phase, if it launches something

    def all(self, plan: Plan, heart: Heartbeat) -> None:
        """Do step after step, end the run, and tell of its end."""
        try:
            self._to_the_end(plan, heart)
        finally:
            tell(self.console, self.config, self.record.store, self.record.folder, ended=True)

    def _to_the_end(self, plan: Plan, heart: Heartbeat) -> None:
        started = time.monotonic()
        try:
            plan = self._steps(plan)
            finish(self.console, plan, self.record, self.failures, time.monotonic() - started, self.lease)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                heart.noticed()
                give_up_soon()
            close_unfinished(self.record, error, self.failures)
            if isinstance(error, KeyboardInterrupt) and heart.stopped:
                raise CorpusError(f"stopped: {heart.stopped}; finished work is kept") from None
            raise

    def tell(self) -> None:
        """Record the progress for those who watch from elsewhere."""
        phases, progress = [dict(one) for one in self.phases], self.progress
        if phases and progress:
            phases[-1] |= progress.numbers() | {"failures": self.failures[-TOLD_FAILURES:]}
        self.record.store.write(f"{self.record.folder}/{PROGRESS}", json.dumps({"phases": phases}).encode())

    @contextlib.contextmanager
    def _phase(self, kind: str) -> Iterator[dict[str, Any]]:
        phase: dict[str, Any] = {"kind": kind}
        started = time.monotonic()
        self.phases.append(phase)
        self.tell()
        try:
            yield phase
        finally:
            self.progress = None
            phase |= {"over": True, "seconds": round(time.monotonic() - started, 1)}
        self.tell()

    def _steps(self, plan: Plan) -> Plan:
        last = ""
        while not self.failures:
            step = next_step(plan, last)
            _log.info("next step: %s, %s", step.kind, _in_words(step.plan))
            if step.kind == "fit":
                with self._phase("fit") as phase, announced(self.console, "fitting on the pilot"):
                    phase["fitted"] = decide(self.console, step, self.refit, self.backend.device)
                self.refit -= set(phase["fitted"])
                _give_back_memory()
                last = ""  # more was decided, so the same parts have more to do
            elif step.kind == "pilot":
                assert step.pilot
                of = "all" if len(step.pilot.chunks) == len(plan.chunks) else f"{len(step.pilot.chunks)} of"
                self.console.print(f"pilot: {of} {counted(len(plan.chunks), 'chunk')}", highlight=False)
                self._work_on(step.plan, step.kind)
                last = step.todo
            elif step.kind == "compare":
                with (
                    self._phase("compare"),
                    announced(self.console, f"comparing the corpus: {', '.join(plan.compares)}"),
                ):
                    compare(self.console, plan, self.backend.device)
                if "torch" in sys.modules:  # as embeddings were compared
                    _give_back_memory()
            else:
                if step.kind == "main":
                    self._work_on(step.plan, step.kind)
                    last = step.todo
                if step.kind == "finish" or not plan.compares_later:
                    break
            with announced(self.console, "reading receipts"):
                plan = make_plan(self.config, self.options.only, self.options.until, self.refit, _chunks(plan))
            if step.kind == "compare" and plan.compares == step.plan.compares:  # or it would go on for ever
                stages = ", ".join(plan.compares)
                raise CorpusError(
                    f"{stages}: compared, but the receipts of this do not count; pipeline verify says why"
                )
            if not self.refit:
                self.record.see(plan.view)
        return plan

    def _work_on(self, plan: Plan, kind: str) -> None:
        with self._phase(kind) as phase, _progress_of(self.console, plan) as progress:
            self.progress = progress
            try:
                for event in self.backend.launch(plan, self.record.folder):
                    said = event.model_dump(mode="json", exclude_defaults=True)
                    self.record.log(said)
                    progress.see(event)
                    _log.debug("%s", json.dumps(said, ensure_ascii=False), extra={"event": said})
                    if event.kind == "failed":
                        self.failures.append(f"{event.where}: {event.error}")
                self.record.write_events()
            finally:
                phase |= progress.numbers() | {"failures": self.failures[-TOLD_FAILURES:]}


def _in_words(plan: Plan) -> str:
    return (
        f"{counted(len(plan.chunks_to_segment()), 'chunk')} to segment, "
        f"{counted(len(plan.parts_to_visit()), 'part')} waiting"
    )


def _progress_of(console: Console, plan: Plan) -> RunProgress:
    first = " and segmenting the first chunks" if plan.chunks_to_segment() else ""
    return RunProgress(
        console,
        chunks=len(plan.chunks_to_segment()),
        sentences=plan.sentences_to_visit(),
        visits=any(stage != SEGMENT for stage in plan.visits),
        starting=f"{_STARTED.get(plan.config.launcher.kind, '')}loading the models{first}",
    )


def _give_back_memory() -> None:
    """Free the GPU memory of a fit or a comparison for the workers that follow."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
