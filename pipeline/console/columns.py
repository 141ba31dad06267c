"""Prints tables of figures that may be wider than the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from pipeline.base.formats import Figures

Line = tuple[Sequence[str], Sequence[str], bool]  # texts, figures, whether it is printed dim
_WIDEST = 10_000  # columns: as wide as a table wants to be


def print_columns(
    console: Console,
    heads: Sequence[str],
    titles: Sequence[str],
    lines: Iterable[Line],
    *,
    right: Collection[str] = (),
    padding: int = 1,
) -> None:
    """Print a table; if the terminal is too narrow for all figures, several, each with the first columns.

    Args:
        console: where it is printed.
        heads: titles of the columns of texts, which come first.
        titles: titles of the columns of figures.
        lines: the rows.
        right: those of `heads` whose column is aligned to the right.
        padding: blanks between columns.
    """
    lines = list(lines)
    start, end = 0, 0
    while not end or end < len(titles):
        start, end = end, len(titles)
        while True:
            table = Table(box=None, padding=(0, padding, 0, 0), header_style="bold")
            for head in heads:
                aligned: JustifyMethod = "right" if head in right else "left"
                table.add_column(escape(head), justify=aligned, vertical="bottom", overflow="fold")
            for title in titles[start:end]:
                table.add_column(escape(title), justify="right", vertical="bottom", no_wrap=True)
            for texts, figures, dim in lines:
                table.add_row(*map(Figures, texts), *figures[start:end], style="dim" if dim else None)
            wide = console.options.update(width=_WIDEST)
            if end <= start + 1 or Measurement.get(console, wide, table).maximum <= console.width:
                break
            end -= 1
        console.print(table)
        if not titles:
            return
