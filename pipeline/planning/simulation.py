"""Simulates a corpus.yaml at another size: work, files, storage, time and requests. Nothing is run.

Every figure follows from a named source: what the receipts of this corpus measured, the schema, or the LCM paper
(Appendix A). Where nothing is known, there is no figure. Cost: that of a plan.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from pipeline.base.errors import ConfigError
from pipeline.config.launcher import seconds_of
from pipeline.config.run_config import RunConfig
from pipeline.corpus.counters import CHUNK, busy_seconds, by_detail, stages_of
from pipeline.corpus.ledger import FILE_CHUNKS
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.states import ChunkState, total_of
from pipeline.planning.pilot_size import LARGE_CHUNK, LARGE_PART, MANY_PARTS
from pipeline.planning.plan import Plan
from pipeline.planning.requests import A_BEAT, A_CHUNK, A_SHARD, A_TASK, Requests, of_a_part, shards_of
from pipeline.storage import layout
from stages.plans.settings import PARAGRAPH
from stages.sampling import Rows
from stages.sonar.card import load_card

BY_PAPER, BY_SCHEMA, DERIVED = "paper", "schema", "derived"  # where a figure comes from, if it was not measured
PAPER_RATES = (300.0, 400.0)  # SONAR embeddings per second and GPU
STORED = 0.85  # of raw float16, as `benchmarks.storage` measures it
LIST_KEYS, REQUEST_SECONDS, AT_ONCE = 1000, 0.05, 16  # keys per LIST, seconds per request, small reads at a time
BEATS = 4.0  # heartbeats while a lease lasts
SPREAD = 0.1  # standard deviation of the logarithm of the nodes' speeds
SAMPLED = ("autobleu", "fragility")
NUMBERS = {"int32": 4, "float": 4, "double": 8, "uint64": 8, "uint8": 1}  # bytes


@dataclass(frozen=True)
class Size:
    """The assumed size of the corpus. `input_bytes`: stored bytes per sentence."""

    documents: float
    sentences: float
    input_bytes: float
    origin: str


PAPER = Size(4e9, 310e9, 88.0, "the LCM paper, Appendix A: 77.5 sentences per document, 88 characters per sentence")


@dataclass
class MeasuredCorpus:
    """Sums over the receipts that match this configuration."""

    sentences: int = 0
    bytes_read: int = 0
    rows: Counter[str] = field(default_factory=Counter)  # computed rows, by stage (of samples, only the sampled ones)
    seconds: dict[str, float] = field(default_factory=dict)  # of work, by stage
    parts: Counter[str] = field(default_factory=Counter)  # by stage
    devices: dict[str, str] = field(default_factory=dict)  # by stage
    stored: Counter[str] = field(default_factory=Counter)  # bytes, by family
    stored_rows: Counter[str] = field(default_factory=Counter)  # rows that these are of, by family
    documents: int = 0

    @property
    def sentences_per_document(self) -> float:
        """The sentences of an average document; as in the LCM paper where nothing is segmented yet."""
        return self.sentences / self.documents if self.sentences else PAPER.sentences / PAPER.documents

    @classmethod
    def of(cls, chunks: Sequence[ChunkState]) -> MeasuredCorpus:
        """Add up finished chunks and parts."""
        total, found = total_of(chunks), cls()
        found.documents = int(total.get(f"{CHUNK}/kept", 0))
        found.sentences = int(total.get(f"{CHUNK}/sentences", 0))
        found.bytes_read = int(total.get(f"{CHUNK}/bytes_read", 0))
        for stage in stages_of(total):
            if f"{stage}/parts" not in total:
                continue
            every = int(total[f"{stage}/rows"])
            rows = int(total.get(f"{stage}/counts/scored", every))
            found.rows[stage] = rows
            found.seconds[stage] = busy_seconds(by_detail(total, stage, "seconds"))
            found.parts[stage] = int(total[f"{stage}/parts"])
            found.devices[stage] = max(by_detail(total, stage, "devices"))
            for family, stored in by_detail(total, stage, "bytes").items():
                of_documents = int(total[f"{stage}/counts/documents"]) if family == "documents" else every
                found.stored[family] += int(stored)
                found.stored_rows[family] += rows if stage in SAMPLED else of_documents
        return found


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage. `times`: how often each row is computed; `rates`: rows/s of one worker, slowest and
    fastest.

    `origin`: the device that was measured, or one of the words above; `parts`: how many parts were measured.
    """

    stage: str
    rows: float
    times: int
    rates: tuple[float, float] | None
    origin: str = ""
    parts: int = 0

    @property
    def hours(self) -> tuple[float, float] | None:
        """The hours of one worker: at the fastest and at the slowest rate."""
        return (self.rows / self.rates[1] / 3600, self.rows / self.rates[0] / 3600) if self.rates else None

    @property
    def beside(self) -> bool:
        """Whether the stage runs on CPUs while the devices do the rest."""
        return self.stage == SEGMENT and (not self.rates or self.origin.startswith("cpu"))


@dataclass(frozen=True)
class Storage:
    """The storage of one family. `each`: bytes per row."""

    family: str
    rows: float
    each: float
    origin: str

    @property
    def total(self) -> float:
        """The total number of bytes."""
        return self.rows * self.each


@dataclass(frozen=True)
class Simulation:
    """A configuration at a given size."""

    config: RunConfig
    size: Size
    stages: tuple[StageCost, ...]
    storage: tuple[Storage, ...]

    @property
    def chunks(self) -> int:
        """The number of chunks, of `chunk_bytes` of input each."""
        return math.ceil(self.size.sentences * self.size.input_bytes / self.config.chunk_bytes)

    @property
    def parts(self) -> int:
        """The number of parts: whole parts of every chunk, each with half a document more than asked for, and one of
        its rest.
        """
        each = self.config.part_sentences + self.size.sentences / self.size.documents / 2
        return self.chunks * math.ceil(self.size.sentences / self.chunks / each)

    @property
    def files(self) -> int:
        """The number of data files."""
        return self.parts * len(self.storage)

    @property
    def receipts(self) -> int:
        """The number of receipts: one per part and stage, one per chunk."""
        return self.parts * len(self.stages) + self.chunks

    @property
    def ledgers(self) -> int:
        """The number of ledger files after compaction."""
        return math.ceil(self.chunks / FILE_CHUNKS)

    def with_larger_parts(self) -> Simulation | None:
        """Return the same corpus in larger chunks and parts; None if it has few parts, or they are as large already."""
        if self.parts <= MANY_PARTS or self.config.part_sentences >= LARGE_PART:
            return None
        times = max(1, LARGE_CHUNK // self.config.chunk_bytes)
        launcher = self.config.launcher
        launcher = launcher.model_copy(update={"chunks_per_claim": max(1, launcher.chunks_per_claim // times)})
        sizes = {"part_sentences": LARGE_PART, "chunk_bytes": max(LARGE_CHUNK, self.config.chunk_bytes)}
        return replace(self, config=self.config.model_copy(update=sizes | {"launcher": launcher}))

    def claims(self, tasks: int) -> int:
        """Return the number of shards that this many tasks claim in the main pass."""
        return len(shards_of(self.chunks, self.config.launcher.chunks_per_claim, tasks))

    @property
    def bytes(self) -> float:
        """The bytes of all data files."""
        return sum(one.total for one in self.storage)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The stages without a known rate."""
        return tuple(one.stage for one in self.stages if not one.rates)

    def device_hours(self) -> tuple[float, float]:
        """Return the hours of one worker over all stages that a device computes and whose rate is known."""
        known = [one.hours for one in self.stages if one.hours and not one.beside]
        return sum(low for low, _ in known), sum(high for _, high in known)

    def tasks(self, gpus: int) -> int:
        """Return the number of SLURM array tasks with that many GPUs: one per node."""
        return math.ceil(gpus / (self.config.launcher.gpus_per_node or 1))

    def starts(self, hours: float) -> int:
        """Return how often a task starts to work for a number of hours, because it is stopped at its time limit."""
        return max(1, math.ceil(hours * 3600 / seconds_of(self.config.launcher.time)))

    @property
    def lists(self) -> int:
        """The number of LIST requests that find every receipt."""
        return math.ceil(self.receipts / LIST_KEYS)

    @property
    def part_requests(self) -> Requests:
        """Return the requests of the work on one part."""
        files = [one.total / self.parts for one in self.storage]
        return of_a_part(sum(one.stage != SEGMENT for one in self.stages), files)

    def requests(self, tasks: int, hours: float = 0.0) -> Requests:
        """Return the requests of tasks that share all the work, each for the given hours."""
        found = self.part_requests.times(self.parts) + A_CHUNK.times(self.chunks)
        found += A_SHARD.times(self.claims(tasks)) + A_TASK.times(tasks)
        return found + A_BEAT.times(tasks * hours * 3600 * BEATS / self.config.launcher.lease_seconds)

    def makespan(self, tasks: int, hours: float) -> float:
        """Return the hours until the last task ends, if evenly shared work took each of them the given hours.

        Nodes differ in speed, by about a tenth (`SPREAD`), and each takes shards as it is free; the pilot's barrier and
        the queue of the cluster are not counted.
        """
        each = tasks * hours / max(1, self.chunks)  # of a chunk, at the mean speed
        normal = NormalDist(0.0, SPREAD)
        slower = [math.exp(normal.inv_cdf((place + 0.5) / tasks)) for place in range(tasks)]
        free = [(0.0, place) for place in range(tasks)]
        end = 0.0
        for start, stop in shards_of(self.chunks, self.config.launcher.chunks_per_claim, tasks):
            at, place = free[0]
            at += (stop - start) * each * slower[place]
            heapq.heapreplace(free, (at, place))
            end = max(end, at)
        return end


def simulate(plan: Plan, documents: float | None) -> Simulation:
    """Return the plan's configuration with this many documents, shaped as in this corpus; None: the size of the
    paper's.

    Raises `ConfigError` if `documents` is not a number of documents.
    """
    measured = MeasuredCorpus.of(plan.chunks)
    size = _size(measured, documents)
    config = plan.config
    stages = [_segment_cost(measured, size)] if SEGMENT in plan.stages else []
    families: list[tuple[str, float]] = [("documents", size.documents), ("sentences", size.sentences)] if stages else []
    for settings in config.asked_stages():
        if settings.name in plan.stages:
            sample = getattr(settings, "sample", 1.0)
            rows = min(size.sentences, sample.rows) if isinstance(sample, Rows) else size.sentences * sample
            stages.append(_cost(config, measured, settings.name, rows))
            families += [(family, rows) for family in settings.writes]
    storage = tuple(storage_of(config, measured, family, rows) for family, rows in families)
    return Simulation(config, size, tuple(stages), storage)


def _size(measured: MeasuredCorpus, documents: float | None) -> Size:
    if documents is None:
        return PAPER
    if not (math.isfinite(documents) and documents >= 1):
        raise ConfigError(f"--documents {documents}: give a number of documents, for instance 4e9")
    each = measured.sentences_per_document
    if not measured.sentences:
        return Size(documents, documents * each, PAPER.input_bytes, f"documents as in {PAPER.origin}")
    stored = measured.bytes_read / measured.sentences
    return Size(
        documents,
        documents * each,
        stored,
        f"documents as in this corpus: {each:.1f} sentences per document, {stored:.1f} bytes of input per sentence",
    )


def _segment_cost(measured: MeasuredCorpus, size: Size) -> StageCost:
    return _measured_cost(measured, SEGMENT, size.sentences, 1) or StageCost(SEGMENT, size.sentences, 1, None)


def _cost(config: RunConfig, measured: MeasuredCorpus, stage: str, rows: float) -> StageCost:
    times = len(config.fragility.noise_levels) if config.fragility and stage == "fragility" else 1
    found = _measured_cost(measured, stage, rows, times)
    if found:
        return found
    if stage == "encode":
        return StageCost(stage, rows, times, PAPER_RATES, BY_PAPER)
    decoded = _measured_cost(measured, "autobleu", rows, 1) if stage == "fragility" else None
    if decoded and decoded.rates:
        slow, fast = (rate / times for rate in decoded.rates)
        return StageCost(stage, rows, times, (slow, fast), DERIVED, decoded.parts)
    return StageCost(stage, rows, times, None)


def _measured_cost(measured: MeasuredCorpus, stage: str, rows: float, times: int) -> StageCost | None:
    if not measured.rows[stage] or not measured.seconds[stage]:
        return None
    rate = measured.rows[stage] / measured.seconds[stage]
    return StageCost(stage, rows, times, (rate, rate), measured.devices[stage], measured.parts[stage])


def storage_of(config: RunConfig, measured: MeasuredCorpus, family: str, rows: float) -> Storage:
    """Return the storage of a number of rows of a family, at the bytes per row that were measured, or by the schema.

    Args:
        config: the configuration.
        measured: what the corpus holds.
        family: the family.
        rows: how many rows there are; of samples, those in the sample.

    Returns:
        The rows, and the bytes of each.
    """
    if measured.stored_rows[family]:
        return Storage(family, rows, measured.stored[family] / measured.stored_rows[family], "")
    return Storage(family, rows, _by_schema(config, family), BY_SCHEMA)


def _by_schema(config: RunConfig, family: str) -> float:
    """Return bytes per row before compression, vectors as they are stored; of texts only the sentence and its
    decoding.
    """
    if family == "embeddings" and config.encode:
        return 2 * load_card(config.encode.model).dim * STORED
    if family == "plan-embeddings" and config.encode:
        return 2 * load_card(config.encode.model).dim * STORED / PARAGRAPH
    if family == "codes" and config.rvq:
        return 2 * config.rvq.codebooks * math.ceil(math.log2(config.rvq.units)) / 16
    levels = len(config.fragility.noise_levels) if config.fragility else 0
    total = 0.0
    for column in layout.schema(family):
        if column.name in ("text", "decoded", "plan"):
            total += PAPER.input_bytes / (PARAGRAPH if column.name == "plan" else 1)
        elif str(column.type).startswith("list"):
            total += 4 * levels
        else:
            total += NUMBERS.get(str(column.type), 0)
    return total
