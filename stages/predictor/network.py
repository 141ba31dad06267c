"""The predictor of fragility, F in LCM 2.4.4: an MLP of three layers over a normalised embedding, one output per score.

It takes 6 · 10⁵ products per embedding of 1024 with 512 hidden values: a ten-thousandth of encoding it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stages.artifact import from_bytes, to_bytes
from stages.device import without_memory
from stages.scaler.robust import RobustScaler

SCORES = ("bleu", "cosine")  # in the order of outputs
BLOCK_ROWS = 8192
_NETWORK = "network."


class PredictorNetwork(nn.Module):
    """(rows, dim) normalised → (rows, 2) standardised fragility.

    Args:
        dim: the width of embeddings.
        hidden: the width of the two hidden layers.
        dropout: the share of values that are dropped in training.
    """

    def __init__(self, dim: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, len(SCORES)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs; see the class for shapes."""
        y: Tensor = self.layers(x)
        return y


@dataclass(frozen=True)
class Predictor:
    """A fitted predictor. `center`, `scale`: (2,) of the measured scores, which standardise the network's outputs.

    `mean`, `std`: (2,) of the predictions over the sample, which standardise weights.
    """

    scaler: RobustScaler
    network: PredictorNetwork
    center: Tensor
    scale: Tensor
    mean: Tensor
    std: Tensor
    settings: Mapping[str, Any]
    numbers: Mapping[str, float]

    @property
    def dim(self) -> int:
        """The dimension of the embeddings."""
        return len(self.scaler.median)

    @torch.inference_mode()
    def predict(self, embeddings: npt.NDArray[np.float16], device: str) -> npt.NDArray[np.float32]:
        """Predict fragility as in eq. 26, in [−1, 0]: (rows, dim) → (rows, 2); by blocks from the first row on."""
        found = np.empty((len(embeddings), len(SCORES)), np.float32)
        for start in range(0, len(embeddings), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            x = self.scaler.normalize(torch.from_numpy(embeddings[rows].copy()).to(device))
            found[rows] = (self.network(x).cpu() * self.scale + self.center).clamp(-1, 0).numpy()
        return found

    def weight(self, predicted: npt.NDArray[np.float32], score: str, a: float, b: float) -> npt.NDArray[np.float32]:
        """Return the sample weight ω by the chosen score: LCM eq. 25 over F standardised on the sample.

        Eq. 26 gives F in [−1, 0], for which the paper's a = −4, b = 3.5 would give every row a weight of 0.97 to 1.
        Standardised, z = 2, very fragile, has 0.01, z = 1 has 0.38 and z = 0 has 0.97, as in Figure 12.

        Args:
            predicted: (rows, 2), what the network predicts of both scores.
            score: the chosen one of `SCORES`.
            a: the slope.
            b: the offset.

        Returns:
            (rows,) float32 in (0, 1).
        """
        at = SCORES.index(score)
        z = (predicted[:, at].astype(np.float64) - float(self.mean[at])) / float(self.std[at])
        return (1 / (1 + np.exp(-(a * z + b)))).astype(np.float32)

    def to_bytes(self, provenance: Mapping[str, Any]) -> bytes:
        """Return the artifact's file."""
        tensors = {_NETWORK + name: value for name, value in self.network.state_dict().items()}
        tensors |= {"median": self.scaler.median, "iqr": self.scaler.iqr}
        tensors |= {"center": self.center, "scale": self.scale, "mean": self.mean, "std": self.std}
        settings = {**self.settings, "clip": self.scaler.clip}
        return to_bytes(
            "predictor", tensors, {"settings": settings, "numbers": dict(self.numbers), "provenance": provenance}
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the predictor of a file. Raises ValueError if it is not one."""
        tensors, about = from_bytes("predictor", data)
        settings = dict(about["settings"])
        scaler = RobustScaler(tensors["median"], tensors["iqr"], settings.pop("clip"))
        with without_memory():  # numbers that the weights do not bear out take no memory
            network = PredictorNetwork(len(scaler.median), int(settings["hidden"]))
        weights = {name.removeprefix(_NETWORK): one for name, one in tensors.items() if name.startswith(_NETWORK)}
        try:
            network.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ValueError(f"the predictor's weights do not fit its numbers ({error}); fit it again") from error
        rest = {name: tensors[name] for name in ("center", "scale", "mean", "std")}
        network.eval().requires_grad_(False)
        return cls(scaler, network, **rest, settings=settings, numbers=about["numbers"])
