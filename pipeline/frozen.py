"""What a corpus has decided once and for all: fitted artifacts, and rates of samples given as numbers of rows.

Fits read the pilot, the first chunks of a run; what comes later depends on the digest of the artifact, never on how it
came about, so that documents added later change nothing (`pipeline run --refit` decides anew).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FitRef:
    """A fitted artifact in the corpus: its file and the digest of the bytes; `record` says how it came about."""

    path: str
    digest: str
    record: str


@dataclass(frozen=True)
class Frozen:
    """fits: by name (`scaler`); rates: share of the rows that a stage samples, by stage."""

    fits: Mapping[str, FitRef] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
