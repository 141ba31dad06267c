"""The two functions that a launcher runs somewhere, and what they say: events. They never raise.

Descriptors and events are small JSON texts; embeddings never travel, they go from the worker to storage.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline.config import RunConfig
from pipeline.errors import CorpusError, PipelineError, StartError, StorageError
from pipeline.inputs import Chunk
from pipeline.receipts import ChunkReceipt, PartRef
from pipeline.remote import public
from pipeline.segmenting import ChunkSegmenter
from pipeline.store import Store
from pipeline.worker import PartWorker

MAX_STARTS = 3


class Event(BaseModel):
    """Something that happened to a chunk or a part.

    `segmented`: a part is on disk. `chunk`: a chunk's books are closed. `part`: a part is up to date (`computed`: what
    was done now). `failed`: `error` in one line, `detail` for the log, `fatal` if everything else would fail likewise.
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


class SegmentTask:
    """Chunk → events, one a part and one for the chunk. `folder`: where the run counts starts."""

    def __init__(self, config: RunConfig, folder: str, device: str) -> None:
        self._config = config
        self._device = device
        self._starts = _Starts(config, folder)
        self._segmenter: ChunkSegmenter | None = None

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        """Segment a chunk."""
        try:
            self._starts.count(chunk.id)
            self._segmenter = self._segmenter or ChunkSegmenter(self._config, self._device)
            for item in self._segmenter.run(chunk):
                if isinstance(item, ChunkReceipt):
                    yield Event(
                        kind="chunk",
                        where=chunk.path,
                        rows=item.sentences,
                        documents=item.documents_in,
                        bytes=item.bytes_read,
                    )
                else:
                    yield Event(kind="segmented", where=item.ref.part, ref=item.ref, rows=item.rows)
        except Exception as error:
            yield failure(chunk.path, error)


class PartTask:
    """A part → an event; makes the part up to date. May be called from several threads."""

    def __init__(self, config: RunConfig, folder: str, device: str, stages: tuple[str, ...]) -> None:
        self._config = config
        self._starts = _Starts(config, folder)
        self._device = device
        self._stages = stages
        self._loading = threading.Lock()
        self._worker: PartWorker | None = None

    def __call__(self, ref: PartRef) -> Event:
        """Visit a part."""
        try:
            self._starts.count(ref.part)
            with self._loading:
                self._worker = self._worker or PartWorker(self._config, self._device, self._stages)
            visit = self._worker.visit(ref)
        except Exception as error:
            return failure(ref.part, error)
        return Event(kind="part", where=visit.part, rows=visit.rows, computed=visit.computed)


class _Starts:
    """Counts how often a run began each task, so that one that kills its worker is set aside, not tried for ever."""

    def __init__(self, config: RunConfig, folder: str) -> None:
        self._store = Store(config.output)
        self._folder = folder

    def count(self, name: str) -> None:
        """Raises `CorpusError` at the fourth start in one run."""
        if not any(self._store.create(f"{self._folder}/starts/{name}-{number}", b"") for number in range(MAX_STARTS)):
            raise CorpusError(
                f"{name} killed its worker {MAX_STARTS} times and is set aside for this run; look for the cause "
                "(memory?) in the machine's log, then run again"
            )


def failure(where: str, error: BaseException) -> Event:
    """An exception as an event."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} …"
    return Event(
        kind="failed",
        where=where,
        error=public(
            text if isinstance(error, PipelineError) else f"{type(error).__name__}: {text}"
        ),  # ours say it all
        detail=public("".join(traceback.format_exception(error))),
        fatal=isinstance(error, (StorageError, StartError)),
    )
