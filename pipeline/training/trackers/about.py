"""What a tracker is told of a training, and how the training is found again there. Imports no torch."""

from __future__ import annotations

import re
import secrets
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from pipeline.corpus.fingerprint import fingerprint
from pipeline.storage.records import read_json, sealed
from pipeline.storage.remote import is_remote, without_credentials
from pipeline.storage.store import Store
from pipeline.training.record import Started
from pipeline.training.status import IDENTITY, Numbers

KINDS = ("train", "validation")  # of lines; each has a loss
OTHERS = ("wandb", "mlflow")  # those with a process of their own


class Identity(BaseModel):
    """Tells a training from one that was begun under the same name before (--fresh)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str


class About(BaseModel):
    """A training, in words that every tracker can keep.

    id: of this training alone, the same after every restart. folder: where its own files lie; "" if these are not on
    this machine. config: settings, model and data, by sections. facts: digests that say what was learned from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    corpus: str
    place: str
    folder: str
    config: dict[str, Any]
    facts: dict[str, str]


class Attachment(BaseModel):
    """What comes at the end: figures by name, and the text of files by their names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    figures: dict[str, float] = {}
    files: dict[str, str] = {}


class Tracker(Protocol):
    """One tracker, in the process that belongs to it. Everything may raise, and may take long."""

    def begin(self) -> dict[str, int]:
        """Begin, or find the training again. Returns the last step that the tracker has already, by kind of line."""

    def log(self, lines: list[Numbers]) -> None:
        """Log lines of metrics.jsonl, by step."""

    def attach(self, attachment: Attachment) -> None:
        """Log what comes at the end."""

    def end(self, how: str) -> None:
        """End the run at the tracker. `how`: `done`: the training is finished; `stopped`: it continues later; `lost`:
        this tracker lacks a part of it.
        """


def about(store: Store, run: str, started: Started) -> About:
    """Describe a training to trackers; its identity is made when this is called for the first time.

    Args:
        store: the corpus.
        run: the folder of the training.
        started: the record of the training.

    Returns:
        The description, without credentials.
    """
    pinned = started.pinned
    name, place = run.rpartition("/")[2], without_credentials(f"{store.url}/{run}")
    facts = {
        "pinned": pinned.digest,
        "index": pinned.indexes[0].digest,
        "encoder": pinned.encoder,
        "scaler": started.scaler,
    } | {f"index of {without_credentials(one.url)}": one.digest for one in pinned.indexes[1:]}
    facts |= {"codebooks": pinned.codebooks["content"]} if pinned.codebooks and "content" in pinned.codebooks else {}
    return About(
        id=fingerprint([_identity(store, run), pinned.digest])[:16],
        name=name,
        corpus=re.sub(r"[^\w.-]+", "-", store.url.rstrip("/").rpartition("/")[2]) or "corpus",
        place=place,
        folder="" if is_remote(store.url) else f"{store.url}/{run}",
        config={
            "train": started.settings.model_dump(mode="json", exclude_none=True),
            "model": pinned.card,
            "select": pinned.select,
        },
        facts=facts,
    )


def _identity(store: Store, run: str) -> str:
    new = Identity(id=secrets.token_hex(8))
    store.create(f"{run}/{IDENTITY}", sealed(new.model_dump_json()))
    found = read_identity(store, run)
    return found.id if found else new.id


def read_identity(store: Store, run: str) -> Identity | None:
    """Return what tells a training from others at trackers; None if no tracker was told of it.

    Raises `DamagedError` if the file is damaged.
    """
    path = f"{run}/{IDENTITY}"
    if not store.exists(path):
        return None
    return read_json(store, path, Identity, "delete it: trackers then take the training for another one")
