"""Checks the folders of trainings, train/NAME, against their own records.

A checkpoint is complete if its files have the digests of its marker; a model and a scaler if they have those of
model.json and run.json. A damaged training is reported, and the others are checked all the same. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial

from pydantic import ValidationError

from pipeline.base.errors import CorpusError, DamagedError
from pipeline.config.train import TrainSettings
from pipeline.corpus.fingerprint import content_digest
from pipeline.corpus.reader import Corpus
from pipeline.maintenance.made_with import indexes_of
from pipeline.maintenance.records import Finding
from pipeline.storage import layout
from pipeline.storage.store import Store
from pipeline.training import checkpoint_markers
from pipeline.training.data.index import damage, read_index
from pipeline.training.model_header import check_is_recorded, model_header
from pipeline.training.record import BROKEN, RECORD, Started, read_started, write_started
from pipeline.training.status import (
    CHECKPOINTS,
    EVALUATION,
    FOLDER,
    IDENTITY,
    JOB,
    METRICS,
    MODEL,
    SCALER,
    WEIGHTS,
    read_evaluation,
    read_job,
    read_metrics,
)  # fmt: skip
from pipeline.training.trackers.about import read_identity


def check_indexes(corpus: Corpus) -> Iterator[Finding]:
    """Yield everything that is wrong with the finished indexes of a corpus."""
    for digest in indexes_of(corpus.store):
        path = layout.index_paths(digest)[0]
        try:
            index = read_index(corpus, digest)
        except CorpusError as error:
            yield Finding(path, str(error), path)
            continue
        for file, what in damage(corpus.store, index.about):
            yield Finding(file, what, path)


def check_trainings(store: Store) -> Iterator[Finding]:
    """Yield everything that is wrong with the trainings of a corpus."""
    for name in store.folders(FOLDER):
        run = f"{FOLDER}/{name}"
        if any(store.exists(f"{run}/{one}") for one in (RECORD, MODEL)) or store.find(f"{run}/{CHECKPOINTS}"):
            yield from _check(store, run)


def _check(store: Store, run: str) -> Iterator[Finding]:
    whole = 0
    for path in checkpoint_markers.marker_paths(store, run):
        wrong = list(_checkpoint(store, path))
        whole += not wrong
        yield from wrong
    yield from _model(store, run, can_be_made=whole > 0)
    yield from _record(store, run)
    for file, read in ((METRICS, read_metrics), (JOB, read_job), (IDENTITY, read_identity)):
        path = f"{run}/{file}"
        try:
            read(store, run)
        except CorpusError as error:
            yield Finding(path, str(error), None if file == JOB else path)
    for path in store.find(f"{run}/{EVALUATION}"):
        if path.endswith(".json"):
            try:
                read_evaluation(store, path)
            except CorpusError as error:
                yield Finding(path, str(error), path)


def _checkpoint(store: Store, path: str) -> Iterator[Finding]:
    try:
        marker = checkpoint_markers.read_marker(store, path)
    except CorpusError as error:
        yield Finding(path, str(error), path)
        return
    for file, what in checkpoint_markers.damage(store, marker):
        yield Finding(file, what, path)


def _model(store: Store, run: str, can_be_made: bool) -> Iterator[Finding]:
    """Check the files of a model. can_be_made: whether a checkpoint can make it again."""
    path = f"{run}/{MODEL}"
    if not store.exists(path):
        return
    receipt = path if can_be_made else None
    try:
        about = model_header(store, run)
    except CorpusError as error:
        yield Finding(path, str(error), receipt)
        return
    yield from _differs(store, f"{run}/{WEIGHTS}", about.weights, MODEL, receipt)
    if about.scaler and not store.exists(f"{run}/{RECORD}"):
        yield from _differs(store, f"{run}/{SCALER}", about.scaler, MODEL, None)


def _record(store: Store, run: str) -> Iterator[Finding]:
    path = f"{run}/{RECORD}"
    try:
        started = read_started(store, run)
    except CorpusError as error:
        again = _record_of_model(store, run)
        what = str(error) if store.exists(path) else "is missing"
        how = f"it can be made again from {MODEL}, but without train.sampling, which no other file has"
        yield Finding(path, f"{what}; {how if again else BROKEN}", None, again)
        return
    about = None
    with contextlib.suppress(CorpusError):
        about = model_header(store, run) if store.exists(f"{run}/{MODEL}") else None
    try:
        if about:
            check_is_recorded(store, run, about)
    except CorpusError as error:
        yield Finding(f"{run}/{MODEL}", str(error), None)
    if started.scaler:
        yield from _differs(store, f"{run}/{SCALER}", started.scaler, RECORD, f"{run}/{SCALER}")


def _record_of_model(store: Store, run: str) -> Callable[[], None] | None:
    """Return a function that writes the record of a training again from its model; None if there is no such model."""
    try:
        about = model_header(store, run) if store.exists(f"{run}/{MODEL}") else None
    except CorpusError:
        about = None
    if about is None:
        return None
    name = run.rpartition("/")[2]
    said = about.pinned.settings | {"model": about.card.name, "name": name, "steps": about.steps}
    try:
        settings = TrainSettings.model_validate_json(json.dumps(said))
    except ValidationError:  # of an older version
        return None
    return partial(write_started, store, run, Started(pinned=about.pinned, settings=settings, scaler=about.scaler))


def _differs(store: Store, path: str, digest: str, says: str, receipt: str | None) -> Iterator[Finding]:
    remedy = "" if receipt else f"; {BROKEN}"
    if not store.exists(path):
        yield Finding(path, f"is missing, though {says} vouches for it{remedy}", receipt)
        return
    try:
        found = content_digest(store.read(path))
    except DamagedError as error:  # no file at all
        yield Finding(path, f"{error.what}{remedy}", receipt)
        return
    if found != digest:
        yield Finding(path, f"has the digest {found[:8]}…, {says} says {digest[:8]}…{remedy}", receipt)
