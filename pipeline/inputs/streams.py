"""Yields bytes of input files in blocks: ranges of plain files, and decompressed streams that say where they broke.

Decompression works block by block here, not through the libraries' file objects: those lose what was decoded just
before a break, stop after the first zstd frame, or end silently when a zstd file is truncated. Memory is one raw block
and about 1 MiB of what it decompresses to (zstd: at most 32 MiB), whatever the ratio, and what zstd and xz have to keep
of it: up to 128 MiB or, for frames and streams that need more, a hundred times what is stored. Errors of the store
(network, permissions) are never mistaken for broken files: requests are repeated if that may help (and counted);
otherwise the error is raised unchanged.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol, cast

import zstandard

from pipeline.base.formats import counted
from pipeline.inputs.chunk import BY_TEXT, GROWTH, TO_THE_END, Chunk
from pipeline.inputs.listing import stamp
from pipeline.inputs.magic import HEAD, looks_like, not_text, remedy
from pipeline.inputs.settings import InputError
from pipeline.storage.remote import is_remote
from pipeline.storage.retry import check_length, filesystem, with_retries

BLOCK = 1 << 20
PIECE = 1 << 16  # the most compressed bytes that a break can lose
WINDOW = 1 << 27  # bytes that zstd keeps by default; the dictionary of xz -9 has half of them
FRAME_HEAD = 18  # bytes of the head of a zstd frame, at most
ZSTD_PIECE = 1 << 10  # given to zstd at once, which has no limit of its own: a block of 4 bytes can become 128 KiB

DECODE_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, ValueError, EOFError)


class BrokenStreamError(Exception):
    """The stored bytes cannot be decompressed further; everything decodable was yielded before.

    `bytes_unreadable`: stored bytes from the piece that failed to the end of the file; 0 if the file simply ends too
    early, because what is missing has no size.
    """

    def __init__(self, error: str, bytes_unreadable: int) -> None:
        super().__init__(error)
        self.bytes_unreadable = bytes_unreadable


class Decompressor(Protocol):
    """The common interface of zlib, bz2, lzma and zstandard: one member, frame or stream."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, limit: int = ..., /) -> bytes: ...


def open_chunk(chunk: Chunk, *, random_access: bool = False) -> IO[bytes]:
    """Open the chunk's file, if it is still the one that was planned.

    `random_access` is for Parquet, whose reader asks for exactly what it needs; otherwise 8 MiB are read ahead. Raises
    InputError if the file has changed since, because ranges and counts no longer fit.
    """
    fs, path, _ = _as_planned(chunk)
    cache = "none" if random_access else "readahead"
    with _there(chunk):
        file = with_retries("open input", lambda: fs.open(path, "rb", block_size=8 * BLOCK, cache_type=cache))
    return cast(IO[bytes], _RetriedFile(file, path if is_remote(chunk.url) else ""))


class _RetriedFile:
    """A file that repeats each read while its store fails in a way that may pass. `path`: empty for a local file."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file, self._path = file, path

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()

        def read() -> bytes:
            self._file.seek(at)
            data = self._file.read(size)
            if self._path and size > 0:
                check_length(self._path, at, at + size, data, lambda: getattr(self._file, "size", None))
            return data

        return with_retries("read input", read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _RetriedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def head_of(chunk: Chunk) -> bytes:
    """Return the first bytes of the chunk's file, wherever the chunk itself begins: one small request."""
    fs, path, size = _as_planned(chunk)
    if not size:  # stores refuse an empty range
        return b""
    with _there(chunk):
        return with_retries("read input", lambda: bytes(fs.cat_file(path, start=0, end=HEAD)))


def check_lines(chunk: Chunk, head: bytes) -> None:
    """Raise BrokenStreamError if a file that should hold lines of JSON begins like something else.

    Otherwise every line of an image would become a record.
    """
    name = not_text(head)
    if name:
        error = f"the file begins like {name}, not like lines of JSON: {remedy(name, bool(chunk.compression))}"
        raise BrokenStreamError(error, chunk.bytes)


def _as_planned(chunk: Chunk) -> tuple[Any, str, int]:
    """Return file system, path there, and size in bytes."""
    fs, path = filesystem(chunk.url)
    fs.invalidate_cache(path)
    with _there(chunk):
        info = with_retries("look at input", lambda: fs.info(path))
        now = stamp(fs, path, info)
    if now != (chunk.current or chunk.stamp):
        raise _moved(chunk, "has changed")
    return fs, path, int(info["size"] or 0)


@contextlib.contextmanager
def _there(chunk: Chunk) -> Iterator[None]:
    """Raise InputError if the store says that the chunk's file does not exist."""
    try:
        yield
    except FileNotFoundError as error:
        raise _moved(chunk, "is gone") from error


def _moved(chunk: Chunk, state: str) -> InputError:
    return InputError(
        f"{chunk.url.removeprefix('file://')} {state} since the run was planned; start the run again, and leave input "
        "files alone while it goes on"
    )


def raw_blocks(chunk: Chunk, start: int, end: int | None = None) -> Iterator[bytes]:
    """Yield the stored bytes of a range of a chunk's file.

    Args:
        chunk: the chunk.
        start: the offset of the first byte.
        end: the offset after the last byte; None for the end of the file.

    Yields:
        Up to 1 MiB of bytes. `InputError` is raised if the file ends before `end`.
    """
    with open_chunk(chunk) as file:
        file.seek(start)
        left = end - start if end is not None else None
        while left is None or left > 0:
            block = file.read(BLOCK if left is None else min(BLOCK, left))
            if not block:
                if left is not None:
                    raise _moved(chunk, f"has become shorter (by {counted(left, 'byte')})")
                return
            yield block
            left = left - len(block) if left is not None else None


def decompressed_blocks(chunk: Chunk, see: Callable[[bytes], object] = lambda stored: None) -> Iterator[bytes]:
    """Yield the whole file, decompressed (as it is when plain); of a chunk of some members, all from the first one on,
    with an empty block where the chunk ends, unless the file ends there.

    Raises BrokenStreamError after the last good bytes, and InputError if the chunk ends in the middle of a member.
    `see`: is shown the stored bytes, a block before what comes of it.
    """
    if not chunk.compression:
        for block in raw_blocks(chunk, 0):
            see(block)
            yield block
        return
    end = None if chunk.end == TO_THE_END else chunk.bytes  # counted from the chunk's start
    most = GROWTH * (chunk.bytes if end is None else _as_planned(chunk)[2])
    decompressor: Bounded | None = None
    given_out = False
    done = 0  # stored bytes of the pieces that were decoded
    members = 0  # gzip members, zstd frames, … that ended properly
    for block in raw_blocks(chunk, chunk.start):
        see(block)
        begin = 0
        while begin < len(block):
            if done == end:
                if decompressor is not None:
                    raise _no_cut(chunk)
                yield b""
            size = PIECE if end is None or done >= end else min(PIECE, end - done)
            data = piece = block[begin : begin + size]
            begin += len(piece)
            while data:
                if decompressor is None:
                    data = data.lstrip(b"\0") if members else data  # padding between or after members
                    if not data:
                        break
                    decompressor = decompressor_of(chunk.compression, most)
                try:
                    for out in decompressor.decoded(data):
                        if not given_out and chunk.format == "jsonl" and not chunk.start:
                            check_lines(chunk, out)
                        given_out = True
                        yield out
                except DECODE_ERRORS as error:
                    begun = given_out or members or chunk.start
                    hint = "" if begun else looks_like(head_of(chunk), chunk.compression)
                    left = max(0, chunk.bytes - done)
                    raise BrokenStreamError(f"{chunk.compression}: {error}{hint}", left) from error
                data = b""
                if decompressor.ended:
                    data, decompressor = decompressor.unused, None
                    members += 1
            done += len(piece)
    if decompressor is not None or not members:
        what = "ends in the middle of the compressed stream" if chunk.bytes else "is empty, without even a header"
        raise BrokenStreamError(f"{chunk.compression}: the file {what}; copy it again", 0)


def own_blocks(chunk: Chunk, see: Callable[[bytes], object] = lambda stored: None) -> Iterator[bytes]:
    """Yield what the lines of a compressed chunk consist of, decompressed.

    The line that is going on where a chunk begins belongs to the chunk before, and so does the line that begins there,
    since only the chunk before could tell that. So of a chunk of some members the first line is left out, and the first
    one of those after it is added: a line that runs across members, or across whole chunks, is read once.
    `see` is called only for whole files. Raises as `decompressed_blocks` does.
    """
    if chunk.end == TO_THE_END:
        yield from decompressed_blocks(chunk, see)
        return
    begun, behind = chunk.start == 0, False
    for block in decompressed_blocks(chunk):
        if not block:
            if not begun:  # a line of the chunk before goes on in all of this one
                return
            behind = True
        elif behind:
            own, newline, _ = block.partition(b"\n")
            yield own + newline
            if newline:
                return
        elif begun:
            yield block
        else:
            _, newline, own = block.partition(b"\n")
            begun = bool(newline)
            if own:
                yield own


def text_blocks(chunk: Chunk, start: int) -> Iterator[bytes]:
    """Yield what the whole file of a compressed chunk is decompressed to, from a byte of that on.

    What precedes it is decompressed too. Raises as `decompressed_blocks` does.
    """
    _, _, size = _as_planned(chunk)
    compression = chunk.compression.removesuffix(BY_TEXT)
    whole = dataclasses.replace(chunk, compression=compression, start=0, end=TO_THE_END, bytes=size)
    at = 0
    for block in decompressed_blocks(whole):
        if at + len(block) > start:
            yield block[max(0, start - at) :]
        at += len(block)


def _no_cut(chunk: Chunk) -> InputError:
    return InputError(
        f"{chunk.url.removeprefix('file://')}: bytes at {chunk.end} look like the beginning of a member, frame or "
        "stream, but lie inside of one; compress the file again, which stores these bytes in another way"
    )


class Bounded:
    """A member, frame or stream that is decoded in pieces of bounded size; `unused` is what followed its end.

    Args:
        decompressor: of the library.
        compression: its name.
        most: bytes that a zstd frame with a larger window than `WINDOW` may hold, and that xz may keep.
    """

    def __init__(self, decompressor: Decompressor, compression: str, most: int) -> None:
        self._decompressor, self._compression, self._most = decompressor, compression, most
        self._head, self._given = b"", 0
        self.unused = b""

    @property
    def ended(self) -> bool:
        """Whether the member, frame or stream is complete."""
        return self._decompressor.eof

    def decoded(self, data: bytes) -> Iterator[bytes]:
        """Yield what these bytes decompress to, in non-empty pieces."""
        one: Any = self._decompressor
        if self._compression == "zstd":
            for begin in range(0, len(data), ZSTD_PIECE):
                piece = data[begin : begin + ZSTD_PIECE]
                self._head += piece[: max(0, FRAME_HEAD - len(self._head))]
                out = one.decompress(piece)
                self._given += len(out)
                if self._given > self._most and (window := _window(self._head)) > WINDOW:
                    raise ValueError(
                        f"a frame with a window of {window} bytes holds more than {self._most} bytes, {GROWTH} times "
                        "what is stored"
                    )
                yield from (out[at : at + BLOCK] for at in range(0, len(out), BLOCK))
                if one.eof:
                    self.unused = one.unused_data + data[begin + ZSTD_PIECE :]
                    return
            return
        while True:
            try:
                out = one.decompress(data, BLOCK)
            except lzma.LZMAError as error:
                if "limit" not in str(error):
                    raise
                raise ValueError(
                    f"reading it takes more than {self._most} bytes of memory, {GROWTH} times what is stored; compress "
                    "it again with xz -9, whose dictionary is smaller"
                ) from error
            if out:
                yield out
            if one.eof:
                self.unused = one.unused_data
                return
            if self._compression == "gzip":
                data = one.unconsumed_tail
                if not data and len(out) < BLOCK:
                    return
            else:
                data = b""
                if one.needs_input:
                    return


def _window(head: bytes) -> int:
    """Return how many bytes a zstd decoder has to keep, from the beginning of a frame (RFC 8878)."""
    if head[4] & 0x20:  # as many as it holds
        dictionary, size = (0, 1, 2, 4)[head[4] & 3], (1, 2, 4, 8)[head[4] >> 6]
        return int.from_bytes(head[5 + dictionary : 5 + dictionary + size], "little")
    return (1 << 10 + (head[5] >> 3)) // 8 * (8 + (head[5] & 7))


def decompressor_of(compression: str, most: int) -> Bounded:
    """Return a decompressor of one member, frame or stream. most: bytes that a zstd frame with a large window may hold,
    and that xz may keep.
    """
    most = max(most, WINDOW)
    made: Any
    if compression == "gzip":
        made = zlib.decompressobj(wbits=31)
    elif compression == "bz2":
        made = bz2.BZ2Decompressor()
    elif compression == "xz":
        made = lzma.LZMADecompressor(memlimit=most + BLOCK)  # what it keeps besides the dictionary
    else:
        made = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()  # files of `zstd --long=31`
    return Bounded(cast(Decompressor, made), compression, most)
