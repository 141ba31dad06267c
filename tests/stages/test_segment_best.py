"""The cap by probabilities: as good as trying all ways, and hard whatever the text, the odds and the tokenizer are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.segment.characters import PUNCTUATION, UNSPACED
from stages.segment.marks import collapse
from stages.segment.pieces import Limits, Pieces
from stages.segment.sat.cap import HARD, INSIDE_CLUSTER, SILENT, best_cuts, fit
from stages.segment.text import Text
from tests.stages.segmenting import TEXT, TRAPS, broken_clusters, count_bytes, count_in_words, is_blank

Odds = NDArray[np.float32]
Count = Callable[[Sequence[str]], list[int]]


def count_spaces(texts: Sequence[str]) -> list[int]:
    """Tokens of nothing but the white space: what words cost alone says nothing of what they cost together."""
    return [2 + 3 * text.count(" ") for text in texts]


def random_odds(text: Text, seed: int) -> Odds:
    """Silence at most characters; sentences end at some."""
    rng = np.random.default_rng(seed)
    count = len(text.ink)
    odds = np.where(rng.random(count) < 0.5, -np.inf, rng.normal(-4, 3, count))
    return np.where(text.joins_next, -np.inf, odds).astype(np.float32)


def sentences(text: Text, odds: Odds, limits: Limits) -> Pieces:
    return Pieces(text, text.ends | (odds > 0), limits)


def best_sum(gains: NDArray[np.float64], left: NDArray[np.int64]) -> float:
    """By trying all predecessors."""
    score = [0.0]
    for node in range(1, len(gains)):
        score.append(float(gains[node]) + max(score[left[node] : node]))
    return score[-1]


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 60), st.integers(5, 20), st.integers(0, 2**32 - 1), st.booleans())
def test_no_path_has_a_larger_sum(nodes: int, limit: int, seed: int, many_equal: bool) -> None:
    rng = np.random.default_rng(seed)
    place = np.cumsum(rng.integers(1, 6, nodes))
    left = np.maximum.accumulate(np.clip(np.searchsorted(place, place - limit), 0, np.maximum(np.arange(nodes) - 1, 0)))
    for node in rng.integers(0, nodes, 2):  # every path goes through these
        left[node + 1 :] = np.maximum(left[node + 1 :], node)
    gains = -rng.integers(0, 5, nodes).astype(float) if many_equal else -rng.exponential(1, nodes)
    path = best_cuts(gains, left)
    before = np.append(0, path[:-1])
    assert path[-1] == nodes - 1
    assert (left[path] <= before).all() and (before < path).all()
    assert gains[path].sum() == pytest.approx(best_sum(gains, left), abs=1e-2)


def test_a_million_places_take_seconds() -> None:
    place = np.arange(1_000_000)
    left = np.maximum(place - 200, 0)
    began = time.process_time()
    path = best_cuts(-np.random.default_rng(0).exponential(3, len(place)), left)
    assert np.diff(path, prepend=0).max() <= 200
    assert time.process_time() - began < 20  # about 0.2 s


def gains_of(text: Text, odds: Odds, limit: int) -> NDArray[np.float64]:
    """What a cut after each ink character costs; −inf where none may be."""
    unspaced = (text.kind[text.ink] & UNSPACED) != 0
    mark = (text.kind[text.ink] & PUNCTUATION) != 0
    acceptable = text.gap | unspaced | mark | np.append(unspaced[1:], False)
    acceptable &= ~text.joins_next
    number = {place: ink for ink, place in enumerate(text.ink.tolist())}
    gains = np.full(len(text.ink), -np.inf)
    for cluster in regex.finditer(r"\X", text.text):
        inks = [number[place] for place in range(*cluster.span()) if place in number]
        if len(inks) > limit:
            gains[inks] = INSIDE_CLUSTER
        if inks:
            gains[inks[-1]] = HARD
    return np.where(acceptable, np.clip(odds, SILENT, 0), gains)


@settings(max_examples=400, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=3), st.integers(2, 30), st.integers(0, 1000))
def test_no_other_way_to_cut_is_more_probable(documents: list[str], limit: int, seed: int) -> None:
    text = Text(documents)
    odds = random_odds(text, seed)
    pieces = sentences(text, odds, Limits(limit, None, count_in_words))
    first, last = pieces.first, pieces.last
    assert fit(pieces, odds) == 0
    gains = gains_of(text, odds, limit)
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        cuts = np.flatnonzero(pieces.cut[begin:end]) + begin
        # node k + 1 is the place behind ink character begin + k; a piece holds at most `limit` characters as written
        written = text.written[begin : end + 1]
        left = np.append(0, np.searchsorted(written, written + 1 - limit))
        left = np.minimum(left, np.maximum(np.arange(len(left)) - 1, 0))
        expected = best_sum(np.concatenate(([0.0], gains[begin:end], [0.0])), left)
        assert gains[cuts].sum() == pytest.approx(expected, rel=1e-9, abs=1e-2 * len(cuts))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(TEXT, min_size=1, max_size=3),
    st.integers(1, 40),
    st.sampled_from([None, 6, 20]),
    st.sampled_from([count_bytes, count_in_words, count_spaces]),
    st.integers(0, 1000),
)
def test_limits_are_hard_and_nothing_else_changes(
    documents: list[str], max_chars: int, max_tokens: int | None, count: Count, seed: int
) -> None:
    text = Text(documents)
    odds = random_odds(text, seed)
    pieces = sentences(text, odds, Limits(max_chars, max_tokens, count))
    by_threshold = pieces.cut.copy()
    over_cap = fit(pieces, odds)
    assert (pieces.cut >= by_threshold).all()
    ink = "".join("".join(piece.split()) for piece in pieces.written)
    assert ink == "".join(collapse(" ".join(documents)).split())
    assert pieces.chars.tolist() == [len(piece) for piece in pieces.written]
    assert pieces.tokens.tolist() == count(pieces.written)
    assert pieces.chars.max(initial=0) <= max_chars
    over = pieces.tokens > (max_tokens or np.inf)
    assert over_cap == over.sum() and (pieces.chars[over] == 1).all()
    assert not (pieces.hard & (by_threshold | text.gap)).any() and not (pieces.hard & ~pieces.cut).any()


@settings(max_examples=300, deadline=None)
@given(TEXT, st.integers(1, 40), st.integers(0, 1000))
def test_only_clusters_longer_than_the_limit_are_cut_inside(document: str, limit: int, seed: int) -> None:
    text = Text([document])
    odds = random_odds(text, seed)
    pieces = sentences(text, odds, Limits(limit, None, count_in_words))
    by_threshold = pieces.cut
    fit(pieces, odds)
    for cluster in broken_clusters(text, pieces.cut & ~by_threshold):
        odd = any(map(is_blank, cluster)) or regex.search(r"\p{InCB=Linker}\p{M}", cluster)  # that no script has
        assert len(cluster) > limit or odd, cluster


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXT, min_size=2, max_size=4), st.integers(0, 1000), st.sampled_from([None, 12]))
def test_a_document_is_cut_as_if_it_were_alone(documents: list[str], seed: int, max_tokens: int | None) -> None:
    limits = Limits(12, max_tokens, count_in_words)
    text = Text(documents)
    odds = random_odds(text, seed)
    together = sentences(text, odds, limits)
    fit(together, odds)
    alone: list[str] = []
    begin = 0
    for document in documents:
        one = Text([document])
        part = odds[begin : begin + len(one.ink)]
        begin += len(one.ink)
        pieces = sentences(one, part, limits)
        fit(pieces, part)
        alone += pieces.written
    assert together.written == alone


def cut(document: str, limit: int, odds: dict[str, float], max_tokens: int | None = None) -> list[str]:
    """Pieces; odds: of the end of each of these words."""
    text = Text([document])
    values = np.full(len(text.ink), -np.inf, np.float32)
    for word, value in odds.items():
        values[text.before(np.array([text.text.index(word) + len(word)]))] = value
    pieces = sentences(text, values, Limits(limit, max_tokens, count_in_words))
    fit(pieces, values)
    return pieces.written


@pytest.mark.parametrize(
    ("document", "limit", "odds", "expected"),
    [
        ("aaaa bbbb cccc dddd", 14, {"aaaa": -1, "bbbb": -9, "cccc": -2}, ["aaaa", "bbbb cccc dddd"]),
        ("aaaa bbbb cccc dddd", 14, {"aaaa": -3, "bbbb": -9, "cccc": -2}, ["aaaa bbbb cccc", "dddd"]),
        ("aaaa bbbb cccc dddd", 9, {"aaaa": -1, "bbbb": -3, "cccc": -1}, ["aaaa", "bbbb cccc", "dddd"]),
        ("aaaa bbbb cccc dddd", 9, {"aaaa": -2, "bbbb": -3, "cccc": -2}, ["aaaa bbbb", "cccc dddd"]),
        ("aaaa bbbb cccc dddd", 99, {"aaaa": 1, "bbbb": -1}, ["aaaa", "bbbb cccc dddd"]),  # by the threshold alone
        ("aaaa bbbb cccc dddd", 14, {"bbbb": 1, "cccc": -1}, ["aaaa bbbb", "cccc dddd"]),  # its cut stays and is enough
        ("aaaabbbb cc", 10, {"aaaa": -1}, ["aaaabbbb", "cc"]),  # not inside a word, whatever the model says
        ("aaaabbbb", 99, {"aaaa": 1}, ["aaaa", "bbbb"]),  # but where it is sure
    ],
)  # fmt: skip
def test_the_most_probable_cuts_are_taken(
    document: str, limit: int, odds: dict[str, float], expected: list[str]
) -> None:
    assert cut(document, limit, odds) == expected


def test_the_limit_in_tokens_decides_too() -> None:
    document = "aaaa bbbb cccc dddd eeee ffff gggg hhhh"
    odds = {"aaaa": -9.0, "bbbb": -5.0, "cccc": -9.0, "dddd": -1.0, "eeee": -9.0, "ffff": -5.0, "gggg": -9.0}
    assert cut(document, 200, odds, 2 + 8) == ["aaaa bbbb cccc dddd", "eeee ffff gggg hhhh"]
    assert cut(document, 200, odds, 2 + 6) == ["aaaa bbbb", "cccc dddd", "eeee ffff", "gggg hhhh"]


@pytest.mark.parametrize(
    ("document", "limit", "expected", "hard"),
    [
        ("x" * 25, 10, None, 2),
        ("中文没有标点符号的句子很长很长", 5, None, 0),
        ("ภาษาไทยไม่มีช่องว่าง", 8, None, 0),
        ("ខ្មែរកម្ពុជាព្រះរាជាណាចក្រ", 4, None, 0),  # consonants that are stacked
        ("မန္တလေးမြို့သည်ဗုဒ္ဓဘာသာ", 5, None, 0),
        ("\u0600字字字字字字", 2, None, 0),
        ("각각각각각각", 4, None, 1),
        ("👨‍👩‍👧‍👦👨‍👩‍👧‍👦👨‍👩‍👧‍👦", 10, ["👨‍👩‍👧‍👦"] * 3, 2),
        ("🇩🇪🇫🇷🇮🇹", 3, ["🇩🇪", "🇫🇷", "🇮🇹"], 2),
        ("e\u0323\u0301e\u0323\u0301e\u0323\u0301", 4, ["e\u0323\u0301"] * 3, 2),
        ("a" + "\u0301" * 9, 5, ["a" + "\u0301" * 4, "\u0301" * 5], 1),
    ],
)  # fmt: skip
def test_hard_cuts_are_between_clusters_and_told(
    document: str, limit: int, expected: list[str] | None, hard: int
) -> None:
    text = Text([document])
    odds = np.full(len(text.ink), -np.inf, np.float32)
    pieces = sentences(text, odds, Limits(limit, None, count_in_words))
    fit(pieces, odds)
    assert pieces.hard.sum() == hard
    assert not broken_clusters(text, pieces.cut) or document[0] == "a"
    assert expected is None or pieces.written == expected
    assert len(pieces.written) > 1 and "".join(pieces.written) == document


def test_words_that_become_more_tokens_when_cut_are_solved_again() -> None:
    """A tokenizer that knows long words whole."""
    known = {"a" * 30: 1, "b" * 30: 1}

    def count(texts: Sequence[str]) -> list[int]:
        return [2 + sum(known.get(word, len(word)) for word in text.split()) for text in texts]

    text = Text(["a" * 30 + " " + "b" * 30 + " " + "c" * 30 + " dd"])
    odds = np.full(len(text.ink), -np.inf, np.float32)
    pieces = sentences(text, odds, Limits(20, 12, count))
    assert fit(pieces, odds) == 0
    assert pieces.chars.max() <= 20 and max(count(pieces.written)) <= 12


@pytest.mark.parametrize("count", [count_bytes, count_in_words, count_spaces])
@pytest.mark.parametrize("trap", TRAPS)
def test_traps(trap: str, count: Count) -> None:
    text = Text([TRAPS[trap]])
    odds = np.full(len(text.ink), -np.inf, np.float32)
    pieces = sentences(text, odds, Limits(200, 64, count))
    assert fit(pieces, odds) == 0
    assert pieces.chars.max() <= 200 and max(count(pieces.written)) <= 64


@pytest.mark.parametrize("unit", [".", "a\u0301", "\u0301", "🇩🇪", "a,", ". ", "。", "👨‍👩‍👧‍👦", "a" * 10, "字", "ab "])
def test_time_is_linear(unit: str) -> None:
    text = Text([collapse(unit * 100_000)])
    odds = np.full(len(text.ink), -np.inf, np.float32)
    began = time.process_time()
    pieces = sentences(text, odds, Limits(200, 100, count_bytes))
    fit(pieces, odds)
    assert pieces.chars.max() <= 200
    assert time.process_time() - began < 20  # about 0.5 s; quadratic time would be minutes
