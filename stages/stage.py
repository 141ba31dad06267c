"""What every stage has: settings with roles, a name, a version, the columns it reads and writes.

A stage is a function of tables: it knows no path, no Ray and no SLURM. Its settings describe it without loading
anything heavy (no torch), so that a plan takes milliseconds; `build_stage` (`registry.py`) returns the stage itself.
The worker (`pipeline/run/worker.py`) reads the columns that the settings name, calls `prepare → compute → finish`,
checks the result against the declared schema and commits it. `prepare` and `finish` run on the CPU while another part
is on the device; a stage that needs the device again after that has a second turn (`Further`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Frozen, strict settings of one section of corpus.yaml. Every field is declared with `meaning` or `execution`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def meaningful(self) -> dict[str, Any]:
        """Return the settings that decide the result; only these go into fingerprints."""
        keep = {name for name, info in type(self).model_fields.items() if role(info.json_schema_extra) == "meaning"}
        return self.model_dump(mode="json", include=keep)


def role(extra: Any) -> str:
    """Return `meaning` or `execution`, as declared on a field."""
    return str(extra["role"]) if isinstance(extra, dict) and "role" in extra else "undeclared"


def meaning(default: Any = ..., *, description: str, **limits: Any) -> Any:
    """Declare a setting that decides the result: changing it makes the stage's results stale.

    Args:
        default: the default; `...` if the setting is required.
        description: one sentence for the configuration reference.
        **limits: limits of the value, as pydantic's `Field` takes them.

    Returns:
        A pydantic field.
    """
    return Field(default, description=description, json_schema_extra={"role": "meaning"}, **limits)


def execution(default: Any = ..., *, description: str, **limits: Any) -> Any:
    """Declare a setting that changes only how the work is done (batch sizes, threads, devices): nothing becomes stale.

    Args:
        default: the default; `...` if the setting is required.
        description: one sentence for the configuration reference.
        **limits: limits of the value, as pydantic's `Field` takes them.

    Returns:
        A pydantic field.
    """
    return Field(default, description=description, json_schema_extra={"role": "execution"}, **limits)


@dataclass(frozen=True)
class Computed:
    """What a stage returns to the worker for one part.

    `families`: name of a column family → table with the part's rows in the part's order. `counts`: numbers for the
    receipt (truncated, duplicates saved, …), added up over parts in the summary; of those named `least.…` the summary
    has the smallest.
    """

    families: dict[str, pa.Table]
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Further:
    """What a stage hands to the worker where the device has a second turn, after work of the CPU.

    `prepared`: for `compute`, which is called again; `finish`: takes what that gives.
    """

    prepared: Any
    finish: Callable[[Any], Computed]


class Stage(Protocol):
    """A row-wise stage: same rows, same order, new columns."""

    def setup(self, device: str) -> None:
        """Load models onto `device` ("cpu", "cuda"); called once per worker."""

    def prepare(self, part: pa.Table) -> Any:
        """Tokenise and plan batches, on the CPU. `part` has the columns of `reads`, named "family.column"."""

    def compute(self, prepared: Any) -> Any:
        """Run the networks, and nothing else, on the device."""

    def finish(self, computed: Any) -> Computed | Further:
        """Return, on the CPU, columns in the order of the part's rows, or what the device must do before that."""


@runtime_checkable
class Recounts(Protocol):
    """A stage whose rows depend on their own document alone, so that they can be copied from an earlier version of a
    part.
    """

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Return the counts of a part whose columns exist, without computing them again; and warn of all its rows.

        Args:
            part: the columns that `prepare` takes.
            families: family → the rows that the stage would write.
            taken: what was counted when the rows were computed, of these and perhaps others.

        Returns:
            What the stage would have counted.
        """


class HostStage:
    """A stage that `prepare` does as a whole, on the CPU; as it stands here, it loads nothing and counts nothing."""

    def setup(self, device: str) -> None:
        """Do nothing: there is no model."""

    def compute(self, prepared: Computed) -> Computed:
        """Return what `prepare` found: there is nothing to do on the device."""
        return prepared

    def finish(self, computed: Computed) -> Computed:
        """Return the columns."""
        return computed

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Return no counts, as `prepare` does."""
        return {}


def whole(stage: Stage, part: pa.Table) -> Computed:
    """Run all of a stage, step by step, on one part."""
    result = stage.finish(stage.compute(stage.prepare(part)))
    return result.finish(stage.compute(result.prepared)) if isinstance(result, Further) else result


class FitSettings(Settings):
    """Settings of an artifact that is fitted on the pilot."""

    only_applied: ClassVar[tuple[str, ...]] = ()  # settings that the fit is the same for, whatever they are

    file: str | None = meaning(
        None,
        description="an artifact (…/fits/….safetensors) of a corpus with the same segment and encode sections, taken "
        "instead of fitting one here",
    )


class StageSettings(Settings, ABC):
    """Settings of a row-wise stage, and what a plan must know of it."""

    name: ClassVar[str]
    version: ClassVar[int]  # raised when the code changes what comes out
    reads: ClassVar[tuple[str, ...]]  # columns as "family.column"
    writes: ClassVar[tuple[str, ...]]  # families
    fits: ClassVar[tuple[str, ...]] = ()  # fitted artifacts that it needs, by name
    row_warnings: ClassVar[tuple[str, ...]] = ()  # beginnings of warnings about all rows: `recount` raises them again
    corpus_wide: ClassVar[bool] = False  # of all parts at once: no worker's visit computes it
    applied: ClassVar[tuple[str, ...] | None] = None  # settings that rows depend on, not only the fit; None: all

    @abstractmethod
    def artifacts(self) -> dict[str, str]:
        """Return digests of the models, tokenizers and fits that the result depends on."""
        ...


OK, TRUNCATED, NON_FINITE = 0, 1, 2  # the column `status`
