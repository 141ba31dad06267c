"""Punctuation of all scripts by what it ends, and what counts as white space between sentences.

From Unicode's Sentence_Terminal and Terminal_Punctuation properties, sorted by use. A mark of a script that puts
spaces after its punctuation (`SPACED_…`) is a boundary only before white space: `3.14`, `12:30` and `a.b` stay whole.
The other marks are boundaries wherever they stand.
"""

from __future__ import annotations

import re

import regex

SPACED_FINAL = ".!?"
FINAL = (
    "\u037e\u0589\u05c3\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965"
    "\u0f0d\u0f0e\u0f0f\u0f10\u0f11\u0f12\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5"
    "\u1803\u1809\u1944\u1945\u1aa8\u1aa9\u1aaa\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f"
    "\u203c\u203d\u2047\u2048\u2049\u2cf9\u2cfa\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u3002"
    "\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uaaf0\uaaf1\uabeb"
    "\ufe12\ufe15\ufe16\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
    "\U00010a56\U00010a57\U00010f55\U00010f56\U00010f57\U00010f58\U00010f59\U00010f86\U00010f87\U00010f88\U00010f89"
    "\U00011047\U00011048\U000110be\U000110bf\U000110c0\U000110c1\U00011141\U00011142\U00011143\U000111c5\U000111c6"
    "\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U0001144b\U0001144c"
    "\U000115c2\U000115c3\U000115c9\U000115ca\U000115cb\U000115cc\U000115cd\U000115ce\U000115cf\U000115d0\U000115d1"
    "\U000115d2\U000115d3\U000115d4\U000115d5\U000115d6\U000115d7\U00011641\U00011642\U0001173c\U0001173d\U0001173e"
    "\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8"
    "\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016e98\U0001bc9f\U0001da88"
)
GREEK_QUESTION_MARK = ";"  # in Greek only
SPACED_BREAKS = ";:\u00b7"  # the middle dot is a Greek semicolon
BREAKS = (
    "\u2014\u2e3a\u2e3b\u2026\u22ef"  # dashes, ellipses
    "\u0387\u061b\u0703\u0704\u0705\u0706\u0707\u0708\u0709\u1364\u1365\u1366\u17d6\u1804\u1805"
    "\ua6f4\ua6f6\ufe13\ufe14\ufe19\ufe54\ufe55\uff1a\uff1b"
)
SPACED_COMMAS = ","
COMMAS = (
    "\u055d\u060c\u07f8\u104a\u1363\u1802\u1808\u2e41\u2e4c\u3001\ua4fe\ua60d\ua6f5\ufe10\ufe11\ufe50\ufe51\uff0c\uff64"
    "\U0001144d\U00016e97\U0001da87"
)
# No white space, but between words or syllables: zero width space, Tibetan tsheg, Ethiopic word space.
WORD_ENDS = "\u200b\u0f0b\u1361"

OPENERS = (
    "([{\u00a1\u00bf\u00ab\u2018\u201a\u201b\u201c\u201e\u201f\u2039\u2045\u207d\u27e8\u27ea"
    "\u3008\u300a\u300c\u300e\u3010\u3014\u3016\u3018\u301a\u301d\uff08\uff3b\uff5b\uff62"
)
CLOSERS = (
    ")]}\"'\u00bb\u2019\u201c\u201d\u203a\u2046\u207e\u27e9\u27eb"
    "\u3009\u300b\u300d\u300f\u3011\u3015\u3017\u3019\u301b\u301e\u301f\uff09\uff3d\uff5d\uff63"
)

EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"  # ranges of letters

_BLANK = r"\s\x00-\x1f\x7f-\x9f"
BLANKS = re.compile(f"[{_BLANK}]+")  # white space and control characters
INK = re.compile(f"[^{_BLANK}]")
# What a reader sees: also no zero width space, mark of direction, soft hyphen, Hangul filler, blank Braille pattern.
VISIBLE = regex.compile(rf"[^{_BLANK}\p{{Default_Ignorable_Code_Point}}\u2800]")
_LINE_END = r"(?>\r\n|[\n\r\x85\u2028])"
PARAGRAPH_END = re.compile(rf"(?:{_LINE_END}[^\S\n\r\x85\u2028]*+){{2,}}+|\u2029")  # at least one blank line

# A character that belongs to the one before: combining marks, joiners, variation selectors, skin tones.
EXTENDS = regex.compile(r"[\p{GCB=Extend}\p{GCB=SpacingMark}\p{GCB=ZWJ}]")
# One that the next belongs to: what stacks consonants (Khmer coeng, Burmese virama), signs before numbers, joiners.
JOINS = regex.compile(r"[\p{InCB=Linker}\p{GCB=Prepend}\p{GCB=ZWJ}]")


SENTENCE = 400  # characters: about two sentences of the length that is usual in most languages
_SENTENCE_ENDS = re.compile(rf"[{re.escape(SPACED_FINAL)}](?=[{re.escape(CLOSERS)}]*(?:\s|$))|[{re.escape(FINAL)}]")


def collapse(text: str) -> str:
    """Replace runs of white space and control characters by one space, and strip both ends."""
    return BLANKS.sub(" ", text).strip(" ")


def has_sentence_ends(text: str) -> bool:
    """Return whether sentence-final marks are as frequent as in written text, about one in `SENTENCE` characters."""
    return len(text) <= SENTENCE or sum(1 for _ in _SENTENCE_ENDS.finditer(text)) * SENTENCE >= len(text)
