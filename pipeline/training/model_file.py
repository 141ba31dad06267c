"""A trained model in a folder of a corpus, train/NAME, which `evaluate`, `generate` and fine-tuning load.

    model.json           what it is: card, dimension, how it was trained; written last
    model.safetensors    weights, float32
    scaler.safetensors   its robust scaler, from the beginning; codebooks of a quantised model stay with the corpus

`pipeline export-model` writes the same files to a folder without a corpus, with the codebooks in codebooks.safetensors.

An unfinished training has no model.json yet: then the newest checkpoint is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from pipeline.base.errors import CorpusError, MissingError
from pipeline.base.formats import size
from pipeline.config.frozen import FitRef
from pipeline.corpus.fingerprint import content_digest, fingerprint
from pipeline.corpus.fits import read_artifact
from pipeline.corpus.standalone import REMEDY as EXPORTED
from pipeline.corpus.standalone import TEXT, standalone
from pipeline.storage.records import sealed
from pipeline.storage.store import Store
from pipeline.training import checkpoint
from pipeline.training.checkpoint_markers import damage
from pipeline.training.distributed import WrappedModel
from pipeline.training.model_header import (
    FROM_CHECKPOINT,
    ModelHeader,
    check_is_recorded,
    model_header,
    newest,
    remedy_for,
)
from pipeline.training.record import RECORD, Pinned, changes, located
from pipeline.training.status import BOTH_FROM_CHECKPOINT, MODEL, SCALER, WEIGHTS
from stages.device import prepare_cuda, without_memory
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.lcm.model import Lcm
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler
from stages.shipped import how_to_get

CODEBOOKS = "codebooks.safetensors"


def save_model(store: Store, run: str, weights: dict[str, torch.Tensor], about: ModelHeader) -> None:
    """Write the weights and the header into a model's folder.

    Args:
        store: the corpus.
        run: the folder of the training.
        weights: the model's `state_dict`, complete and on the host.
        about: the header, without the digest of the weights.
    """
    data = save({name: one.contiguous() for name, one in weights.items()}, {"format": "pt"})
    store.write(f"{run}/{WEIGHTS}", data)
    about = about.model_copy(update={"weights": content_digest(data)})
    store.write(f"{run}/{MODEL}", sealed(about.model_dump_json(indent=1)))


def load_model(place: str, device: str | torch.device = "cpu") -> tuple[Lcm, ModelHeader]:
    """Load a model for inference: by its folder …/train/NAME, at any fsspec URL, or the name of one that ships.

    Raises `CorpusError` if there is none, or it does not match its description, or in an export
    text.json is that of another model.
    """
    prepare_cuda(device)
    store, run = located(place)
    about = model_header(store, run)
    tokenizer = about.pinned.tokenizer
    make = partial(
        build,
        about.card,
        read_scaler(store, run, about.scaler),
        codebooks_of(store, about.pinned, run),
        tokenizer.vocabulary if tokenizer else None,
    )
    if store.exists(f"{run}/{MODEL}"):
        data = store.read(f"{run}/{WEIGHTS}") if store.exists(f"{run}/{WEIGHTS}") else b""
        if content_digest(data) != about.weights:
            raise _changed(store, run, WEIGHTS)
        model = _with_weights(make, data, f"{store.url}/{run}/{WEIGHTS}")
    else:
        model = made_if_it_fits(about.card, make)
        checkpoint.load_weights(store, newest(store, run), WrappedModel(model))
    if store.exists(f"{run}/{TEXT}"):
        _check_text(store, run, model, about)
    return model.to(device).eval(), about


def _check_text(store: Store, run: str, model: Lcm, about: ModelHeader) -> None:
    """Raise `CorpusError` if the record of an exported model, text.json, is that of another model."""
    said = standalone(f"{store.url}/{run}")
    record: dict[str, Any] = said.model_dump(include={"kind", "objective", "parameters", "steps"})
    there = {name: getattr(about.card, name) for name in ("kind", "objective")}
    there |= {"parameters": sum(one.numel() for one in model.parameters()), "steps": about.steps}
    encoder = f"encoder {said.text.encode.model}"
    if differ := changes(
        there | {encoder: about.pinned.encoder[:8]}, record | {encoder: fingerprint(said.text.artifacts)[:8]}
    ):
        raise CorpusError(
            f"{store.url}/{run}/{TEXT} is not that of the model beside it ({MODEL} → {TEXT}: {'; '.join(differ)}); "
            f"restore it, or {EXPORTED}"
        )


_SCALER_AGAIN = "delete it and run pipeline train, which writes it again"


def check_model(store: Store, run: str, again: str = "") -> None:
    """Check that a finished model matches its description. Reads its files.

    Args:
        store: the corpus.
        run: the folder of the training.
        again: what to do so that it is made again; empty for what goes with the file that is damaged.

    Raises:
        CorpusError: if it does not.
    """
    about = model_header(store, run, again or FROM_CHECKPOINT)
    if store.exists(f"{run}/{RECORD}"):
        check_is_recorded(store, run, about, again)
    _check_files(store, run, about, again)


def _check_files(store: Store, run: str, about: ModelHeader, again: str = "") -> None:
    """Raise `CorpusError` if the files of a finished model are not those of its description."""
    for path, digest in ((WEIGHTS, about.weights), (SCALER, about.scaler)):
        if digest and (not store.exists(f"{run}/{path}") or content_digest(store.read(f"{run}/{path}")) != digest):
            raise _changed(store, run, path, again)


def check_initial(store: Store, run: str) -> None:
    """Raise `CorpusError` if the weights that a training would begin with are not whole. Reads them."""
    if store.exists(f"{run}/{MODEL}"):
        _check_files(store, run, model_header(store, run))
        return
    for path, what in damage(store, newest(store, run)):
        raise CorpusError(f"{store.url}/{path} {what}; restore it, or begin with other weights (train.init_from)")


def _changed(store: Store, run: str, path: str, again: str = "") -> CorpusError:
    if not store.exists(f"{run}/{path}") and (remedy := how_to_get(f"{store.url}/{run}/{path}")):
        return CorpusError(f"{store.url}/{run}/{path} is not there; {remedy}")
    again = again or (_SCALER_AGAIN if path == SCALER else BOTH_FROM_CHECKPOINT)
    return CorpusError(
        f"{store.url}/{run}/{path} is not what {MODEL} says: it was changed, damaged or deleted; restore it, or "
        f"{remedy_for(store, run, again)}"
    )


def made_if_it_fits(card: LcmCard, make: Callable[[], Lcm]) -> Lcm:
    """Make a model with fresh weights, if this machine has the memory for them.

    Raises `CorpusError`, before any memory is taken, if there is less than its weights take in float32.
    """
    _check_memory(card, make)
    return make()


def check_fits(store: Store, pinned: Pinned) -> None:
    """Raise `CorpusError` if this machine has not the memory for the model that a training of a corpus would make."""
    card = LcmCard.model_validate_json(json.dumps(pinned.card))
    scaler = RobustScaler(torch.zeros(pinned.dim), torch.ones(pinned.dim))
    vocabulary = pinned.tokenizer.vocabulary if pinned.tokenizer else None
    _check_memory(card, partial(build, card, scaler, codebooks_of(store, pinned), vocabulary))


def _check_memory(card: LcmCard, make: Callable[[], Lcm]) -> None:
    needed = 4 * sum(math.prod(shape) for shape in _shapes(make, f"the model {card.name}").values())
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise CorpusError(
            f"the weights of the model {card.name} take {size(needed)} in float32, and this machine has {size(there)} "
            "of memory; correct the numbers of its card, or use a larger machine"
        )


def _shapes(make: Callable[[], Lcm], where: str) -> dict[str, list[int]]:
    """Return name → shape of a model's weights, without memory for them. Raises `CorpusError` for absurd numbers."""
    try:
        with without_memory():
            return {name: list(one.shape) for name, one in make().state_dict().items()}
    except (RuntimeError, OverflowError) as error:
        raise CorpusError(
            f"{where}: no model can be as large as its card says ({str(error).splitlines()[0]}); correct the card"
        ) from error


def _with_weights(make: Callable[[], Lcm], data: bytes, where: str) -> Lcm:
    """Make the model of a file of weights. A header that describes a larger one is found before memory is taken for it.

    Raises `CorpusError` if the weights are of another architecture.
    """
    restored = "restore it, or train from scratch"
    try:
        weights = load(data)
    except SafetensorError as error:
        raise CorpusError(f"{where} is not a file of weights ({error}); {restored}") from error
    described = _shapes(make, where)
    held = {name: list(one.shape) for name, one in weights.items()}
    if described != held:
        name = min(name for name in described.keys() | held.keys() if described.get(name) != held.get(name))
        raise CorpusError(
            f"{where} does not have the weights of the model that {MODEL} describes: {name} is "
            f"{held.get(name, 'missing')}, where {described.get(name, 'nothing')} is described; {restored}"
        )
    model = make()
    model.load_state_dict(weights)
    return model


def read_scaler(store: Store, run: str, digest: str) -> RobustScaler:
    """Read the scaler of a training.

    Args:
        store: the corpus.
        run: the folder of the training.
        digest: the digest of its file; empty if it is not known.

    Returns:
        The scaler.

    Raises:
        CorpusError: if the file is damaged.
    """
    path = f"{run}/{SCALER}"
    remedy = remedy_for(store, run, f"{_SCALER_AGAIN}, or restore it")
    if not store.exists(path):
        raise CorpusError(f"{store.url}/{path} is missing; {how_to_get(f'{store.url}/{path}') or remedy}")
    data = store.read(path)
    if digest and content_digest(data) != digest:
        raise CorpusError(f"{store.url}/{path} was changed or damaged (its digest is not {digest[:8]}…); {remedy}")
    try:
        return RobustScaler.from_bytes(data)
    except ValueError as error:
        raise CorpusError(f"{store.url}/{path}: {error}; {remedy}") from error


def codebooks_of(store: Store, pinned: Pinned, run: str | None = None) -> Codebooks | None:
    """Return the codebooks that a quantised model is pinned to: those of its corpus, or those in its own folder.

    Args:
        store: the corpus.
        pinned: what the model is pinned to.
        run: the folder of the model; None to read those of the corpus.

    Returns:
        The codebooks; None for a model without codes.
    """
    if pinned.codebooks is None:
        return None
    return Codebooks.from_bytes(codebooks_bytes(store, pinned, run))


def codebooks_bytes(store: Store, pinned: Pinned, run: str | None = None) -> bytes:
    """Return the file of a quantised model's codebooks.

    Args:
        store: the corpus.
        pinned: what the model is pinned to.
        run: the folder of the model; None to read those of the corpus.

    Returns:
        The content, whose digest is the pinned one.

    Raises:
        CorpusError: if the file is missing, or another one is there.
    """
    assert pinned.codebooks is not None
    fit = FitRef(**pinned.codebooks)
    path = f"{run}/{CODEBOOKS}"
    if run is not None and (store.exists(path) or store.exists(f"{run}/{TEXT}")):
        data = store.read(path) if store.exists(path) else b""
        if content_digest(data) != fit.digest:
            raise _changed(store, run, CODEBOOKS)
        return data
    try:
        return read_artifact(store, fit)
    except MissingError as error:
        raise CorpusError(f"{error}; a quantised model needs the corpus beside it, with its codebooks") from error
