"""How well sentence boundaries are found: precision, recall and F1 against gold sentences, for every method.

    python -m benchmarks.segment_accuracy --conllu en_ewt-ud-dev.conllu --sat sat-tiny
    python -m benchmarks.segment_accuracy --ud ud-sentences.jsonl.xz

The gold sentences are the lines `# text = …` of a CoNLL-U file, the documents those that `# newdoc` starts, their
sentences joined by single spaces, so that nothing but the text shows where one ends. *Bare* is the same without case
and punctuation: sentences in lower case, all characters of Unicode's category P taken out, white space collapsed, empty
sentences left out. A boundary is a place between two characters that are not white space; the ends of documents do not
count. Next to our methods run spaCy's plain sentencizer and wtpsplit's own `split`: same model, threshold, windows.

The capped methods also cut sentences that are too long. These cuts count as boundaries found, and hardly one is gold:
the second table shows what that costs. Takes a minute with a small SaT model.

`--ud` shows F1 by language and treebank instead, of at most 120 documents of each, with SaT alone (`sat_only`). The
file has a JSON object per line with `lang`, `treebank`, `sentences` and `spaces`: what follows each sentence.
"""

from __future__ import annotations

import argparse
import json
import lzma
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks import command_line
from benchmarks.machine import console, describe_cpu
from benchmarks.segmentation import PlainSpacy, Wtpsplit, boundaries, segmented_ends
from stages.segment.sat.card import load_sat_card
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer

DOCUMENTS = 120  # of a treebank
METHODS = ("spacy", "spacy-capped", "sat", "sat-capped")


@dataclass(frozen=True)
class Gold:
    """Documents, and the boundaries between their sentences."""

    name: str
    texts: list[str]
    boundaries: list[set[int]]

    @classmethod
    def of(cls, name: str, documents: Iterable[Sequence[str]]) -> Gold:
        return cls.spaced(name, ([(sentence, " ") for sentence in sentences] for sentences in documents))

    @classmethod
    def spaced(cls, name: str, documents: Iterable[Sequence[tuple[str, str]]]) -> Gold:
        """Make documents of sentences and what follows each of them, which is left out behind the last."""
        texts, edges = [], []
        for sentences in documents:
            text, ends = "", []
            for sentence, space in sentences:
                ends.append(len(text) + len(sentence))
                text += sentence + space
            texts.append(text[: ends[-1]])
            edges.append(boundaries(texts[-1], ends))
        return cls(name, texts, edges)


@dataclass(frozen=True)
class Score:
    """precision, recall and F1 of boundaries; 0 where there are none to be right or found."""

    found: int
    right: int
    gold: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.found + self.gold) if self.found + self.gold else 0.0

    def shown(self) -> list[str]:
        """Return precision, recall, F1 and boundaries found; documents of one sentence each have nothing to be
        found.
        """
        if not self.gold:
            return ["no gold", "boundary", "–", str(self.found)]
        return [f"{self.precision:.3f}", f"{self.recall:.3f}", f"{self.f1:.3f}", str(self.found)]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.ud:
        _by_treebank(options)
        return
    out = console()
    documents = list(read_conllu(options.conllu))
    golds = (Gold.of("clean", documents), Gold.of("bare", bare(documents)))
    found: dict[str, list[list[set[int]]]] = {}  # name of a method → for each gold, the boundaries of each document
    capped: dict[str, str] = {}  # name of a capped method → of the same without cap
    for method in METHODS:
        for model in options.sat if method.startswith("sat") else [None]:
            name = f"{method}, {load_sat_card(model).name}" if model else method
            found[name] = _ours(method, model, golds, options)
            if method.endswith("-capped"):
                capped[name] = name.replace("-capped", "")
    spacy = PlainSpacy(options.lang)
    found["spaCy's sentencizer"] = [_placed(gold, spacy.ends(gold.texts)) for gold in golds]
    for model in options.sat:
        card = load_sat_card(model)
        wtpsplit = Wtpsplit(card, options.stride)
        threshold = options.threshold or card.threshold
        name = f"wtpsplit's split, {card.name} > {threshold:g}"
        found[name] = [_placed(gold, wtpsplit.ends(gold.texts, threshold)) for gold in golds]

    counts = ", ".join(f"{gold.name} {sum(map(len, gold.boundaries))} boundaries" for gold in golds)
    out.print(f"{describe_cpu()}; {options.conllu.name}: {len(documents)} documents, {counts}")
    _print_scores(found, golds)
    _print_caps(found, capped, golds, options.max_chars)


def read_ud(path: Path) -> dict[tuple[str, str], list[list[tuple[str, str]]]]:
    """Map language and treebank to at most `DOCUMENTS` documents: sentences, and what follows each."""
    found: dict[tuple[str, str], list[list[tuple[str, str]]]] = defaultdict(list)
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as lines:
        for one in map(json.loads, lines):
            documents = found[one["lang"], one["treebank"]]
            if len(documents) < DOCUMENTS:
                documents.append(list(zip(one["sentences"], one["spaces"], strict=True)))
    return dict(sorted(found.items()))


def _by_treebank(options: argparse.Namespace) -> None:
    out = console()
    out.print(f"{describe_cpu()}; {options.ud.name}")
    table = Table(title="F1 of boundaries, clean and bare")
    for name in ("language", "treebank", "boundaries"):
        table.add_column(name)
    for kind in ("clean", "bare"):
        for method in METHODS:
            table.add_column(f"{kind}\n{method}", justify="right")
    for (lang, treebank), documents in read_ud(options.ud).items():
        options.lang = lang
        golds = (
            Gold.spaced("clean", documents),
            Gold.of("bare", bare([sentence for sentence, _ in one] for one in documents)),
        )
        found = [_ours(method, options.sat[0] if "sat" in method else None, golds, options) for method in METHODS]
        cells = [score(one[at], golds[at].boundaries) for at in range(len(golds)) for one in found]
        shown = [f"{one.f1:.3f}" if one.gold else "no gold" for one in cells]
        table.add_row(lang, treebank, str(cells[0].gold), *shown)
    out.print(table)


def read_conllu(path: Path) -> Iterator[list[str]]:
    """Return the sentences of each document."""
    sentences: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("# newdoc") and sentences:
                yield sentences
                sentences = []
            if line.startswith("# text = "):
                sentences.append(line.removeprefix("# text = ").strip())
    if not sentences:
        raise SystemExit(f"{path} has no line that starts with `# text = `; give a CoNLL-U file")
    yield sentences


def bare(documents: Iterable[Iterable[str]]) -> Iterator[list[str]]:
    """Yield documents without case and punctuation."""
    for sentences in documents:
        kept = (
            "".join(c for c in sentence.lower() if not unicodedata.category(c).startswith("P"))
            for sentence in sentences
        )
        if left := [text for sentence in kept if (text := " ".join(sentence.split()))]:
            yield left


def score(found: Sequence[set[int]], gold: Sequence[set[int]]) -> Score:
    """Score the boundaries of all documents."""
    right = sum(len(a & b) for a, b in zip(found, gold, strict=True))
    return Score(sum(map(len, found)), right, sum(map(len, gold)))


def _ours(method: str, model: str | None, golds: Sequence[Gold], options: argparse.Namespace) -> list[list[set[int]]]:
    settings = {"method": method, "max_chars": options.max_chars, "max_tokens": options.max_tokens}
    if model:
        settings |= {"sat": model, "sat_only": True, "threshold": options.threshold, "stride": options.stride}
    tokenizer = SonarTokenizer(load_card(options.tokenizer))
    segmenter = Segmenter(SegmentSettings.model_validate(settings), tokenizer.count)
    langs = [options.lang] * max(len(gold.texts) for gold in golds)
    return [
        _placed(gold, segmented_ends(segmenter.segment(gold.texts, langs[: len(gold.texts)]), len(gold.texts)))
        for gold in golds
    ]


def _placed(gold: Gold, ends: Sequence[Sequence[int]]) -> list[set[int]]:
    return [boundaries(text, places) for text, places in zip(gold.texts, ends, strict=True)]


def _print_scores(found: dict[str, list[list[set[int]]]], golds: Sequence[Gold]) -> None:
    table = Table(title="Boundaries against gold sentences")
    table.add_column("method")
    for gold in golds:
        for name in ("precision", "recall", "F1", "found"):
            table.add_column(f"{gold.name}\n{name}", justify="right")
    for name, each in found.items():
        row = []
        for predicted, gold in zip(each, golds, strict=True):
            one = score(predicted, gold.boundaries)
            row += one.shown()
        table.add_row(name, *row)
    console().print(table)


def _print_caps(
    found: dict[str, list[list[set[int]]]], capped: dict[str, str], golds: Sequence[Gold], max_chars: int
) -> None:
    table = Table(title=f"What the cap of {max_chars} characters adds, and what it costs in precision")
    for name in ("method", "text"):
        table.add_column(name)
    for name in ("cuts", "of them gold", "lost", "precision without cap", "with"):
        table.add_column(name, justify="right")
    for name, plain in capped.items():
        for after, before, gold in zip(found[name], found[plain], golds, strict=True):
            added = score([a - b for a, b in zip(after, before, strict=True)], gold.boundaries)
            lost = sum(len(b - a) for a, b in zip(after, before, strict=True))
            precisions = [f"{score(one, gold.boundaries).precision:.3f}" for one in (before, after)]
            table.add_row(name, gold.name, str(added.found), str(added.right), str(lost), *precisions)
    console().print(table)


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "segment_accuracy", "Precision, recall and F1 of sentence boundaries, clean and without case and punctuation."
    )
    gold = parser.add_mutually_exclusive_group(required=True)
    gold.add_argument("--conllu", type=Path, help="gold: a CoNLL-U file with `# newdoc` and `# text =`")
    gold.add_argument("--ud", type=Path, help="gold of many languages: JSONL, also .xz")
    parser.add_argument("--sat", nargs="*", default=["sat-tiny"], help="names or paths of cards of SaT models")
    parser.add_argument("--lang", default="eng_Latn", help="language of the gold file, as a SONAR code")
    parser.add_argument("--threshold", type=float, help="threshold of SaT and wtpsplit; the card's if not given")
    parser.add_argument("--stride", type=int, help="tokens between SaT's windows; the stage's default if not given")
    parser.add_argument("--max-chars", type=int, default=200, help="cap in characters")
    parser.add_argument("--max-tokens", type=int, default=128, help="cap in tokens")
    parser.add_argument("--tokenizer", default="sonar-tiny", help="model card whose tokenizer counts tokens")
    return parser


if __name__ == "__main__":
    main()
