"""Mutual information of a sentence and the text before it, by a causal language model. LCM 2.4.1.

Cost: one pass of the model over each context with its sentence (2 · parameters FLOP per token, about 300 tokens for ten
sentences), and one over the sentence. Sentences of like length are computed together, padded at the end, which no token
before it sees; logits are made for the tokens of sentences only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stages.batching import Tokens
from stages.causal_lm import LanguageCard, load_network, load_tokenizer

CONTEXT = 10  # k, sentences
NEWLINE = "\n"


@dataclass(frozen=True)
class Information:
    """The mutual information of sentences with their contexts.

    per_token: (sentences,) float64, nats per token, NaN for a sentence without tokens; tokens: (sentences,) int64. cut:
    the number of contexts, or sentences, of which the model could not see all.
    """

    per_token: Tensor
    tokens: Tensor
    cut: int


class LanguageModel:
    """The model of a card, loaded in float32.

    Args:
        card: the model.
        device: where it computes: `cpu`, `cuda:0`, `mps`.
        batch_tokens: the most tokens of a batch.

    Raises:
        CardError: if its files or packages are missing, or do not load.
    """

    def __init__(self, card: LanguageCard, *, device: str, batch_tokens: int = 8192) -> None:
        self.card, self.device, self.batch_tokens = card, device, batch_tokens
        self._tokenizer, self._network = load_tokenizer(card), load_network(card, device, torch.float32)
        self._newline = self._ids([NEWLINE])[0]

    def mutual_information(self, contexts: Sequence[Sequence[str]], sentences: Sequence[str]) -> Information:
        """Return (log p(s | the last ten sentences of its context) − log p(s)) / |s|: positive where the context helps.

        A newline stands before the sentence, and one between sentences of the context. The paper's formula has the
        opposite sign; its tables do not.
        """
        given = self._ids([NEWLINE.join(context[-CONTEXT:]) for context in contexts])
        targets = self._ids(sentences)
        room = self.card.max_tokens - len(self._newline)
        cut = sum(len(a) + len(b) > room for a, b in zip(given, targets, strict=True))
        targets = [ids[:room] for ids in targets]
        before = [ids[max(0, len(ids) + len(s) - room) :] for ids, s in zip(given, targets, strict=True)]
        with_context = self.log_likelihood([ids + self._newline for ids in before], targets)
        without = self.log_likelihood([self._newline] * len(targets), targets)
        tokens = torch.tensor([len(ids) for ids in targets], dtype=torch.int64)
        return Information((with_context - without) / tokens.where(tokens > 0, torch.nan), tokens, cut)

    @torch.inference_mode()
    def log_likelihood(self, before: Sequence[list[int]], targets: Sequence[list[int]]) -> Tensor:
        """Return (rows,) float64: log p of the ids of each target after those before it, of which there is one
        or more.
        """
        tokens = Tokens.of([a + b for a, b in zip(before, targets, strict=True)])
        result = torch.zeros(len(targets), dtype=torch.float64)
        order = np.argsort(-tokens.lengths, kind="stable")
        start = 0
        while start < len(order):
            rows = order[start : start + max(1, self.batch_tokens // int(tokens.lengths[order[start]]))]
            start += len(rows)
            ids = torch.zeros(len(rows), int(tokens.lengths[rows[0]]), dtype=torch.int64)
            for number, row in enumerate(rows):
                low, high = tokens.offsets[row], tokens.offsets[row + 1]
                ids[number, : high - low] = torch.from_numpy(tokens.ids[low:high])
            sizes = torch.tensor([len(targets[row]) for row in rows])
            first = torch.tensor([len(before[row]) for row in rows])
            owner = torch.arange(len(rows)).repeat_interleave(sizes)
            place = torch.arange(len(owner)) + (first - sizes.cumsum(0) + sizes)[owner]
            hidden = self._network.base_model(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
            logits = self._network.get_output_embeddings()(hidden[owner, place - 1]).float()
            likely = logits.log_softmax(dim=1).gather(1, ids[owner, place, None].to(self.device))[:, 0]
            result[torch.from_numpy(rows)] = torch.zeros(len(rows)).double().index_add_(0, owner, likely.cpu().double())
        return result

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]
