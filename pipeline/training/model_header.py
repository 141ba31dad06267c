"""The description of a trained model: its file model.json, or that of its newest checkpoint. Imports no torch."""

from __future__ import annotations

import contextlib
import json

from pipeline.base.errors import CorpusError, DamagedError
from pipeline.corpus.standalone import REMEDY as EXPORTED
from pipeline.corpus.standalone import TEXT
from pipeline.storage.records import Record, read_json, said_of
from pipeline.storage.store import Store
from pipeline.training.checkpoint_markers import Marker, markers
from pipeline.training.record import BROKEN, RECORD, Pinned, read_started
from pipeline.training.status import MODEL, training_statuses
from stages.lcm.card import LcmCard

VERSION = 1
FROM_CHECKPOINT = "delete it and run pipeline train, which writes it again from the newest checkpoint, or restore it"


class ModelHeader(Record):
    """The description of a trained model. `weights`: digest of their file, "" before the end of the training.

    `scaler`: digest of its file, "" in models of earlier versions.
    """

    version: int = VERSION
    steps: int
    pinned: Pinned
    weights: str = ""
    scaler: str = ""
    validation: float | None = None  # loss on the validation split at the end
    torch: str  # the version that trained it

    @property
    def card(self) -> LcmCard:
        """The model's architecture."""
        return LcmCard.model_validate_json(json.dumps(self.pinned.card))


def remedy_for(store: Store, run: str, again: str) -> str:
    """Return how a damaged file is made again; a model without its corpus is exported.

    Args:
        store: the corpus.
        run: the folder of the training.
        again: what to do in a corpus.

    Returns:
        The words of a message.
    """
    return EXPORTED if store.exists(f"{run}/{TEXT}") else again


def model_header(store: Store, run: str, again: str = FROM_CHECKPOINT) -> ModelHeader:
    """Return the description of a model; before the end of the training, that of its newest checkpoint.

    Args:
        store: the corpus.
        run: the folder of the training.
        again: what to do so that a damaged one is made again.

    Returns:
        The description.

    Raises:
        CorpusError: if there is none, or it is damaged.
    """
    if store.exists(f"{run}/{MODEL}"):
        return _with_card(
            read_json(store, f"{run}/{MODEL}", ModelHeader, remedy_for(store, run, again)), store, run, MODEL
        )
    marker, started = newest(store, run), read_started(store, run)
    about = ModelHeader(steps=marker.step, pinned=started.pinned, scaler=started.scaler, torch=marker.torch)
    return _with_card(about, store, run, RECORD)


def _with_card(about: ModelHeader, store: Store, run: str, path: str) -> ModelHeader:
    """Return a description whose card is one. Raises `DamagedError` if it is not."""
    try:
        assert about.card
    except ValueError as error:
        where = f"{store.url}/{run}/{path}"
        raise DamagedError(where, f"card: {said_of(error)}", remedy_for(store, run, "train the model again")) from error
    return about


def check_is_recorded(store: Store, run: str, about: ModelHeader, again: str = "") -> None:
    """Check that a model is that of the record beside it.

    Args:
        store: the corpus.
        run: the folder of the training.
        about: the description of the model.
        again: what to do so that it is made again; empty for what the checkpoints allow.

    Raises:
        CorpusError: if it is the model of another training.
    """
    pinned = read_started(store, run).pinned
    if about.pinned == pinned:
        return
    if not again:
        checkpoints: set[str] = set()
        with contextlib.suppress(CorpusError):  # a damaged one is told elsewhere
            checkpoints = {one.pinned for one in markers(store, run)}
        again = FROM_CHECKPOINT if pinned.digest in checkpoints else BROKEN
    raise CorpusError(f"{store.url}/{run}/{MODEL} is the model of another training than {RECORD} says; {again}")


def newest(store: Store, run: str) -> Marker:
    """Return the newest checkpoint. Raises `CorpusError` if there is none."""
    there = markers(store, run)
    if not there and store.exists(f"{run}/{TEXT}"):
        raise CorpusError(f"{store.url}/{run}/{MODEL} is missing; restore it, or {EXPORTED}")
    if not there:
        have = [one.run for one in training_statuses(store) if one.holds_model]
        raise CorpusError(
            f"{store.url}/{run} holds no trained model; those of this corpus: {', '.join(have) or 'none'}; train one: "
            "pipeline train corpus.yaml (a model that lies elsewhere is named with its folder, such as ./NAME)"
        )
    return there[-1]
