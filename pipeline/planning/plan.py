"""Decides from receipts alone what a run would do and why, how much it is and how long it takes: no torch, no Ray.

A result is stale if the receipt that the present configuration asks for does not exist, but one with another
fingerprint does. The reason is the difference between the two recipes (`encode.model: sonar-tiny → sonar`), or that the
columns it reads changed.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted
from pipeline.config.run_config import RunConfig
from pipeline.config.stages import FITS, ONLY_FITS, STAGES
from pipeline.corpus.counters import CHUNK, Counters, busy_seconds, by_detail
from pipeline.corpus.fits import freeze
from pipeline.corpus.receipts import PartRef
from pipeline.corpus.recipes import SEGMENT, with_comparison, with_known_duplicates
from pipeline.corpus.runs import known_edges, packs
from pipeline.corpus.states import ChunkState, States, View, read_state
from pipeline.inputs import Chunk, nearest_languages, order_chunks, plan_inputs
from pipeline.planning.pilot_size import check_learnable, check_scored
from pipeline.planning.reasons import StageWork, segment_reasons, stage_reasons
from pipeline.planning.same_content import recognise
from pipeline.storage.store import Store
from stages.sampling import Rows
from stages.sonar.card import load_card

LATER = "after the fits on the pilot"
ON_PILOT = "on the pilot"


@dataclass(frozen=True)
class Refs(Sequence[PartRef]):
    """Parts of chunks that lack one of these stages, in the order of the chunks."""

    chunks: Sequence[ChunkState]
    stages: tuple[str, ...]

    def __iter__(self) -> Iterator[PartRef]:
        return (ref for one in self.chunks for ref in one.waiting(self.stages))

    def __len__(self) -> int:
        return sum(one.count_waiting(self.stages)[0] for one in self.chunks)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    @overload
    def __getitem__(self, index: int) -> PartRef: ...
    @overload
    def __getitem__(self, index: slice) -> list[PartRef]: ...
    def __getitem__(self, index: int | slice) -> PartRef | list[PartRef]:
        return list(self)[index]


@dataclass
class Plan:
    """The state of a corpus compared with a configuration, and the work that follows."""

    config: RunConfig
    view: View
    stages: tuple[str, ...]  # those that this run may do
    chunks: Sequence[ChunkState]
    work: dict[str, StageWork]
    missing_fits: tuple[str, ...]  # of this run
    same_files: int = 0  # that have another time or version than when they were segmented, and hold the same

    @property
    def visits(self) -> tuple[str, ...]:
        """Return the stages that workers do, chunk by chunk and part by part."""
        return tuple(stage for stage in self.stages if stage not in self._corpus_wide)

    @property
    def compares(self) -> tuple[str, ...]:
        """Return the stages that compare the whole corpus, and that some part lacks."""
        wide = tuple(stage for stage in self.stages if stage in self._corpus_wide)
        return tuple(stage for stage in wide if any(one.count_waiting((stage,))[0] for one in self.chunks))

    @property
    def compares_later(self) -> bool:
        """Return whether a stage of this run compares the whole corpus, when everything else is done."""
        return not self._corpus_wide.isdisjoint(self.stages)

    @property
    def _corpus_wide(self) -> set[str]:
        return {stage.name for stage in self.config.asked_stages() if stage.corpus_wide}

    def over(self, chunks: Sequence[ChunkState]) -> Plan:
        """Return the same plan for these chunks only."""
        return replace(self, chunks=chunks)

    def chunks_to_work_on(self) -> Iterator[ChunkState]:
        """Yield the chunks that lack a stage of this run, in its order."""
        visits = self.visits
        return (one for one in self.chunks if one.lacks(visits))

    def chunks_to_segment(self) -> Sequence[Chunk]:
        """Return the chunks without a receipt, in the run's order."""
        if SEGMENT not in self.stages:
            return []
        if isinstance(self.chunks, States):
            return self.chunks.unsegmented()
        return [one.chunk for one in self.chunks if not one.segmented]

    def parts_to_visit(self) -> Sequence[PartRef]:
        """Yield the parts that are segmented and lack a stage of this run, created during iteration."""
        return Refs(self.chunks, self.visits)

    def sentences_to_visit(self) -> int:
        """Return the number of sentences in the parts to visit."""
        visits = self.visits
        return sum(one.count_waiting(visits)[1] for one in self.chunks)

    @property
    def nothing_to_do(self) -> bool:
        """Whether everything that this run may do is done."""
        return not (self.missing_fits or self.waiting or self.launches or self.compares)

    @property
    def launches(self) -> bool:
        """Whether a launcher has something to work on now."""
        return any(True for _ in self.chunks_to_work_on())

    def todo_digest(self) -> str:
        """Return 32 hex digits of the chunks and parts that a launcher would work on now, in the order of the run."""
        digest = hashlib.blake2b(digest_size=16)
        for one in self.chunks_to_segment():
            digest.update(one.id.encode())
        for ref in self.parts_to_visit():
            digest.update(ref.part.encode())
        return digest.hexdigest()

    @property
    def waiting(self) -> tuple[str, ...]:
        """The row-wise stages of this run that have to wait for a decision on the pilot."""
        return tuple(stage for stage in self.stages if stage not in (SEGMENT, *ONLY_FITS, *self.view.stages))


def _choose_stages(config: RunConfig, only: str | None, until: str | None) -> tuple[str, ...]:
    """Return the stages that a run may do. Raises `ConfigError` for a stage that is not in the file."""
    present = tuple(name for name in STAGES if name == SEGMENT or getattr(config, name) is not None)
    for option, name in (("--only", only), ("--until", until)):
        if name is not None and name not in present:
            near = difflib.get_close_matches(name, present, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{option} {name}: no such section in the file; {hint}allowed: {', '.join(present)}")
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
    """Compare a configuration with what is on disk.

    Args:
        config: the configuration.
        only: the stages to do, with commas; None for all.
        until: the last stage to do; None for all.
        refit: the names of fits to make again, together with what depends on them.
        chunks: the chunks of the inputs, if they are known already.

    Returns:
        What is done, what is missing, and why.

    Raises:
        ConfigError: if an input matches nothing.
    """
    stages = _choose_stages(config, only, until)
    config = freeze(Store(config.output), config, refit)
    own = config.predictor and not config.predictor.file
    learns = own and "predictor" in stages and "predictor" not in config.frozen.fits
    if learns:
        config = config.scoring_the_pilot()
    check_languages(config)
    check_train(config)
    if chunks is None:
        store = Store(config.output)
        found = plan_inputs(config.input, config.chunk_bytes, packs(store), known_edges(store, config.chunk_bytes))
        chunks = order_chunks(found, seed=config.seed)
    if learns:
        check_scored(config, chunks)
    store = Store(config.output)
    config = with_comparison(with_known_duplicates(store, config, chunks), chunks)
    view = View.of(config, chunks)
    state = read_state(store, view)
    recognised = recognise(state, config)
    if recognised:
        config = with_comparison(with_known_duplicates(store, config, recognised.chunks), recognised.chunks)
        view = View.of(config, recognised.chunks)
        state = read_state(store, view)
    if learns and chunks and not state.total.get("segment/left"):
        rows = state.total.get(f"{CHUNK}/sentences", 0.0)
        check_learnable(config, rows, f"the corpus has {counted(rows, 'sentence')}")
    work = {stage: _work(state.total, stage) for stage in stages}
    if SEGMENT in work:
        segment_reasons(state, work[SEGMENT])
    rows, parts = int(state.total.get(f"{CHUNK}/sentences", 0)), int(state.total.get(f"{CHUNK}/parts", 0))
    for stage in stages:
        if stage in view.stages:
            stage_reasons(state, work[stage])
        elif stage in ONLY_FITS:
            fitted = int(stage in config.frozen.fits)
            work[stage] = StageWork(stage, fitted, 1 - fitted, reasons=Counter({ON_PILOT: 1 - fitted}))
        elif stage != SEGMENT:
            work[stage] = StageWork(stage, 0, parts, 0, rows, Counter({LATER: parts}))
    _price_fragility(config, state.total, work)
    missing = tuple(name for name in FITS if name in stages and name not in config.frozen.fits)
    return Plan(config, view, stages, state, work, missing, recognised.files if recognised else 0)


def _work(total: Counters, stage: str) -> StageWork:
    """Return how much of a stage is done and left, and how fast it was."""
    done, seconds = total.get(f"{stage}/rows", 0.0), busy_seconds(by_detail(total, stage, "seconds"))
    if stage == SEGMENT:
        seconds = total.get(f"{CHUNK}/seconds", 0.0)
    return StageWork(
        stage,
        done=int(total.get(f"{CHUNK}/chunks" if stage == SEGMENT else f"{stage}/parts", 0)),
        left=int(total.get(f"{stage}/left", 0)),
        sentences_done=int(done),
        sentences_left=int(total.get(f"{stage}/waiting", 0)),
        rate=done / seconds if seconds else None,
        scored_rate=total.get(f"{stage}/counts/scored", done) / seconds if seconds else None,
    )


def _price_fragility(config: RunConfig, total: Counters, work: dict[str, StageWork]) -> None:
    """Estimate an unmeasured rate: a sampled sentence costs a decoding for each noise level, at AutoBLEU's speed."""
    todo, settings = work.get("fragility"), config.fragility
    if not todo or not settings or todo.rate or not todo.sentences_left:
        return
    scored, seconds = total.get("autobleu/counts/scored", 0.0), busy_seconds(by_detail(total, "autobleu", "seconds"))
    if scored and seconds:
        sample = config.frozen.rates.get("fragility", settings.sample)
        share = min(1.0, sample.rows / todo.sentences_left) if isinstance(sample, Rows) else sample
        todo.rate = scored / seconds / len(settings.noise_levels) / share
        todo.guessed = True


def check_train(config: RunConfig) -> None:
    """Raise `ConfigError` or `CardError` for a model that cannot be trained on what these stages produce."""
    if config.train and config.train.card.quantised and config.rvq is None:
        raise ConfigError(
            f"train.model {config.train.model} models codes, which nothing makes here; add a section "
            "`rvq: {codebooks: 8, units: 256}`"
        )


def check_languages(config: RunConfig) -> None:
    """Raise `ConfigError` for inputs in a language that the model does not know: none of their documents would
    be kept.
    """
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
