"""Processes of a training: how they find each other, and how they share a model.

torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) tell each process who it is; without them
there is only one. Gradients are added up in float32. With `ddp`, micro-batches before the last of a step send nothing;
with `fsdp`, each micro-batch's gradients are reduced at once, so that no process ever holds more than its share of
them.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pipeline.base.errors import ConfigError
from pipeline.config.train import TrainSettings
from stages.device import prepare_cuda
from stages.lcm.batch import Batch
from stages.lcm.model import Lcm

COMPILED_FROM = 100_000_000  # parameters: compiling takes most of a minute, in which small models are half trained
SHARDED_FROM = 2_000_000_000  # parameters: with AdamW in float32 these are 32 GB, and a GPU has 80


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def add_up(self, numbers: Tensor) -> None:
        """Add up a tensor over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(numbers)

    def told(self, said: str) -> list[str]:
        """Return what every process says; all processes must call this."""
        found = [said]
        if self.world > 1:
            found = [""] * self.world
            dist.all_gather_object(found, said)
        return found


@contextlib.contextmanager
def joined(timeout_seconds: int) -> Iterator[Processes]:
    """Join the other processes. A process that waits for a lost one longer than the timeout fails."""
    local, on_gpu = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.is_available()
    device = torch.device("cuda", local % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        prepare_cuda(device)
    ours = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if ours:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout_seconds))
    try:
        together = dist.is_initialized()
        yield Processes(dist.get_rank() if together else 0, dist.get_world_size() if together else 1, device)
    finally:
        if ours:
            dist.destroy_process_group()


class WrappedModel(nn.Module):
    """A model whose `forward` is its `losses`, which DDP and FSDP can wrap."""

    def __init__(self, model: Lcm) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Return the losses: (sentences,) float32."""
        return self.model.losses(batch)


def _is_sharded(model: Lcm, settings: TrainSettings, processes: Processes) -> bool:
    """Return whether each process holds only a share of the model."""
    if settings.parallel == "auto":
        return processes.world > 1 and sum(one.numel() for one in model.parameters()) >= SHARDED_FROM
    return settings.parallel == "fsdp"


def parallel(model: Lcm, settings: TrainSettings, processes: Processes, dtype: torch.dtype) -> nn.Module:
    """Return a model on its device, as all processes train it together: a module from batches to losses.

    Its parameters stay float32. The wrapping order: blocks are compiled, then recomputed in the backward pass, then
    sharded.

    Args:
        model: the model.
        settings: the section `train`.
        processes: the processes, and the device of this one.
        dtype: the type in which FSDP sends parameters.

    Returns:
        The wrapped model.

    Raises:
        ConfigError: for FSDP with a single process.
    """
    model.to(processes.device)
    compiled = is_compiled(model, settings, processes.device)
    for block in model.blocks():
        if compiled:
            block.forward = torch.compile(block.forward)
        if settings.activation_checkpointing:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    losses = WrappedModel(model)
    if _is_sharded(model, settings, processes):
        if not dist.is_initialized():
            raise ConfigError("train.parallel is fsdp, but there is one process; give train.processes, or ddp")
        mesh = init_device_mesh(processes.device.type, (processes.world,))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for block in model.blocks():
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(losses, mesh=mesh, mp_policy=policy)
        return losses
    if processes.world > 1:
        return DistributedDataParallel(losses, forward_sync_buffers=False, gradient_as_bucket_view=True)
    return losses


def is_compiled(model: nn.Module, settings: TrainSettings, device: torch.device) -> bool:
    """Return whether the blocks of a model are compiled, as `train.compile` says.

    Args:
        model: the model.
        settings: the section `train`.
        device: where it is trained.

    Returns:
        True with `always`; with `auto`, for a model of `COMPILED_FROM` parameters or more on a GPU.
    """
    large = sum(one.numel() for one in model.parameters()) >= COMPILED_FROM
    return settings.compile == "always" or (settings.compile == "auto" and device.type == "cuda" and large)


def unwrapped(losses: nn.Module) -> WrappedModel:
    """Return what `parallel` wrapped."""
    inner = losses.module if isinstance(losses, DistributedDataParallel) else losses
    assert isinstance(inner, WrappedModel)
    return inner


@contextlib.contextmanager
def accumulating(losses: nn.Module, last: bool) -> Iterator[None]:
    """Surround the forward and backward pass of a micro-batch; `last`: it is the last of its step."""
    with losses.no_sync() if isinstance(losses, DistributedDataParallel) and not last else contextlib.nullcontext():
        yield


def own_gradients(losses: nn.Module) -> list[Tensor]:
    """Return the gradients that this process holds: all, or its shares."""
    found = []
    for one in losses.parameters():
        if one.grad is not None:
            found.append(one.grad.to_local() if isinstance(one.grad, dist.tensor.DTensor) else one.grad)
    return found


def sharded(losses: nn.Module) -> bool:
    """Return whether `own_gradients` are shares."""
    return isinstance(losses, FSDPModule)
