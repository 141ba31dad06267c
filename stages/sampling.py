"""Samples of rows: those whose u (`sentences.u`, uniform in [0, 1)) is below a rate, so that all samples nest.

A section says how many as a share, `sample: 0.01`, or as a number, `sample: {rows: 50_000}`. A number becomes a rate
once the rows of the corpus are known; stages are given rates only.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stages.stage import Settings, meaning


class Rows(Settings):
    """A sample of about that many rows of the whole corpus."""

    rows: int = meaning(ge=1, description="about how many rows of the whole corpus; all if it has fewer")


Sample = Annotated[float, Field(gt=0, le=1)] | Rows


def rate(sample: Sample, key: str) -> float:
    """The share of rows to take. Raises ValueError for a number of rows that nobody has made a rate of yet."""
    if isinstance(sample, Rows):
        raise ValueError(f"{key} is {{rows: {sample.rows}}}, which is no rate yet; give a share between 0 and 1 here")
    return sample
