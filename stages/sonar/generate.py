"""Embeddings → token sequences: batched greedy decoding and beam search, both with a KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.sonar.networks import SonarTextDecoder
from stages.sonar.tokenizer import END, PAD


@torch.inference_mode()
def greedy(
    decoder: SonarTextDecoder, embeddings: Tensor, prefixes: Tensor, max_new_tokens: Tensor
) -> list[list[int]]:
    """The most likely next token, again and again, until `</s>` or a row's own limit.

    embeddings: (rows, dim); prefixes: (rows, 2) int64, `</s> [language]`; max_new_tokens: (rows,) int64, each ≥ 1.
    Returns each row's new ids; the last is `</s>` unless the limit came first. Finished rows leave the batch.
    """
    rows = len(embeddings)
    limits = max_new_tokens.to(embeddings.device)
    if rows == 0:
        return []
    if int(limits.min()) < 1:
        raise ValueError(f"max_new_tokens holds {int(limits.min())}; every row needs a limit of at least 1")
    longest = int(limits.max())
    state = decoder.start(embeddings, capacity=longest + 1)
    decoder.step(prefixes[:, 0], state)
    hidden = decoder.step(prefixes[:, 1], state)
    out = torch.full((rows, longest), PAD, dtype=torch.int64, device=embeddings.device)
    alive = torch.arange(rows, device=embeddings.device)  # which rows the batch still holds
    open_rows = torch.ones(rows, dtype=torch.bool, device=embeddings.device)  # of those, which are not finished
    for position in range(longest):
        logits = decoder.logits(hidden)
        logits[:, PAD] = -torch.inf
        token = logits.argmax(dim=1)
        out[alive[open_rows], position] = token[open_rows]
        open_rows &= (token != END) & (limits[alive] > position + 1)
        left = int(open_rows.sum())
        if left == 0:
            break
        # Moving the cache costs more than a few idle rows do: the batch shrinks when a quarter of it is finished.
        if left <= 0.75 * len(alive):
            kept = open_rows.nonzero()[:, 0]
            state, alive, token, open_rows = state.select(kept), alive[kept], token[kept], open_rows[kept]
        hidden = decoder.step(token, state)
    return [row[: row.index(PAD)] if PAD in row else row for row in out.tolist()]
