"""Fits the predictor of fragility on rows that have been decoded and scored, LCM 2.4.4.

Rows are held out by a hash of their embedding, so that copies of a sentence are on one side: one share for the reported
correlations, and one to choose the epoch. Embeddings stay where they are (float16, possibly memory-mapped); one batch
at a time is normalised on the device. Cost: 6 · weights · rows operations per epoch.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from stages.batching import Indices
from stages.device import prepare_cuda
from stages.predictor.network import BLOCK_ROWS, SCORES, Predictor, PredictorNetwork
from stages.predictor.settings import LEAST_ROWS, PredictorSettings
from stages.scaler.robust import RobustScaler

LEAST_STEPS = 16  # an epoch: of few rows, batches are smaller
Progress = Callable[[int, int], None]  # epochs done, of how many
Half = npt.NDArray[np.float16]
Single = npt.NDArray[np.float32]


def fit_predictor(
    embeddings: Half,
    targets: Single,
    settings: PredictorSettings,
    scaler: RobustScaler,
    device: str = "cpu",
    progress: Progress = lambda done, of: None,
) -> tuple[Predictor, dict[str, float]]:
    """Fit the predictor.

    Args:
        embeddings: (rows, dim).
        targets: (rows, 2) measured fragility by BLEU and by cosine, each in [−1, 0].
        settings: the section predictor.
        scaler: normalises embeddings.
        device: where the network is trained.
        progress: is told of the steps done.

    Returns:
        The predictor, and numbers: rows, held-out rows, their Pearson and Spearman correlations.

    Raises:
        ValueError: if there are too few rows, or the rows do not differ.
    """
    if len(embeddings) < LEAST_ROWS:
        raise ValueError(
            f"{len(embeddings)} rows have a fragility score, {LEAST_ROWS} are the least to learn from; raise "
            "fragility.sample, predictor.rows or fit.rows"
        )
    prepare_cuda(device)
    u = split_numbers(embeddings, settings.seed)
    held_out, choosing = u < settings.held_out, (u >= settings.held_out) & (u < 2 * settings.held_out)
    sides = [np.flatnonzero(side) for side in (~held_out & ~choosing, choosing, held_out)]
    if min(map(len, sides)) < 2 or (targets[sides[0]].std(axis=0) == 0)[SCORES.index(settings.score)]:
        raise ValueError(
            f"{len(embeddings)} rows hold too few different sentences, or all have the same fragility by "
            f"{settings.score}; raise fragility.sample, predictor.rows or fit.rows"
        )
    center, scale = _moments(targets[sides[0]])
    standardised = (torch.from_numpy(targets) - center) / scale
    network = _train(embeddings, standardised, scaler, settings, sides[0], sides[1], device, progress)
    unscaled = Predictor(scaler, network, center, scale, center, scale, settings.meaningful(), {})
    predicted = unscaled.predict(embeddings, device)
    numbers = {"rows": float(len(embeddings)), "held_out_rows": float(len(sides[2]))}
    numbers |= correlations(predicted[sides[2]], targets[sides[2]])
    mean, std = _moments(predicted)
    numbers |= {f"mean_{score}": float(one) for score, one in zip(SCORES, mean, strict=True)}
    numbers |= {f"std_{score}": float(one) for score, one in zip(SCORES, std, strict=True)}
    return replace(unscaled, mean=mean, std=std, numbers=numbers), numbers


def _moments(values: Single) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of (rows, 2), each (2,); a deviation of 0 becomes 1."""
    mean, std = (torch.from_numpy(one(values, axis=0, dtype=np.float64)).float() for one in (np.mean, np.std))
    return mean, torch.where(std == 0, 1.0, std)


def split_numbers(embeddings: Half, seed: int) -> npt.NDArray[np.float64]:
    """Return (rows,) in [0, 1) by a hash of each row: equal embeddings have equal numbers."""
    salt = seed.to_bytes(8, "little")
    hashes = (hashlib.blake2b(row.tobytes(), digest_size=8, salt=salt).digest() for row in embeddings)
    whole = np.frombuffer(b"".join(hashes), "<u8")
    return np.asarray((whole >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def correlations(predicted: Single, measured: Single) -> dict[str, float]:
    """Return Pearson and Spearman by score, of (rows, 2) each; left out if all values are equal."""
    found = {}
    for at, score in enumerate(SCORES):
        ours, theirs = predicted[:, at].astype(np.float64), measured[:, at].astype(np.float64)
        if np.ptp(ours) > 0 and np.ptp(theirs) > 0:
            found[f"pearson_{score}"] = float(np.corrcoef(ours, theirs)[0, 1])
            found[f"spearman_{score}"] = float(np.corrcoef(_ranks(ours), _ranks(theirs))[0, 1])
    return found


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return places in ascending order; equal values share the mean of theirs."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return np.asarray((ends - (count - 1) / 2)[inverse])


def _train(
    embeddings: Half,
    targets: Tensor,
    scaler: RobustScaler,
    settings: PredictorSettings,
    learning: Indices,
    choosing: Indices,
    device: str,
    progress: Progress,
) -> PredictorNetwork:
    """Return the network of the epoch that is best on the rows set aside for choosing it."""

    def rows(at: Indices) -> tuple[Tensor, Tensor]:
        return scaler.normalize(torch.from_numpy(embeddings[at]).to(device)), targets[torch.from_numpy(at)].to(device)

    with torch.random.fork_rng([device] if device.startswith("cuda") else []):
        torch.manual_seed(settings.seed)
        network = PredictorNetwork(embeddings.shape[1], settings.hidden, settings.dropout).to(device)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
        size = min(settings.batch_rows, max(16, len(learning) // LEAST_STEPS))
        best, least, worse = copy.deepcopy(network.state_dict()), float("inf"), 0
        for epoch in range(settings.epochs):
            network.train()
            order = learning[torch.randperm(len(learning)).numpy()]
            for start in range(0, len(order), size):
                x, y = rows(order[start : start + size])
                optimizer.zero_grad()
                F.mse_loss(network(x), y).backward()
                optimizer.step()
            schedule.step()
            network.eval()
            error = 0.0
            with torch.inference_mode():
                for start in range(0, len(choosing), BLOCK_ROWS):
                    x, y = rows(choosing[start : start + BLOCK_ROWS])
                    error += float(F.mse_loss(network(x), y, reduction="sum"))
            progress(epoch + 1, settings.epochs)
            if error < least:
                best, least, worse = copy.deepcopy(network.state_dict()), error, 0
            elif (worse := worse + 1) >= settings.patience:
                break
    network.load_state_dict(best)
    return network.eval().requires_grad_(False)
