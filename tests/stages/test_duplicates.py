"""Hashes of normalised texts and groups of equal ones, against Python's own dictionaries."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.duplicates import semantic
from stages.duplicates.groups import MEMBERS, GroupLookup, clusters, edges_of, groups, members
from stages.duplicates.hashing import SLICE, Hash, folded, hash_texts, normalised
from stages.duplicates.semantic import similar
from stages.duplicates.settings import HashSettings, Normalise
from stages.stage import whole

ODD = [
    *(
        "",
        "a",
        "A",
        "ａ",
        "ﬁn",
        "fin",
        "a b",
        "a  b",
        "a\tb",
        " a b ",
        "a\u00a0b",
        "a\u3000b",
        "Straße",
        "STRASSE",
        "é",
    ),
    *("e\u0301", "12345678", "123456789", "12345678\0", "\0", "\0\0", "語", "中文 句子", "👩\u200d👧"),
]


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.string())])


def by_python(text: str) -> str:
    """Unicode NFKC, lower case, each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split(None))


def test_light_normalisation_is_that_of_python() -> None:
    plain = [one for one in ODD if "\0" not in one]
    assert normalised(pa.array(plain)).to_pylist() == [by_python(one) for one in plain]


@given(st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=40)), max_size=60), st.sampled_from(["light", "none"]))
def test_texts_have_one_hash_exactly_if_they_are_equal(texts: list[str], how: Normalise) -> None:
    texts = [one for one in texts if not any("\ud800" <= sign <= "\udfff" for sign in one)]
    equal = normalised(pa.array(texts, pa.string())).to_pylist() if how == "light" else texts
    hashes = hash_texts(column(texts), how).tolist()
    assert len(dict(zip(equal, hashes, strict=True))) == len(set(hashes)) == len(set(zip(equal, hashes, strict=True)))


def test_a_hash_does_not_depend_on_where_the_text_stands() -> None:
    texts = [f"sentence {number} {'x' * (number % 40)}" for number in range(SLICE + 50)]
    hashes = hash_texts(column(texts), "light")
    assert len(set(hashes.tolist())) == len(texts)
    other = pa.chunked_array([pa.array(["first", *texts]).slice(1, 10), pa.array(texts[10:])])
    np.testing.assert_array_equal(hash_texts(other, "light"), hashes)
    assert hash_texts(column([]), "light").shape == (0,)


def test_known_hashes_stay() -> None:
    """Columns of corpora on disk hold these: another value needs another version of the stage."""
    assert hash_texts(column(["", "The ship arrived.", "x" * 100]), "none").tolist() == [
        10681125515907561725,
        5777293727113038714,
        13159467451638486976,
    ]


def test_folding_sees_order_lengths_and_repetitions() -> None:
    values = np.asarray([1, 2, 2, 1, 1, 2, 1, 1, 2, 2], np.uint64)
    edges = np.asarray([0, 2, 4, 6, 7, 9, 10])
    groups_of = [tuple(values[a:b].tolist()) for a, b in pairwise(edges.tolist())]
    hashes = folded(values, edges).tolist()
    assert len(set(hashes)) == len(set(groups_of)) == len(set(zip(hashes, groups_of, strict=True)))


def test_documents_are_equal_where_their_sentences_are() -> None:
    text = ["One.", "Two.", "one.", "TWO.", "Two.", "One.", "One."]
    doc = pa.array([0, 0, 1, 1, 2, 2, 3], pa.int32())
    table = pa.table({"sentences.text": text, "sentences.doc": doc})
    hashes = whole(Hash(HashSettings()), table).families["hashes"]["doc_hash"].to_pylist()
    assert hashes[0] == hashes[1] == hashes[2] == hashes[3] and len({hashes[0], hashes[4], hashes[6]}) == 3
    exact = whole(Hash(HashSettings(normalise="none")), table).families["hashes"]["doc_hash"].to_pylist()
    assert len(set(exact)) == 4


@given(st.lists(st.lists(st.integers(0, 6), max_size=12), max_size=6))
def test_groups_are_those_of_a_dictionary(parts: list[list[int]]) -> None:
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    tables = [MEMBERS.empty_table()]
    for number, keys in enumerate(parts):
        for row, key in enumerate(keys):
            places[key].append((number, row))
        tables.append(members(np.asarray(keys, np.uint64), np.arange(len(keys)), number))
    found = groups(pa.concat_tables(tables)).to_pylist()
    expected = {
        (key, part): (*several[0], len(several))
        for key, several in places.items()
        if len(several) > 1
        for part, _ in several
    }
    assert {(one["key"], one["part"]): (one["first_part"], one["first_row"], one["count"]) for one in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("known", [[], [3], [1, 3, 2**64 - 1]])
def test_lookups_find_what_is_known(known: list[int]) -> None:
    keys = np.asarray([0, 1, 3, 3, 4, 2**64 - 1], np.uint64)
    lookup = GroupLookup.of(keys, np.asarray(known, np.uint64))
    values = lookup.take(pa.chunked_array([pa.array(known, pa.uint64())])).to_pylist()
    assert values == [one if one in known else None for one in keys.tolist()]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_clusters_are_connected_components(pairs: list[tuple[int, int]]) -> None:
    component = {at: {at} for pair in pairs for at in pair}
    for one, other in pairs:
        joined = component[one] | component[other]
        component |= dict.fromkeys(joined, joined)
    places, first, sizes = clusters(np.asarray(pairs, np.int64).reshape(-1, 2))
    assert places.tolist() == sorted(component)
    assert first.tolist() == [min(component[at]) for at in places.tolist()]
    assert sizes.tolist() == [len(component[at]) for at in places.tolist()]


def test_edges_lead_to_the_first_with_the_same_key() -> None:
    edges = edges_of(np.asarray([5, 7, 5, 5, 9], np.uint64), np.asarray([3, 4, 1, 2, 0]))
    assert sorted(map(tuple, edges.tolist())) == [(2, 1), (3, 1)]
    assert edges_of(np.zeros(0, np.uint64), np.zeros(0, np.int64)).shape == (0, 2)


@pytest.mark.parametrize("block", [3, 1024])
def test_similar_embeddings_lead_to_the_first(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(semantic, "BLOCK", block)
    angles = np.asarray([0, 40, 10, 90, 10, 0, 20, 130, 90])
    embeddings = np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], axis=1).astype(np.float16)
    embeddings[5] *= 2  # the length does not matter
    first, sizes = similar(embeddings, float(np.cos(np.radians(15))))
    near = np.abs(angles[:, None] - angles) < 15
    assert first.tolist() == near.argmax(axis=1).tolist() and sizes.tolist() == near.sum(axis=1).tolist()
    assert similar(embeddings[:0], 0.9)[0].shape == (0,)


def tied_embeddings(dim: int, rows: int = 2000) -> npt.NDArray[np.float16]:
    """Return embeddings in clusters about the threshold 0.6, with repeated ones, zeros, and many of which the cosine
    is exactly 0.6: (3, 4) and (5, 0), spread over all components and scaled.
    """
    random = np.random.default_rng(dim)
    centres = random.normal(size=(40, dim))
    made = (centres[random.integers(0, 40, rows)] + 0.8 * random.normal(size=(rows, dim))).astype(np.float16)
    half = dim // 2
    signs = random.choice([-1, 1], half)
    for at in range(0, 400, 2):
        scale = 2.0 ** random.integers(-6, 6)
        shift = random.permutation(half)[: half // 2]
        made[at] = made[at + 1] = 0
        made[at, :half], made[at, half:] = 3 * signs * scale, 4 * signs * scale
        made[at + 1, :half] = 5 * signs / scale
        made[at, shift], made[at + 1, shift], made[at, half + shift] = 0, 0, 0
    made[500:520] = made[20:40]
    made[600:603] = 0
    return made[random.permutation(rows)]


def by_float64(embeddings: npt.NDArray[np.float16], cosine: float) -> tuple[list[int], list[int]]:
    """Return the first similar one of each, and how many there are, with each pair in float64."""
    rows = embeddings.astype(np.float64)
    lengths = np.sqrt((rows**2).sum(axis=1))
    first, sizes = [], []
    for at, row in enumerate(rows):
        product = (rows * row).sum(axis=1)
        length = lengths * lengths[at]
        alike = np.divide(product, length, out=np.zeros(len(rows)), where=length > 0) >= cosine
        alike |= (lengths == 0) & (lengths[at] == 0)
        first.append(int(alike.argmax()))
        sizes.append(int(alike.sum()))
    return first, sizes


@pytest.mark.parametrize("dim", [64, 200])
def test_similar_embeddings_are_those_of_float64(dim: int) -> None:
    embeddings = tied_embeddings(dim)
    first, sizes = similar(embeddings, 0.6)
    assert (first.tolist(), sizes.tolist()) == by_float64(embeddings, 0.6)
    assert 100 < (first != np.arange(len(first))).sum() < len(first) and sizes.max() > 20


@pytest.mark.parametrize("how", ["reversed", "in parts", "upwards", "downwards", "at random"])
@pytest.mark.parametrize("block", [100, 1024])
def test_rounding_decides_nothing(monkeypatch: pytest.MonkeyPatch, how: str, block: int) -> None:
    """Another device adds up in another order; whatever it does, its error is within the bound."""
    embeddings, random = tied_embeddings(64, 1500), np.random.default_rng(3)
    expected = similar(embeddings, 0.6)
    exact, bound = semantic.products, semantic.error_of(64)

    def otherwise(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if how == "reversed":
            return exact(left.flip(1), right.flip(1))
        if how == "in parts":
            return (
                exact(left[:, ::3], right[:, ::3])
                + exact(left[:, 1::3], right[:, 1::3])
                + exact(left[:, 2::3], right[:, 2::3])
            )
        most = 0.5 * bound  # what the product itself has not used
        noise = {"upwards": most, "downwards": -most}.get(how, random.uniform(-most, most, (len(left), len(right))))
        return exact(left, right) + torch.as_tensor(noise).float()

    monkeypatch.setattr(semantic, "products", otherwise)
    monkeypatch.setattr(semantic, "BLOCK", block)
    for found, wanted in zip(similar(embeddings, 0.6), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dim", [2, 320, 1024])
def test_the_error_of_a_cosine_is_bounded(dim: int) -> None:
    """Also in the worst order of summation: one term after the other, each rounded."""
    random = np.random.default_rng(dim)
    rows = random.uniform(0.5, 1, (200, dim)).astype(np.float16).astype(np.float64)  # of one sign: nothing cancels
    lengths = np.sqrt((rows**2).sum(axis=1))
    exact = rows @ rows.T / np.outer(lengths, lengths)
    units = rows.astype(np.float32) * (1 / lengths).astype(np.float32)[:, None]
    sums = np.zeros((200, 200), np.float32)
    for at in range(dim):
        sums += np.outer(units[:, at], units[:, at])
    assert 0 < np.abs(sums - exact).max() <= semantic.error_of(dim) <= 2 * (dim + 8) * 2.0**-24


def test_products_take_all_bits_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return left @ right.T

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        monkeypatch.setattr(semantic, "products", watched)
        similar(tied_embeddings(8), 0.6)
        assert set(seen) == {"highest"} and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_cluster_of_equal_embeddings_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The square of 200 000 rows would not fit into memory."""
    first, sizes = similar(np.ones((200_000, 4), np.float16), 0.9)
    assert not first.any() and (sizes == 200_000).all()
    zeros, alone = similar(np.asarray([[0, 0], [0, -0.0]], np.float16), 0.9)  # which are equal, without a direction
    assert zeros.tolist() == [0, 0] and alone.tolist() == [2, 2]
