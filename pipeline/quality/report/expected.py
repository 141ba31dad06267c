"""Makes the section on what was expected of a corpus, and what the first screen says of it."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.report import MEASURES, measure_of
from pipeline.quality.expectations import FEW, Expectation
from pipeline.quality.report.page import Block, Cell, Note, Said, Section, Table, counted

BROKEN = 5  # in the notes on the first screen


def broken_expectations(found: Sequence[Expectation]) -> list[Note]:
    """Say which expectations do not hold, or that all do."""
    failing = [one for one in found if not one.holds]
    if found and not failing:
        return [Note(f"All {counted(len(found), 'expectation')} hold.", "good")]
    more = len(failing) - BROKEN
    rest = [Note(f"{counted(more, 'more expectation')} not met: see below.", "bad")] if more > 0 else []
    return [*(Note(f"{one.said()}.", "bad") for one in failing[:BROKEN]), *rest]


def expectations(found: Sequence[Expectation]) -> Section | None:
    """Show each expectation with its value and limit."""
    if not found:
        return None
    rows: list[list[Cell]] = [
        [
            f"{'✓' if one.holds else '✗'} {one.measure}",
            MEASURES[measure_of(one.measure)[0]].about,
            Said(one.group or one.why),
            one.shown,
            one.limit,
        ]
        for one in found
    ]
    blocks: list[Block] = [Table(("measure", "what it is", "where", "value", "expected"), rows, text=3)]
    lead = (
        "What `report.expect` of the corpus.yaml says. Of measures by language and by source, each with at least "
        f"{FEW} measured sentences must satisfy the limit, and the worst one is shown."
    )
    return Section("expectations", "Expectations", lead, blocks)
