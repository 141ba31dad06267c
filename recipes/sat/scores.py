"""How well a SaT model finds the ends of sentences and paragraphs of held-out text, by threshold."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from recipes.sat.data import PARAGRAPH, SENTENCE, documents, write
from recipes.sonar.data import CorpusSource
from stages.segment.sat.runner import SatRunner

DOCUMENTS = 300  # of each source, at most
THRESHOLDS = np.round(np.arange(0.05, 1.0, 0.05), 2)


def f1(found: NDArray[np.bool_], gold: NDArray[np.bool_]) -> float:
    """Harmonic mean of precision and recall; 0 where nothing is found rightly."""
    right = float((found & gold).sum())
    return 2 * right / max(1.0, float(found.sum() + gold.sum()))


def held_out_f1(
    runner: SatRunner, sources: Iterable[CorpusSource], ways: Sequence[str]
) -> dict[str, dict[float, float]]:
    """`sentences <way>` and `paragraphs <way>` → threshold → F1. Ends of documents count for nothing."""
    held_out = [one for source in sources for one in islice(documents([source], held_out=True), DOCUMENTS)]
    scores: dict[str, dict[float, float]] = {}
    for way in ways:
        rng = random.Random(0)
        written = [write(one, way, rng) for one in held_out]
        texts = [text for text, _, _ in written]
        begins = np.cumsum([0, *map(len, texts)])
        places, logits = runner.logits(texts, begins[:-1])
        gold = np.zeros(begins[-1], np.uint8)
        for begin, (_, ends, kinds) in zip(begins.tolist(), written, strict=False):
            gold[begin + np.array(ends[:-1], np.int64) - 1] = kinds[:-1]
        probability = np.zeros(begins[-1])
        probability[places] = 1 / (1 + np.exp(-logits.astype(np.float64)))
        probability[begins[1:] - 1] = 0
        for what, kind in (("sentences", SENTENCE), ("paragraphs", PARAGRAPH)):
            scores[f"{what} {way}"] = {float(t): f1(probability > t, gold >= kind) for t in THRESHOLDS}
    return scores
