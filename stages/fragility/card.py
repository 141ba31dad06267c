"""Cards of external text encoders, for similarities that are independent of SONAR. `conf/external/` has those that
ship.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stages.cards import digest_of, read_card, shipped
from stages.hub_card import HubCard


class ExternalCard(HubCard):
    """The card of one text encoder. Frozen; made by `load_external_card`."""

    setting: ClassVar[str] = "fragility.external"

    kind: Literal["text-encoder"]
    config: dict[str, Any] = Field(
        default_factory=dict, description="replaces keys of config.json, null removes; no code of a model is ever run"
    )
    pooling: Literal["mean", "cls"] = Field(description="vector of a text: the mean of all tokens, or the first one")
    dim: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=3, description="longer texts are cut off at their end")]

    @property
    def digest(self) -> str:
        """A digest that changes whenever embeddings could."""
        return digest_of([self.place, self.sha256, self.config, self.pooling, self.max_tokens])


def shipped_external_cards() -> dict[str, Path]:
    """Return name → card file, for every external encoder's card that ships with the package."""
    return shipped("external")


def load_external_card(name_or_path: str) -> ExternalCard:
    """Return the card of a shipped external encoder by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "external", ExternalCard, "external encoder")
