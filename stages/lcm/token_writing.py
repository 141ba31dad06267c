"""How token language models write: token by token, with the keys and values of what they have read.

Memory: 2 · layers · heads · head_dim numbers for each token of a document's window, in rows as long as the longest, and
at most twice `context_tokens`: sentences of other documents leave gaps, which are closed by reading all again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stages.lcm.attention import Cache
from stages.lcm.generate import Stop, limits_of
from stages.lcm.model import Sampling
from stages.lcm.packing import Packing
from stages.lcm.sampler import sample_unit
from stages.lcm.token_lm import TokenLm
from stages.sonar.ids import END


class TextReader:
    """Reads texts step by step, and keeps keys and values of each under its number. ensemble: λ of its n-gram heads."""

    def __init__(self, model: TokenLm, ensemble: float = 0.0) -> None:
        self._model, self._ensemble = model, ensemble
        self._kept = 1 if model.ngram is None or not ensemble else model.ngram.settings.n
        self._begin([])

    def logits(self, texts: Mapping[int, list[int]]) -> Tensor:
        """Return (texts, vocabulary) float32, for the token after each text, of at most `context_tokens` tokens.

        If a text continues what was read under its number, only the rest is read. If one of the texts does not, all are
        read from their beginnings, and what was read of other texts is forgotten.
        """
        longest = max(len(text) - len(self._read.get(number, [])) for number, text in texts.items())
        room = 2 * self._model.context - self._seen.shape[1]
        if longest > room or not all(self._goes_on(number, text) for number, text in texts.items()):
            self._begin(list(texts))
        new = {number: text[len(self._read[number]) :] for number, text in texts.items()}
        hidden = self._step(new)
        for (number, text), found in zip(texts.items(), hidden, strict=True):
            self._read[number] = list(text)
            self._recent[number] = torch.cat([self._recent[number], found])[-self._kept :]
        recent = [self._recent[number] for number in texts]
        counts = [len(one) for one in recent]
        ids = np.concatenate([np.array(text[-count:]) for text, count in zip(texts.values(), counts, strict=True)])
        before = np.concatenate([np.arange(count) for count in counts])
        logits = self._model.next_logits(torch.cat(recent), ids, before, self._ensemble)
        return logits[torch.tensor(counts).cumsum(0) - 1]

    def _goes_on(self, number: int, text: list[int]) -> bool:
        known = self._read.get(number)
        return known is not None and len(text) > len(known) and text[: len(known)] == known

    def _begin(self, numbers: list[int]) -> None:
        weight = self._model.embedding.weight
        self._read: dict[int, list[int]] = {number: [] for number in numbers}
        self._recent = {number: weight.new_zeros(0, weight.shape[1]) for number in numbers}
        self._seen = torch.zeros(len(numbers), 0, dtype=torch.bool, device=weight.device)
        self._caches = [Cache(grows=True) for _ in self._model.layers]

    def _step(self, new: Mapping[int, list[int]]) -> tuple[Tensor, ...]:
        """Read what follows in some of the texts, and return (tokens, model_dim) of each."""
        counts = np.array([len(new.get(number, ())) for number in self._read])
        known = np.array([len(one) for one in self._read.values()])
        rows, width, keys = len(counts), int(counts.max()), self._seen.shape[1]
        slots = np.arange(width)
        real = slots < counts[:, None]
        places = np.flatnonzero(real)
        gather, positions = np.zeros((rows, width), np.int64), np.zeros((rows, width), np.int64)
        gather[real], positions[real] = np.arange(len(places)), (known[:, None] + slots)[real]
        own = np.tile(keys + slots, (rows, 1))
        here = (real[:, :, None] & real[:, None, :] & np.tri(width, dtype=np.bool_)) | np.eye(width, dtype=np.bool_)
        device = self._seen.device
        full, causal = torch.from_numpy(real).to(device), torch.from_numpy(here).to(device)
        mask = torch.cat([self._seen[:, None, :] & full[:, :, None], causal], dim=2)  # an empty slot sees itself
        gathered, scattered, placed, owned = (
            torch.from_numpy(one).to(device) for one in (gather, places, positions, own)
        )
        packing = Packing(gathered, scattered, placed, owned, mask[:, None])
        ids = np.concatenate([np.array(new.get(number, []), np.int64) for number in self._read])
        hidden = self._model.read_on(ids, packing, self._caches)
        self._seen = torch.cat([self._seen, full], dim=1)
        by_row = dict(zip(self._read, hidden.split(counts.tolist()), strict=True))
        return tuple(by_row[number] for number in new)


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
    max_sentences: int | Sequence[int],
    max_tokens: int,
) -> list[WrittenText]:
    """Continue prompts token by token, until the model writes the closing sentence or has written enough.

    The model writes everything but the language of a sentence. Each token is read once, and all documents are read
    again whenever the window of one moves on. Tokens are drawn by PyTorch's global generator, for all documents
    together.

    Args:
        model: the token language model.
        prompts: the sentences of each document, `[language] pieces </s>`.
        langs: the language token of each document's continuation.
        sampling: the settings of sampling.
        end: `pieces </s>` of the sentence that closes documents, which is not part of what is returned.
        allowed: (vocabulary,) bool, the pieces that may be written.
        max_sentences: the most sentences that are written for a document, or for each.
        max_tokens: the most pieces of a sentence, which is then ended.

    Returns:
        What was written for each document.

    Raises:
        ValueError: if there is nothing to continue, or no room.
    """
    limits = limits_of(max_sentences, len(prompts))
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
    reader = TextReader(model, sampling.ensemble)
    while open_ones := [number for number, one in enumerate(found) if _goes_on(one, limits[number])]:
        contexts = [_window(texts[number], model.card.context - 1, room) for number in open_ones]
        written: list[list[int]] = [[] for _ in open_ones]
        while unfinished := [at for at, one in enumerate(written) if one[-1:] != [END]]:
            logits = reader.logits(
                {open_ones[at]: [*contexts[at][0], langs[open_ones[at]], *written[at]] for at in unfinished}
            )
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
    """Return the last sentences that together have at most this many tokens, as one text, and how many are left out."""
    kept, length = 0, 0
    for sentence in reversed(sentences[-most:]):
        if length + len(sentence) > room:
            break
        kept, length = kept + 1, length + len(sentence)
    chosen = sentences[len(sentences) - kept :]
    return [token for sentence in chosen for token in sentence], len(sentences) - kept
