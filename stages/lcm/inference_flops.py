"""Floating-point operations that a Large Concept Model takes to write text, from its card alone: LCM 2.5.1, Fig. 13.

Two operations per weight and vector, four · model_dim per pair of query and key; norms, activations, softmax, look-ups
and the sampler's own arithmetic are not counted. What was read is read once (`reading_flops`): keys and values are kept
from one sentence to the next, as the paper's count and every LLM's assumes. The package's own `next` reads the whole
context again for each sentence, which costs one `reading_flops` more each time.
"""

from __future__ import annotations

from stages.lcm.card import LcmCard
from stages.lcm.model import Sampling

FREQUENCIES = 256  # of a timestep embedding
CODEBOOKS, UNITS = 64, 8192  # of residual vector quantisation in the LCM paper
MODULATIONS = 9  # AdaLN: shift, scale and gate of the three sub-blocks of a denoiser block


def reading_flops(card: LcmCard, dim: int, sentences: float) -> float:
    """Count the FLOPs of reading the sentences of one document, each once.

    For the Two-Tower they include the keys and values that its denoiser attends to.

    Args:
        card: the architecture.
        dim: the width of embeddings.
        sentences: how many sentences are read.

    Returns:
        FLOPs.
    """
    width, pairs = card.model_dim, sentences * (sentences + 1) / 2
    if card.kind == "two-tower":
        assert card.contextualizer_layers is not None and card.denoiser_layers is not None
        layers = card.contextualizer_layers
        weights = layers * (4 * width**2 + 3 * width * card.inner_dim) + card.denoiser_layers * 2 * width**2
    else:
        assert card.layers is not None
        layers = card.layers
        matrices = 3 if card.kind == "base" else 2  # of the feed-forward network: SwiGLU or GELU
        weights = layers * (4 * width * card.heads * card.width_of_head + matrices * width * card.inner_dim)
    return 2 * (weights + dim * width) * sentences + 4 * card.heads * card.width_of_head * pairs * layers


def next_flops(
    card: LcmCard, dim: int, context: float, sampling: Sampling, codebooks: int = CODEBOOKS, units: int = UNITS
) -> float:
    """Count the FLOPs of predicting the sentence after those that were read already.

    Args:
        card: the architecture.
        dim: the width of embeddings.
        context: how many sentences were read.
        sampling: the settings of sampling; diffusion takes `sampling.steps` steps.
        codebooks: how many codebooks a Quant-LCM has, which takes a step for each.
        units: how many codes a codebook has.

    Returns:
        FLOPs.
    """
    width = card.model_dim
    if card.kind == "base":
        return 2 * dim * width
    passes = 1 if sampling.guidance == 1 else 2  # with and without the context
    seen = 4 * width * (context + 1)
    if card.kind == "two-tower":
        assert card.denoiser_layers is not None
        each = 2 * (2 * width**2 + 3 * width * card.inner_dim) * passes  # one key: neither it nor the query counts
        conditional = 2 * 2 * width**2 + seen
        timestep = card.denoiser_layers * MODULATIONS * width**2 + width**2 + FREQUENCIES * width
        step = card.denoiser_layers * (each + conditional) + 2 * 2 * dim * width * passes + 2 * timestep
        return sampling.steps * step
    assert card.layers is not None
    feed_forward = 2 * 2 * width * card.inner_dim * passes
    conditional = 2 * 4 * width**2 + seen
    unconditional = 2 * 2 * width**2 * (passes - 1)
    out = units if card.kind == "quant-d" else dim
    step = card.layers * (feed_forward + conditional + unconditional) + 2 * (dim + out) * width * passes + 2 * width**2
    if card.kind == "one-tower":
        return sampling.steps * (step + 2 * (FREQUENCIES * width + width**2))
    if card.kind == "quant-c":
        step += 2 * dim * units  # how near each centroid is
    return codebooks * step


def writing_flops(card: LcmCard, dim: int, prompt: float, sentences: float, sampling: Sampling) -> float:
    """Count the FLOPs of continuing a text, without those of the encoder and the decoder.

    Args:
        card: the architecture.
        dim: the width of embeddings.
        prompt: how many sentences are given.
        sentences: how many sentences are written.
        sampling: the settings of sampling.

    Returns:
        FLOPs.
    """
    first, last = prompt, prompt + sentences - 1
    each = (next_flops(card, dim, first, sampling) + next_flops(card, dim, last, sampling)) / 2  # linear in between
    return reading_flops(card, dim, last) + sentences * each
