"""Suggests languages for a code that the model does not know."""

from __future__ import annotations

from collections.abc import Collection

from stages.language import SONAR_CODES
from stages.sonar import card


def nearest_languages(code: str, languages: Collection[str]) -> str:
    """Say which codes were probably meant; a code of two letters (es, zh) is looked up, not compared."""
    same = [known for known in SONAR_CODES.get(code.lower(), ()) if known in languages]
    nearest = ", ".join(list(dict.fromkeys([*same, *card.nearest_languages(code, languages)]))[:3])
    return f"nearest of the model's {len(languages)} languages: {nearest}"
