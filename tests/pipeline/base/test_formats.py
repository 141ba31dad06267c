"""What people read is not misread: a number stays whole where a table is narrow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from pipeline.base.formats import Figures, duration, number, size


@pytest.mark.parametrize("width", [12, 14, 17, 60])
def test_no_line_of_a_narrow_table_ends_within_a_number(width: int) -> None:
    units = (f"about {number(1_234_500)}", duration(725), duration(7800), duration(10), size(3100))
    console = Console(file=(shown := io.StringIO()), width=width)
    table = Table(box=None, show_header=False, padding=0)
    table.add_column(justify="right", overflow="fold")
    table.add_row(Figures(f"[b] {', '.join(units)}"))
    console.print(table)
    lines = shown.getvalue().splitlines()
    for unit in (number(1_234_500), *units[1:]):
        assert sum(unit in line for line in lines) == 1, shown.getvalue()
    assert " ".join(shown.getvalue().split()) == f"[b] {', '.join(units)}"
