"""AdamW with its learning rate (LCM 3.1); an optimizer step over the micro-batches of all processes, and its result.

The loss of a step is Σ weight·loss / Σ weight over all its sentences, whichever process had them; gradients are those
of this loss. Numbers are copied to the host while the next step is computed, so that a GPU never waits.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from pipeline.base.errors import ConfigError
from pipeline.config.train import TrainSettings
from pipeline.training.distributed import Processes, accumulating, own_gradients, sharded, unwrapped
from stages.lcm.batch import Batch

LOSS, WEIGHT, SQUARES, STOPS, SENTENCES, FLOPS, WAITED = range(7)  # of the numbers that are added up over processes


@dataclass(frozen=True)
class Micro:
    """A micro-batch that was computed here. `batch`: on the host; `losses`: (sentences,) on the device."""

    number: int
    batch: Batch
    losses: Tensor


@dataclass(frozen=True)
class Result:
    """The result of a step. `norm`: length of the gradient before clipping; `stops`: processes that were asked to stop.

    `waited`: seconds that each process waited for its micro-batches.
    """

    loss: float
    norm: float
    weight: float
    sentences: int
    flops: float
    stops: int
    waited: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are finite."""
        return abs(self.loss) < float("inf") and abs(self.norm) < float("inf")


@dataclass(frozen=True)
class Pending:
    """A step whose numbers are being copied to the host."""

    step: int
    micros: list[Micro]
    numbers: Tensor
    arrived: torch.cuda.Event | None

    def result(self) -> Result:
        """Wait for this step, but not for those begun after it, and return its result."""
        if self.arrived:
            self.arrived.synchronize()
        loss, weight, squares, stops, sentences, flops, *waited = self.numbers.tolist()
        weighed = max(weight, torch.finfo(torch.float32).tiny)
        return Result(loss / weighed, squares**0.5 / weighed, weight, int(sentences), flops, int(stops), tuple(waited))


def seed_of(*what: int | str) -> int:
    """Return a seed for PyTorch that depends on its purpose: (seed, step, number of the micro-batch)."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "little") >> 1


@contextlib.contextmanager
def products(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Compute matrix products in `dtype`; float32 changes nothing."""
    with torch.autocast(device.type, dtype) if dtype != torch.float32 else contextlib.nullcontext():
        yield


class Stepper:
    """Takes the steps of a training.

    Args:
        losses: what `parallel` returned.
        optimizer: the optimizer of its parameters.
        settings: the section `train`.
        processes: the processes, and the device of this one.
        dtype: the type of matrix products.
    """

    def __init__(
        self, losses: nn.Module, optimizer: torch.optim.Optimizer, settings: TrainSettings, processes: Processes,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.losses, self.optimizer, self.settings = losses, optimizer, settings
        self.processes, self.dtype = processes, dtype
        self._model = unwrapped(losses).model

    @property
    def with_first_loss(self) -> int:
        """How many steps come before the last ones that train by another loss."""
        return self._model.card.with_first_loss(self.settings.steps)

    def begin(self, step: int) -> None:
        """Prepare the model for step number `step`; also before anything is computed with a loaded model."""
        if isinstance(self.losses, FSDPModule):
            self.losses.reshard()  # after validation, because the shares change
        self._model.begin_step(step, self.settings.steps)

    def step(self, step: int, micros: Sequence[tuple[int, Batch]], stop: bool = False, waited: float = 0.0) -> Pending:
        """Take a step.

        Args:
            step: how many steps were taken before this one.
            micros: (number, batch on the host) of this process.
            stop: whether this process was asked to stop.
            waited: for how many seconds this process waited for the batches.

        Returns:
            The step, whose numbers may still be on their way from the device.

        Raises:
            ConfigError: for a batch that the model cannot take.
        """
        device, world = self.processes.device, self.processes.world
        self.begin(step)
        totals = torch.zeros(WAITED + world, dtype=torch.float64, device=device)
        done = []
        for at, (number, batch) in enumerate(micros):
            try:
                self._model.check(batch)
            except ValueError as error:
                raise ConfigError(f"train.micro_concepts is {self.settings.micro_concepts}: {error}") from error
            moved = batch.to(device)
            torch.manual_seed(seed_of(self.settings.seed, step, number))
            with accumulating(self.losses, last=at == len(micros) - 1):
                with products(self.dtype, device):
                    each: Tensor = self.losses(moved)
                loss = (moved.weights * each).sum()
                loss.backward()
            totals[LOSS] += loss.detach()
            totals[WEIGHT] += moved.weights.sum()
            totals[SENTENCES] += batch.sentences
            totals[FLOPS] += self._model.flops(batch)
            done.append(Micro(number, batch, each.detach()))
        gradients = own_gradients(self.losses)
        if sharded(self.losses) or self.processes.first:  # with DDP all processes have the same
            norms = torch.stack(torch._foreach_norm(gradients)).double()
            totals[SQUARES] = (norms * world).square().sum()
        totals[STOPS] = float(stop)
        totals[WAITED + self.processes.rank] = waited  # one place for each, so that adding up keeps them apart
        self.processes.add_up(totals)
        # DDP and FSDP give means over processes: × world makes sums, / Σ weight the gradients of the loss.
        weighed = totals[WEIGHT].clamp(min=torch.finfo(torch.float32).tiny)
        norm = totals[SQUARES].sqrt() / weighed
        cut = (self.settings.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        scale = torch.where(totals[WEIGHT] > 0, cut * world / weighed, 0.0)  # only prompts: nothing is learned
        torch._foreach_mul_(gradients, scale.float())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Pending(step, done, *_fetched(totals))


def _fetched(totals: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    if not totals.is_cuda:
        return totals, None
    host = torch.empty(totals.shape, dtype=totals.dtype, pin_memory=True).copy_(totals, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return host, arrived


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Return the rate of a step, counted from 0: linearly up to `lr` at the end of the warm-up, then half a cosine
    down.

    The step after the last one would have `last_lr`.
    """
    warmup, last = settings.warmup, settings.last_lr
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    share = (step - warmup) / max(1, settings.steps - warmup)
    return last + (settings.lr - last) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def _decays(name: str, parameter: nn.Parameter, embeddings: frozenset[str]) -> bool:
    """Return whether weights decay: matrices do; norms, biases, other vectors, and tables of embeddings do not."""
    return parameter.ndim >= 2 and name not in embeddings


def adamw(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """Return the optimizer of all parameters of `model`, in two groups: with weight decay and without."""
    tables = frozenset(f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding))
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    groups = [
        {"params": [one for name, one in named if _decays(name, one, tables)], "weight_decay": settings.weight_decay},
        {"params": [one for name, one in named if not _decays(name, one, tables)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate(0, settings),
        betas=settings.betas,
        eps=settings.eps,
        fused=named[0][1].is_cuda,
    )
