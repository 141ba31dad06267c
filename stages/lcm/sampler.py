"""Draws from a diffusion model by DDIM (Song et al. 2021) on trailing timesteps, LCM 2.3.2, and units from logits.

DDIM costs `sampling.steps` calls of the model, and a few operations per value between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from stages.lcm.diffusion import Diffusion
from stages.lcm.model import Sampling

Denoise = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


def trailing_steps(timesteps: int, steps: int) -> list[int]:
    """Return the timesteps to sample at, from T down: round(T − k · T/S), k = 0 … S − 1, halves to the even number.

    Raises ValueError if they would not be different.
    """
    if not 1 <= steps <= timesteps:
        raise ValueError(
            f"{steps} steps of sampling; the model was trained on {timesteps} timesteps: give 1 to that many"
        )
    return [round(Fraction(timesteps * left, steps)) for left in range(steps, 0, -1)]


def guided(conditional: Tensor, unconditional: Tensor, scale: float, rescale: float) -> Tensor:
    """Apply classifier-free guidance to predicted x0, eq. 20, then rescale it (Lin et al. 2024, eq. 15, 16).

    Scores and noise are affine in the predicted x0 at a given x^t, and the factors of eq. 20 add up to 1: guiding any
    of them is the same, but where there is no signal only x0 says anything. The standard deviation of each guided
    vector is brought to that of its conditional one.

    Args:
        conditional: (n, dim), predicted with the context.
        unconditional: (n, dim), predicted without it.
        scale: the guidance scale; 1 leaves `conditional` as it is.
        rescale: the share of the rescaled vector in the result, in [0, 1].

    Returns:
        (n, dim).
    """
    x0 = unconditional + scale * (conditional - unconditional)
    wanted, found = (one.std(-1, correction=0, keepdim=True) for one in (conditional, x0))
    ratio = torch.where(found > 0, wanted / found, 1.0)
    return x0 * (rescale * ratio + (1 - rescale))


def sample(
    denoise: Denoise,
    count: int,
    dim: int,
    diffusion: Diffusion,
    sampling: Sampling,
    device: str | torch.device = "cpu",
    normal: Callable[..., Tensor] = torch.randn,
) -> Tensor:
    """Draw normalised embeddings by the reverse diffusion process.

    Args:
        denoise: from x^t (count, dim) and t (count,) int64 to the x0 that the model predicts with its context and
            without; the latter is None, and not computed, if `sampling.guidance` is 1.
        count: how many embeddings.
        dim: their width.
        diffusion: the noise schedule.
        sampling: the settings of sampling.
        device: where it computes.
        normal: draws the noise; PyTorch's global generator does by default.

    Returns:
        (count, dim) float32.

    Raises:
        ValueError: if `sampling.eta` is not in [0, 1].
    """
    if not 0 <= sampling.eta <= 1:
        raise ValueError(f"eta is {sampling.eta}; give 0 (no noise is added) to 1 (as much as DDPM adds)")
    times = [*trailing_steps(diffusion.steps, sampling.steps), 0]
    with torch.no_grad():
        x = sampling.initial_noise * normal(count, dim, device=device)
        for now, then in pairwise(times):
            x0 = _predicted(denoise, x, now, sampling)
            signal, next_signal = float(diffusion.alpha_squared[now]), float(diffusion.alpha_squared[then])
            noise, next_noise = 1 - signal, 1 - next_signal
            epsilon = (x - math.sqrt(signal) * x0) / (math.sqrt(noise) * sampling.epsilon_scaling)  # Ning et al. 2023
            # Song et al. 2021, eq. 12 and 16. Noise is never 0 here; signal is at T, and nothing divides by it.
            added = sampling.eta**2 * next_noise / noise * (1 - signal / next_signal)
            x = math.sqrt(next_signal) * x0 + math.sqrt(max(next_noise - added, 0.0)) * epsilon
            if added > 0:
                x = x + math.sqrt(added) * normal(count, dim, device=device)
    return x


def _predicted(denoise: Denoise, x: Tensor, t: int, sampling: Sampling) -> Tensor:
    """Return x0 predicted at one timestep: guided, rescaled and clipped."""
    conditional, unconditional = denoise(x, torch.full((len(x),), t, device=x.device))
    x0 = conditional.to(x.dtype)
    if sampling.guidance != 1:
        if unconditional is None:
            raise ValueError(f"guidance is {sampling.guidance}, and the model gave no unconditional prediction")
        x0 = guided(x0, unconditional.to(x.dtype), sampling.guidance, sampling.rescale)
    return x0 if sampling.clip is None else x0.clamp(-sampling.clip, sampling.clip)


def sample_unit(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Draw a unit for each row of logits, by PyTorch's global generator.

    Probabilities are softmax(logits / temperature), of the `top_k` likeliest units, and of these the fewest that
    together reach `top_p`.

    Args:
        logits: (rows, units).
        temperature: above 0.
        top_k: at least 1; None for all units; 1 draws nothing and takes the likeliest.
        top_p: above 0 and at most 1; None for all.

    Returns:
        (rows,) int64.

    Raises:
        ValueError: if a number is out of its range.
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
