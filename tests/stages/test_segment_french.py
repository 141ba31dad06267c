"""spaCy's French is loaded with a shorter pattern that matches the same words."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from stages.segment.rules.french import shortened
from tests.conftest import sample_documents

ALPHABET = "".join(chr(code) for code in range(ord("a"), 3000) if chr(code).isalpha())
KINDS = [
    "^anti[-–][al]+$",
    "^non[-–][al]+$",
    "^[ée]tats[-–]uni[al]*$",
    "^(?:a|b)[-–][al]+$",
    "^x|y[-–][al]+$",
    "^[al]+[-–]de[-–][al]+$",
    "^oui$",
]
WORDS = (
    *("anti-vol", "ANTI-VOL", "anti-", "Non-sens", "États-Unis", "etats–uni", "a-c", "c-c", "x", "xy", "y-z", "zy-z"),
    *("saut-de-ski", "sautdeski", "oui", "ouis"),
)

LOADED = """
import re, sys
from stages.segment.rules import french
long, shortened, original = [], french.shortened, re.compile
french.shortened = lambda pattern: long.append(pattern) or shortened(pattern)
french.load()
assert re.compile is original
(pattern,) = long
ours = sys.modules["spacy.lang.fr.tokenizer_exceptions"].TOKEN_MATCH
theirs = original(pattern).match
words = sys.stdin.read().split()
matched = [word for word in words if theirs(word)]
assert matched == [word for word in words if ours(word)]
print(len(ours.__self__.pattern), len(pattern), len(matched))
"""


def joined(kinds: list[str]) -> str:
    return "(?iu)" + "|".join(f"(?:{kind})" for kind in kinds).replace("[al]", f"[{ALPHABET}]")


def test_a_shortened_pattern_matches_the_same_words() -> None:
    pattern = joined(KINDS)
    short = shortened(pattern)
    assert len(ALPHABET) > 1000 and len(short) < len(pattern)
    matched = [bool(re.compile(pattern).match(word)) for word in WORDS]
    assert matched == [bool(re.compile(short).match(word)) for word in WORDS]
    assert 5 < sum(matched) < len(WORDS)


def test_a_pattern_of_another_form_stays() -> None:
    assert shortened("(?i)(?:a)|(?:b)") == "(?i)(?:a)|(?:b)"
    cut = "(?iu)(?:a(?:b)|(?:c)d)|(?:e)"  # whose middle looks like the border of two kinds
    assert shortened(cut) == cut


@pytest.mark.slow  # spaCy's own pattern takes seconds
def test_french_words_match_as_with_spacys_own_pattern() -> None:
    words = {word for document in sample_documents("libreoffice-fra", 50) for word in document["text"].split()}
    made = ("faux-vampire", "saut-de-ski", "pet-en-l'air", "entr'abat", "États-Unis", "knock-out", "ANTI-VOL", "a-b")
    done = subprocess.run(
        [sys.executable, "-c", LOADED], input=" ".join([*sorted(words), *made]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    short, long, matched = map(int, done.stdout.split())
    assert short < long / 10 and matched >= 5
