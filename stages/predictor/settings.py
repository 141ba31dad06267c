"""Settings of the predictor of fragility. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from stages.stage import FitSettings, StageSettings, meaning

LEAST_ROWS = 100  # with a score, to learn from


class PredictorSettings(FitSettings, StageSettings):
    """Embeddings → fragility without decoding, LCM 2.4.4: fitted on the rows that have been scored, then for all rows.

    Adds `fragility-predicted.fragility_predicted` and `fragility-predicted.weight`.
    """

    name: ClassVar[str] = "predictor"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("embeddings.embedding", "status.status")
    writes: ClassVar[tuple[str, ...]] = ("fragility-predicted",)
    fits: ClassVar[tuple[str, ...]] = ("predictor",)
    applied: ClassVar[tuple[str, ...] | None] = ("score", "a", "b")
    only_applied: ClassVar[tuple[str, ...]] = ("score", "a", "b")  # the network is the same whatever they are

    rows: int = meaning(
        50_000_000,
        ge=LEAST_ROWS,
        description="about how many rows of the pilot to read; the scored ones among them are learned from",
    )
    score: Literal["cosine", "bleu"] = meaning(
        "cosine", description="which fragility `fragility_predicted` and `weight` are about"
    )
    a: float = meaning(-4.0, lt=0, description="weight = sigmoid(a · z + b), z the predicted fragility, standardised")
    b: float = meaning(3.5, description="see a; -4 and 3.5 in the LCM paper")
    hidden: int = meaning(512, ge=1, description="width of the network's two hidden layers")
    dropout: float = meaning(0.5, ge=0, lt=1, description="share of hidden values that are dropped in training")
    epochs: int = meaning(60, ge=1, description="most epochs; the best one on rows set aside for this is used")
    patience: int = meaning(10, ge=1, description="epochs without improvement after which the training stops")
    batch_rows: int = meaning(1024, ge=1, description="rows per step; a sixteenth of all rows if that is less")
    learning_rate: float = meaning(1e-3, gt=0, description="learning rate of AdamW, falling to zero over the epochs")
    weight_decay: float = meaning(0.1, ge=0, description="weight decay of AdamW")
    held_out: float = meaning(
        0.1, gt=0, lt=0.4, description="share of rows for the reported correlations, and as many to choose the epoch"
    )
    seed: int = meaning(
        0, ge=0, lt=1 << 63, description="seed of the first weights, the order of rows and the held-out rows"
    )

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends only on the fit."""
        return {}
