"""The encode stage: order restored, copies computed once, truncation and non-finite values counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from stages.arrow import embedding_matrix
from stages.device import compute_dtype
from stages.encode.encoder import NON_FINITE, OK, TRUNCATED, Encode
from stages.encode.settings import EncodeSettings
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_encoder
from stages.sonar.tokenizer import SonarTokenizer
from tests.conftest import TINY_CARD, sample_documents


def stage(batch_tokens: int = 16_384) -> Encode:
    one = Encode(EncodeSettings(model=str(TINY_CARD), batch_tokens=batch_tokens))
    one.setup("cpu")
    return one


def table(texts: list[str], langs: list[str]) -> pa.Table:
    return pa.table({"sentences.text": pa.array(texts), "sentences.lang": pa.array(langs)})


def encode(one: Encode, part: pa.Table) -> np.ndarray:
    return embedding_matrix(one.finish(one.compute(one.prepare(part))).families["embeddings"]["embedding"])


@pytest.fixture(scope="module")
def part() -> pa.Table:
    """Real sentences in two languages, some twice."""
    texts: list[str] = []
    langs: list[str] = []
    for name, lang in (("libreoffice-eng", "eng_Latn"), ("libreoffice-fra", "fra_Latn")):
        for document in sample_documents(name, 3):
            lines = [line for line in document["text"].split("\n") if line.strip()][:40]
            texts += lines
            langs += [lang] * len(lines)
    return table(texts + texts[:7], langs + langs[:7])


def test_each_row_is_the_encoding_of_its_own_text(part: pa.Table) -> None:
    card = load_card(str(TINY_CARD))
    network, tokenizer = load_encoder(card, compute_dtype("auto", "cpu"), "cpu"), SonarTokenizer(card)
    found = encode(stage(), part)
    for row in (0, 1, 17, part.num_rows - 1):
        ids = tokenizer.encode([part["sentences.text"][row].as_py()], part["sentences.lang"][row].as_py())
        with torch.inference_mode():
            expected = network(torch.tensor(ids))[0].float().half().numpy()
        assert (found[row] == expected).all()


@pytest.mark.parametrize("batch_tokens", [1, 97, 1000])
def test_the_batch_budget_changes_no_bit(part: pa.Table, batch_tokens: int) -> None:
    assert (encode(stage(batch_tokens), part) == encode(stage(), part)).all()


def test_the_language_matters() -> None:
    vectors = encode(stage(), table(["Restaurant"] * 2, ["eng_Latn", "fra_Latn"]))
    assert (vectors[0] != vectors[1]).any()


def test_truncation_is_counted_per_row() -> None:
    long = "river " * 600
    one = stage()
    result = one.finish(one.compute(one.prepare(table([long, "river", long], ["eng_Latn"] * 3))))
    assert result.families["status"]["status"].to_pylist() == [TRUNCATED, OK, TRUNCATED]
    assert result.counts["truncated"] == 2
    assert result.counts["duplicates_saved"] == 1


def test_what_is_not_finite_becomes_zeros_and_a_status() -> None:
    one = stage()
    computed = one.compute(one.prepare(table(["river", "mat"], ["eng_Latn"] * 2)))
    computed.embeddings[1, 3] = np.inf
    result = one.finish(computed)
    assert result.families["status"]["status"].to_pylist() == [OK, NON_FINITE]
    vectors = embedding_matrix(result.families["embeddings"]["embedding"])
    assert not vectors[1].any() and vectors[0].any()
    assert result.counts["non_finite"] == 1


def test_an_empty_part() -> None:
    one = stage()
    empty = pa.table({"sentences.text": pa.array([], pa.string()), "sentences.lang": pa.array([], pa.string())})
    assert one.finish(one.compute(one.prepare(empty))).families["status"].num_rows == 0
