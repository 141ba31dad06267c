"""How well a SaT model finds the ends of sentences and paragraphs of text that it did not see, by threshold.

    python -m recipes.sat.scores runs/half0/sat.yaml runs/half1/sat.yaml --gold ud-sentences.jsonl.xz
    python -m recipes.sat.scores runs/sat/sat.yaml --corpus novels-fra.jsonl.xz

Gold sentences are measured by cross-validation: the first model is that which was trained with `--half 0`, so it
segments the documents with odd numbers, and the second the others. A single model segments all documents.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from recipes.sat.data import PARAGRAPH, SENTENCE, LabelledDocument, cleaned, gold_documents, write
from recipes.sonar.data import CorpusSource
from stages.segment.sat.card import SatCard, load_sat_card
from stages.segment.sat.load import load
from stages.segment.sat.runner import SatRunner
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings

DOCUMENTS = 300  # of each source, at most
THRESHOLDS = np.round(np.arange(0.05, 1.0, 0.05), 2)
SHOWN = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4)


def f1(found: NDArray[np.bool_], gold: NDArray[np.bool_]) -> float:
    """Return the harmonic mean of precision and recall; 0 if nothing is found correctly."""
    right = float((found & gold).sum())
    return 2 * right / max(1.0, float(found.sum() + gold.sum()))


def written(documents: Sequence[LabelledDocument], way: str) -> tuple[list[str], NDArray[np.uint8]]:
    """Return texts, and (characters of all texts,) what ends with each character.

    The ends of texts count for nothing.
    """
    rng = random.Random(0)
    found = [write(one, way, rng) for one in documents]
    texts = [text for text, _, _ in found]
    begins = np.cumsum([0, *map(len, texts)])
    gold = np.zeros(begins[-1], np.uint8)
    for begin, (_, ends, kinds) in zip(begins.tolist(), found, strict=False):
        gold[begin + np.array(ends[:-1], np.int64) - 1] = kinds[:-1]
    return texts, gold


def probabilities(runner: SatRunner, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return (characters of all texts,) the probability at each character, 0 at the ends of texts."""
    begins = np.cumsum([0, *map(len, texts)])
    places, logits = runner.logits(texts, begins[:-1])
    found = np.zeros(begins[-1])
    found[places] = 1 / (1 + np.exp(-logits.astype(np.float64)))
    found[begins[1:] - 1] = 0
    return found


def by_rules(texts: Sequence[str], lang: str) -> NDArray[np.bool_]:
    """Return (characters of all texts,) whether a sentence ends by spaCy's rules, as in the method `spacy`."""
    segmenter = Segmenter(SegmentSettings(method="spacy", max_tokens=None), lambda some: [0] * len(some))
    found = segmenter.segment(texts, [lang] * len(texts))
    begins = np.cumsum([0, *map(len, texts)])
    ends = np.zeros(begins[-1], np.bool_)
    ends[begins[found.document] + found.end - 1] = True
    ends[begins[1:] - 1] = False
    return ends


def held_out_f1(
    runner: SatRunner, sources: Iterable[CorpusSource], ways: Sequence[str]
) -> dict[str, dict[float, float]]:
    """Return `sentences <way>` and `paragraphs <way>` → threshold → F1."""
    held_out = [one for source in sources for one in cleaned([source], held_out=True)[:DOCUMENTS]]
    scores: dict[str, dict[float, float]] = {}
    for way in ways:
        texts, gold = written(held_out, way)
        probability = probabilities(runner, texts)
        for what, kind in (("sentences", SENTENCE), ("paragraphs", PARAGRAPH)):
            scores[f"{what} {way}"] = _by_threshold(probability, gold >= kind)
    return scores


@dataclass(frozen=True)
class GoldScore:
    """F1 of boundaries of a treebank: of spaCy's rules, and of models by threshold, pooled and of each model alone."""

    lang: str
    treebank: str
    way: str
    boundaries: int
    rules: float | None
    pooled: dict[float, float]
    each: list[dict[float, float]]


def gold_f1(
    runners: Sequence[SatRunner], path: Path, ways: Sequence[str] = ("clean", "bare"), rules: bool = True
) -> Iterator[GoldScore]:
    """Score each document n by the runner that was not trained on it, number (n + 1) modulo the number of runners."""
    treebanks: dict[tuple[str, str], list[list[LabelledDocument]]] = defaultdict(lambda: [[] for _ in runners])
    for treebank, number, document in gold_documents(path):
        treebanks[document.lang, treebank][(number + 1) % len(runners)].append(document)
    for (lang, treebank), shares in sorted(treebanks.items()):
        for way in ways:
            parts = [written(share, way) for share in shares]
            found = [probabilities(runner, texts) for runner, (texts, _) in zip(runners, parts, strict=True)]
            gold = [ends > 0 for _, ends in parts]
            ends = [by_rules(texts, lang) for texts, _ in parts] if rules else None
            yield GoldScore(
                lang,
                treebank,
                way,
                sum(int(one.sum()) for one in gold),
                f1(np.concatenate(ends), np.concatenate(gold)) if ends else None,
                _by_threshold(np.concatenate(found), np.concatenate(gold)),
                [_by_threshold(*one) for one in zip(found, gold, strict=True)],
            )


def _by_threshold(probability: NDArray[np.float64], gold: NDArray[np.bool_]) -> dict[float, float]:
    return {float(threshold): f1(probability > threshold, gold) for threshold in THRESHOLDS}


def runner_of(card: SatCard) -> SatRunner:
    """Load the model of a card in float32, with the stage's windows."""
    network, tokenizer = load(card, torch.float32, "cpu")
    return SatRunner(network, tokenizer, stride=None, batch_tokens=16_384, device="cpu")


def main(
    models: Annotated[
        list[str], typer.Argument(help="names or paths of cards: one, or those of --half 0 and --half 1")
    ],
    gold: Annotated[Path | None, typer.Option(help="JSONL of gold sentences")] = None,
    corpus: Annotated[
        list[str] | None, typer.Option(help="JSONL whose held-out side is measured; FILE or FILE@SHARE")
    ] = None,
    rules: Annotated[bool, typer.Option(help="measure spaCy's rules, too")] = True,
    ways: Annotated[str, typer.Option(help="how documents are written")] = "clean,bare",
) -> None:
    """Print F1 by treebank or corpus, and by threshold."""
    cards = [load_sat_card(name) for name in models]
    runners = [runner_of(card) for card in cards]
    if gold:
        table = Table("treebank", "way", title="F1 of the ends of sentences, by threshold")
        for column in ("boundaries", "rules", *(f"{threshold:g}" for threshold in SHOWN), "each model"):
            table.add_column(column, justify="right")
        for one in gold_f1(runners, gold, ways.split(","), rules):
            shown = [f"{one.pooled[threshold]:.3f}" for threshold in SHOWN]
            each = ", ".join(f"{scores[0.25]:.3f}" for scores in one.each)
            by_rules_ = "" if one.rules is None else f"{one.rules:.3f}"
            table.add_row(f"{one.lang[:3]} {one.treebank}", one.way, str(one.boundaries), by_rules_, *shown, each)
        Console().print(table)
    for text in corpus or ():
        source = CorpusSource.parse(text)
        for what, scores in held_out_f1(runners[0], [source], ways.split(",")).items():
            threshold = cards[0].paragraph_threshold if what.startswith("paragraphs") else cards[0].threshold
            best = max(scores, key=lambda one: scores[one])
            print(f"{source.kind}, {what}: {scores[threshold]:.3f} at {threshold:g}, {scores[best]:.3f} at {best:g}")


if __name__ == "__main__":
    typer.run(main)
