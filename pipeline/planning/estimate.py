"""Estimates the sentences that are still to be segmented, how long they take, and how many bytes they become.

For each input some chunks are examined, the first of the run (their order is random): segmented chunks give sentences
per byte; for others, the sentences of the first documents are counted by punctuation marks, without a model. The spread
between chunks gives the uncertainty. A rate is what this corpus measured, or else what the models' cards imply for this
machine. Cost: at most 8 × 256 kB of each input, and no network.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from pipeline.base.errors import PipelineError
from pipeline.base.formats import number
from pipeline.corpus.counters import CHUNK, busy_seconds, by_detail
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.states import ChunkState, States
from pipeline.inputs import Chunk, ChunkTable, Rejected, count_documents, files_of, read_documents
from pipeline.inputs.chunk import PACKED
from pipeline.planning.plan import Plan
from pipeline.planning.reasons import NEW
from pipeline.planning.workload import rate_of
from pipeline.storage import layout
from stages.segment import marks
from stages.segment.settings import SegmentSettings
from stages.segment.token_cap import ENOUGH, cut_by_tokens, tokens_by_language
from stages.sonar.card import load_card

LOOKED_AT = 8  # chunks of an input
SAMPLE_CHARACTERS = 1 << 18  # of a chunk
SEGMENTED = 1000  # chunks that are searched for segmented ones
FEW = 0.3  # relative error of sentences if one chunk of an input was examined
BY_MARKS = 0.15  # of counting marks, if no chunk of an input is segmented yet
AGAIN = 0.1  # if the same documents were segmented before
_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？।])|\n\s*")
FILE = "estimate.json"  # in a run's folder


@dataclass(frozen=True)
class StageEstimate:
    """Estimate of one stage: sentences to do, seconds of one worker (None: no rate is known), and whether a card gave
    the rate.
    """

    sentences: float
    seconds: float | None
    by_card: bool


@dataclass(frozen=True)
class Estimate:
    """What a plan brings. error: of the sentences, relative; documents: looked at; warnings: languages that the cap in
    tokens cuts.
    """

    sentences: float
    error: float
    documents: int
    stored_bytes: float
    warnings: tuple[str, ...] = ()
    stages: dict[str, StageEstimate] = field(default_factory=dict)


@dataclass(frozen=True)
class _Looked:
    """An examined chunk: stored bytes, the sentences in them, and whether segmenting counted them."""

    bytes: float
    sentences: float
    segmented: bool
    documents: int = 0


def estimate_of(plan: Plan) -> Estimate:
    """Estimate what is left of a plan; `sentences` are those that segmenting will yield."""
    sentences = variance = 0.0
    documents = 0
    texts: dict[str, str] = {}
    by_input, weights = _first_of_inputs(ChunkTable.of(plan.chunks_to_segment()))
    work = plan.work.get(SEGMENT)
    if (
        work and work.sentences_left and NEW not in work.reasons
    ):  # all chunks were segmented before, with other settings
        sentences, by_input, variance = float(work.sentences_left), {}, (work.sentences_left * AGAIN) ** 2
    done = _segmented(plan.chunks[: min(SEGMENTED, len(plan.chunks))]) if weights else {}
    for name, chunks in by_input.items():
        looked = done.get(name) or [one for chunk in chunks if (one := _look(plan, chunk, texts))]
        every = sum(one.bytes for one in looked) >= weights[name]
        rate, error = _rate(looked, every)
        sentences += rate * weights[name]
        variance += (rate * weights[name] * error) ** 2
        documents += sum(one.documents for one in looked)
    stages = {}
    for stage, todo in plan.work.items():
        rows = sentences + (todo.sentences_left if stage != SEGMENT else 0)
        measured = todo.rate or _older_rate(plan, stage)
        speed = measured or rate_of(plan.config, stage, rows)
        stages[stage] = StageEstimate(rows, rows / speed if speed else None, by_card=not measured)
    relative = math.sqrt(variance) / sentences if sentences else 0.0
    card, segment = load_card(plan.config.segment.model), plan.config.segment
    warnings = cut_by_tokens(tokens_by_language(card, texts), segment.max_tokens if segment.capped else None, card.name)
    return Estimate(sentences, relative, documents, sentences * _stored_bytes(plan), tuple(warnings), stages)


def _first_of_inputs(chunks: ChunkTable) -> tuple[dict[str, list[Chunk]], dict[str, float]]:
    """Return input → its first chunks, and the stored bytes of all its chunks."""
    inputs = chunks.table["input"].combine_chunks()
    number_of, size = inputs.indices.to_numpy(), chunks.table["bytes"].to_numpy()
    first, weights = {}, {}
    for at, name in enumerate(inputs.dictionary.to_pylist()):
        rows = np.flatnonzero(number_of == at)
        if len(rows):
            first[name] = list(chunks.take(rows[:LOOKED_AT]))
            weights[name] = float(size[rows].sum())
    return first, weights


def _older_rate(plan: Plan, stage: str) -> float | None:
    """Return the rate of chunks in ledgers that are not in the view: segmented with any settings, other stages with
    these.
    """
    if not isinstance(plan.chunks, States) or not len(plan.chunks.ledgers):
        return None
    ledgers, recipe = plan.chunks.ledgers, fingerprint(plan.view.stages.get(stage))
    same = [stage in one and (stage == SEGMENT or one[stage]["recipe"] == recipe) for one in ledgers.recipes]
    (sums,) = ledgers.sums(np.where(np.asarray(same, np.bool_)[ledgers.recipe], 0, -1), 1)
    rows, seconds = sums.get(f"{stage}/rows", 0.0), busy_seconds(by_detail(sums, stage, "seconds"))
    if stage == SEGMENT:
        seconds = sums.get(f"{CHUNK}/seconds", 0.0)
    return rows / seconds if seconds else None


def _segmented(states: Sequence[ChunkState]) -> dict[str, list[_Looked]]:
    """Return input → its segmented chunks."""
    found: dict[str, list[_Looked]] = {}
    for one in states:
        if one.segmented and one.chunk.bytes:
            found.setdefault(one.chunk.input, []).append(_Looked(one.chunk.bytes, one.sentences or 0, True))
    return found


def _rate(looked: Sequence[_Looked], everything: bool) -> tuple[float, float]:
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
    return rate, math.hypot(error, 0.0 if looked[0].segmented else BY_MARKS)


def _look(plan: Plan, chunk: Chunk, by_language: dict[str, str]) -> _Looked | None:
    """Return the first documents of a chunk, and add their texts to `by_language`.

    None where it cannot be read, which the run itself will say.
    """
    config = plan.config
    settings = next(one for one in config.input if one.name == chunk.input)
    languages = load_card(config.segment.model).languages
    read = characters = sentences = kept = 0
    texts: list[str] = []
    at = chunk.start
    whole = True
    try:
        for item in read_documents(chunk, settings, config.split, languages):
            if characters >= SAMPLE_CHARACTERS:
                place = re.search(r"byte (\d+)$", item.record)
                at = int(place[1]) if place else at
                whole = False
                break
            read += item.records if isinstance(item, Rejected) else 1
            if not isinstance(item, Rejected):
                kept += 1
                characters += len(item.text)
                texts.append(item.text)
                by_language[item.lang] = (by_language.get(item.lang, "") + item.text[:ENOUGH])[:ENOUGH]
                sentences += count_sentences(item.text, config.segment)
        return _Looked(_bytes_of(chunk, read, at, texts, whole), sentences, False, kept)
    except (PipelineError, OSError):
        return None


def _bytes_of(chunk: Chunk, read: int, at: int, texts: list[str], whole: bool) -> float:
    """Return the stored bytes of the first documents of a chunk.

    Of a chunk that is cut by a limit, that is the share of its documents which was read: what follows is never read.
    """
    if whole:
        return float(chunk.bytes)
    if chunk.take is not None:
        return chunk.bytes * min(1.0, read / chunk.take)
    if chunk.format == PACKED:
        return float(sum(file.bytes for file, _ in zip(files_of(chunk), range(read), strict=False)))
    if chunk.format == "parquet":
        return chunk.bytes * read / count_documents(chunk).documents
    size = at - chunk.start
    if not chunk.compression:
        return float(size)
    text = "".join(texts).encode()
    return size * len(zlib.compress(text)) / len(text)


def count_sentences(text: str, settings: SegmentSettings) -> int:
    """Estimate the number of sentences of a text by marks and line ends, with the cap on their length."""
    lengths = [len(one.strip()) for one in _END.split(text) if marks.INK.search(one)]
    if not settings.capped:
        return len(lengths)
    found = sum(math.ceil(one / settings.max_chars) for one in lengths)
    return min(found, max(1, sum(lengths) // settings.min_chars)) if settings.min_chars and lengths else found


def _stored_bytes(plan: Plan) -> float:
    """Return the bytes of a sentence in all families: as measured here, or else two bytes per dimension and about its
    text.
    """
    total = getattr(plan.chunks, "total", {})
    rows = total.get(f"{CHUNK}/sentences", 0)
    if rows:
        return float(sum(value for key, value in total.items() if "/bytes/" in key) / rows)
    config = plan.config
    families = [family for stage in config.asked_stages() for family in stage.writes]
    embedding = 2 * 0.85 * load_card(config.encode.model).dim if config.encode else 0.0  # after compression by zstd
    codes = 2.0 * config.rvq.codebooks if config.rvq and "codes" in families else 0.0
    return 90.0 + embedding + codes + sum(20.0 for family in families if family in layout.ROW_FAMILIES)


def kept_estimate(plan: Plan) -> bytes:
    """Return an estimate to store in the folder of a new run, with what the corpus held at that time."""
    before = int(getattr(plan.chunks, "total", {}).get(f"{CHUNK}/sentences", 0))
    return json.dumps(asdict(estimate_of(plan)) | {"before": before}, indent=1).encode()


def compared(kept: bytes, sentences: int) -> str | None:
    """Compare an estimate with the result; None if nothing was to be segmented. `sentences`: those of the
    corpus now.
    """
    value = json.loads(kept)
    expected, came = value["sentences"], sentences - value["before"]
    if expected < 1 or came < 1:
        return None
    return (
        f"estimate: {number(came)} new sentences, {number(expected)} ± {value['error']:.0%} were expected "
        f"(actual/estimated {came / expected:.2f})"
    )
