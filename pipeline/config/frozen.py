"""What a corpus has decided once and for all: fitted artifacts, and sampling rates given as numbers of rows.

Fits read the pilot, the first chunks of a run. Later results depend on the digest of the artifact, never on how it was
made, so documents that are added later change nothing (`pipeline run --refit` fits again).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FitRef:
    """A fitted artifact of the corpus: its file, the digest of its bytes, and its record.

    `content` is a digest of what results depend on; it is the same for another fit that arrived at the same values.
    """

    path: str
    digest: str
    content: str
    record: str


@dataclass(frozen=True)
class Frozen:
    """The decisions of a corpus.

    `fits`: by name (`scaler`). `rates`: the share of rows that a stage samples, by stage, if that is not what
    its section says. `duplicates`: the record of
    documents that are left out because earlier ones have their ids; empty if there is none. `compared`: a digest of all
    chunks in order, for stages that compare the whole corpus; empty if there are no such stages. `kept`: by name of an
    input, the metadata columns of its files, where an earlier version gave them those of other inputs too.
    """

    fits: Mapping[str, FitRef] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    duplicates: str = ""
    compared: str = ""
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class SettingPlaces(dict[tuple[str, ...], str]):
    """A path of keys → "corpus.yaml:12", or the option that sets it.

    All instances are equal, because places are not part of a configuration.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SettingPlaces)

    __hash__ = None

    def nearest(self, keys: tuple[str, ...]) -> str:
        """Return the place of a setting, or of the section around it if the setting is left out."""
        found = (self.get(keys[:count]) for count in range(len(keys), -1, -1))
        return next((one for one in found if one), "corpus.yaml")
