"""Prints the tables of `pipeline compare-segmenters`: 80 columns with four methods, and no text of documents."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline.base.formats import counted, number
from pipeline.quality.compare.sample import TextSample
from pipeline.quality.compare.scores import Scored


def show_sample(console: Console, name: str, sample: TextSample) -> None:
    """Show what is compared, and what could not be used.

    Args:
        console: where it is shown.
        name: the name of the corpus.
        sample: the texts.
    """
    console.print(f"Sample of [bold]{escape(name)}[/]: {sample.describe()}", highlight=False)
    if sample.skipped:
        reasons = ", ".join(f"{reason} {number(count)}" for reason, count in sample.skipped.most_common())
        console.print(Text(f"skipped {counted(sample.skipped.total(), 'record')}: {reasons}", style="yellow"))


def show_methods(console: Console, scored: list[Scored], max_chars: int, models: str) -> None:
    """Show a table with a column for each method and a row for each figure.

    Args:
        console: where the table is printed.
        scored: the methods with their scores.
        max_chars: the longest sentence that is allowed, in characters.
        models: what encoded and decoded the sentences.
    """

    def length(share: float) -> Callable[[Scored], str]:
        return lambda one: number(float(np.quantile(one.chars, share)))

    rows: dict[str, Callable[[Scored], str]] = {
        "sentences": lambda one: number(len(one.chars)),
        "characters: median": length(0.5),
        "  95 % have at most": length(0.95),
        "  longest": length(1.0),
        f"over {max_chars} characters": lambda one: f"{100 * float((one.chars > max_chars).mean()):.1f} %",
        "broken by the cap": lambda one: number(one.cut.segmented.cap_splits),
        "cut without a boundary": lambda one: number(one.cut.segmented.hard_cuts),
        "truncated by the encoder": lambda one: number(one.truncated),
        "AutoBLEU, mean of sentences": lambda one: _score(one.mean()),
        "  weighted by characters": lambda one: _score(one.mean(by_characters=True)),
        "segmenting, MB/s": lambda one: f"{one.cut.speed:.3g}",
        "encoding + decoding, s": lambda one: f"{one.seconds:.1f}",
    }
    if any(one.unscored for one in scored):
        rows["embedding not finite, no score"] = lambda one: number(one.unscored)
    table = _table("", scored)
    for label, cell in rows.items():
        table.add_row(label, *map(cell, scored))
    console.print(Group("", table))
    console.print(Text(f"AutoBLEU by {models}", style="dim"))


def show_lengths(console: Console, scored: list[Scored], max_chars: int) -> None:
    """Show average AutoBLEU by sentence length, with the number of sentences behind it (Figure 3 of the paper).

    Args:
        console: where the table is printed.
        scored: the methods with their scores.
        max_chars: the longest sentence that is allowed, in characters.
    """
    columns = [one.by_length(max_chars) for one in scored]
    widest = max(len(number(length.sentences)) for column in columns for length in column)
    table = _table("characters", scored)
    for row in zip(*columns, strict=True):
        name = f"{row[0].first}–{row[0].last}" if row[0].last else f"{row[0].first}+"
        cells = (Text(_score(one.mean)).append(f" {number(one.sentences):>{widest + 2}}", "dim") for one in row)
        table.add_row(name, *cells)
    console.print(Group("", Text("Average AutoBLEU by length, and number of sentences", style="bold"), table))


def _table(first: str, scored: list[Scored]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for one in scored:
        table.add_column(one.method, justify="right", no_wrap=True)
    return table


def _score(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"
