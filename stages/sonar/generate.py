"""Embeddings → token sequences: batched greedy decoding and beam search, both with a KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.sonar.networks import SonarTextDecoder
from stages.sonar.tokenizer import END, PAD


@torch.inference_mode()
def greedy(decoder: SonarTextDecoder, embeddings: Tensor, prefixes: Tensor, max_new_tokens: Tensor) -> list[list[int]]:
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


@dataclass(frozen=True)
class Hypothesis:
    """New ids, `</s>` included; score: the sum of log-probabilities over (length − 1)^penalty, prefix counted."""

    ids: list[int]
    score: float


@torch.inference_mode()
def beam_search(
    decoder: SonarTextDecoder,
    embeddings: Tensor,
    prefixes: Tensor,
    *,
    beam: int = 5,
    max_seq_len: int = 514,
    length_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """The `beam` best hypotheses of each row, best first, as the official generator finds them.

    embeddings: (rows, dim); prefixes: (rows, 2) int64, `</s> [language]`. A sentence is finished when `beam` hypotheses
    ended; at `max_seq_len`, prefix included, `</s>` is forced. The score holds the language tag's log-probability too.
    """
    rows, prefix_length = prefixes.shape
    vocab = decoder.embedding.weight.shape[0]
    if beam < 1 or 2 * beam > vocab or max_seq_len <= prefix_length:
        raise ValueError(
            f"beam is {beam} and max_seq_len {max_seq_len}; allowed are 1 to {vocab // 2} and more than {prefix_length}"
        )
    found: list[list[Hypothesis]] = [[] for _ in range(rows)]
    if rows == 0:
        return found
    state = decoder.start(embeddings, capacity=max_seq_len - 1)
    first = decoder.logits(decoder.step(prefixes[:, 0], state)).float().log_softmax(dim=1)
    scores = first.gather(1, prefixes[:, 1:])[:, 0]  # one per hypothesis: `width` of them for each open row
    hidden = decoder.step(prefixes[:, 1], state)
    open_rows, width = list(range(rows)), 1
    ids: list[list[int]] = [[] for _ in range(rows)]
    for length in range(prefix_length, max_seq_len):  # tokens so far, prefix included
        likely = decoder.logits(hidden).float().log_softmax(dim=1)
        if length == max_seq_len - 1:
            forced = likely[:, END].clone()
            likely.fill_(-torch.inf)[:, END] = forced
        likely[:, PAD] = -torch.inf
        flat = (likely + scores[:, None]).view(len(open_rows), width * vocab)
        best = flat.topk(2 * beam, dim=1)
        still_open: list[int] = []
        parents: list[int] = []
        tokens: list[int] = []
        kept_scores: list[float] = []
        values, indices = best.values.tolist(), best.indices.tolist()
        for i, row in enumerate(open_rows):
            pairs = zip(values[i], indices[i], strict=True)
            candidates = [(total, i * width + at // vocab, at % vocab) for total, at in pairs]
            for total, parent, token in candidates[:beam]:
                if token == END and total > -torch.inf and len(found[row]) < beam:
                    found[row].append(Hypothesis([*ids[parent], END], total / length**length_penalty))
            if len(found[row]) < beam:
                still_open.append(row)
                for total, parent, token in [c for c in candidates if c[2] != END][:beam]:
                    parents.append(parent)
                    tokens.append(token)
                    kept_scores.append(total)
        if not still_open or length == max_seq_len - 1:
            break
        open_rows, width = still_open, beam
        ids = [[*ids[parent], token] for parent, token in zip(parents, tokens, strict=True)]
        scores = torch.tensor(kept_scores, dtype=torch.float32, device=scores.device)
        state = state.select(torch.tensor(parents, device=scores.device))
        hidden = decoder.step(torch.tensor(tokens, device=scores.device), state)
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in found]
