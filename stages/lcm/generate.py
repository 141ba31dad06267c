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
from stages.lcm.plans import are_breaks

Stop = Literal["end of text", "repeats the previous sentence", "limit", "limit of paragraphs"]


@dataclass(frozen=True)
class Continuation:
    """A continuation. `embeddings`: (n, dim) float32, not normalised, without the one at which it stopped. n may be 0.

    `forgotten`: how many of the oldest positions (sentences, plans and breaks) the last prediction no longer saw.
    `paragraphs`: of a model with plans, at which of its sentences paragraphs begin; `plans`: (paragraphs, dim), what it
    planned for each. The `embeddings` have neither plans nor breaks. `encoded`: the place of each of them among all
    that `reencode` gave for the document.
    """

    embeddings: Tensor
    stopped: Stop
    forgotten: int
    paragraphs: tuple[int, ...] = ()
    plans: Tensor | None = None
    encoded: tuple[int, ...] = ()


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
    end_of_paragraph: Tensor | None = None,
) -> list[Continuation]:
    """Continue documents.

    A model with plans (LCM 4.3) continues documents that hold plans and breaks. A prediction close to
    `end_of_paragraph` is a break, and what follows it is a plan, which is not encoded again. Neither is a sentence.

    Numbers come from PyTorch's global generator, shared by the documents: the same seed and the same documents give the
    same continuations.

    Args:
        model: the model.
        documents: (sentences, dim) of at least one sentence, on the model's device.
        sampling: how sentences are drawn.
        end: (dim,), the embedding of "End of text."; None: a model that was trained without it.
        max_sentences: the most to generate for a document, or for each. A paragraph may be empty, so as many breaks
            are followed by a plan at most; the next break ends the document.
        end_cosine: a sentence whose cosine with `end` exceeds this ends its document.
        previous_cosine: a sentence whose cosine with the one generated before it exceeds this ends its document.
        reencode: maps predictions (n, dim) and the numbers of their documents to their replacements, (n, dim).
        end_of_paragraph: (dim,), the embedding of "End of paragraph."; None: a model without plans.

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
    texts = [_Growing(one, limit) for one, limit in zip(documents, limits, strict=True)]
    while open_ones := [number for number, one in enumerate(texts) if one.stopped is None]:
        found = model.next(of_documents([texts[number].seen(window) for number in open_ones]), sampling)
        if not found.isfinite().all():
            raise ValueError(f"{model.card.name} predicted embeddings that are not finite: its weights are broken")
        others = []
        for row, number in enumerate(open_ones):
            if texts[number].plan_follows:
                texts[number].plan(found[row])
            else:
                others.append(row)
        found, numbers = found[others], [open_ones[row] for row in others]
        if not numbers:
            continue
        if reencode is not None:
            found = reencode(found, numbers).to(found)
        before = torch.stack([texts[number].last for number in numbers])
        breaks = [False] * len(found) if end_of_paragraph is None else are_breaks(found, end_of_paragraph, end).tolist()
        repeats = (functional.cosine_similarity(found, before) > previous_cosine).tolist()
        ends = [False] * len(found)
        if end is not None:
            ends = (functional.cosine_similarity(found, end.to(found)[None]) > end_cosine).tolist()
        for row, number in enumerate(numbers):
            text = texts[number]
            text.written += 1
            if breaks[row] and end_of_paragraph is not None:
                text.end_paragraph(end_of_paragraph)
            elif ends[row]:
                text.stopped = "end of text"
            elif repeats[row] and text.sentences:  # LCM 2.3.1 compares generations: the first has none before it
                text.stopped = "repeats the previous sentence"
            else:
                text.add(found[row])
    return [text.continuation(window) for text in texts]


class _Growing:
    """A document (positions, dim) that is continued by at most `limit` sentences.

    `last`: (dim,) the newest sentence. `sentences`: the positions of those that were generated.
    """

    def __init__(self, document: Tensor, limit: int) -> None:
        self.text, self.limit = document.float(), limit
        self.last = self.text[-1]
        self.sentences: list[int] = []
        self.written = 0  # predictions so far, plans not counted
        self._kept: list[int] = []  # the number of each sentence among them
        self.stopped: Stop | None = None
        self.plan_follows = False
        self._plans: list[tuple[int, int]] = []  # sentences before it, position
        self._paragraphs_left = limit  # a model that only ends paragraphs comes to an end

    def seen(self, window: int) -> Tensor:
        """Return the newest positions."""
        return self.text[-window:]

    def add(self, sentence: Tensor) -> None:
        """Add a sentence."""
        self.sentences.append(len(self.text))
        self._kept.append(self.written - 1)
        self.last = sentence.float()
        self._append(sentence)
        if len(self.sentences) == self.limit:
            self.stopped = "limit"

    def plan(self, plan: Tensor) -> None:
        """Add the plan of a paragraph."""
        self._plans.append((len(self.sentences), len(self.text)))
        self._append(plan)
        self.plan_follows = False

    def end_paragraph(self, end_of_paragraph: Tensor) -> None:
        """Add a break."""
        self._append(end_of_paragraph)
        self.plan_follows = True
        self._paragraphs_left -= 1
        if self._paragraphs_left < 0:
            self.stopped = "limit of paragraphs"

    def _append(self, embedding: Tensor) -> None:
        self.text = torch.cat([self.text, embedding[None].to(self.text)])

    def continuation(self, window: int) -> Continuation:
        """Return the continuation. window: how many positions a prediction sees."""
        assert self.stopped is not None
        seen_by_last = len(self.text) - self.stopped.startswith("limit")  # that prediction itself is in the text
        starts, places = zip(*self._plans, strict=True) if self._plans else ((), ())
        return Continuation(
            self.text[self.sentences],
            self.stopped,
            max(0, seen_by_last - window),
            starts,
            self.text[list(places)] if places else None,
            tuple(self._kept),
        )


def limits_of(max_sentences: int | Sequence[int], documents: int) -> list[int]:
    """Return the most sentences of each document's continuation. Raises ValueError for one below 1."""
    limits = [max_sentences] * documents if isinstance(max_sentences, int) else list(max_sentences)
    low = [limit for limit in limits if limit < 1]
    if low:
        raise ValueError(f"max_sentences is {low[0]}; give a number ≥ 1")
    return limits
