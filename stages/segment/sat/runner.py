"""Documents → the log odds that a sentence ends with each token, by a SaT network.

Every document is read in windows that overlap, of as many tokens as the network has positions for (510 in the published
ones); the logits of a token are averaged over the windows that hold it. The windows are those of wtpsplit, so with the
same stride the boundaries are too; but windows of all documents are computed together, the longest first, as many
tokens at once as a batch may have, whatever their lengths, without padding.

Cost: 2 · parameters FLOP per token and window. Windows that begin three quarters of a window after each other hold a
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

from stages.device import Budget, batch_limit, in_batches, to_host, with_room
from stages.packed import in_order, runs_of
from stages.segment.sat.networks import BEGIN, END, SatNetwork

Indices = NDArray[np.int64]


def windows(lengths: Indices, block: int, stride: int) -> tuple[Indices, Indices]:
    """Cut documents into windows.

    A document's last window ends with it and is as long as the others.

    Args:
        lengths: (documents,) int64, in tokens.
        block: the tokens of a window.
        stride: how many tokens later the next window begins.

    Returns:
        Start of each window in the tokens of all documents, end to end, and its length.
    """
    further = -(-np.maximum(lengths - block, 0) // stride)
    count = np.where(lengths > 0, further + 1, 0)
    document = np.repeat(np.arange(len(lengths)), count)
    turn = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
    length = np.minimum(lengths[document], block)
    begin = np.cumsum(lengths) - lengths
    return begin[document] + np.minimum(turn * stride, lengths[document] - length), length


def mean_of_windows(
    logits: NDArray[np.float32], place: Indices, start: Indices, length: Indices, tokens: int
) -> NDArray[np.float32]:
    """Return the mean logit of each token over the windows that contain it.

    They are added in the order of the windows: a sum's last bit depends on its order, which a GPU's own scattered sums
    do not fix.

    Args:
        logits: float32, the logits of all windows.
        place: (windows,) where the logits of each window begin.
        start: (windows,) its first token, in the order of `windows`.
        length: (windows,) how many tokens it has.
        tokens: how many tokens there are.

    Returns:
        (tokens,) float32.
    """
    token = np.arange(tokens)
    first = np.searchsorted(start + length, token, side="right")
    count = np.searchsorted(start, token, side="right") - first
    total = np.zeros(tokens, np.float32)
    for turn in range(int(count.max(initial=0))):
        held = token[count > turn]
        window = first[held] + turn
        total[held] += logits[place[window] + held - start[window]]
    mean: NDArray[np.float32] = np.divide(total, count, dtype=np.float32)
    return mean


class SatRunner:
    """Runs a SaT network on windows of documents.

    Args:
        network: the network.
        tokenizer: its tokenizer.
        stride: how many tokens later the next window begins; None for three quarters of a window.
        batch_tokens: the most tokens of a batch; on CPUs there are fewer (`batch_limit`).
        device: where it computes: `cpu`, `cuda:0`, `mps`.
    """

    def __init__(
        self, network: SatNetwork, tokenizer: Tokenizer, *, stride: int | None, batch_tokens: int, device: str
    ) -> None:
        self.network, self.tokenizer, self.device = network, tokenizer, device
        self.stride = min(stride or network.block * 3 // 4, network.block)
        limit = batch_limit(batch_tokens, device, network.width)
        self.budget = Budget(limit, "batch_tokens", "tokens", "use a smaller SaT model")

    @torch.inference_mode()
    def logits(self, texts: Sequence[str], begins: Indices) -> tuple[Indices, NDArray[np.float32]]:
        """Return the place of each token's last character, and the token's logit, over all texts in order.

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
        """Return the mean logit of each token.

        ids: (tokens,) int64, documents end to end; lengths: tokens of each document.
        """
        start, length = windows(lengths, self.network.block, self.stride)
        order = np.argsort(-length, kind="stable")  # longest first
        sizes = length[order] + 2  # with <s> and </s>
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

        def tensors() -> list[Tensor]:
            """Return the ids of all windows, end to end, and room for their logits."""
            starts, counts, ends = (
                torch.from_numpy(one).to(self.device) for one in (start[order] - 1, sizes, edges[1:] - 1)
            )
            held = ids.to(self.device)
            place = in_order(held, starts, counts, int(edges[-1])).clamp_(0, max(0, len(ids) - 1))
            rows = held.index_select(0, place).index_fill_(0, ends - counts + 1, BEGIN).index_fill_(0, ends, END)
            return [rows, torch.empty(len(rows), device=self.device)]

        rows, logits = with_room(tensors, f"the {len(ids)} tokens of a call", "lower segment.batch_tokens")

        def compute(first: int, stop: int) -> None:
            batch = slice(edges[first], edges[stop])
            logits[batch] = self.network.packed(rows[batch], runs_of(sizes[first:stop]))

        if in_batches(sizes, self.budget, compute, mixed=True):
            warnings.warn(
                f"{self.device} ran out of memory: SaT goes on with {self.budget.limit} tokens at once; lower "
                "segment.batch_tokens to start with that",
                stacklevel=2,
            )
        placed = np.empty(len(order), np.int64)
        placed[order] = edges[:-1] + 1
        return mean_of_windows(to_host(logits).numpy(), placed, start, length, len(ids))
