"""Prints tables of quality scores, and of the worst sentences. Text of documents is data, never markup."""

from __future__ import annotations

import math

from rich.console import Console, Group
from rich.text import Text

from pipeline.base.formats import counted, number, plain
from pipeline.console.tables import print_columns
from pipeline.quality.measures import QUANTILES, Quality, ScoredRow, ScoreSummary
from pipeline.quality.measures import Group as QualityGroup

COUNTS = ("sentences", "tokens", "scored")  # columns that are shown even if nothing is scored


def show_quality(console: Console, quality: Quality, bleu: dict[str, float] | None, *, lengths: bool = True) -> None:
    """Show AutoBLEU by language and by length.

    Args:
        console: where the tables are printed.
        quality: the quantiles.
        bleu: language → corpus BLEU; None if it is not that of these rows.
        lengths: whether the table by length is shown.
    """
    narrow = console.width < 100
    tables = [("language", quality.by_lang, bleu), ("characters", quality.by_length, None)]
    for title, groups, of_lang in tables if lengths else tables[:1]:
        rows = [_quality_cells(group, of_lang) for group in groups]
        if not quality.everything.scored:
            rows = [{name: one[name] for name in COUNTS} for one in rows]
        titles = [name.replace(" ", "\n") if narrow else name for name in rows[0]] if rows else []
        lines = [([group.name], list(cells.values()), False) for group, cells in zip(groups, rows, strict=True)]
        console.print()
        print_columns(console, [title], titles, lines, padding=1 if narrow else 2)
    if not quality.everything.scored:
        console.print(_unscored(quality), highlight=False, soft_wrap=True)
    if quality.rows_read < quality.rows:
        console.print(f"(from {number(quality.rows_read)} of {number(quality.rows)} rows; --max-rows reads more)")


def _unscored(quality: Quality) -> str:
    """Say why no AutoBLEU is shown."""
    if quality.unscored_parts:
        have = "has" if quality.unscored_parts == 1 else "have"
        return (
            f"AutoBLEU is shown once every part has it; {counted(quality.unscored_parts, 'part')} {have} none yet: run "
            "again."
        )
    if quality.least_sample is None:
        return "No sentence has an AutoBLEU yet: add a section `autobleu` if there is none, and run again."
    of = counted(quality.everything.sentences, "sentence")
    return (
        f"No sentence has an AutoBLEU: the sample of autobleu drew none of the {of} here. Of these, "
        f"`autobleu: {{sample: {quality.least_sample}}}` draws at least one, `sample: 1.0` all."
    )


def _quality_cells(group: QualityGroup, bleu: dict[str, float] | None) -> dict[str, str]:
    """Return column → cell."""

    def shown(value: float, form: str = ".1f") -> str:
        return "–" if math.isnan(value) else f"{value:{form}}"

    counts = (number(group.sentences), shown(group.tokens), number(group.scored))
    cells = dict(zip(COUNTS, counts, strict=True))
    if bleu is not None:
        cells["corpus BLEU"] = shown(bleu.get(group.name, float("nan")))
    cells["mean"] = shown(group.mean)
    cells |= {f"p{share:.0%}"[:-1]: shown(value) for share, value in zip(QUANTILES, group.quantiles, strict=True)}
    return cells | {"below 20": shown(group.poor, ".0%")}


def show_scores(console: Console, scores: list[ScoreSummary]) -> None:
    """Show every column of scores, if there are more than AutoBLEU's."""
    titles = ["scored", "mean", *(f"p{share:.0%}"[:-1] for share in QUANTILES)]
    lines = []
    for one in scores:
        form = ".1f" if one.name == "autobleu" else ".3f"
        figures = [number(one.scored), *(f"{value:{form}}" for value in (one.mean, *one.quantiles))]
        lines.append(([one.name], figures, False))
    if any(one.name != "autobleu" for one in scores):
        console.print()
        print_columns(console, ["score"], titles, lines, padding=2)


def show_rows(console: Console, title: str, rows: list[ScoredRow]) -> None:
    """Show sentences with what their embeddings decode to.

    Args:
        console: where they are shown.
        title: the line above them.
        rows: the sentences.
    """
    console.print(Group("", Text(title, style="bold")))
    width = max(40, console.width - 12)
    for row in rows:
        console.print(Text(f"{row.autobleu:6.1f}  ", style="bold") + Text(plain(row.text, width)))
        console.print(Text(f"     →  {plain(row.decoded, width)}", style="dim"))
        console.print(Text(f"        {row.lang}, part {row.part}, row {row.row}", style="dim italic"))
