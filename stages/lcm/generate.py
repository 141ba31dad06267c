"""Continues documents sentence by sentence with any model, LCM 2.3.1, until one of two cosines ends them.

Costs one `next` per sentence, over all unfinished documents and the whole window of each: nothing is cached from one
sentence to the next. A model reads at most `card.context` sentences, including the one to predict; from a longer
document the oldest leave the window, and positions are counted from the oldest that stays. `forgotten` says how many.

Predicted embeddings become context as they are, not decoded and encoded again, as in the paper; with `reencode` its
result becomes context, as in SONAR-LLM, and part of the continuation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from stages.lcm.batch import of_documents
from stages.lcm.model import Lcm, Sampling

Stop = Literal["end of text", "repeats the previous sentence", "limit"]


@dataclass(frozen=True)
class Continuation:
    """A continuation. `embeddings`: (n, dim) float32, not normalised, without the one at which it stopped. n may be 0.

    `forgotten`: how many of the oldest sentences the last prediction no longer saw.
    """

    embeddings: Tensor
    stopped: Stop
    forgotten: int


def continue_documents(
    model: Lcm,
    documents: list[Tensor],
    sampling: Sampling,
    *,
    end: Tensor | None,
    max_sentences: int | Sequence[int],
    end_cosine: float = 0.9,
    previous_cosine: float = 0.9,
    reencode: Callable[[Tensor, list[int]], Tensor] | None = None,
) -> list[Continuation]:
    """Continue documents.

    Numbers come from PyTorch's global generator, shared by the documents: the same seed and the same documents give the
    same continuations.

    Args:
        model: the model.
        documents: (sentences, dim) of at least one sentence, on the model's device.
        sampling: how sentences are drawn.
        end: (dim,), the embedding of "End of text."; None: a model that was trained without it.
        max_sentences: the most to generate for a document, or for each.
        end_cosine: a sentence whose cosine with `end` exceeds this ends its document.
        previous_cosine: a sentence whose cosine with the one generated before it exceeds this ends its document.
        reencode: maps predictions (n, dim) and the numbers of their documents to their replacements, (n, dim).

    Returns:
        What follows each document.

    Raises:
        ValueError: if there is nothing to continue.
    """
    limits = limits_of(max_sentences, len(documents))
    empty = [number for number, one in enumerate(documents) if not len(one)]
    if empty:
        raise ValueError(f"document {empty[0]} has no sentence to continue; give at least one")
    window = model.card.context - 1
    if window < 1:
        raise ValueError(f"{model.card.name} has a context of {model.card.context} sentences, none beside the next one")
    texts = [one.float() for one in documents]
    stopped: dict[int, Stop] = {}
    for generated in range(max(limits, default=0)):
        open_ones = [number for number in range(len(texts)) if number not in stopped and generated < limits[number]]
        if not open_ones:
            break
        found = model.next(of_documents([texts[number][-window:] for number in open_ones]), sampling)
        if not found.isfinite().all():
            raise ValueError(f"{model.card.name} predicted embeddings that are not finite: its weights are broken")
        if reencode is not None:
            found = reencode(found, open_ones).to(found)
        before = torch.stack([texts[number][-1] for number in open_ones])
        repeats = (functional.cosine_similarity(found, before) > previous_cosine).tolist()
        ends = [False] * len(found) if end is None else (_cosines(found, end) > end_cosine).tolist()
        for row, number in enumerate(open_ones):
            if ends[row]:
                stopped[number] = "end of text"
            elif repeats[row] and generated:  # LCM 2.3.1 compares generations: the first has none before it
                stopped[number] = "repeats the previous sentence"
            else:
                texts[number] = torch.cat([texts[number], found[row, None].float()])
    return [
        _continuation(text, len(prompt), stopped.get(number, "limit"), window)
        for number, (text, prompt) in enumerate(zip(texts, documents, strict=True))
    ]


def limits_of(max_sentences: int | Sequence[int], documents: int) -> list[int]:
    """Return the most sentences of each document's continuation. Raises ValueError for one below 1."""
    limits = [max_sentences] * documents if isinstance(max_sentences, int) else list(max_sentences)
    low = [limit for limit in limits if limit < 1]
    if low:
        raise ValueError(f"max_sentences is {low[0]}; give a number ≥ 1")
    return limits


def _cosines(found: Tensor, end: Tensor) -> Tensor:
    return functional.cosine_similarity(found, end.to(found)[None])


def _continuation(text: Tensor, prompt: int, stopped: Stop, window: int) -> Continuation:
    """Return a continuation from text (sentences, dim), of which the first `prompt` were given."""
    seen_by_last = len(text) - (stopped == "limit")  # the last prediction is in the text only if nothing stopped it
    return Continuation(text[prompt:], stopped, max(0, seen_by_last - window))
