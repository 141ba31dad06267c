"""Speed of segmenting on one core: spaCy's rules, and the cap by probabilities, each next to what users have today.

    python -m benchmarks.segment_speed                              on the novels of the sample corpus
    python -m benchmarks.segment_speed --texts books-en.jsonl.xz    on the first 5 MB of another file

MB are 10⁶ bytes of UTF-8. Methods that are compared take turns, and the median of the rounds counts.

*rules*: our methods, from documents to sentences, without tokens and with tokens counted; and spaCy itself: a blank
pipeline with its sentencizer, and the sentencizer alone on texts that are tokenised already.

*cap*: on probabilities that are given, our programme where SaT's boundaries stay, and where each paragraph is one
sentence, so that it decides about every place. wtpsplit's constrained Viterbi gets the same probabilities of the first
kilobytes (it takes 80 µs a character) and the same cap; it keeps no boundaries, so its cuts are others.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from benchmarks import command_line
from benchmarks.machine import console, describe_cpu
from benchmarks.segmentation import (
    PlainSpacy,
    Timed,
    add_text_options,
    megabytes,
    read_texts,
    sigmoid,
    speed_table,
    take_turns,
)
from stages.segment.methods import FoundByModel, ink_logits
from stages.segment.pieces import Limits, Pieces
from stages.segment.sat.card import SatCard, load_sat_card
from stages.segment.sat.load import load
from stages.segment.sat.runner import SatRunner
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from stages.segment.text import Text
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer

PARTS = ("rules", "cap")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    out = console()
    texts = read_texts(options)
    out.print(f"{describe_cpu()}; {options.texts}: {len(texts)} documents, {megabytes(texts):.2f} MB")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, whatever starts threads
    if "rules" in options.only:
        _rules(out, texts, options)
    if "cap" in options.only:
        _cap(out, texts, options)


def _rules(out: Console, texts: list[str], options: argparse.Namespace) -> None:
    tokenizer = SonarTokenizer(load_card(options.tokenizer))
    langs = [options.lang] * len(texts)
    works: dict[str, Callable[[], object]] = {}
    for method in ("spacy", "spacy-capped"):
        without = Segmenter(SegmentSettings.model_validate({"method": method, "max_tokens": None}), no_tokens)
        counting = Segmenter(SegmentSettings.model_validate({"method": method}), tokenizer.count)
        works[f"{method}, tokens not counted"] = partial(without.segment, texts, langs)
        works[f"{method}, tokens counted by {options.tokenizer}"] = partial(counting.segment, texts, langs)
    plain = PlainSpacy(options.lang)
    tokenised = list(map(plain.nlp.make_doc, texts))
    works["spaCy: blank pipeline and sentencizer"] = partial(plain.ends, texts)
    works["spaCy: sentencizer alone"] = lambda: list(map(plain.sentencizer, tokenised))
    ways = {name: Timed(megabytes(texts), work) for name, work in works.items()}
    take_turns(ways.values(), options.rounds)
    table = speed_table("Rules on one core (goal: spacy-capped ≥ 5 MB/s)")
    for name, way in ways.items():
        table.add_row(name, *way.row())
    out.print(table)


def no_tokens(texts: Sequence[str]) -> list[int]:
    """Count nothing."""
    return [0] * len(texts)


class Cap:
    """What the cap is given: documents, and the log odds of a sentence's end behind each of their ink characters."""

    def __init__(self, texts: Sequence[str], card: SatCard, max_chars: int) -> None:
        runner = SatRunner(*load(card, torch.float32, "cpu"), stride=None, batch_tokens=16_384, device="cpu")
        self.texts, self.text, self.card = texts, Text(texts), card
        self.logits = ink_logits(runner, self.text)
        self.limits = Limits(max_chars, None, no_tokens)

    def found(self, text: Text, whole_paragraphs: bool) -> FoundByModel:
        """Return what SaT found; or nothing but paragraphs, and the probabilities inside them."""
        one = FoundByModel(text, self.logits, self.card.threshold, self.card.paragraph_threshold)
        if whole_paragraphs:
            one.cut = text.ends
        return one

    def fit(self, text: Text, found: FoundByModel) -> Pieces:
        """Return pieces that hold the limits."""
        pieces = Pieces(text, found.cut, self.limits)
        found.fit(pieces)
        return pieces

    def all_of_it(self, whole_paragraphs: bool) -> Pieces:
        """Do the same with everything that depends on the texts."""
        text = Text(self.texts)
        return self.fit(text, self.found(text, whole_paragraphs))

    def probabilities(self, characters: int) -> list[npt.NDArray[np.float64]]:
        """Return the probabilities of the first characters, document by document, as wtpsplit has them: 0 where no
        token ends.
        """
        every = np.zeros(int(self.text.edges[-1]))
        every[self.text.ink] = sigmoid(self.logits)
        stops = np.minimum(self.text.edges[1:] - 1, characters).tolist()
        return [every[a:b] for a, b in zip(self.text.edges.tolist(), stops, strict=False) if a < b]


def _cap(out: Console, texts: list[str], options: argparse.Namespace) -> None:
    from wtpsplit.utils.constraints import constrained_segmentation
    from wtpsplit.utils.priors import create_prior_function

    cap = Cap(texts, load_sat_card(options.sat), options.max_chars)
    size = megabytes(texts)
    ways = {}
    for name, whole in (("SaT's boundaries stay", False), ("each paragraph is one sentence", True)):
        found = cap.found(cap.text, whole)
        ways[f"ours, {name}"] = Timed(size, partial(cap.fit, cap.text, found))
        ways[f"ours, {name}; with the arrays over the text"] = Timed(size, partial(cap.all_of_it, whole))
        before, after = Pieces(cap.text, found.cut, cap.limits), cap.fit(cap.text, found)
        out.print(
            f"{name}: {len(before.first)} sentences, {len(before.too_long())} of them too long; {len(after.first)} "
            f"pieces of at most {after.chars.max()} characters, {after.hard.sum()} cuts inside of words"
        )
    take_turns(ways.values(), options.rounds)
    given = cap.probabilities(int(1000 * options.viterbi_kilobytes))
    prior = create_prior_function("uniform", {"max_length": options.max_chars})

    def viterbi() -> None:
        for one in given:
            constrained_segmentation(one, prior, max_length=options.max_chars)

    size = megabytes([cap.text.text[: sum(map(len, given))]])
    theirs = Timed(size, viterbi)
    take_turns([theirs], 1)
    ways[f"wtpsplit's Viterbi, first {size * 1000:.0f} kB"] = theirs
    table = speed_table(f"Cap of {options.max_chars} characters on given probabilities, one core (goal: ≥ 5 MB/s)")
    for name, way in ways.items():
        table.add_row(name, *way.row())
    out.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = command_line("segment_speed", "MB/s of segmenting on one core, next to spaCy and wtpsplit.")
    add_text_options(parser, megabytes=5)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, help="what to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizer", default="sonar-tiny", help="model card whose tokenizer counts tokens")
    parser.add_argument("--sat", default="sat-tiny", help="card of the SaT model that gives the probabilities")
    parser.add_argument("--max-chars", type=int, default=200)
    parser.add_argument("--viterbi-kilobytes", type=float, default=50, help="kB of text for wtpsplit's Viterbi")
    return parser


if __name__ == "__main__":
    main()
