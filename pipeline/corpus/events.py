"""The events that a worker reports while it works: small JSON values, never embeddings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pipeline.corpus.receipts import PartRef
from pipeline.storage.records import read_lines
from pipeline.storage.store import Store


class Event(BaseModel):
    """Something that happened to a chunk or a part.

    `segmented`: a part is written. `chunk`: a chunk is finished and its accounting balances. `part`: a part is up to
    date (`computed`: what was done now). `failed`: `error` in one line, `detail` for the log, `fatal` if everything
    else would fail in the same way, `away` if that is because a store does not answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["segmented", "chunk", "part", "failed"]
    where: str  # a part, or the path of a chunk's source
    ref: PartRef | None = None
    rows: int = 0
    documents: int = 0
    bytes: int = 0
    computed: tuple[str, ...] = ()
    error: str = ""
    detail: str = ""
    fatal: bool = False
    away: bool = False


class _Logged(Event):
    """An event in the record of a run: with the worker that reported it, and the time."""

    time: str = ""
    worker: str = ""


def read_events(store: Store, path: str) -> list[dict[str, Any]]:
    """Read a file of events. Raises `CorpusError` if it is damaged."""
    found = read_lines(store, path, _Logged, "delete it: only the log of that run is lost")
    return [one.model_dump(mode="json", exclude_unset=True) for one in found]
