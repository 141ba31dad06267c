"""What `pipeline run` does: the pilot, the fits, the main pass, followed on the screen; then the books and the report.

The books are closed from what is on disk, not from what workers said. Cost beside the work itself: reading every
receipt of the corpus once a phase, and the scores of up to 500 000 rows.
"""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from pipeline import layout
from pipeline.config import FITS, RunConfig
from pipeline.coordination.heart import Heart
from pipeline.coordination.leases import BEATS, Lease
from pipeline.coordination.lock import CANCEL, hold, me, take_lock
from pipeline.coordination.steps import decide, next_step
from pipeline.corpus import Corpus
from pipeline.errors import ConfigError, CorpusError, PipelineError
from pipeline.inputs import Chunk
from pipeline.inspect.quality import corpus_bleu_of, measure, measure_scores, worst_rows
from pipeline.plan import Plan, make_plan
from pipeline.show import counted, show_books, show_open, show_quality, show_rows, show_scores
from pipeline.state.books import keep_books, sweep
from pipeline.state.ledger import compact
from pipeline.state.runs import PROGRESS, RunRecord, check_corpus, newest_is
from pipeline.state.states import States, View, fold, forget_gone
from pipeline.storage.store import Store
from pipeline.tasks import Event
from pipeline.upkeep.purge import erase
from pipeline.watch.progress import RunProgress

Launch = Callable[[Plan, str], Iterator[Event]]  # plan, folder of the run → events
Submit = Callable[[RunRecord, Lease], None]
SHOWN_ROWS = 500_000
BEAT_SECONDS = 5.0  # between heartbeats, at most: they carry the progress, too
TOLD_FAILURES = 20
REPORT = "report/index.html"
_SUBMITTED = """submitted; the corpus is complete when its last job says so
  pipeline status {output} --watch   how far it is
  pipeline logs {output}             what failed, and what workers say
  pipeline cancel {output}           stop it; what is finished is kept"""


@dataclass(frozen=True)
class Where:
    """How a launcher does things. `launch`: does a plan here; `device`: where fits compute; `train`: trains, or hands
    that over; `submit`: hands the run to a cluster instead; `jobs_alive`: whether SLURM still has one of these jobs."""

    launch: Launch
    device: Callable[[], str]
    train: Callable[[Console, RunConfig], object]
    submit: Submit | None = None
    jobs_alive: Callable[[Sequence[str]], bool] = lambda jobs: True


@dataclass(frozen=True)
class Wishes:
    """The options of the command, as `pipeline/cli.py` explains them."""

    only: str | None = None
    until: str | None = None
    refit: Collection[str] = ()
    take_over: bool = False


def run(console: Console, config: RunConfig, wishes: Wishes, where: Where) -> str | None:
    """Bring a corpus up to date, as `bring_up_to_date` does, then train on it if the section `train` is there."""
    submitted = bring_up_to_date(console, config, wishes, where)
    if submitted is None and trains(config, wishes):
        where.train(console, config)
    return submitted


def trains(config: RunConfig, wishes: Wishes) -> bool:
    """Whether a run ends with training."""
    return config.train is not None and wishes.only is None and wishes.until is None


def bring_up_to_date(console: Console, config: RunConfig, wishes: Wishes, where: Where) -> str | None:
    """All but training. Raises `CorpusError` if some of it is not done, or does not balance.

    Ctrl-C comes through as `KeyboardInterrupt`, after the run's record is closed. Where the work is handed to a
    cluster this returns at once, with the run's folder, and the jobs hold the corpus's lock.
    """
    store = Store(config.output)
    if store.exists(layout.CORPUS_FILE):
        check_corpus(store)
    plan, seen = plan_run(config, wishes, wishes.refit)
    who = me(launcher=config.launcher.kind)
    lease = take_lock(store, config.launcher.lease_seconds, who, wishes.take_over, where.jobs_alive)
    handed_over = False
    try:
        if plan.nothing_to_do:
            _nothing_to_do(console, plan)
            return None
        if isinstance(plan.chunks, States):
            forget_gone(plan.chunks)
        record = RunRecord(store, plan.config, seen)
        hold(lease, who | {"run": record.folder})
        console.print(
            f"[bold]{escape(plan.config.name)}[/] → {escape(plan.config.output)}: {', '.join(plan.stages)} "
            f"({counted(len(plan.chunks_to_segment()), 'chunk')} to segment, "
            f"{counted(len(plan.parts_to_visit()), 'part')} waiting)"
        )
        if where.submit:
            where.submit(record, lease)
            handed_over = True
            console.print(_SUBMITTED.format(output=escape(config.output)), highlight=False)
            return record.folder
        under_way = _Run(console, config, wishes, where, record, set(wishes.refit))

        def beat() -> str | None:
            if store.exists(f"{record.folder}/{CANCEL}"):
                return "cancelled"
            if not lease.beat():
                return "taken over by another run"
            under_way.tell()
            return None

        with Heart(beat, min(BEAT_SECONDS, config.launcher.lease_seconds / BEATS)) as heart:
            under_way.all(plan, heart)
        return None
    finally:
        if not handed_over:
            lease.release()


def plan_run(
    config: RunConfig, wishes: Wishes, refit: Collection[str], chunks: Sequence[Chunk] | None = None
) -> tuple[Plan, View]:
    """The plan, and the view that readers see until what is to be fitted anew stands.

    `refit`: what is still to be fitted anew; `chunks`: of the inputs, as they were found when the run began.
    Raises `ConfigError` for a fit that the run has not.
    """
    plan = make_plan(config, wishes.only, wishes.until, chunks=chunks)
    fits = [name for name in FITS if name in plan.stages]
    for name in wishes.refit:
        if name not in fits:
            raise ConfigError(f"--refit {name}: this run does not fit that; it fits {', '.join(fits) or 'nothing'}")
    seen = plan.view
    return (make_plan(config, wishes.only, wishes.until, refit, _chunks(plan)) if refit else plan), seen


def _nothing_to_do(console: Console, plan: Plan) -> None:
    store = Store(plan.config.output)
    older = not newest_is(store, plan.view, plan.config)
    if older:  # another configuration was run last
        RunRecord(store, plan.config, plan.view).close({"done": True})
    console.print("Nothing to do.")
    if not _close_books(console, plan):
        raise CorpusError("the corpus is not whole: what is wrong stands above")
    if older or not store.exists(REPORT):
        _report(console, plan)


def _chunks(plan: Plan) -> Sequence[Chunk]:
    """Of the inputs, as they were found when the run began."""
    return plan.view.listed.chunks


@dataclass
class _Run:
    """One run under way in this process. `refit`: fits that are still to be made anew."""

    console: Console
    config: RunConfig
    wishes: Wishes
    where: Where
    record: RunRecord
    refit: set[str]
    failures: list[str] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)  # what each did, as `PhaseState` has it
    progress: RunProgress | None = None  # of the present phase, if it launches something

    def all(self, plan: Plan, heart: Heart) -> None:
        """Step after step, and the end."""
        started = time.monotonic()
        try:
            plan = self._steps(plan)
        except KeyboardInterrupt:
            self.record.close({"done": False, "interrupted": True})
            if heart.stopped:
                raise CorpusError(f"stopped: {heart.stopped}; what is finished is kept") from None
            raise
        except BaseException as error:
            self.record.close({"done": False, "failures": [*self.failures, str(error)]})
            raise
        finish(self.console, plan, self.record, self.failures, time.monotonic() - started)

    def tell(self) -> None:
        """How far it is, to those who watch from elsewhere."""
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
            if step.kind == "fit":
                with self._phase("fit") as phase:
                    phase["fitted"] = decide(self.console, step, self.refit, self.where.device)
                self.refit -= set(phase["fitted"])
                _give_back_memory()
                last = ""  # more was decided: the same parts have more to do
            elif step.kind == "pilot":
                assert step.pilot
                of = "all" if len(step.pilot.chunks) == len(plan.chunks) else f"{len(step.pilot.chunks)} of"
                self.console.print(f"pilot: {of} {counted(len(plan.chunks), 'chunk')}", highlight=False)
                self._work_on(step.plan, step.kind)
                last = step.todo
            else:
                if step.kind == "main":
                    self._work_on(step.plan, step.kind)
                break
            plan = make_plan(self.config, self.wishes.only, self.wishes.until, self.refit, _chunks(plan))
            if not self.refit:
                self.record.see(plan.view)
        return plan

    def _work_on(self, plan: Plan, kind: str) -> None:
        with self._phase(kind) as phase, RunProgress(self.console, plan) as progress:
            self.progress = progress
            try:
                for event in self.where.launch(plan, self.record.folder):
                    self.record.log(event.model_dump(mode="json", exclude_defaults=True))
                    progress.see(event)
                    if event.kind == "failed":
                        self.failures.append(f"{event.where}: {event.error}")
                self.record.write_events()
            finally:
                phase |= progress.numbers() | {"failures": self.failures[-TOLD_FAILURES:]}


def finish(console: Console, plan: Plan, record: RunRecord, failures: list[str], seconds: float) -> None:
    """Close the books, the record, and write the report. Raises `CorpusError` if something is left."""
    whole = _close_books(console, plan, worst=3)
    complete = whole and not failures
    if not whole and not failures:
        failures = ["the corpus is not whole; its books say why"]
    record.close({"done": complete, "failures": failures, "seconds": round(seconds, 1)})
    try:
        _report(console, plan)
    except PipelineError as error:
        if complete:
            raise
        console.print(Text(f"no report: {error}"))  # what stopped the run matters more
    if not complete:
        raise CorpusError(f"the run failed; details: pipeline logs {plan.config.output}")
    console.print(f"Corpus done in {seconds:.0f} s.", highlight=False)


def _give_back_memory() -> None:
    """What a fit took of a GPU, to the workers that come."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _report(console: Console, plan: Plan) -> None:
    """The page, if the configuration asks for one and there is something to show."""
    if not plan.config.report:
        return
    from pipeline.report.of_run import report_of  # imports matplotlib

    corpus = Corpus(plan.config.output, plan.view)
    if corpus.parts:
        place = report_of(corpus, None, lambda text: console.print(text, markup=False), plan.config.report.max_rows)
        console.print(f"report: {place}", markup=False, highlight=False, soft_wrap=True)


def _close_books(console: Console, plan: Plan, worst: int = 0) -> bool:
    """Show the books and the quality. True if everything that the plan may do is on disk and balances."""
    corpus = Corpus(plan.config.output, plan.view)
    swept, erased = sweep(corpus.store, corpus.chunks), erase(corpus.store, corpus.chunks)
    books = keep_books(corpus.store, corpus.chunks)
    show_books(console, books, f"{plan.config.name} in {plan.config.output}")
    if swept:
        console.print(f"removed {counted(swept, 'file')} that an interrupted attempt left")
    if erased:
        console.print(f"removed {counted(erased, 'file')} of chunks that held purged documents")
    if "autobleu" in corpus.columns:
        quality = measure(corpus, SHOWN_ROWS)
        show_quality(console, quality, corpus_bleu_of(books), lengths=False)
        show_scores(console, measure_scores(corpus, SHOWN_ROWS))
        if worst and quality.everything.scored:
            rows = worst_rows(corpus, worst, max_rows=SHOWN_ROWS)
            show_rows(console, f"Worst {worst} rows (pipeline inspect shows more)", rows)
    show_open(console, books)
    if not books.problems:
        fold(corpus.store, corpus.chunks)
        compact(corpus.store)
    if books.quarantined and not books.kept and not books.open_chunks:
        console.print(Text("Not one document was kept.", "red"))
        return False
    left = [stage for stage in plan.stages if books.open_parts.get(stage)]
    undone = [*left, *(plan.waiting + plan.missing_fits if corpus.parts else ())]
    return not undone and not (books.open_chunks and "segment" in plan.stages) and not books.problems
