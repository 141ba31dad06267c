"""The robust scaler equals scikit-learn's, bit for bit, however the rows come in."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from stages import artifact
from stages.scaler import robust
from stages.scaler.robust import RobustScaler, ScalerFit
from stages.scaler.settings import ScalerSettings

Matrix = npt.NDArray[np.float16]


def fit(x: Matrix, *, pieces: int = 1, clip: float | None = None) -> RobustScaler:
    counting = ScalerFit(x.shape[1])
    for piece in np.array_split(x, pieces):
        counting.add(piece)
    return counting.finish(clip)


def sample(rows: int, dim: int, seed: int = 0) -> Matrix:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, dim)) * rng.lognormal(size=dim) / 50 + rng.normal(size=dim)).astype(np.float16)


def reference_fit(x: Matrix) -> Any:
    from sklearn import preprocessing  # a second and a half of CPU, which the other workers are spared

    return preprocessing.RobustScaler(quantile_range=(25, 75)).fit(x.astype(np.float64))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 1000, 1001, 1002, 1003])
def test_as_scikit_learn(rows: int) -> None:
    x = sample(rows, 37)
    ours, reference = fit(x), reference_fit(x)
    assert np.array_equal(ours.median.numpy(), reference.center_.astype(np.float32))
    assert np.array_equal(ours.iqr.numpy(), reference.scale_.astype(np.float32))
    expected = torch.from_numpy(reference.transform(x.astype(np.float64)).astype(np.float32))
    torch.testing.assert_close(ours.normalize(torch.from_numpy(x)), expected, rtol=1e-5, atol=1e-5)


@given(arrays(np.uint16, st.tuples(st.integers(1, 40), st.just(2)), elements=st.integers(0, 0xFFFF)))
@settings(max_examples=60, deadline=None)
def test_any_finite_values(bits: npt.NDArray[np.uint16]) -> None:
    """Both zeros, subnormals, the largest values."""
    x = np.where(bits & 0x7C00 == 0x7C00, bits & 0x83FF, bits).astype(np.uint16).view(np.float16)
    ours, reference = fit(x), reference_fit(x)
    assert np.array_equal(ours.median.numpy(), reference.center_.astype(np.float32))
    assert np.array_equal(ours.iqr.numpy(), reference.scale_.astype(np.float32))


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(1000, 40)
    whole = fit(x).to_bytes({"of": "x"})
    monkeypatch.setattr(robust, "BLOCK_BYTES", 2 * 40 * 64)  # blocks of 64 rows
    assert fit(x, pieces=7).to_bytes({"of": "x"}) == whole
    assert fit(x, pieces=1000).to_bytes({"of": "x"}) == whole


def test_there_and_back() -> None:
    x = torch.from_numpy(sample(500, 16))
    scaler = fit(x.numpy())
    torch.testing.assert_close(scaler.denormalize(scaler.normalize(x)), x.float())
    normal = scaler.normalize(x)
    assert normal.dtype == torch.float32
    assert torch.allclose(normal.quantile(0.75, dim=0) - normal.quantile(0.25, dim=0), torch.ones(16), atol=1e-4)


def test_clip() -> None:
    x = torch.from_numpy(sample(500, 16))
    scaler = fit(x.numpy(), clip=0.5)
    assert scaler.normalize(x).abs().max() == 0.5
    far = torch.full((1, 16), 9.0)
    torch.testing.assert_close(scaler.denormalize(far), (scaler.median + scaler.iqr * 0.5)[None])


def test_constant_dimensions_have_scale_1() -> None:
    x = sample(100, 8)
    x[:, 3] = 0.25
    x[:, 5] = np.where(np.arange(100) % 2, 0.0, -0.0)
    scaler = fit(x)
    assert scaler.constant.nonzero().flatten().tolist() == [3, 5]
    assert scaler.constant_dimensions == 2
    assert scaler.iqr[[3, 5]].tolist() == [1, 1]
    assert scaler.normalize(torch.from_numpy(x))[:, [3, 5]].abs().max() == 0
    assert not torch.signbit(scaler.median[5])


def test_rows_that_are_not_finite_are_refused() -> None:
    x = sample(100, 8)
    x[7, 1], x[7, 2], x[50, 3] = np.nan, np.inf, -np.inf
    with pytest.raises(ValueError, match="2 of 100 rows hold values that are not finite"):
        fit(x)


def test_no_rows_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no rows; raise scaler\.rows"):
        ScalerFit(8).finish()
    with pytest.raises(ValueError, match=r"\(rows, 8\) float16; these are \(3, 9\) float16"):
        ScalerFit(8).add(np.zeros((3, 9), np.float16))
    with pytest.raises(ValueError, match="float32"):
        ScalerFit(8).add(np.zeros((3, 8), np.float32))


def test_file() -> None:
    x = sample(100, 8)
    x[:, 3] = 0.25
    scaler = fit(x, clip=3.0)
    data = scaler.to_bytes({"chunks": ["a", "b"], "é": 1})
    assert data == scaler.to_bytes({"é": 1, "chunks": ["a", "b"]})
    back = RobustScaler.from_bytes(data)
    assert back.median.equal(scaler.median)
    assert back.iqr.equal(scaler.iqr)
    assert back.constant.equal(scaler.constant)
    assert (back.clip, back.rows, back.constant_dimensions) == (3.0, 100, 1)
    assert artifact.from_bytes("scaler", data)[1]["numbers"] == {"rows": 100, "constant_dimensions": 1}


def test_file_of_a_scaler_without_constant_dimensions() -> None:
    back = RobustScaler.from_bytes(RobustScaler(torch.zeros(3), torch.ones(3)).to_bytes({}))
    assert back.constant.tolist() == [False] * 3


def test_what_is_no_scaler_is_refused() -> None:
    data = fit(sample(100, 8)).to_bytes({})
    for broken in (b"", b"nonsense", data[:-1], data[:40]):
        with pytest.raises(ValueError, match=f"these {len(broken)} bytes are not a scaler"):
            RobustScaler.from_bytes(broken)
    with pytest.raises(ValueError, match="kind 'rvq', version 1, where 'scaler'"):
        RobustScaler.from_bytes(artifact.to_bytes("rvq", {"x": torch.zeros(1)}, {}))
    older = artifact.to_bytes("scaler", {"median": torch.zeros(1), "iqr": torch.ones(1)}, {})
    with pytest.raises(ValueError, match="older version, which did not note its constant dimensions; fit it again"):
        RobustScaler.from_bytes(older)


def test_form_of_the_lcm_release() -> None:
    """Its normalizer: (x − center) / scale, then clamped to clip_min … clip_max, a checkpoint {"model": state}."""
    x = torch.from_numpy(sample(200, 8))
    for clip, names in ((None, {"center", "scale"}), (0.7, {"center", "scale", "clip_min", "clip_max"})):
        scaler = fit(x.numpy(), clip=clip)
        state = torch.load(io.BytesIO(scaler.to_lcm()), weights_only=True)["model"]
        assert set(state) == names
        theirs = (x.float() - state["center"]) / state["scale"]
        if clip:
            theirs = theirs.clamp(state["clip_min"], state["clip_max"])
        assert scaler.normalize(x).equal(theirs)


def test_settings() -> None:
    assert ScalerSettings().meaningful() == {"rows": 1_000_000, "clip": None, "file": None}
    with pytest.raises(ValidationError):
        ScalerSettings(clip=0.0)
