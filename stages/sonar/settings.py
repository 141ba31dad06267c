"""Settings of all stages that decode embeddings. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from stages.sonar.card import load_card
from stages.stage import StageSettings, execution, meaning


class DecodingSettings(StageSettings):
    """Settings of a decoder: its model, the length of its output, and the size of its batches."""

    reads: ClassVar[tuple[str, ...]] = (
        "sentences.text",
        "sentences.lang",
        "sentences.u",
        "embeddings.embedding",
        "status.status",
    )

    model: str = meaning("sonar-tiny", description="model card whose decoder is used (encode.model when left out)")
    length_factor: float = meaning(1.3, ge=1, le=4, description="decode at most length_factor · tokens + length_extra")
    length_extra: int = meaning(8, ge=1, le=256, description="see length_factor")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = meaning(
        "auto", description="number format of the computation, as for encode"
    )
    batch_rows: int | None = execution(
        None,
        ge=1,
        description="hypotheses (sentences times beam) decoded together; left out: 512 on CPUs, on GPUs as many as "
        "60 % of the memory hold, at most 2048; halved if a GPU runs out of memory",
    )

    def artifacts(self) -> dict[str, str]:
        """Return the digests of the decoder's and the tokenizer's weights."""
        card = load_card(self.model)
        return {"decoder": card.decoder_digest, "tokenizer": card.tokenizer_digest}
