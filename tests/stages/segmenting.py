"""What tests of segmentation share: a way to count tokens, text that is hard to cut, and what is true of all pieces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import regex
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.segment.pieces import Limits, Pieces
from stages.segment.segmenter import Segmented
from stages.segment.text import Text

TRICKY = (
    "ab A1.!?…\"'«»()-—。！「」，；;:،؟।።፣፡\n\r\t\v\u2028\u2029\x00\x85\u3000"  # punctuation and white space
    "\u0301\u200d\u200b\u200c\ufe0f\u0600😀👍🏽👨👩🇩🇪‼\u00ad"  # what makes grapheme clusters, or looks like it
    "\u1100\u1161\u11a8각नि्क्षิภากเ你好はོང་ខ្មែ"  # scripts without spaces, conjuncts, jamo
)
TEXT = st.text(st.one_of(st.sampled_from(TRICKY), st.characters(exclude_categories=["Cs"])), max_size=200)

TRAPS = {
    "a 402-character URL": "https://example.org/" + "a/b?c=d&" * 47 + "abcdef",
    "emoji": "😀" * 10_000,
    "families": "👨‍👩‍👧‍👦" * 500,
    "flags": "🇩🇪🇫🇷" * 500,
    "combining marks": "a" + "\u0301" * 5_000,
    "one character": "x",
    "one emoji": "‼️",
    "punctuation only": "?!.,;:" * 200,
    "dots": "." * 3_000 + " a. B",
    "Thai without spaces": "ภาษาไทยไม่มีช่องว่างระหว่างคำ" * 40,
    "Chinese without marks": "没有标点符号的很长的中文句子" * 60,
    "Korean in jamo": "\u1112\u1161\u11ab" * 300,
    "Hindi decomposed": "क\u093cख\u093cग\u093cज\u093c" * 200,
    "right to left": "שלום עולם, وهذه جملة عربية طويلة جدا بلا نهاية " * 20,
    "both directions": "The word \u202bשלום\u202c means peace؛ والسلام peace \u200f(2.5)\u200f " * 20,
    "base64": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo" * 100 + ". And then?",
    "control characters": "a\x00\x01b" * 100,
    "windows line ends": "One.\r\nTwo, on the same paragraph\r\n\r\nThree.",
}


def count_bytes(texts: Sequence[str]) -> list[int]:
    """Tokens that do not add up over words: white space counts too, and all is rounded."""
    return [len(text.encode()) // 3 + 2 for text in texts]


def count_in_words(texts: Sequence[str]) -> list[int]:
    """Tokens that add up over words, as in SONAR's tokenizers: one for each two characters of a word, and two more."""
    return [2 + sum(-(-len(word) // 2) for word in text.split()) for text in texts]


def is_blank(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) == "Cc"


def written(text: str) -> str:
    """A slice of a document as a piece writes it."""
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", unicodedata.normalize("NFC", text))


def check(segmented: Segmented, texts: Sequence[str]) -> None:
    """Every character that is not blank is in exactly one piece, in order, and `text` is the slice in NFC."""
    rows = zip(segmented.document, segmented.start, segmented.end, segmented.text.to_pylist(), strict=True)
    found = [""] * len(texts)
    before = [0] * len(texts)
    last = 0
    for document, start, end, piece in rows:
        assert document >= last and start >= before[document] and start <= end
        assert all(map(is_blank, texts[document][before[document] : start]))
        assert piece == piece.strip() != ""
        if unicodedata.is_normalized("NFC", texts[document]):  # else pieces may begin inside what was composed
            assert piece == written(texts[document][start:end])
        found[document] += piece
        before[document], last = end, document
    for text, end, pieces in zip(texts, before, found, strict=True):
        assert all(map(is_blank, text[end:]))
        assert "".join(pieces.split()) == "".join(written(text).split())
    pieces = segmented.text.to_pylist()
    assert segmented.chars.tolist() == [len(piece) for piece in pieces]
    assert len(segmented.paragraph) == len(pieces)
    step = np.diff(segmented.paragraph)
    new = np.diff(segmented.document) > 0
    assert np.isin(step[~new], (0, 1)).all() and (segmented.paragraph[1:][new] == 0).all()


def one_sentence(text: str, limits: Limits) -> Pieces:
    """Pieces of a text before any cap: its paragraphs."""
    arrays = Text([text])
    return Pieces(arrays, arrays.ends.copy(), limits)


def broken_clusters(text: Text, cut: NDArray[np.bool_]) -> list[str]:
    """Grapheme clusters of a text that a cut lies in."""
    places = set((text.ink[cut] + 1).tolist())
    clusters = [found.span() for found in regex.finditer(r"\X", text.text)]
    return [text.text[a:b] for a, b in clusters if any(place in places for place in range(a + 1, b))]
