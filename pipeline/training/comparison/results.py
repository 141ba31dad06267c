"""What a comparison found so far, on disk, and what follows from it: means over seeds, and what became of claims."""

from __future__ import annotations

import math
import statistics
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.config.science import Claim

Verdict = Literal["confirmed", "refuted", "undecided", "not measured"]


class Figure(BaseModel):
    """A number, and its standard error (over documents; 0: it has none)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    mean: float
    error: float = 0.0


class Found(BaseModel):
    """Of one row and seed. asked: digest of all that it depends on."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    asked: str
    steps: int
    figures: dict[str, Figure]


class Results(BaseModel):
    """results.json: steps of each row where they follow from the clock, and row → seed → what was found."""

    model_config = ConfigDict(strict=True, extra="forbid")

    about: dict[str, str] = Field(default_factory=dict)
    steps: dict[str, int] = Field(default_factory=dict)
    rows: dict[str, dict[str, Found]] = Field(default_factory=dict)
    baselines: dict[str, Found] = Field(default_factory=dict)

    def figure(self, metric: str, row: str) -> Figure | None:
        """The mean over seeds; its standard error is that over documents, the mean of the seeds', and that of the
        seeds' spread, in quadrature. None: nobody has measured it.
        """
        of_seeds = [self.baselines[row]] if row in self.baselines else list(self.rows.get(row, {}).values())
        values = [one.figures[metric] for one in of_seeds if metric in one.figures]
        if not values:
            return None
        means = [one.mean for one in values]
        spread = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        documents = statistics.mean(one.error for one in values)
        return Figure(mean=statistics.mean(means), error=math.hypot(spread, documents))

    def verdict(self, claim: Claim) -> tuple[Verdict, str]:
        """Whether the difference exceeds two standard errors, taken as those of two independent figures, and which."""
        smaller, larger = self.figure(*claim.smaller), self.figure(*claim.larger)
        if smaller is None or larger is None:
            return "not measured", "–"
        difference, error = larger.mean - smaller.mean, 2 * math.hypot(smaller.error, larger.error)
        verdict: Verdict = "confirmed" if difference > error else "refuted" if difference < -error else "undecided"
        return verdict, f"{difference:+.4g} ± {error:.2g}"
