"""Where sentences start, by spaCy's tokenizers and its rule-based sentencizer; nothing trained is loaded.

spaCy knows the abbreviations of about 70 languages. Its tokenizers for Japanese, Korean, Thai and Vietnamese need
further packages, its Chinese one makes every character a token (3.14 would be two sentences), and some SONAR
languages it does not know: these get its multi-language tokenizer (`xx`). `spacy_code` tells what a language gets.

Three things are put right afterwards: opening quotes and bullets go with the sentence that they open, a sentence goes
on after a quotation that ends in `?"`, and an ellipsis ends a sentence where a new one starts. On UD English EWT (dev)
this finds the boundaries inside paragraphs with F1 0.897, against 0.861 as spaCy gives them.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import cast

import spacy
from spacy.tokenizer import Tokenizer
from spacy.tokens import Doc
from spacy.util import compile_infix_regex

from stages.segment import marks

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
GREEK_QUESTION_MARK = ";"  # in Greek only

WINDOW = 100_000  # characters given to spaCy at once: its tokens take 60 times the memory of the text
MARGIN = 1_000  # a boundary so close to the end of a window is found again in the next one, which sees what follows
LONGEST_WORD = 200  # spaCy's tokenizer takes quadratic time for a word, so longer ones are given to it in parts
CACHED_WORDS = 100_000  # spaCy's own limit is 10 000; technical text is then a third slower
MAX_STRINGS = 500_000  # spaCy keeps every word that it has seen; a pipeline is made anew at this many (about 0.15 GB)

# Tokens of their own inside what has no spaces: sentence ends of all scripts, East Asian brackets, what closes after a
# sentence end, ASCII marks between East Asian characters.
_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_BRACKETS = "\u3008-\u3011\u3014-\u301b\uff08\uff09\uff3b\uff3d\uff5b\uff5d\uff5f-\uff63"
_INFIXES = (
    f"[{re.escape(marks.FINAL)}{_BRACKETS}]",
    f"(?<=[{re.escape(marks.FINAL)}{_BRACKETS}])[{re.escape(marks.CLOSERS)}]+",
    f"(?<=[{_EAST_ASIAN}])[.!?](?=[{_EAST_ASIAN}])",
)
_ELLIPSES = tuple("." * dots for dots in range(2, 10))
_FINAL_MARKS = marks.SPACED_FINAL + marks.FINAL + GREEK_QUESTION_MARK + "…"

# Opening quotes and brackets, and bullets, right before a sentence. A mark that can also close opens after a space.
_OPENING = re.compile(
    r"(?:(?<=\s)[-–—*•·#]+\s?|(?<=\s)[\"'`_»›’”]+|(?<=\s)«\s?|[" + re.escape(marks.OPENERS) + r"])+\Z"
)  # fmt: skip
_SOFT_END = re.compile(r"(?:(?P<ellipsis>\.\.|…)|(?P<comma>[,،؛，；])|[\"'”’»“)\]])(?P<space>\s*)\Z")
_ONE_SENTENCE = re.compile("[^{0}]*+[{0}{1}]*+".format(*map(re.escape, (_FINAL_MARKS, marks.CLOSERS))))
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD - 100},{LONGEST_WORD - 1}}}(?<=\w)(?=\w)|\S{{{LONGEST_WORD}}}")
_NEAR = 12  # characters around a boundary that are looked at


def spacy_code(lang: str) -> str:
    """The spaCy language that segments a SONAR language code (`deu_Latn` → `de`); `xx` is the multi-language one."""
    return SPACY_CODES.get(lang.split("_")[0], MULTI_LANGUAGE)


class SpacyRules:
    """The rules of one spaCy language: tokenizer and sentencizer."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._load()

    def _load(self) -> None:
        final = {*_FINAL_MARKS, *_ELLIPSES}
        if self.code != "el":
            final.remove(GREEK_QUESTION_MARK)
        nlp = spacy.blank(self.code)
        self._tokenizer = cast(Tokenizer, nlp.tokenizer)
        self._tokenizer.max_cache_size = CACHED_WORDS
        if self.code == MULTI_LANGUAGE:  # a whole Chinese paragraph with a full stop in it would be taken for a URL
            self._tokenizer.url_match = None
        infixes = [*(nlp.Defaults.infixes or []), *_INFIXES]
        self._tokenizer.infix_finditer = compile_infix_regex(infixes).finditer
        self._sentencizer = nlp.add_pipe("sentencizer", config={"punct_chars": sorted(final), "overwrite": True})

    def starts(self, paragraph: str) -> list[int]:
        """Offsets at which the sentences of a paragraph start; the first is 0.

        A paragraph of more than WINDOW characters is looked at in windows, each from a sentence's start, if there is
        one, so that memory stays bounded.
        """
        starts, begin = [0], 0
        while len(paragraph) - begin > WINDOW:
            window = paragraph[begin : begin + WINDOW]
            found = self._starts(window)[1:]
            sure = [start for start in found if start <= WINDOW - MARGIN] or found[:1]
            starts += [begin + start for start in sure]
            begin += sure[-1] if sure else _last_word(window)
        return starts + [begin + start for start in self._starts(paragraph[begin:])[1:]]

    def _starts(self, paragraph: str) -> list[int]:
        if _ONE_SENTENCE.fullmatch(paragraph):  # spares short paragraphs the tokenizer
            return [0]
        if len(self._tokenizer.vocab.strings) > MAX_STRINGS:
            self._load()
        doc = self._tokenizer(paragraph) if max(map(len, paragraph.split())) <= LONGEST_WORD else self._long(paragraph)
        starts = [0]
        for sentence in self._sentencizer(doc).sents:
            start = before_openers(paragraph, starts[-1], sentence.start_char)
            if start > starts[-1] and not goes_on(paragraph, start) and not marks.EXTENDS.match(paragraph, start):
                starts.append(start)
        return starts

    def _long(self, paragraph: str) -> Doc:
        ends = [found.end() for found in _LONG_WORD.finditer(paragraph)]
        parts = [self._tokenizer(paragraph[start:end]) for start, end in pairwise([0, *ends, len(paragraph)])]
        return Doc.from_docs(parts, ensure_whitespace=False)


def _last_word(window: str) -> int:
    """Where the last word of a window without a sentence's end starts, or its last character: inside the window, so
    that a sentence that starts right behind it is still found.
    """
    return window.rfind(" ", WINDOW - MARGIN, WINDOW - 1) + 1 or WINDOW - 1


def before_openers(text: str, floor: int, start: int) -> int:
    """The sentencizer leaves opening quotes with the sentence before; this moves a start to before them."""
    found = _OPENING.search(text, max(floor + 1, start - _NEAR), start)
    return found.start() if found else start


def goes_on(text: str, start: int) -> bool:
    """Whether a sentence only seems to end before `start`: `"Why?" said she`, `etc.), so`, `no... yes`, `他……走了`."""
    end = _SOFT_END.search(text, max(0, start - _NEAR), start)
    if end is None:
        return False
    if end["comma"] or (end["ellipsis"] and not end["space"]):
        return True
    return next((letter.islower() for letter in text[start : start + _NEAR] if letter.isalnum()), False)
