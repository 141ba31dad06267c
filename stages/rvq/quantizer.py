"""The row stage of residual vector quantisation: one uint16 code per codebook for every sentence, LCM 2.3.5.

Every row gets codes, even if its embedding is not finite (zeros): readers check the status. The receipt has the squared
error and the squared norm of the finite rows; comparing their ratio with that of the fit says whether the codebooks
suit later data. Costs: see `codebooks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.arrow import embedding_matrix
from stages.device import prepare_cuda
from stages.rvq.codebooks import CHUNK, Codebooks
from stages.rvq.settings import RvqSettings
from stages.stage import NON_FINITE, Computed


@dataclass(frozen=True)
class PreparedRows:
    """The rows of a part. embeddings: (rows, dim) float16; finite: (rows,) bool."""

    embeddings: npt.NDArray[np.float16]
    finite: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Quantised:
    """The codes of a part. codes: (rows, codebooks) uint16; counts: for the receipt."""

    codes: npt.NDArray[np.uint16]
    counts: dict[str, float]


class Rvq:
    """The stage; see `RvqSettings`."""

    def __init__(self, settings: RvqSettings, codebooks: Codebooks) -> None:
        found = tuple(codebooks.centroids.shape[:2])
        if found != (settings.codebooks, settings.units):
            raise ValueError(
                f"rvq.codebooks and rvq.units are {settings.codebooks} and {settings.units}, those of the artifact "
                f"{found}; give the section its numbers"
            )
        self.settings = settings
        self.codebooks = codebooks

    def setup(self, device: str) -> None:
        """Move the centroids to the device."""
        prepare_cuda(device)
        self.codebooks = self.codebooks.to(device)

    def prepare(self, part: pa.Table) -> PreparedRows:
        """Take the matrix of embeddings, without a copy."""
        return PreparedRows(
            embedding_matrix(part["embeddings.embedding"]), part["status.status"].to_numpy() != NON_FINITE
        )

    def compute(self, prepared: PreparedRows) -> Quantised:
        """Find the nearest centroids, codebook after codebook."""
        codes, errors = self.codebooks.quantise(prepared.embeddings, self.settings.precision)
        return Quantised(codes, _counts(prepared, errors))

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count rows whose codes are there: sums of centroids are compared with the embeddings."""
        prepared = self.prepare(part)
        codes = _codes(families["codes"]["codes"])
        errors = np.zeros(len(codes), np.float32)
        for start in range(0, len(codes), CHUNK):
            rows = slice(start, start + CHUNK)
            rest = prepared.embeddings[rows].astype(np.float32) - self.codebooks.decode(codes[rows]).cpu().numpy()
            errors[rows] = np.einsum("ij,ij->i", rest, rest)
        return _counts(prepared, errors)

    def finish(self, computed: Quantised) -> Computed:
        """Return the column of codes."""
        codes = computed.codes
        values = pa.field("element", pa.uint16(), nullable=False)
        column = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), type=pa.list_(values, codes.shape[1]))
        return Computed({"codes": pa.table({"codes": column})}, computed.counts)


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.uint16]:
    """Return (rows, codebooks) codes of a column."""
    array = column.combine_chunks()
    return np.asarray(array.flatten().to_numpy()).reshape(-1, array.type.list_size)


def _counts(prepared: PreparedRows, errors: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return counts of the finite rows; errors: (rows,) squared."""
    finite = prepared.embeddings[prepared.finite]
    return {
        "rvq.squared_error": float(errors[prepared.finite].sum(dtype=np.float64)),
        "rvq.squared_norm": float(np.einsum("ij,ij->i", finite, finite, dtype=np.float32).sum(dtype=np.float64)),
    }
