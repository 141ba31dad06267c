"""Implements `pipeline compare-decoders`: which of two decoders is worth more (LCM Table 7, Figures 9, 14, 15).

Both decode the same held-out sentences: exact embeddings, embeddings with the same noise, and embeddings dequantised
from the first codes. Differences are paired, and their errors are over documents. Cost: for each decoder one decoding
of the sample for each level of noise, and one for each number of codebooks; the corpus is only read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from rich.console import Console

from pipeline.base.errors import ConfigError
from pipeline.base.messages import print_plain
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.quality.decoders.measure import MeasuredDecoder, Measuring
from pipeline.quality.decoders.sample import SPLITS, HeldOutSample, take_held_out
from pipeline.quality.decoders.show import figures, to_html, to_json, to_table
from pipeline.quality.report.plots import standalone
from pipeline.storage.replacing import check_replaceable, replacing_file
from stages.autobleu.settings import AutobleuSettings
from stages.cards import CardError
from stages.fragility.card import load_external_card
from stages.sonar.card import ModelCard, load_card

NO_EXTERNAL = "none"
PAGE = "index.html"


@dataclass(frozen=True)
class DecoderOptions:
    """The options of the command, as `pipeline/cli.py` explains them."""

    decoders: tuple[str, str]
    split: str
    sentences: int
    levels: str
    external: str | None
    to: str


def compare_decoders(
    console: Console, corpus: Corpus, options: DecoderOptions, find_device: Callable[[], str]
) -> list[MeasuredDecoder]:
    """Measure both decoders, print the table, and write page, figures and numbers.

    Args:
        console: where the table is printed.
        corpus: the corpus.
        options: the options of the command.
        find_device: says where networks compute; it is called once everything else is checked.

    Returns:
        What was measured of each decoder.

    Raises:
        ConfigError: for options or decoders that cannot be compared, before anything is decoded.
        PipelineError: if the results cannot be written, likewise.
    """
    levels = levels_of(options.levels)
    if options.split not in SPLITS:
        raise ConfigError(f"--split {options.split}: allowed: {', '.join(SPLITS)}")
    config = newest_config(corpus.store)
    decoding = AutobleuSettings.model_validate_json(json.dumps(config.get("autobleu") or {}))
    cards = _cards(options.decoders, load_card(config["encode"]["model"]))
    external = options.external or (config.get("fragility") or {}).get("external") or NO_EXTERNAL
    if external != NO_EXTERNAL:
        try:
            load_external_card(external)
        except CardError as error:
            raise ConfigError(f"--external {external}: {error}") from error
    sample = take_held_out(corpus, options.split, options.sentences)
    check_replaceable(_place(options.to, PAGE))
    measuring = Measuring(
        corpus, sample, levels, None if external == NO_EXTERNAL else external, decoding, find_device()
    )
    print_plain(console, f"{corpus.url}: {sample.describe()}")
    found = []
    for name, card in zip(options.decoders, cards, strict=True):
        with console.status(f"decoding with {card.name}"):
            found.append(measuring.measure(card, name))
    for line in to_table(sample, found):
        print_plain(console, line)
    _write(console, corpus, sample, found, options.to)
    return found


def _write(console: Console, corpus: Corpus, sample: HeldOutSample, found: list[MeasuredDecoder], to: str) -> None:
    plots = figures(sample, found)
    files = {
        "results.json": (json.dumps(to_json(corpus.url, sample, found), indent=1, ensure_ascii=False) + "\n").encode(),
        PAGE: to_html(corpus.url, sample, found, plots).encode(),
    }
    files |= {f"{name}.svg": standalone(one.svg) for name, one in plots.items()}
    for name, data in files.items():
        with replacing_file(_place(to, name)) as file:
            file.write(data)
    names = ", ".join(str(PurePosixPath(name)) for name in files)
    print_plain(console, f"{to.rstrip('/')}: {names} written")


def _place(to: str, name: str) -> str:
    return f"{to.rstrip('/')}/{name}"


def levels_of(text: str) -> tuple[float, ...]:
    """Parse `0.1,0.5`: variances of noise, each once. Raises `ConfigError` for anything else."""
    try:
        found = tuple(dict.fromkeys(float(one) for one in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 < one <= 1 for one in found):
        raise ConfigError(f"--noise {text}: give variances above 0, and at most 1, such as 0.1,0.3,0.5")
    return tuple(sorted(found))


def _cards(names: tuple[str, str], encoder: ModelCard) -> list[ModelCard]:
    """Load the cards. Raises `ConfigError` for decoders that do not go with the encoder, or are one and the same."""
    found = []
    for name in names:
        try:
            card = load_card(name)
            card.check_encoder(encoder, "the decoder of")
        except CardError as error:
            raise ConfigError(str(error)) from error
        found.append(card)
    if found[0].decoder_digest == found[1].decoder_digest:
        raise ConfigError(f"{names[0]} and {names[1]} have the same decoder ({found[0].decoder_digest}); name two")
    return found
