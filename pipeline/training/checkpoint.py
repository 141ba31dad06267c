"""Checkpoints of a training: each process writes its shares, and a small marker file, created last, makes them valid.

    checkpoints/step-00000100.json              the marker: which folder, how many steps, of what, digests of its files
    checkpoints/step-00000100.3fa9c1/…          model and optimizer, in safetensors files with a plan (`shares.py`)

A folder that no marker names is from an interrupted checkpoint: it is never read, and removed when processes start
again. Shares are written straight to their place, also on object stores: no copy on a local disk is needed, which a
checkpoint of 7 billion parameters, 84 GB, might not fit on. A checkpoint can be read by any number of processes, DDP or
FSDP; random numbers are seeded by the step, so it contains none. Nothing in it is trusted unchecked: a marker names a
folder beside it, and the digest of every file that is read. Cost: 12 bytes per parameter; training waits for it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import warnings
from collections.abc import Iterator
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shares
from torch.distributed.checkpoint.state_dict_saver import save as save_shares

from pipeline.base.errors import CorpusError
from pipeline.storage.store import Store, is_unfinished
from pipeline.training.checkpoint_markers import Marker, cut_short, marker_paths, markers, name_of
from pipeline.training.distributed import Processes
from pipeline.training.shares import ShareReader, ShareWriter
from pipeline.training.status import CHECKPOINTS, FILES, FOLDERS

_OURS = re.compile(r"step-[0-9]{8,}\.[0-9a-f]{6}")


def interrupted(store: Store, run: str) -> list[str]:
    """Return folders of checkpoints that were not finished; folders with other names are not ours."""
    there = [f"{run}/{CHECKPOINTS}/{name}" for name in store.folders(f"{run}/{CHECKPOINTS}") if _OURS.fullmatch(name)]
    whole = {marker.folder for marker in markers(store, run)}  # listed last: a marker is younger than its folder
    return [folder for folder in there if folder not in whole]


def forget(store: Store, run: str) -> None:
    """Delete what a training wrote, its checkpoints first, markers before folders, also damaged ones.

    Other files in its folder, which may be a link, are not ours.
    """
    for path in marker_paths(store, run):
        store.delete(path)
    delete_folders(store, interrupted(store, run))
    for name in FILES:
        store.delete(f"{run}/{name}")
    delete_folders(store, [f"{run}/{name}" for name in store.folders(run) if FOLDERS.fullmatch(name)])
    for path in filter(is_unfinished, store.find_any(run, ["."])):
        store.delete(path)


def delete_folders(store: Store, folders: list[str]) -> None:
    """Delete every file in the folders, and on disks the folders themselves."""
    for folder in folders:
        store.delete_folder(folder)


def save(
    store: Store, run: str, step: int, pinned: str, losses: nn.Module, optimizer: torch.optim.Optimizer,
    processes: Processes, keep: int,
) -> None:  # fmt: skip
    """Write a checkpoint, all processes together, and delete those older than the newest `keep`.

    Args:
        store: the corpus.
        run: the folder of the training.
        step: the number of steps done.
        pinned: the digest of what the training is pinned to.
        losses: the wrapped model.
        optimizer: its optimizer.
        processes: the processes of the training.
        keep: how many checkpoints to keep.

    Raises:
        CorpusError: if another training wrote the same checkpoint.
    """
    folder = processes.told(f"{run}/{CHECKPOINTS}/{name_of(step)}.{secrets.token_hex(3)}")[0]
    writer = ShareWriter(store, folder)
    try:
        with _alone(processes.world == 1) as alone:
            save_shares(_tensors(_state(losses, optimizer)), storage_writer=writer, no_dist=alone)
    except CheckpointException as error:
        raise _first_of(error) from error
    if processes.first:
        marker = Marker(
            step=step, folder=folder, pinned=pinned, processes=processes.world, torch=torch.__version__,
            files=writer.digests,
        )  # fmt: skip
        path = f"{run}/{CHECKPOINTS}/{name_of(step)}.json"
        if not store.create(path, marker.model_dump_json(indent=1).encode()):
            delete_folders(store, [folder])
            raise CorpusError(f"{store.url}/{path} exists already: another training continues {run}; end one of them")
        keep_newest(store, run, keep)
    if processes.world > 1:
        dist.barrier()


def keep_newest(store: Store, run: str, keep: int) -> None:
    """Delete older checkpoints, their markers first.

    Args:
        store: the corpus.
        run: the folder of the training.
        keep: how many of the newest checkpoints stay, at least 1.
    """
    for old in markers(store, run)[:-keep]:
        store.delete(f"{run}/{CHECKPOINTS}/{name_of(old.step)}.json")
        delete_folders(store, [old.folder])


def load(store: Store, marker: Marker, losses: nn.Module, optimizer: torch.optim.Optimizer, one: bool) -> None:
    """Load a checkpoint into a model and its optimizer, which must be like those that were saved.

    Args:
        store: the corpus.
        marker: the checkpoint.
        losses: the wrapped model.
        optimizer: its optimizer.
        one: whether a single process reads; otherwise all do.
    """
    state = _state(losses, optimizer)
    _read(store, marker, _tensors(state), one)
    set_state_dict(losses, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def load_weights(store: Store, marker: Marker, losses: nn.Module) -> None:
    """Load the model alone, in one process that trains nothing.

    Args:
        store: the corpus.
        marker: the checkpoint.
        losses: the wrapped model.
    """
    state = {"model": losses.state_dict()}
    _read(store, marker, state, True)
    losses.load_state_dict(state["model"])


def is_local(url: str) -> bool:
    """Return whether a corpus is on a file system of this machine."""
    return isinstance(fsspec.core.url_to_fs(url)[0], LocalFileSystem)


def check_whole(store: Store, marker: Marker) -> None:
    """Raise `CorpusError`, as loading would, for files that are missing or cut short. Reads no tensors."""
    for path, what in cut_short(store, marker):
        raise _unreadable(store, marker, f"{store.url}/{path} {what}")


@contextlib.contextmanager
def _alone(one: bool) -> Iterator[bool]:
    """Suppress PyTorch's warning that there is only one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
        yield one


def _state(losses: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model, state_of_optimizer = get_state_dict(losses, optimizer)
    return {"model": model, "optimizer": state_of_optimizer}


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    """Return what of a state is saved: the groups of the optimizer follow from the settings of the training."""
    return {"model": state["model"], "optimizer": state["optimizer"]["state"]}


def _read(store: Store, marker: Marker, state: dict[str, Any], one: bool) -> None:
    reader = ShareReader(store, marker.folder, marker.files)
    try:
        reader.read_metadata()  # a shorter message follows
        with _alone(one) as alone:
            load_shares(state, storage_reader=reader, no_dist=alone)
    except (CheckpointException, RuntimeError, ValueError, OSError, KeyError, CorpusError) as error:
        why = _first_of(error) if isinstance(error, CheckpointException) else error
        raise _unreadable(store, marker, why) from error


def _unreadable(store: Store, marker: Marker, why: object) -> CorpusError:
    remedy = f"delete {name_of(marker.step)}.json beside it to go on with an older one, or start over with --fresh"
    return CorpusError(f"the checkpoint {store.url}/{marker.folder} cannot be read ({why}); {remedy}")


def _first_of(error: CheckpointException) -> BaseException:
    """Return the error of one of the processes."""
    return next(iter(error.failures.values()))[0]
