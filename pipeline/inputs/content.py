"""Whether a chunk still holds what it held, where its file has another time or version: a digest of what is read of it.

`count_documents` shows a `Content` the stored bytes that the chunk's documents depend on, and nothing else, so that
what is appended to a file leaves the digests of the chunks before it as they were: of plain JSONL the lines that begin
in the chunk, whole; of Parquet the pages of the columns that are read; of other files all bytes; with `take`, the
blocks that hold so many records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pipeline.inputs.chunk import UNREADABLE, Chunk


class Content:
    """A digest under way. `columns`: those that documents are made of, in formats that have columns."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self.columns = columns
        self._sha = hashlib.sha256()

    def update(self, stored: bytes | memoryview) -> None:
        """Stored bytes, in their order."""
        self._sha.update(stored)

    def add(self, *facts: Any) -> None:
        """What else documents depend on, as JSON values."""
        self._sha.update(json.dumps(facts).encode())

    def digest(self) -> str:
        """32 hex digits."""
        return self._sha.hexdigest()[:32]

    def of(self, chunk: Chunk) -> str:
        """What a receipt keeps: `<bytes of the chunk>-<digest>`; empty for what cannot be opened."""
        return "" if chunk.format == UNREADABLE else f"{chunk.bytes}-{self.digest()}"
