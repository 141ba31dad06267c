"""What benchmarks of segmentation share: boundaries that white space cannot move, spaCy and wtpsplit as users have them.

A boundary is a number: how many characters that are no white space stand before it in its document.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.segment.rules.spacy_rules import spacy_code
from stages.segment.sat.card import XLM_R, SatCard, hub_name
from stages.segment.segmenter import Segmented

CONTROLS = 4  # positions of XLM-R that no token of a text has: two before the first, <s> and </s>


def boundaries(text: str, ends: Iterable[int]) -> set[int]:
    """The boundaries at places in a text; its beginning and its end are none."""
    solid = np.cumsum([0, *(not character.isspace() for character in text)])
    return set(solid[list(ends)].tolist()) - {0, int(solid[-1])}


def segmented_ends(segmented: Segmented, documents: int) -> list[list[int]]:
    """Where the sentences of each document end, as our segmenter found them."""
    edges = np.searchsorted(segmented.document, np.arange(documents + 1))
    return [segmented.end[low:high].tolist() for low, high in pairwise(edges)]


class PlainSpacy:
    """spaCy as users have it: a blank pipeline of a language and the component `sentencizer`."""

    def __init__(self, lang: str) -> None:
        import spacy

        self.nlp = spacy.blank(spacy_code(lang))
        self.nlp.max_length = 100_000_000
        self.sentencizer = self.nlp.add_pipe("sentencizer")

    def ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Where the sentences of each text end."""
        return [[sentence.end_char for sentence in found.sents] for found in self.nlp.pipe(texts)]


class Wtpsplit:
    """wtpsplit's `SaT` with the model of one of our cards, in float32.

    With a recent transformers it would take the format of the file, often float16, which CPUs hardly multiply. stride:
    tokens from one window to the next; None: half a window, as ours.
    """

    def __init__(self, card: SatCard, stride: int | None) -> None:
        from wtpsplit import SaT

        folder = card.folder(card.model)
        model = str(folder or hub_name(card.model))
        tokenizer = str(card.folder(card.tokenizer) or card.tokenizer) if card.tokenizer else model if folder else XLM_R
        adapter = str(card.folder(card.lora) or card.lora) if card.lora else None
        self._sat = SaT(model, tokenizer_name_or_path=tokenizer, lora_path=adapter, hub_prefix=None)
        self._sat.model.model.float()
        self.block = int(self._sat.model.config.max_position_embeddings) - CONTROLS
        self.stride = min(stride or -(-self.block // 2), self.block)

    def split(self, texts: Sequence[str], threshold: float) -> list[list[str]]:
        """Its own `split`; the sentences of a text are together the text."""
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
        """Where the sentences of each text end."""
        return [list(accumulate(map(len, sentences))) for sentences in self.split(texts, threshold)]

    def probabilities(self, texts: Sequence[str]) -> list[npt.NDArray[np.float64]]:
        """For each character of each text the probability that a sentence ends with it."""
        return list(self._sat.predict_proba(texts, stride=self.stride, block_size=self.block))
