"""The two functions that a launcher runs somewhere, and what they say: events. They never raise.

Descriptors and events are small JSON texts; embeddings never travel, they go from the worker to storage.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline.config import RunConfig
from pipeline.inputs import Chunk
from pipeline.receipts import ChunkReceipt, PartRef
from pipeline.segmenting import ChunkSegmenter
from pipeline.worker import PartWorker


class Event(BaseModel):
    """Something that happened to a chunk or a part.

    `segmented`: a part is on disk. `chunk`: a chunk's books are closed. `part`: a part is up to date (`computed`: what
    was done now). `failed`: `error` in one line, `detail` for the log.
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


class SegmentTask:
    """Chunk → events, one a part and one for the chunk."""

    def __init__(self, config: RunConfig) -> None:
        self._segmenter = ChunkSegmenter(config)

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        """Segment a chunk."""
        try:
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
    """A part → an event; makes the part up to date."""

    def __init__(self, config: RunConfig, device: str, stages: tuple[str, ...]) -> None:
        self._worker = PartWorker(config, device, stages)

    def __call__(self, ref: PartRef) -> Event:
        """Visit a part."""
        try:
            visit = self._worker.visit(ref)
        except Exception as error:
            return failure(ref.part, error)
        return Event(kind="part", where=visit.part, rows=visit.rows, computed=visit.computed)


def failure(where: str, error: BaseException) -> Event:
    """An exception as an event."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} …"
    return Event(
        kind="failed",
        where=where,
        error=f"{type(error).__name__}: {text}",
        detail="".join(traceback.format_exception(error)),
    )
