"""Measures on this machine how fast stages are, in a few seconds: `pipeline plan --calibrate`.

Some of the corpus's own documents are segmented, encoded and decoded, a few seconds each, and only the rates are stored
(`planning/rates.py`). Stages that need a fit, or nothing but arithmetic on embeddings, are left to a run; so is a model
whose files are not on this machine, which would have to be fetched first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.errors import starting
from pipeline.base.formats import number
from pipeline.config.run_config import RunConfig
from pipeline.corpus.recipes import SEGMENT
from pipeline.inputs import Chunk, Document, read_documents
from pipeline.planning.rates import keep_rate, machine
from stages.registry import build_stage
from stages.segment.segmenter import Segmenter
from stages.sonar.card import FileRole, load_card
from stages.sonar.tokenizer import SonarTokenizer
from stages.stage import Stage, whole

SECONDS = 4.0  # the longest that a portion of a stage should take
CHARACTERS = 600_000  # of documents; about 7 000 sentences
FIRST, GROWTH, MOST = 8, 4, 8192  # items of the first portion, growth from one to the next, items of the last
BATCHED = 128  # items from which on a portion has nearly the rate of large batches
ROLES: dict[str, FileRole] = {"encode": "encoder", "autobleu": "decoder"}

Tell = Callable[[str], object]


@dataclass
class _Measured:
    """What was done in `seconds`."""

    rows: int = 0
    seconds: float = 0.0


def calibrate(config: RunConfig, chunks: Sequence[Chunk], device: str, tell: Tell) -> None:
    """Measure `segment`, `encode` and `autobleu`, where the configuration has them, and keep the rates.

    Args:
        config: the configuration.
        chunks: of its inputs; the first ones are read.
        device: "cpu" or "cuda", as for a worker.
        tell: is told what was measured, and what was not.
    """
    documents = _documents(config, chunks)
    if not documents:
        tell("calibration: there is no document to measure with")
        return
    found: dict[str, float] = {}
    card = load_card(config.segment.model)
    with starting(SEGMENT):
        segmenter = Segmenter(config.segment, SonarTokenizer(card).count, device)
    texts, langs, counts = list[str](), list[str](), list[int]()

    def segment(start: int, stop: int) -> int:
        some = documents[start:stop]
        for held in (texts, langs, counts):
            held.clear()
        sentences = segmenter.segment([one.text for one in some], [one.lang for one in some])
        texts.extend(sentences.text.to_pylist())
        langs.extend(some[document].lang for document in sentences.document.tolist())
        counts.extend(sentences.tokens.tolist())
        return len(sentences.document)

    measured = _measure(segment, len(documents))
    each = sum(counts) / max(1, len(counts))
    _keep(config, SEGMENT, measured, each, found)
    embedded: pa.Table | None = None
    for settings in (config.encode, config.autobleu):
        if settings is None or (settings.name == "autobleu" and embedded is None):
            continue
        path = load_card(settings.model).path(ROLES[settings.name])
        if not path.is_file():
            tell(f"calibration: {settings.name} is not measured, because {path} is not on this machine yet")
            continue
        if settings.name == "autobleu":
            settings = settings.model_copy(update={"sample": 1.0})
        with starting(settings.name):
            stage = build_stage(settings, {})
            stage.setup(device)
        rows = _rows(texts, langs) if embedded is None else embedded
        measured = _measure(_part(stage, rows), len(rows))
        _keep(config, settings.name, measured, each, found)
        if settings.name == "encode":
            embedded = _encoded(stage, rows.slice(0, measured.rows))
    rates = ", ".join(f"{stage} {number(rate)}" for stage, rate in found.items())
    tell(f"calibration on this machine ({machine()}), in sentences/s of one worker: {rates}")


def _documents(config: RunConfig, chunks: Sequence[Chunk]) -> list[Document]:
    """Return the first documents of the first chunk of each input, CHARACTERS in all at most."""
    first = {chunk.input: chunk for chunk in reversed(chunks[:1000])}
    found: list[Document] = []
    for name, chunk in first.items():
        settings = next(one for one in config.input if one.name == name)
        left = CHARACTERS // len(first)
        for item in read_documents(chunk, settings, config.split, load_card(config.segment.model).languages):
            if isinstance(item, Document):
                found.append(item)
                left -= len(item.text)
            if left <= 0:
                break
    return found


def _rows(texts: list[str], langs: list[str]) -> pa.Table:
    drawn: npt.NDArray[np.float64] = np.random.default_rng(0).random(len(texts))
    return pa.table({"sentences.text": texts, "sentences.lang": langs, "sentences.u": drawn})


def _part(stage: Stage, rows: pa.Table) -> Callable[[int, int], int]:
    def work(start: int, stop: int) -> int:
        some = rows.slice(start, stop - start).combine_chunks()
        whole(stage, some)
        return len(some)

    return work


def _encoded(stage: Stage, rows: pa.Table) -> pa.Table:
    """Return rows with what encoding makes of them."""
    for family, table in whole(stage, rows.combine_chunks()).families.items():
        for name in table.column_names:
            rows = rows.append_column(f"{family}.{name}", table[name])
    return rows


def _measure(work: Callable[[int, int], int], items: int) -> _Measured:
    """Work on portions of some items, each four times as large as the one before, until one takes long enough.

    Only the last portion counts: networks need large batches for the rate that they have in a run (a decoder has a
    fifth of it with 8 sentences), so a small portion is the last one only where it takes SECONDS by itself.
    `work`: works on a range of items, and returns how many sentences that were. The largest portion is all items.
    """
    size = min(items, FIRST)
    work(0, size)  # the first time, libraries are still set up
    while True:
        started = time.perf_counter()
        found = _Measured(work(0, size), time.perf_counter() - started)
        enough = SECONDS / GROWTH if size >= BATCHED else SECONDS
        if found.seconds >= enough or size >= min(items, MOST):
            return found
        size = min(items, MOST, size * GROWTH)


def _keep(config: RunConfig, stage: str, measured: _Measured, tokens: float, found: dict[str, float]) -> None:
    if measured.rows:
        keep_rate(config, stage, measured.rows, measured.rows * tokens, measured.seconds, asked=True)
        found[stage] = measured.rows / measured.seconds
