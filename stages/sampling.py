"""Samples of rows: those whose u (`sentences.u`, uniform in [0, 1)) is below a rate, so that all samples are nested.

u is a hash of the document's id and the sentence's position, so adding documents does not change that of any other row.

A section gives a share, `sample: 0.01`, or a number, `sample: {rows: 50_000}`. A number becomes a rate once the rows of
the corpus are known; stages get only rates.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import numpy as np
import numpy.typing as npt
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


def document_seed(doc_id: str) -> int:
    """Return 64 bits of the hash of a document's id."""
    return int.from_bytes(hashlib.blake2b(doc_id.encode(), digest_size=8, person=b"row-u").digest(), "little")


def uniform(seeds: npt.NDArray[np.uint64], position: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return hash(doc_id, position) in [0, 1): the finaliser of SplitMix64, of which 53 bits are used."""
    with np.errstate(over="ignore"):
        z = seeds + (position.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    u: npt.NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return u
