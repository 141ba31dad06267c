"""A phase of a run that several workers do together: its specification, shards of chunks, leases, and results.

`runs/<run>/phase-<n>/` holds `order.json`; `work.parquet`, with a row group per shard; `claims/` with leases and
`.done` records; `workers/`, what each worker does now; and `events/`. A shard is what a worker claims at a time: it has
fewer chunks towards the end, so that all workers end at about the same time. A worker reads from receipts what is done
of its shard, so no file here records it. Cost: a row of 200 bytes per chunk; two small files and some heartbeats per
shard.
"""

from __future__ import annotations

import bisect
import dataclasses
import io
import itertools
import json
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, field_validator

from pipeline.base.errors import DamagedError
from pipeline.config.frozen import FitRef, Frozen
from pipeline.config.launcher import LauncherSettings
from pipeline.coordination.identity import identity
from pipeline.corpus.runs import STARTS, read_summary
from pipeline.corpus.states import View, read_state
from pipeline.inputs import Chunk
from pipeline.planning.requests import shards_of
from pipeline.storage import layout
from pipeline.storage.records import read_json, said_of
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig
    from pipeline.planning.plan import Plan

SPEC_FILE = "order.json"
ALONE = ("fit", "compare")  # kinds of phases that one task does


class _LauncherOf(BaseModel):
    launcher: LauncherSettings


class PhaseSpec(BaseModel):
    """The specification of a phase. `todo`: a digest of what the plan had to do then, by which the next plan sees
    progress.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["pilot", "fit", "main", "compare"]
    stages: tuple[str, ...]
    config: dict[str, Any]
    fits: dict[str, dict[str, str]]
    rates: dict[str, float]
    duplicates: str = ""  # the record of documents that are left out
    compared: str = ""  # of what the whole corpus is compared
    kept: dict[str, list[str]] = {}  # by input, the metadata columns that an earlier version gave its files
    identity: dict[str, str]  # of the machine that ordered it, so that a worker with other code or models is refused
    ranges: int
    chunks: int
    parts: int  # that wait for a visit
    todo: str
    refit: tuple[str, ...]  # what is still to be fitted again
    created: float

    @property
    def is_alone(self) -> bool:
        """Whether one task does it, and no chunks are shared out."""
        return self.kind in ALONE

    @property
    def launcher(self) -> LauncherSettings:
        """Return how the workers work."""
        return _LauncherOf.model_validate_json(json.dumps(self.config)).launcher

    @field_validator("config")
    @classmethod
    def _has_a_launcher(cls, value: dict[str, Any]) -> dict[str, Any]:
        _LauncherOf.model_validate_json(json.dumps(value))
        return value

    def resolved(self) -> RunConfig:
        """Return the configuration with what the corpus has decided."""
        from pipeline.config.run_config import RunConfig

        fits = {name: FitRef(**ref) for name, ref in self.fits.items()}
        config = RunConfig.model_validate_json(json.dumps(self.config))
        kept = {name: tuple(columns) for name, columns in self.kept.items()}
        return config.with_frozen(Frozen(fits, self.rates, self.duplicates, self.compared, kept))


class ShardResult(BaseModel):
    """The result of a shard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: str
    chunks: int
    parts: int
    sentences: int
    seconds: float
    failures: list[dict[str, str]]  # where, error
    fitted: list[str]
    ended: float


class WorkerReport(BaseModel):
    """The report of a worker at each heartbeat. `range`: the shard that it holds, with the lease's generation."""

    model_config = ConfigDict(frozen=True)

    worker: str
    host: str
    pid: int
    since: datetime
    beat: datetime
    range: str | None
    range_since: datetime | None = None
    generation: int = 0
    parts: int
    sentences: int
    last_error: str = ""


def phase_folder(run: str, number: int) -> str:
    """Return the folder of the n-th phase of a run (`runs/<run>`); the first is 1."""
    return f"{run}/phase-{number}"


def write_phase(
    store: Store, folder: str, plan: Plan, kind: Literal["pilot", "fit", "main", "compare"], refit: Collection[str]
) -> PhaseSpec:
    """Write what workers need to know; the specification is written last.

    Args:
        store: the corpus.
        folder: the folder of the phase.
        plan: what is missing.
        kind: `pilot`, `fit`, `main` or `compare`.
        refit: the names of fits that are to be made again.

    Returns:
        The specification as it was written.
    """
    count = sum(1 for _ in plan.chunks_to_work_on())
    settings = plan.config.launcher
    alone = kind in ALONE
    cuts = [(0, 0)] if alone else shards_of(count, settings.chunks_per_claim, settings.tasks)
    if not alone:
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, _WORK, compression="zstd", write_page_checksum=True) as writer:
            chunks = plan.chunks_to_work_on()
            for start, end in cuts:
                rows = [(one.chunk.to_json(), one.fingerprint) for one in itertools.islice(chunks, end - start)]
                columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                writer.write_table(pa.table(columns, schema=_WORK))
        store.write(f"{folder}/work.parquet", sink.getvalue())
        _carry_marks(store, folder, plan, cuts)
    spec = PhaseSpec(
        kind=kind,
        stages=plan.stages,
        config=plan.config.model_dump(mode="json"),
        fits={name: dataclasses.asdict(ref) for name, ref in plan.config.frozen.fits.items()},
        rates=dict(plan.config.frozen.rates),
        duplicates=plan.config.frozen.duplicates,
        compared=plan.config.frozen.compared,
        kept={name: list(columns) for name, columns in plan.config.frozen.kept.items()},
        identity=identity(plan.config),
        ranges=len(cuts),
        chunks=count,
        parts=len(plan.parts_to_visit()),
        todo=todo_of(plan),
        refit=tuple(sorted(refit)),
        created=time.time(),
    )
    store.write(f"{folder}/{SPEC_FILE}", spec.model_dump_json(indent=1).encode())
    return spec


def _carry_marks(store: Store, folder: str, plan: Plan, cuts: Sequence[tuple[int, int]]) -> None:
    """Give the shards the marks of workers that died in earlier phases."""
    from pipeline.run.tasks import carry_marks

    run, number = run_of(folder)
    marked = {path.rpartition("/")[2].partition("-")[0] for path in store.find(f"{run}/{STARTS}")}
    if not marked:
        return
    ends = [end for _, end in cuts]
    places = (place for place in enumerate(plan.chunks_to_work_on()) if place[1].chunk.id in marked)
    shards = {one.chunk.id: bisect.bisect_right(ends, at) for at, one in places}
    carry_marks(store, run, number, shards.get)


def run_of(folder: str) -> tuple[str, int]:
    """Return the run of a phase's folder, and the phase's number."""
    run, _, number = folder.rpartition("/phase-")
    return run, int(number)


_WORK = pa.schema([("chunk", pa.string()), ("fingerprint", pa.string())])


def read_phase(store: Store, folder: str) -> PhaseSpec:
    """Read the specification. Raises `CorpusError` if it is missing, damaged, or was written by another version."""
    return read_json(store, f"{folder}/{SPEC_FILE}", PhaseSpec, f"pipeline cancel {store.url}, then run again")


def plan_of_shard(store: Store, folder: str, spec: PhaseSpec, number: int) -> Plan:
    """Return what a shard lacks now, as its receipts say.

    Args:
        store: the corpus.
        folder: the folder of the phase.
        spec: the specification of the phase.
        number: the number of the shard, from 0.

    Returns:
        A plan for the chunks of the shard only.

    Raises:
        DamagedError: if the list of the phase's work is damaged.
    """
    config = spec.resolved()
    try:
        with store.open(f"{folder}/work.parquet") as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read_row_group(number)
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        where = f"{store.url}/{folder}/work.parquet"
        raise DamagedError(where, said_of(error), f"pipeline cancel {store.url}, then run again") from error
    pairs = zip(table["chunk"].to_pylist(), table["fingerprint"].to_pylist(), strict=True)
    expected = [(Chunk.from_json(text), digest) for text, digest in pairs]
    view = View.of(config, [chunk for chunk, _ in expected])
    assert view.chunks == expected, "the same code and recipes give other fingerprints"
    from pipeline.planning.plan import Plan

    return Plan(config, view, spec.stages, read_state(store, view, ledgers=False), {}, ())


def todo_of(plan: Plan) -> str:
    """Return a digest of what there is to launch."""
    return plan.todo_digest()


def read_results(store: Store, folder: str) -> Iterator[ShardResult]:
    """Yield the results of finished shards."""
    for path in sorted(store.listing(f"{folder}/claims")):
        if path.endswith(".done"):
            yield read_result(store, path)


def read_result(store: Store, path: str) -> ShardResult:
    """Read the result of a shard. Raises `CorpusError` if it is damaged."""
    return read_json(store, path, ShardResult, "delete it: that shard is then checked again, which is quick")


def after_losses(store: Store, folder: str) -> bool:
    """Return whether workers were lost before this phase, in an earlier one or in the run before, and may have left
    files.
    """
    run, number = run_of(folder)
    for before in (phase_folder(run, one) for one in range(1, number)):
        done = sum(path.endswith(".done") for path in store.find(f"{before}/claims"))
        if done < read_phase(store, before).ranges:
            return True
    runs = [name for name in store.folders(layout.RUNS) if name < run.rpartition("/")[2]]
    if not runs:
        return False
    try:
        summary = read_summary(store, f"{layout.RUNS}/{runs[-1]}")
    except DamagedError:
        return True
    return not (summary and summary.done)


def failures_of(done: Sequence[ShardResult]) -> list[str]:
    """Describe the failures, each once."""
    return list(dict.fromkeys(f"{one['where']}: {one['error']}" for range_ in done for one in range_.failures))


def last_errors(store: Store, folder: str) -> Iterator[str]:
    """Yield the errors that ended workers of a phase."""
    for path in store.listing(f"{folder}/workers"):
        if error := read_worker(store, path).last_error:
            yield error


def read_worker(store: Store, path: str) -> WorkerReport:
    """Read the report of a worker. Raises `CorpusError` if it is damaged."""
    return read_json(store, path, WorkerReport, "delete it: only that worker's report is lost")
