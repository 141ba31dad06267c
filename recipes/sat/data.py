"""Training data of a small SaT model: documents whose sentence ends are known, written badly on purpose.

Sentence ends come from spaCy's rules, less those that follow an abbreviation, an ordinal or a quotation
that the sentence goes on behind; paragraph ends come from blank lines. Sentence ends of treebanks are gold
(`gold_documents`). Abbreviations, ordinals, initials, numbers of list items and quotation marks are also put into
sentences. Each document is written in several ways: as it is, without case, without punctuation, without both,
carelessly, in the letters of another script with its punctuation, and in a made-up language of Latin letters (Frohmann
et al., 2024, corrupt case and punctuation alike). Sentences are then joined by single spaces (Chinese, Japanese and
Thai: by nothing), so that nothing but the text itself shows where they end.

Cost: spaCy's rules once over the corpus, then about 3 MB/s per core for writing and tokenising.
"""

from __future__ import annotations

import functools
import json
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from recipes.sonar.data import CorpusSource, is_aligned, languages_of, open_text, read
from stages.segment import marks
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings

NOTHING, SENTENCE, PARAGRAPH, UNKNOWN = 0, 1, 2, 3  # what ends with a token; UNKNOWN: a sentence, perhaps a paragraph
WAYS = ("clean", "clean", "bare", "bare", "careless", "careless", "lower", "unpunctuated", "foreign", "made-up")
GOLD_WAYS = ("clean", "clean", "clean", "bare", "bare", "careless", "lower", "unpunctuated")
ALIGNED_SENTENCES = 30  # neighbouring segments of aligned records that make a document
BATCH = 200  # documents segmented at once
_FINAL = re.compile(r"[.!?…。！？]+[\"'”’»)]*$")
_WITHOUT_SPACES = {"zho_Hans", "zho_Hant", "jpn_Jpan", "tha_Thai"}
INSERTED = 0.12  # of the sentences get a word with a full stop
_GOES_ON = re.compile(r"[?!…]+[\"'”’»“)]*$|\.\.+[\"'”’»“)]*$")  # a quotation or a pause, if a lower-case letter follows
_ABBREVIATED = re.compile(r"(?<![^\s(\[\"'„“«»—–-])([^\W\d_][^\W\d_.]{0,5})\.(?=\s+([^\W\d_]))")
_ORDINAL = re.compile(r"(?:^|\s)(?:\d{1,2}|[IVX]{1,4})\.$")
_BEFORE_ORDINAL = re.compile(
    r"\b(?:am|vom|zum|beim|dem|den|der|des|die|im|bis|seit|ab|und|ins) (?:\d{1,2}|[IVX]{1,4})\.$"
)
_BEHIND_ORDINAL = re.compile(
    r"(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|Septem|Okto|Novem|Dezem|Jahrhundert|Kapitel|Armee|Regiment)"
)
_ITEMS = ("{n}. ", "{n}) ", "({n}) ", "- ", "* ", "• ", "– ", "{a}) ", "{a}. ")
_QUOTES = {"deu_Latn": ("„“", "»«", '""'), "fra_Latn": ("« \u00a0»", "«»", '""'), "rus_Cyrl": ("«»", '""')}
_INSERTS = {
    "eng_Latn": (
        "Mr. X", "Mrs. X", "Dr. X", "Prof. X", "I. X", "I. I. X", "X I. X", "the U.S.", "U.S.", "e.g.", "i.e.", "No. N",
        "vs.", "X Inc.", "X Co.", "etc.", "N p.m.", "a.m.", "Jan. N", "Sept. N", "St. X", "cf. p. N", "X.com",
        "approx. N", "version N.N", "Gen. X", "Sen. X", "Yahoo!", "X Jr.", "Ph.D.", "N.", "Fig. N", "et al.", "D.C.",
    ),
    "deu_Latn": (
        "am N. Mai", "vom N. bis N. März", "im N. Jahrhundert", "z. B.", "z.B.", "d. h.", "Dr. X", "Prof. Dr. X",
        "I. X", "I. I. X", "bzw.", "ca. N", "Nr. N", "u. a.", "usw.", "X II.", "X IV.", "St. X", "vgl. S. N",
        "der N. Platz", "den N. August", "Mio. X", "evtl.", "am N.N.N", "X Str. N", "die N. Auflage", "Abs. N",
    ),
    "fra_Latn": (
        "M. X", "MM. X", "I. X", "I.-I. X", "av. J.-C.", "etc.", "cf. p. N", "n° N", "St. X", "p. ex.", "Dr. X",
        "éd. X", "vol. N", "chap. N", "M. I. X", "env. N", "art. N", "X S.A.",
    ),
    "rus_Cyrl": (
        "г. X", "I. I. X", "I. X", "т. е.", "и т. д.", "и т. п.", "N г.", "в N в.", "ул. X", "им. X", "N руб.",
        "см. с. N", "др.", "N тыс. X", "стр. N", "проф. X", "св. X",
    ),
}  # fmt: skip


@functools.cache
def _without_punctuation() -> dict[int, None]:
    """For `str.translate`; made when it is first asked for, as it takes a second."""
    return {code: None for code in range(0x110000) if unicodedata.category(chr(code)).startswith("P")}


@dataclass(frozen=True)
class WritingSystem:
    """Letters to write in, what ends a sentence there, and whether words and sentences have spaces between them."""

    letters: str
    finals: str
    comma: str = ","
    words: str = " "
    sentences: str = " "
    spaced: float = 0.0  # share of documents with a space before the final mark


def _letters(first: int, last: int) -> str:
    return "".join(map(chr, range(first, last + 1)))


SCRIPTS = (
    WritingSystem(_letters(0x0905, 0x0939), "।।।?", spaced=0.4),  # Devanagari
    WritingSystem(_letters(0x0985, 0x09AF), "।।।?", spaced=0.4),  # Bengali
    WritingSystem(_letters(0x0A05, 0x0A28), "।।।?", spaced=0.4),  # Gurmukhi
    WritingSystem(_letters(0x0B95, 0x0BB9), "...?!"),  # Tamil
    WritingSystem(_letters(0x0627, 0x064A), "....؟۔", "،"),  # Arabic
    WritingSystem(_letters(0x0561, 0x0586), "։։:"),  # Armenian
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


VOWELS = "aeiouyáéíóúàèìòùâêîôûäëïöüãõāēīōūåæøıăơư"
CONSONANTS = "bcdfghjklmnpqrstvwxzçñšžčćđğşńłřťbdgklmnprst"


@dataclass(frozen=True)
class LabelledDocument:
    """Sentences in order, which of them end a paragraph, and what stands behind each; `spaces` None: what the language
    has. kind: SENTENCE, or UNKNOWN where paragraphs are not known.
    """

    lang: str
    sentences: Sequence[str]
    ends_paragraph: Sequence[bool]
    spaces: Sequence[str] | None = None
    kind: int = SENTENCE


def documents(sources: Iterable[CorpusSource], held_out: bool) -> Iterator[LabelledDocument]:
    """Yield documents of at least two sentences; several neighbouring segments of aligned records make one."""
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


def gold_documents(path: Path) -> Iterator[tuple[str, int, LabelledDocument]]:
    """Yield treebank, number of the document in it, and the document, from JSONL records.

    A record has `lang`, `treebank`, `sentences` and `spaces`. Which sentences end paragraphs is not known, except for
    the last. Documents of a single sentence are joined to groups of ALIGNED_SENTENCES, numbered after the others.
    """
    single: dict[tuple[str, str], list[str]] = defaultdict(list)
    count: Counter[str] = Counter()
    with open_text(path) as lines:
        for record in map(json.loads, lines):
            lang, treebank, sentences = record["lang"], record["treebank"], record["sentences"]
            if len(sentences) == 1:
                single[lang, treebank].append(sentences[0])
                continue
            ends = [False] * (len(sentences) - 1) + [True]
            yield treebank, count[treebank], LabelledDocument(lang, sentences, ends, record["spaces"], UNKNOWN)
            count[treebank] += 1
    for (lang, treebank), sentences in single.items():
        for first in range(0, len(sentences), ALIGNED_SENTENCES):
            some = sentences[first : first + ALIGNED_SENTENCES]
            yield treebank, count[treebank], LabelledDocument(lang, some, [False] * len(some), None, UNKNOWN)
            count[treebank] += 1


def cleaned(sources: Iterable[CorpusSource], held_out: bool) -> list[LabelledDocument]:
    """Yield `documents` without the boundaries that rules find wrongly (`rejoined`)."""
    found = list(documents(sources, held_out))
    abbreviated = abbreviations(found)
    return [rejoined(one, abbreviated.get(one.lang, frozenset())) for one in found]


def abbreviations(found: Sequence[LabelledDocument]) -> dict[str, frozenset[str]]:
    """Return language → words that count as abbreviations.

    Their full stop is followed by a lower-case letter at least five times, and in at least a fifth of all cases.
    """
    lower: Counter[tuple[str, str]] = Counter()
    upper: Counter[tuple[str, str]] = Counter()
    for document in found:
        for match in _ABBREVIATED.finditer(" ".join(document.sentences)):
            (lower if match[2].islower() else upper)[document.lang, match[1]] += 1
    words = defaultdict(set)
    for (lang, word), often in lower.items():
        if often >= 5 and often >= 0.2 * (often + upper[lang, word]):
            words[lang].add(word)
    return {lang: frozenset(some) for lang, some in words.items()}


def rejoined(document: LabelledDocument, abbreviated: frozenset[str]) -> LabelledDocument:
    """Return the document without the boundaries that rules find wrongly; those between paragraphs stay."""
    sentences, ends = [document.sentences[0]], [document.ends_paragraph[0]]
    between = "" if document.lang in _WITHOUT_SPACES else " "
    for sentence, end in zip(document.sentences[1:], document.ends_paragraph[1:], strict=True):
        if not ends[-1] and _goes_on(sentences[-1], sentence, document.lang, abbreviated):
            sentences[-1] += between + sentence
            ends[-1] = end
        else:
            sentences.append(sentence)
            ends.append(end)
    return replace(document, sentences=sentences, ends_paragraph=ends)


def _goes_on(before: str, behind: str, lang: str, abbreviated: frozenset[str]) -> bool:
    if _GOES_ON.search(before):
        return behind.lstrip("-–— ")[:1].islower()
    if not before.endswith("."):
        return False
    last = before[-12:].split()[-1].lstrip("([\"'„“«»—–-")[:-1]
    if last in abbreviated:
        return True
    if lang == "deu_Latn" and _ORDINAL.search(before[-6:]):
        return bool(_BEFORE_ORDINAL.search(before[-14:]) or _BEHIND_ORDINAL.match(behind) or behind[:1].islower())
    return False


def write(document: LabelledDocument, way: str, rng: random.Random) -> tuple[str, list[int], list[int]]:
    """Write a document in one of the WAYS.

    Returns the text, where its sentences end (the index after the last character), and SENTENCE, PARAGRAPH or UNKNOWN
    for each.
    """
    between = "" if document.lang in _WITHOUT_SPACES else " "
    sentences = list(document.sentences)
    spaces = [between] * len(sentences) if document.spaces is None else list(document.spaces)
    if document.kind != UNKNOWN:
        sentences = _with_marks(sentences, document.lang, rng)
    if way == "foreign":
        script = rng.choice(SCRIPTS)
        spaces = [script.sentences] * len(sentences)
        space = " " if rng.random() < script.spaced else ""
        sentences = [_foreign(sentence, script, space, rng) for sentence in sentences]
    elif way == "made-up":
        table = _made_up(rng)
        sentences = [unicodedata.normalize("NFC", sentence).translate(table) for sentence in sentences]
    elif way == "careless":
        habits = {habit: rng.random() * 0.6 for habit in ("no end", "other end", "lower", "upper")}
        sentences = [_careless(sentence, habits, rng) for sentence in sentences]
        if rng.random() < 0.15:
            sentences = [re.sub(r"([.,;:!?])(?=\s|$)", r" \1", sentence) for sentence in sentences]
    if way in ("bare", "lower"):
        sentences = [sentence.lower() for sentence in sentences]
    if way in ("bare", "unpunctuated"):
        sentences = [" ".join(sentence.translate(_without_punctuation()).split()) for sentence in sentences]
    ends, kinds, place = [], [], 0
    kept = [one for one in zip(sentences, spaces, document.ends_paragraph, strict=True) if one[0]]
    for sentence, space, last in kept:
        place += len(sentence)
        ends.append(place)
        kinds.append(PARAGRAPH if last else document.kind)
        place += len(space)
    return "".join(sentence + space for sentence, space, _ in kept).rstrip(), ends, kinds


def _with_marks(sentences: Sequence[str], lang: str, rng: random.Random) -> list[str]:
    """Put abbreviations, initials and ordinals into sentences, quotation marks around them, numbers before them."""
    found = list(sentences)
    inserts = _INSERTS.get(lang, ())
    names = [
        word for sentence in sentences[:10] for word in re.findall(r"(?<=\w )[A-ZÀ-ÞА-Я][a-zß-ÿа-яё]{3,}", sentence)
    ]
    quotes = _QUOTES.get(lang, ('""', "“”")) if lang not in _WITHOUT_SPACES else ("“”", "「」")
    for number, sentence in enumerate(found):
        words = sentence.split(" ")
        if inserts and names and len(words) > 5 and rng.random() < INSERTED:
            insert = re.sub(r"\bX\b", lambda _: rng.choice(names), rng.choice(inserts))
            insert = re.sub(
                r"\bI\b(?=\.)",
                lambda _: rng.choice("АБВГДЕИКЛМНПРСТ" if lang == "rus_Cyrl" else "ABCDEFGHJKLMNPRSTW"),
                insert,
            )
            insert = re.sub(r"\bN\b", lambda _: str(rng.randrange(1, 31)), insert)
            words.insert(rng.randrange(2, len(words) - 1), insert)
            found[number] = " ".join(words)
        elif rng.random() < 0.03:
            marks_ = rng.choice(quotes)
            found[number] = marks_[: len(marks_) // 2] + sentence + marks_[len(marks_) // 2 :]
    if len(found) > 3 and rng.random() < 0.06:
        first, item = rng.randrange(len(found) - 2), rng.choice(_ITEMS)
        for place in range(first, min(first + rng.randrange(2, 9), len(found))):
            number = place - first
            found[place] = item.format(n=number + 1, a="abcdefghi"[number]) + found[place]
    return found


def _made_up(rng: random.Random) -> dict[int, str]:
    """Map each Latin and Cyrillic letter to another one, vowels to vowels, with case, to make words of no language."""
    table = {}
    for letters, others in (
        ("aeiouyäöüéèàêâîôûùаеёиоуыэюя", VOWELS),
        ("bcdfghjklmnpqrstvwxzßçбвгджзйклмнпрстфхцчшщъь", CONSONANTS),
    ):
        for letter in letters:
            other = rng.choice(others)
            table[ord(letter)] = other
            if len(letter.upper()) == 1:
                table[ord(letter.upper())] = other.upper()[:1]
    return table


def _careless(sentence: str, habits: dict[str, float], rng: random.Random) -> str:
    if rng.random() < habits["no end"]:
        sentence = _FINAL.sub("", sentence) or sentence
    elif rng.random() < habits["other end"] * 0.5:
        sentence = _FINAL.sub(rng.choice(["!!!", "...", "!!", "??", " :)", "…", " !", "?!"]), sentence)
    if rng.random() < habits["lower"]:
        return sentence[:1].lower() + sentence[1:] if rng.random() < 0.5 else sentence.lower()
    return sentence.upper() if rng.random() < habits["upper"] * 0.2 else sentence


def _foreign(sentence: str, script: WritingSystem, space: str, rng: random.Random) -> str:
    ended = _FINAL.search(sentence)
    body = sentence[: ended.start()] if ended else sentence
    shift = rng.randrange(len(script.letters))
    body = "".join(script.letters[(ord(c) * 7 + shift) % len(script.letters)] if c.isalpha() else c for c in body)
    body = body.replace(" ", script.words).replace(",", script.comma)
    return body + (space + rng.choice(script.finals) if ended and script.finals else "")


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
        """Draw windows at random places: ids and ends, both (rows, length)."""
        places = rng.integers(0, len(self.ids) - length, rows)[:, None] + np.arange(length)
        return self.ids[places].astype(np.int64), self.ends[places]


def tokenise(
    found: Sequence[LabelledDocument],
    tokenizer: Tokenizer,
    seed: int,
    ways: Sequence[str] = WAYS,
    count: int = len(WAYS),
) -> Stream:
    """Tokenise every document in `count` of the ways, in a seeded order."""
    rng = random.Random(seed)
    work = [(number, way) for number in range(len(found)) for way in rng.sample(ways, count)]
    rng.shuffle(work)
    ids, ends = [], []
    for first in range(0, len(work), 2000):
        written = [write(found[number], way, rng) for number, way in work[first : first + 2000]]
        encoded = tokenizer.encode_batch([text for text, _, _ in written], add_special_tokens=False)
        for tokens, (_, places, kinds) in zip(encoded, written, strict=True):
            last = np.array(tokens.offsets, np.int64).reshape(-1, 2)[:, 1]
            ends.append(np.zeros(len(last), np.uint8))
            if len(last):  # of tokens that end there (`▁` and `.` of a mark after a space do) the last, as in the stage
                reached = np.minimum(np.searchsorted(last, places), len(last) - 1)
                ends[-1][np.searchsorted(last, last[reached], side="right") - 1] = kinds
            ids.append(np.array(tokens.ids, np.uint16))
    return Stream(np.concatenate(ids), np.concatenate(ends))
