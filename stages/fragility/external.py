"""Texts → unit vectors, by an encoder unrelated to SONAR, through Hugging Face's transformers.

Batches are of exactly equal token count, as for SONAR: no padding, and a text's vector does not depend on its
neighbours. Weights are read from safetensors; code that a repository may hold is never run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from stages.batching import Tokens
from stages.cards import CardError
from stages.device import Budget
from stages.fragility.card import ExternalCard
from stages.sonar.embed import embed


class ExternalTokenizer:
    """The tokenizer of a card, which cuts off the end of longer texts. Raises CardError if its file cannot be had."""

    def __init__(self, card: ExternalCard) -> None:
        self._tokenizer = Tokenizer.from_file(str(card.files() / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(card.max_tokens)

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """The ids of each."""
        return Tokens.of([one.ids for one in self._tokenizer.encode_batch(list(texts))])


class ExternalEncoder:
    """The loaded encoder of a card. Raises CardError if its files cannot be fetched or do not fit."""

    def __init__(self, card: ExternalCard, *, dtype: torch.dtype, device: str, batch_tokens: int) -> None:
        from transformers import AutoModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # it would come among our own
        self.card, self.device = card, device
        folder = card.files()
        config = _config(card, json.loads((folder / "config.json").read_text(encoding="utf-8")))
        try:
            loaded, info = AutoModel.from_pretrained(
                folder, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise CardError(f"card {card.name}: transformers cannot load {folder}: {error}") from error
        missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
        if missing or loaded.config.hidden_size != card.dim:
            raise CardError(
                f"card {card.name}: {folder} does not fit: dim is {card.dim}, its vectors have "
                f"{loaded.config.hidden_size}; weights that it lacks: {', '.join(missing) or 'none'}; correct the card"
            )
        self.network = loaded.to(device).eval().requires_grad_(False)
        remedy = "set fragility.precision to float16"
        self.budget = Budget(batch_tokens, "external_batch_tokens", "tokens", remedy)

    def encode(self, tokens: Tokens) -> tuple[npt.NDArray[np.float16], int]:
        """(texts, dim) float16 of length 1, and how often a batch ran out of memory."""
        return embed(self._forward, tokens, self.budget, dim=self.card.dim, device=self.device)

    def _forward(self, ids: Tensor) -> Tensor:
        """(rows, length), every row of `length` tokens → (rows, dim)."""
        hidden: Tensor = self.network(input_ids=ids).last_hidden_state
        pooled = hidden.float().mean(dim=1) if self.card.pooling == "mean" else hidden[:, 0].float()
        return F.normalize(pooled, dim=1)


def _config(card: ExternalCard, content: dict[str, Any]) -> Any:
    """Return the model's configuration, with what the card replaces."""
    from transformers import AutoConfig

    described = {key: value for key, value in (content | card.config).items() if card.config.get(key, ...) is not None}
    described.pop("auto_map", None)  # names code to run
    try:
        return AutoConfig.for_model(**described)
    except (ValueError, TypeError, KeyError) as error:
        raise CardError(
            f"card {card.name}: transformers knows no model of type {described.get('model_type')!r}, or not its "
            f"numbers ({error}); code from a repository is not run: take an encoder that transformers has itself"
        ) from error
