"""MinHash keys of documents: against the Jaccard similarity of their sets, and against the formula of LSH."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stages.duplicates.hashing import Hashes
from stages.duplicates.minhash import Minhash, document_keys, sketched
from stages.duplicates.settings import MinhashSettings, NearSettings
from stages.stage import whole

SIZES = NearSettings()


def keys_of(documents: list[list[str]], settings: NearSettings = SIZES) -> Hashes:
    starts = np.cumsum([0, *(len(one) for one in documents[:-1])])
    return document_keys(pa.array([text for one in documents for text in one], pa.string()), starts, settings)


def alike_of(documents: list[list[str]], words: int = SIZES.words) -> set[tuple[int, int]]:
    """The pairs of documents with a key in common."""
    keys = keys_of(documents, NearSettings(words=words))
    return {(a, b) for a in range(len(keys)) for b in range(a) if (keys[a] == keys[b]).any()}


def sets(pairs: int, size: int, share: float) -> tuple[Hashes, np.ndarray]:
    """Pairs of sets of a Jaccard similarity of `share`."""
    common = round(2 * size * share / (1 + share))
    random = np.random.default_rng(size)
    found = []
    for _ in range(pairs):
        drawn = random.integers(0, 2**63, 2 * size - common).astype(np.uint64)
        found += [drawn[:size], drawn[size - common :]]
    return np.concatenate(found), np.arange(0, 2 * pairs * size + 1, size)


@pytest.mark.parametrize("size", [1, 5, 40, 200, 3000])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 1.0])
def test_equal_values_are_as_many_as_the_similarity_says(size: int, share: float) -> None:
    """The mean over pairs is within five standard errors of independent MinHash values, which vary more."""
    pairs, common = 60, round(2 * size * share / (1 + share))
    similarity = common / (2 * size - common)
    found = sketched(*sets(pairs, size, share), SIZES)
    values = found.shape[1]
    measured = (found[0::2] == found[1::2]).mean()
    error = np.sqrt(similarity * (1 - similarity) / values / pairs)
    assert abs(measured - similarity) <= 5 * error + 1e-12


def test_sketches_do_not_depend_on_what_is_sketched_with_them() -> None:
    shingles, edges = sets(3, 50, 0.5)
    together = sketched(shingles, edges, SIZES)
    for number in range(6):
        alone = shingles[edges[number] : edges[number + 1]]
        np.testing.assert_array_equal(sketched(alone[::-1], np.asarray([0, 50]), SIZES)[0], together[number])
        twice = sketched(np.concatenate([alone, alone]), np.asarray([0, 100]), SIZES)  # sets, not lists
        np.testing.assert_array_equal(twice[0], together[number])


def test_common_keys_are_as_frequent_as_the_formula_says() -> None:
    random = np.random.default_rng(1)
    words = [f"w{number}" for number in range(5000)]
    settings = NearSettings(words=1)
    for share in (0.5, 0.7, 0.8, 0.9):
        documents, pairs = [], 150
        for _ in range(pairs):
            drawn = random.choice(words, 400, replace=False).tolist()
            common = round(2 * 220 * share / (1 + share))
            documents += [[" ".join(drawn[:220])], [" ".join(drawn[220 - common : 440 - common])]]
        keys = keys_of(documents, settings)
        found = (keys[0::2] == keys[1::2]).any(axis=1).mean()
        expected = 1 - (1 - share**8) ** 14
        assert abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / pairs) + 0.05, share


def test_marks_case_white_space_and_sentences_do_not_matter() -> None:
    once = keys_of([["One two, three.", "Four five six!"]])
    np.testing.assert_array_equal(keys_of([["one TWO", "three four", "five\tsix"]]), once)
    np.testing.assert_array_equal(keys_of([["“One” — two…\u00a0three", "‘four’ «five» \u2022 six†"]]), once)
    chinese = keys_of([["我们去学校，学习课文。", "然后「回家」吃饭！"]])
    np.testing.assert_array_equal(keys_of([["我们去学校,学习课文.", "然后回家吃饭"]]), chinese)
    assert not (keys_of([["One two, three.", "Five four six!"]]) == once).any()


@pytest.mark.parametrize(
    "text", ["我们今天去学校学习新的课文然后回家吃饭", "ประเทศไทยมีประชากรมากกว่าหกสิบล้านคน", "日本語の文章を書いています"]
)
def test_scripts_without_spaces_are_compared_by_characters(text: str) -> None:
    changed = f"{text[:-1]}x"
    alike, other = (keys_of([[text * 9], [one * 9]], NearSettings(words=3)) for one in (changed, text[::-1]))
    assert (alike[0] == alike[1]).any() and not (other[0] == other[1]).any()


def test_short_and_empty_documents() -> None:
    assert alike_of([["One two"], ["..."], ["one Two!"], ["?"], ["one two three"], ["x"], [""]]) == {(2, 0)}


@pytest.mark.parametrize("words", [1, 5])
def test_documents_without_words_meet_only_those_of_the_same_text(words: int) -> None:
    wordless = ["😀 🎉", "🚀!", "*** --- ***", "❤️ ❤️ ❤️ ❤️ ❤️", "☀️ ☎️ ✈️ ✏️ ✂️ ☀️", "👩\u200d💻", "´ ´ #️⃣", "\u0301"]
    documents = [[one] for one in wordless]
    assert alike_of([*documents, ["A word."]], words) == set()
    again = {(place + len(documents), place) for place in range(len(documents))}
    assert alike_of([*documents, *([f" {one}  "] for one in wordless)], words) == again
    assert alike_of([["!", "?"], ["?", "!"], ["!"], ["!", "?"]], words) == {(3, 0)}


def test_what_is_not_seen_does_not_matter() -> None:
    once = keys_of([["We co-operate ❤ and it's می‌خواهم"]])
    np.testing.assert_array_equal(keys_of([["We\u200e co\u00ad-oper\u00adate ❤️ ❤️ and it´s میخواهم"]]), once)


def test_many_documents_are_sketched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[f"sentence number {number} of text {number % 7} " * 5] for number in range(40)]
    expected = keys_of(documents)
    for at_once in (1, 50, 100):
        monkeypatch.setattr("stages.duplicates.minhash._SHINGLES", at_once)
        np.testing.assert_array_equal(keys_of(documents), expected)


def test_the_stage_writes_one_list_per_document() -> None:
    table = pa.table({"sentences.text": ["One.", "Two.", "Three."], "sentences.doc": pa.array([0, 0, 1], pa.int32())})
    column = whole(Minhash(MinhashSettings(bands=3)), table).families["minhash"]["minhash"].to_pylist()
    assert [one and len(one) for one in column] == [3, None, 3]
    empty = whole(Minhash(MinhashSettings()), table.slice(0, 0)).families["minhash"]
    assert empty.num_rows == 0
