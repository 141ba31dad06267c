"""Token ids of many sentences → their embeddings, batch after batch on a device.

Sentences lie end to end, the longest first, and a batch is a piece of that: no padding and no mask, so no computation
is wasted, and a sentence's embedding cannot depend on its neighbours. Our own encoder takes sentences of several
lengths at once (`stages/packed.py`), so that all batches but the last are full; others take those of exactly equal
token count. All ids go to the device at once and all embeddings come back at once; between the two the host only gives
orders and never waits for the device. Cost: 2 · parameters FLOP per token; on the device 2 · dim bytes per sentence and
4 per token, besides the network and one batch, and for a moment 20 more per token.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.batching import Tokens
from stages.device import Budget, in_batches, to_host, with_room
from stages.packed import in_order, runs_of
from stages.sonar.networks import SonarTextEncoder


@torch.inference_mode()
def embed(
    network: Callable[[Tensor], Tensor], tokens: Tokens, budget: Budget, *, dim: int, device: str
) -> tuple[npt.NDArray[np.float16], int]:
    """Return the embeddings of sentences, computed in batches, the longest first.

    Args:
        network: (rows, length) int32 ids → (rows, dim), on the device.
        tokens: the tokens of the sentences.
        budget: the size of batches in tokens; `DeviceMemoryError` is raised if one sentence, or what all of them need,
            does not fit.
        dim: the width of embeddings.
        device: where it computes: `cpu`, `cuda:0`, `mps`.

    Returns:
        (sentences, dim) float16 on the host, and how often a batch ran out of memory.
    """
    order = np.argsort(-tokens.lengths, kind="stable")  # longest first
    lengths = tokens.lengths[order]
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    def tensors() -> list[Tensor]:
        host = tokens.ids, order, tokens.offsets[order], lengths
        ids, places, starts, sizes = (torch.from_numpy(one).to(device) for one in host)
        sorted_ids = ids.index_select(0, in_order(ids, starts, sizes, int(edges[-1])))
        return [sorted_ids, places, torch.empty((len(order), dim), dtype=torch.float16, device=device)]

    what = f"the ids and embeddings of {len(order)} sentences"
    ids, places, result = with_room(tensors, what, "lower part_sentences")

    def compute(start: int, stop: int) -> None:
        batch = ids[edges[start] : edges[stop]]
        if isinstance(network, SonarTextEncoder):
            found = network.packed(batch, runs_of(lengths[start:stop]))
        else:
            found = network(batch.view(stop - start, -1))
        result.index_copy_(0, places[start:stop], found.to(torch.float16))

    failures = in_batches(lengths, budget, compute, mixed=isinstance(network, SonarTextEncoder))
    return to_host(result).numpy(), failures
