"""RVQ codebooks against faiss's ResidualQuantizer; the same bytes for any number of threads; degenerate samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from stages.arrow import embedding_array
from stages.registry import build_stage
from stages.rvq import codebooks as codebooks_module
from stages.rvq.codebooks import Codebooks, Nearest, block_rows
from stages.rvq.fit import fit_codebooks
from stages.rvq.settings import RvqSettings
from stages.stage import NON_FINITE

Matrix = npt.NDArray[np.float16]
BACKENDS = ("faiss", "torch")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    yield
    torch.set_num_threads(before[0])
    faiss.omp_set_num_threads(before[1])


def sample(rows: int, dim: int, seed: int = 0) -> Matrix:
    """A few strong directions in noise, not centred, of sizes that differ, as embeddings are."""
    rng = np.random.default_rng(seed)
    strong = rng.normal(size=(rows, dim // 4)) @ rng.normal(size=(dim // 4, dim)) * 0.05
    return (np.exp(rng.normal(size=(rows, 1)) * 0.3) * strong + rng.normal(size=(rows, dim)) * 0.1 + 0.2).astype(
        np.float16
    )


def fitted(x: Matrix, **chosen: object) -> tuple[Codebooks, list[float]]:
    settings = RvqSettings.model_validate({"codebooks": 4, "units": 16, **chosen})
    found, numbers = fit_codebooks(x.copy(), settings, "cpu", lambda done, of: None)
    errors = numbers["relative_error"]
    assert isinstance(errors, list)
    return found, errors


def relative_error(x: Matrix, approximation: npt.NDArray[np.float32]) -> float:
    exact = x.astype(np.float64)
    return float(((exact - approximation) ** 2).sum() / (exact**2).sum())


def reference(x: Matrix, test: Matrix, codebooks: int, bits: int) -> float:
    """The paper's: Improved RVQ, beam 1."""
    quantizer = faiss.ResidualQuantizer(x.shape[1], codebooks, bits)
    quantizer.train_type = faiss.ResidualQuantizer.Train_progressive_dim | faiss.ResidualQuantizer.Skip_codebook_tables
    quantizer.max_beam_size = 1
    quantizer.train(x.astype(np.float32))
    return relative_error(test, quantizer.decode(quantizer.compute_codes(test.astype(np.float32))))


@pytest.mark.parametrize("backend", BACKENDS)
def test_error_within_1_percent_of_the_reference(backend: str) -> None:
    x = sample(4000, 64)
    codebooks, errors = fitted(x, units=32, backend=backend)
    expected = reference(x, x, 4, 5)
    assert relative_error(x, codebooks.decode(codebooks.encode(x)).numpy()) < 1.01 * expected
    assert errors == sorted(errors, reverse=True)
    assert abs(errors[-1] - expected) < 0.01 * expected


@pytest.mark.parametrize("points", [16, 1000])
@pytest.mark.parametrize("initialization", ["progressive", "kmeans"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_residuals_take_the_place_of_the_embeddings(backend: str, initialization: str, points: int) -> None:
    x = sample(1000, 32)
    settings = RvqSettings.model_validate(
        {"codebooks": 3, "units": 16, "backend": backend, "initialization": initialization, "points_per_unit": points}
    )
    given = x.copy()
    codebooks, numbers = fit_codebooks(given, settings, "cpu", lambda done, of: None)
    left = x.astype(np.float32) - codebooks.decode(codebooks.encode(x)).numpy()
    assert (np.abs(given - left).max(axis=1) < 2e-3).mean() > 0.99  # float16 changes few rows' codes
    errors = numbers["relative_error"]
    assert isinstance(errors, list)
    assert errors[-1] == pytest.approx(relative_error(x, x.astype(np.float32) - given), rel=0.01)


def test_embeddings_that_cannot_be_overwritten_are_refused() -> None:
    x = sample(100, 16)
    frozen = x.copy()
    frozen.flags.writeable = False
    cases: dict[str, Any] = {
        "writable False": frozen,
        "C-contiguous False": x[:, ::2],
        "is float32": x.astype(np.float32),
    }
    for words, wrong in cases.items():
        with pytest.raises(ValueError, match=f"such as a copy; .*{words}"):
            fit_codebooks(wrong, RvqSettings(codebooks=1, units=4), "cpu", lambda done, of: None)


def test_progressive_is_better_than_plain_kmeans() -> None:
    x = sample(4000, 64)
    for backend in BACKENDS:
        progressive, plain = (
            fitted(x, units=32, backend=backend, initialization=kind)[1] for kind in ("progressive", "kmeans")
        )
        assert progressive[-1] < plain[-1] < 1.3 * progressive[-1]


def test_codes_are_the_nearest_centroids() -> None:
    """Beam 1: by faiss's exact search, codebook after codebook."""
    x = sample(3000, 48)
    codebooks, _ = fitted(x, backend="torch")
    codes, errors = codebooks.quantise(x, "float32")
    residual = x.astype(np.float32)
    for level, centroids in enumerate(codebooks.centroids.float().numpy()):
        index = faiss.IndexFlatL2(48)
        index.add(centroids)
        nearest = index.search(residual, 1)[1][:, 0]
        assert (codes[:, level] == nearest).mean() > 0.999  # but for ties up to rounding
        residual -= centroids[codes[:, level]]
    np.testing.assert_allclose(errors, (residual**2).sum(axis=1), rtol=1e-4)
    np.testing.assert_allclose(codebooks.decode(codes).numpy(), x.astype(np.float32) - residual, atol=1e-5)


def test_the_first_codebooks_alone() -> None:
    x = sample(2000, 32)
    codebooks, errors = fitted(x, backend="torch")
    codes = codebooks.encode(x)
    for first in range(1, 5):
        assert relative_error(x, codebooks.decode(codes, first).numpy()) == pytest.approx(errors[first - 1], rel=0.01)
        assert codebooks.decode(codes[:, :first], first).equal(codebooks.decode(codes, first))
    for wrong in (0, 5):
        with pytest.raises(ValueError, match="1 ≤ first ≤ 4"):
            codebooks.decode(codes, wrong)


@pytest.mark.parametrize("initialization", ["progressive", "kmeans"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_change_no_byte(backend: str, initialization: str) -> None:
    x = sample(6000, 96)
    files = set()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(threads)
        codebooks, _ = fitted(x, codebooks=2, units=64, backend=backend, initialization=initialization, iterations=2)
        files.add(codebooks.to_bytes({}) + codebooks.encode(x).tobytes())
        assert torch.get_num_threads() == threads
    assert len(files) == 1


def test_the_seed_decides() -> None:
    x = sample(2000, 32)
    for backend in BACKENDS:
        one, same, other = (fitted(x, backend=backend, seed=seed)[0].to_bytes({}) for seed in (0, 0, 1))
        assert one == same != other


def test_a_codebook_is_clustered_on_a_sample_of_the_rows() -> None:
    x = sample(6000, 32)
    for backend in BACKENDS:
        some, every = (fitted(x, backend=backend, points_per_unit=points)[1] for points in (60, 1000))
        assert some != every
        assert some[-1] == pytest.approx(every[-1], rel=0.1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_units_that_no_row_needs(backend: str) -> None:
    """Ten vectors, many times: most of 64 units are dead, and nothing is left over."""
    x = np.tile(sample(10, 32), (30, 1))
    for initialization in ("progressive", "kmeans"):
        codebooks, errors = fitted(x, codebooks=3, units=64, backend=backend, initialization=initialization)
        assert codebooks.centroids.isfinite().all()
        assert errors[-1] < 1e-4
        assert len(np.unique(codebooks.encode(x)[:, 0])) <= 10


def test_dead_units_come_to_life() -> None:
    """K-means starts with mostly the same vector; units that stayed dead would leave the others few centroids."""
    x = np.concatenate([np.zeros((2000, 16), np.float16), sample(200, 16)])
    codebooks, errors = fitted(x, codebooks=1, units=32, backend="torch", initialization="kmeans", iterations=20)
    assert len(np.unique(codebooks.encode(x))) > 24
    assert errors[0] < 1.15 * fitted(x[2000:], codebooks=1, units=30, backend="torch", initialization="kmeans")[1][0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_constant_dimensions_and_zeros(backend: str) -> None:
    x = sample(500, 16)
    x[:, 3] = 0.5
    x[:, 7] = 0
    _, errors = fitted(x, backend=backend)
    assert errors == sorted(errors, reverse=True)
    nothing, errors = fitted(np.zeros((40, 16), np.float16), backend=backend)
    assert errors == [0] * 4
    assert not nothing.centroids.any()


def test_units_need_not_be_a_power_of_two() -> None:
    x = sample(1000, 16)
    for backend in BACKENDS:
        assert fitted(x, units=37, backend=backend)[0].centroids.shape == (4, 37, 16)


def test_fewer_rows_than_units() -> None:
    with pytest.raises(ValueError, match=r"100 rows are fewer than the 128 units .* lower rvq\.units to at most 100"):
        fitted(sample(100, 16), units=128)
    codebooks, errors = fitted(sample(100, 16), units=100, backend="torch")
    assert errors[-1] < 1e-3
    assert codebooks.centroids.isfinite().all()


def test_rows_that_are_not_finite_are_refused() -> None:
    x = sample(100, 16)
    x[3, 2], x[9, 1] = np.nan, np.inf
    with pytest.raises(ValueError, match="2 of 100 rows are not finite"):
        fitted(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_nearest_in_16_bits(dtype: torch.dtype, size: float) -> None:
    """The centroid that is chosen is the nearest, or hardly farther, whatever the size of values."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy((sample(500, 64).astype(np.float32) * size).astype(np.float16))
    centroids = x[rng.choice(500, 40, replace=False)].float()
    distances = torch.cdist(x.double(), centroids.double()).square()
    chosen = distances.gather(1, Nearest(centroids, dtype)(x)[:, None])[:, 0]
    assert float(chosen.sum() / distances.amin(dim=1).sum()) < (1.000001 if dtype == torch.float32 else 1.01)


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    settings = RvqSettings(codebooks=3, units=4, backend="torch")
    fit_codebooks(sample(100, 8), settings, "cpu", lambda done, of: seen.append((done, of)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(900, 16)
    x[5] = 0
    codebooks, errors = fitted(np.delete(x, 5, axis=0), backend="torch")
    settings = RvqSettings(codebooks=4, units=16)
    stage = build_stage(settings, {"rvq": codebooks.to_bytes({})})
    stage.setup("cpu")
    status = np.zeros(900, np.uint8)
    status[5] = NON_FINITE
    part = pa.table({"embeddings.embedding": embedding_array(x), "status.status": status})
    computed = stage.finish(stage.compute(stage.prepare(part)))
    column = computed.families["codes"]["codes"]
    assert column.type == pa.list_(pa.field("element", pa.uint16(), nullable=False), 4)
    codes = np.array(column.to_pylist(), np.uint16)
    assert np.array_equal(codes, codebooks.encode(x))
    counts = computed.counts
    assert counts["rvq.squared_error"] / counts["rvq.squared_norm"] == pytest.approx(errors[-1], rel=0.01)
    monkeypatch.setattr(codebooks_module, "CHUNK", 128)
    assert np.array_equal(codebooks.encode(x), codes)


def test_a_part_without_rows() -> None:
    codebooks, _ = fitted(sample(100, 16), backend="torch")
    codes, errors = codebooks.quantise(np.zeros((0, 16), np.float16))
    assert codes.shape == (0, 4)
    assert errors.shape == (0,)


def test_embeddings_of_another_width_are_refused() -> None:
    codebooks, _ = fitted(sample(100, 16), backend="torch")
    with pytest.raises(ValueError, match=r"\(rows, 16\); the embeddings are \(2, 8\)"):
        codebooks.encode(np.zeros((2, 8), np.float16))


def test_file() -> None:
    codebooks, errors = fitted(sample(100, 16), backend="torch")
    data = codebooks.to_bytes({"rows": 100})
    back = Codebooks.from_bytes(data)
    assert back.centroids.equal(codebooks.centroids)
    assert back.centroids.dtype == torch.float16
    assert back.numbers == {"rows": 100.0, "relative_error": errors}
    assert back.settings["backend"] == "torch"
    assert back.to_bytes({"rows": 100}) == data
    with pytest.raises(ValueError, match=f"these {len(data) - 1} bytes are not a rvq"):
        Codebooks.from_bytes(data[:-1])


def test_settings() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 65536"):
        RvqSettings(units=65537)
    settings = RvqSettings()
    assert (settings.codebooks, settings.units, settings.rows) == (64, 8192, 15_000_000)  # LCM 2.3.5
    assert settings.artifacts() == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["torch", "faiss"])
def test_on_a_gpu(backend: str) -> None:
    x = sample(4000, 64)
    expected = reference(x, x, 4, 5)
    settings = RvqSettings.model_validate({"codebooks": 4, "units": 32, "backend": backend})
    codebooks, _ = fit_codebooks(x.copy(), settings, "cuda", lambda done, of: None)
    again, _ = fit_codebooks(x.copy(), settings, "cuda", lambda done, of: None)
    assert codebooks.to_bytes({}) == again.to_bytes({})
    codes = codebooks.to("cuda").encode(x)
    assert abs(relative_error(x, codebooks.decode(codes).numpy()) - expected) < 0.01 * expected
    assert (codes == codebooks.encode(x)).mean() > 0.95


def test_blocks_are_larger_on_gpus() -> None:
    assert [block_rows(units, "cuda") for units in (256, 8192, 1 << 20)] == [16_384, 16_384, 128]
    assert [block_rows(units, "cpu") for units in (256, 8192, 1 << 20)] == [2048, 2048, 16]
