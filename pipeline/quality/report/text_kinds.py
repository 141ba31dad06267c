"""Kinds of text that SONAR encodes badly: links, references, identifiers, numbers, code, other scripts (LCM 2.5.2).

They are recognised by patterns, so they are indications. Cost: 10 µs per sentence.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import regex

URL, REFERENCE, IDENTIFIER, DIGITS, CODE, SCRIPT = KINDS = (
    "link or address",
    "reference",
    "identifier",
    "over 30 % digits",
    "code",
    "another script",
)
MANY_DIGITS, MANY_MARKS, FOREIGN = 0.3, 0.05, 0.3  # shares of characters, of characters, of letters

_PATTERNS = {
    URL: regex.compile(r"https?://|\bwww\.|\b[\w.+-]+@[\w-]+\.\w"),
    REFERENCE: regex.compile(
        r"\[\d+(?:\s?[,;–-]\s?\d+)*\]|\bdoi:|\bet al\b|\b(?:ISBN|ISSN|arXiv)\b"
        r"|\(\p{Lu}[^()]{0,60},? (?:1[5-9]|20)\d\d[a-z]?\)"
    ),
    IDENTIFIER: regex.compile(r"\b(?=[\w-]*\d)(?=[\w-]*\p{L})[\w-]{6,}\b|\b\w+(?:_\w+)+\b"),
}
_MARKS = frozenset("{}<>;=\\|$#&*+~^`")
_HANGUL = "Hangul}\\p{Script=Han"
_SCRIPTS = {
    "Hans": "Han",
    "Hant": "Han",
    "Jpan": "Han}\\p{Script=Hiragana}\\p{Script=Katakana",
    "Kore": _HANGUL,
    "Hang": _HANGUL,
}
_own: dict[str, regex.Pattern[str] | None] = {}


def kinds_of(text: str, lang: str) -> set[str]:
    """Return the kinds of a sentence; lang: a code such as `eng_Latn`, whose script is the usual one."""
    found = {name for name, pattern in _PATTERNS.items() if pattern.search(text)}
    solid = "".join(text.split())
    if solid and sum(one.isdigit() for one in solid) > MANY_DIGITS * len(solid):
        found.add(DIGITS)
    if solid and sum(one in _MARKS for one in solid) > MANY_MARKS * len(solid):
        found.add(CODE)
    letters = sum(one.isalpha() for one in solid)
    own = _script(lang)
    if own is not None and letters and letters - len(own.findall(solid)) > FOREIGN * letters:
        found.add(SCRIPT)
    return found


def kind_bits(texts: Iterable[str], langs: Iterable[str]) -> npt.NDArray[np.uint8]:
    """Return (texts,) with a bit for each kind that a text is of, in the order of `KINDS`."""
    bits = {name: 1 << place for place, name in enumerate(KINDS)}
    rows = [sum(bits[kind] for kind in kinds_of(*one)) for one in zip(texts, langs, strict=True)]
    return np.asarray(rows, np.uint8)


def _script(lang: str) -> regex.Pattern[str] | None:
    """Return a pattern of one letter of a language's script; None if that is not known."""
    script = lang.rpartition("_")[2]
    if script not in _own:
        try:
            _own[script] = regex.compile(rf"(?=\p{{L}})[\p{{Script={_SCRIPTS.get(script, script)}}}]")
        except regex.error:
            _own[script] = None
    return _own[script]
