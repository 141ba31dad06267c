"""Samples of rows: those whose u (`sentences.u`, uniform in [0, 1)) is below a rate, so that all samples are nested.

A section gives a share, `sample: 0.01`, or a number, `sample: {rows: 50_000}`. A number becomes a rate once the rows of
the corpus are known; stages get only rates.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stages.stage import Settings, meaning


class Rows(Settings):
    """A sample of about this many rows of the whole corpus."""

    rows: int = meaning(ge=1, description="about how many rows of the whole corpus; all if it has fewer")


Sample = Annotated[float, Field(gt=0, le=1)] | Rows


def rate(sample: Sample, key: str) -> float:
    """Return the share of rows to take. Raises ValueError for a number of rows that has not become a rate yet."""
    if isinstance(sample, Rows):
        raise ValueError(
            f"{key} is {{rows: {sample.rows}}}, which is not a rate yet; give a share between 0 and 1 here"
        )
    return sample
