"""Drawing a unit from logits: temperature, then top-k, then top-p, as language models do."""

from __future__ import annotations

from torch import Tensor


def sample_unit(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """logits: (rows, units) → (rows,) int64: a unit for each row, by PyTorch's global generator.

    Probabilities are softmax(logits / temperature), of the top_k likeliest units (all, if None; 1 draws nothing and
    takes the likeliest), and of these the fewest that together reach top_p (all, if None).

    Raises ValueError if a number is out of its range.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; give a number above 0, or top_k 1 for the likeliest unit")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; give a number of units ≥ 1, or none for all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; give a share above 0 and at most 1, or none")
    if top_k == 1:
        return logits.argmax(dim=1)
    units = logits.shape[1]
    best, indices = logits.float().topk(units if top_k is None else min(top_k, units))
    probabilities = (best / temperature).softmax(dim=1)
    if top_p is not None:
        likelier = probabilities.cumsum(dim=1) - probabilities  # the sum over all units before: 0 for the first
        probabilities = probabilities.masked_fill(likelier >= top_p, 0)
    return indices.gather(1, probabilities.multinomial(1)).squeeze(1)
