"""Language codes that a model does not know, and those that were probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_languages(code: str, languages: Iterable[str]) -> str:
    """What to write instead of `code`, in words: codes that begin alike first, then those that are spelled alike."""
    known = list(languages)
    beginning, whole = code[:2].lower(), code[:80].lower()

    def distance(other: str) -> tuple[bool, float, str]:
        alike = difflib.SequenceMatcher(None, whole, other.lower()).ratio()
        return not other.lower().startswith(beginning), -alike, other

    nearest = ", ".join(sorted(known, key=distance)[:3])
    return f"nearest of the model's {len(known)} languages: {nearest}"
