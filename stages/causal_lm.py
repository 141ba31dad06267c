"""Causal language models by their cards, for mutual information (LCM 2.4.1) and for plans of paragraphs (LCM 4.3).

`conf/language/` has the cards of the models that ship. No code of a model is ever run, and weights are safetensors or
GGUF.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from stages.cards import CardError, digest_of, read_card, shipped
from stages.hub_card import FILES, HubCard

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer


class LanguageCard(HubCard):
    """The card of one causal language model. Frozen; made by `load_language_card`."""

    setting: ClassVar[str] = "--language-model or plans.lm"

    kind: Literal["causal-lm"]
    gguf: str | None = Field(default=None, description="the file of a quantised model that has its tokenizer inside")
    max_tokens: Annotated[int, Field(ge=16, description="its context; longer texts are cut off at their beginning")]

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the names of its files."""
        return FILES if self.gguf is None else (self.gguf,)

    @property
    def digest(self) -> str:
        """A digest that changes whenever the model's answers could."""
        return digest_of([self.place, self.sha256, self.gguf, self.max_tokens])


def shipped_language_cards() -> dict[str, Path]:
    """Return name → card file, for every language model's card that ships with the package."""
    return shipped("language")


def load_language_card(name_or_path: str) -> LanguageCard:
    """Return the card of a shipped language model by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "language", LanguageCard, "language model")


def load_tokenizer(card: LanguageCard) -> Tokenizer:
    """Load the tokenizer of a card; without padding, without cutting. Raises `CardError` if it does not load."""
    from tokenizers import Tokenizer

    folder = _files(card)
    try:
        if card.gguf:
            from transformers import AutoTokenizer

            tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=card.gguf).backend_tokenizer
        else:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain ones
        raise CardError(f"card {card.name}: the tokenizer in {folder} does not load: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def load_network(card: LanguageCard, device: str, dtype: torch.dtype) -> Any:
    """Load the network of a card, for inference.

    Args:
        card: the model.
        device: where it computes: `cpu`, `cuda:0`, `mps`.
        dtype: the number format of its weights.

    Returns:
        The network, of transformers. What it writes depends on no generation_config.json, which the card does not
            name.

    Raises:
        CardError: if its files or packages are missing, or do not load.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    from stages.device import prepare_cuda

    disable_progress_bar()  # theirs would come among our own
    folder = _files(card)
    options: dict[str, Any] = {"gguf_file": card.gguf} if card.gguf else {"use_safetensors": True}
    try:
        network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise CardError(f"card {card.name}: transformers cannot load {folder}: {error}") from error
    ends = network.config.eos_token_id
    network.generation_config = GenerationConfig(do_sample=False, eos_token_id=ends)
    prepare_cuda(device)
    return network.to(device).eval().requires_grad_(False)


def _files(card: LanguageCard) -> Path:
    """Return the folder with the files of a card; of a quantised one, its reader tells no progress."""
    if card.gguf:
        if lacking := [one for one in ("gguf", "accelerate") if not importlib.util.find_spec(one)]:
            raise CardError(f"card {card.name}: {card.gguf} needs {' and '.join(lacking)}: pip install gguf accelerate")
        from transformers import modeling_gguf_pytorch_utils

        vars(modeling_gguf_pytorch_utils)["tqdm"] = lambda tensors, **_: tensors
    return card.files()
