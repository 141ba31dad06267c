"""Finds where compressed files can be cut: at members (gzip), frames (zstd) or streams (bzip2, xz), or by their text.

Files that were appended to or put together have several members, and so have those of bgzip, pzstd and pbzip2. Behind
every `chunk_bytes` of stored bytes, the next beginning of a member is looked for, by its signature and by decoding or
walking what follows; the first one has to be found within `chunk_bytes`. So a cut depends only on what precedes it, and
appending to a file that is cut in this way changes none before. Cost: the bytes between those places and the
beginnings that are found; of a file with one member, `chunk_bytes` of it. Runs find the cuts of unchanged files in the
view of the run before. Readers check every cut (`streams.py`): what precedes it has to end there.

A large file in which no first cut is found is divided by its text: at equal numbers of decompressed bytes, about as
many as `chunk_bytes`, or two, four, … times as much, hold where the file begins. Each chunk decompresses all that
precedes it, which takes far less time than segmenting; there are at most `MOST_RANGES` of them, so that this stays so.
Cost: `MEASURED` stored bytes are decompressed. Every other file is one chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from pipeline.inputs.chunk import GROWTH, TO_THE_END, Chunk
from pipeline.inputs.streams import BLOCK, DECODE_ERRORS, Bounded, decompressor_of, open_chunk, raw_blocks

SIGNATURES = {
    "gzip": re.compile(rb"\x1f\x8b\x08[\x00-\x1f]", re.DOTALL),
    "bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    "xz": re.compile(rb"\xfd7zXZ\x00\x00", re.DOTALL),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd", re.DOTALL),
}
LEAST_RANGES, MOST_RANGES = 4, 32  # chunks of a file that is divided by its text
MEASURED = 4 << 20  # stored bytes that show how much text a stored byte holds
_LONGEST = 10  # bytes of a signature
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)  # a zstd frame without content


def starts_of(whole: Chunk, chunk_bytes: int) -> list[int]:
    """Return where the chunks of a compressed file begin; the first is 0. whole: the file as one chunk.

    Raises InputError if the file changes while it is read.
    """
    starts = [0]
    while (target := starts[-1] + chunk_bytes) < whole.bytes:
        reach = whole.bytes if len(starts) > 1 else target + chunk_bytes
        found = next(_members(whole, target, min(whole.bytes, reach)), None)
        if found is None:
            break
        starts.append(found)
    return starts


def ranges_of(whole: Chunk, chunk_bytes: int) -> list[int]:
    """Return where the chunks of a compressed file begin in its text, and the end of the last, TO_THE_END.

    Args:
        whole: the file as one chunk.
        chunk_bytes: how many stored bytes a chunk has, or more if the file is very large.

    Returns:
        0, …, TO_THE_END; without anything between if the file is small or its beginning cannot be decompressed.

    Raises:
        InputError: if the file changes while it is read.
    """
    if whole.bytes < LEAST_RANGES * chunk_bytes:
        return [0, TO_THE_END]
    stored = min(whole.bytes, MEASURED)
    text = _text_bytes(whole, stored)
    if not text:
        return [0, TO_THE_END]
    size = range_bytes(whole.bytes, chunk_bytes)
    step = max(1, text * size // stored)
    count = (whole.bytes + size // 2) // size  # the last has half of a range at least
    return [*(step * at for at in range(count)), TO_THE_END]


def _text_bytes(whole: Chunk, stored: int) -> int:
    """Return how many bytes so many stored bytes at a file's beginning are decompressed to, a hundred times as many at
    most; 0 if they cannot be decompressed.
    """
    text = 0
    decompressor: Bounded | None = None
    for block in raw_blocks(whole, 0, stored):
        data = block
        while data:
            decompressor = decompressor or decompressor_of(whole.compression, GROWTH * whole.bytes)
            try:
                for piece in decompressor.decoded(data):
                    text += len(piece)
                    if text > GROWTH * stored:
                        return text
            except DECODE_ERRORS:
                return 0
            data = b""
            if decompressor.ended:
                data, decompressor = decompressor.unused.lstrip(b"\0"), None
    return text


def range_bytes(file_bytes: int, chunk_bytes: int) -> int:
    """Return about how many stored bytes a range has: twice as many, or four times, … where there were too many."""
    while file_bytes > MOST_RANGES * chunk_bytes:
        chunk_bytes *= 2
    return chunk_bytes


def _members(whole: Chunk, start: int, end: int) -> Iterator[int]:
    """Yield the beginnings of members in [start, end)."""
    signature = SIGNATURES[whole.compression]
    held, at = b"", start  # `at`: where `held` begins
    for block in raw_blocks(whole, start, min(end + _LONGEST, whole.bytes)):
        held += block
        for match in signature.finditer(held):
            place = at + match.start()
            if place < end and _begins(whole, place):
                yield place
        keep = min(len(held), _LONGEST - 1)
        at, held = at + len(held) - keep, held[len(held) - keep :]


def _begins(whole: Chunk, place: int) -> bool:
    """Return whether a member begins at a place."""
    with open_chunk(whole) as file:
        file.seek(place)
        if not _decodes(whole, file.read(BLOCK)):
            return False
        return whole.compression != "zstd" or _walks(file, place, whole.bytes)


def _decodes(whole: Chunk, data: bytes) -> bool:
    decompressor = decompressor_of(whole.compression, GROWTH * whole.bytes)
    try:
        for _ in decompressor.decoded(data):
            pass
    except DECODE_ERRORS:
        return False
    return True


def _walks(file: IO[bytes], place: int, size: int) -> bool:
    """Return whether the blocks of a zstd frame lead to its end, and that is the beginning of a frame, or the file's
    end (RFC 8878). By chance four bytes of a signature occur in every 4 GB.
    """
    file.seek(place)
    head = file.read(18)
    if len(head) < 6 or head[4] & 0x08:
        return False
    single, dictionary, content = head[4] >> 5 & 1, (0, 1, 2, 4)[head[4] & 3], (0, 2, 4, 8)[head[4] >> 6]
    at = place + 5 + (not single) + dictionary + (content or single)
    last = False
    while not last:
        file.seek(at)
        block = file.read(3)
        if len(block) < 3:
            return False
        value = int.from_bytes(block, "little")
        last, kind, length = bool(value & 1), value >> 1 & 3, value >> 3
        if kind == 3 or length > 1 << 17:
            return False
        at += 3 + (1 if kind == 1 else length)
    at += 4 * (head[4] >> 2 & 1)
    file.seek(at)
    following = file.read(4)
    if at >= size or not following.strip(b"\0"):
        return at <= size
    return bool(SIGNATURES["zstd"].fullmatch(following) or _SKIPPABLE.fullmatch(following))
