"""Markers: the small files that make checkpoints valid (`checkpoint.py`), and the files that they vouch for. Imports no
torch, so that a corpus can be verified where it is not installed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from functools import partial

from pydantic import ValidationError

from pipeline.base.errors import CorpusError, DamagedError, MissingError
from pipeline.base.parallel import in_parallel
from pipeline.corpus.fingerprint import content_digest
from pipeline.storage.records import Record, said_of
from pipeline.storage.store import Store, named
from pipeline.training.status import CHECKPOINTS, MARKER

PLAN = "plan.json"
SHARE = re.compile(r"[0-9]{5}-[0-9]{4}\.safetensors")
_OLDER = {"step", "folder", "pinned", "processes", "torch"}  # fields of markers of checkpoints with pickles


class Marker(Record):
    """The file that makes a checkpoint valid. `pinned`: digest of what the training is pinned to."""

    step: int  # number of optimizer steps done
    folder: str  # folder of the shares, in the corpus
    pinned: str
    processes: int
    torch: str
    files: dict[str, str]  # name in the folder → digest


def name_of(step: int) -> str:
    """Return `step-00000100`: names sort as steps do."""
    return f"step-{step:08d}"


def markers(store: Store, run: str) -> list[Marker]:
    """Return the complete checkpoints of a training, the oldest first. Raises `CorpusError` for a damaged marker."""
    return sorted((read_marker(store, path) for path in marker_paths(store, run)), key=lambda marker: marker.step)


def marker_paths(store: Store, run: str) -> list[str]:
    """Return the paths of a training's markers, whatever they contain."""
    folder = f"{run}/{CHECKPOINTS}/"
    return [path for path in store.find(f"{run}/{CHECKPOINTS}", "step-") if MARKER.fullmatch(path.removeprefix(folder))]


def read_marker(store: Store, path: str) -> Marker:
    """Read a marker. Raises `CorpusError` if it is damaged, of an older version, or names what is not its own."""
    where, folder = f"{store.url}/{path}", path.rpartition("/")[0]
    remedy = "delete it to go on from the checkpoint before it, or start over with --fresh"
    data = store.read(path)
    try:
        marker = Marker.model_validate_json(data)
    except ValidationError as error:
        if _is_older(data):
            raise CorpusError(
                f"{where} is a checkpoint of an earlier version of this program, whose files can run code when they "
                "are read, so they are not: end that training with the version that began it, or start over with "
                "--fresh"
            ) from error
        raise CorpusError(f"{where} is damaged ({said_of(error)}); {remedy}") from error
    if path != f"{folder}/{name_of(marker.step)}.json":
        raise CorpusError(f"{where} is damaged: it says that it is of step {marker.step}; {remedy}")
    if PLAN not in marker.files:
        raise CorpusError(f"{where} is damaged: it vouches for no {PLAN}, which every checkpoint has; {remedy}")
    named(marker.folder, folder, rf"{name_of(marker.step)}\.[0-9a-f]{{6}}", by=where, remedy=remedy)
    for file in marker.files:
        named(f"{marker.folder}/{file}", marker.folder, rf"{SHARE.pattern}|{re.escape(PLAN)}", by=where, remedy=remedy)
    return marker


def check_is_of(store: Store, run: str, marker: Marker, pinned: str, steps: int) -> None:
    """Check that a checkpoint is one of this training.

    Args:
        store: the corpus.
        run: the folder of the training.
        marker: the checkpoint to go on from.
        pinned: the digest of what the training is pinned to.
        steps: how many steps the training has.

    Raises:
        CorpusError: if it is one of another training, or its marker was changed.
    """
    if marker.pinned == pinned and marker.step <= steps:
        return
    folder = f"{run}/{CHECKPOINTS}"
    where = f"{store.url}/{folder}/{name_of(marker.step)}.json"
    ours = [one.step for one in markers(store, run) if one.pinned == pinned and one.step < marker.step]
    if marker.pinned == pinned:
        before = f"to go on from step {ours[-1]}" if ours else "to begin again"
        raise CorpusError(
            f"{where} is damaged: it says that {marker.step} steps are done, but {run} has {steps}; delete it "
            f"{before}, or start over with --fresh"
        )
    differ = (at for at, (one, other) in enumerate(zip(marker.pinned, pinned, strict=False)) if one != other)
    shown = max(12, next(differ, len(pinned)) + 1)
    remedy = f"delete it to go on from step {ours[-1]}" if ours else f"delete the content of {folder}"
    raise CorpusError(
        f"{where} is a checkpoint of another training, or was changed (pinned {marker.pinned[:shown]}, {run} "
        f"is {pinned[:shown]}): {remedy}, or start over with --fresh"
    )


def damage(store: Store, marker: Marker) -> Iterator[tuple[str, str]]:
    """Yield files of a checkpoint that differ from its marker: (path, what is wrong). Reads all of them."""
    for name, digest in marker.files.items():
        path = f"{marker.folder}/{name}"
        try:
            found = content_digest(store.read(path))
        except MissingError:
            yield path, "is missing, though a marker vouches for it"
            continue
        except DamagedError as error:  # no file at all
            yield path, f"{error.what}; {error.remedy}"
            continue
        if found != digest:
            yield path, f"has the digest {found[:8]}…, its marker says {digest[:8]}…"


def cut_short(store: Store, marker: Marker) -> Iterator[tuple[str, str]]:
    """Yield files of a checkpoint that are missing or shorter than they say: (path, what is wrong). Reads headers."""
    paths = [f"{marker.folder}/{name}" for name in marker.files]
    for path, what in zip(paths, in_parallel(partial(_what_lacks, store), paths), strict=True):
        if what:
            yield path, what


def _what_lacks(store: Store, path: str) -> str:
    size = store.size(path)
    if not size:
        return "is missing or empty"
    wanted = 0 if path.endswith(f"/{PLAN}") else _size_said(store, path, size)
    return f"is damaged: it has {size} bytes, its header says {wanted}" if size < wanted else ""


def _size_said(store: Store, path: str, size: int) -> int:
    """Return how long a safetensors file should be by its header; 0 if that does not say. `size`: of the file."""
    length = 8 + int.from_bytes(store.read_range(path, 0, 8), "little")
    if length > size:
        return length
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        said = json.loads(store.read_range(path, 8, length))
        end: int = max(one["data_offsets"][1] for name, one in said.items() if name != "__metadata__")
        return length + end
    return 0


def _is_older(data: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(data)
        return isinstance(value, dict) and value.keys() == _OLDER
    return False
