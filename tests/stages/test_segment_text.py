"""Documents as arrays: where sentences end in any case, lengths and slices as written, NFC and the way back."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.segment import marks
from stages.segment.characters import BLANK, EXTENDS, FINAL, PUNCTUATION, UNSPACED, classes
from stages.segment.normal import normalised
from stages.segment.text import Text, all_between, ranges
from tests.stages.segmenting import TEXT, is_blank


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXT, max_size=4))
def test_arrays_say_what_the_characters_say(documents: list[str]) -> None:
    text = Text(documents)
    assert text.text == "".join(f"{document}\n" for document in documents)
    ink = [place for place, character in enumerate(text.text) if not is_blank(character)]
    assert text.ink.tolist() == ink
    assert text.gap.tolist() == [is_blank(text.text[place + 1]) for place in ink]
    for place, joins_next in zip(ink, text.joins_next.tolist(), strict=True):
        here, behind = text.text[place], text.text[place + 1]
        joins = marks.EXTENDS.match(behind) is not None or marks.JOINS.match(here) is not None
        assert joins_next == (joins and not is_blank(behind))
    edges = np.cumsum([0, *(len(document) + 1 for document in documents)])
    assert text.edges.tolist() == edges.tolist()
    owner = [int(np.searchsorted(edges, place, side="right")) - 1 for place in ink]
    assert text.owner(np.arange(len(ink))).tolist() == owner


@settings(max_examples=200, deadline=None)
@given(TEXT, st.integers(0, 2**32 - 1))
def test_slices_and_lengths_are_those_of_the_collapsed_text(document: str, seed: int) -> None:
    text = Text([document])
    count = len(text.ink)
    if not count:
        return
    cut = np.random.default_rng(seed).random(count) < 0.2
    cut[-1] = True
    first, last = ranges(cut)
    assert all_between(first, last).tolist() == np.flatnonzero(~cut).tolist()
    slices = text.slices(first, last)
    stands = [text.text[text.ink[a] : text.ink[b] + 1] for a, b in zip(first, last, strict=True)]
    assert slices == [marks.collapse(one) for one in stands]
    assert text.length(first, last).tolist() == [len(one) for one in slices]


@pytest.mark.parametrize(
    ("documents", "ends"),
    [
        (["a\n\nb"], "ab"),
        (["a\nb"], "b"),
        (["a\r\nb"], "b"),
        (["a\r\n\r\nb", "c\r"], "abc"),
        (["a\n\rb"], "ab"),
        (["a\r\rb"], "ab"),
        (["a \t\r\n \t\r\nb"], "ab"),
        (["a\n\x00 \nb"], "ab"),  # a line of control characters is blank
        (["a\u2028b"], "b"),
        (["a\u2028\u2028b\x85\x85c"], "abc"),
        (["a\u2029b"], "ab"),
        (["\n\na\n\n\nb\n"], "ab"),
        (["a", "", "\n\n", "b"], "ab"),
        (["\n", "\u2029", ""], ""),
        ([], ""),
    ],
)
def test_sentences_end_before_blank_lines_and_with_documents(documents: list[str], ends: str) -> None:
    text = Text(documents)
    assert "".join(text.text[place] for place in text.ink[text.ends]) == ends


@settings(max_examples=200, deadline=None)
@given(st.text("ab \t\n\r\u2028\u2029\x85", max_size=30))
def test_blank_lines_are_those_of_the_pattern(document: str) -> None:
    text = Text([document])
    separated = {text.before(np.array([found.start()]))[0] for found in marks.PARAGRAPH_END.finditer(document)}
    expected = {place for place in (*separated, len(text.ink) - 1) if place >= 0}
    assert set(np.flatnonzero(text.ends).tolist()) == expected


def test_every_code_point_has_the_classes_of_the_patterns() -> None:
    table = classes(np.arange(0x110000, dtype=np.uint32))
    assert table[0xD800:0xE000].max() == 0
    rng = np.random.default_rng(0)
    for code in (*rng.integers(0, 0xD800, 5000).tolist(), *rng.integers(0xE000, 0x110000, 5000).tolist()):
        character, found = chr(code), int(table[code])
        assert bool(found & BLANK) == is_blank(character)
        assert bool(found & PUNCTUATION) == unicodedata.category(character).startswith("P") or code > 0xFFFF
        assert bool(found & EXTENDS) == (marks.EXTENDS.match(character) is not None)
        assert bool(found & FINAL) >= (character in marks.FINAL + marks.SPACED_FINAL)
        assert classes(np.array([code], np.uint32))[0] == found
    assert all(table[ord(c)] & UNSPACED for c in "漢かカกລខမདᥐ")
    assert not any(table[ord(c)] & UNSPACED for c in "a1é한ا.")


POOL = (
    "aeA x\u0301\u0323\u0300\u0344\u0958\u0915\u093c\u0f43\u1100\u1112\u1161\u11a8\u11ab가각\u2126\u212b\ufb1d"
    "\U0001d15e\u09c7\u09be\u0b47\u0b56\u30ab\u3099\u200d"
)


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.text(POOL, max_size=12), TEXT))
def test_nfc_and_the_way_back(text: str) -> None:
    found = normalised(text)
    assert found.text == unicodedata.normalize("NFC", text)
    places = found.original(np.arange(len(found.text) + 1))
    assert (np.diff(places) >= 0).all()
    if found.text:
        assert places[0] == 0 and places[-1] == len(text)


CLUSTERS = (
    "x", " ", "가", "क", "e\u0302\u0301", "s\u0307\u0323", "\u1112\u1161\u11ab", "\u1112\u1161", "\u0958",
    "\u0915\u093c", "\u2126", "\u212b\u0301", "\ufb1d", "\ufb1d\u05b4", "\uf900", "\U0001d15e", "\u0f43",
    "\u09c7\u09be", "q\u0344",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(CLUSTERS), max_size=8))
def test_what_composes_goes_back_to_what_it_was(clusters: list[str]) -> None:
    found = normalised("x".join(clusters)), normalised("".join(clusters))
    for between, one in zip("x ", found, strict=True):
        old = np.cumsum([0, *(len(cluster) + len(between.strip()) for cluster in clusters)])
        new = np.cumsum([0, *(len(unicodedata.normalize("NFC", c)) + len(between.strip()) for c in clusters)])
        if between == "x" or new[-1] == len(one.text):  # nothing composes with its neighbour
            assert one.original(new[:-1]).tolist() == old[:-1].tolist()


def test_text_in_nfc_is_the_text_itself() -> None:
    text = "Größe, 각 ক\u09bc"
    found = normalised(text)
    assert found.text is text and not len(found.new)
    assert found.original(np.array([0, 3])).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("text", "composed", "places"),
    [
        ("Tie\u0302\u0301ng", "Tiếng", [0, 1, 2, 5, 6, 7]),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af!", "한글!", [0, 3, 6, 7]),
        ("a\u0958b", "a\u0915\u093cb", [0, 1, 2, 2, 3]),  # excluded from composition: one becomes two
        ("क\u0958\u0958", "क\u0915\u093c\u0915\u093c", [0, 1, 2, 2, 3, 3]),
        ("q\u0344", "q\u0308\u0301", [0, 1, 2, 2]),
        ("e\u0301\u0302\u0302x", "\u00e9\u0302\u0302x", [0, 2, 3, 4, 5]),  # cut behind the letter, not inside it
        ("ae\u0323\u0302\u0302", "a\u1ec7\u0302", [0, 1, 4, 5]),
        ("\u2126 ok", "\u03a9 ok", [0, 1, 2, 3, 4]),
    ],
)
def test_places_go_back_to_the_original(text: str, composed: str, places: list[int]) -> None:
    found = normalised(text)
    assert found.text == composed
    assert found.original(np.arange(len(composed) + 1)).tolist() == places
