"""Settings of the AutoBLEU stage (no torch here, so that a plan is quick)."""

from __future__ import annotations

from typing import ClassVar, Literal

from stages.sonar.card import load_card
from stages.stage import Stage, StageSettings, execution, meaning


class AutobleuSettings(StageSettings):
    """Decode every embedding and compare with the sentence: `autobleu.autobleu` (0–100) and `autobleu.decoded`."""

    name: ClassVar[str] = "autobleu"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = (
        "sentences.text",
        "sentences.lang",
        "sentences.u",
        "embeddings.embedding",
        "status.status",
    )
    writes: ClassVar[tuple[str, ...]] = ("autobleu",)

    model: str = meaning("sonar-tiny", description="model card whose decoder is used (encode.model when left out)")
    sample: float = meaning(1.0, gt=0, le=1, description="share of sentences to score; smaller samples lie in larger")
    beam: Literal[1] = meaning(1, description="beams of the search; 1 is greedy")
    length_factor: float = meaning(1.3, ge=1, le=4, description="decode at most length_factor · tokens + length_extra")
    length_extra: int = meaning(8, ge=1, le=256, description="see length_factor")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = meaning(
        "auto", description="number format of the computation, as for encode"
    )
    batch_rows: int = execution(512, ge=1, description="sentences decoded together; lower it if memory runs out")

    def artifacts(self) -> dict[str, str]:
        """The decoder's and the tokenizer's weights."""
        card = load_card(self.model)
        return {"decoder": card.decoder_digest, "tokenizer": card.tokenizer_digest}

    def build(self) -> Stage:
        """The stage, with torch."""
        from stages.autobleu.scorer import Autobleu

        return Autobleu(self)
