"""The table of an evaluation on terminals of any width."""

from __future__ import annotations

import io

from rich.console import Console

from pipeline.training.evaluation.measure import MetricValue
from pipeline.training.evaluation.table import ResultRow, show


def test_a_narrow_terminal_cuts_neither_names_nor_figures() -> None:
    names = ("l2", "l2_squared", "l2_r", "par", "ca", "ca_cosine", "top1")
    figures = {
        name: MetricValue(0.123456, 0.0123, 20, groups={"deu_Latn": MetricValue(0.654321, 0.01, 20)}) for name in names
    }
    narrow = Console(file=io.StringIO(), width=60)
    show(narrow, {"a model": ResultRow(figures, steps=3)}, {"said": "", "sentences": 20, "by": "lang"})
    assert isinstance(narrow.file, io.StringIO)
    said = narrow.file.getvalue()
    assert (
        "…" not in said and said.count("0.65 ±0.02") == said.count("0.12 ±0.02") == 4 and said.count("65.4% ±2.0") == 3
    )
    assert all(len(line) <= 60 for line in said.splitlines()) and said.count("deu_Latn") == said.count("lang ") > 1
