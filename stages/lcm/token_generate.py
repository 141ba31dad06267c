"""Continues documents with a token language model, token by token, until it says the closing sentence or has enough.

Sentences stand in the text as in training, `[language] pieces </s>`: the language of each is given, and the model says
the rest. Cost: a pass over the window of every document for each token, nothing is kept from one to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stages.lcm.generate import Stop
from stages.lcm.model import Sampling
from stages.lcm.token_lm import TokenLm
from stages.lcm.unit_sampler import sample_unit
from stages.sonar.ids import END


@dataclass
class WrittenText:
    """What follows a prompt. sentences: `pieces </s>` of each; forgotten: oldest ones that the last did not see."""

    sentences: list[list[int]] = field(default_factory=list)
    stopped: Stop = "limit"
    forgotten: int = 0


@torch.inference_mode()
def continue_texts(
    model: TokenLm,
    prompts: list[list[list[int]]],
    langs: list[int],
    sampling: Sampling,
    *,
    end: list[int],
    allowed: Tensor,
    max_sentences: int,
    max_tokens: int,
) -> list[WrittenText]:
    """prompts: sentences of each document, `[language] pieces </s>`; langs: the language that each is continued in.

    end: `pieces </s>` of the sentence that closes documents, which is no part of what is returned. allowed:
    (vocabulary,) bool, the pieces. A sentence of `max_tokens` pieces is ended. Tokens are drawn by PyTorch's global
    generator, for all documents together. Raises ValueError if there is nothing to continue, or no room.
    """
    if max_sentences < 1:
        raise ValueError(f"max_sentences is {max_sentences}; give a number ≥ 1")
    empty = [number for number, one in enumerate(prompts) if not one]
    if empty:
        raise ValueError(f"document {empty[0]} has no sentence to continue; give at least one")
    room = model.context - max_tokens - 2
    if room < 1:
        raise ValueError(f"{model.card.name} reads {model.context} tokens, none beside a sentence of {max_tokens}")
    found = [WrittenText() for _ in prompts]
    texts = [list(one) for one in prompts]
    ending = torch.zeros_like(allowed)
    ending[END] = True
    while open_ones := [number for number, one in enumerate(found) if _goes_on(one, max_sentences)]:
        contexts = [_window(texts[number], model.card.context - 1, room) for number in open_ones]
        written: list[list[int]] = [[] for _ in open_ones]
        while unfinished := [at for at, one in enumerate(written) if one[-1:] != [END]]:
            given = [[*contexts[at][0], langs[open_ones[at]], *written[at]] for at in unfinished]
            logits = model.logits(given, sampling.ensemble)
            if not logits.isfinite().all():
                raise ValueError(f"{model.card.name} predicted what is not finite: its weights are broken")
            for row, at in enumerate(unfinished):
                count = len(written[at])
                may = allowed if not count else ending if count >= max_tokens else allowed | ending
                logits[row].masked_fill_(~may, -torch.inf)
            drawn = sample_unit(logits, sampling.temperature, sampling.top_k, sampling.top_p).tolist()
            for at, token in zip(unfinished, drawn, strict=True):
                written[at].append(token)
        for at, number in enumerate(open_ones):
            found[number].forgotten = contexts[at][1]
            if written[at] == end:
                found[number].stopped = "end of text"
            else:
                found[number].sentences.append(written[at])
                texts[number].append([langs[number], *written[at]])
    return found


def _goes_on(one: WrittenText, max_sentences: int) -> bool:
    return one.stopped == "limit" and len(one.sentences) < max_sentences


def _window(sentences: list[list[int]], most: int, room: int) -> tuple[list[int], int]:
    """The last sentences that have at most so many tokens, as one text, and how many are left out."""
    kept, length = 0, 0
    for sentence in reversed(sentences[-most:]):
        if length + len(sentence) > room:
            break
        kept, length = kept + 1, length + len(sentence)
    chosen = sentences[len(sentences) - kept :]
    return [token for sentence in chosen for token in sentence], len(sentences) - kept
