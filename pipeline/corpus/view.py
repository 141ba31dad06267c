"""A *view*: a configuration's list of chunks with the recipes that apply. A run works on it, and readers open it.

In a run's folder it is `view.json` (the recipes, and a digest of the chunks) and `chunks.parquet` (the chunks, each
with the fingerprint of its segmentation): 50 to 100 bytes per chunk.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from pipeline.base.errors import DamagedError
from pipeline.corpus.fingerprint import column_digest, fingerprint
from pipeline.corpus.recipes import Recipes, recipe_path
from pipeline.inputs import Chunk, ChunkTable
from pipeline.inputs.table import BATCH, SCHEMA, InColumns
from pipeline.storage.records import Values, needed, parse_json, read_json, read_table, sealed
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig

VIEW_FILE = "view.json"
CHUNKS_FILE = "chunks.parquet"
PRINT = pa.binary(16)  # a fingerprint's bytes
Entry = tuple[Chunk, str]
AGAIN = "run the corpus.yaml of this corpus again, which restores it: finished work is kept"
_CHUNKS = SCHEMA.append(pa.field("fingerprint", PRINT))
_OPTIONAL = ["current"]  # a column that is written only where it says something


class _Chunks(BaseModel):
    count: int
    digest: str


class _ViewHeader(BaseModel):
    name: str
    segment: dict[str, dict[str, Any]]
    stages: dict[str, dict[str, Any]]
    reads: dict[str, list[str]]
    fits: dict[str, str]
    fit_contents: dict[str, str] = {}  # none by earlier versions
    chunks: _Chunks


class Listed(InColumns[Entry]):
    """Chunks with the fingerprints of their segmentation, 16 bytes each in `prints`."""

    def __init__(self, chunks: ChunkTable, fingerprints: pa.FixedSizeBinaryArray) -> None:
        self.chunks = chunks
        self.fingerprints = fingerprints

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Listed:
        """Return entries in columns; this costs nothing if they are so already."""
        if isinstance(entries, Listed):
            return entries
        fingerprints = pa.array([bytes.fromhex(one) for _, one in entries], PRINT)
        return cls(ChunkTable.of([chunk for chunk, _ in entries]), fingerprints)

    @functools.cached_property
    def digest(self) -> str:
        """Return 32 hex digits of the whole content."""
        sha = hashlib.sha256()
        for name in self.written_columns():
            for start in range(0, len(self), BATCH):
                sha.update(column_digest(self.chunks.table[name].slice(start, BATCH)).encode())
        for some in self._bytes():
            sha.update(b"".join(some))
        return sha.hexdigest()[:32]

    def written_columns(self) -> list[str]:
        """Return the columns of the chunks that hold any information."""
        silent = [name for name in _OPTIONAL if self.chunks.table[name].unique().to_pylist() in ([], [""])]
        return [name for name in SCHEMA.names if name not in silent]

    def _bytes(self) -> Iterator[list[bytes]]:
        for start in range(0, len(self), BATCH):
            yield self.fingerprints.slice(start, BATCH).to_pylist()

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[Entry]:
        return zip(self.chunks, (one.hex() for some in self._bytes() for one in some), strict=True)

    def take(self, rows: Any) -> Listed:
        """Return the entries of these rows (integers), in that order."""
        return Listed(self.chunks.take(rows), self.fingerprints.take(rows))

    def _item(self, row: int) -> Entry:
        return self.chunks[row], self.fingerprints[row].as_py().hex()


@dataclass
class View:
    """Chunks with their fingerprints, and the recipes of the row-wise stages."""

    name: str
    chunks: Sequence[Entry]
    segment: dict[str, dict[str, Any]]
    stages: dict[str, dict[str, Any]]
    reads: dict[str, list[str]]
    fits: dict[str, str] = field(default_factory=dict)  # name → record of the fit
    fit_contents: dict[str, str] = field(default_factory=dict)  # name → digest of its tensors, to tell another by

    @classmethod
    def of(cls, config: RunConfig, chunks: Iterable[Chunk]) -> View:
        """Return the view of a configuration over chunks."""
        recipes = Recipes.of(config)
        table = ChunkTable.of(chunks)
        return cls(
            name=config.name,
            chunks=Listed(table, recipes.chunk_fingerprints(table)),
            segment=recipes.segment,
            stages=recipes.stages,
            reads={stage.name: list(stage.reads) for stage in config.row_stages()},
            fits={name: fit.record for name, fit in config.frozen.fits.items()},
            fit_contents={name: fit.content for name, fit in config.frozen.fits.items()},
        )

    @property
    def listed(self) -> Listed:
        """The chunks in columns."""
        return Listed.of(self.chunks)

    def header(self) -> str:
        """Return the content of `view.json`, except for the digests of fits; two views are equal if this is."""
        return json.dumps(self._values(), ensure_ascii=False, indent=1)

    def _values(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "segment": self.segment,
            "stages": self.stages,
            "reads": self.reads,
            "fits": self.fits,
            "chunks": {"count": len(self.chunks), "digest": self.listed.digest},
        }

    def keeping_contents(self, earlier: View) -> View:
        """Return the view with the digests of fits that an earlier view has for the same records."""
        same = {name for name, path in self.fits.items() if earlier.fits.get(name) == path}
        kept = {name: content for name, content in earlier.fit_contents.items() if name in same}
        return replace(self, fit_contents=self.fit_contents | kept)

    def write_chunks(self, store: Store, folder: str) -> None:
        """Write the list of chunks, which no later decision of a run changes, into its folder."""
        sink = pa.BufferOutputStream()
        table = self.listed.chunks.table.select(self.listed.written_columns())
        table = table.append_column("fingerprint", self.listed.fingerprints)
        pq.write_table(table, sink, compression="zstd", write_statistics=False, write_page_checksum=True)
        store.write(f"{folder}/{CHUNKS_FILE}", memoryview(sink.getvalue()))

    def write_header(self, store: Store, folder: str) -> None:
        """Write everything else; after this, the folder has a view."""
        value = self._values() | {"fit_contents": self.fit_contents}
        store.write(f"{folder}/{VIEW_FILE}", sealed(json.dumps(value, ensure_ascii=False, indent=1)))

    @classmethod
    def read(cls, store: Store, folder: str) -> View:
        """Read the view of a run's folder. Raises `CorpusError` if it is damaged, or of an older version."""
        header = _header(store, folder)
        with needed(store, f"{folder}/{CHUNKS_FILE}", AGAIN):
            table = read_table(store, f"{folder}/{CHUNKS_FILE}", _CHUNKS, AGAIN, optional=_OPTIONAL)
        listed = Listed(ChunkTable(table.select(SCHEMA.names)), table["fingerprint"].combine_chunks())
        if (header.chunks.count, header.chunks.digest) != (len(listed), listed.digest):
            what = f"it is not the list of chunks that {VIEW_FILE} names"
            raise DamagedError(f"{store.url}/{folder}/{CHUNKS_FILE}", what, AGAIN)
        return cls(
            header.name, listed, header.segment, header.stages, header.reads, header.fits, header.fit_contents
        )  # fmt: skip


def _header(store: Store, folder: str) -> _ViewHeader:
    with needed(store, f"{folder}/{VIEW_FILE}", AGAIN):
        return read_json(store, f"{folder}/{VIEW_FILE}", _ViewHeader, AGAIN)


def segment_recipes(store: Store, folder: str) -> dict[str, dict[str, Any]]:
    """Return the recipes of inputs in the view of a run's folder, without reading its chunks. Raises `CorpusError` as
    `View.read`.
    """
    return _header(store, folder).segment


def save_recipes(store: Store, view: View) -> None:
    """Store every recipe once, so that a later plan can say what changed."""
    for recipe in (*view.segment.values(), *view.stages.values()):
        path = recipe_path(recipe)
        if not store.exists(path):
            store.create(path, json.dumps(recipe, ensure_ascii=False, indent=1, sort_keys=True).encode())


@functools.cache  # many parts have the same old recipe, and a recipe's file never changes
def saved_recipe(store: Store, stage: str, digest: str) -> dict[str, Any] | None:
    """Return a recipe of an earlier run by its fingerprint; None if it was not stored.

    Args:
        store: the corpus.
        stage: the stage.
        digest: the fingerprint of the recipe.

    Returns:
        The recipe; None also if its file is damaged.
    """
    path = f"recipes/{stage}.{digest}.json"
    if not store.exists(path):
        return None
    try:
        recipe = parse_json(store.read(path), Values, path, "")
    except DamagedError:
        return None
    return recipe if fingerprint(recipe) == digest else None
