"""Floating-point operations of a SONAR encoder and decoder. Imports nothing, so that any process can count."""

from __future__ import annotations

from collections.abc import Sequence


def encoder_flops(lengths: Sequence[float], *, dim: int, layers: int, ffn_dim: int) -> float:
    """Return the FLOPs of encoding sentences: two per weight and token, four · dim per token pair.

    Norms, activations, softmax and embedding look-ups are not counted.

    Args:
        lengths: how many tokens each sentence has.
        dim: the width of the model.
        layers: the number of layers.
        ffn_dim: the inner width of the feed-forward network.

    Returns:
        FLOPs.
    """
    weights = 4 * dim * dim + 2 * dim * ffn_dim
    tokens = sum(lengths)
    pairs = sum(length * length for length in lengths)
    return float(layers * (2 * weights * tokens + 4 * dim * pairs))


def decoder_flops(lengths: Sequence[float], *, dim: int, layers: int, ffn_dim: int, vocab_size: int) -> float:
    """Return the FLOPs of decoding sentences token by token, after a prefix of two.

    Args:
        lengths: how many new tokens each sentence has.
        dim: the width of the model.
        layers: the number of layers.
        ffn_dim: the inner width of the feed-forward network.
        vocab_size: the size of the vocabulary.

    Returns:
        FLOPs.
    """
    steps = [length + 1 for length in lengths]
    body = encoder_flops([1], dim=dim, layers=layers, ffn_dim=ffn_dim) * sum(steps)
    earlier = sum(count * (count - 1) / 2 for count in steps)
    return body + 4.0 * layers * dim * (earlier + dim * len(lengths)) + 2.0 * dim * vocab_size * sum(lengths)
