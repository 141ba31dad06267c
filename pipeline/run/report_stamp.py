"""Judges whether the report of a corpus has all of its finished models.

A report has in its head a digest of the finished models and of their evaluations; a run that has nothing else to do
writes the report again once that differs. What a training logs while it is under way does not change it.
"""

from __future__ import annotations

import hashlib
import re

from pipeline.base.errors import PipelineError
from pipeline.corpus.runs import REPORT
from pipeline.storage.store import Store
from pipeline.training.status import EVALUATION, FOLDER, MODEL

HEAD = 4096  # bytes of a report that hold the digest
_STAMP = re.compile(rb'<meta name="trainings" content="([0-9a-f]+)">')


def stamp_of(store: Store) -> str:
    """Return a digest of the finished models and of their evaluations; empty where there are none."""
    found = hashlib.sha256()
    none = True
    for run in [f"{FOLDER}/{name}" for name in store.folders(FOLDER)]:
        model = f"{run}/{MODEL}"
        for path in [*([model] if store.exists(model) else ()), *evaluations(store, run)]:
            none = False
            found.update(f"{path}\n".encode("utf-8", "surrogatepass") + hashlib.sha256(store.read(path)).digest())
    return "" if none else found.hexdigest()[:32]


def evaluations(store: Store, run: str) -> list[str]:
    """Return the paths of the tables beside a model."""
    return [path for path in store.find(f"{run}/{EVALUATION}") if path.endswith(".json")]


def report_is_current(store: Store) -> bool:
    """Return whether there is a report, made with the models that are finished and evaluated."""
    try:
        found = _STAMP.search(store.read_range(REPORT, 0, HEAD))
    except PipelineError:  # there is none, or this user may not read it
        return False
    try:
        return (found[1].decode() if found else "") == stamp_of(store)
    except PipelineError:  # of the files of one training, which its own commands tell
        return True
