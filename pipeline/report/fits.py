"""What a report is told of the fits: plain numbers, so that it need not know how they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RELATIVE_ERROR = "relative_error"  # Σ‖x − x̂‖² / Σ‖x‖² with the first 1, 2, … codebooks
AUTOBLEU = "autobleu"  # 0–100, of dequantised embeddings
CODEBOOKS = "codebooks"  # how many codebooks each of those stands for; 1, 2, … if it is not given


@dataclass(frozen=True)
class FitSummary:
    """One fitted artifact: what it was fitted on, and its numbers.

    Of the fit `rvq`, the lists `relative_error`, `autobleu` and `codebooks` are drawn (Figure 9 of the LCM paper).
    """

    name: str
    rows: int
    chunks: int
    numbers: Mapping[str, float | Sequence[float]]
    fingerprint: str

    def curve(self, name: str) -> tuple[list[float], list[float]] | None:
        """(numbers of codebooks, values) of a list; None if it was not measured."""
        values = self.numbers.get(name)
        if not isinstance(values, Sequence) or not values:
            return None
        places = self.numbers.get(CODEBOOKS)
        found = [float(place) for place in places] if isinstance(places, Sequence) else []
        at = found if len(found) == len(values) else [float(place + 1) for place in range(len(values))]
        return at, [float(value) for value in values]


@dataclass(frozen=True)
class Drift:
    """One measure of a fit: what it was on the rows of the fit, and what it is on data that came later."""

    fit: str
    measure: str
    fitted: float
    now: float
    drifted: bool
