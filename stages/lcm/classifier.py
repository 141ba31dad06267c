"""Judges texts by a classifier of sequences, such as CoLA's of acceptable sentences. LCM 3.1, tables 8 to 12.

`conf/classifiers/` has the cards of the models that ship. A classifier that writes its answer as text (the SEAHORSE
models of the paper's SH-4 and SH-5 do) is none. Cost: one pass of the model for each sentence, or for each pair of
texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from stages.cards import CardError, read_card
from stages.device import prepare_cuda
from stages.hub_card import HubCard

_BATCH_TOKENS = 8192


class ClassifierCard(HubCard):
    """The card of one classifier. Frozen; made by `load_classifier_card`."""

    setting: ClassVar[str] = "--classifier"

    kind: Literal["sequence-classifier"]
    label: Annotated[int, Field(ge=0, description="the number of the class whose probability is the score")]
    pair: bool = Field(
        default=False, description="whether it judges a text after its prompt, both as a whole, and not each sentence"
    )
    max_tokens: Annotated[int, Field(ge=8, description="its context; longer texts are cut off at their end")]


def load_classifier_card(name_or_path: str) -> ClassifierCard:
    """Return the card of a shipped classifier by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "classifiers", ClassifierCard, "classifier")


class Classifier:
    """The model of a card, loaded in float32.

    Args:
        card: the model.
        device: where it computes: `cpu`, `cuda:0`, `mps`.

    Raises:
        CardError: if its files are missing or do not load, or it has no such class.
    """

    def __init__(self, card: ClassifierCard, *, device: str) -> None:
        from transformers import AutoModelForSequenceClassification

        folder = card.files()
        self.card, self.device = card, device
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            network: Any = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True
            )
        except Exception as error:  # Tokenizer.from_file raises a bare Exception
            raise CardError(f"card {card.name}: transformers cannot load {folder}: {error}") from error
        if card.label >= network.config.num_labels:
            raise CardError(
                f"card {card.name}: label is {card.label}; the model has {network.config.num_labels} classes"
            )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(card.max_tokens)
        prepare_cuda(device)
        self._network = network.to(device).eval().requires_grad_(False)

    def score(self, prompt: Sequence[str], output: Sequence[str]) -> float | None:
        """Return the probability of the card's class, from 0 to 1: the mean over the sentences of the output, or that
        of the output after the prompt. None if there are no sentences.
        """
        if not output:
            return None
        if self.card.pair:
            return float(self.probabilities([(" ".join(prompt), " ".join(output))])[0])
        return float(self.probabilities(list(output)).mean())

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> Tensor:
        """Return (texts,) float64: the probability of the card's class for each text, or pair of texts."""
        encoded: list[Encoding] = self._tokenizer.encode_batch(list(texts))
        order = sorted(range(len(encoded)), key=lambda row: -len(encoded[row].ids))
        found = torch.zeros(len(encoded), dtype=torch.float64)
        while order:
            longest = max(1, len(encoded[order[0]].ids))
            count = max(1, _BATCH_TOKENS // longest)
            rows, order = order[:count], order[count:]
            logits = self._network(**self._batch([encoded[row] for row in rows], longest)).logits
            likely = logits.double().softmax(dim=1)[:, self.card.label]
            found[rows] = likely.cpu()
        return found

    def _batch(self, rows: list[Encoding], longest: int) -> dict[str, Tensor]:
        config = self._network.config
        ids = torch.full((len(rows), longest), config.pad_token_id or 0)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for number, row in enumerate(rows):
            size = len(row.ids)
            ids[number, :size], mask[number, :size] = torch.tensor(row.ids), 1
            types[number, :size] = torch.tensor(row.type_ids)
        batch = {"input_ids": ids, "attention_mask": mask}
        if getattr(config, "type_vocab_size", 0) > 1:
            batch["token_type_ids"] = types
        return {name: one.to(self.device) for name, one in batch.items()}
