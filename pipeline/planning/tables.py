"""Prints the tables of `pipeline plan`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.base.formats import Figures, counted, duration, number, size
from pipeline.config.run_config import RunConfig
from pipeline.config.stages import ONLY_FITS
from pipeline.planning.estimate import ASSUMED, CARD, HERE, MACHINE, Estimate, estimate_of, is_made_again
from pipeline.planning.plan import Plan
from pipeline.planning.reasons import StageWork
from pipeline.planning.workload import worked_on
from stages.sonar.card import meant_by

COPIES = (
    "Some chunks were segmented before: documents that come out the same are copied, not computed again, so that the "
    "stages after segment may take far less time."
)


def show_plan(console: Console, plan: Plan) -> None:
    """Print the table of `pipeline plan`."""
    between = 2 if console.width >= 70 else 1
    table = Table(
        title=f"Plan for {escape(plan.config.output)}", title_justify="left", box=None, padding=(0, between, 0, 0)
    )
    for column in ("stage", "done", "to do", "sentences to do", "sentences/s", "time"):
        word = max(map(len, column.split()))  # on a narrow terminal, words of the head stay whole
        table.add_column(column, justify="right" if column != "stage" else "left", overflow="fold", min_width=word)
    estimate = estimate_of(plan) if plan.launches or plan.waiting else None
    for work in plan.work.values():
        table.add_row(*map(Figures, _plan_row(plan.config, work, estimate)))
    console.print(table)
    show_same(console, plan)
    show_aliases(console, plan)
    if estimate:
        if text := _estimated(estimate):
            console.print(text, highlight=False, soft_wrap=True)
        if is_made_again(plan):
            console.print(COPIES, highlight=False, soft_wrap=True)
        for text in estimate.warnings:
            console.print(f"[yellow]Warning:[/] {escape(text)}", highlight=False, soft_wrap=True)
    reasons = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title="\nWhy", title_justify="left")
    for work in plan.work.values():
        for reason, count in (+work.reasons).most_common(4):
            reasons.add_row(work.stage, f"{escape(reason)} ({counted(count, _unit(work))})")
    if reasons.row_count:
        console.print(reasons)


def show_aliases(console: Console, plan: Plan) -> None:
    """Say which models the aliases of a configuration mean, such as `facebook/SONAR`."""
    stages = (plan.config.encode, plan.config.autobleu, plan.config.fragility, plan.config.segment)
    for asked in dict.fromkeys(stage.model for stage in stages if stage):
        if meant := meant_by(asked):
            console.print(
                f"{escape(asked)} is the model {meant}: pipeline models {meant}", highlight=False, soft_wrap=True
            )


def show_same(console: Console, plan: Plan) -> None:
    """Say how many files were read because their times or versions differ, and turned out to be unchanged."""
    if plan.same_files:
        have, they_are = ("has", "it is") if plan.same_files == 1 else ("have", "they are")
        console.print(
            f"{counted(plan.same_files, 'file')} {have} another modification time or version but the same content, so "
            f"{they_are} not segmented again.",
            highlight=False,
        )


def _plan_row(config: RunConfig, work: StageWork, estimate: Estimate | None) -> tuple[str, ...]:
    of_stage = estimate.stages.get(work.stage) if estimate and work.stage not in ONLY_FITS else None
    sentences, seconds, rate = float(work.sentences_left), work.seconds_left, work.rate
    if of_stage:
        sentences, seconds = of_stage.sentences, of_stage.seconds
        rate = sentences / seconds if seconds else work.rate
    about = "about " * bool(of_stage and estimate and estimate.sentences)
    guess = "about " * bool(rate and (work.guessed or (of_stage and of_stage.seconds and of_stage.source != HERE)))
    worked = worked_on(config, work.stage, sentences)  # the others are not in the stage's sample
    if rate and work.scored_rate and not guess:
        rate = work.scored_rate
    elif rate and sentences:
        rate *= worked / sentences
    return (
        work.stage,
        counted(work.done, _unit(work)),
        counted(work.left, _unit(work)),
        about + number(_rounded(worked) if about else round(worked)),
        f"{guess}{number(_rounded(rate) if guess else rate)}" if rate else "–",
        (about or guess) + duration(seconds) if seconds else "–",
    )


def _rounded(value: float) -> float:
    """Round to two significant digits."""
    return float(f"{value:.2g}")


def _estimated(estimate: Estimate) -> str:
    looked = f", by sentence-final marks in {counted(estimate.documents, 'document')}" if estimate.documents else ""
    tokens = f" of {large(_rounded(estimate.tokens))} tokens" if estimate.tokens else ""
    stored = f"{size(_rounded(estimate.stored_bytes))} to write"
    lines = []
    if estimate.sentences:
        lines.append(
            f"Remaining: about {number(_rounded(estimate.sentences))} sentences{tokens} "
            f"(± {max(estimate.error, 0.01):.0%}{looked}), {stored}."
        )
    elif estimate.stored_bytes:
        lines.append(f"Remaining: about {stored}.")
    sources: dict[str, list[str]] = {source: [] for source in (HERE, MACHINE, CARD, ASSUMED)}
    for stage, one in estimate.stages.items():
        if one.seconds:
            sources[one.source].append(stage)
    rates = "; ".join(f"{', '.join(stages)} {source}" for source, stages in sources.items() if stages)
    if rates:
        lines.append(f"Times are for one worker. Rates: {rates}.")
    if sources[CARD] or sources[ASSUMED]:
        lines.append(
            "Rates that were not measured may be far off; --calibrate measures segment, encode and autobleu in seconds."
        )
    return "\n".join(lines)


def _unit(work: StageWork) -> str:
    return "fit" if work.stage in ONLY_FITS else {"segment": "chunk"}.get(work.stage, "part")


def large(value: float) -> str:
    """Format a large number: `310 billion`, `3.25 million`, `12 345`."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= unit:
            return f"{value / unit:.3g} {name}" if value < 1000 * unit else f"{number(value / unit)} {name}"
    return number(value)
