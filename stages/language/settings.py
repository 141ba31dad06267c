"""Settings of the language stage."""

from __future__ import annotations

from typing import ClassVar

from stages.language.identifier import identity
from stages.stage import StageSettings, meaning


class LanguageSettings(StageSettings):
    """Identify the language of every sentence, and compare it with the one that was stated.

    Adds `lang_detected` (a SONAR code; null where the text has no letters, or the model knows no such language),
    `lang_confidence_detected` (0 to 1) and `lang_differs`: true where the sentence is long enough to judge, the model
    is sure, and it is another language or another script.
    """

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("sentences.text", "sentences.lang")
    writes: ClassVar[tuple[str, ...]] = ("language",)

    min_letters: int = meaning(
        30, ge=1, description="shorter sentences are not judged: names and headings look like any language"
    )
    min_confidence: float = meaning(
        0.7, gt=0, le=1, description="lang_differs is true only where the model is at least as sure"
    )

    def artifacts(self) -> dict[str, str]:
        """Return the digest of the identification model."""
        return {key: str(value) for key, value in identity().items()}
