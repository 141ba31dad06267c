"""Checkpoints of a training: each process writes its shares, and a small file that is created last makes them count.

    checkpoints/step-00000100.json              the marker: which folder, how many steps, of what
    checkpoints/step-00000100.3fa9c1/…distcp    model and optimizer, by torch.distributed.checkpoint

A folder that no marker names was interrupted: it is never read, and removed when processes start again. Shares are
written straight to their place: on local disks and NFS by the file system, on object stores by fsspec (no copy on a
local disk is needed, which a checkpoint of 7 billion parameters, 84 GB, might not fit on). A checkpoint is read by any
number of processes, DDP or FSDP; random numbers are seeded by the step, so it needs none. Cost: 12 bytes a parameter;
training waits for it.
"""

from __future__ import annotations

import contextlib
import secrets
import warnings
from collections.abc import Iterator
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shares
from torch.distributed.checkpoint.state_dict_saver import save as save_shares

from pipeline.errors import CorpusError
from pipeline.storage.remote import in_words
from pipeline.storage.store import Store
from pipeline.train.distributed import Processes

FOLDER = "checkpoints"


class Marker(BaseModel):
    """What makes a checkpoint count. pinned: digest of what the run of training is pinned to."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    step: int  # optimizer steps that were done
    folder: str  # of the shares, in the corpus
    pinned: str
    processes: int
    torch: str


def name_of(step: int) -> str:
    """`step-00000100`: names sort as steps do."""
    return f"step-{step:08d}"


def markers(store: Store, run: str) -> list[Marker]:
    """Whole checkpoints of a run of training, the oldest first. Raises `CorpusError` for a damaged marker."""
    found = []
    for path in store.find(f"{run}/{FOLDER}", "step-"):
        if path.endswith(".json"):
            try:
                found.append(Marker.model_validate_json(store.read(path)))
            except ValidationError as error:
                raise CorpusError(f"{store.url}/{path} is damaged ({error}); delete it to go on before it") from error
    return sorted(found, key=lambda marker: marker.step)


def interrupted(store: Store, run: str) -> list[str]:
    """Folders of checkpoints that were not finished."""
    there = [f"{run}/{FOLDER}/{name}" for name in store.folders(f"{run}/{FOLDER}")]
    whole = {marker.folder for marker in markers(store, run)}  # looked at last: its marker is younger than a folder
    return [folder for folder in there if folder not in whole]


def forget(store: Store, run: str) -> None:
    """Delete all checkpoints of a run of training, markers first."""
    for marker in markers(store, run):
        store.delete(f"{run}/{FOLDER}/{name_of(marker.step)}.json")
    delete_folders(store, interrupted(store, run))


def delete_folders(store: Store, folders: list[str]) -> None:
    """Every file in them, and on disks the folders."""
    for folder in folders:
        for path in store.find(folder):
            store.delete(path)
        if is_local(store.url):
            fsspec.filesystem("file").rm(_place(store, folder), recursive=True)


def save(
    store: Store, run: str, step: int, pinned: str, losses: nn.Module, optimizer: torch.optim.Optimizer,
    processes: Processes, keep: int,
) -> None:  # fmt: skip
    """Write a checkpoint, all processes together, and delete those older than the newest `keep`."""
    folder = processes.told(f"{run}/{FOLDER}/{name_of(step)}.{secrets.token_hex(3)}")[0]
    place = _place(store, folder)
    with in_words(store.url):
        writer = FileSystemWriter(place) if is_local(store.url) else FsspecWriter(place)
        with _alone(processes.world == 1) as alone:
            save_shares(_state(losses, optimizer), storage_writer=writer, no_dist=alone)
    if processes.first:
        marker = Marker(step=step, folder=folder, pinned=pinned, processes=processes.world, torch=torch.__version__)
        path = f"{run}/{FOLDER}/{name_of(step)}.json"
        if not store.create(path, marker.model_dump_json(indent=1).encode()):
            delete_folders(store, [folder])
            raise CorpusError(f"{store.url}/{path} is there already: another training goes on with {run}; end one")
        for old in markers(store, run)[:-keep]:
            store.delete(f"{run}/{FOLDER}/{name_of(old.step)}.json")
            delete_folders(store, [old.folder])
    if processes.world > 1:
        dist.barrier()


def load(store: Store, marker: Marker, losses: nn.Module, optimizer: torch.optim.Optimizer, one: bool) -> None:
    """Put a checkpoint into a model and its optimizer, which are those that it was made of. one: process."""
    state = _state(losses, optimizer)
    _read(store, marker, state, one)
    set_state_dict(losses, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def load_weights(store: Store, marker: Marker, losses: nn.Module) -> None:
    """The model alone, in one process that trains nothing."""
    state = {"model": losses.state_dict()}
    _read(store, marker, state, True)
    losses.load_state_dict(state["model"])


def is_local(url: str) -> bool:
    """Whether a corpus lies on a file system of this machine."""
    return isinstance(fsspec.core.url_to_fs(url)[0], LocalFileSystem)


def _place(store: Store, folder: str) -> str:
    """For the writers and readers of PyTorch: a path, or a URL."""
    if is_local(store.url):
        return f"{str(fsspec.core.url_to_fs(store.url)[1]).rstrip('/')}/{folder}"
    return f"{store.url.rstrip('/')}/{folder}"


@contextlib.contextmanager
def _alone(one: bool) -> Iterator[bool]:
    """Without PyTorch's warning that there is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
        yield one


def _state(losses: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model, state_of_optimizer = get_state_dict(losses, optimizer)
    return {"model": model, "optimizer": state_of_optimizer}


def _read(store: Store, marker: Marker, state: dict[str, Any], one: bool) -> None:
    place = _place(store, marker.folder)
    remedy = f"delete {name_of(marker.step)}.json beside it to go on with an older one, or train anew with --fresh"
    try:
        with in_words(store.url):
            reader = FileSystemReader(place) if is_local(store.url) else FsspecReader(place)
            with _alone(one) as alone:
                load_shares(state, storage_reader=reader, no_dist=alone)
    except (CheckpointException, RuntimeError, ValueError, OSError, KeyError) as error:
        why = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        raise CorpusError(f"the checkpoint {place} cannot be read ({why}); {remedy}") from error
