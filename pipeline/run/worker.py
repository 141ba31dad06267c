"""Brings a part up to date through all row-wise stages in one visit, with embeddings in memory.

A worker holds every model of the run, and several threads may call it: while one part is on the device, the next is
read and tokenised, and the last is compressed and written. Existing families are read, not computed again, and so are
the rows of documents that an earlier version of the part had (`copying.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.base.captured import capture_warnings
from pipeline.base.errors import CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.receipts import COPIED, PartRef, Receipt, commit, read_receipt, summed
from pipeline.corpus.recipes import SEGMENT, Recipes, part_fingerprint
from pipeline.run.copying import NOT_COPIED, Copier, Copies
from pipeline.run.networks import Computes, Networks, Ran
from pipeline.run.open_part import OpenPart
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.computing import computing
from stages.sonar.card import load_card
from stages.stage import Computed, Further, Recounts, StageSettings


@dataclass(frozen=True)
class PartVisit:
    """What one visit of a part did: receipts of all its stages, and the names of those that were computed now."""

    part: str
    rows: int
    receipts: dict[str, Receipt]
    computed: tuple[str, ...]


class PartWorker:
    """Visits parts; make one per device. `networks` runs the networks, by default in this process.

    Args:
        config: the configuration, with what is frozen.
        device: where networks compute: `cpu`, `cuda:0`, `mps`.
        stages: the stages that a visit may bring up to date.
        networks: what runs the networks; None to run them in this process.
    """

    def __init__(
        self, config: RunConfig, device: str, stages: tuple[str, ...], networks: Computes | None = None
    ) -> None:
        self.config = config
        self.networks = networks or Networks(config, device)
        self.store = Store(config.output)
        self.recipes = Recipes.of(config)
        self._allowed = stages
        self._copier = Copier(config)
        dim = load_card(config.encode.model).dim if config.encode else None
        self._widths = {
            "embeddings": dim,
            "plan-embeddings": dim,
            "codes": config.rvq.codebooks if config.rvq else None,
        }

    def visit(self, ref: PartRef) -> PartVisit:
        """Compute what is missing of a part. Raises `CorpusError` for data that is damaged or does not fit."""
        part = OpenPart(self.store, read_receipt(self.store, layout.receipt_path(SEGMENT, ref.part, ref.fingerprint)))
        computed = []
        for settings in self.config.row_stages():
            inputs = {column: part.digests[column] for column in settings.reads if column in part.digests}
            if len(inputs) < len(settings.reads):
                if settings.name not in self._allowed:
                    break
                missing = sorted(set(settings.reads) - set(inputs))
                raise CorpusError(f"{settings.name} of part {ref.part} needs {', '.join(missing)}: run without --only")
            stage_print = part_fingerprint(self.recipes.stages[settings.name], inputs)
            path = layout.receipt_path(settings.name, ref.part, stage_print)
            if self.store.exists(path):
                part.add(settings.name, read_receipt(self.store, path), {})
            elif settings.name in self._allowed:
                self._compute(part, settings, stage_print, inputs)
                computed.append(settings.name)
        return PartVisit(ref.part, part.rows, part.receipts, tuple(computed))

    def _compute(self, part: OpenPart, settings: StageSettings, stage_print: str, inputs: dict[str, str]) -> None:
        clock = _Clock()
        with capture_warnings() as warned:
            copies, warnings = self._copier.find(part, settings)
            recounts = self._copier.recounts(settings) if copies else None
            table = part.columns(settings.reads)
            clock.lap("read")
            if copies and recounts:
                made = self._with_copies(settings, table, copies, recounts, clock)
            else:
                made = self._made(settings, table, clock)
        families = {
            family: layout.checked(family, made.result.families[family], self._schema(family), part.rows)
            for family in settings.writes
        }
        receipt, ours = commit(
            self.store,
            stage=settings.name,
            part=part.name,
            fingerprint=stage_print,
            recipe=fingerprint(self.recipes.stages[settings.name]),
            inputs=inputs,
            families=families,
            counts=made.result.counts,
            seconds=clock.seconds,
            device=made.device,
            warnings=list(dict.fromkeys([*made.warnings, *warnings, *warned])),
        )
        part.add(settings.name, receipt, families if ours else {})

    def _schema(self, family: str) -> pa.Schema:
        return layout.schema(family, width=self._widths.get(family))

    def _made(self, settings: StageSettings, table: pa.Table, clock: _Clock) -> _StageResult:
        """Compute all of a stage for these rows."""
        stage, loading = self.networks.stage(settings)  # warnings while a stage was loaded concern every part
        clock.lap("read")
        prepared = stage.prepare(table)
        clock.lap("prepare")
        ran = self._ran(settings, prepared, clock)
        warned = [*loading, *ran.warned]
        result = stage.finish(ran.computed)
        clock.lap("finish")
        if isinstance(result, Further):
            ran = self._ran(settings, result.prepared, clock)
            warned += ran.warned
            result = result.finish(ran.computed)
            clock.lap("finish")
        return _StageResult(result, ran.device, warned)

    def _with_copies(
        self, settings: StageSettings, table: pa.Table, copies: Copies, recounts: Recounts, clock: _Clock
    ) -> _StageResult:
        """Compute the rows that an earlier version of the part does not have, and copy the others."""
        new, before = copies.new, copies.receipt
        with capture_warnings() as warned:
            made = self._made(settings, table.take(pa.array(new)), clock) if len(new) else None
        families = {
            family: copies.merged(family, made.result.families[family] if made else None, self._schema(family))
            for family in settings.writes
        }
        no_more = (NOT_COPIED, *settings.row_warnings)  # about that version, or about other rows than these
        warnings = [*before.warnings, *(made.warnings if made else []), *warned]
        taken = summed([before.counts, made.result.counts if made else {}])
        counts = recounts.recount(table, families, taken)
        for step, seconds in copies.spent().items():
            clock.add(step, seconds)
        clock.lap("copy")
        return _StageResult(
            Computed(families, counts | {COPIED: float(table.num_rows - len(new))}),
            made.device if made else before.device,
            [text for text in warnings if not text.startswith(no_more)],
        )

    def _ran(self, settings: StageSettings, prepared: Any, clock: _Clock) -> Ran:
        """Return what the device computed, and count its time apart from the time of waiting for it."""
        with computing(settings.name):
            ran = self.networks.compute(settings, prepared)
        clock.lap("wait", but=ran.seconds)
        clock.add("compute", ran.seconds)
        return ran


@dataclass(frozen=True)
class _StageResult:
    """What a stage gave for a part, on which device, and what it warned of."""

    result: Computed
    device: str
    warnings: list[str]


class _Clock:
    """Seconds between laps, by name; laps of the same name add up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str, but: float = 0.0) -> None:
        """Add the time since the last lap to a name, less `but` seconds."""
        now = time.perf_counter()
        self.add(name, max(0.0, now - self._last - but))
        self._last = now

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to those of a name."""
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 4)
