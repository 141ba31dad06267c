"""Brings a part up to date through all row-wise stages in one visit, with embeddings in memory.

A worker holds every model of the run, and several threads may call it: while one part is on the device, the next is
read and tokenised, and the last is compressed and written. Existing families are read, not computed again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.base.captured import capture_warnings
from pipeline.base.errors import CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import content_digest, fingerprint
from pipeline.corpus.receipts import DataFile, PartRef, Receipt, commit, read_receipt
from pipeline.corpus.recipes import SEGMENT, Recipes, part_fingerprint
from pipeline.run.networks import Computes, Networks, Ran
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.arrow import table_of
from stages.computing import computing
from stages.sonar.card import load_card
from stages.stage import Further, StageSettings


@dataclass(frozen=True)
class PartVisit:
    """What one visit of a part did: receipts of all its stages, and the names of those that were computed now."""

    part: str
    rows: int
    receipts: dict[str, Receipt]
    computed: tuple[str, ...]


class PartWorker:
    """Visits parts; make one per device. `networks` runs the networks, by default in this process."""

    def __init__(
        self, config: RunConfig, device: str, stages: tuple[str, ...], networks: Computes | None = None
    ) -> None:
        self.config = config
        self.networks = networks or Networks(config, device)
        self.store = Store(config.output)
        self.recipes = Recipes.of(config)
        self._allowed = stages
        self._widths = {
            "embeddings": load_card(config.encode.model).dim if config.encode else None,
            "codes": config.rvq.codebooks if config.rvq else None,
        }

    def visit(self, ref: PartRef) -> PartVisit:
        """Compute what is missing of a part. Raises `CorpusError` for data that is damaged or does not fit."""
        part = _OpenPart(self.store, read_receipt(self.store, layout.receipt_path(SEGMENT, ref.part, ref.fingerprint)))
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

    def _compute(self, part: _OpenPart, settings: StageSettings, stage_print: str, inputs: dict[str, str]) -> None:
        stage, loading = self.networks.stage(settings)  # warnings while a stage was loaded concern every part
        clock = _Clock()
        with capture_warnings() as warned:
            table = part.columns(settings.reads)
            clock.lap("read")
            prepared = stage.prepare(table)
            clock.lap("prepare")
            ran = self._ran(settings, prepared, clock)
            warned_there = [*ran.warned]
            result = stage.finish(ran.computed)
            clock.lap("finish")
            if isinstance(result, Further):
                ran = self._ran(settings, result.prepared, clock)
                warned_there += ran.warned
                result = result.finish(ran.computed)
                clock.lap("finish")
        families = {}
        for family in settings.writes:
            schema = layout.schema(family, width=self._widths.get(family))
            families[family] = layout.checked(family, result.families[family], schema, part.rows)
        receipt, ours = commit(
            self.store,
            stage=settings.name,
            part=part.name,
            fingerprint=stage_print,
            recipe=fingerprint(self.recipes.stages[settings.name]),
            inputs=inputs,
            families=families,
            counts=result.counts,
            seconds=clock.seconds,
            device=ran.device,
            warnings=list(dict.fromkeys([*loading, *warned_there, *warned])),
        )
        part.add(settings.name, receipt, families if ours else {})

    def _ran(self, settings: StageSettings, prepared: Any, clock: _Clock) -> Ran:
        """Return what the device computed, and count its time apart from the time of waiting for it."""
        with computing(settings.name):
            ran = self.networks.compute(settings, prepared)
        clock.lap("wait", but=ran.seconds)
        clock.add("compute", ran.seconds)
        return ran


class _OpenPart:
    """A part during a visit: which files its receipts vouch for, and the tables that are in memory."""

    def __init__(self, store: Store, segmented: Receipt) -> None:
        self.store = store
        self.name = segmented.part
        self.rows = segmented.rows
        self.receipts: dict[str, Receipt] = {}
        self.digests: dict[str, str] = {}
        self._files: dict[str, DataFile] = {}
        self._tables: dict[str, pa.Table] = {}
        self.add(SEGMENT, segmented, {})

    def add(self, stage: str, receipt: Receipt, tables: dict[str, pa.Table]) -> None:
        """Add a stage's result, with the tables that its receipt vouches for, if they are in memory."""
        self.receipts[stage] = receipt
        self.digests |= receipt.columns
        self._files |= {file.family: file for file in receipt.files}
        self._tables |= tables

    def columns(self, names: tuple[str, ...]) -> pa.Table:
        """Return the named columns ("family.column"), side by side."""
        columns = {}
        for name in names:
            family, column = name.split(".")
            if family not in self._tables:
                self._tables[family] = read_file(self.store, self._files[family])
            columns[name] = self._tables[family][column]
        return pa.table(columns)


def read_file(store: Store, file: DataFile) -> pa.Table:
    """Read a whole data file, verified against its receipt. Raises `CorpusError` if its bytes changed."""
    data = store.read(file.path)
    if content_digest(data) != file.digest:
        raise CorpusError(
            f"{store.url}/{file.path} has {len(data)} bytes that its receipt does not vouch for ({file.bytes} bytes, "
            f"digest {file.digest[:8]}…): it was changed or damaged; delete its receipt and run again"
        )
    return table_of(data)


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
