"""Gives each row a number u = hash(doc_id, position) in [0, 1); a sample takes the rows whose u is below its rate.

So every sample is contained in every larger one, and adding documents does not change the number of any other row.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


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
