"""Finds the words in which a sentence and its decoded text differ.

    differences("The ship arrived.", "The sheep arrived.")
    # ([["=", "The "], ["-", "ship"], ["=", " arrived."]], [["=", "The "], ["+", "sheep"], ["=", " arrived."]])

Of scripts that put no spaces between words, single characters are compared.
"""

from __future__ import annotations

from difflib import SequenceMatcher

import regex

Pieces = list[list[str]]  # pairs of a sign (= - +) and a text; joined, the texts are the whole

LONGEST = 1_500  # words of both together; longer ones are shown without marks (some tens of milliseconds)
_WORDS = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\p{M}*"
    r"|(?:(?![\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}])[\w\p{M}])+|\s+|."
)


def differences(text: str, decoded: str) -> tuple[Pieces, Pieces]:
    """Return the pieces of both: `=` is in both, `-` only in the text, `+` only in what it decodes to."""
    ours, theirs = _WORDS.findall(text), _WORDS.findall(decoded)
    if len(ours) + len(theirs) > LONGEST:
        return [["=", text]], [["=", decoded]]
    mine: Pieces = []
    other: Pieces = []
    for kind, from_, to, other_from, other_to in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        _add(mine, "=" if kind == "equal" else "-", "".join(ours[from_:to]))
        _add(other, "=" if kind == "equal" else "+", "".join(theirs[other_from:other_to]))
    return mine, other


def _add(pieces: Pieces, sign: str, text: str) -> None:
    if not text:
        return
    if pieces and pieces[-1][0] == sign:
        pieces[-1][1] += text
    else:
        pieces.append([sign, text])
