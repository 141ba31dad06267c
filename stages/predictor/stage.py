"""Predicts fragility and sample weight of every row, LCM 2.4.4, from embeddings alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.arrow import embedding_matrix
from stages.device import prepare_cuda
from stages.predictor.network import SCORES, Predictor
from stages.predictor.settings import PredictorSettings
from stages.stage import NON_FINITE, Computed

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PreparedPrediction:
    """The rows of a part. `embeddings`: (rows, dim) float16; `broken`: rows without an embedding."""

    embeddings: npt.NDArray[np.float16]
    broken: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Predicted:
    """Predicted fragility; fragility: (rows, 2)."""

    prepared: PreparedPrediction
    fragility: Floats


class Predict:
    """The predictor stage; see `PredictorSettings`. `predictor`: the bytes of the fit."""

    def __init__(self, settings: PredictorSettings, predictor: bytes) -> None:
        self.settings = settings
        self.predictor = Predictor.from_bytes(predictor)
        self.device = "cpu"

    def setup(self, device: str) -> None:
        """Move the network to the device."""
        prepare_cuda(device)
        self.device = device
        self.predictor.network.to(device)

    def prepare(self, part: pa.Table) -> PreparedPrediction:
        """Take the embeddings. Raises ValueError if they are not of the kind that the predictor was fitted on."""
        embeddings = embedding_matrix(part["embeddings.embedding"])
        if embeddings.shape[1] != self.predictor.dim:
            raise ValueError(
                f"the predictor was fitted on embeddings of {self.predictor.dim} dimensions, these have "
                f"{embeddings.shape[1]}; fit it again on this corpus (--refit)"
            )
        return PreparedPrediction(embeddings, part["status.status"].to_numpy() == NON_FINITE)

    def compute(self, prepared: PreparedPrediction) -> Predicted:
        """Run the network by blocks from the part's first row on."""
        return Predicted(prepared, self.predictor.predict(prepared.embeddings, self.device))

    def finish(self, computed: Predicted) -> Computed:
        """Return the columns; rows without an embedding have no prediction, and weight 0."""
        settings, broken = self.settings, computed.prepared.broken
        weight = self.predictor.weight(computed.fragility, settings.score, settings.a, settings.b)
        weight[broken] = 0
        by_score = {name: pa.array(computed.fragility[:, at], mask=broken) for at, name in enumerate(SCORES)}
        table = {f"fragility_predicted_{name}": column for name, column in by_score.items()}
        table |= {"fragility_predicted": by_score[settings.score], "weight": pa.array(weight)}
        kept = computed.fragility[~broken, SCORES.index(settings.score)]
        return Computed({"fragility-predicted": pa.table(table)}, _counts(kept, weight))

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count rows whose predictions are there."""
        found = families["fragility-predicted"]
        return _counts(found["fragility_predicted"].drop_null().to_numpy(), found["weight"].to_numpy())


def _counts(fragility: Floats, weight: Floats) -> dict[str, float]:
    """Return counts. fragility: of the rows that have one."""
    return {
        "predicted": float(len(fragility)),
        "fragility_predicted_sum": float(fragility.astype(np.float64).sum()),
        "weight_sum": float(weight.astype(np.float64).sum()),
    }
