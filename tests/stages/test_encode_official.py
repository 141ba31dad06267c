"""The official package as the encode stage's network: real where it is installed, and what is said where it is not."""

from __future__ import annotations

import importlib.util

import numpy as np
import pyarrow as pa
import pytest

from stages.arrow import embedding_matrix
from stages.cards import CardError
from stages.encode.encoder import BackendError, Encode
from stages.encode.settings import EncodeSettings
from stages.stage import Computed
from tests.conftest import TINY_CARD, sample_documents

INSTALLED = importlib.util.find_spec("fairseq2") is not None


def computed(backend: str, part: pa.Table) -> Computed:
    stage = Encode(EncodeSettings(model=str(TINY_CARD), backend=backend, batch_tokens=2000))  # type: ignore[arg-type]
    stage.setup("cpu")
    return stage.finish(stage.compute(stage.prepare(part)))


@pytest.mark.skipif(not INSTALLED, reason="sonar-space is not installed (extra sonar-space)")
def test_the_official_network_gives_the_same_corpus() -> None:
    texts = [line for document in sample_documents("libreoffice-eng", 4) for line in document["text"].split("\n")]
    texts += ["house " * 600, "", *texts[:5]]  # one too long, one empty, some twice
    part = pa.table({"sentences.text": texts, "sentences.lang": ["eng_Latn"] * (len(texts) - 5) + ["fra_Latn"] * 5})
    ours, theirs = computed("native", part), computed("sonar-space", part)
    assert theirs.families["status"].equals(ours.families["status"])
    assert ours.counts["truncated"] == 1
    sums = {"norm_sum", "norm_square_sum"}
    assert {key: theirs.counts[key] for key in theirs.counts.keys() - sums} == {
        key: ours.counts[key] for key in ours.counts.keys() - sums
    }
    mine, other = (embedding_matrix(one.families["embeddings"]["embedding"]) for one in (ours, theirs))
    assert np.abs(mine.astype(np.float32) - other).max() < 2e-3  # the last bit of float16 at values up to 2
    assert (mine == other).mean() > 0.99
    assert len(np.unique(mine, axis=0)) > 50


@pytest.mark.skipif(INSTALLED, reason="sonar-space is installed")
def test_without_the_package_the_error_says_how_to_get_it() -> None:
    stage = Encode(EncodeSettings(model=str(TINY_CARD), backend="sonar-space"))
    with pytest.raises(BackendError, match=r"No module named 'sonar'.*pip install 'sonar.*encode\.backend at native"):
        stage.setup("cpu")


def test_a_layout_that_the_package_cannot_read_is_refused() -> None:
    stage = Encode(EncodeSettings(model="sonar-tiny", backend="sonar-space"))
    with pytest.raises(CardError, match=r"reads the layout fairseq2; card sonar-tiny is native"):
        stage.setup("cpu")


def test_the_backend_is_meaning_only_where_it_is_not_ours() -> None:
    assert EncodeSettings().meaningful() == {"model": "sonar-tiny", "precision": "auto"}
    assert EncodeSettings(backend="sonar-space").meaningful()["backend"] == "sonar-space"
