"""Training data of a small SaT model: documents whose sentence ends are known, written badly on purpose.

Sentence ends come from spaCy's rules, paragraph ends from blank lines. Each document is written in several ways: as it
is, without case, without punctuation, without both, carelessly, and in letters that the model never saw with the
punctuation of their script (Frohmann et al., 2024, corrupt case and punctuation alike). Sentences are then joined by
single spaces (Chinese: by nothing), so that nothing but the text itself shows where they end.

Cost: spaCy's rules once over the corpus, then about 3 MB/s a core for writing and tokenising.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from recipes.sonar.data import CorpusSource, is_aligned, languages_of, read
from stages.segment import marks
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings

NOTHING, SENTENCE, PARAGRAPH = 0, 1, 2  # what ends with a token
WAYS = ("clean", "clean", "bare", "bare", "careless", "careless", "lower", "unpunctuated", "foreign")
ALIGNED_SENTENCES = 30  # neighbouring segments of aligned records that make a document
BATCH = 200  # documents segmented at once

_PUNCTUATION = "".join(chr(code) for code in range(0x110000) if unicodedata.category(chr(code)).startswith("P"))
_WITHOUT_PUNCTUATION = str.maketrans("", "", _PUNCTUATION)
_FINAL = re.compile(r"[.!?…。！？]+[\"'”’»)]*$")
_WITHOUT_SPACES = {"zho_Hans", "zho_Hant", "jpn_Jpan"}


@dataclass(frozen=True)
class WritingSystem:
    """Letters to write in, what ends a sentence there, and whether words and sentences have spaces between them."""

    letters: str
    finals: str
    comma: str = ","
    words: str = " "
    sentences: str = " "


def _letters(first: int, last: int) -> str:
    return "".join(map(chr, range(first, last + 1)))


SCRIPTS = (
    WritingSystem(_letters(0x0905, 0x0939), "।।।?"),  # Devanagari
    WritingSystem(_letters(0x0985, 0x09AF), "।।।?"),  # Bengali
    WritingSystem(_letters(0x0627, 0x064A), "...؟۔۔", "،"),  # Arabic
    WritingSystem(_letters(0x0561, 0x0586), "։"),  # Armenian
    WritingSystem(_letters(0x1200, 0x123F), "።", "፣"),  # Ethiopic
    WritingSystem(_letters(0x10D0, 0x10F0), "..?!"),  # Georgian
    WritingSystem(_letters(0x03B1, 0x03C9), "..;!"),  # Greek
    WritingSystem(_letters(0x05D0, 0x05EA), "..?!"),  # Hebrew
    WritingSystem(_letters(0x1000, 0x1020), "။", "၊"),  # Burmese
    WritingSystem(_letters(0x1780, 0x17A2), "។"),  # Khmer
    WritingSystem(_letters(0xAC00, 0xAC7F), "..?!"),  # Hangul
    WritingSystem(_letters(0x3041, 0x3096), "。。？！", "、", "", ""),  # Kana
    WritingSystem(_letters(0x0E01, 0x0E2E), "", "", "", " "),  # Thai: only a space ends a sentence
)


@dataclass(frozen=True)
class LabelledDocument:
    """Sentences in order, and which of them end a paragraph."""

    lang: str
    sentences: Sequence[str]
    ends_paragraph: Sequence[bool]


def documents(sources: Iterable[CorpusSource], held_out: bool) -> Iterator[LabelledDocument]:
    """Documents of at least two sentences; some neighbouring segments of aligned records make one."""
    segmenter = Segmenter(SegmentSettings(method="spacy", max_tokens=None), lambda texts: [0] * len(texts))
    waiting: list[tuple[str, str]] = []
    aligned: dict[str, list[str]] = {}

    def segmented() -> Iterator[LabelledDocument]:
        langs, texts = [lang for lang, _ in waiting], [text for _, text in waiting]
        waiting.clear()
        found = segmenter.segment(texts, langs)
        written = found.text.to_pylist()
        edges = np.searchsorted(found.document, np.arange(len(texts) + 1))
        for number, text in enumerate(texts):
            rows = range(edges[number], edges[number + 1])
            if len(rows) > 1:
                between = [text[found.end[row] : found.start[row + 1]] for row in rows[:-1]]
                ends = [marks.PARAGRAPH_END.search(gap) is not None for gap in between]
                yield LabelledDocument(langs[number], [written[row] for row in rows], [*ends, True])

    for record in read(sources, held_out):
        for lang, text in languages_of(record).items():
            if not is_aligned(record):
                waiting.append((lang, text))
                continue
            aligned.setdefault(lang, []).append(text)
            if len(aligned[lang]) == ALIGNED_SENTENCES:
                waiting.append((lang, "\n\n".join(aligned.pop(lang))))
        if len(waiting) >= BATCH:
            yield from segmented()
    yield from segmented()


def write(document: LabelledDocument, way: str, rng: random.Random) -> tuple[str, list[int], list[int]]:
    """A document in one of the WAYS: the text, where its sentences end (index behind the last character), and SENTENCE
    or PARAGRAPH for each.
    """
    between = "" if document.lang in _WITHOUT_SPACES else " "
    sentences = list(document.sentences)
    if way == "foreign":
        script = rng.choice(SCRIPTS)
        between = script.sentences
        sentences = [_foreign(sentence, script, rng) for sentence in sentences]
    elif way == "careless":
        habits = {habit: rng.random() * 0.6 for habit in ("no end", "other end", "lower", "upper")}
        sentences = [_careless(sentence, habits, rng) for sentence in sentences]
    if way in ("bare", "lower"):
        sentences = [sentence.lower() for sentence in sentences]
    if way in ("bare", "unpunctuated"):
        sentences = [" ".join(sentence.translate(_WITHOUT_PUNCTUATION).split()) for sentence in sentences]
    ends, kinds, place = [], [], 0
    kept = [(s, last) for s, last in zip(sentences, document.ends_paragraph, strict=True) if s]
    for sentence, last in kept:
        place += len(sentence)
        ends.append(place)
        kinds.append(PARAGRAPH if last else SENTENCE)
        place += len(between)
    return between.join(sentence for sentence, _ in kept), ends, kinds


def _careless(sentence: str, habits: dict[str, float], rng: random.Random) -> str:
    if rng.random() < habits["no end"]:
        sentence = _FINAL.sub("", sentence) or sentence
    elif rng.random() < habits["other end"] * 0.5:
        sentence = _FINAL.sub(rng.choice(["!!!", "...", "!!", "??", " :)", "…", " !", "?!"]), sentence)
    if rng.random() < habits["lower"]:
        return sentence[:1].lower() + sentence[1:] if rng.random() < 0.5 else sentence.lower()
    return sentence.upper() if rng.random() < habits["upper"] * 0.2 else sentence


def _foreign(sentence: str, script: WritingSystem, rng: random.Random) -> str:
    ended = _FINAL.search(sentence)
    body = sentence[: ended.start()] if ended else sentence
    shift = rng.randrange(len(script.letters))
    body = "".join(script.letters[(ord(c) * 7 + shift) % len(script.letters)] if c.isalpha() else c for c in body)
    body = body.replace(" ", script.words).replace(",", script.comma)
    return body + (rng.choice(script.finals) if ended and script.finals else "")


@dataclass
class Stream:
    """All texts end to end: token ids and what ends with each token."""

    ids: NDArray[np.uint16]
    ends: NDArray[np.uint8]

    def save(self, path: Path) -> None:
        np.savez(path, ids=self.ids, ends=self.ends)

    @classmethod
    def load(cls, path: Path) -> Stream:
        with np.load(path) as arrays:
            return cls(arrays["ids"], arrays["ends"])

    def batch(self, rows: int, length: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Windows at random places: ids and ends, (rows, length) both."""
        places = rng.integers(0, len(self.ids) - length, rows)[:, None] + np.arange(length)
        return self.ids[places].astype(np.int64), self.ends[places]


def tokenise(found: Sequence[LabelledDocument], tokenizer: Tokenizer, seed: int) -> Stream:
    """Every document in all WAYS, in a seeded order."""
    rng = random.Random(seed)
    work = [(number, way) for number in range(len(found)) for way in WAYS]
    rng.shuffle(work)
    ids, ends = [], []
    for first in range(0, len(work), 2000):
        written = [write(found[number], way, rng) for number, way in work[first : first + 2000]]
        encoded = tokenizer.encode_batch([text for text, _, _ in written], add_special_tokens=False)
        for tokens, (_, places, kinds) in zip(encoded, written, strict=True):
            last = np.array(tokens.offsets, np.int64).reshape(-1, 2)[:, 1]
            ends.append(np.zeros(len(last), np.uint8))
            if len(last):  # the first token that reaches the end of a sentence
                ends[-1][np.minimum(np.searchsorted(last, places), len(last) - 1)] = kinds
            ids.append(np.array(tokens.ids, np.uint16))
    return Stream(np.concatenate(ids), np.concatenate(ends))
