"""Packs small files into shared chunks: a folder of 100 000 notes, or of 10 000 JSONL files, has tens of chunks.

Files follow each other in the order of their paths, and a chunk begins where a hash of a file's path says so: about
every `chunk_bytes` / 4 of text files, and every `chunk_bytes` / 16 of JSONL. So a file that is added, changed or
removed affects only its own chunk (two if it is the first of a chunk), which has about the sentences of one part.
Files of a fourth of that and more have chunks of their own. A byte of Parquet or of compressed JSONL counts three
times. The list of files is in the chunk's `url`, as JSON: about 60 bytes each.

A text file is one document and has always been packed as in the first rule. Of records, a corpus usually has larger
files that are added every day, and each addition repeats the work on its chunk, so those chunks are smaller.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from pipeline.inputs.chunk import PACKED, TO_THE_END, Chunk, chunk_id
from pipeline.inputs.listing import COMPRESSIONS, InputFile

TEXT = ("text",)  # what shares chunks in corpora of earlier versions
MEMBERS = "members"  # stands for compressed files that are cut at their members
RANGES = "ranges"  # stands for compressed files without such cuts, of which ranges of text are chunks
PACKABLE = ("jsonl", MEMBERS, "parquet", RANGES, "text")
SHARE, SMALL = 4, 16  # of `chunk_bytes`: a packed chunk's on average, and from which on a file is not packed
RECORDS, COMPRESSED = 4, 3  # how many times a byte of records counts, and one of compressed records or Parquet
MOST_FILES = 1 << 16  # of a chunk
FILE_BYTES = 256  # the least that a file counts, so that a chunk of empty files ends


def grouped(files: Iterable[InputFile], chunk_bytes: int, formats: Collection[str]) -> Iterator[list[InputFile]]:
    """Yield the files in their order: those that share a chunk together, all others alone.

    Args:
        files: the files of an input.
        chunk_bytes: how many bytes of a file a chunk has, about.
        formats: the formats whose small files share chunks.

    Yields:
        The files of one chunk; several chunks are made of a large file.
    """
    group: list[InputFile] = []
    size = 0
    for file in files:
        packs = is_small(file, chunk_bytes, formats)
        counted = _weight(file) * max(file.size, FILE_BYTES)
        full = size + counted > chunk_bytes or len(group) >= MOST_FILES
        if group and (not packs or full or _begins(file.path, counted * SHARE / chunk_bytes)):
            yield group
            group, size = [], 0
        if packs:
            group.append(file)
            size += counted
        else:
            yield [file]
    if group:
        yield group


def is_small(file: InputFile, chunk_bytes: int, formats: Collection[str]) -> bool:
    """Return whether a file may share its chunk with others.

    Args:
        file: the file.
        chunk_bytes: how many bytes of a file a chunk has, about.
        formats: the formats whose small files share chunks.

    Returns:
        True if what it holds, decompressed, is probably much smaller than a chunk.
    """
    small = file.size * _weight(file) < chunk_bytes // SMALL
    return small and file.format in formats and file.url.endswith(file.path)


def shares(group: Sequence[InputFile], chunk_bytes: int, formats: Collection[str]) -> bool:
    """Return whether the files of a chunk make a packed one: several files, or a small text file alone.

    Args:
        group: the files of the chunk.
        chunk_bytes: how many bytes of a file a chunk has, about.
        formats: the formats whose small files share chunks.

    Returns:
        False for a single file that is no text: it is read as a chunk of its own.
    """
    return is_small(group[0], chunk_bytes, formats) and (len(group) > 1 or group[0].format == "text")


def _weight(file: InputFile) -> int:
    if file.format == "text":
        return 1
    return RECORDS * (COMPRESSED if file.compression or file.format == "parquet" else 1)


def _begins(path: str, probability: float) -> bool:
    """Return whether a chunk begins with this file."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8, person=b"chunk").digest(), "big") < (
        probability * 2**64
    )


def packed_chunk(input_name: str, files: Sequence[InputFile]) -> Chunk:
    """Return one chunk of several files."""
    first, last = files[0].path, files[-1].path
    listed = [[file.path, file.size, file.stamp, *([file.format] * (file.format != "text"))] for file in files]
    stamp = hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()
    value = {"root": files[0].url.removesuffix(first), "files": listed}
    return Chunk(
        id=chunk_id(input_name, f"{PACKED}\0{first}", 0),
        input=input_name,
        path=first if len(files) == 1 else f"{first} … {last} ({len(files)} files)",
        url=json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        format=PACKED,
        compression="",
        start=0,
        end=TO_THE_END,
        bytes=sum(file.size for file in files),
        take=None,
        stamp=stamp,
    )


def files_of(chunk: Chunk) -> Iterator[Chunk]:
    """Yield each file of a packed chunk as a chunk of its own, in order; any other chunk as it is."""
    if chunk.format != PACKED:
        yield chunk
        return
    value = json.loads(chunk.url)
    for path, size, stamp, *other in value["files"]:
        compression = COMPRESSIONS.get(posixpath.splitext(path.lower())[1], "")
        one = replace(chunk, path=path, url=value["root"] + path, format=other[0] if other else "text")
        end = size if one.format == "jsonl" and not compression else TO_THE_END
        yield replace(one, compression=compression, end=end, bytes=size, stamp=stamp, current="", take=None)


def formats_of(chunk: Chunk) -> set[str]:
    """Return the formats of a chunk's files."""
    return {one.format for one in files_of(chunk)}


def root_of(chunk: Chunk) -> str:
    """Return the folder of a packed chunk's files, with a final slash; for any other chunk, its file."""
    return str(json.loads(chunk.url)["root"]) if chunk.format == PACKED else chunk.url
