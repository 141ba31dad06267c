"""Cuts inputs into chunks, and decides in which order they are worked on.

Plain JSONL is cut at fixed multiples of `chunk_bytes`, Parquet into groups of row groups that reach that size,
compressed JSONL at its members or by its text (`members.py`); small files share chunks (`packing.py`); every other file
is one chunk. Corpora that began without one of these rules do not get it. A cut depends only on what precedes it, so
adding files or appending to one changes no other chunk's id (except of a file that is divided by its text and becomes
so large that its ranges have to). Cost: a listing, one footer per large Parquet file, some reading of large
compressed ones (sixteen at a time) and, with `limit`, counting as many chunks as the limit needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.parallel import in_parallel
from pipeline.inputs.chunk import BY_TEXT, PACKED, TO_THE_END, UNREADABLE, Chunk, chunk_id
from pipeline.inputs.counting import count_documents
from pipeline.inputs.listing import InputFile, list_files
from pipeline.inputs.members import range_bytes, ranges_of, starts_of
from pipeline.inputs.packing import MEMBERS, RANGES, grouped, is_small, packed_chunk, shares
from pipeline.inputs.parquet import BrokenParquetError, open_parquet, stored_columns
from pipeline.inputs.records import needed_columns
from pipeline.inputs.settings import InputError, InputSettings, LangColumn, SplitSettings
from pipeline.inputs.table import ChunkTable, batches
from pipeline.storage.remote import translate_errors

CHUNK_BYTES = 64 << 20
Edges = Mapping[tuple[str, str, str], list[int]]  # input, path, stamp of a compressed file → edges of its chunks
_NO_EDGES: Edges = MappingProxyType({})


@dataclass(frozen=True)
class _Rules:
    """How files are cut; as for `plan_inputs`."""

    chunk_bytes: int
    packed: Collection[str]
    edges: Edges


@dataclass(frozen=True)
class _Footer:
    columns: frozenset[str]
    row_groups: tuple[int, ...]  # stored bytes of each


def plan_inputs(
    inputs: Sequence[InputSettings],
    chunk_bytes: int = CHUNK_BYTES,
    packed: Collection[str] = (),
    edges: Edges = _NO_EDGES,
) -> ChunkTable:
    """Return the chunks of all inputs.

    Args:
        inputs: the inputs, resolved.
        chunk_bytes: how many bytes of a file a chunk has, about.
        packed: the formats whose small files share chunks, and `MEMBERS` and `RANGES` if compressed files are cut.
        edges: where compressed files were cut before, up to their ends, with the same `chunk_bytes`.

    Returns:
        The chunks in the order of inputs and paths.

    Raises:
        InputError: if two inputs would read the same text of the same file, or for the reasons of `plan_chunks`.
    """
    return ChunkTable.from_batches(list(_batches_of(inputs, _Rules(chunk_bytes, packed, edges))))


def _batches_of(inputs: Sequence[InputSettings], rules: _Rules) -> Iterator[pa.RecordBatch]:
    owners: dict[tuple[str, str], str] = {}
    for settings in inputs:
        with translate_errors(settings.path):
            last = ""
            for batch in batches(_chunks_of(settings, rules)):
                for url, kind in _files_in(batch):
                    if url != last:  # chunks of a file follow each other
                        last = url
                        place = (_place(url, kind), "" if kind == "text" else settings.text)
                        owner = owners.setdefault(place, settings.input_name)
                        if owner != settings.input_name:
                            raise InputError(
                                f"inputs {owner} and {settings.input_name} both match {url}, so its documents would "
                                "stand in the corpus twice; narrow the `path` of one, or remove it",
                                settings.input_name,
                            )
                yield batch


def _files_in(batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
    """Yield address and format of the files of chunks."""
    for url, kind in zip(batch["url"].to_pylist(), batch["format"].to_pylist(), strict=True):
        if kind == PACKED:
            value = json.loads(url)
            yield from ((value["root"] + path, other[0] if other else "text") for path, _, _, *other in value["files"])
        else:
            yield url, kind


def _place(url: str, kind: str) -> str:
    """Return what identifies the file of a chunk: for a local file, its path with links resolved."""
    local = kind != UNREADABLE and url.startswith("file://")
    return os.path.realpath(url.removeprefix("file://")) if local else url


def plan_chunks(settings: InputSettings, chunk_bytes: int = CHUNK_BYTES, packed: Collection[str] = ()) -> list[Chunk]:
    """Return the chunks of a resolved input, in the order of paths.

    With `limit` the last chunk's `take` says how many of its records belong to the first `limit` of the input; bad
    records count too.

    Args:
        settings: the input.
        chunk_bytes: how many bytes of a file a chunk has, about.
        packed: the formats whose small files share chunks, and `MEMBERS` and `RANGES` if compressed files are cut.

    Returns:
        The chunks.

    Raises:
        InputError: if nothing is found, a format cannot be told, or a column is in no file.
    """
    return list(_chunks_of(settings, _Rules(chunk_bytes, packed, _NO_EDGES)))


def _chunks_of(settings: InputSettings, rules: _Rules) -> Iterator[Chunk]:
    chunk_bytes, packed = rules.chunk_bytes, rules.packed
    files = list_files(settings)
    _check_text_files(settings, files)
    parquet = [file for file in files if file.format == "parquet" and not is_small(file, chunk_bytes, packed)]
    found = in_parallel(lambda file: _footer(settings, file), parquet)
    footers = {file.path: footer for file, footer in zip(parquet, found, strict=True)}
    if len(footers) == sum(file.format != UNREADABLE for file in files):
        _check_columns(settings, [footer for footer in footers.values() if footer is not None])
    edges = _edges_of(settings, files, rules)
    chunks = (
        chunk
        for some in grouped(files, chunk_bytes, packed)
        for chunk in _chunks_for(settings, some, footers, edges, rules)
    )
    return chunks if settings.limit is None else _first(chunks, settings.limit)


def _chunks_for(
    settings: InputSettings,
    files: list[InputFile],
    footers: Mapping[str, _Footer | None],
    edges: Mapping[str, list[int]],
    rules: _Rules,
) -> Iterator[Chunk]:
    """Yield the chunk of files that share one, or the chunks of a single file."""
    if shares(files, rules.chunk_bytes, rules.packed):
        yield packed_chunk(settings.input_name, files)
        return
    for file in files:
        if file.path in edges:
            yield from _between(settings, file, edges[file.path], rules.chunk_bytes)
            continue
        for start, end, size in _ranges(file, footers.get(file.path), rules.chunk_bytes):
            yield _chunk(settings, file, start, end, size)


def _between(settings: InputSettings, file: InputFile, edges: Sequence[int], chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks between the edges of a compressed file."""
    if edges[-1] != TO_THE_END:
        for start, end in pairwise(edges):
            yield _chunk(settings, file, start, end, end - start)
        return
    size = range_bytes(file.size, chunk_bytes)
    for at, (start, end) in enumerate(pairwise(edges)):
        one = _chunk(settings, file, start, end, file.size - at * size if end == TO_THE_END else size)
        yield replace(one, compression=f"{file.compression}{BY_TEXT}")


def _edges_of(settings: InputSettings, files: Sequence[InputFile], rules: _Rules) -> dict[str, list[int]]:
    """Return path → the edges of the chunks of compressed files, in stored bytes up to the size of the file if they are
    cut at their members, else in bytes of text up to `TO_THE_END`.

    A file that is one chunk is read as in corpora that do not cut, so it is left out.
    """
    if MEMBERS not in rules.packed:
        return {}
    large = [one for one in files if one.format == "jsonl" and one.compression and one.size > rules.chunk_bytes]

    def find(file: InputFile) -> list[int]:
        *known, end = rules.edges.get((settings.input_name, file.path, file.stamp), [0])
        if known and end in (file.size, TO_THE_END):
            return [*known, end]
        whole = whole_file(settings, file)
        starts = starts_of(whole, rules.chunk_bytes)
        if len(starts) == 1 and RANGES in rules.packed:
            return ranges_of(whole, rules.chunk_bytes)
        return [*starts, file.size]

    found = zip(large, in_parallel(find, large), strict=True)
    return {file.path: edges for file, edges in found if len(edges) > 2}


def order_chunks(chunks: Sequence[Chunk], seed: int) -> ChunkTable:
    """Put chunks into a seeded random order in which every input advances at the same pace.

    Each input's chunks are shuffled and spread over [0, 1) in proportion to their bytes, with a random offset within
    their own stretch, so any beginning of the order holds about the same share of every input's bytes. Raises
    InputError if two chunks have the same id.
    """
    every = ChunkTable.of(chunks)
    ids = every.table["id"].combine_chunks()
    by_id = pc.sort_indices(ids).to_numpy()
    _check_ids(every, ids.take(pa.array(by_id)), by_id)
    inputs = every.table["input"].combine_chunks()
    input_of = inputs.indices.to_numpy()[by_id]
    weights = np.maximum(every.table["bytes"].to_numpy(), 1)
    keys = np.empty(len(every))
    for number, name in enumerate(inputs.dictionary.to_pylist()):
        rng = random.Random(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest())
        shuffled = by_id[input_of == number].tolist()
        rng.shuffle(shuffled)
        members = np.asarray(shuffled, np.int64)
        offsets = np.fromiter((rng.random() for _ in shuffled), np.float64, len(shuffled))
        ends = np.cumsum(weights[members])
        keys[members] = ((ends - weights[members]) + offsets * weights[members]) / (ends[-1] if len(ends) else 1)
    return every.take(by_id[np.argsort(keys[by_id], kind="stable")])


def _check_ids(chunks: ChunkTable, ids: pa.Array, rows: npt.NDArray[np.uint64]) -> None:
    """Check that no two chunks have the same id; among 3 million ids of 12 hex digits that has a probability of 1.6 %.

    `ids` are those of `rows`.
    """
    alike = np.flatnonzero(pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False))
    if len(alike):
        one, two = chunks[int(rows[alike[0]])], chunks[int(rows[alike[0] + 1])]
        raise InputError(
            f"two chunks have the same id {one.id}, by chance: {one.source} from {one.start} and {two.source} from "
            f"{two.start}; rename one of these files, or give its input another `name`"
        )


def _first(chunks: Iterator[Chunk], limit: int) -> Iterator[Chunk]:
    """Yield as many chunks as hold the first `limit` documents."""
    left = limit
    for chunk in chunks:
        documents = count_documents(replace(chunk, take=left)).documents
        if documents == left:
            yield replace(chunk, take=left)
            return
        left -= documents
        yield chunk


def whole_file(settings: InputSettings, file: InputFile) -> Chunk:
    """Return a file as one chunk, whatever it contains."""
    return _chunk(settings, file, 0, TO_THE_END, file.size)


def _chunk(settings: InputSettings, file: InputFile, start: int, end: int, size: int) -> Chunk:
    return Chunk(
        id=chunk_id(settings.input_name, file.path, start),
        input=settings.input_name,
        path=file.path,
        url=file.url,
        format=file.format,
        compression=file.compression,
        start=start,
        end=end,
        bytes=size,
        take=None,
        stamp=file.stamp,
    )


def _ranges(file: InputFile, footer: _Footer | None, chunk_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and stored bytes of each chunk of a file; an empty file has one, so that it is accounted for."""
    if file.format == "jsonl" and not file.compression:
        for start in range(0, max(file.size, 1), chunk_bytes):
            end = min(start + chunk_bytes, file.size)
            yield start, end, end - start
    elif file.format == "parquet" and footer is not None:
        start = size = 0
        for group, stored in enumerate(footer.row_groups):
            size += stored
            if size >= chunk_bytes:
                yield start, group + 1, size
                start, size = group + 1, 0
        if start < len(footer.row_groups) or not footer.row_groups:
            yield start, len(footer.row_groups), size
    else:
        yield 0, TO_THE_END, file.size


def _footer(settings: InputSettings, file: InputFile) -> _Footer | None:
    """Read a footer; None if it is unreadable: the file becomes one chunk that the reader rejects."""
    try:
        with open_parquet(_chunk(settings, file, 0, TO_THE_END, file.size)) as (opened, _):
            groups = (stored_columns(opened, group) for group in range(opened.metadata.num_row_groups))
            sizes = tuple(sum(column.total_compressed_size for column in columns) for columns in groups)
            return _Footer(frozenset(opened.schema_arrow.names), sizes)
    except BrokenParquetError:
        return None


def _check_columns(settings: InputSettings, footers: list[_Footer]) -> None:
    if not footers:
        return
    there = frozenset[str]().union(*(footer.columns for footer in footers))
    missing = [name for name in needed_columns(settings, SplitSettings()) if name not in there]
    if missing:
        raise InputError(
            f"input {settings.input_name}: no Parquet file has a column {', '.join(map(repr, missing))}; "
            f"there are {', '.join(sorted(there))}"
        )


def _check_text_files(settings: InputSettings, files: list[InputFile]) -> None:
    """Check that settings ask for no column of text files, which have none to take an id, a language or
    metadata from.
    """
    text = next((file for file in files if file.format == "text"), None)
    asked = [
        key
        for key, value in (
            ("id", settings.id),
            ("keep", settings.keep),
            ("lang", isinstance(settings.lang, LangColumn)),
        )
        if value
    ]
    ask, them = ("asks", "it") if len(asked) == 1 else ("ask", "them")
    if text is not None and asked:
        raise InputError(
            f"input {settings.input_name}: {text.path} is a text file, which has no columns, but "
            f"{', '.join(asked)} {ask} for columns; leave {them} out (lang: a code such as eng_Latn, or detect), or "
            "give `format:`"
        )
