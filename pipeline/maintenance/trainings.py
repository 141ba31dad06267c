"""What lies in the folders of trainings, train/NAME, against what it says of itself.

A checkpoint is whole if its files have the digests of its marker; a model and a scaler if they have those of model.json
and run.json. A damaged training is told, and the others are looked at all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.base.errors import CorpusError
from pipeline.corpus.fingerprint import content_digest
from pipeline.maintenance.ledgers import Finding
from pipeline.storage.store import Store
from pipeline.training import checkpoint
from pipeline.training.model_file import model_header
from pipeline.training.record import BROKEN, RECORD, read_started
from pipeline.training.status import CHECKPOINTS, FOLDER, METRICS, MODEL, SCALER, WEIGHTS, read_job, read_metrics


def check_trainings(store: Store) -> Iterator[Finding]:
    """Everything that is wrong with the trainings of a corpus."""
    for name in store.folders(FOLDER):
        run = f"{FOLDER}/{name}"
        if any(store.exists(f"{run}/{one}") for one in (RECORD, MODEL)) or store.find(f"{run}/{CHECKPOINTS}"):
            yield from _check(store, run)


def _check(store: Store, run: str) -> Iterator[Finding]:
    whole = 0
    for path in checkpoint.marker_paths(store, run):
        wrong = list(_checkpoint(store, path))
        whole += not wrong
        yield from wrong
    yield from _model(store, run, can_be_made=whole > 0)
    yield from _record(store, run)
    for path, read in ((METRICS, read_metrics), ("", read_job)):
        try:
            read(store, run)
        except CorpusError as error:
            yield Finding(f"{run}/{path}".rstrip("/"), str(error), None)


def _checkpoint(store: Store, path: str) -> Iterator[Finding]:
    try:
        marker = checkpoint.read_marker(store, path)
    except CorpusError as error:
        yield Finding(path, str(error), path)
        return
    for file, what in checkpoint.damage(store, marker):
        yield Finding(file, what, path)


def _model(store: Store, run: str, can_be_made: bool) -> Iterator[Finding]:
    """can_be_made: again, from a checkpoint."""
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
    if not store.exists(f"{run}/{RECORD}"):
        if not store.exists(f"{run}/{MODEL}"):
            yield Finding(f"{run}/{RECORD}", f"is missing; {BROKEN}", None)
        return
    try:
        started = read_started(store, run)
    except CorpusError as error:
        yield Finding(f"{run}/{RECORD}", str(error), None)
        return
    if started.scaler:
        yield from _differs(store, f"{run}/{SCALER}", started.scaler, RECORD, f"{run}/{SCALER}")


def _differs(store: Store, path: str, digest: str, says: str, receipt: str | None) -> Iterator[Finding]:
    remedy = "" if receipt else f"; {BROKEN}"
    if not store.exists(path):
        yield Finding(path, f"is missing, though {says} vouches for it{remedy}", receipt)
    elif (found := content_digest(store.read(path))) != digest:
        yield Finding(path, f"has the digest {found[:8]}…, {says} says {digest[:8]}…{remedy}", receipt)
