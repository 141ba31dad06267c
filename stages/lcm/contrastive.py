"""Base-LCM that tells the next sentence from the others of a micro-batch: contrastive weight tying (Godey et al. 2024,
"Headless Language Models") on concepts.

The loss of a target i is −log [exp(o_i·k_i) / Σ_j exp(o_i·k_j)], scores divided by a temperature and by the root of
the keys' width; j runs over the targets of the micro-batch on one device, except those that are equal to target i
(closing sentences, copies), which no model could tell apart. Keys are frozen or tied:

frozen  k = normalize(x), o = PostNet(h): predictions stay in the space of embeddings. The temperature is learned.
tied    k = PreNet(x), o = h after PostNet's norm: PreNet is trained from both sides, and PostNet's projection not at
        all. For the last steps (`contrastive.head` of all) the loss is Base-LCM's squared error, and PostNet begins
        there with the pseudo-inverse of PreNet.

Cost: a product (targets, width) × (width, targets), in float32, and 12 bytes for each of its scores: 50 MB at 2048
targets.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from stages.lcm.base import BaseLcm
from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard
from stages.lcm.layers import inference, matmul_flops
from stages.lcm.model import Sampling
from stages.lcm.packing import check_lengths
from stages.scaler.robust import RobustScaler

TEMPERATURE = {"frozen": 0.5, "tied": 1.0}  # where the settings say none


class ContrastiveLcm(BaseLcm):
    """Predicts as Base-LCM does; the module's docstring says what it learns.

    head: () int64, with tied keys: 1 once PostNet is trained.
    """

    head: Tensor

    def __init__(self, card: LcmCard, scaler: RobustScaler) -> None:
        super().__init__(card, scaler)
        self.contrast = card.contrast
        temperature = self.contrast.temperature or TEMPERATURE[self.contrast.keys]
        self.tied, self._fitting = self.contrast.keys == "tied", False
        self.width = card.model_dim if self.tied else len(scaler.median)
        self.scale = -math.log(temperature)  # the logarithm of what scores are multiplied by
        if self.tied:
            self.register_buffer("head", torch.zeros((), dtype=torch.int64))
        else:
            self.log_scale = nn.Parameter(torch.full((1,), self.scale))

    def begin_step(self, step: int, steps: int) -> None:
        """Switch to the loss of the head for the last steps, if the keys are tied."""
        if self._fitting or not self.card.last_share or step < self.card.with_first_loss(steps):
            return
        self._fitting = True
        if not self.head:
            self._begin_head()

    def check(self, batch: Batch) -> None:
        """Raise ValueError for a single target, which has nothing to be told from."""
        if batch.targets == 1:
            raise ValueError(
                "a micro-batch has a single target, and the contrastive objective tells targets from each other: give "
                "more, so that every micro-batch has several"
            )

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of every sentence, the first of a document too; 0 where there is nothing to tell it from."""
        if self._fitting:
            return super().losses(batch)
        check_lengths(batch.lengths, self.card.context)
        clean = self.scaling.normalize(batch.embeddings)
        read = self._read(clean, batch.packing)
        queries, keys = (self.post.norm(read), self.pre(clean)) if self.tied else (self.post(read), clean)
        scale = self.scale if self.tied else self.log_scale
        found = contrastive_losses(queries, keys, scale, negatives(batch.embeddings, batch.weights))
        if self.tied:  # DDP wants a gradient of everything
            found = found + 0 * (self.post.project.weight.sum() + self.post.project.bias.sum())
        return found

    @inference
    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict in one pass. Raises ValueError for tied keys without a head."""
        self._check_head()
        return super().predict(batch, sampling)

    @inference
    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict in one pass. Raises ValueError for tied keys without a head."""
        self._check_head()
        return super().next(batch, sampling)

    def flops(self, batch: Batch) -> float:
        """Count the operations of `losses`. Scores are one product more; frozen keys need no gradient, tied ones are
        PreNet's, which needs none of its input, and PostNet's projection is not used.
        """
        found, count = super().flops(batch), batch.sentences
        if self._fitting:
            return found
        if not self.tied:
            return found + matmul_flops(2 / 3 * self.width * count, count)
        ends = self.scaling.median.numel() * self.card.model_dim
        return found + matmul_flops(self.width * count + (2 / 3 - 1) * ends, count)

    @torch.no_grad()
    def _begin_head(self) -> None:
        """Let PostNet begin as what undoes PreNet: W⁺ (o − b), by a pseudo-inverse in float64."""
        weight, bias = (_whole(one).double().cpu() for one in (self.pre.project.weight, self.pre.project.bias))
        inverse = torch.linalg.pinv(weight)
        _put(self.post.project.weight, inverse)
        _put(self.post.project.bias, -(inverse @ bias))
        self.head.fill_(1)

    def _check_head(self) -> None:
        if self.tied and not self.head:
            raise ValueError(
                f"{self.card.name} was trained with tied keys and has no head yet, so that it predicts no embeddings: "
                "train it to its end with contrastive.head above 0, or go on from it with init_from"
            )


def contrastive_losses(queries: Tensor, keys: Tensor, log_scale: float | Tensor, compared: Tensor) -> Tensor:
    """Return the losses of queries and keys, in float32, whatever autocast does.

    A loss is −log of the softmax of scores, e^log_scale · query · key / √width, over the keys that a query is compared
    with, at its own key.

    Args:
        queries: (n, width).
        keys: (n, width), the own key of each query at the same place.
        log_scale: the logarithm of the factor of scores.
        compared: (n, n) bool, whether a query is compared with a key; True on the diagonal.

    Returns:
        (n,) float32.
    """
    with torch.autocast(queries.device.type, enabled=False):
        scaled = queries.float() * (torch.as_tensor(log_scale).exp() / math.sqrt(keys.shape[1]))
        scores = (scaled @ keys.float().T).masked_fill(~compared, -torch.inf)
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device), reduction="none")


def negatives(embeddings: Tensor, weights: Tensor) -> Tensor:
    """Return (n, n) bool: what each of (n, dim) sentences is compared with: itself, and the targets that differ from
    it.

    Whether two are equal, bit by bit, is told by a number of 64 bits for each: one negative in 2^64 is left out.
    """
    bits = embeddings.contiguous().view(torch.int16)
    numbers = (bits.long() * _multipliers(bits.shape[1], bits.device)).sum(dim=1)
    own = torch.eye(len(numbers), dtype=torch.bool, device=numbers.device)
    return ((numbers[:, None] != numbers) & (weights > 0)) | own


def _multipliers(count: int, device: torch.device) -> Tensor:
    """Return (count,) odd int64 that resemble random ones: splitmix64 of 1, 2, and so on."""
    x = torch.arange(1, count + 1, device=device) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ (x >> shift)) * factor
    return (x ^ (x >> 31)) | 1


def _whole(parameter: Tensor) -> Tensor:
    """Return all of a parameter of which FSDP may have given this process a share."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def _put(parameter: Tensor, value: Tensor) -> None:
    """Put a value into a parameter of which FSDP may have given this process a share."""
    moved = value.to(parameter.device, parameter.dtype)
    if isinstance(parameter, DTensor):
        moved = distribute_tensor(moved, parameter.device_mesh, parameter.placements)
    parameter.copy_(moved)
