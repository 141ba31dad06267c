"""Estimates what is left of a plan: sentences and tokens, how long they take, and how many bytes they become.

For each input some chunks are examined, the first of the run (their order is random): segmented chunks give sentences
per byte; of others, the first documents are counted (`examined.py`). The spread between chunks gives the uncertainty. A
rate is what this corpus measured, or else what was measured on this machine (`rates.py`), or else what the models'
cards imply for it, or else a rough assumption. Cost: at most 8 × 256 kB of each input, and no network.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.formats import counted, number
from pipeline.config.run_config import RunConfig
from pipeline.config.stages import ONLY_FITS
from pipeline.corpus.counters import CHUNK, Counters, busy_seconds, by_detail
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.runs import is_begun
from pipeline.corpus.states import ChunkState, States
from pipeline.inputs import ChunkTable
from pipeline.inputs.listing import COMPRESSIONS
from pipeline.planning.examined import Examined, Texts, examine
from pipeline.planning.pilot_size import doubts, drawn, small_parts
from pipeline.planning.plan import Plan
from pipeline.planning.rates import SETUP_SECONDS, keep_rate, machine_rate
from pipeline.planning.reasons import NEW
from pipeline.planning.simulation import BY_SCHEMA, MeasuredCorpus, storage_of
from pipeline.planning.workload import BY_CARD, rate_of, worked_on
from pipeline.storage.records import Values
from pipeline.storage.store import Store
from stages.segment.token_cap import cut_by_tokens, tokens_by_language
from stages.sonar.card import load_card

LOOKED_AT = 8  # chunks of an input
SEGMENTED = 1000  # chunks that are searched for segmented ones
FEW = 0.3  # relative error of sentences if one chunk of an input was examined
BY_MARKS = 0.15  # of counting marks, if no chunk of an input is segmented yet
GUESSED = 0.6  # of sentences that no mark tells
AGAIN = 0.1  # if the same documents were segmented before
TOLD_SECONDS = 5.0  # expected of a stage; how far off less time was says nothing
FILE = "estimate.json"  # in a run's folder
HERE, MACHINE = "measured in this corpus", "measured on this machine"
CARD, ASSUMED = "from the model's card", "roughly assumed"
COMPRESSED = {  # stored bytes for each one of the schema, where nothing is measured: of three corpora of books
    "documents": 2.2, "sentences": 0.45, "noise": 0.07, "hashes": 0.5, "autobleu": 0.65, "duplicates": 0.04,
    "near-duplicates": 0.05,
}  # fmt: skip
_Kind = tuple[str, bool]  # of chunks that hold about as much in a byte: input, and whether they are compressed


@dataclass(frozen=True)
class StageEstimate:
    """Estimate of one stage: sentences to do, seconds of one worker (None: no rate is known), and where the rate comes
    from: `HERE`, `MACHINE`, `CARD` or `ASSUMED`; empty if no rate is known.
    """

    sentences: float
    seconds: float | None
    source: str


@dataclass(frozen=True)
class Estimate:
    """What a plan brings.

    sentences: how many segmenting will yield; error: the relative error of that number; tokens: how many they have,
    language tag and `</s>` included (None: unknown, since the model's tokenizer is not on this machine); documents: how
    many were examined; stored_bytes: what all stages will write, also for sentences that are segmented already;
    warnings: languages that the cap in tokens cuts, fits that get too few sentences from the pilot, and parts that are
    small for so large a corpus.
    """

    sentences: float
    error: float
    tokens: float | None
    documents: int
    stored_bytes: float
    warnings: tuple[str, ...] = ()
    stages: dict[str, StageEstimate] = field(default_factory=dict)


def estimate_of(plan: Plan) -> Estimate:
    """Return an estimate of what is left of a plan."""
    sentences = variance = tokens = counted_by_marks = 0.0
    documents = examined = 0
    card, segment = load_card(plan.config.segment.model), plan.config.segment
    counts: dict[str, tuple[int, int]] = {}
    chunks = ChunkTable.of(plan.chunks_to_segment())
    work = plan.work.get(SEGMENT)
    if work and work.sentences_left and _cut_alike(work.reasons):
        sentences, variance = float(work.sentences_left), (work.sentences_left * AGAIN) ** 2
        tokens = sentences * (work.tokens_each or 0.0)
    elif len(chunks):
        done = _segmented(plan.chunks[: min(SEGMENTED, len(plan.chunks))])
        known = (work.tokens_each if work else None) or _known_tokens(plan) or 0.0
        for kind, rows in _alike(chunks):
            texts = Texts()
            found, error, seen = _of_alike(plan, rows, texts, done.get(kind, []))
            of_texts = tokens_by_language(card, texts.first)
            each = texts.tokens_per_sentence(of_texts) or _tokens_of(done.get(kind, [])) or known
            sentences, variance, documents = sentences + found, variance + (found * error) ** 2, documents + seen
            tokens += found * each
            counted_by_marks, examined = counted_by_marks + texts.sentences, examined + texts.documents
            counts |= of_texts
    relative = math.sqrt(variance) / sentences if sentences else 0.0
    whole = sentences + plan.work[SEGMENT].sentences_done if work else sentences
    warnings = [
        *cut_by_tokens(counts, segment.max_tokens if segment.capped else None, card.name),
        *(doubts(plan.config, whole) if plan.missing_fits else ()),
        *drawn(plan.config, [one for one, work in plan.work.items() if work.left or sentences], whole),
        *(small_parts(plan.config, sentences, len(plan.chunks)) if not is_begun(Store(plan.config.output)) else ()),
    ]
    each_token = tokens / sentences if tokens else _known_tokens(plan)
    stages = {stage: _stage(plan, stage, sentences, each_token) for stage in plan.work}
    per_document = counted_by_marks / examined if examined else None
    return Estimate(
        sentences,
        relative,
        tokens or None,
        documents,
        _stored_bytes(plan, stages, per_document),
        tuple(warnings),
        stages,
    )


def _cut_alike(reasons: Iterable[str]) -> bool:
    """Return whether all chunks were segmented before, by settings that gave about as many sentences as they will."""
    return not any(one == NEW or one.startswith(f"{SEGMENT}.") for one in reasons)


def _alike(chunks: ChunkTable) -> list[tuple[_Kind, ChunkTable]]:
    """Return the kinds of chunks, and the chunks of each in the order of the run."""
    inputs = chunks.table["input"].combine_chunks()
    numbers = 2 * inputs.indices.to_numpy() + _compressed(chunks)
    found = [
        ((name, compressed), np.flatnonzero(numbers == 2 * at + compressed))
        for at, name in enumerate(inputs.dictionary.to_pylist())
        for compressed in (False, True)
    ]
    return [(kind, chunks.take(rows)) for kind, rows in found if len(rows)]


def _compressed(chunks: ChunkTable) -> npt.NDArray[np.bool_]:
    """Return which chunks hold more than they store: are compressed, or, of several files, have one that is."""
    ends = "|".join(re.escape(one) for one in COMPRESSIONS)
    url = chunks.table["url"].combine_chunks()
    packed = pc.match_substring_regex(url.dictionary, f'(?:{ends})"', ignore_case=True).take(url.indices)
    alone = pc.not_equal(chunks.table["compression"].combine_chunks().cast(pa.string()), "")
    return np.asarray(pc.or_(packed, alone))


def _of_alike(plan: Plan, chunks: ChunkTable, texts: Texts, done: Sequence[ChunkState]) -> tuple[float, float, int]:
    """Return the sentences of chunks of a kind, their relative error, and how many documents were examined.

    texts: collects their texts; done: segmented chunks of the kind, from which nothing is read.
    """
    cut = chunks.table["take"].is_valid().to_numpy()
    sentences = error = 0.0
    documents = 0
    for chunk in chunks.take(np.flatnonzero(cut)):  # in which a limit ends: its bytes say nothing
        if (one := examine(plan.config, chunk, texts)) and one.records and chunk.take:
            found = one.sentences_of(chunk.take)
            sentences, documents = sentences + found, documents + one.documents
            error = math.hypot(error, found * math.hypot(_of_counting([one]), 0.0 if one.whole else FEW))
    whole = np.flatnonzero(~cut)
    size = float(chunks.table["bytes"].to_numpy()[whole].sum())
    if len(whole):
        looked = [Examined(one.chunk.bytes, one.sentences or 0, segmented=True) for one in done] or [
            one for chunk in chunks.take(whole[:LOOKED_AT]) if (one := examine(plan.config, chunk, texts))
        ]
        documents += sum(one.documents for one in looked)
        rate, spread = _rate(looked, everything=sum(one.bytes for one in looked) >= size)
        sentences, error = sentences + rate * size, math.hypot(error, rate * size * spread)
    return sentences, error / sentences if sentences else 0.0, documents


def _stage(plan: Plan, stage: str, new: float, tokens: float | None) -> StageEstimate:
    """Return the estimate of a stage; new: the sentences that segmenting will yield; tokens: those of an average
    sentence.
    """
    todo = plan.work[stage]
    rows = new + (todo.sentences_left if stage != SEGMENT else 0)
    rate, measured_seconds = _own_rate(plan, stage)
    if rate and measured_seconds >= SETUP_SECONDS:
        return StageEstimate(rows, rows / rate, HERE)
    if stage not in ONLY_FITS and (measured := machine_rate(plan.config, stage)):
        seconds = worked_on(plan.config, stage, rows) / measured.per_second(tokens)
        return StageEstimate(rows, seconds, MACHINE)
    if rate:
        return StageEstimate(rows, rows / rate, HERE)
    rate = rate_of(plan.config, stage, rows)
    source = CARD if stage in BY_CARD else ASSUMED
    return StageEstimate(rows, rows / rate if rate else None, source if rate else "")


def _older_counters(plan: Plan, stage: str) -> Counters:
    """Return the counters of chunks in ledgers that are not in the view: segmented with any settings, other stages with
    these.
    """
    if not isinstance(plan.chunks, States) or not len(plan.chunks.ledgers):
        return {}
    ledgers, recipe = plan.chunks.ledgers, fingerprint(plan.view.stages.get(stage))
    same = [stage in one and (stage == SEGMENT or one[stage]["recipe"] == recipe) for one in ledgers.recipes]
    (counters,) = ledgers.counters(np.where(np.asarray(same, np.bool_)[ledgers.recipe], 0, -1), 1)
    return counters


def _own_rate(plan: Plan, stage: str) -> tuple[float | None, float]:
    """Return sentences per second of what this corpus did, and in how many seconds it was measured: now, or before if
    that was more.
    """
    rate = plan.work[stage].rate
    now = plan.work[stage].sentences_done / rate if rate else 0.0
    if now >= SETUP_SECONDS:
        return rate, now
    counters = _older_counters(plan, stage)
    before = seconds_of(counters, stage)
    return (counters.get(f"{stage}/rows", 0.0) / before, before) if before > now else (rate, now)


def _known_tokens(plan: Plan) -> float | None:
    """Return the tokens of an average sentence that this corpus segmented, now or before."""
    return _tokens_in(getattr(plan.chunks, "total", {})) or _tokens_in(_older_counters(plan, SEGMENT))


def _tokens_in(counters: Counters) -> float | None:
    rows = counters.get(f"{SEGMENT}/rows", 0.0)
    return counters.get(f"{SEGMENT}/counts/tokens", 0.0) / rows or None if rows else None


def seconds_of(counters: Counters, stage: str) -> float:
    """Return the seconds of work of a stage."""
    if stage == SEGMENT:
        return counters.get(f"{CHUNK}/seconds", 0.0)
    return busy_seconds(by_detail(counters, stage, "seconds"))


def _segmented(states: Sequence[ChunkState]) -> dict[_Kind, list[ChunkState]]:
    """Return kind → its segmented chunks that no limit cuts."""
    done = [one for one in states if one.segmented and one.chunk.bytes and one.chunk.take is None]
    found: dict[_Kind, list[ChunkState]] = {}
    for one, compressed in zip(done, _compressed(ChunkTable.of(one.chunk for one in done)).tolist(), strict=True):
        found.setdefault((one.chunk.input, compressed), []).append(one)
    return found


def _tokens_of(done: Sequence[ChunkState]) -> float | None:
    """Return the tokens of an average sentence of some segmented chunks, as the receipts of the first ones say."""
    receipts = [one.receipt for one in done[:LOOKED_AT] if one.receipt]
    sentences = sum(one.sentences for one in receipts)
    return sum(one.counts.get("tokens", 0.0) for one in receipts) / sentences or None if sentences else None


def _rate(looked: Sequence[Examined], everything: bool) -> tuple[float, float]:
    """Return sentences per byte, and their relative error: the spread of chunks over the root of their number."""
    size, sentences = sum(one.bytes for one in looked), sum(one.sentences for one in looked)
    if not size or not sentences:
        return 0.0, 1.0
    rate = sentences / size
    spread = sum((one.sentences - rate * one.bytes) ** 2 for one in looked)
    error = FEW
    if everything:
        error = 0.0
    elif len(looked) > 1:
        error = math.sqrt(spread * len(looked) / (len(looked) - 1)) / sentences
    return rate, math.hypot(error, 0.0 if looked[0].segmented else _of_counting(looked))


def _of_counting(looked: Sequence[Examined]) -> float:
    """Return the relative error of counting sentences without a model."""
    guessed = sum(one.doubtful for one in looked) / max(1.0, sum(one.sentences for one in looked))
    return math.hypot(BY_MARKS, GUESSED * guessed)


def _stored_bytes(plan: Plan, stages: Mapping[str, StageEstimate], per_document: float | None) -> float:
    """Return the bytes of the rows that each stage has to do, family by family. per_document: sentences of examined
    documents; None if there are none.
    """
    measured = MeasuredCorpus.of(plan.chunks)
    rows: dict[str, float] = {}
    if SEGMENT in stages:
        new = stages[SEGMENT].sentences
        rows = {"documents": new / (per_document or measured.sentences_per_document), "sentences": new}
    for settings in plan.config.asked_stages():
        if settings.name in stages:
            left = worked_on(plan.config, settings.name, stages[settings.name].sentences)
            rows |= dict.fromkeys(settings.writes, left)
    found = [storage_of(plan.config, measured, family, left) for family, left in rows.items()]
    return sum(one.total * (COMPRESSED.get(one.family, 1.0) if one.origin == BY_SCHEMA else 1.0) for one in found)


def kept_estimate(plan: Plan, estimate: Estimate) -> bytes:
    """Return an estimate to store in the folder of a new run, with what the corpus held at that time."""
    before = _amounts(getattr(plan.chunks, "total", {}), plan.work)
    value = asdict(estimate) | {"before": before, "again": is_made_again(plan)}
    return json.dumps(value, indent=1).encode()


def is_made_again(plan: Plan) -> bool:
    """Return whether some chunks were segmented before: documents of theirs that come out the same are not computed."""
    return SEGMENT in plan.work and bool(set(+plan.work[SEGMENT].reasons) - {NEW})


def _amounts(total: Counters, stages: Iterable[str]) -> dict[str, float]:
    """Return the sentences and tokens of a corpus, and for each stage the rows it worked on and seconds of work."""
    found = {"sentences": total.get(f"{CHUNK}/sentences", 0), "tokens": total.get(f"{SEGMENT}/counts/tokens", 0)}
    for stage in stages:
        found[f"{stage}/seconds"] = seconds_of(total, stage)
        found[f"{stage}/rows"] = total.get(f"{stage}/counts/scored", total.get(f"{stage}/rows", 0.0))
    return found


def _since(kept: bytes, total: Counters) -> tuple[Values, dict[str, float]]:
    """Return an estimate, and what came since then; in a run of an earlier version only sentences are known."""
    value = json.loads(kept)
    now = _amounts(total, value["stages"])
    before = value["before"] if isinstance(value["before"], dict) else {"sentences": value["before"]}
    return value, {name: now.get(name, 0.0) - then for name, then in before.items()}


def compared(kept: bytes, total: Counters) -> str | None:
    """Compare an estimate with the result; None if nothing new came. total: counters of the corpus at the run's end."""
    value, came = _since(kept, total)
    expected = value["sentences"]
    if expected < 1 or came["sentences"] < 1:
        return None
    what = "sentence" if value.get("again") else "new sentence"
    copied = " with those that were copied" if value.get("again") else ""
    found = (
        f"estimate: {counted(came['sentences'], what)}{copied}, {number(expected)} ± {value['error']:.0%} were "
        f"expected (actual/estimated {came['sentences'] / expected:.2f})"
    )
    more = [f"tokens {came['tokens'] / value['tokens']:.2f}"] if value.get("tokens") and came.get("tokens") else []
    for stage, one in value["stages"].items():
        if (one["seconds"] or 0.0) >= TOLD_SECONDS and (spent := came.get(f"{stage}/seconds", 0.0)) > 0:
            more.append(f"time of {stage} {spent / one['seconds']:.2f} (rate {one['source']})")
    return f"{found}; {', '.join(more)}" if more else found


def keep_rates(kept: bytes, total: Counters, config: RunConfig) -> None:
    """Keep what a run on this machine measured for later plans (`rates.py`).

    Args:
        kept: the estimate that the run began with.
        total: the counters of the corpus after the run.
        config: the configuration of the run.
    """
    value, came = _since(kept, total)
    each = _tokens_in(total) or 0.0
    for stage in value["stages"]:
        rows = came.get(f"{stage}/rows", 0.0)
        if rows > 0 and came[f"{stage}/seconds"] >= SETUP_SECONDS:
            keep_rate(config, stage, rows, rows * each, came[f"{stage}/seconds"])
