"""Settings of the AutoBLEU stage. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import Any, ClassVar

from stages.sampling import Sample
from stages.sonar.settings import DecodingSettings
from stages.stage import meaning


class AutobleuSettings(DecodingSettings):
    """Decode every embedding and compare with the sentence: `autobleu.autobleu` (0–100) and `autobleu.decoded`."""

    name: ClassVar[str] = "autobleu"
    version: ClassVar[int] = 1
    writes: ClassVar[tuple[str, ...]] = ("autobleu",)

    sample: Sample = meaning(
        1.0, description="sentences to score: a share, or {rows: …}; larger samples contain smaller ones"
    )
    beam: int = meaning(1, ge=1, le=10, description="beams of the search; 1 is greedy, SONAR's own default is 5")
    length_penalty: float = meaning(
        1.0, ge=0, le=4, description="scores of beam search are divided by length^this; higher favours long sentences"
    )

    def meaningful(self) -> dict[str, Any]:
        """Return the meaning settings; a length penalty does not affect greedy decoding."""
        return {key: value for key, value in super().meaningful().items() if self.beam > 1 or key != "length_penalty"}
