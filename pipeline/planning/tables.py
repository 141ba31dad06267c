"""The table of `pipeline plan`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.base.formats import counted, duration, number
from pipeline.planning.plan import Plan
from pipeline.planning.reasons import StageWork


def show_plan(console: Console, plan: Plan) -> None:
    """The table of `pipeline plan`."""
    table = Table(title=f"Plan for {escape(plan.config.output)}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("stage", "done", "to do", "sentences to do", "measured", "time"):
        table.add_column(column, justify="right" if column != "stage" else "left", overflow="fold")
    unknown = bool(plan.chunks_to_segment())
    for work in plan.work.values():
        table.add_row(*_plan_row(work, unknown))
    console.print(table)
    reasons = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title="\nWhy", title_justify="left")
    for work in plan.work.values():
        for reason, count in (+work.reasons).most_common(4):
            reasons.add_row(work.stage, f"{escape(reason)} ({counted(count, _unit(work))})")
    if reasons.row_count:
        console.print(reasons)
    if plan.nothing_to_do:
        console.print("Nothing to do.")


def _plan_row(work: StageWork, unknown: bool) -> tuple[str, ...]:
    more = " + what segmenting brings" if unknown and work.stage not in ("segment", "scaler") else ""
    return (
        work.stage,
        counted(work.done, _unit(work)),
        counted(work.left, _unit(work)),
        number(work.sentences_left) + more,
        f"{'about ' * work.guessed}{number(work.rate)}/s" if work.rate else "–",
        duration(work.seconds_left) if work.seconds_left else "–",
    )


def _unit(work: StageWork) -> str:
    return {"segment": "chunk", "scaler": "fit"}.get(work.stage, "part")
