"""The stage `plans` where a language model writes them: in the device's first turn the model writes, in the second the
encoder embeds what it wrote.

Decoding is greedy, and each distinct paragraph of a part is written about once. The same paragraphs of a part give the
same plans on the same kind of device with the same libraries, whatever was retried or resumed: batches are of prompts
with equally many tokens, so nothing is padded, in an order that depends on the paragraphs alone. Beside others a
paragraph has another plan only where two tokens are equally likely up to rounding. Cost: 2 · parameters FLOP for each
token that is read or written; in memory the model, in bfloat16 on GPUs and float32 elsewhere, and a second copy of the
encoder.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from stages.arrow import changes
from stages.batching import Tokens
from stages.cards import CardError
from stages.causal_lm import load_language_card, load_network, load_tokenizer
from stages.device import Budget, in_batches, trouble
from stages.plans.settings import PlanEmbeddingSettings
from stages.plans.stage import EmbedPlans, EncodedPlans, PreparedPlans, counts_of
from stages.stage import Computed, Further

LEAST_ROOM = 16  # tokens of a paragraph that a prompt must leave room for
BATCH_TOKENS = 16_384  # read and written, of a batch
LONGEST = 300  # code points of a plan


@dataclass(frozen=True)
class PreparedParagraphs:
    """The paragraphs of a part: `starts`, the rows that they begin with; the number of the distinct text of each, their
    languages, the prompts of the distinct texts, and which of these texts were cut.
    """

    part_rows: int
    starts: npt.NDArray[np.int64]
    distinct: npt.NDArray[np.int64]
    langs: pa.ChunkedArray
    prompts: Tokens
    cut: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class WrittenPlans:
    """What the model wrote about each distinct paragraph, as ids, and counts."""

    prepared: PreparedParagraphs
    answers: list[list[int]]
    counts: dict[str, float]


class _Reader:
    """Makes prompts of paragraphs, and texts of what the model wrote.

    Raises `CardError` if the tokenizer does not load, or the prompt leaves no room for a paragraph.
    """

    def __init__(self, settings: PlanEmbeddingSettings) -> None:
        card = load_language_card(str(settings.lm))
        self._tokenizer = load_tokenizer(card)
        before, after = (one.format() for one in settings.prompt.split("{text}"))
        self._before = self._tokenizer.encode(before).ids  # with what a text begins with
        self._after = self._tokenizer.encode(after, add_special_tokens=False).ids
        self._tokenizer.encode_special_tokens = True  # from here on: the marks of a chat in a document are text
        taken = len(self._before) + len(self._after) + settings.max_tokens
        self._room = card.max_tokens - taken
        if self._room < LEAST_ROOM:
            raise CardError(
                f"plans: prompt and max_tokens take {taken} of the {card.max_tokens} tokens that {card.name} can read: "
                "shorten them, or choose another model"
            )

    def prompts(self, texts: list[str]) -> tuple[Tokens, npt.NDArray[np.bool_]]:
        """Return the prompt of each paragraph, and whether the end of the paragraph is cut off in it."""
        found = [one.ids for one in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        prompts = Tokens.of([self._before + ids[: self._room] + self._after for ids in found])
        return prompts, np.asarray([len(ids) > self._room for ids in found], np.bool_)

    def plans(self, answers: list[list[int]]) -> list[str]:
        """Return the plan in each answer; an empty text is none."""
        return [first_line(one) for one in self._tokenizer.decode_batch(answers)]


class WritePlans(EmbedPlans):
    """The stage `plans` with `lm`; see `PlansSettings`."""

    def setup(self, device: str) -> None:
        """Load the encoder and the language model."""
        super().setup(device)
        _ = self._reader  # whose errors come before the weights are loaded
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        self._network = load_network(load_language_card(str(self.settings.lm)), device, dtype)
        self._budget = Budget(BATCH_TOKENS, "plan_tokens", "tokens", "choose a smaller plans.lm")

    @cached_property
    def _reader(self) -> _Reader:
        """Return what makes prompts, which may be in another process than the network."""
        return _Reader(self.settings)

    def prepare(self, part: pa.Table) -> Any:
        """Join the sentences of each paragraph, and tokenise the distinct ones."""
        doc, paragraph = (part[f"sentences.{name}"].to_numpy() for name in ("doc", "paragraph"))
        starts = np.flatnonzero(changes(doc) | changes(paragraph))
        sentences = part["sentences.text"].to_pylist()
        texts = [" ".join(sentences[a:b]) for a, b in zip(starts, [*starts[1:], len(sentences)], strict=True)]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        prompts, cut = self._reader.prompts(list(numbers))
        return PreparedParagraphs(
            len(doc),
            starts,
            np.asarray([numbers[text] for text in texts], np.int64),
            part["sentences.lang"].take(pa.array(starts)),
            prompts,
            cut,
        )

    def compute(self, prepared: Any) -> Any:
        """Write plans, or embed those that were written."""
        return self._write(prepared) if isinstance(prepared, PreparedParagraphs) else super().compute(prepared)

    @torch.inference_mode()
    def _write(self, prepared: PreparedParagraphs) -> WrittenPlans:
        prompts, most = prepared.prompts, self.settings.max_tokens
        order = np.argsort(-prompts.lengths, kind="stable")
        answers: list[list[int]] = [[]] * len(order)
        ends = self._network.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]

        def write(start: int, stop: int) -> None:
            rows = order[start:stop]
            length = int(prompts.lengths[rows[0]])
            ids = torch.from_numpy(prompts.select(rows).ids).long().view(len(rows), length).to(self._network.device)
            options = {"max_new_tokens": most, "pad_token_id": ends[0] if ends else 0}
            found = self._network.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
            for row, answer in zip(rows.tolist(), found[:, length:].tolist(), strict=True):
                end = next((at for at, one in enumerate(answer) if one in ends), len(answer))
                answers[row] = answer[:end]

        failures = in_batches(prompts.lengths[order] + most, self._budget, write)
        written = float(sum(map(len, answers)))
        counts = {"tokens_read": float(prompts.offsets[-1]), "tokens_written": written}
        return WrittenPlans(prepared, answers, counts | self._budget.counts(failures))

    def finish(self, computed: Any) -> Any:
        """Tokenise the plans for the encoder, which embeds them in the second turn."""
        plans = self._reader.plans(computed.answers)
        planned = self._planned(computed.prepared, [plans[one] for one in computed.prepared.distinct])
        return Further(planned, partial(self._embedded, written=computed))

    def _planned(self, prepared: PreparedParagraphs, plans: Sequence[str]) -> PreparedPlans:
        """Return the plans of all paragraphs, of which an empty text is none, as the stage with a column prepares
        them.
        """
        has = np.asarray([bool(one) for one in plans], np.bool_)
        texts = [one for one in plans if one]
        langs = prepared.langs.filter(pa.array(has))
        sentences = self.encode.prepare(pa.table({
            "sentences.text": pa.array(texts, pa.string()), "sentences.lang": langs
        }))  # fmt: skip
        return PreparedPlans(prepared.part_rows, prepared.starts[has], texts, len(plans), 0, sentences)

    def _embedded(self, computed: EncodedPlans, written: WrittenPlans) -> Computed:
        found = super().finish(computed)
        failures = {"out_of_memory": found.counts.get("out_of_memory", 0.0) + written.counts["out_of_memory"]}
        ours = _counts_of_paragraphs(written.prepared, len(computed.prepared.texts))
        return Computed(found.families, found.counts | written.counts | failures | ours)

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count plans that are there; the tokens are those of the part whose plans were taken."""
        prepared = self.prepare(part)
        plans = [one or "" for one in families["plans"]["plan"].take(pa.array(prepared.starts)).to_pylist()]
        planned = self._planned(prepared, plans)
        tokens = {name: taken.get(name, 0.0) for name in ("tokens_read", "tokens_written")}
        there = len(planned.texts)
        return trouble(taken) | counts_of(planned, there) | tokens | _counts_of_paragraphs(prepared, there)


def _counts_of_paragraphs(prepared: PreparedParagraphs, plans: int) -> dict[str, float]:
    cut = float(prepared.cut[prepared.distinct].sum())
    return {"empty": float(len(prepared.starts) - plans), "cut": cut}


def first_line(answer: str) -> str:
    """Return the first line of an answer that says something, without control characters and of at most `LONGEST` code
    points; empty if there is none.
    """
    for line in answer.splitlines():
        plain = "".join(" " if one == "\t" else one for one in line if one == "\t" or unicodedata.category(one) != "Cc")
        if plain.strip():
            return plain.strip()[:LONGEST].rstrip()
    return ""
