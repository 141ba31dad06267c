"""Documents → the log odds that a sentence ends with each token, by a SaT network.

Every document is read in windows that overlap, of as many tokens as the network has positions for (510 in the published
ones); the logits of a token are averaged over the windows that hold it. The windows are those of wtpsplit, so with the
same stride the boundaries are too; but windows of all documents are computed together, in batches of equal length
without padding.

Cost: 2 · parameters FLOP a token and window. Windows that begin three quarters of a window after each other hold a
token 1.3 times; at wtpsplit's own stride of 64 it is eight times (510 tokens).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from stages.device import Budget, in_batches, to_host
from stages.segment.sat.networks import BEGIN, END, SatNetwork

Indices = NDArray[np.int64]


def windows(lengths: Indices, block: int, stride: int) -> tuple[Indices, Indices]:
    """Start and length of each window in the tokens of all documents end to end.

    A document's last window ends with it and is as long as the others.
    """
    further = -(-np.maximum(lengths - block, 0) // stride)
    count = np.where(lengths > 0, further + 1, 0)
    document = np.repeat(np.arange(len(lengths)), count)
    turn = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
    length = np.minimum(lengths[document], block)
    begin = np.cumsum(lengths) - lengths
    return begin[document] + np.minimum(turn * stride, lengths[document] - length), length


class SatRunner:
    """Batches have up to `batch_tokens` tokens. stride: tokens from one window's beginning to the next; None: three
    quarters of a window.
    """

    def __init__(
        self, network: SatNetwork, tokenizer: Tokenizer, *, stride: int | None, batch_tokens: int, device: str
    ) -> None:
        self.network, self.tokenizer, self.device = network, tokenizer, device
        self.stride = min(stride or network.block * 3 // 4, network.block)
        self.budget = Budget(batch_tokens, "batch_tokens", "tokens", "use a smaller SaT model")

    @torch.inference_mode()
    def logits(self, texts: Sequence[str], begins: Indices) -> tuple[Indices, NDArray[np.float32]]:
        """For each token of all texts, in order: the place of its last character and its logit.

        begins: (texts,) the place of each text's first character.
        """
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        total = int(lengths.sum())
        ids = np.fromiter((i for one in encoded for i in one.ids), np.int64, total)
        ends = np.fromiter((end for one in encoded for _, end in one.offsets), np.int64, total)
        return ends + np.repeat(begins, lengths) - 1, self.averaged(torch.from_numpy(ids), lengths)

    @torch.inference_mode()
    def averaged(self, ids: Tensor, lengths: Indices) -> NDArray[np.float32]:
        """The logit of each token. ids: (tokens,) int64, documents end to end; lengths: tokens of each document."""
        start, length = windows(lengths, self.network.block, self.stride)
        order = np.argsort(-length, kind="stable")
        length = length[order]
        ids, starts = ids.to(self.device), torch.from_numpy(start[order]).to(self.device)
        steps = torch.arange(self.network.block, device=self.device)
        total, count = torch.zeros((2, len(ids)), device=self.device)

        def compute(first: int, stop: int) -> None:
            places = starts[first:stop, None] + steps[: length[first]]
            rows = torch.nn.functional.pad(ids[places], (1, 1), value=END)
            rows[:, 0] = BEGIN
            found = self.network(rows)[:, 1:-1]
            total.index_add_(0, places.flatten(), found.flatten())
            count.index_add_(0, places.flatten(), torch.ones_like(found).flatten())

        if in_batches(length + 2, self.budget, compute):
            warnings.warn(
                f"{self.device} ran out of memory: SaT goes on with {self.budget.limit} tokens at once; lower "
                "segment.batch_tokens to start with that",
                stacklevel=2,
            )
        return to_host(total / count).numpy()
