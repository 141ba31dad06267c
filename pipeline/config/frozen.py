"""What a corpus has decided once and for all: fitted artifacts, and rates of samples given as numbers of rows.

Fits read the pilot, the first chunks of a run; what comes later depends on the digest of the artifact, never on how it
came about, so that documents added later change nothing (`pipeline run --refit` decides anew).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FitRef:
    """A fitted artifact in the corpus: its file, the digest of the bytes, and where it is told how it came about.

    content: digest of what results depend on, which is the same for a fit that came to the same values otherwise.
    """

    path: str
    digest: str
    content: str
    record: str


@dataclass(frozen=True)
class Frozen:
    """fits: by name (`scaler`); rates: share of the rows that a stage samples, by stage.

    duplicates: the record of documents that are left out because earlier ones have their ids; empty for none.
    """

    fits: Mapping[str, FitRef] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    duplicates: str = ""
