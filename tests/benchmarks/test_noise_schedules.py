"""The figure of noise schedules is drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.benchmarks import run


@pytest.mark.slow
def test_figure_5_and_its_numbers(tmp_path: Path) -> None:
    out = run("noise_schedules", str(tmp_path / "schedules.svg"))
    rows = re.findall(r"^(\w.*?) +(-?[\d.]+) +([\d.]+) +-[\d.]+ +[\d.]+$", out, re.MULTILINE)
    numbers = {name: (float(mean), float(std)) for name, mean, std in rows}
    assert len(numbers) == 7
    assert numbers["Sigmoid(0.8, -1)"][0] == -1
    assert numbers["Sigmoid(0.8, -1)"][1] < numbers["Cosine"][1] < numbers["Sigmoid(3.5, 0)"][1]
    svg = (tmp_path / "schedules.svg").read_text()
    assert all(name in svg for name in numbers)
