"""SaT on CPUs: speed and boundaries of our method `sat` and of wtpsplit's `split` with the same model, in one run.

    python -m benchmarks.segment_sat                                on the first half megabyte of a novel

Both go from documents to sentences, with the same threshold, number format and threads; documents are in NFC and have
no line ends here. They take turns, and the median of the rounds counts. At the same stride the boundaries must be the
same, but where probabilities tie to 1e-3, or to 2e-3 by wtpsplit's rounding (it averages windows in 16 bits), or where
one would lie inside of a character of several code points; others are shown as UNEXPLAINED, and the exit status is 1.
Our default stride is measured too. Takes some minutes, most of them wtpsplit's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import unicodedata
from collections.abc import Sequence
from functools import partial

import torch
from rich.console import Console
from rich.markup import escape

from benchmarks import command_line
from benchmarks.machine import console, describe_cpu
from benchmarks.segmentation import (
    Timed,
    Wtpsplit,
    add_text_options,
    boundaries,
    megabytes,
    read_texts,
    segmented_ends,
    sigmoid,
    speed_table,
    take_turns,
)
from stages.device import compute_dtype
from stages.segment.methods import ink_logits
from stages.segment.sat.card import load_sat_card
from stages.segment.sat.load import load
from stages.segment.sat.runner import SatRunner
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from stages.segment.text import Text

TIE, ROUNDING = 1e-3, 2e-3  # of probabilities; wtpsplit averages in 16 bits


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)  # of tokenizers, before they start any
    torch.set_num_threads(options.threads)
    out = console()
    card = load_sat_card(options.sat)
    texts = [unicodedata.normalize("NFC", " ".join(text.split())) for text in read_texts(options)]
    langs = [options.lang] * len(texts)
    out.print(
        f"{describe_cpu()}; {options.texts}: {len(texts)} documents, {megabytes(texts):.2f} MB; {card.name} > "
        f"{card.threshold:g}, {options.precision}, {options.threads} threads"
    )
    theirs = Wtpsplit(card, options.stride)
    ways = {
        f"wtpsplit's split, stride {theirs.stride}": Timed(
            megabytes(texts), partial(theirs.split, texts, card.threshold)
        )
    }
    ends = {name: theirs.ends(texts, card.threshold) for name in ways}
    for name, stride in ((f"ours, stride {theirs.stride}", theirs.stride), ("ours, default stride", None)):
        settings = {
            "method": "sat",
            "sat": options.sat,
            "sat_only": True,
            "stride": stride,
            "precision": options.precision,
        }
        segmenter = Segmenter(SegmentSettings.model_validate(settings), lambda texts: [0] * len(texts))
        ways[name] = Timed(megabytes(texts), partial(segmenter.segment, texts, langs))
        ends[name] = segmented_ends(segmenter.segment(texts, langs), len(texts))
    take_turns(ways.values(), options.rounds)
    found = {name: [boundaries(*one) for one in zip(texts, each, strict=True)] for name, each in ends.items()}
    _print(out, ways, found)
    in_theirs, in_ours = list(found.values())[:2]
    if _explain(out, texts, theirs, in_theirs, in_ours, options):
        sys.exit(1)


def _print(out: Console, ways: dict[str, Timed], found: dict[str, list[set[int]]]) -> None:
    table = speed_table("SaT (goal: ≥ 2 × wtpsplit)", "sentences/s", "× wtpsplit", "boundaries", "that differ")
    first = next(iter(ways))
    seconds = {name: statistics.median(way.wall) for name, way in ways.items()}
    for name, way in ways.items():
        count = sum(map(len, found[name]))
        differ = sum(len(a ^ b) for a, b in zip(found[name], found[first], strict=True))
        sentences = (count + len(found[name])) / seconds[name]
        table.add_row(
            name, *way.row(), f"{sentences:.0f}", f"{seconds[first] / seconds[name]:.2f}", str(count), str(differ)
        )
    out.print(table)


def _explain(
    out: Console,
    texts: Sequence[str],
    theirs: Wtpsplit,
    in_theirs: Sequence[set[int]],
    in_ours: Sequence[set[int]],
    options: argparse.Namespace,
) -> int:
    """Show boundaries that only one of us found at the same stride, with both probabilities. Returns how many of them
    have no excuse.
    """
    network, tokenizer = load(theirs.card, compute_dtype(options.precision, "cpu"), "cpu")
    runner = SatRunner(network, tokenizer, stride=theirs.stride, batch_tokens=16_384, device="cpu")
    counts = {"tie": 0, "rounding": 0, "inside of a character": 0, "UNEXPLAINED": 0}
    for text, a, b in zip(texts, in_theirs, in_ours, strict=True):
        if a == b:
            continue
        arrays = Text([text])
        ours, other = sigmoid(ink_logits(runner, arrays)), theirs.probabilities([text])[0]
        for boundary in sorted(a ^ b):
            place = int(arrays.ink[boundary - 1])
            pair = float(ours[boundary - 1]), float(other[place])
            if abs(pair[0] - pair[1]) <= ROUNDING:
                reason = "tie" if abs(pair[0] - pair[1]) <= TIE else "rounding"
            else:
                reason = "inside of a character" if arrays.joins_next[boundary - 1] else "UNEXPLAINED"
            counts[reason] += 1
            if counts[reason] <= options.show:
                around = f"{text[max(0, place - 25) : place + 1]!r} | {text[place + 1 : place + 21]!r}"
                out.print(escape(f"  {reason}: ours {pair[0]:.4f}, wtpsplit's {pair[1]:.4f}: {around}"))
    why = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    out.print(f"boundaries that differ at stride {theirs.stride}: {sum(counts.values())} ({why})")
    return counts["UNEXPLAINED"]


def _parser() -> argparse.ArgumentParser:
    parser = command_line("segment_sat", "Speed and boundaries of our SaT and of wtpsplit's with the same model.")
    add_text_options(parser, megabytes=0.5)
    parser.add_argument("--sat", default="sat-tiny", help="name or path of the card of a SaT model")
    parser.add_argument("--stride", type=int, default=64, help="tokens between windows; 64 is wtpsplit's default")
    parser.add_argument(
        "--precision", default="float32", choices=["auto", "float32", "bfloat16"], help="number format of our network"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--show", type=int, default=3, help="how many differing boundaries to show, of each kind")
    return parser


if __name__ == "__main__":
    main()
