"""What `pipeline run` does: the pilot, the fits, the main pass, followed on the screen; then the books and the report.

The books are closed from what is on disk, not from what workers said. Cost beside the work itself: reading every
receipt of the corpus once a phase, and the scores of up to 500 000 rows.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from pipeline.books import keep_books, sweep
from pipeline.config import FITS, RunConfig
from pipeline.corpus import Corpus
from pipeline.errors import ConfigError, CorpusError, PipelineError
from pipeline.fits.fitting import fit, freeze_rates
from pipeline.fits.pilot import Pilot, pilot_of
from pipeline.fits.records import FitRecord
from pipeline.inputs import Chunk
from pipeline.plan import Plan, make_plan
from pipeline.progress import RowProgress, RunProgress
from pipeline.quality import corpus_bleu_of, measure, measure_scores, worst_rows
from pipeline.runs import RunRecord, newest_is
from pipeline.show import counted, duration, show_books, show_open, show_quality, show_rows, show_scores
from pipeline.store import Store
from pipeline.tasks import Event

Launch = Callable[[Plan, str], Iterator[Event]]  # plan, folder of the run → events
SHOWN_ROWS = 500_000
FEW_SCORED = 2000  # rows for the predictor to learn from
REPORT = "report/index.html"


@dataclass(frozen=True)
class Wishes:
    """The options of the command, as `pipeline/cli.py` explains them."""

    only: str | None = None
    until: str | None = None
    refit: Collection[str] = ()


def run(console: Console, config: RunConfig, wishes: Wishes, launch: Launch, device: Callable[[], str]) -> None:
    """Bring a corpus up to date. Raises `CorpusError` if some of it is not done, or does not balance.

    `device`: where fits compute. Ctrl-C comes through as `KeyboardInterrupt`, after the run's record is closed.
    """
    plan = make_plan(config, wishes.only, wishes.until)
    fits = [name for name in FITS if name in plan.stages]
    for name in wishes.refit:
        if name not in fits:
            raise ConfigError(f"--refit {name}: this run does not fit that; it fits {', '.join(fits) or 'nothing'}")
    seen = plan.view  # by readers, until what is fitted anew stands
    if wishes.refit:
        plan = make_plan(config, wishes.only, wishes.until, wishes.refit, _chunks(plan))
    if plan.nothing_to_do:
        older = not newest_is(Store(plan.config.output), plan.view, plan.config)
        if older:  # another configuration was run last
            RunRecord(Store(plan.config.output), plan.config, plan.view).close({"done": True})
        console.print("Nothing to do.")
        if not _close_books(console, plan):
            raise CorpusError("the corpus is not whole: what is wrong stands above")
        if older or not Store(plan.config.output).exists(REPORT):
            _report(console, plan)
        return
    started = time.monotonic()
    record = RunRecord(Store(plan.config.output), plan.config, seen)
    console.print(
        f"[bold]{escape(plan.config.name)}[/] → {escape(plan.config.output)}: {', '.join(plan.stages)} "
        f"({counted(len(plan.chunks_to_segment()), 'chunk')} to segment, "
        f"{counted(len(plan.parts_to_visit()), 'part')} waiting)"
    )
    work = _Run(console, config, wishes, launch, record, set(wishes.refit))
    try:
        plan = work.decide(plan, device)
        if plan.to_launch and not work.failures:
            work.work_on(plan)
    except KeyboardInterrupt:
        record.close({"done": False, "interrupted": True})
        raise
    except BaseException as error:
        record.close({"done": False, "failures": [*work.failures, str(error)]})
        raise
    complete = _close_books(console, plan, worst=3) and not work.failures
    seconds = time.monotonic() - started
    record.close({"done": complete, "failures": work.failures, "seconds": round(seconds, 1)})
    try:
        _report(console, plan)
    except PipelineError as error:
        if complete:
            raise
        console.print(Text(f"no report: {error}"))  # what stopped the run matters more
    if not complete:
        raise CorpusError(f"the run failed; details: {plan.config.output}/{record.folder}/events.jsonl")
    console.print(f"Done in {seconds:.0f} s.", highlight=False)


def _chunks(plan: Plan) -> list[Chunk]:
    """Of the inputs, as they were found when the run began."""
    return [one.chunk for one in plan.chunks]


@dataclass
class _Run:
    """One run under way. `refit`: fits that are still to be made anew."""

    console: Console
    config: RunConfig
    wishes: Wishes
    launch: Launch
    record: RunRecord
    refit: set[str]
    failures: list[str] = field(default_factory=list)
    launches: int = 0

    def work_on(self, plan: Plan) -> None:
        """Have a plan done. Starts of tasks are counted for each launch: a part is visited in every phase."""
        self.launches += 1
        with RunProgress(self.console, plan) as progress:
            for event in self.launch(plan, f"{self.record.folder}/launch-{self.launches}"):
                self.record.log(event.model_dump_json())
                progress.see(event)
                if event.kind == "failed":
                    self.failures.append(f"{event.where}: {event.error}")

    def decide(self, plan: Plan, device: Callable[[], str]) -> Plan:
        """Do the pilot and what is fitted on it, until nothing waits for a decision; the plan of the main pass."""
        last: set[str] = set()
        while (plan.missing_fits or plan.waiting) and not self.failures:
            pilot = pilot_of(plan.chunks, self.config.fit.rows)
            part_of_it = plan.over(pilot.chunks)
            todo = part_of_it.to_launch
            if todo and todo != last:
                of = "all" if len(pilot.chunks) == len(plan.chunks) else f"{len(pilot.chunks)} of"
                self.console.print(f"pilot: {of} {counted(len(plan.chunks), 'chunk')}", highlight=False)
                self.work_on(part_of_it)
                last = todo
            elif pilot.enough and not pilot.parts:
                break  # no input gave a sentence: there is nothing to fit, and nothing that needs it
            elif todo or not pilot.enough or not self._decided(plan, pilot, device):
                left = ", ".join(dict.fromkeys((*plan.missing_fits, *plan.waiting)))
                raise CorpusError(f"{left}: what comes before is not done on the pilot; run without --only and --until")
            else:
                last = set()  # more was decided: the same parts have more to do
            plan = make_plan(self.config, self.wishes.only, self.wishes.until, self.refit, _chunks(plan))
            if not self.refit:
                self.record.see(plan.view)
        return plan

    def _decided(self, plan: Plan, pilot: Pilot, device: Callable[[], str]) -> bool:
        """Freeze the rates and fit what can be fitted now. False if there was nothing of the kind."""
        store = Store(plan.config.output)
        made = len(freeze_rates(store, plan.config, pilot, plan.chunks))
        finished = set.intersection(*(set(part.receipts) for part in pilot.parts)) if pilot.parts else set()
        for name in plan.missing_fits:
            needs = "fragility" if name == "predictor" else "encode"
            if needs not in finished and not getattr(plan.config, name).file:
                continue
            with RowProgress(self.console, 0, name, "fitted") as progress:
                record = fit(store, plan.config, pilot, name, name in self.refit, device(), progress.of)
            _give_back_memory()
            self.console.print(
                f"{name}: fitted on {counted(record.rows, 'sentence')} in {duration(record.seconds)} → {record.path}",
                highlight=False,
            )
            doubt = _doubt(record)
            if doubt:
                self.console.print(Text(f"{name}: {doubt}", style="yellow"))
            self.refit.discard(name)
            made += 1
        return made > 0


def _doubt(record: FitRecord) -> str:
    """What makes a fit doubtful, in words; empty if nothing does."""
    constant = record.numbers.get("constant_dimensions", 0.0)
    if record.name == "predictor" and record.rows < FEW_SCORED:
        return (
            f"{counted(record.rows, 'sentence')} with a fragility are few; {FEW_SCORED} or more give weights to rely "
            "on: raise fragility.sample, or fit.rows"
        )
    if record.name == "scaler" and constant:
        return (
            f"{constant:.0f} dimensions have an interquartile range of 0 and are left as they are by the noise of "
            "fragility; does one sentence make up most of the pilot?"
        )
    return ""


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
    swept = sweep(corpus.store, corpus.chunks)
    books = keep_books(corpus.store, corpus.chunks)
    show_books(console, books, f"{plan.config.name} in {plan.config.output}")
    if swept:
        console.print(f"removed {counted(swept, 'file')} that an interrupted attempt left")
    if "autobleu" in corpus.columns:
        quality = measure(corpus, SHOWN_ROWS)
        show_quality(console, quality, corpus_bleu_of(books), lengths=False)
        show_scores(console, measure_scores(corpus, SHOWN_ROWS))
        if worst and quality.everything.scored:
            rows = worst_rows(corpus, worst, max_rows=SHOWN_ROWS)
            show_rows(console, f"Worst {worst} rows (pipeline inspect shows more)", rows)
    show_open(console, books)
    left = [stage for stage in plan.stages if books.open_parts.get(stage)]
    undone = [*left, *(plan.waiting + plan.missing_fits if corpus.parts else ())]
    return not undone and not (books.open_chunks and "segment" in plan.stages) and not books.problems
