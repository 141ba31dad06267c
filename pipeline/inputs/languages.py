"""What to say of a language code that the model does not know."""

from __future__ import annotations

from collections.abc import Collection

from stages.sonar import card


def nearest_languages(code: str, languages: Collection[str]) -> str:
    """The codes that were probably meant, in words."""
    nearest = ", ".join(card.nearest_languages(code, languages)[:3])
    return f"nearest of the model's {len(languages)} languages: {nearest}"
