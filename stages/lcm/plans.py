"""Paragraphs, plans and breaks of Large Planning Concept Models, LCM 4.3, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stages.arrow import changes
from stages.lcm.baselines import SentencePredictor
from stages.lcm.batch import Batch
from stages.lcm.headlines import headlines
from stages.lcm.model import Sampling

BREAK_COSINE = 0.9  # a prediction whose cosine with "End of paragraph." exceeds this is a break


def are_breaks(predicted: Tensor, end_of_paragraph: Tensor, end: Tensor | None) -> Tensor:
    """Return which predictions are breaks: close to one, and not closer to the end of the text.

    Args:
        predicted: (n, dim).
        end_of_paragraph: (dim,), the embedding of "End of paragraph.".
        end: (dim,), that of "End of text."; None if there is none.

    Returns:
        (n,) bool.
    """
    cosines = functional.cosine_similarity(predicted, end_of_paragraph.to(predicted)[None])
    close: Tensor = cosines > BREAK_COSINE
    if end is not None:
        close &= cosines >= functional.cosine_similarity(predicted, end.to(predicted)[None])
    return close


@dataclass(frozen=True)
class Planned:
    """Documents with plans and breaks between their sentences.

    `embeddings`: (positions, dim). `lengths`: (documents,) int64. `sentences`: (sentences,) int64, the position of each
    sentence. `plans`, `breaks`: positions of plans and of breaks, ascending.
    """

    embeddings: Tensor
    lengths: Tensor
    sentences: Tensor
    plans: Tensor
    breaks: Tensor


def planned(embeddings: Tensor, lengths: Tensor, paragraphs: Tensor, break_embedding: Tensor) -> Planned:
    """Put plans and breaks between sentences; no break follows the last paragraph of a document, which may go on.

    Args:
        embeddings: (sentences, dim) of documents one after the other.
        lengths: (documents,) int64.
        paragraphs: (sentences,) the number of each sentence's paragraph in its document.
        break_embedding: (dim,) of "End of paragraph.".

    Returns:
        The documents; the plan of a paragraph is its headline.
    """
    document = np.repeat(np.arange(len(lengths)), lengths.numpy())
    opens = changes(document)
    begins = opens | changes(paragraphs.numpy())
    starts = np.flatnonzero(begins)
    nearest = headlines(embeddings.cpu().numpy(), starts)
    added = begins.astype(np.int64) + (begins & ~opens)  # positions before each sentence: a plan, and a break
    sentences = np.cumsum(added + 1) - 1
    size = int(sentences[-1]) + 1
    plans, breaks = sentences[begins] - 1, sentences[begins & ~opens] - 2
    source = np.zeros(size, np.int64)
    source[sentences], source[plans] = np.arange(len(sentences)), nearest
    found = embeddings[torch.from_numpy(source).to(embeddings.device)]
    places = [torch.from_numpy(one) for one in (sentences, plans, breaks)]
    found[places[2].to(found.device)] = break_embedding.to(found)
    return Planned(found, planned_lengths(lengths, paragraphs), *places)


def planned_lengths(lengths: Tensor, paragraphs: Tensor) -> Tensor:
    """Return (documents,) how many positions the documents have with plans and breaks; arguments as of `planned`."""
    document = np.repeat(np.arange(len(lengths)), lengths.numpy())
    begins = changes(document) | changes(paragraphs.numpy())
    count = np.bincount(document[begins], minlength=len(lengths))
    return lengths + torch.from_numpy(2 * count - 1)


@dataclass
class BreakCounts:
    """Ends of paragraphs that another paragraph follows, and how they were predicted.

    `ends`: how many there are. `exact`, `near`: of how many a break was predicted, in its place and at most one
    sentence away. `false`: breaks that were predicted farther from any end.
    """

    ends: int = 0
    exact: int = 0
    near: int = 0
    false: int = 0

    def said(self) -> str:
        """Return the counts as a sentence."""
        return (
            f"{self.exact} of {self.ends} ends of paragraphs were predicted in their place, {self.near} at most one "
            f"sentence away; {self.false} more were predicted elsewhere"
        )


class PlanningPredictor:
    """Predicts sentences with a model of plans, from plans of its own and the real sentences and breaks before each.

    The headline of a paragraph would tell the model what it is to predict. So each plan is predicted first, from the
    plans of earlier paragraphs, whose sentences are known; then sentences are predicted after these plans. `breaks`:
    what was predicted of the ends of paragraphs so far.

    Args:
        model: the model.
        break_embedding: (dim,), the embedding of "End of paragraph.".
        end: (dim,), that of "End of text."; None if there is none.
    """

    def __init__(self, model: SentencePredictor, break_embedding: Tensor, end: Tensor | None = None) -> None:
        self.model, self.break_embedding, self._end = model, break_embedding, end
        self.breaks = BreakCounts()

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Return (sentences, dim) float32, as a model does; the batch has paragraphs."""
        assert batch.paragraphs is not None
        documents = planned(batch.embeddings, batch.lengths, batch.paragraphs, self.break_embedding)
        weights = torch.ones(len(documents.embeddings), device=batch.embeddings.device)
        own = self.model.predict(Batch(documents.embeddings, documents.lengths, weights), sampling)
        embeddings = documents.embeddings.float()
        plans = documents.plans.to(own.device)
        embeddings[plans] = own[plans]
        found = self.model.predict(Batch(embeddings, documents.lengths, weights), sampling)
        self._count(found, documents)
        return found[documents.sentences.to(found.device)]

    def _count(self, found: Tensor, documents: Planned) -> None:
        document = torch.repeat_interleave(torch.arange(len(documents.lengths)), documents.lengths)
        asked = torch.cat([documents.sentences, documents.breaks]).sort().values  # all that may follow a sentence
        asked = asked[~torch.isin(asked, documents.plans + 1)]
        said = are_breaks(found[asked.to(found.device)], self.break_embedding, self._end).cpu()
        true = torch.isin(asked, documents.breaks)
        near_true, near_said = _beside(true, document[asked]), _beside(said, document[asked])
        self.breaks.ends += int(true.sum())
        self.breaks.exact += int((true & said).sum())
        self.breaks.near += int((true & near_said).sum())
        self.breaks.false += int((said & ~near_true).sum())


def _beside(flags: Tensor, document: Tensor) -> Tensor:
    """Return where a flag, or that of a neighbour in the same document, is set."""
    same = document[1:] == document[:-1]
    found = flags.clone()
    found[1:] |= flags[:-1] & same
    found[:-1] |= flags[1:] & same
    return found
