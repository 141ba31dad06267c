"""The tables of quality on terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pipeline.quality.inspect import show_quality, show_scores
from pipeline.quality.measures import Group, Quality, ScoreSummary

QUANTILES = (10.1, 25.2, 50.3, 75.4, 90.5)


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_narrow_terminal_cuts_neither_names_nor_figures(width: int) -> None:
    group = Group("eng_Latn", 1_234_567, 28.3, 987_654, 97.6, QUANTILES, 0.02)
    console = Console(file=io.StringIO(), width=width)
    show_quality(console, Quality([group], [group], group, 7, 7), {"eng_Latn": 88.5})
    show_scores(console, [ScoreSummary("fragility_predicted", 987_654, 97.6, QUANTILES)])
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert all(len(line) <= width for line in said.splitlines()) and "…" not in said
    assert all(said.count(f" {value}") == 3 for value in (97.6, *QUANTILES))
    assert all(said.count(name) == 3 for name in ("mean", "p10", "p25", "p50", "p75", "p90"))
    assert (said.count("eng_Latn") == 2) == (width >= 80)
