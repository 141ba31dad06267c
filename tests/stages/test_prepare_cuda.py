"""Whatever computes on a GPU sets torch up for it, first of all: without a GPU the rest of the way ends in an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from stages.autobleu.scorer import Autobleu
from stages.autobleu.settings import AutobleuSettings
from stages.device import cuda_settings, prepare_cuda
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.predictor.fit import fit_predictor
from stages.predictor.settings import PredictorSettings
from stages.predictor.stage import Predict
from stages.rvq.fit import fit_codebooks
from stages.rvq.settings import RvqSettings
from stages.segment.methods import SatMethod
from stages.segment.settings import SegmentSettings
from tests.conftest import TINY_CARD
from tests.stages.test_predictor import sample, scaler_of

WANTED = "cuDNN attention off, sums in float32"


@pytest.fixture(autouse=True)
def torch_as_it_begins() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul

    def set_to(cudnn: bool, fp16: bool, bf16: bool) -> None:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        matmul.allow_fp16_reduced_precision_reduction = fp16
        matmul.allow_bf16_reduced_precision_reduction = bf16

    before = (
        torch.backends.cuda.cudnn_sdp_enabled(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    set_to(True, True, True)
    assert cuda_settings() == "cuDNN attention on, sums in 16 bits where it is faster"
    yield
    set_to(*before)


def encode() -> None:
    Encode(EncodeSettings(model=str(TINY_CARD))).setup("cuda")


def autobleu() -> None:
    Autobleu(AutobleuSettings(model=str(TINY_CARD))).setup("cuda")


def sat() -> None:
    SatMethod(SegmentSettings(method="sat"), "cuda")


def rvq() -> None:
    settings = RvqSettings(codebooks=1, units=2, backend="torch")
    fit_codebooks(np.ones((100, 4), np.float16), settings, "cuda", lambda done, error: None)


def predictor_fit() -> None:
    embeddings, targets = sample(100)
    fit_predictor(embeddings, targets, PredictorSettings(), scaler_of(embeddings), "cuda")


def predictor() -> None:
    embeddings, targets = sample(100)
    fitted, _ = fit_predictor(embeddings, targets, PredictorSettings(epochs=1), scaler_of(embeddings))
    Predict(PredictorSettings(), fitted.to_bytes({})).setup("cuda")


@pytest.mark.parametrize("set_up", [encode, autobleu, sat, rvq, predictor_fit, predictor])
def test_what_computes_on_a_gpu_prepares_torch_first(set_up: Callable[[], None]) -> None:
    if torch.cuda.is_available():
        set_up()
    else:
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
            set_up()
    assert cuda_settings() == WANTED


def test_a_cpu_is_left_as_it_is() -> None:
    prepare_cuda("cpu")
    assert cuda_settings() != WANTED
    prepare_cuda("cuda:1")
    assert cuda_settings() == WANTED
    assert not torch.cuda.is_initialized() or torch.cuda.is_available()
