"""Reports a loss or a gradient that is not finite: which documents it came from, and the batch itself on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch
from safetensors.torch import save

from pipeline.base.errors import CorpusError
from pipeline.storage.store import Store
from pipeline.training.distributed import Processes
from pipeline.training.status import NOT_FINITE
from pipeline.training.step import Micro, Pending, Result

SHOWN = 5  # documents that are named per process


class NotFiniteError(CorpusError):
    """Training stopped because a loss or a gradient is not finite."""


def stop(
    store: Store,
    run: str,
    pending: Pending,
    result: Result,
    processes: Processes,
    names: Callable[[Sequence[int]], list[str]],
) -> None:
    """Save the faulty batches of this process, and end the training with an error that names the documents.

    If no embedding and no loss of any process is at fault, the gradient of any batch may be: then all are saved. All
    processes must call this.

    Args:
        store: the corpus.
        run: the folder of the training.
        pending: the step with its batches.
        result: its loss and gradient norm.
        processes: the processes of the training.
        names: numbers of sequences → a description of each.

    Raises:
        NotFiniteError: always, with documents of all processes.
    """
    faults = [_at_fault(micro) for micro in pending.micros]
    anybody = any(processes.told("".join(why for _, why in faults)))
    said = []
    for micro, (at_fault, why) in zip(pending.micros, faults, strict=True):
        if why or not anybody:
            path = f"{run}/{NOT_FINITE}/step-{pending.step:08d}-micro-{micro.number:09d}.safetensors"
            sequences = _sequences_of(micro).tolist()
            named = names(sequences)
            store.write(path, _saved(micro, named))
            name = dict(zip(sequences, named, strict=True))
            documents = list(dict.fromkeys(name[piece] for piece in at_fault))
            more = f" and {len(documents) - SHOWN} more" if len(documents) > SHOWN else ""
            said.append(f"{why or 'its gradient'}: {', '.join(documents[:SHOWN])}{more}; the batch is saved as {path}")
    lines = [line for line in processes.told("\n".join(said)) if line]
    raise NotFiniteError(
        f"{store.url}/{run}: in step {pending.step} the loss is {result.loss}, the gradient's norm {result.norm}\n"
        + "\n".join(lines)
        + "\nLeave those documents out (select) or lower train.lr, in a training with another train.name: the settings "
        + "that a training began with do not change. To start it from the newest checkpoint of this one: "
        + f"train.init_from={store.url}/{run}"
    )


def _sequences_of(micro: Micro) -> torch.Tensor:
    """Return (documents,) the numbers of the sequences that they are from."""
    batch = micro.batch
    return batch.sequences if batch.sequences is not None else torch.arange(len(batch.lengths))


def _at_fault(micro: Micro) -> tuple[list[int], str]:
    """Return sequences, and what is not finite in them: embeddings, or losses; all of them and "" if nothing is."""
    batch = micro.batch
    document = torch.repeat_interleave(torch.arange(len(batch.lengths)), batch.lengths)
    sequences = _sequences_of(micro)
    for bad, what in (
        (~batch.embeddings.isfinite().all(dim=1), "embeddings that are not finite"),
        (~micro.losses.isfinite().cpu(), "losses that are not finite"),
    ):
        if bad.any():
            return sequences[torch.unique(document[bad])].tolist(), what
    return sequences.tolist(), ""


def _saved(micro: Micro, documents: list[str]) -> bytes:
    """Return safetensors, whose metadata has `documents`, a JSON list aligned with `sequences` and `lengths`."""
    batch = micro.batch
    tensors = {
        "embeddings": batch.embeddings,
        "lengths": batch.lengths,
        "weights": batch.weights,
        "codes": batch.codes,
        "pieces": batch.sequences,
        "losses": micro.losses.float().cpu(),
    }
    there = {key: one.contiguous() for key, one in tensors.items() if one is not None}
    return bytes(save(there, {"documents": json.dumps(documents, ensure_ascii=False)}))
