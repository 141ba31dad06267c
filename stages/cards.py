"""Cards of models: small YAML files that say what a model is and where its files are.

Those that ship are in folders of `conf/`. Reading a card opens no file of the model and imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from stages.fetch import checked_sha256
from stages.shipped import FOLDER, how_to_get
from stages.yaml_text import load_yaml

_SHOWN = 5  # things that are wrong with a card, in a message

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Card(BaseModel):
    """The description of a model. Frozen; `read_card` creates it, and knows where it is."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1)
    description: str
    licence: str

    _folder: Path = PrivateAttr(default_factory=Path)


AnyCard = TypeVar("AnyCard", bound=Card)


def shipped(folder: str) -> dict[str, Path]:
    """Return name → card file, for every card in a folder of `conf/`."""
    return {path.stem: path for path in sorted((FOLDER / folder).glob("*.yaml"), key=lambda path: path.stem)}


def read_card(name_or_path: str, folder: str, kind: type[AnyCard], what: str, prefix: str = "") -> AnyCard:
    """Read the card of a model that ships, by its name, or of any model by the path of its `.yaml` file.

    Args:
        name_or_path: the name or path.
        folder: the folder of `conf/` with the cards that ship.
        kind: the class of the card.
        what: the description in words, such as `SaT model`.
        prefix: the prefix of names, if a folder holds cards of several kinds.

    Returns:
        The card.

    Raises:
        CardError: if there is no such card or it is not valid.
    """
    known = {name: path for name, path in shipped(folder).items() if name.startswith(prefix)}
    path = Path(name_or_path).expanduser() if name_or_path.endswith((".yaml", ".yml")) else known.get(name_or_path)
    if path is None or not path.is_file():
        raise CardError(
            f"no {what} is called {name_or_path!r}; use one of {', '.join(known)}, or the path of a card that ends "
            f"in .yaml (conf/{folder}/ has examples)"
        )
    try:
        card = kind.model_validate_json(card_json(path))
    except (yaml.YAMLError, TypeError, UnicodeDecodeError, ValidationError) as error:
        raise CardError(f"{path} is not a valid card ({what}): {why_invalid(error)}") from error
    card._folder = path.parent
    return card


def card_json(path: Path) -> str:
    """Return what a card's file states, as JSON. Raises OSError, `yaml.YAMLError`, UnicodeDecodeError or TypeError."""
    return _as_json(path.read_text(encoding="utf-8"))


@lru_cache(256)  # of the texts: a plan asks for the same few cards many times, and YAML is slow
def _as_json(text: str) -> str:
    content = load_yaml(text)
    if not isinstance(content, dict):
        raise TypeError("it is empty" if content is None else "it holds no keys and values")
    return json.dumps(content)


def why_invalid(error: Exception) -> str:
    """Return in one line why a card cannot be read."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    found = error.errors(include_url=False, include_context=False, include_input=False)
    said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found]
    return "; ".join(said[:_SHOWN]) + (f"; and {len(said) - _SHOWN} more" if len(said) > _SHOWN else "")


def digest_of(described: list[Any]) -> str:
    """Return 16 hex digits of what of a card results depend on."""
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def is_folder(place: str) -> bool:
    """Return whether a card's place is a folder (./… relative to the card, /… or ~…), and not a name."""
    return place.startswith((".", "/", "~"))


def verify_files(card: str, sha256: Mapping[str, str], path_of: Callable[[str], Path]) -> None:
    """Read files and compare them with the card.

    Args:
        card: the name of the card, for messages.
        sha256: name of a file → the digest that the card states.
        path_of: name of a file → its path.

    Raises:
        CardError: with a list of what is missing or differs.
    """
    wrong = []
    for name, wanted in sha256.items():
        path = path_of(name)
        if not path.is_file() and (remedy := how_to_get(path)):
            raise CardError(f"card {card}: {path} is not there; {remedy}")
        if not path.is_file():
            wrong.append(f"{path} is missing")
        elif (found := checked_sha256(path)) != wanted:
            wrong.append(f"{path} has sha256 {found}, the card says {wanted}")
    if wrong:
        raise CardError(f"card {card}: {'; '.join(wrong)}; put the right files there, or correct the card")


class CardError(ValueError):
    """A card does not exist, is not valid, or does not fit its files."""
