"""What the segmentation benchmarks share: texts, boundaries, spaCy and wtpsplit as users have them, and stop-watches.

A boundary is a number: how many characters that are not white space stand before it in its document. So white space
cannot move it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
from rich.table import Table

from stages.segment.rules.spacy_rules import spacy_code
from stages.segment.sat.card import SatCard
from stages.segment.sat.load import through_wtpsplit
from stages.segment.segmenter import Segmented
from stages.shipped import SAMPLE

CONTROLS = 4  # positions of XLM-R that no token of a text has: two before the first, <s> and </s>


def add_text_options(parser: argparse.ArgumentParser, megabytes: float) -> None:
    """Add the options that say which texts are segmented."""
    novel = SAMPLE / "austen-eng.jsonl.gz"
    parser.add_argument("--texts", default=str(novel), help="JSONL, also .gz, .bz2, .xz, .zst; a path or a URL")
    parser.add_argument("--column", default="text", help="column that holds the text")
    parser.add_argument("--lang", default="eng_Latn", help="language of all texts, as a SONAR code")
    parser.add_argument("--megabytes", type=float, default=megabytes, help="megabytes of text to read")


def read_texts(options: argparse.Namespace) -> list[str]:
    """Return texts of the first records, until they have so many megabytes together."""
    texts: list[str] = []
    left = options.megabytes * 1e6
    with fsspec.open(options.texts, "rt", compression="infer", encoding="utf-8") as lines:
        for line in lines:
            if left <= 0:
                break
            texts.append(json.loads(line)[options.column])
            left -= len(texts[-1].encode())
    return texts


def megabytes(texts: Iterable[str]) -> float:
    """Return 10⁶ bytes of UTF-8."""
    return sum(len(text.encode()) for text in texts) / 1e6


@dataclass
class Timed:
    """A way of working, what it works on, and the seconds that it took, round by round."""

    megabytes: float
    work: Callable[[], object]
    wall: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        """Return MB/s by the clock, MB per second of CPU time, and the range by the clock."""
        speeds = [self.megabytes / seconds for seconds in self.wall]
        return [
            f"{statistics.median(speeds):.3g}",
            f"{self.megabytes / statistics.median(self.process):.3g}",
            f"{min(speeds):.3g}–{max(speeds):.3g}",
        ]


def take_turns(ways: Iterable[Timed], rounds: int) -> None:
    """Measure all of them in every round, after one round that does not count."""
    for number in range(rounds + 1):
        for way in ways:
            wall, process = time.perf_counter(), time.process_time()
            way.work()
            if number:
                way.wall.append(time.perf_counter() - wall)
                way.process.append(time.process_time() - process)


def speed_table(title: str, *further: str) -> Table:
    """Return a table for rows of a name, what `Timed.row` gives, and further columns."""
    table = Table(title=title)
    table.add_column("method")
    for name in ("MB/s", "MB/s of CPU time", "range", *further):
        table.add_column(name, justify="right")
    return table


def boundaries(text: str, ends: Iterable[int]) -> set[int]:
    """Return the boundaries at places in a text; its beginning and its end are none."""
    solid = np.cumsum([0, *(not character.isspace() for character in text)])
    return set(solid[list(ends)].tolist()) - {0, int(solid[-1])}


def segmented_ends(segmented: Segmented, documents: int) -> list[list[int]]:
    """Return where the sentences of each document end, as our segmenter found them."""
    edges = np.searchsorted(segmented.document, np.arange(documents + 1))
    return [segmented.end[low:high].tolist() for low, high in pairwise(edges)]


def sigmoid(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return probabilities of log odds."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits.astype(np.float64)))


class PlainSpacy:
    """spaCy as users have it: a blank pipeline of a language and the component `sentencizer`."""

    def __init__(self, lang: str) -> None:
        import spacy

        self.nlp = spacy.blank(spacy_code(lang))
        self.nlp.max_length = 100_000_000
        self.sentencizer = self.nlp.add_pipe("sentencizer")

    def ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Return where the sentences of each text end."""
        return [[sentence.end_char for sentence in found.sents] for found in self.nlp.pipe(texts)]


class Wtpsplit:
    """wtpsplit's `SaT` with the model of one of our cards, in float32.

    With a recent transformers it would take the format of the file, often float16, which CPUs hardly multiply. stride:
    tokens from one window to the next; None: as many as our default.
    """

    def __init__(self, card: SatCard, stride: int | None) -> None:
        self.card = card
        self._sat = through_wtpsplit(card)
        self._sat.model.model.float()
        self.block = int(self._sat.model.config.max_position_embeddings) - CONTROLS
        self.stride = min(stride or self.block * 3 // 4, self.block)

    def split(self, texts: Sequence[str], threshold: float) -> list[list[str]]:
        """Return what its own `split` gives; the sentences of a text are together the text."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does not split at line ends
            found: Any = self._sat.split(
                texts,
                threshold=threshold,
                stride=self.stride,
                block_size=self.block,
                split_on_input_newlines=False,
            )
            return list(found)

    def ends(self, texts: Sequence[str], threshold: float) -> list[list[int]]:
        """Return where the sentences of each text end."""
        return [list(accumulate(map(len, sentences))) for sentences in self.split(texts, threshold)]

    def probabilities(self, texts: Sequence[str]) -> list[npt.NDArray[np.float64]]:
        """Return for each character of each text the probability that a sentence ends with it."""
        return list(self._sat.predict_proba(texts, stride=self.stride, block_size=self.block))
