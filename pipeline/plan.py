"""What a run would do and why, how much it is and how long it takes, decided from receipts alone: no torch, no Ray.

Stale means: the receipt that the present configuration asks for is not there, but one of another fingerprint is. The
reason is what differs between the two recipes (`encode.model: sonar-tiny → sonar`), or that the columns read changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from pipeline import layout
from pipeline.config import FITS, STAGES, RunConfig
from pipeline.errors import ConfigError
from pipeline.expression import parse
from pipeline.fingerprint import difference, fingerprint
from pipeline.fits.records import freeze
from pipeline.inputs import Chunk, nearest_languages, order_chunks, plan_inputs
from pipeline.part_reader import ROW_COLUMNS, columns_of
from pipeline.receipts import ChunkReceipt, PartRef, Receipt, read_chunk_receipt, read_receipt
from pipeline.recipes import SEGMENT
from pipeline.state import ChunkState, View, in_parallel, read_state, saved_recipe
from pipeline.store import Store
from stages.sampling import Rows
from stages.sonar.card import load_card

NEW = "new"
SCALER = "scaler"  # the section that only fits
LATER = "after the fits on the pilot"
ON_PILOT = "on the pilot"


@dataclass
class StageWork:
    """What is done and left of one stage. `rate`: sentences/s measured so far (None: not measured).

    `guessed`: it was not measured, but follows from another stage's.
    """

    stage: str
    done: int = 0
    left: int = 0
    sentences_done: int = 0
    sentences_left: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    rate: float | None = None
    guessed: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Time that the known sentences take at the measured rate."""
        return self.sentences_left / self.rate if self.rate else None


@dataclass
class Plan:
    """The state of a corpus against a configuration, and the work that follows."""

    config: RunConfig
    view: View
    stages: tuple[str, ...]  # those that this run may do
    chunks: list[ChunkState]
    work: dict[str, StageWork]
    missing_fits: tuple[str, ...]  # of this run

    def over(self, chunks: list[ChunkState]) -> Plan:
        """The same work on these chunks only."""
        return replace(self, chunks=chunks)

    def chunks_to_segment(self) -> list[Chunk]:
        """Chunks without a receipt, in the run's order."""
        return [one.chunk for one in self.chunks if not one.receipt] if SEGMENT in self.stages else []

    def parts_to_visit(self) -> list[PartRef]:
        """Parts that are segmented and lack a stage of this run."""
        wanted = set(self.stages)
        return [part.ref for one in self.chunks for part in one.parts if wanted.intersection(part.missing)]

    @property
    def nothing_to_do(self) -> bool:
        """Whether everything that this run may do is done."""
        return not (self.to_launch or self.missing_fits or self.waiting)

    @property
    def to_launch(self) -> set[str]:
        """Ids of the chunks and names of the parts that a launcher would work on now."""
        return {one.id for one in self.chunks_to_segment()} | {ref.part for ref in self.parts_to_visit()}

    @property
    def waiting(self) -> tuple[str, ...]:
        """Row-wise stages of this run that cannot be done before something is decided on the pilot."""
        return tuple(stage for stage in self.stages if stage not in (SEGMENT, SCALER, *self.view.stages))


def choose_stages(config: RunConfig, only: str | None, until: str | None) -> tuple[str, ...]:
    """The stages a run may do. Raises `ConfigError` for a stage that is not in the file."""
    present = tuple(name for name in STAGES if name == SEGMENT or getattr(config, name) is not None)
    for option, name in (("--only", only), ("--until", until)):
        if name is not None and name not in present:
            raise ConfigError(f"{option} {name}: no such section in the file; allowed: {', '.join(present)}")
    if only and until:
        raise ConfigError("--only and --until exclude each other; give one of them")
    if only:
        return (only,)
    return present[: present.index(until) + 1] if until else present


def make_plan(
    config: RunConfig,
    only: str | None = None,
    until: str | None = None,
    refit: Collection[str] = (),
    chunks: Sequence[Chunk] | None = None,
) -> Plan:
    """Compare a configuration with what is on disk. `refit`: fits to make anew, and what depends on them.

    `chunks`: of the inputs, where they are known already. Raises `ConfigError` if an input matches nothing.
    """
    stages = choose_stages(config, only, until)
    config = freeze(Store(config.output), config, refit)
    check_languages(config)
    check_select(config)
    if chunks is None:
        chunks = order_chunks(plan_inputs(config.input, chunk_bytes=config.chunk_bytes), seed=config.seed)
    view = View.of(config, chunks)
    store = Store(config.output)
    state = read_state(store, view)
    work = {stage: StageWork(stage) for stage in stages}
    if SEGMENT in work:
        _segment_work(store, view, state, work[SEGMENT])
    rows = [part.rows for one in state for part in one.parts]
    for stage in stages:
        if stage in view.stages:
            _stage_work(store, view, state, work[stage])
        elif stage == SCALER:
            fitted = int(SCALER in config.frozen.fits)
            work[stage] = StageWork(stage, fitted, 1 - fitted, reasons=Counter({ON_PILOT: 1 - fitted}))
        elif stage != SEGMENT:
            work[stage] = StageWork(stage, 0, len(rows), 0, sum(rows), Counter({LATER: len(rows)}))
    _price_fragility(config, state, work)
    missing = tuple(name for name in FITS if name in stages and name not in config.frozen.fits)
    return Plan(config, view, stages, state, work, missing)


def _price_fragility(config: RunConfig, state: Sequence[ChunkState], work: dict[str, StageWork]) -> None:
    """Before anything is measured: a sampled sentence costs a decoding for each noise level, at AutoBLEU's speed."""
    todo, settings = work.get("fragility"), config.fragility
    if not todo or not settings or todo.rate or not todo.sentences_left:
        return
    receipts = [part.receipts["autobleu"] for one in state for part in one.parts if "autobleu" in part.receipts]
    scored, seconds = sum(one.counts["scored"] for one in receipts), sum(map(_busy, receipts))
    if scored and seconds:
        sample = config.frozen.rates.get("fragility", settings.sample)
        share = min(1.0, sample.rows / todo.sentences_left) if isinstance(sample, Rows) else sample
        todo.rate = scored / seconds / len(settings.noise_levels) / share
        todo.guessed = True


def check_select(config: RunConfig) -> None:
    """Raises `ConfigError` for a condition of `select` that the columns of these stages can never answer."""
    if not config.select or config.select.where is None:
        return
    families = ["sentences", *(family for stage in config.asked_stages() for family in stage.writes)]
    made = {f"{family}.{name}" for family in families for name in layout.schema(family, width=1).names}
    made |= {f"documents.{name}" for name in (*layout.DOCUMENT_COLUMNS, *config.keep_columns())}
    types = {column.name: column.type for column in columns_of(made).values()}
    parse(config.select.where, types, "select.where", absent=set(ROW_COLUMNS) - set(types))


def check_languages(config: RunConfig) -> None:
    """Raises `ConfigError` for inputs in a language that the model does not know: not one document would be kept."""
    card = load_card(config.segment.model)
    mistakes = [
        f"input.{index}.lang is {one.lang!r}, which {card.name} does not know; "
        f"{nearest_languages(one.lang, card.languages)}; or {{column: NAME}}, where each document says its own, or "
        "detect, where its text does"
        for index, one in enumerate(config.input)
        if isinstance(one.lang, str) and one.lang not in card.languages
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _segment_work(store: Store, view: View, state: Sequence[ChunkState], work: StageWork) -> None:
    older: dict[str, list[str]] = {}
    if any(not one.receipt for one in state):
        for path in store.find("chunks"):
            older.setdefault(layout.data_owner(path)[0], []).append(path)
    paths = [path for one in state if not one.receipt for path in older.get(one.chunk.id, [])]
    found: dict[str, list[ChunkReceipt]] = {}
    for receipt in in_parallel(lambda path: read_chunk_receipt(store, path), paths):
        found.setdefault(receipt.chunk, []).append(receipt)
    seconds = 0.0
    for one in state:
        if one.receipt:
            work.done += 1
            work.sentences_done += one.receipt.sentences
            seconds += one.receipt.seconds
            continue
        work.left += 1
        previous = found.get(one.chunk.id)
        if not previous:
            work.reasons[NEW] += 1
            continue
        last = max(previous, key=lambda receipt: receipt.created)
        work.sentences_left += last.sentences
        now = view.segment[one.chunk.input]
        if last.recipe == fingerprint(now):
            old = {"stamp": last.stamp, "take": last.take}
            work.reasons.update(difference(old, {"stamp": one.chunk.stamp, "take": one.chunk.take}, one.chunk.path))
        else:
            work.reasons.update(difference(saved_recipe(store, SEGMENT, last.recipe), now) or ["recipe changed"])
    work.rate = work.sentences_done / seconds if seconds else None


def _stage_work(store: Store, view: View, state: Sequence[ChunkState], work: StageWork) -> None:
    seconds = 0.0
    waiting: list[tuple[PartRef, int]] = []
    for one in state:
        for part in one.parts:
            if work.stage in part.missing:
                waiting.append((part.ref, part.rows))
            else:
                receipt = part.receipts[work.stage]
                work.done += 1
                work.sentences_done += receipt.rows
                seconds += _busy(receipt)
    older: dict[str, list[str]] = {}
    if waiting:
        for path in store.find(f"receipts/{work.stage}"):
            older.setdefault(layout.data_owner(path)[0], []).append(path)
    reasons = in_parallel(lambda entry: _why(store, view, work.stage, older.get(entry[0].part, [])), waiting)
    sentences = work.sentences_done
    for (_, rows), (reason, last) in zip(waiting, reasons, strict=True):
        work.left += 1
        work.sentences_left += rows
        work.reasons.update(reason)
        if last and not work.sentences_done:
            sentences += last.rows
            seconds += _busy(last)
    work.rate = sentences / seconds if seconds else None


def _why(store: Store, view: View, stage: str, older: Sequence[str]) -> tuple[list[str], Receipt | None]:
    """Why a part lacks a stage, and the receipt of its last time."""
    if not older:
        return [NEW], None
    last = max((read_receipt(store, path) for path in older), key=lambda receipt: receipt.created)
    now = view.stages[stage]
    if last.recipe != fingerprint(now):
        return difference(saved_recipe(store, stage, last.recipe), now) or ["recipe changed"], last
    return [f"{', '.join(sorted(last.inputs))}: the content changed"], last


def _busy(receipt: Receipt) -> float:
    """Seconds of work on a part; waiting for the device is not work."""
    return sum(value for key, value in receipt.seconds.items() if key != "wait")
