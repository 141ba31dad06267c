"""The predictor: learns what can be learnt, is honest about the rest, and gives weights as the paper's figure shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

from stages.arrow import embedding_array
from stages.artifact import to_bytes
from stages.predictor.fit import correlations, fit_predictor, split_numbers
from stages.predictor.network import Predictor
from stages.predictor.settings import PredictorSettings
from stages.predictor.stage import Predict
from stages.scaler.robust import RobustScaler, ScalerFit
from stages.stage import NON_FINITE, OK, Computed

DIM = 32
Half, Single = npt.NDArray[np.float16], npt.NDArray[np.float32]


def sample(rows: int = 1000, noise: float = 0.05, seed: int = 0) -> tuple[Half, Single]:
    """Embeddings of uneven scales, and two scores that depend on them; a tenth are copies."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, DIM))
    x[: rows // 10] = x[-(rows // 10) :]
    bleu = -1 / (1 + np.exp(-x[:, 0] - x[:, 1]))
    cosine = -np.clip(0.5 + 0.3 * np.tanh(x[:, 2] - x[:, 3]) + noise * rng.normal(size=rows), 0, 1)
    scales = np.geomspace(0.01, 10, DIM)
    return (x * scales + 3).astype(np.float16), np.stack([bleu, cosine], axis=1).astype(np.float32)


def scaler_of(embeddings: Half) -> RobustScaler:
    fitting = ScalerFit(embeddings.shape[1])
    fitting.add(embeddings)
    return fitting.finish()


@pytest.fixture(scope="module")
def fitted() -> tuple[Predictor, dict[str, float]]:
    embeddings, targets = sample()
    return fit_predictor(
        embeddings, targets, PredictorSettings(hidden=32, dropout=0.1, epochs=30), scaler_of(embeddings)
    )


def test_it_predicts_sentences_that_it_has_not_seen(fitted: tuple[Predictor, dict[str, float]]) -> None:
    import scipy.stats

    predictor, numbers = fitted
    embeddings, targets = sample(500, seed=1)
    found = predictor.predict(embeddings, "cpu")
    assert found.min() >= -1 and found.max() <= 0
    for at, score in enumerate(("bleu", "cosine")):
        unseen = scipy.stats.pearsonr(found[:, at], targets[:, at]).statistic
        assert unseen > 0.8 and numbers[f"pearson_{score}"] == pytest.approx(unseen, abs=0.1)
        assert abs(found[:, at].mean() - targets[:, at].mean()) < 0.05  # on the scale of eq. 26
    assert numbers["rows"] == 1000 and 60 < numbers["held_out_rows"] < 150


def test_what_cannot_be_predicted_is_reported_as_such() -> None:
    embeddings, targets = sample(800)
    shuffled = np.random.default_rng(2).permutation(targets)
    _, numbers = fit_predictor(
        embeddings, shuffled, PredictorSettings(hidden=32, dropout=0.1, epochs=30), scaler_of(embeddings)
    )
    assert abs(numbers["pearson_cosine"]) < 0.25


def test_correlations_are_those_of_scipy() -> None:
    import scipy.stats

    rng = np.random.default_rng(0)
    measured = rng.integers(0, 5, (50, 2)).astype(np.float32)
    predicted = (measured + rng.integers(0, 5, (50, 2))).astype(np.float32)
    found = correlations(predicted, measured)
    for at, score in enumerate(("bleu", "cosine")):
        pair = predicted[:, at], measured[:, at]
        assert found[f"pearson_{score}"] == pytest.approx(scipy.stats.pearsonr(*pair).statistic)
        assert found[f"spearman_{score}"] == pytest.approx(scipy.stats.spearmanr(*pair).statistic)
    measured[:, 0] = 1
    assert set(correlations(predicted, measured)) == {"pearson_cosine", "spearman_cosine"}


def test_copies_of_a_sentence_are_on_one_side() -> None:
    import scipy.stats

    embeddings, _ = sample()
    u = split_numbers(embeddings, 0)
    assert np.array_equal(u[:100], u[-100:]) and len(np.unique(u)) == 900
    assert scipy.stats.kstest(np.unique(u), "uniform").pvalue > 0.01
    assert not np.array_equal(u, split_numbers(embeddings, 1))


def test_weights_are_those_of_figure_12(fitted: tuple[Predictor, dict[str, float]]) -> None:
    """The least for the most fragile, sigmoid(−4 z + 3.5) of the standardised prediction."""
    import scipy.stats

    predictor, _ = fitted
    predicted = predictor.predict(sample()[0], "cpu")
    z = scipy.stats.zscore(predicted[:, 1].astype(np.float64))
    weight = predictor.weight(predicted, "cosine", -4.0, 3.5)
    assert weight == pytest.approx(scipy.special.expit(-4 * z + 3.5), abs=1e-4)
    at = [float(weight[np.abs(z - value).argmin()]) for value in (0, 1)]
    assert at == pytest.approx([0.97, 0.38], abs=0.03) and weight[z > 1.9].max(initial=0) < 0.05
    assert not np.array_equal(predictor.weight(predicted, "bleu", -4.0, 3.5), weight)


def part(embeddings: Half, broken: int | None = None) -> pa.Table:
    status = np.full(len(embeddings), OK, np.uint8)
    if broken is not None:
        embeddings = embeddings.copy()
        embeddings[broken], status[broken] = 0, NON_FINITE
    return pa.table({"embeddings.embedding": embedding_array(embeddings), "status.status": status})


def computed(predictor: Predictor, table: pa.Table, **settings: Any) -> Computed:
    stage = Predict(PredictorSettings(**settings), predictor.to_bytes({}))
    stage.setup("cpu")
    computed = stage.finish(stage.compute(stage.prepare(table)))
    assert stage.recount(table, computed.families, {}) == pytest.approx(computed.counts), "of copied rows"
    return computed


def test_the_stage_predicts_every_row_but_those_without_an_embedding(
    fitted: tuple[Predictor, dict[str, float]],
) -> None:
    predictor, _ = fitted
    embeddings, _ = sample(9000)  # more than a block
    result = computed(predictor, part(embeddings, broken=5))
    table = result.families["fragility-predicted"]
    names = ["fragility_predicted_bleu", "fragility_predicted_cosine", "fragility_predicted", "weight"]
    assert table.column_names == names
    assert [table[name].null_count for name in names] == [1, 1, 1, 0] and table["weight"][5].as_py() == 0
    assert table["fragility_predicted"] == table["fragility_predicted_cosine"]
    predicted = predictor.predict(embeddings, "cpu")
    assert np.array_equal(np.delete(table[names[0]].to_numpy(), 5), np.delete(predicted[:, 0], 5))
    weight = np.delete(table["weight"].to_numpy(), 5)
    assert np.array_equal(weight, np.delete(predictor.weight(predicted, "cosine", -4.0, 3.5), 5))
    assert result.counts["predicted"] == 8999
    assert result.counts["weight_sum"] == pytest.approx(weight.sum(dtype=np.float64))
    bleu = computed(predictor, part(embeddings), score="bleu").families["fragility-predicted"]
    assert bleu["fragility_predicted"] == bleu["fragility_predicted_bleu"] != table["fragility_predicted"]


def test_the_same_sample_gives_the_same_bytes() -> None:
    embeddings, targets = sample(300)
    scaler, threads = scaler_of(embeddings), torch.get_num_threads()

    def data(seed: int) -> bytes:
        settings = PredictorSettings(hidden=32, epochs=3, seed=seed)
        return fit_predictor(embeddings, targets, settings, scaler)[0].to_bytes({"chunks": ["a"]})

    one = data(0)
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        assert data(0) == one != data(1)
    finally:
        torch.set_num_threads(threads)
    back = Predictor.from_bytes(one)
    assert back.to_bytes({"chunks": ["a"]}) == one
    assert back.predict(embeddings, "cpu").std() > 0


def test_too_little_to_learn_from_is_refused_in_words() -> None:
    embeddings, targets = sample(99)
    with pytest.raises(
        ValueError, match=r"99 rows have a fragility score, 100 are the least .*raise fragility\.sample"
    ):
        fit_predictor(embeddings, targets, PredictorSettings(), scaler_of(embeddings))
    embeddings, targets = sample(200)
    with pytest.raises(ValueError, match=r"too few different sentences"):
        fit_predictor(embeddings[:1].repeat(200, axis=0), targets, PredictorSettings(), scaler_of(embeddings))
    targets[:, 1] = -0.5
    with pytest.raises(ValueError, match=r"all have the same fragility by cosine"):
        fit_predictor(embeddings, targets, PredictorSettings(), scaler_of(embeddings))


def test_what_is_no_predictor_of_these_embeddings_is_refused(fitted: tuple[Predictor, dict[str, float]]) -> None:
    predictor, _ = fitted
    with pytest.raises(ValueError, match="fitted on embeddings of 32 dimensions, these have 8"):
        computed(predictor, part(np.zeros((3, 8), np.float16)))
    with pytest.raises(ValueError, match="are not a predictor"):
        Predictor.from_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="'scaler'"):
        Predictor.from_bytes(to_bytes("scaler", {"median": torch.zeros(3)}, {}))
