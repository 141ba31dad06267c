"""Counts of characters and words by code points, against RE2 on the text itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.noise import signals
from stages.noise.characters import Characters

PIECES = (
    *"aZ09_#…./@<>&;[]{}\\`()-=x ·\t\n\0é語かー한ß١ﬁ²Ⅷ\u00a0\u0301\u200d🙂ſK",
    *("the", "The", "BE", "of", "with", "www.", "http://", "0x", "a_b", "camelCase", "deadbeef0123", "()", "...", " "),
    *("![](", "&amp;", "&#1;", "\\emph{", "```", "{{", "--flag", "../x/y", "e\u0301t", "o.f@x.org", "s.the", "thé"),
)
TEXTS = st.lists(st.lists(st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"])), max_size=12))


def counted(texts: list[str], pattern: str) -> list[int]:
    found: list[int] = pc.count_substring_regex(pa.array(texts, pa.string()), pattern).to_pylist()
    return found


@given(TEXTS.map(lambda lists: ["".join(one) for one in lists]))
def test_counts_are_those_of_regular_expressions(texts: list[str]) -> None:
    characters = Characters.of(texts)
    for pattern in (r"\S", r"\p{L}", r"\p{Nd}", r"[\p{P}\p{S}]", r"\p{Lu}", r"[A-Z]"):
        assert characters.count(characters.are(pattern)).tolist() == counted(texts, pattern), pattern
    assert characters.count(characters.among("#…")).tolist() == counted(texts, "[#…]")
    visible = characters.are(r"\S")
    assert characters.count(characters.starts(visible)).tolist() == counted(texts, r"\S+")
    alphabetic = characters.words_with(visible, characters.are(r"\p{L}"))
    assert alphabetic.tolist() == counted(texts, r"[^\s\p{L}]*\p{L}\S*")
    apart = r"[^\p{L}\p{M}\p{N}_]"
    found = characters.whole_words(characters.are(r"[\p{L}\p{M}\p{N}_]"), signals.STOP_WORDS)
    for word, rows in zip(signals.STOP_WORDS, found, strict=True):
        assert rows.tolist() == [one > 0 for one in counted(texts, rf"(?i)(?:^|{apart}){word}(?:$|{apart})")], word


@given(TEXTS.map(lambda lists: ["".join(one) for one in lists]))
def test_no_match_is_in_a_sentence_that_is_passed_over(texts: list[str]) -> None:
    text = pa.array(texts, pa.string())
    counts = signals._counted(text, pa.array(["eng_Latn"] * len(texts), pa.string()))
    passed = {
        signals.URL: signals.may_have_address(text, counts["address"]),
        signals.MARKUP: counts["markup"],
        signals.IDENTIFIER: counts["identifier"],
        r"…|\.\.\.": counts["dots"],
    }
    for pattern, possible in passed.items():
        assert not (np.asarray(counted(texts, pattern)) > 0)[~possible].any(), pattern


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_signals_do_not_depend_on_how_many_sentences_are_taken_at_once(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    texts = pa.array(["The «end» of it.", "", "日本語の文。", "see www.a.org and a_b", " "] * 3, pa.string())
    langs = pa.array(["eng_Latn", "fra_Latn", "jpn_Jpan", "eng_Latn", "xxx_Xxxx"] * 3, pa.string())
    expected: dict[str, Any] = signals._counted(texts, langs)
    monkeypatch.setattr(signals, "ROWS", rows)
    for name, found in signals._counted(texts, langs).items():
        np.testing.assert_array_equal(found, expected[name])
    assert signals._counted(texts[:0], langs[:0])["stop"].shape == (len(signals.STOP_WORDS), 0)
