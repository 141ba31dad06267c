"""What a training is pinned to, so that it continues with exactly what it began with. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import fsspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipeline.base.errors import ConfigError, MissingError
from pipeline.config.train import TrainSettings
from pipeline.corpus.fingerprint import fingerprint
from pipeline.storage import layout
from pipeline.storage.records import Record, read_json, said_of, sealed
from pipeline.storage.store import Store
from pipeline.training.status import MODEL
from stages.lcm.card import LcmCard, trained_lcms

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig

RECORD = "run.json"
BROKEN = "restore it from a copy, or start the training over: pipeline train corpus.yaml --fresh"
_SHOWN = 120  # characters of a value in a message
Fit = dict[str, str]  # the fields of a `FitRef`


class PinnedIndex(Record):
    """An index of the mix. `url`: of its corpus; "" for the corpus that the training belongs to."""

    url: str
    digest: str
    weight: float


class PinnedDecoder(Record):
    """The decoder through which a model learns: its card, and the digest of its files."""

    model: str
    digest: str


class PinnedTokenizer(Record):
    """The tokenizer of a token language model: the card that it is of, and a digest of all that decides on ids."""

    model: str
    digest: str
    vocabulary: int


class _Mixed(BaseModel):
    path: str
    weight: float


class _OfMeaning(BaseModel):
    """What is read again of pinned settings; of earlier versions, those lack that have a default."""

    steps: int = Field(ge=1)
    batch_concepts: int = Field(ge=1)
    weight: float = 1.0
    corpora: list[_Mixed] = []


def _of_meaning(settings: dict[str, Any]) -> dict[str, Any]:
    """Return pinned settings. Raises ValueError if what is read of them is not there."""
    try:
        _OfMeaning.model_validate(settings)
    except ValidationError as error:
        raise ValueError(said_of(error)) from error
    return settings


class Pinned(Record):
    """card, settings: those of meaning; scaler, codebooks: fits of the corpus; decoder: of SONAR-LLM; tokenizer: of
    token language models.
    """

    card: dict[str, Any]
    settings: Annotated[dict[str, Any], AfterValidator(_of_meaning)]
    select: dict[str, Any] | None
    indexes: list[PinnedIndex]
    encoder: str
    dim: int = Field(ge=1, le=1 << 20)
    scaler: Fit
    codebooks: Fit | None
    decoder: PinnedDecoder | None = None
    tokenizer: PinnedTokenizer | None = None

    @property
    def digest(self) -> str:
        """The digest of everything that is pinned; markers of checkpoints have it."""
        lacking = {name for name in ("decoder", "tokenizer") if getattr(self, name) is None}  # as before there were any
        return fingerprint(self.model_dump(mode="json", exclude=lacking))

    @property
    def weights_are_for(self) -> dict[str, Any]:
        """What weights depend on besides the scaler, which comes with them."""
        return {
            "model": _architecture(self.card),
            "encoder": self.encoder,
            "dim": self.dim,
            "codebooks": (self.codebooks or {}).get("content"),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.digest,
        }


def _architecture(card: dict[str, Any]) -> dict[str, Any]:
    """Return what weights depend on of a card."""
    words = ("name", "description", "licence", "contrastive", "sonar_llm", "token_lm")
    found = {key: value for key, value in card.items() if key not in words}
    if found.get("objective") == "sonar-llm":
        del found["objective"]  # the weights are Base-LCM's
    return found | {"contrastive.keys": (card.get("contrastive") or {}).get("keys")}


class _Described(BaseModel):
    """What `run.json` and `model.json` both say."""

    pinned: Pinned


class Started(BaseModel):
    """The record of a training, run.json: what it is pinned to, and the settings of its latest start.

    `scaler`: digest of scaler.safetensors beside it, "" in records of earlier versions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pinned: Pinned
    settings: TrainSettings
    scaler: str = ""


def read_started(store: Store, run: str) -> Started:
    """Read the record of a training. Raises `CorpusError` if it is missing or damaged."""
    try:
        return read_json(store, f"{run}/{RECORD}", Started, BROKEN)
    except MissingError as error:
        raise MissingError(f"{error}; {BROKEN}") from None


def write_started(store: Store, run: str, started: Started) -> None:
    """Write the record of a training.

    Args:
        store: the corpus.
        run: the folder of the training.
        started: the record.
    """
    store.write(f"{run}/{RECORD}", sealed(started.model_dump_json(indent=1)))


def refuse(folder: str, changed: Sequence[str]) -> None:
    """Raise `ConfigError` if anything has changed since a training was begun."""
    if changed:
        raise ConfigError(
            f"{folder} was begun with other settings: {'; '.join(changed)}. Restore them to go on with it; give "
            "train.name another name for a second training beside it, or start it over with --fresh"
        )


def located(place: str) -> tuple[Store, str]:
    """Split the folder …/train/NAME of a model into a corpus and a training in it.

    place: a path or any fsspec URL, or the name of a model that ships. If it has fewer levels, as `/model` and
    `s3://bucket/model`, the root of the file system, or the bucket, stands for the corpus. Raises `ConfigError` if it
    is the root, or a bucket, itself.
    """
    place = trained_lcms().get(place, place)
    protocol, mark, path = place.rpartition("://")
    if protocol in ("", "file", "local"):
        mark = protocol = ""
        path = str(Path(path).expanduser().absolute())
    names = PurePosixPath(path).parts
    cut = max(1, len(names) - 2)
    if len(names) <= cut:
        raise ConfigError(f"{place} is no folder of a model; give one with a name, such as …/train/NAME")
    return Store(f"{protocol}{mark}{PurePosixPath(*names[:cut])}"), "/".join(names[cut:])


def check_own_folder(config: RunConfig) -> None:
    """Raise `ConfigError` if a training would begin with the weights in its own folder, which it writes."""
    assert config.train
    first, store, run = config.train.init_from, Store(config.output), config.train.folder
    if first is not None and _resolved(*located(first)) == _resolved(store, run):
        raise ConfigError(
            f"train.init_from is this training's own folder, {first}; give train.name another name, and the model that "
            "is there stays"
        )


def _resolved(store: Store, run: str) -> str:
    place = f"{store.url.rstrip('/')}/{run}"
    return os.path.realpath(fsspec.core.url_to_fs(place)[1]) if store.local else place


def check_initial_weights(config: RunConfig) -> None:
    """Raise `ConfigError` if a training would begin with the weights of another model, as far as it is known before
    any work: by its card and its encoder; or with those in its own folder.
    """
    assert config.train
    check_own_folder(config)
    if config.train.init_from is None:
        return
    store, run = located(config.train.init_from)
    path = f"{run}/{MODEL}" if store.exists(f"{run}/{MODEL}") else f"{run}/{RECORD}"
    theirs = read_json(store, path, _Described, "train.init_from: give the folder of a trained model, …/train/NAME")
    ours = {"model": _architecture(config.train.card.recorded()), "encoder": encoder_of(config)}
    check_weights(config.train.init_from, theirs.pinned, ours)


def check_weights(place: str, theirs: Pinned, ours: dict[str, Any]) -> None:
    """Check that the weights that a training begins with are those of its model.

    Args:
        place: where they are, as it is set.
        theirs: what the training that made them was pinned to.
        ours: what is known of `Pinned.weights_are_for` of the training that begins.

    Raises:
        ConfigError: if they are another model's; it names what differs.
    """
    there, here = theirs.weights_are_for, dict(ours)
    if "own_attention" not in theirs.card:  # of full attention, only the values are used
        here["model"] = {key: value for key, value in ours["model"].items() if key != "own_attention"}
    kind, wanted = there["model"].get("kind"), here["model"].get("kind")
    if kind != wanted:
        raise ConfigError(
            f"train.init_from: {place} is of kind {kind}, train.model of kind {wanted}; name a model of the same card, "
            "encoder and codebooks, or leave it out"
        )
    if other := changes({key: there[key] for key in here}, here):
        raise ConfigError(
            f"train.init_from: {place} is another model, of the card {theirs.card.get('name')}: {'; '.join(other)} "
            "(there → here); name one of the same card, encoder and codebooks, or leave it out"
        )


def changed_since(store: Store, config: RunConfig) -> list[str]:
    """Return `key old → new` for what has changed since the training was begun, so that it could not continue."""
    assert config.train
    check_own_folder(config)
    return differences(config, read_started(store, config.train.folder).pinned)


def differences(config: RunConfig, pinned: Pinned) -> list[str]:
    """Return `key old → new` for whatever a configuration sets to other values than a training is pinned to."""
    assert config.train
    wanted = asked(config, as_begun(config.train, pinned.settings), config.train.card)
    if continues_full_attention(config, pinned):
        del wanted["card"]["own_attention"]
    then = pinned.model_dump(mode="json")
    then["settings"] = _with_moved(then["settings"], wanted["settings"])
    found = changes(compared(then), compared(wanted))
    encoder = encoder_of(config)
    if config.encode and encoder and encoder != pinned.encoder:
        found.append(f"weights of encode.model {pinned.encoder[:8]} → {encoder[:8]} ({config.encode.model})")
    return found


def _with_moved(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return pinned settings with the present places of initial weights and corpora that were moved: they have the same
    name, and nothing is left at the old place. What a corpus holds is compared by the digest of its index.
    """
    found, old, new = dict(then), then.get("init_from"), now.get("init_from")
    if _is_moved(old, new):
        store, run = located(str(old))
        if not any(store.exists(f"{run}/{name}") for name in (MODEL, RECORD)):
            found["init_from"] = new
    others, present = then.get("corpora") or [], now.get("corpora") or []
    if len(others) == len(present):
        found["corpora"] = [
            one | {"path": here["path"]}
            if _is_moved(one["path"], here["path"]) and not Store(one["path"]).exists(layout.CORPUS_FILE)
            else one
            for one, here in zip(others, present, strict=True)
        ]
    return found


def _is_moved(old: str | None, new: str | None) -> bool:
    return bool(old and new) and old != new and Path(str(old)).name == Path(str(new)).name


def places_of_indexes(pinned: Pinned, settings: TrainSettings) -> list[str]:
    """Return the corpus of each pinned index where it is now; "" for the one that the training belongs to."""
    others = iter([one.path for one in settings.corpora])
    return [next(others, one.url) if one.url else "" for one in pinned.indexes]


def continues_full_attention(config: RunConfig, pinned: Pinned) -> bool:
    """Return whether the card limits attention now, which a training that began before that existed does not follow."""
    assert config.train
    return "own_attention" not in pinned.card and bool(config.train.card.recorded().get("own_attention"))


def encoder_of(config: RunConfig) -> str | None:
    """Return the digest of the encoder that a configuration names, as indexes and trainings have it."""
    return fingerprint(config.encode.artifacts()) if config.encode else None


def as_begun(settings: TrainSettings, pinned: dict[str, Any]) -> TrainSettings:
    """Return the settings with what a training chose when it began, where they leave it open."""
    chosen: dict[str, Any] = {} if settings.lanes else {"lanes": pinned.get("lanes", TrainSettings().streams)}
    chosen |= {} if settings.epochs is None else {"steps": pinned["steps"]}
    return settings.model_copy(update=chosen)


def asked(config: RunConfig, settings: TrainSettings, card: LcmCard) -> dict[str, Any]:
    """Return what a configuration asks of a training.

    Args:
        config: the configuration.
        settings: the section `train`.
        card: the card of the model.

    Returns:
        `card`, `settings` and `select`, as they are recorded.
    """
    return {
        "card": card.recorded(),
        "settings": settings.pinned(),
        "select": config.select.model_dump(mode="json") if config.select else None,
    }


def compared(pinned: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same to continue; descriptions in a card need not. A newer setting has its default."""
    card = {key: value for key, value in pinned["card"].items() if key not in ("description", "licence")}
    return {"model": card, "train": TrainSettings().pinned() | pinned["settings"], "select": pinned["select"]}


def changes(old: Any, new: Any, at: str = "") -> list[str]:
    """Describe the values that differ between two JSON values.

    Args:
        old: the earlier value.
        new: the later value.
        at: the keys that lead to the two values, joined by dots.

    Returns:
        One line per key: `key old → new`.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        return [one for key in keys for one in changes(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))]
    return [] if old == new else [f"{at} {_shown(old)} → {_shown(new)}"]


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
