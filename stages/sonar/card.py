"""Model cards: what a SONAR model is, where its files lie, and how good it is said to be.

A card is a small YAML file; the ones that ship are in `conf/models/`. Reading a card opens no other file and imports no
torch, so that planning a run stays quick: the digests that go into fingerprints come from the numbers on the card.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

FileRole = Literal["encoder", "decoder", "tokenizer"]

_STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
_Count = Annotated[int, Field(ge=1)]


class CardError(ValueError):
    """A card that is not there, is not valid, or does not fit its files."""


class ModelFile(BaseModel):
    """One file of a model; `path` is relative to the card."""

    model_config = _STRICT

    path: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: _Count

    @classmethod
    def of(cls, path: Path, folder: Path) -> ModelFile:
        """Describes a file for a card that lies in `folder`."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(path=path.relative_to(folder).as_posix(), sha256=digest, bytes=path.stat().st_size)


class ModelFiles(BaseModel):
    model_config = _STRICT

    encoder: ModelFile
    decoder: ModelFile
    tokenizer: ModelFile


class ModelCard(BaseModel):
    """Architecture, files, languages and scores of one model. Frozen; made by `load_card`."""

    model_config = _STRICT

    name: str = Field(min_length=1)
    kind: Literal["sonar-text"]
    layout: Literal["native", "fairseq2"]
    description: str
    licence: str
    dim: _Count
    encoder_layers: _Count
    decoder_layers: _Count
    heads: _Count
    ffn_dim: _Count
    vocab_size: _Count = Field(description="rows of the embedding table")
    max_tokens: int = Field(default=514, ge=4, description="longest source, language tag and </s> included")
    languages: tuple[str, ...] = Field(min_length=1, description="in the order of their ids, which follow the pieces")
    files: ModelFiles
    scores: dict[str, dict[str, float]] = Field(default_factory=dict, description="score → language → value, held out")

    _folder: Path = PrivateAttr(default_factory=Path)

    @model_validator(mode="after")
    def _numbers_fit(self) -> ModelCard:
        if self.dim % self.heads or self.dim % 2:
            raise ValueError(f"dim is {self.dim} with {self.heads} heads; dim must be even and a multiple of heads")
        if len(set(self.languages)) != len(self.languages):
            raise ValueError("languages holds a code twice; each code owns one id")
        return self

    def path(self, role: FileRole) -> Path:
        """Where the encoder, decoder or tokenizer file lies on this machine."""
        file: ModelFile = getattr(self.files, role)
        return self._folder / file.path

    def verify(self, role: FileRole) -> Path:
        """The file's path, after its size and sha256 were compared with the card. Reads the whole file.

        Raises CardError if the file is missing or is not the one that the card describes.
        """
        file: ModelFile = getattr(self.files, role)
        path = self.path(role)
        if not path.is_file():
            raise CardError(f"card {self.name}: {role} file {path} is not there; fetch it or correct files.{role}.path")
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != file.sha256:
            raise CardError(
                f"card {self.name}: {role} file {path} has sha256 {found} ({path.stat().st_size} bytes), the card says "
                f"{file.sha256} ({file.bytes} bytes); fetch the file again, or correct files.{role} if it was replaced"
            )
        return path

    @property
    def encoder_digest(self) -> str:
        """Changes whenever embeddings could: encoder weights, encoder numbers, tokenizer."""
        return self._digest("encoder", "encoder_layers")

    @property
    def decoder_digest(self) -> str:
        """Changes whenever decoded text could: decoder weights, decoder numbers, tokenizer."""
        return self._digest("decoder", "decoder_layers")

    @property
    def tokenizer_digest(self) -> str:
        """Changes whenever token ids could."""
        described = [self.files.tokenizer.sha256, list(self.languages), self.max_tokens]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]

    def _digest(self, role: FileRole, depth: str) -> str:
        file: ModelFile = getattr(self.files, role)
        keys = ("kind", "layout", "dim", depth, "heads", "ffn_dim", "vocab_size")
        numbers = {key: getattr(self, key) for key in keys}
        described = [numbers, file.sha256, self.tokenizer_digest]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def shipped_cards() -> dict[str, Path]:
    """Name → card file, for every card that ships with the package."""
    folder = Path(str(importlib.resources.files("conf") / "models"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_card(name_or_path: str) -> ModelCard:
    """The card of a shipped model by its name, or of any model by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    if name_or_path.endswith(".yaml"):
        path = Path(name_or_path)
        if not path.is_file():
            raise CardError(f"model card {path} is not there; give the path of a card, or one of {_names()}")
    else:
        known = shipped_cards()
        if name_or_path not in known:
            raise CardError(
                f"no model is called {name_or_path!r}; use one of {_names()}, or the path of a card that ends in .yaml"
            )
        path = known[name_or_path]
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        card = ModelCard.model_validate_json(json.dumps(content))
    except (yaml.YAMLError, TypeError, ValidationError) as error:
        raise CardError(f"{path} is not a valid model card: {error}") from error
    card._folder = path.parent
    return card


def _names() -> str:
    return ", ".join(shipped_cards()) or "(none ship)"
