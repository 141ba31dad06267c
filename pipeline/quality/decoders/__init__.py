"""Implements `pipeline compare-decoders`: which of two decoders is worth more (LCM Table 7, Figures 9, 14, 15).

Both decode the same held-out sentences: exact embeddings, embeddings with the same noise, and embeddings dequantised
from the first codes. Differences are paired, and their errors are over documents. Cost: for each decoder one decoding
of the sample for each level of noise, and one for each number of codebooks; the corpus is only read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from rich.console import Console

from pipeline.base.errors import ConfigError
from pipeline.base.messages import print_plain
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.quality.decoders.measure import (
    SPLITS,
    HeldOutSample,
    MeanScore,
    MeasuredDecoder,
    Measuring,
    Scores,
    take_held_out,
)
from pipeline.quality.report import page_of
from pipeline.quality.report.page import Figure, Headline, Note, Section, Table, decimal, number
from pipeline.quality.report.plots import Line, by_length, histogram, lines, standalone
from pipeline.quality.report.rows import Bin, summarise
from pipeline.storage.replacing import check_replaceable, replacing_file
from stages.autobleu.settings import AutobleuSettings
from stages.cards import CardError
from stages.fragility.card import load_external_card
from stages.sonar.card import ModelCard, load_card

NO_EXTERNAL = "none"
PAGE = "index.html"
LENGTH_STEP, LENGTHS = 20, 10  # characters; steps, the last one takes all that is longer
ALL = "all"


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
    for line in _to_table(sample, found):
        print_plain(console, line)
    _write(console, corpus, sample, found, options.to)
    return found


def _write(console: Console, corpus: Corpus, sample: HeldOutSample, found: list[MeasuredDecoder], to: str) -> None:
    plots = _figures(sample, found)
    files = {
        "results.json": (json.dumps(_to_json(corpus.url, sample, found), indent=1, ensure_ascii=False) + "\n").encode(),
        PAGE: _to_html(corpus.url, sample, found, plots).encode(),
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


def verdict(difference: MeanScore) -> str:
    """Say whether a difference is larger than two standard errors, which one document does not tell."""
    if math.isnan(difference.error):
        return "unknown"
    if not abs(difference.mean) > 2 * difference.error:
        return "undecided"
    return "higher" if difference.mean > 0 else "lower"


def _rows(sample: HeldOutSample, found: Sequence[MeasuredDecoder]) -> list[tuple[str, list[MeanScore], MeanScore]]:
    """Return name, mean of each decoder, and difference: Table 7 by language, then by noise, then by codebooks."""
    first, second = found
    langs = np.asarray(sample.langs, object)
    rows = []
    for name in (ALL, *sorted(set(sample.langs))):
        chosen = np.flatnonzero((langs == name) | (name == ALL))
        part = _subset(sample, chosen)
        means = [part.mean(one.bleu[chosen, 0]) for one in found]
        rows.append((f"exact, {name}", means, part.mean(second.bleu[chosen, 0].astype(float) - first.bleu[chosen, 0])))
    for at, level in enumerate(first.levels[1:], start=1):
        rows.append((f"noise {level:g}", *_compared(sample, [one.bleu[:, at] for one in found])))
    for at, count in enumerate(first.codebooks):
        rows.append((f"codebooks {count}", *_compared(sample, [one.by_codebooks[:, at] for one in found])))
    if first.cosine is not None and second.cosine is not None:
        for at, level in enumerate(first.levels):
            values = [100 * one.cosine[:, at] for one in found if one.cosine is not None]
            rows.append((f"cosine · 100, noise {level:g}", *_compared(sample, values)))
    return rows


def _compared(sample: HeldOutSample, values: Sequence[Scores]) -> tuple[list[MeanScore], MeanScore]:
    return [sample.mean(one) for one in values], sample.mean(values[1].astype(np.float64) - values[0])


def _subset(sample: HeldOutSample, rows: Any) -> HeldOutSample:
    return HeldOutSample(
        sample.split,
        [sample.texts[at] for at in rows],
        [sample.langs[at] for at in rows],
        sample.u[rows],
        sample.documents[rows],
        sample.embeddings[rows],
        None,
    )


def _names(found: Sequence[MeasuredDecoder]) -> list[str]:
    """Return the cards' names; where they are alike, what was asked for."""
    names = [one.card.name for one in found]
    return names if len(set(names)) == len(names) else [one.asked for one in found]


def _to_table(sample: HeldOutSample, found: Sequence[MeasuredDecoder]) -> list[str]:
    """Return the lines of the table."""
    names, rows = _names(found), _rows(sample, found)
    width = max(len(name) for name, *_ in rows)
    columns = [max(len(one), 13) for one in names]
    head = "  ".join(one.rjust(size) for one, size in zip(names, columns, strict=True))
    shown = [f"{'BLEU':{width}}  {head}  {'difference':>13}"]
    for name, means, difference in rows:
        cells = "  ".join(str(one).rjust(size) for one, size in zip(means, columns, strict=True))
        shown.append(f"{name:{width}}  {cells}  {difference!s:>13}  {verdict(difference)}")
    return [*shown, "± two standard errors, over documents; differences are paired by sentence"]


def _to_json(url: str, sample: HeldOutSample, found: Sequence[MeasuredDecoder]) -> dict[str, Any]:
    """Return every number of the figures."""

    def of(one: MeanScore) -> dict[str, float | None]:
        return {"mean": one.mean, "error": one.error if math.isfinite(one.error) else None}

    names = _names(found)
    rows = {
        name: {"decoders": dict(zip(names, map(of, means), strict=True)), "difference": of(difference)}
        | {"verdict": verdict(difference)}
        for name, means, difference in _rows(sample, found)
    }
    decoders = {
        name: {"card": one.asked, "decoder": one.card.decoder_digest} for name, one in zip(names, found, strict=True)
    }
    about = {"corpus": url, "split": sample.split, "sentences": len(sample), "external": found[0].external}
    return about | {"documents": len(np.unique(sample.documents)), "decoders": decoders, "rows": rows}


def _figures(sample: HeldOutSample, found: Sequence[MeasuredDecoder]) -> dict[str, Figure]:
    """Return the figures by the names of their files."""
    names, first = _names(found), found[0]

    def curves(columns: Sequence[Scores], places: Sequence[float]) -> dict[str, Line]:
        return {
            name: Line(places, *zip(*((m.mean, m.error) for m in map(sample.mean, one.T)), strict=True))
            for name, one in zip(names, columns, strict=True)
        }

    plots = {
        "noise": Figure(
            lines("noise", curves([one.bleu for one in found], first.levels), "noise variance α", "BLEU", top=100),
            "BLEU by noise (Figure 14, right)",
            "Embeddings with noise of LCM eq. 27, the same for both. Bands: ± 2 standard errors, over documents.",
        )
    }
    if first.codebooks:
        by_codes = curves([one.by_codebooks for one in found], first.codebooks)
        exact = {f"{name}, exact": sample.mean(one.bleu[:, 0]).mean for name, one in zip(names, found, strict=True)}
        plots["codebooks"] = Figure(
            lines("codebooks", by_codes, "codebooks", "BLEU", top=100, levels=exact),
            "BLEU by number of codebooks (Figure 9)",
            "Embeddings dequantised from the first codes. Dashed: exact embeddings.",
        )
    if first.cosine is not None:
        cosines = [one.cosine for one in found if one.cosine is not None]
        plots["cosine"] = Figure(
            lines("cosine", curves(cosines, first.levels), "noise variance α", "cosine", top=1),
            "Cosine by noise (Figure 14, right)",
            f"Of the sentence and what was decoded, by {first.external}.",
        )
    averaged = {name: one.bleu[:, 1:].mean(axis=1) for name, one in zip(names, found, strict=True)}
    plots["length"] = Figure(
        by_length("length", {name: _bins(sample, one) for name, one in averaged.items()}, "BLEU", top=100),
        "BLEU by length, mean over noise (Figure 14, left)",
        "Bands: from the first to the ninth decile.",
    )
    plots["distribution"] = Figure(
        histogram("distribution", averaged, "BLEU, mean over noise", limits=(0, 100)),
        "Distribution of BLEU, mean over noise (Figure 15)",
    )
    return plots


def _bins(sample: HeldOutSample, values: Scores) -> list[Bin]:
    step = np.minimum(np.array([len(text) - 1 for text in sample.texts]) // LENGTH_STEP, LENGTHS - 1)
    return [summarise(values[step == at], at * LENGTH_STEP + 1) for at in range(LENGTHS)]


def _to_html(url: str, sample: HeldOutSample, found: Sequence[MeasuredDecoder], plots: Mapping[str, Figure]) -> str:
    """Return the page: the differences in words, Table 7, and the figures."""
    names, rows = _names(found), _rows(sample, found)
    head = ("", *names, "difference", "")
    cells = [[name, *map(str, means), str(difference), verdict(difference)] for name, means, difference in rows]
    exact = [row for row in cells if row[0].startswith("exact")]
    lead = f"{names[1]} against {names[0]}, on {sample.describe()}. ± two standard errors, over documents."
    sections = [
        Section("table", "Exact embeddings (Table 7)", lead, [Table(head, exact)]),
        Section("figures", "Noise, codes and lengths", "", list(plots.values())),
        Section("numbers", "As numbers", "", [Table(head, [row for row in cells if row not in exact])]),
    ]
    first = rows[0]
    headlines = [Headline(decimal(one.mean), f"AutoBLEU, {name}") for one, name in zip(first[1], names, strict=True)]
    headlines.append(Headline(number(len(sample)), "sentences", sample.describe().partition(" in ")[2]))
    notes = [_note(row) for row in rows if row[0] == f"exact, {ALL}" or row[0].startswith("codebooks")]
    notes += [_note(row) for row in rows if row[0].startswith("noise")]
    return page_of("Two decoders", url, headlines, notes, sections, lead)


def _note(row: tuple[str, list[MeanScore], MeanScore]) -> Note:
    name, _, difference = row
    level = {"higher": "good", "lower": "bad", "undecided": "plain", "unknown": "look"}[verdict(difference)]
    return Note(f"{name}: {difference} BLEU, {verdict(difference)}", level)
