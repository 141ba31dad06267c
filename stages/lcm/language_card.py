"""Cards of causal language models, which judge whether a sentence follows. `conf/language/` has those that ship."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stages.cards import read_card, shipped
from stages.hub_card import FILES, HubCard


class LanguageCard(HubCard):
    """The card of one causal language model. Frozen; made by `load_language_card`."""

    setting: ClassVar[str] = "--language-model"

    kind: Literal["causal-lm"]
    gguf: str | None = Field(default=None, description="the file of a quantised model that has its tokenizer inside")
    max_tokens: Annotated[int, Field(ge=16, description="its context: of longer texts the beginning is not seen")]

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the names of its files."""
        return FILES if self.gguf is None else (self.gguf,)


def shipped_language_cards() -> list[str]:
    """Return the names of the cards that ship."""
    return list(shipped("language"))


def load_language_card(name_or_path: str) -> LanguageCard:
    """Return the card of a shipped language model by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "language", LanguageCard, "language model")
