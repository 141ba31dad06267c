"""Settings of the robust scaler. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import ClassVar

from stages.stage import FitSettings, meaning


class ScalerSettings(FitSettings):
    """Median and interquartile range of every dimension, LCM 2.3.1: a fit only, it adds no column."""

    name: ClassVar[str] = "scaler"
    version: ClassVar[int] = 1

    rows: int = meaning(1_000_000, ge=1, description="about how many rows of the pilot to fit on; all if it has fewer")
    clip: float | None = meaning(
        None, gt=0, description="normalised values are cut to ±clip; null: not at all, as in the LCM paper"
    )
