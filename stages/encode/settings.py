"""Settings of the encode stage. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from stages.sonar.card import load_card
from stages.stage import StageSettings, execution, meaning


class EncodeSettings(StageSettings):
    """Sentences → embeddings: `embeddings.embedding` (rows, dim) float16 and `status.status`."""

    name: ClassVar[str] = "encode"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("sentences.text", "sentences.lang")
    writes: ClassVar[tuple[str, ...]] = ("embeddings", "status")

    model: str = meaning("sonar-tiny", description="model card: a name that ships, or the path of a card's YAML file")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = meaning(
        "auto",
        description="number format of the computation; auto: float16 on GPUs, on CPUs bfloat16 where they multiply it, "
        "else float32 (embeddings are stored as float16 in any case)",
    )
    backend: Literal["native", "sonar-space"] = meaning(
        "native",
        description="whose network: native, this package's own, or sonar-space, the official package where it is "
        "installed (slower, the same up to rounding)",
    )
    batch_tokens: int | None = execution(
        None,
        ge=1,
        description="tokens per batch at most; left out: 32 768 on GPUs, halved if one runs out of memory; CPUs take "
        "no more than stay in their cache, at least 512",
    )

    def meaningful(self) -> dict[str, Any]:
        """Return the meaning settings; the native backend is left out, so that older corpora stay up to date."""
        return {key: value for key, value in super().meaningful().items() if (key, value) != ("backend", "native")}

    def artifacts(self) -> dict[str, str]:
        """Return the digests of the encoder's and the tokenizer's weights."""
        card = load_card(self.model)
        return {"encoder": card.encoder_digest, "tokenizer": card.tokenizer_digest}
