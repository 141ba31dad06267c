"""Where settings stand in a corpus.yaml, for messages."""

from __future__ import annotations


class Places(dict[tuple[str, ...], str]):
    """Path of keys → "corpus.yaml:12", or the option that sets it.

    Equal to any other, for it is no part of a configuration.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    __hash__ = None

    def nearest(self, keys: tuple[str, ...]) -> str:
        """Of a setting, or of the section around it if it is left out."""
        found = (self.get(keys[:count]) for count in range(len(keys), -1, -1))
        return next((one for one in found if one), "corpus.yaml")
