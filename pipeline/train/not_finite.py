"""A loss or a gradient that is not finite: which documents it came from, and the batch itself on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from safetensors.torch import save

from pipeline.errors import CorpusError
from pipeline.storage.store import Store
from pipeline.train.distributed import Processes
from pipeline.train.step import Micro, Pending, Result

FOLDER = "not-finite"
SHOWN = 5  # documents of a process


class NotFiniteError(CorpusError):
    """Training stopped: a loss or a gradient is not finite."""


def stop(
    store: Store, run: str, pending: Pending, result: Result, processes: Processes, name: Callable[[int], str]
) -> None:
    """Save this process's batches at fault, and raise `NotFiniteError` that names documents of all processes.

    name: of a piece of the index, in words. To be called by all processes.
    """
    said = []
    for micro in pending.micros:
        at_fault, why = _at_fault(micro)
        if why or _all_good(pending.micros):
            path = f"{run}/{FOLDER}/step-{pending.step:08d}-micro-{micro.number:09d}.safetensors"
            store.write(path, _saved(micro))
            documents = list(dict.fromkeys(map(name, at_fault[:SHOWN])))
            more = f" and {len(at_fault) - SHOWN} more" if len(at_fault) > SHOWN else ""
            said.append(f"{why or 'its gradient'}: {', '.join(documents)}{more}; the batch is saved as {path}")
    lines = [line for line in processes.told("\n".join(said)) if line]
    raise NotFiniteError(
        f"{store.url}/{run}: in step {pending.step} the loss is {result.loss}, the gradient's norm {result.norm}\n"
        + "\n".join(lines)
        + "\nLeave those documents out (select), or lower train.lr, then go on from the newest checkpoint"
    )


def _all_good(micros: Iterable[Micro]) -> bool:
    return not any(_at_fault(micro)[1] for micro in micros)


def _at_fault(micro: Micro) -> tuple[list[int], str]:
    """Pieces, and what is not finite in them: their embeddings, or their losses; all of them and "" if nothing is."""
    batch = micro.batch
    document = torch.repeat_interleave(torch.arange(len(batch.lengths)), batch.lengths)
    pieces = batch.pieces if batch.pieces is not None else torch.arange(len(batch.lengths))
    for bad, what in (
        (~batch.embeddings.isfinite().all(dim=1), "embeddings that are not finite"),
        (~micro.losses.isfinite().cpu(), "losses that are not finite"),
    ):
        if bad.any():
            return pieces[torch.unique(document[bad])].tolist(), what
    return pieces.tolist(), ""


def _saved(micro: Micro) -> bytes:
    batch = micro.batch
    tensors = {
        "embeddings": batch.embeddings,
        "lengths": batch.lengths,
        "weights": batch.weights,
        "codes": batch.codes,
        "pieces": batch.pieces,
        "losses": micro.losses.float().cpu(),
    }
    return bytes(save({key: one.contiguous() for key, one in tensors.items() if one is not None}))
