"""Trained models that are evaluated or write: where they are, and the settings by which they are sampled."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.base.errors import ConfigError, MissingError, StorageError
from pipeline.config.train import OF_GENERATION, TrainSettings
from pipeline.corpus.reader import Corpus
from pipeline.corpus.standalone import REMEDY as EXPORTED
from pipeline.corpus.standalone import TEXT, standalone
from pipeline.storage.local_files import TO_WRITE, refusal
from pipeline.storage.remote import is_remote
from pipeline.training.data.index import Index
from pipeline.training.evaluation.table import SweptValue
from pipeline.training.model_file import load_model
from pipeline.training.model_header import ModelHeader
from pipeline.training.record import RECORD, Started, located, read_started
from pipeline.training.status import EVALUATION, training_statuses
from pipeline.training.status import FOLDER as TRAININGS
from pipeline.training.tokens import tokenizer_card
from stages.lcm.card import options_of, trained_lcms, unread
from stages.lcm.model import Lcm, Sampling, paper_sampling
from stages.sonar.card import ModelCard


@dataclass(frozen=True)
class Trained:
    """A trained model with the settings by which it is sampled. `place`: its folder, …/train/NAME."""

    place: str
    model: Lcm
    about: ModelHeader
    sampling: Sampling
    generation: dict[str, Any] = field(default_factory=dict)  # thresholds, and whether sentences are encoded again
    swept: SweptValue | None = None

    @property
    def name(self) -> str:
        """The name of its training."""
        return self.place.rstrip("/").rpartition("/")[2]

    @property
    def plans(self) -> bool:
        """Whether it was trained on plans and breaks (`train.plans`)."""
        return bool(self.about.pinned.settings.get("plans", "none") != "none")

    @property
    def tokenizer(self) -> ModelCard:
        """Return the card of the tokenizer of a token language model. Raises `ConfigError` if it is missing, or has
        changed since.
        """
        assert self.about.pinned.tokenizer is not None
        return tokenizer_card(self.about.pinned.tokenizer)


def places_of(corpus: Corpus, asked: tuple[str, ...]) -> list[str]:
    """Return the folders of models: trainings of the corpus, as NAME or train/NAME, models that ship, or paths (of a
    folder train/NAME of the working directory, ./train/NAME); without any, all trainings that hold a model.
    """
    here = [one.run.rpartition("/")[2] for one in training_statuses(corpus.store) if one.holds_model]
    base = corpus.store.url.rstrip("/")
    shipped = trained_lcms()
    names = [re.sub(r"^train/([^/]+)/?$", r"\1", one) for one in asked or here]
    return [
        one if "/" in one else shipped[one] if one in shipped and one not in here else f"{base}/train/{one}"
        for one in dict.fromkeys(names)
    ]


def check_can_write(places: Sequence[str]) -> None:
    """Raise `StorageError` unless this user may write `evaluation/` beside the models; stores elsewhere are not asked,
    and models that ship with the package get no table.
    """
    for place in places:
        store, run = located(place)
        if is_remote(store.url) or place in trained_lcms().values():
            continue
        model = Path(store.url.removeprefix("file://"), run)
        folder = model / EVALUATION if os.access(model / EVALUATION, os.F_OK) else model
        if os.access(model, os.F_OK) and (refused := refusal(folder)):
            raise StorageError(
                f"{folder} cannot be written ({os.strerror(refused)}), and the table of an evaluation goes to "
                f"{model / EVALUATION}: {TO_WRITE[refused]}, or evaluate a copy of the corpus"
            )


def check_options(trained: Sequence[Trained], asked: dict[str, Any] | None) -> None:
    """Raise `ConfigError` for options of sampling that change nothing for any of the models."""
    given = {name: f"--{name.replace('_', '-')}" for name in asked or {}}
    kinds = sorted({one.model.card.kind for one in trained})
    read = {name for one in trained for name in options_of(one.model.card)}
    read |= set() if kinds == ["token-lm"] else set(OF_GENERATION)
    for name, option in given.items():
        if trained and name not in read:
            raise ConfigError(f"{option}: {unread(name, kinds)}")
    drawing = [one for one in trained if "top_k" in options_of(one.model.card) and one.sampling.top_k != 1]
    for name in ("temperature", "top_p"):
        if name in given and trained and not drawing:
            raise ConfigError(f"{given[name]} changes nothing while only the likeliest is taken: add --top-k 3")


def load_trained(
    place: str,
    index: Index | None,
    device: str,
    generating: bool,
    asked: dict[str, Any] | None = None,
    of_file: TrainSettings | None = None,
) -> Trained:
    """Load a model with the settings by which it is sampled.

    Where `asked` says nothing, the section `train.sampling` of its training decides; then the paper's values for its
    kind.

    Args:
        place: the training or the folder of the model.
        index: the index of the corpus, whose encoder the model must have been trained with; None if there is no corpus.
        device: where it computes: `cpu`, `cuda:0`, `mps`.
        generating: whether it will generate texts, for which the paper has other values.
        asked: settings of sampling by name, from the command line.
        of_file: the section `train` of a file, whose settings of sampling count for the training that it names.

    Returns:
        The model with its settings.

    Raises:
        ConfigError: for a model that was trained on embeddings of another encoder.
        CorpusError: if files of the model are missing or damaged, or the record that has its settings of sampling.
    """
    model, about = load_model(place, device)
    if index and (about.pinned.encoder, about.pinned.dim) != (index.about.encoder, index.dim):
        raise ConfigError(
            f"{place} was trained on embeddings of {about.pinned.dim} dimensions by the encoder "
            f"{about.pinned.encoder[:8]}; those of {index.url} have {index.dim}, by {index.about.model} "
            f"({index.about.encoder[:8]}): name a model that was trained with the same encoder"
        )
    chosen = {**sampling_of(place, of_file), **(asked or {})}
    generation = {"end_cosine": 0.9, "previous_cosine": 0.9, "reencode": False}
    if model.card.objective == "sonar-llm":
        generation = {"end_cosine": 0.98, "previous_cosine": 1.0, "reencode": True}
    generation |= {name: chosen.pop(name) for name in OF_GENERATION if name in chosen}
    for name in ("end_cosine", "previous_cosine"):
        if generation[name] >= 1:
            generation[name] = math.inf  # the cosine of equal vectors may exceed 1 by rounding
    return Trained(place, model, about, replace(paper_sampling(model.card.kind, generating), **chosen), generation)


def sampling_in_evaluation(started: Started) -> Sampling:
    """Return how the embeddings of a training's model are drawn when it is evaluated without options."""
    given = started.settings.sampling.given() if started.settings.sampling else {}
    chosen = {name: value for name, value in given.items() if name not in OF_GENERATION}
    return replace(paper_sampling(started.pinned.card["kind"], generating=False), **chosen)


def sampling_of(place: str, of_file: TrainSettings | None = None) -> dict[str, Any]:
    """Return what the section `train.sampling` of a model's training sets; `of_file` is preferred if it is of that one.

    Raises `CorpusError` if the record of the training is missing or damaged.
    """
    store, run = located(place)
    if of_file is None or of_file.folder != run:
        if store.exists(f"{run}/{TEXT}"):
            return standalone(place).sampling
        if not store.exists(f"{run}/{RECORD}"):
            if not run.startswith(f"{TRAININGS}/"):
                raise MissingError(
                    f"{store.url}/{run}/{TEXT} is missing, and with it the options by which this model is sampled; "
                    f"restore it, or {EXPORTED}"
                )
            raise MissingError(
                f"{store.url}/{run}/{RECORD} is missing, and with it the settings by which this model is sampled "
                "(train.sampling); restore it from a copy, or have it written again without these: pipeline verify "
                f"{store.url} --repair"
            )
        of_file = read_started(store, run).settings
    return of_file.sampling.given() if of_file.sampling else {}
