"""Estimates roughly how long a plan keeps this machine busy, only to choose where to work.

It uses the rates that this corpus measured if there are any, or else those of this machine, or else the sizes of the
networks on the models' cards; of stages without such a network it assumes a rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.config.run_config import RunConfig
from pipeline.corpus.recipes import SEGMENT
from pipeline.planning.plan import Plan
from pipeline.planning.rates import machine_rate
from stages.cards import CardError
from stages.cores import cores
from stages.plans.settings import PARAGRAPH
from stages.sampling import Rows
from stages.sonar.card import ModelCard, load_card
from stages.stage import StageSettings

BY_CARD = ("encode", "plans", "autobleu", "fragility")  # stages whose networks are on cards
TOKENS = 28  # per sentence, likewise
BY_SAT, BY_RULES = 600.0, 6000.0  # sentences per second and process: by SaT on a core, by spaCy's rules
CORE_FLOPS, GPU_FLOPS = 25e9, 10e12  # operations per second that the networks reach
SENTENCE_SECONDS = 0.5e-3  # beside these: tokens, batches, and writing
FAST_GPU = 12_000.0  # sentences per second that a GPU encodes at best
SPARE = 1.5  # segmenters beyond those that visitors need on average


def busy_seconds_of(plan: Plan, new: float, cores: int, gpus: int) -> float:
    """Estimate the seconds that the rest of a plan takes; fits are not counted.

    Args:
        plan: what the run would do.
        new: how many sentences segmenting will yield.
        cores: how many CPU cores work on it.
        gpus: how many GPUs work on it; with any, cores are not counted.

    Returns:
        Seconds.
    """
    power = gpus * GPU_FLOPS or cores * CORE_FLOPS
    seconds = new / _segmenting_rate(plan) if SEGMENT in plan.work else 0.0
    return seconds + sum(found for found, _ in _visiting(plan, new, power))


def segmenters_per_visitor(plan: Plan, gpu: bool, threads: int) -> float | None:
    """Estimate how many segmenting processes keep a visitor busy, with some to spare.

    Rates that nobody has measured are assumed so that rather too many segment.

    Args:
        plan: what the run would do.
        gpu: whether the visitor computes on a GPU.
        threads: with how many threads it computes otherwise.

    Returns:
        A number of processes per visitor; None if nothing is visited.
    """
    sentences = 1e9  # of a large corpus, as samples of a number of rows are small there
    found = list(_visiting(plan, sentences, GPU_FLOPS if gpu else threads * CORE_FLOPS, left=False))
    seconds = sum(seconds for seconds, _ in found)
    if not seconds or SEGMENT not in plan.work:
        return None
    visited = sentences / seconds
    if gpu and not any(measured for _, measured in found):
        visited = max(visited, FAST_GPU)
    return SPARE * visited / _segmenting_rate(plan)


def _segmenting_rate(plan: Plan) -> float:
    """Return the sentences per second of one process."""
    segments = machine_rate(plan.config, SEGMENT)
    return plan.work[SEGMENT].rate or (segments.per_second(None) if segments else _segmented(plan.config))


def _visiting(plan: Plan, new: float, power: float, left: bool = True) -> Iterator[tuple[float, bool]]:
    """Yield the seconds of work of every stage but segmenting, and whether a measured rate says so.

    `left`: whether sentences that wait already count, too.
    """
    for settings in plan.config.asked_stages():
        work = plan.work.get(settings.name)
        if not work:
            continue
        sentences = new + (work.sentences_left if left else 0)
        if work.rate:
            yield sentences / work.rate, True
        elif measured := machine_rate(plan.config, settings.name):
            yield worked_on(plan.config, settings.name, sentences) / measured.per_second(None), True
        else:
            yield _card_seconds(plan.config, settings, sentences, power), False


def worked_on(config: RunConfig, stage: str, sentences: float) -> float:
    """Return how many of these sentences a stage works on: those in its sample, if it has one.

    Args:
        config: the configuration.
        stage: the stage.
        sentences: how many sentences there are.

    Returns:
        A number of sentences.
    """
    settings = next((one for one in config.asked_stages() if one.name == stage), None)
    sample = getattr(settings, "sample", 1.0)
    return min(sentences, sample.rows) if isinstance(sample, Rows) else float(sentences * sample)


def rate_of(config: RunConfig, stage: str, sentences: float) -> float | None:
    """Estimate the rate of one worker of this machine: by the size of the network for stages in `BY_CARD`, by a rough
    assumption for others.

    Args:
        config: the configuration.
        stage: the stage.
        sentences: how many sentences there are.

    Returns:
        Sentences per second; None if nothing is known.
    """
    if stage == SEGMENT:
        return _segmented(config)
    settings = next((one for one in config.asked_stages() if one.name == stage), None)
    power = GPU_FLOPS if has_gpu() else cores() * CORE_FLOPS
    seconds = _card_seconds(config, settings, sentences, power) if settings else 0.0
    return sentences / seconds if seconds else None


def has_gpu() -> bool:
    """Return whether NVIDIA's driver knows a GPU here; asking torch would take seconds to load it."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*"))


def _segmented(config: RunConfig) -> float:
    """Return the sentences per second that segmenting is assumed to reach where nobody has measured it."""
    return BY_SAT if config.segment.uses_sat else BY_RULES


def _card_seconds(config: RunConfig, settings: StageSettings, sentences: float, power: float) -> float:
    """Return seconds of work; `power` is in operations per second."""
    operations = _operations(config, settings.name)
    return worked_on(config, settings.name, sentences) * (operations / power + SENTENCE_SECONDS * bool(operations))


def _operations(config: RunConfig, stage: str) -> float:
    """Return the operations of a stage for one sentence; 0 if the model's card cannot be read, which others report."""
    try:
        card = load_card(config.encode.model) if config.encode else None
        if stage in ("encode", "plans") and card:
            each = 2 * TOKENS * card.encoder_layers * (4 * card.dim**2 + 2 * card.dim * card.ffn_dim)
            return each if stage == "encode" else each / PARAGRAPH
        if stage == "autobleu" and config.autobleu:
            return _decoding(load_card(config.autobleu.model)) * config.autobleu.beam
        if stage == "fragility" and config.fragility:
            return _decoding(load_card(config.fragility.model)) * len(config.fragility.noise_levels)
    except CardError:
        return 0.0
    return 2.0 * (card.dim**2 if card else 0)


def _decoding(card: ModelCard) -> float:
    """Return the operations of a greedy decoding, with the projection onto the vocabulary for every token."""
    layers = card.decoder_layers * (8 * card.dim**2 + 2 * card.dim * card.ffn_dim)
    return 2.0 * TOKENS * (layers + card.dim * card.vocab_size)
