"""Settings of the AutoBLEU stage (no torch here, so that a plan is quick)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

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
    beam: int = meaning(1, ge=1, le=10, description="beams of the search; 1 is greedy, SONAR's own default is 5")
    length_penalty: float = meaning(
        1.0, ge=0, le=4, description="scores of beam search are divided by length^this; higher favours long sentences"
    )
    length_factor: float = meaning(1.3, ge=1, le=4, description="decode at most length_factor · tokens + length_extra")
    length_extra: int = meaning(8, ge=1, le=256, description="see length_factor")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = meaning(
        "auto", description="number format of the computation, as for encode"
    )
    batch_rows: int = execution(
        512, ge=1, description="hypotheses (sentences times beam) decoded together; halved if a GPU runs out of memory"
    )

    def meaningful(self) -> dict[str, Any]:
        """As for all settings; a length penalty means nothing to greedy decoding."""
        return {key: value for key, value in super().meaningful().items() if self.beam > 1 or key != "length_penalty"}

    def artifacts(self) -> dict[str, str]:
        """The decoder's and the tokenizer's weights."""
        card = load_card(self.model)
        return {"decoder": card.decoder_digest, "tokenizer": card.tokenizer_digest}

    def build(self) -> Stage:
        """The stage, with torch."""
        from stages.autobleu.scorer import Autobleu

        return Autobleu(self)
