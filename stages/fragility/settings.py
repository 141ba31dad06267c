"""Settings of the fragility stage. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from stages.fragility.card import load_external_card
from stages.sampling import Rows, Sample
from stages.sonar.settings import DecodingSettings
from stages.stage import execution, meaning


class FragilitySettings(DecodingSettings):
    """Noise on embeddings → text → scores: `fragility.fragility_bleu`, `fragility.fragility_cosine`, and each by noise.

    Every sampled sentence is decoded once for each noise level.
    """

    name: ClassVar[str] = "fragility"
    version: ClassVar[int] = 1
    writes: ClassVar[tuple[str, ...]] = ("fragility",)
    fits: ClassVar[tuple[str, ...]] = ("scaler",)

    sample: Sample = meaning(
        Rows(rows=50_000_000),
        description="sentences to score: a share, or {rows: …} (default: the paper's 50 million); larger samples "
        "contain smaller ones",
    )
    noise_levels: tuple[Annotated[float, Field(ge=0, le=1)], ...] = meaning(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        min_length=1,
        max_length=100,
        description="variances of the noise: each costs a decoding per sentence; 0 is none, 1 leaves nothing",
    )
    external: str = meaning(
        "minilm",
        description="encoder for the cosine, unrelated to SONAR: a card's name (conf/external/), or the path of a card",
    )
    seed: int = meaning(0, ge=0, lt=1 << 64, description="seed of the noise")
    external_batch_tokens: int = execution(
        16_384,
        ge=1,
        description="tokens that the external encoder computes at once; halved if a GPU runs out of memory",
    )

    @field_validator("noise_levels")
    @classmethod
    def _are_distinct(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(levels)) < len(levels):
            raise ValueError(f"{list(levels)} holds a level twice; a level has one decoding: keep one")
        return levels

    def meaningful(self) -> dict[str, Any]:
        """Return the meaning settings; the path of the external encoder's card is left out, because its digest is an
        artifact.
        """
        return super().meaningful() | {"external": load_external_card(self.external).name}

    def artifacts(self) -> dict[str, str]:
        """Return digests of the weights of decoder, tokenizer and external encoder; from the cards, without reading a
        file.
        """
        return super().artifacts() | {"external": load_external_card(self.external).digest}
