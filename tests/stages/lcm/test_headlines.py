"""Headlines: against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from stages.lcm import headlines as module
from stages.lcm.headlines import headlines

DIM = 16


@pytest.mark.parametrize("size", [2, 5, 1024])
def test_the_headline_is_nearest_to_the_mean_and_the_first_of_equal_ones(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE", size)
    random = np.random.default_rng(0)
    x = random.normal(size=(40, DIM)).astype(np.float16)
    x[7] = x[6]
    starts = np.asarray([0, 1, 3, 6, 8, 20])
    found = headlines(x, starts)
    for start, end, one in zip(starts, [*starts[1:], 40], found, strict=True):
        paragraph = x[start:end].astype(np.float64)
        distances = [float(((row - paragraph.mean(0)) ** 2).sum()) for row in paragraph]
        assert one == start + int(np.argmin(distances))
    assert found[3] == 6 and found[0] == 0
