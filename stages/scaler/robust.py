"""The robust scaler, LCM 2.3.1: exact medians and interquartile ranges by counting.

A float16 has 65 536 values, so counting them gives exact quantiles of any number of rows in the memory of the counts:
dim · 65 536 · 4 bytes (268 MB at 1024) and one block of rows (270 MB). The dimensions are divided among the cores;
integers make the result independent of which core counted what, and of the batches in which the rows came.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from stages.artifact import from_bytes, to_bytes
from stages.cores import cores

BLOCK_BYTES = 1 << 28  # rows that are counted at once: adding up 65 536 counts per dimension is then a small part
TILE, STRIP = 32, 512  # dimensions (one cache line of each row) and rows that are transposed at once
VALUES = 1 << 16
INFINITY = 0x7C00  # bits of the first positive float16 that is not finite
SIGN = 0x8000
# Bit patterns of all finite values in ascending order: −65504 … −0, +0 … 65504.
ASCENDING = np.concatenate([np.arange(SIGN + INFINITY - 1, SIGN - 1, -1), np.arange(INFINITY)])
ASCENDING_VALUES = ASCENDING.astype(np.uint16).view(np.float16).astype(np.float64)


@dataclass(frozen=True)
class RobustScaler:
    """Normalises embeddings. `median`, `iqr`: (dim,) float32.

    `clip`: normalised values are limited to ±clip before and after, as in the LCM release; None: they are not.
    `constant`: (dim,) bool, the dimensions whose iqr would be 0 and is set to 1, so that they can be divided by it; it
    says nothing of their scale. None if not given.
    """

    median: torch.Tensor
    iqr: torch.Tensor
    clip: float | None = None
    rows: int = 0
    constant: torch.Tensor = field(default_factory=lambda: torch.tensor(False))

    @property
    def constant_dimensions(self) -> int:
        """The number of constant dimensions."""
        return int(self.constant.sum())

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise by LCM eq. 4: (…, dim) in any format → float32, on the same device."""
        return self._clipped((x.float() - self.median.to(x.device)) / self.iqr.to(x.device))

    def denormalize(self, x: torch.Tensor) -> torch.Tensor:
        """Undo LCM eq. 4: (…, dim) in any format → float32, on the same device."""
        return self.median.to(x.device) + self.iqr.to(x.device) * self._clipped(x.float())

    def _clipped(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def lcm_state(self) -> dict[str, torch.Tensor]:
        """Return the state of the LCM release's `SonarNormalizer`: architecture `base`, with clip `clipping`."""
        state = {"center": self.median, "scale": self.iqr}
        if self.clip is not None:
            state |= {
                "clip_min": torch.full_like(self.iqr, -self.clip),
                "clip_max": torch.full_like(self.iqr, self.clip),
            }
        return state

    def to_lcm(self) -> bytes:
        """Return the checkpoint for a `sonar_normalizer` card of the LCM release."""
        file = io.BytesIO()
        torch.save({"model": self.lcm_state()}, file)
        return file.getvalue()

    def to_bytes(self, provenance: Mapping[str, Any]) -> bytes:
        """Return the artifact's file."""
        numbers = {"rows": self.rows, "constant_dimensions": self.constant_dimensions}
        about = {"settings": {"clip": self.clip}, "numbers": numbers, "provenance": provenance}
        constant = self.constant.expand_as(self.median)
        return to_bytes("scaler", {"median": self.median, "iqr": self.iqr, "constant": constant}, about)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the scaler of a file. Raises ValueError if there is none."""
        tensors, about = from_bytes("scaler", data)
        if "constant" not in tensors:
            raise ValueError(
                "this scaler was fitted by an older version, which did not note its constant dimensions; fit it again"
            )
        clip, rows = about["settings"]["clip"], about["numbers"]["rows"]
        return cls(tensors["median"], tensors["iqr"], clip, rows, tensors["constant"])


class ScalerFit:
    """Counts embeddings of `dim` dimensions, batch after batch; `finish` returns their scaler."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.rows = 0
        self._counts = np.zeros((dim, VALUES), np.uint32)
        self._block = np.empty((max(1, BLOCK_BYTES // (2 * dim)), dim), np.uint16)
        self._filled = 0

    def add(self, embeddings: npt.NDArray[np.float16]) -> None:
        """Count (rows, dim) float16. Raises ValueError if a value is not finite (at the latest in `finish`)."""
        if embeddings.dtype != np.float16 or embeddings.ndim != 2 or embeddings.shape[1] != self.dim:
            raise ValueError(
                f"the scaler counts (rows, {self.dim}) float16; these are {embeddings.shape} {embeddings.dtype}"
            )
        values = embeddings.view(np.uint16)
        done = 0
        while done < len(values):
            taken = values[done : done + len(self._block) - self._filled]
            self._block[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            done += len(taken)
            if self._filled == len(self._block):
                self._count()

    def finish(self, clip: float | None = None) -> RobustScaler:
        """Return the scaler of all rows. Raises ValueError if there are none."""
        self._count()
        if not self.rows:
            raise ValueError(
                "the scaler got no rows; raise scaler.rows or fit.rows, or give inputs that hold sentences"
            )
        with ThreadPoolExecutor(cores()) as pool:
            found = list(pool.map(self._quartiles, range(self.dim)))
        lower, median, upper = np.array(found, np.float64).reshape(self.dim, 3).T
        iqr = upper - lower
        constant = iqr == 0
        iqr[constant] = 1
        return RobustScaler(
            torch.from_numpy(median.astype(np.float32)),
            torch.from_numpy(iqr.astype(np.float32)),
            clip=clip,
            rows=self.rows,
            constant=torch.from_numpy(constant),
        )

    def _count(self) -> None:
        """Add the block's values to the counts."""
        block = self._block[: self._filled]
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(lambda first: self._count_tile(block, first), range(0, self.dim, TILE)))
        exponents = self._counts.reshape(self.dim, 2, SIGN)
        if exponents[:, :, INFINITY:].any():
            bad = int((~np.isfinite(block.view(np.float16)).all(axis=1)).sum())
            raise ValueError(
                f"{bad} of {len(block)} rows hold values that are not finite; leave out rows whose status is non-finite"
            )
        self.rows += self._filled
        self._filled = 0

    def _count_tile(self, block: npt.NDArray[np.uint16], first: int) -> None:
        tile = block[:, first : first + TILE]
        columns = np.empty((tile.shape[1], len(tile)), np.intp)
        for start in range(0, len(tile), STRIP):  # transposed all at once it takes four times as long
            columns[:, start : start + STRIP] = tile[start : start + STRIP].T
        for dimension, column in enumerate(columns, first):
            counted = np.bincount(column)
            self._counts[dimension, : len(counted)] += counted.astype(np.uint32)

    def _quartiles(self, dimension: int) -> list[float]:
        """Return lower quartile, median and upper quartile of a dimension, interpolated linearly; exact in float64."""
        until = np.cumsum(self._counts[dimension, ASCENDING], dtype=np.int64)
        found = []
        for quarter in (1, 2, 3):
            below, rest = divmod((self.rows - 1) * quarter, 4)
            places = np.searchsorted(until, [below, min(below + 1, self.rows - 1)], side="right")
            low, high = ASCENDING_VALUES[places]
            found.append(float(low + (high - low) * rest / 4) + 0.0)  # + 0.0: no −0
        return found
