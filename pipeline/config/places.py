"""Remembers where settings stand in a corpus.yaml, for messages."""

from __future__ import annotations


class Places(dict[tuple[str, ...], str]):
    """A path of keys → "corpus.yaml:12", or the option that sets it.

    All instances are equal, because places are not part of a configuration.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    __hash__ = None

    def nearest(self, keys: tuple[str, ...]) -> str:
        """Return the place of a setting, or of the section around it if the setting is left out."""
        found = (self.get(keys[:count]) for count in range(len(keys), -1, -1))
        return next((one for one in found if one), "corpus.yaml")
