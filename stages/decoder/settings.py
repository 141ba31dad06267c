"""Settings of fine-tuning a decoder. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from stages.sonar.card import load_card
from stages.stage import FitSettings, execution, meaning


class DecoderSettings(FitSettings):
    """A decoder that learns the sentences of a corpus from their perturbed embeddings: a fit only, it adds no column.

    The encoder stays as it is. The result is a model card in `fits/`, for `autobleu.model`, `fragility.model` and
    others.
    """

    name: ClassVar[str] = "decoder"
    version: ClassVar[int] = 1

    model: str = meaning("sonar-tiny", description="model card whose decoder is the start (encode.model when left out)")
    noise: bool = meaning(
        True,
        description="normal noise of variance α, drawn uniformly between 0 and 1, on embeddings normalised by scaler "
        "(LCM 2.5.2)",
    )
    codes: bool = meaning(
        False,
        description="embeddings dequantised from the codes of rvq (LCM 2.3.5); with noise, a sentence gets either, by "
        "chance",
    )
    prefix_share: float = meaning(
        0.3, ge=0, le=1, description="share of the dequantised embeddings that are of their first codebooks only"
    )
    least_codebooks: float = meaning(
        2 / 3, gt=0, le=1, description="these are at least this share of all codebooks; 2/3 in the LCM paper"
    )
    exact: float = meaning(0.0, ge=0, le=1, description="share of the sentences that keep their exact embedding")
    rows: int = meaning(
        1_200_000,
        ge=1,
        description="about how many rows of the pilot to learn from; those of validation and test documents, and "
        "truncated ones, are left out",
    )
    steps: int = meaning(1000, ge=1, description="optimizer steps")
    batch_tokens: int = meaning(4096, ge=64, description="tokens per step at most, padding counted")
    learning_rate: float = meaning(
        5e-4, gt=0, description="highest learning rate of AdamW; it then falls to 0 as a cosine"
    )
    warmup: int = meaning(50, ge=0, description="steps in which the learning rate rises")
    precision: Literal["auto", "float32", "bfloat16"] = meaning(
        "auto", description="number format of the matmuls; auto: bfloat16 where GPU or CPU multiplies it, else float32"
    )
    seed: int = meaning(0, ge=0, lt=1 << 63, description="seed of the order of sentences and of every random draw")
    checkpoint_seconds: float = execution(
        120.0, gt=0, description="seconds between two checkpoints, from which an interrupted fit goes on"
    )

    def meaningful(self) -> dict[str, Any]:
        """Return the meaning settings, with the digest of the first weights instead of the path of their card."""
        card = load_card(self.model)
        return super().meaningful() | {"model": f"{card.name} {card.decoder_digest}"}
