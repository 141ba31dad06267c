"""Lists what a run does besides the row-wise stages: fits, training, report, and which exports it leaves behind; for
`pipeline plan`, with reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.formats import counted, duration, last_few
from pipeline.config.run_config import RunConfig
from pipeline.corpus.exports import exports_of, view_digest
from pipeline.corpus.fits import fit_reasons
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.runs import REPORT, newest_is
from pipeline.planning.estimate import MACHINE
from pipeline.planning.plan import Plan
from pipeline.planning.rates import DECODER, machine_rate
from pipeline.run.options import RunOptions, ends_with_training
from pipeline.run.report_stamp import report_is_current
from pipeline.storage.store import Store
from stages.cards import CardError

UNKNOWN_TIME = "which nobody has measured on this machine: the times of the stages do not include it"


@dataclass(frozen=True)
class FurtherWork:
    """Lines by subject. `refused`: the run would end with code 2 because of it; `left`: there is work."""

    subject: str
    text: str
    left: bool = False
    refused: bool = False


def further_work(plan: Plan, options: RunOptions) -> list[FurtherWork]:
    """Return the models that have to be fetched first, missing fits and why, the training and what was changed since it
    began, the report, and the exports that are older than what the run makes.
    """
    store = Store(plan.config.output)
    found = [FurtherWork("model", text) for text in _to_fetch(plan)]
    found += [
        FurtherWork(f"fit {name}", f"on the pilot: {'; '.join(_reasons(store, plan.config, name))}", left=True)
        for name in plan.missing_fits
    ]
    if ends_with_training(plan.config, options):
        found.append(_training(store, plan))
    if plan.config.report is not None:
        trains = any(one.left for one in found if one.subject == "train") and plan.config.launcher.kind != "slurm"
        whole = (
            not trains and plan.nothing_to_do and newest_is(store, plan.view, plan.config) and report_is_current(store)
        )
        found.append(FurtherWork("report", f"{REPORT} is up to date" if whole else f"{REPORT} is written", not whole))
    digest = view_digest(plan.view) if plan.nothing_to_do else ""
    exports = exports_of(store)
    older = [record for record in exports.records if record.view != digest]
    found += [FurtherWork("export", f"{record} is not made again; it is of an older corpus") for record in older]
    return found + [FurtherWork("export", str(error)) for error in exports.damaged.values()]


def _to_fetch(plan: Plan) -> list[str]:
    """Say which models of the sections that have work are not on this machine, and how large they are."""
    from pipeline.doctor.corpus import models_of

    needed = {*plan.waiting, *plan.missing_fits, *(name for name in plan.work if plan.work[name].left)}
    if SEGMENT in needed:
        needed.update(plan.stages)
    if "rvq" not in plan.missing_fits:  # its fit decodes; its codes need no model
        needed.discard("rvq")
    return [one.found for one in models_of(plan.config, needed) if one.level == "warn"] if needed else []


def _reasons(store: Store, config: RunConfig, name: str) -> list[str]:
    """Say why something is fitted; of a decoder, also how long that takes, which may be most of a run."""
    found = fit_reasons(store, config, name)
    if name != DECODER or not config.decoder or config.decoder.file:
        return found
    steps, measured = config.decoder.steps, machine_rate(config, DECODER)
    time = f"about {duration(steps / measured.per_second(None))} at the rate {MACHINE}" if measured else UNKNOWN_TIME
    return [*found, f"{counted(steps, 'step')}, {time}"]


def _training(store: Store, plan: Plan) -> FurtherWork:
    # Their records take milliseconds, and few plans train.
    from pipeline.training.record import RECORD, changed_since, check_initial_weights
    from pipeline.training.status import training_in_words, training_status

    settings = plan.config.train
    assert settings
    what = f"{settings.model} in {settings.folder}"
    if not store.exists(f"{settings.folder}/{RECORD}"):
        try:
            check_initial_weights(plan.config)
        except (ConfigError, CorpusError, CardError) as error:
            return FurtherWork("train", f"{what}: {error}", refused=True)
        length = counted(settings.steps, "step") if settings.epochs is None else f"{settings.epochs:g} epochs"
        return FurtherWork("train", f"{what}: not begun, {length}, {UNKNOWN_TIME}", left=True)
    status = training_status(store, settings.folder)
    try:
        changed = changed_since(store, plan.config) if status.holds_model else []
    except (ConfigError, CorpusError, CardError) as error:
        return FurtherWork("train", f"{what}: {error}", refused=True)
    if changed:
        return FurtherWork(
            "train",
            f"{what} was begun with other settings, so a run refuses to continue it: {'; '.join(changed)}. Restore "
            "them, give train.name another name, or start over: pipeline train --fresh",
            refused=True,
        )
    return FurtherWork("train", f"{what}: {training_in_words(status)}", left=not status.finished)


def show_further(console: Console, plan: Plan, found: list[FurtherWork]) -> None:
    """Print a line for each piece of work, of exports only the newest, and say if there is nothing to do at all.

    Args:
        console: where the lines are printed.
        plan: what the run would do.
        found: the further work.
    """
    shown, more = last_few([one for one in found if one.subject == "export"], "pipeline plan --json lists all exports")
    for one in (*(one for one in found if one.subject != "export"), *shown):
        style = "red" if one.refused else "" if one.left else "dim"
        console.print(Text(f"{one.subject}: {one.text}", style), soft_wrap=True)
    if more:
        console.print(more, style="dim", markup=False, highlight=False)
    if plan.nothing_to_do and not any(one.left or one.refused for one in found):
        console.print("Nothing to do.")
