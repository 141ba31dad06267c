"""Where sentences start, by spaCy's tokenizers and the rules of its sentencizer; nothing trained is loaded.

spaCy's tokenizers look at each word by itself, so only the words that hold a sentence-final mark are given to them, and
each of these once: what a word does to sentences is kept. That is ten times as fast as tokenising the whole text, with
the same boundaries.

spaCy knows the abbreviations of about 70 languages. Its tokenizers for Japanese, Korean, Thai and Vietnamese need
further packages, its Chinese one makes every character a token (3.14 would be two sentences), and some SONAR
languages it does not know: these get its multi-language tokenizer (`xx`). `spacy_code` tells what a language gets.
Characters that its rules leave out (all of Georgian, Gujarati, Malayalam, …) are shown to it as others: it would take
the full stop after them for a part of the word.

Three things are put right afterwards: opening quotes and bullets go with the sentence that they open, a sentence goes
on after a quotation that ends in `?"`, and an ellipsis ends a sentence where a new one starts. On UD English EWT (dev)
this finds the boundaries inside paragraphs with F1 0.897, against 0.861 as spaCy gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import regex
import spacy
from spacy.lang.char_classes import ALPHA, ALPHA_LOWER, ALPHA_UPPER
from spacy.tokenizer import Tokenizer
from spacy.tokens import Doc
from spacy.util import compile_infix_regex

from stages.segment import marks
from stages.segment.characters import BLANK, EAST_ASIAN, EXTENDS, FINAL, PUNCTUATION
from stages.segment.rules import french
from stages.segment.text import Flags, Indices, Text

# ISO 639-3, the first part of a SONAR language code, to spaCy's code.
SPACY_CODES = {
    **dict.fromkeys(("ara", "acm", "acq", "aeb", "ajp", "apc", "arb", "ars", "ary", "arz"), "ar"),
    **dict.fromkeys(("fas", "pes", "prs"), "fa"),
    "afr": "af", "als": "sq", "amh": "am", "azj": "az", "ben": "bn", "bod": "bo", "bul": "bg", "cat": "ca",
    "ces": "cs", "dan": "da", "deu": "de", "ell": "el", "eng": "en", "est": "et", "eus": "eu", "fao": "fo",
    "fin": "fi", "fra": "fr", "gla": "gd", "gle": "ga", "guj": "gu", "hat": "ht", "heb": "he", "hin": "hi",
    "hrv": "hr", "hun": "hu", "hye": "hy", "ind": "id", "isl": "is", "ita": "it", "kan": "kn", "kir": "ky",
    "kmr": "kmr", "lij": "lij", "lit": "lt", "ltz": "lb", "lug": "lg", "lvs": "lv", "mal": "ml", "mar": "mr",
    "mkd": "mk", "nld": "nl", "nno": "nn", "nob": "nb", "npi": "ne", "pol": "pl", "por": "pt", "ron": "ro",
    "rus": "ru", "san": "sa", "sin": "si", "slk": "sk", "slv": "sl", "spa": "es", "srp": "sr", "swe": "sv",
    "tam": "ta", "tat": "tt", "tel": "te", "tgl": "tl", "tir": "ti", "tsn": "tn", "tur": "tr", "ukr": "uk",
    "urd": "ur", "yor": "yo", "zsm": "ms",
}  # fmt: skip
MULTI_LANGUAGE = "xx"
LONGEST_WORD = 200  # spaCy's tokenizer takes quadratic time for a word, so longer ones are given to it in parts
KEPT_WORDS = 100_000  # words whose boundaries are kept; then all are forgotten
MAX_STRINGS = 500_000  # spaCy keeps every word that it has seen; a pipeline is made again at this many (about 0.15 GB)

# Tokens of their own inside what has no spaces: sentence ends of all scripts, East Asian brackets, what closes after a
# sentence end, ASCII marks between East Asian characters.
_BRACKETS = "\u3008-\u3011\u3014-\u301b\uff08\uff09\uff3b\uff3d\uff5b\uff5d\uff5f-\uff63"
_INFIXES = (
    f"[{re.escape(marks.FINAL)}{_BRACKETS}]",
    f"(?<=[{re.escape(marks.FINAL)}{_BRACKETS}])[{re.escape(marks.CLOSERS)}]+",
    f"(?<=[{marks.EAST_ASIAN}])[.!?](?=[{marks.EAST_ASIAN}])",
)
_ELLIPSES = tuple("." * dots for dots in range(2, 10))
_FINAL_MARKS = marks.SPACED_FINAL + marks.FINAL + marks.GREEK_QUESTION_MARK + "…"

# Opening quotes and brackets, and bullets, right before a sentence. A mark that can also close opens after a space.
_OPENING = re.compile(
    r"(?:(?<=\s)[-–—*•·#]+\s?|(?<=\s)[\"'`_»›’”]+|(?<=\s)«\s?|[" + re.escape(marks.OPENERS) + r"])+\Z"
)  # fmt: skip
_OPENERS = frozenset("-–—*•·#\"'`_»›’”«" + marks.OPENERS)
_COMMAS, _SOFT_CLOSERS = frozenset(",،؛，；"), frozenset("\"'”’»“)]")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD - 100},{LONGEST_WORD - 1}}}(?<=\w)(?=\w)|\S{{{LONGEST_WORD}}}")
_WORD = re.compile(rf"[^\s{marks.EAST_ASIAN}]{{1,{LONGEST_WORD}}}[{marks.EAST_ASIAN}]?|\S")
_PARTS = regex.compile(r"[\p{L}\p{M}]+")

_UNKNOWN = f"(?![{ALPHA}{ALPHA_LOWER}{ALPHA_UPPER}{marks.EAST_ASIAN}])"
_SHOWN_AS = (  # characters that spaCy's rules do not know → as many that they do
    (regex.compile(_UNKNOWN + r"\p{L}"), "q"),
    (regex.compile(r"(?<=\p{P}\p{Cf}*)\p{Cf}"), '"'),
    (regex.compile(_UNKNOWN + r"[\p{M}\p{Cf}]"), "\u05d0"),  # they take part in words of any case, as Hebrew letters do
    (regex.compile("\u1361\u1361"), "\u1362\u1362"),  # an Ethiopic full stop, typed as two word spaces
)
_CASED = r"\p{Script=Latin}\p{Script=Greek}\p{Script=Cyrillic}"
_LETTERS = regex.compile(rf"(\p{{P}}*+)([\p{{Lu}}&&[{_CASED}]]*+)([\p{{Ll}}&&[{_CASED}]]*+)\p{{P}}*+", regex.V1)
_NEAR = 12  # characters around a boundary that are looked at


def spacy_code(lang: str) -> str:
    """Return the spaCy language for a SONAR code (`deu_Latn` → `de`); `xx` is the multi-language one."""
    return SPACY_CODES.get(lang.split("_")[0], MULTI_LANGUAGE)


class Word(NamedTuple):
    """What a word does to the boundaries of sentences.

    first: where its first token that is not punctuation starts, or −1; after the end of a sentence a new one starts
    there. starts: further starts of sentences in the word. ended: whether a sentence has ended after the last of them.
    """

    first: int
    starts: tuple[int, ...]
    ended: bool


class SpacyRules:
    """The rules of one spaCy language: its tokenizer, and what its sentencizer does with tokens."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._final = {*_FINAL_MARKS, *_ELLIPSES} - ({marks.GREEK_QUESTION_MARK} if code != "el" else set())
        self._load()

    def _load(self) -> None:
        if self.code == "fr":
            french.load()
        nlp = spacy.blank(self.code)
        self._tokenizer = cast(Tokenizer, nlp.tokenizer)
        if self.code == MULTI_LANGUAGE:  # a whole Chinese paragraph with a full stop in it would be taken for a URL
            self._tokenizer.url_match = None
        infixes = [*(nlp.Defaults.infixes or []), *_INFIXES]
        self._tokenizer.infix_finditer = compile_infix_regex(infixes).finditer
        self._words: dict[str, Word] = {}
        self._is_token = self._tokenizer.token_match or (lambda word: None)  # roman numbers in Turkish
        self._special = {part.lower() for rule in self._tokenizer.rules or () for part in _PARTS.findall(rule)}

    def starts(self, text: Text, first: int, last: int) -> Indices:
        """Return where sentences start, other than at the beginning of their paragraph.

        Args:
            text: the text of all documents.
            first: the number of the first document to examine.
            last: the number after the last one.

        Returns:
            int64, places in `text.text`.
        """
        low, high = int(text.edges[first]), int(text.edges[last])
        left, right, mark = _words(text, low, high)
        ink = slice(*np.searchsorted(text.ink, (low, high)))
        ends = text.ink[ink][text.ends[ink]] + 1
        begins = np.append(low, ends[:-1])
        paragraph = np.searchsorted(ends, left, side="right")
        other = np.cumsum((text.kind[low:high] & (BLANK | PUNCTUATION)) == 0, dtype=np.int32)
        followed = other[ends[paragraph] - 1 - low] > other[mark - low]  # by what can start a sentence
        left, right, paragraph = left[followed], right[followed], paragraph[followed]
        edges = np.flatnonzero(np.diff(paragraph, prepend=-1, append=-1))
        words = list(zip(left.tolist(), right.tolist(), strict=True))
        starts: list[int] = []
        for number, (a, b) in zip(paragraph[edges[:-1]].tolist(), pairwise(edges.tolist()), strict=True):
            starts += self._paragraph(text.text, max(low, int(begins[number])), int(ends[number]), words[a:b])
        found: Indices = np.array(starts, np.int64)
        extends: Flags = (text.kind[found] & EXTENDS) != 0
        return found[~extends]

    def _paragraph(self, text: str, begin: int, end: int, words: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Return where sentences start in a paragraph; a sentence can end only at `words`."""
        last = begin
        for start in self._spacy_starts(text, end, words):
            moved = before_openers(text, last, start)
            if moved > last and not goes_on(text, begin, moved, end):
                last = moved
                yield moved

    def _spacy_starts(self, text: str, end: int, words: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Return where the sentencizer starts sentences: at the first non-punctuation token after a final mark."""
        ended = -1  # behind the word that ended a sentence, if none began since
        for left, right in words:
            if ended >= 0 and (start := self._next(text, ended, left)) >= 0:
                yield start
                ended = -1
            word = self._word(text[left:right])
            if ended >= 0 and word.first >= 0 and word.first not in word.starts:
                yield left + word.first
            for start in word.starts:
                yield left + start
            ended = right if word.ended or (ended >= 0 and word.first < 0) else -1
        if ended >= 0 and (start := self._next(text, ended, end)) >= 0:
            yield start

    def _next(self, text: str, place: int, stop: int) -> int:
        """Return the first token between two places that is not punctuation, or −1; no word there ends a sentence."""
        while place < stop and (found := marks.INK.search(text, place, stop)):
            place = found.start()
            if text[place].isalnum():
                return place
            word = cast(re.Match[str], _WORD.match(text, place, stop))
            first = self._word(word[0]).first
            if first >= 0:
                return place + first
            place = word.end()
        return -1

    def _word(self, word: str) -> Word:
        """Return what a word does, looked up by itself and by its shape."""
        found = self._words.get(word)
        if found is None:
            shape = self._shape(word)
            found = self._words.get(shape) or self._tokenised(shape)
            if len(self._words) >= KEPT_WORDS:
                self._words.clear()
            if len(word) <= LONGEST_WORD:
                self._words[word] = self._words[shape] = found
        return found

    def _shape(self, word: str) -> str:
        """Replace letters between marks that are not an exception: `(House.` behaves as `(Qqqqq.`.

        X is a Roman numeral.
        """
        letters = _LETTERS.fullmatch(word)
        if letters:
            start, capital, end = letters.start(2), letters.end(2), letters.end(3)
            shape, letters_alone = "Q" * (capital - start) + "q" * (end - capital), word[start:end]
            exception = letters_alone.lower() in self._special or self._is_token(f"{letters_alone}.")
            if len(shape) > 1 and not exception:
                return word[:start] + shape + word[end:]
        return word

    def _tokenised(self, word: str) -> Word:
        if len(self._tokenizer.vocab.strings) > MAX_STRINGS:
            self._load()
        for unknown, known in _SHOWN_AS:
            word = unknown.sub(known, word)
        first, ended, starts = -1, False, []
        for token in self._tokenizer(word) if len(word) <= LONGEST_WORD else self._long(word):
            if token.text in self._final:
                ended = True
            elif not token.is_punct:
                first = token.idx if first < 0 else first
                if ended:
                    starts.append(token.idx)
                ended = False
        return Word(first, tuple(starts), ended)

    def _long(self, word: str) -> Doc:
        ends = [found.end() for found in _LONG_WORD.finditer(word)]
        parts = [self._tokenizer(word[start:end]) for start, end in pairwise([0, *ends, len(word)])]
        return Doc.from_docs(parts, ensure_whitespace=False)


def _words(text: Text, low: int, high: int) -> tuple[Indices, Indices, Indices]:
    """Start, end and first mark of each word with a final mark, between two places. East Asian letters end words; the
    one before and the one after belong to it, so that the tokenizer sees what surrounds a mark.
    """
    kind = text.kind[low:high]
    marked = np.flatnonzero(kind & FINAL) + low
    between = np.append(low - 1, np.flatnonzero(kind & (BLANK | EAST_ASIAN)) + low)
    behind = np.searchsorted(between, marked)
    start, end = between[behind - 1], between[behind]
    start += (text.kind[start] & BLANK) != 0
    end += (text.kind[end] & BLANK) == 0
    new = np.diff(start, prepend=-1) > 0
    return start[new], end[new], marked[new]


def before_openers(text: str, floor: int, start: int) -> int:
    """Move the start of a sentence to before its opening quotes, which the sentencizer leaves with the previous
    sentence.

    Args:
        text: the text.
        floor: where the previous sentence starts.
        start: where the sentence starts.

    Returns:
        The new start.
    """
    if text[start - 1] not in _OPENERS and not (text[start - 1].isspace() and text[start - 2 : start - 1] in _OPENERS):
        return start  # for speed: nothing that opens stands there
    found = _OPENING.search(text, max(floor + 1, start - _NEAR), start)
    return found.start() if found else start


def goes_on(text: str, begin: int, start: int, end: int) -> bool:
    """Return whether a sentence only seems to end before `start`.

    Examples: `"Why?" said she`, `etc.), so`, `no... yes`, `他……走了`.

    Args:
        text: the text.
        begin: where the paragraph begins.
        start: where the next sentence would start.
        end: where the paragraph ends.

    Returns:
        True if there is no boundary.
    """
    near = text[max(begin, start - _NEAR) : start]
    ended = near.rstrip()
    ellipsis = ended.endswith(("..", "…"))
    if ended[-1:] in _COMMAS or (ellipsis and ended == near):
        return True
    if not ellipsis and ended[-1:] not in _SOFT_CLOSERS:
        return False
    return next((letter.islower() for letter in text[start : min(start + _NEAR, end)] if letter.isalnum()), False)
