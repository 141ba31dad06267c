"""Model cards: what a SONAR model is, where its files are, and its stated quality.

A card is a small YAML file; the ones that ship are in `conf/models/`. A card that starts with `base: sonar` takes what
it does not state from that card: three lines name a local copy of a file, or another decoder. Reading a card opens no
file of the model, fetches nothing and imports no torch, so that planning a run stays fast: the digests in fingerprints
come from the card alone. If no sha256 is published for a URL, the URL itself identifies the file, and `stages/fetch.py`
ensures that it keeps meaning the same bytes.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from stages.cards import CardError, card_json, digest_of, shipped, why_invalid
from stages.fetch import FetchError, Report, UnavailableError, cache_path, checked_sha256, fetch, place_of, sha256_of
from stages.shipped import how_to_get

FileRole = Literal["encoder", "decoder", "tokenizer"]
Layout = Literal["native", "fairseq2", "m2m100"]
ROLES: tuple[FileRole, ...] = ("encoder", "decoder", "tokenizer")

_STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
_Count = Annotated[int, Field(ge=1)]
_Layers = Annotated[int, Field(ge=1, le=1000)]


class ModelFile(BaseModel):
    """One file of a model: a `path` (relative to the card, absolute, or below ~), or the `url` to fetch it from."""

    model_config = _STRICT

    path: str | None = None
    url: str | None = Field(
        default=None, pattern="^[a-z][a-z0-9+.-]*://", description="http(s) or any that fsspec knows"
    )
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$", description="may be left out for a url only")
    bytes: _Count | None = None
    layout: Layout | None = Field(default=None, description="names in this file, where they are not those of the card")
    same_as: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="sha256 of another file that holds the same weights"
    )

    @model_validator(mode="after")
    def _is_one_file(self) -> ModelFile:
        if (self.path is None) == (self.url is None):
            raise ValueError("a file needs a path or a url, and not both")
        if self.url is not None:
            cache_path(self.url)  # raises if it names no file
        if self.path is not None and self.sha256 is None:
            raise ValueError(
                f"{self.path} needs its sha256 (`sha256sum FILE` prints it), so that results know their model"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_not_stated(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}

    @property
    def identity(self) -> str:
        """Return what identifies the file's content in fingerprints."""
        return str(self.sha256 or self.url)

    @classmethod
    def of(cls, path: Path, folder: Path) -> ModelFile:
        """Describe a file for a card in `folder`."""
        return cls(path=path.relative_to(folder).as_posix(), sha256=sha256_of(path), bytes=path.stat().st_size)


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
    layout: Layout = Field(
        description="names in the weight files: ours, fairseq2's (the published checkpoints), or Hugging Face's"
    )
    description: str
    licence: str
    dim: _Count
    encoder_layers: _Layers
    decoder_layers: _Layers
    heads: _Count
    ffn_dim: _Count
    vocab_size: _Count = Field(description="rows of the embedding table")
    max_tokens: int = Field(
        default=514, ge=4, le=1_000_000, description="longest source, language tag and </s> included"
    )
    languages: tuple[str, ...] = Field(min_length=1, description="in the order of their ids, which follow the pieces")
    files: ModelFiles
    scores: dict[str, dict[str, float]] = Field(default_factory=dict, description="score → language → value, held out")
    fine_tuned_on: str | None = Field(
        default=None, description="digest of the encoder whose embeddings the decoder was fine-tuned on"
    )

    _folder: Path = PrivateAttr(default_factory=Path)
    _asked: str = PrivateAttr(default="")  # what `load_card` was given

    @model_validator(mode="after")
    def _numbers_fit(self) -> ModelCard:
        if self.dim % self.heads or self.dim % 2:
            raise ValueError(f"dim is {self.dim} with {self.heads} heads; dim must be even and a multiple of heads")
        if len(set(self.languages)) != len(self.languages):
            raise ValueError("languages holds a code twice; each code owns one id")
        return self

    def file(self, role: FileRole) -> ModelFile:
        """Return what the card says of the encoder, decoder or tokenizer file."""
        found: ModelFile = getattr(self.files, role)
        return found

    def path(self, role: FileRole) -> Path:
        """Return where the file is on this machine, or would be once fetched."""
        file = self.file(role)
        return place_of(file.url) if file.url else self._folder / Path(str(file.path)).expanduser()

    def verify(self, role: FileRole, report: Report | None = None) -> Path:
        """Return the file's path, after its sha256 was compared with the card; a file by URL is fetched first if need
        be.

        Reads the whole file. `report` follows a download (by default: a line every ten seconds on stderr). Raises
        CardError if the file cannot be fetched or is not the one that the card describes.
        """
        file = self.file(role)
        path = self.path(role)
        if file.url:
            try:
                return fetch(file.url, sha256=file.sha256, size=file.bytes, report=report)
            except UnavailableError as error:
                copy = f"{{path: …, sha256: {file.sha256 or '…'}}}"
                raise CardError(
                    f"card {self.name}: {error}; or name a copy in a card of your own: "
                    f"{{base: {self._asked}, name: mine, files: {{{role}: {copy}}}}}"
                ) from error
            except FetchError as error:
                raise CardError(f"card {self.name}: {error}") from error
        if not path.is_file():
            remedy = how_to_get(path) or f"correct files.{role}.path"
            raise CardError(f"card {self.name}: {role} file {path} is not there; {remedy}")
        found = checked_sha256(path)
        if found != file.sha256:
            stated = f" ({file.bytes} bytes)" if file.bytes else ""
            raise CardError(
                f"card {self.name}: {role} file {path} has sha256 {found} ({path.stat().st_size} bytes), the card says "
                f"{file.sha256}{stated}; put the right file there, or correct files.{role} if it was replaced"
            )
        return path

    def check_encoder(self, encoder: ModelCard, setting: str) -> None:
        """Raise CardError if the decoder decodes, or was fine-tuned on, embeddings of another encoder."""
        ours, theirs = (one.file("encoder") for one in (self, encoder))
        same = {ours.identity, ours.same_as} & {theirs.identity, theirs.same_as} - {None}
        known = {encoder.encoder_digest, *([self.encoder_digest] if same else [])}  # of its weights in both files
        if self.fine_tuned_on and self.fine_tuned_on not in known:
            raise CardError(
                f"{setting} {self.name} was fine-tuned on embeddings of the encoder {self.fine_tuned_on}, those of "
                f"this corpus are of {encoder.name}, {encoder.encoder_digest} (digests): fine-tune a decoder on this "
                "corpus, or name one that goes with its encoder"
            )
        if not self.fine_tuned_on and not same:
            raise CardError(
                f"{setting} {self.name} decodes embeddings of another encoder ({ours.identity}) than {encoder.name} "
                f"({theirs.identity}), which made those of this corpus: name a decoder that goes with it, or, if both "
                "files hold the same weights, a card that states one's sha256 as files.encoder.same_as of the other"
            )

    def nearest_languages(self, lang: str) -> tuple[str, ...]:
        """Return the codes most similar to one that the model does not know."""
        return nearest_languages(lang, self.languages)

    @property
    def encoder_parameters(self) -> int:
        """Return the number of weights of the encoder."""
        return self._parameters(self.encoder_layers, attentions=4)

    @property
    def decoder_parameters(self) -> int:
        """Return the number of the decoder's weights that decoding from one vector needs, with a tied output
        projection.
        """
        return self._parameters(self.decoder_layers, attentions=6)

    def _parameters(self, layers: int, attentions: int) -> int:
        dim, ffn = self.dim, self.ffn_dim
        layer = attentions * (dim * dim + dim) + (2 * dim * ffn + ffn + dim) + 4 * dim
        return self.vocab_size * dim + layers * layer + 2 * dim

    @property
    def encoder_digest(self) -> str:
        """Return a digest that changes whenever embeddings could: encoder weights, encoder numbers, tokenizer."""
        return self._digest("encoder", "encoder_layers")

    @property
    def decoder_digest(self) -> str:
        """Return a digest that changes whenever decoded text could: decoder weights, decoder numbers, tokenizer."""
        return self._digest("decoder", "decoder_layers")

    @property
    def tokenizer_digest(self) -> str:
        """Return a digest that changes whenever token ids could."""
        return digest_of([self.files.tokenizer.identity, list(self.languages), self.max_tokens])

    def _digest(self, role: FileRole, depth: str) -> str:
        keys = ("kind", "layout", "dim", depth, "heads", "ffn_dim", "vocab_size")
        numbers = {key: getattr(self, key) for key in keys}
        return digest_of([numbers, self.file(role).identity, self.tokenizer_digest])


def nearest_languages(code: str, languages: Iterable[str]) -> tuple[str, ...]:
    """Return up to five codes that may have been meant: first those that begin alike, then those that are spelled
    alike.
    """
    typed = code[:80].lower()

    def distance(known: str) -> tuple[int, float, str]:
        alike = next((letters for letters in (3, 2) if typed[:letters] == known[:letters]), 0)
        return -alike, -difflib.SequenceMatcher(None, typed, known.lower()).ratio(), known

    return tuple(sorted(languages, key=distance)[:5])


def shipped_cards() -> dict[str, Path]:
    """Return name → card file, for every card that ships, except those of Large Concept Models (lcm-…)."""
    return {name: path for name, path in shipped("models").items() if not name.startswith("lcm-")}


@functools.cache
def readable_cards() -> tuple[ModelCard, ...]:
    """Return the cards that ship, in the order of their names, without those that cannot be read."""
    found = []
    for name in shipped_cards():
        with contextlib.suppress(CardError):  # reported where the model is asked for
            found.append(load_card(name))
    return tuple(found)


# What people who know the published models type, in small letters → the card of the same weights.
ALIASES = {
    "facebook/sonar": "sonar",
    "text_sonar_basic_encoder": "sonar",
    "text_sonar_basic_decoder": "sonar",
    "text_sonar_finetuned_decoder": "sonar-finetuned",
    "cointegrated/sonar_200_text_encoder": "sonar-hf",
    "cointegrated/sonar_200_text_decoder_hf": "sonar-hf",
}


def meant_by(name: str) -> str | None:
    """Return the name of the card that an alias of a published model means; None if it is no alias."""
    return ALIASES.get(name.lower())


def load_card(name_or_path: str) -> ModelCard:
    """Return the card of a shipped model by its name or alias, or of any model by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    path = _card_path(name_or_path, Path())
    try:
        card = ModelCard.model_validate_json(json.dumps(_content(path)))
    except (yaml.YAMLError, TypeError, AttributeError, KeyError, UnicodeDecodeError, ValidationError) as error:
        raise CardError(f"{path} is not a valid model card: {why_invalid(error)}") from error
    card._folder = path.parent
    card._asked = name_or_path
    return card


def _content(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return what a card's file states, completed by its base."""
    content: dict[str, Any] = json.loads(card_json(path))
    base = content.pop("base", None)
    if base is None:
        return content
    described = _card_path(str(base), path.parent)
    if described in above:
        raise CardError(f"{path}: its base {base} is based on it; one of the two must be a complete card")
    taken = _content(described, (*above, path))
    for file in taken.get("files", {}).values():
        if "path" in file:
            file["path"] = str(described.parent.absolute() / Path(file["path"]).expanduser())
    return {**taken, **content, "files": {**taken.get("files", {}), **content.get("files", {})}}


def _card_path(name_or_path: str, folder: Path) -> Path:
    if name_or_path.endswith((".yaml", ".yml")):
        path = folder / Path(name_or_path).expanduser()
        if not path.is_file():
            raise CardError(f"model card {path} is not there; give the path of a card, or one of {_names()}")
        return path
    if name_or_path.endswith(".safetensors"):
        beside = (folder / Path(name_or_path).expanduser()).with_suffix(".yaml")
        if beside.is_file():
            raise CardError(f"{name_or_path} holds weights; give the card that describes them: {beside}")
    known = shipped_cards()
    name_or_path = meant_by(name_or_path) or name_or_path
    if name_or_path not in known:
        raise CardError(
            f"no model is called {name_or_path!r}; use one of {_names()}, or the path of a card that ends in .yaml"
        )
    return known[name_or_path]


def _names() -> str:
    return ", ".join(shipped_cards()) or "(none ship)"
