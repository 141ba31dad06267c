"""Small models with random weights everywhere, and batches, for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stages.batching import Tokens
from stages.lcm.batch import Batch, of_documents
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.lcm.model import Lcm
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler
from stages.sonar.ids import END

DIM = 12
VOCAB, LANG = 30, 25
LENGTHS = (5, 1, 16, 3, 9)


def card(kind: str, **changes: object) -> LcmCard:
    """A card of a model with 16 dimensions."""
    about = {"name": f"test-{kind}", "description": "for tests", "licence": "MIT", "kind": kind}
    size = {"model_dim": 16, "heads": 2, "inner_dim": 24, "context": 20, "dropout": 0.0}
    towers = {"contextualizer_layers": 2, "denoiser_layers": 2} if kind == "two-tower" else {"layers": 2}
    diffusion = {"diffusion": {"steps": 10}} if kind in ("one-tower", "two-tower") else {}
    return LcmCard.model_validate(about | size | towers | diffusion | changes)


def scaler() -> RobustScaler:
    """Of embeddings like those of `batch`."""
    generator = torch.Generator().manual_seed(5)
    return RobustScaler(torch.randn(DIM, generator=generator), 0.5 + torch.rand(DIM, generator=generator))


def codebooks() -> Codebooks:
    """Three of 32 units, for embeddings like those of `batch`."""
    generator = torch.Generator().manual_seed(6)
    return Codebooks(torch.randn(3, 32, DIM, generator=generator).half() / torch.tensor([1, 2, 4])[:, None, None])


def fresh(one: LcmCard, seed: int = 0) -> Lcm:
    """A model as it begins."""
    torch.manual_seed(seed)
    return build(one, scaler(), codebooks() if one.quantised else None)


def model(one: LcmCard, seed: int = 0) -> Lcm:
    """Its weights and biases are all random, those too that start at zero."""
    made = fresh(one, seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.eval()


def documents(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> list[Tensor]:
    """Random embeddings, float16."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, DIM, generator=generator).half() for length in lengths]


def batch(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> Batch:
    """Of `documents`, with codes."""
    made = of_documents(documents(lengths, seed))
    codes = codebooks().encode(made.embeddings.numpy(), "float32").astype("int32")
    return replace(made, codes=torch.from_numpy(codes))


def batch_of_words(lengths: tuple[int, ...]) -> Batch:
    """Of random words; the first two sentences are a prompt."""
    one = batch(lengths)
    draw = np.random.default_rng(0)
    words = [[LANG, *draw.integers(4, LANG, draw.integers(1, 9)).tolist(), END] for _ in range(one.sentences)]
    weights = one.weights.clone()
    weights[:2] = 0
    return replace(one, tokens=Tokens.of(words), weights=weights)
