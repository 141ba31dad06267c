"""What a report is told of the fits: plain numbers, so that it need not know how they are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RELATIVE_ERROR = "relative_error"  # Σ‖x − x̂‖² / Σ‖x‖² with the first 1, 2, … codebooks
AUTOBLEU = "autobleu"  # 0–100, of dequantised embeddings
CODEBOOKS = "codebooks"  # how many codebooks each AutoBLEU stands for; 1, 2, … if it is not given
AUTOBLEU_EXACT = "autobleu_exact"  # of the same embeddings before they were quantised


@dataclass(frozen=True)
class FitSummary:
    """One fitted artifact: what it was fitted on, and its numbers.

    Of the fit `rvq`, the lists `relative_error` and `autobleu` are drawn (LCM paper, Figure 9).
    """

    name: str
    rows: int
    chunks: int
    numbers: Mapping[str, float | Sequence[float]]
    fingerprint: str

    def held_out(self, score: str) -> tuple[float, int] | None:
        """Of a predictor: (Pearson correlation, sentences) on those that it was not trained on; None if not known."""
        correlation, rows = self.numbers.get(f"pearson_{score}"), self.numbers.get("held_out_rows")
        if isinstance(correlation, float) and isinstance(rows, float) and math.isfinite(correlation):
            return correlation, int(rows)
        return None

    def curve(self, name: str) -> tuple[list[float], list[float]] | None:
        """(numbers of codebooks, values) of a list; None if it was not measured."""
        values = self.numbers.get(name)
        if not isinstance(values, Sequence) or not values:
            return None
        places = self.numbers.get(CODEBOOKS) if name == AUTOBLEU else None
        at = places if isinstance(places, Sequence) else range(1, len(values) + 1)
        return [float(place) for place in at], [float(value) for value in values]


@dataclass(frozen=True)
class Drift:
    """One measure of a fit: what it was on the rows of the fit, and what it is on data that came later."""

    fit: str
    measure: str
    fitted: float
    now: float
    drifted: bool
