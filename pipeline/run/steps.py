"""Decides from receipts alone what a run does next: work on the pilot, fit, work on everything, or finish.

The steps follow each other in one process, or as jobs of a cluster: each step is decided from what is then on disk. For
example, a run with a scaler first launches `pilot` over the first chunks, then does `fit`, and then launches `main`
over all chunks, where parts of the pilot only get the stages that waited for the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import CorpusError
from pipeline.base.formats import counted, duration, number
from pipeline.base.interrupts import StoppedWithProgress
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import FitProgress
from pipeline.corpus.fits import FitRecord
from pipeline.planning.pilot_size import FEW_SCORED
from pipeline.planning.plan import Plan
from pipeline.run.duplicates import find_duplicates
from pipeline.run.fitting import fit, freeze_rates
from pipeline.run.phases import todo_of
from pipeline.run.pilot import Pilot, pilot_of
from pipeline.storage.store import Store

UNITS = {"scaler": "sentence", "predictor": "epoch", "rvq": "codebook", "decoder": "step"}  # what each fit counts


@dataclass(frozen=True)
class Step:
    """The next step. `pilot`, `main`: launch the plan, over the pilot's chunks or over all; `fit`: make the
    decisions; `compare`: do the stages that compare the whole corpus.
    """

    kind: Literal["pilot", "fit", "main", "compare", "finish"]
    plan: Plan
    pilot: Pilot | None = None

    @property
    def todo(self) -> str:
        """Return a digest of what the step launches."""
        return todo_of(self.plan)


def next_step(plan: Plan, last: str) -> Step:
    """Return the next step. `last` is `todo` of the previous step if it launched something; repeating it would be
    useless.

    Raises `CorpusError` if what is to be fitted needs something that this run may not do.
    """
    if plan.missing_fits or plan.waiting:
        pilot = pilot_of(plan.chunks, plan.config.fit.rows)
        of_pilot = Step("pilot", plan.over(pilot.chunks), pilot)
        todo = of_pilot.plan.launches
        if todo and of_pilot.todo != last:
            return of_pilot
        nothing_to_fit = pilot.enough and not pilot.parts  # no input gave a sentence, so nothing needs the fits
        if not nothing_to_fit:
            if todo:
                left = {one.id for one in of_pilot.plan.chunks_to_segment()}
                left |= {one.part for one in of_pilot.plan.parts_to_visit()}
                raise CorpusError(_failed(plan, len(left)))
            if not pilot.enough:
                raise _stuck(plan)
            return Step("fit", plan, pilot)
    if plan.launches:
        main = Step("main", plan)
        return main if main.todo != last else Step("finish", plan)
    return Step("compare" if plan.compares else "finish", plan)


def compare(console: Console, plan: Plan, device: Callable[[], str]) -> None:
    """Do the stages that compare the whole corpus.

    Args:
        console: where is shown what was compared.
        plan: the plan; `CorpusError` is raised if what is compared is not all there.
        device: says where embeddings are compared; it is called only if they are.
    """
    for stage in plan.compares:
        parts = find_duplicates(plan, stage, device)
        console.print(f"{stage}: {counted(parts, 'part')} compared", highlight=False)


def _left(plan: Plan) -> str:
    return ", ".join(dict.fromkeys((*plan.missing_fits, *plan.waiting)))


def _failed(plan: Plan, count: int) -> str:
    return (
        f"{_left(plan)}: fits wait until all of the pilot is done, and {number(count)} of its chunks and parts "
        "are not: they failed or were set aside. pipeline logs says why; mend the cause or purge their documents, and "
        "run again"
    )


def _stuck(plan: Plan) -> CorpusError:
    return CorpusError(f"{_left(plan)}: earlier stages are not done on the pilot; run without --only and --until")


def decide(console: Console, step: Step, refit: Collection[str], device: Callable[[], str]) -> list[str]:
    """Freeze the rates, and fit what can be fitted now.

    Args:
        console: where is shown what was fitted.
        step: the step, with its plan and pilot; `CorpusError` is raised if nothing can be decided.
        refit: the names of fits that are to be made again.
        device: says where fits are computed; it is called only if there is one.

    Returns:
        The names of what was fitted.

    Raises:
        StoppedWithProgress: if it is stopped when one of several fits is finished, or a decoder has a checkpoint.
    """
    plan, pilot = step.plan, step.pilot
    assert pilot
    store = Store(plan.config.output)
    frozen = freeze_rates(store, plan.config, pilot, plan.chunks)
    finished = set.intersection(*(set(part.receipts) for part in pilot.parts)) if pilot.parts else set()
    made: list[str] = []
    for name in plan.missing_fits:
        if not (finished >= _needed(plan.config, name) or getattr(plan.config, name).file):
            continue
        if name == "decoder" and any(one in plan.missing_fits for one in ("scaler", "rvq")):  # first they are frozen
            continue
        try:
            with FitProgress(console, name, UNITS[name]) as progress:
                record = fit(store, plan.config, pilot, name, name in refit, device(), progress)
        except KeyboardInterrupt:
            if set(made) - set(refit):  # of those, a task that is started again makes none again
                raise StoppedWithProgress from None
            raise
        console.print(
            f"{name}: fitted on {counted(record.rows, 'sentence')} in {duration(record.seconds)} → "
            f"{record.card_path if record.card else record.path}",
            highlight=False,
        )
        doubt = _doubt(record)
        if doubt:
            console.print(Text(f"{name}: {doubt}", style="yellow"))
        made.append(name)
    if not made and not frozen:
        raise _stuck(plan)
    return made


def _needed(config: RunConfig, name: str) -> set[str]:
    """Return the row-wise stages that have to be done on the pilot before a fit."""
    if name == "predictor":
        return {"fragility"}
    return {"rvq"} if name == "decoder" and config.decoder and config.decoder.codes else {"encode"}


def _doubt(record: FitRecord) -> str:
    """Say what makes a fit doubtful; empty if nothing does."""
    constant = record.numbers.get("constant_dimensions", 0.0)
    if record.name == "predictor" and record.rows < FEW_SCORED:
        return (
            f"{counted(record.rows, 'sentence')} with a fragility score are few; {FEW_SCORED} or more give weights to "
            "rely on: raise fit.scored_rows, fragility.sample or fit.rows"
        )
    if record.name == "decoder" and not record.numbers.get("held_out_rows") and not record.source:
        return "no validation or test document is in the pilot, so what it gained was not measured: give split a share"
    if record.name == "scaler" and constant:
        return (
            f"{constant:.0f} dimensions have an interquartile range of 0 and are left as they are by the noise of "
            "fragility; does one sentence make up most of the pilot?"
        )
    return ""
