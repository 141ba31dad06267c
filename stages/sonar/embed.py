"""Token ids of many sentences → their embeddings, batch after batch on a device.

Batches are of exactly equal token count: they need no padding and no mask, so no computation is wasted, and a
sentence's embedding cannot depend on its neighbours. All ids go to the device at once and all embeddings come back at
once; between the two the host only gives orders and never waits for the device. Cost: 2 · parameters FLOP a token; on
the device 2 · dim bytes a sentence and 4 a token, besides the network and one batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.batching import Tokens
from stages.device import Budget, in_batches, to_host, with_room


@torch.inference_mode()
def embed(
    network: Callable[[Tensor], Tensor], tokens: Tokens, budget: Budget, *, dim: int, device: str
) -> tuple[npt.NDArray[np.float16], int]:
    """(sentences, dim) float16 on the host, and how often a batch ran out of memory.

    network: (rows, length) int32 ids → (rows, dim), on the device. budget: in tokens. Raises `DeviceMemoryError` if one
    sentence, or what all of them need, does not fit.
    """
    order = np.argsort(-tokens.lengths, kind="stable")  # longest first
    lengths = tokens.lengths[order]

    def tensors() -> list[Tensor]:
        given = [torch.from_numpy(one).to(device) for one in (tokens.ids, order, tokens.offsets[order])]
        steps = torch.arange(int(lengths.max(initial=0)), device=device)
        return [*given, steps, torch.empty((len(order), dim), dtype=torch.float16, device=device)]

    what = f"the ids and embeddings of {len(order)} sentences"
    ids, places, starts, steps, result = with_room(tensors, what, "lower part_sentences")

    def compute(start: int, stop: int) -> None:
        rows = ids[starts[start:stop, None] + steps[: lengths[start]]]
        result.index_copy_(0, places[start:stop], network(rows).to(torch.float16))

    failures = in_batches(lengths, budget, compute)
    return to_host(result).numpy(), failures
