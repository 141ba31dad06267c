"""Reads the documents of a chunk one after the other, and every rejected record with its reason.

Streams in constant memory: a block of 1 MiB plus the longest record for lines (a line of more than 256 MiB is set aside
unread, in compressed files that store little a shorter one), 8 MiB per column and about 64 MiB of values for Parquet,
whose pages are looked at first (`pages.py`). Plain JSONL is read at 150 MB/s and more per core when
documents have 6 kB (decoding JSON and the split's hash take most of the time).

A bad record raises nothing. InputError is raised if the file changed since planning, and the store's own errors pass.
The number of documents plus the `records` of all rejected ones equals `count_documents(chunk).documents`; see there for
how a broken file counts.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipeline.base.parallel import prefetch
from pipeline.inputs.chunk import PACKED, TO_THE_END, UNREADABLE, Chunk
from pipeline.inputs.documents import NEAR, PAYLOAD, Document, Rejected, short, where_not_utf8
from pipeline.inputs.magic import HEAD, LIST_OF_OBJECTS, looks_like, marked_encoding, mend_file, mend_line, not_text
from pipeline.inputs.packing import files_of, root_of
from pipeline.inputs.records import DUPLICATE_KEY, TOO_LONG, RecordMaker, too_long
from pipeline.inputs.rows import read_rows
from pipeline.inputs.settings import InputError, InputSettings, SplitSettings
from pipeline.inputs.streams import (
    BrokenStreamError,
    check_lines,
    decompressed_blocks,
    head_of,
    own_blocks,
    raw_blocks,
    text_blocks,
)

MANY = b"\n" * 1024  # empty lines that are counted at once
_RUN = re.compile(rb"(\n{1024,})")


def read_documents(
    chunk: Chunk, settings: InputSettings, split: SplitSettings, languages: Sequence[str] | None = None
) -> Iterator[Document | Rejected]:
    """Yield the chunk's records in order, at most `chunk.take` of them.

    Empty and white-space text is a document here, which segmenting drops with its own reason (with `lang: detect`,
    which needs letters, it is dropped here for that reason).

    Args:
        chunk: the chunk.
        settings: the settings of the chunk's input.
        split: how documents are divided into splits.
        languages: the codes that documents may have; None allows any.

    Yields:
        A document, or a record that is not one, with the reason.

    Raises:
        InputError: if `settings` are of another input, or the file changed since planning.
    """
    if chunk.input != settings.input_name:
        raise InputError(f"chunk {chunk.id} is of input {chunk.input}, not of {settings.input_name}")
    if chunk.format == PACKED:
        read = partial(_of_file, settings=settings, split=split, languages=languages)
        files: Iterable[Iterable[Document | Rejected]]
        local = root_of(chunk).startswith("file://")  # on other stores most of the time is spent waiting
        files = map(read, files_of(chunk)) if local else prefetch(lambda file: _ahead(file, read), files_of(chunk))
        records: Iterator[Document | Rejected] = itertools.chain.from_iterable(files)
    else:
        records = _of_file(chunk, settings, split, languages)
    return records if chunk.take is None else _at_most(records, chunk.take)


def _ahead(
    file: Chunk, read: Callable[[Chunk], Iterator[Document | Rejected]]
) -> Iterator[Document | Rejected] | list[Document | Rejected]:
    """Read a file before its turn, unless its records might be many times its bytes."""
    records = read(file)
    return records if file.compression and file.format != "text" else list(records)


def _of_file(
    chunk: Chunk, settings: InputSettings, split: SplitSettings, languages: Sequence[str] | None
) -> Iterator[Document | Rejected]:
    return documents_of(RecordMaker(chunk, settings, split, languages))


def documents_of(maker: RecordMaker) -> Iterator[Document | Rejected]:
    """Yield the records of a maker's chunk, which is not packed, regardless of its `take`."""
    chunk = maker.chunk
    if chunk.format == UNREADABLE:
        return iter((maker.reject(0, UNREADABLE, chunk.stamp, bytes_unreadable=chunk.bytes),))
    if chunk.format == "text":
        return _text(chunk, maker)
    return read_rows(chunk, maker) if chunk.format == "parquet" else _lines(chunk, maker)


def _at_most(records: Iterator[Document | Rejected], take: int) -> Iterator[Document | Rejected]:
    left = take
    for record in records:
        stands_for = record.records if isinstance(record, Rejected) else 1
        yield replace(record, records=left) if isinstance(record, Rejected) and stands_for > left else record
        left -= stands_for
        if left <= 0:
            return


@dataclass(frozen=True, slots=True)
class _RawLine:
    """One line of a chunk.

    `raw` is only the beginning of a line that is too long for its chunk; `size` is always that of the whole line.
    `number` counts from 1 in the whole file; None in a chunk that does not begin with the file. In compressed files,
    one line stands for many consecutive empty ones, since a few bytes can hold millions.
    """

    offset: int
    number: int | None
    raw: bytes
    size: int
    broken: BrokenStreamError | None = None
    blank: int = 1  # of empty lines, if `raw` is one


class _LinePieces:
    """Bytes of one line as they arrive; if there are more than `longest`, only the beginning is kept."""

    def __init__(self, longest: int, first: bytes = b"") -> None:
        self._longest = longest
        self.size = len(first)
        self._pieces = [first]

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= self._longest:
            self._pieces.append(piece)
        else:
            held = b""
            while self._pieces and len(held) < PAYLOAD:  # without a copy of all that is given up
                held += self._pieces.pop(0)[:PAYLOAD]
            self._pieces = [held[:PAYLOAD]]

    def joined(self) -> bytes:
        return b"".join(self._pieces)


class _Twice(dict[str, Any]):
    """A JSON object with repeated keys; it holds the last values, as JSON libraries do."""

    twice: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    found = _Twice(values)
    found.twice = frozenset(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    return found


UNMARK = r"sed 's/^\xEF\xBB\xBF//; s/}\xEF\xBB\xBF{/}\n{/g' FILE > NEW removes such marks"
DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _lines(chunk: Chunk, maker: RecordMaker) -> Iterator[Document | Rejected]:
    for line in _split_lines(chunk):
        yield _record(line, maker)


def _record(line: _RawLine, maker: RecordMaker) -> Document | Rejected:
    def reject(reason: str, error: str, **more: Any) -> Rejected:
        return maker.reject(line.offset, reason, error, line.raw, line=line.number, payload_bytes=line.size, **more)

    if line.broken is not None:
        return reject(UNREADABLE, str(line.broken), bytes_unreadable=line.broken.bytes_unreadable)
    if line.size > maker.chunk.longest:
        return reject(TOO_LONG, too_long("the line", line.size, "bytes", maker.chunk))
    raw = line.raw.removeprefix(codecs.BOM_UTF8) if line.offset == maker.chunk.start == 0 else line.raw
    if not raw or raw.isspace():
        return reject("blank line", "the line is empty", kind="dropped", records=line.blank)
    try:
        values = DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        what = f"{where_not_utf8(error)}; {mend_line(raw, maker.stated_lang)}"
        return reject("not UTF-8", what, bytes_unreadable=len(raw))
    except (ValueError, RecursionError) as error:
        return reject("invalid JSON", _not_json(error))
    if not isinstance(values, dict):
        what, how = short(values), ""
        if isinstance(values, list):
            what, how = f"a list of {len(values)}", " (jq -c '.[]' FILE makes them of a list)"
        return reject("not a JSON object", f"the line is {what}; write one object per line: {{…}}{how}")
    if twice := _repeated(values, maker.columns):
        return reject(DUPLICATE_KEY, f"{', '.join(map(repr, sorted(twice)))} is repeated in the object; keep one")
    return maker.make(values, line.offset, line.raw, line.number)


def _repeated(values: dict[str, Any], columns: Sequence[str]) -> set[str]:
    """Return which of these columns a record has twice, and the paths of keys that objects inside them have twice."""
    found = set(values.twice.intersection(columns)) if isinstance(values, _Twice) else set()
    inside = [(name, values[name]) for name in columns if isinstance(values.get(name), list | dict)]
    while inside:
        path, value = inside.pop()
        if isinstance(value, _Twice):
            found.update(f"{path}.{key}" for key in value.twice)
        below = value.items() if isinstance(value, dict) else [(None, one) for one in value]
        inside.extend(
            (path if key is None else f"{path}.{key}", one) for key, one in below if isinstance(one, list | dict)
        )
    return found


def _not_json(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        near = error.doc[max(0, error.pos - NEAR) : error.pos + NEAR]
        listed = LIST_OF_OBJECTS.match(error.doc[:NEAR].encode(errors="replace")) or (
            error.msg == "Extra data" and error.doc[error.pos :].strip() == ","
        )
        how = "; if the file is one list, jq -c '.[]' FILE makes lines of it" if listed else ""
        if error.doc[error.pos :].startswith("\ufeff"):
            how = f"; this is a byte order mark, left where one file was appended to another: {UNMARK}"
        return f"{error.msg.removesuffix(' at')} at character {error.pos}, near {short(near)}{how}"
    if isinstance(error, RecursionError):
        return "values are nested too deeply to be read"
    return f"a number has more than {sys.get_int_max_str_digits()} digits; write it as a string"


def _runs(block: bytes) -> Iterator[bytes | int]:
    """Yield a block as it is, or the number of line ends where many follow each other."""
    if MANY not in block:
        yield block
        return
    for number, some in enumerate(_RUN.split(block)):
        yield len(some) if number % 2 else some


def _split_lines(chunk: Chunk) -> Iterator[_RawLine]:
    """Yield the lines whose first byte lies in the chunk, without newlines; the last one may reach beyond the chunk."""
    whole = not chunk.by_text and (chunk.end == TO_THE_END or bool(chunk.compression))
    if not whole and chunk.start == chunk.end:
        return
    end = sys.maxsize if whole or chunk.end == TO_THE_END else chunk.end
    offset = 0 if whole else max(chunk.start - 1, 0)  # of the first byte in `line`
    skip = not whole and chunk.start > 0  # the line around start − 1 belongs to the chunk before
    number = None if chunk.start else 1
    longest = chunk.longest
    line = _LinePieces(longest)  # that has begun
    try:
        if not chunk.compression:
            check_lines(chunk, head_of(chunk))
        blocks = own_blocks(chunk) if whole else (text_blocks if chunk.by_text else raw_blocks)(chunk, offset)
        for block in blocks:
            for some in _runs(block) if chunk.compression else [block]:
                if isinstance(some, int):
                    if offset >= end:
                        return
                    if not skip:
                        yield _RawLine(offset, number, line.joined(), line.size)
                    skip, begun_at = False, offset + line.size + 1
                    blank = min(some - 1, end - begun_at)
                    if blank > 0:
                        yield _RawLine(begun_at, number and number + 1, b"", 0, blank=blank)
                    if blank < some - 1:
                        return
                    number, offset, line = number and number + some, begun_at + blank, _LinePieces(longest)
                    continue
                first, *others = some.split(b"\n")
                line.add(first)
                for begun in others:
                    if offset >= end:
                        return
                    if not skip:
                        yield _RawLine(offset, number, line.joined(), line.size)
                        number = None if number is None else number + 1
                    skip = False
                    offset += line.size + 1
                    line = _LinePieces(longest, begun)
            if offset >= end or (skip and offset + line.size >= end):
                return
            if skip:  # only the length of a skipped line matters
                offset, line = offset + line.size, _LinePieces(longest)
    except BrokenStreamError as broken:
        if chunk.by_text and (skip or offset >= end):
            return  # the chunk where the line begins that breaks says so
        yield _RawLine(offset if whole else max(offset, chunk.start), number, line.joined(), line.size, broken)
        return
    if line.size and not skip:
        yield _RawLine(offset, number, line.joined(), line.size)


def _text(chunk: Chunk, maker: RecordMaker) -> Iterator[Document | Rejected]:
    pieces = _LinePieces(chunk.longest)
    try:
        for block in decompressed_blocks(chunk):
            pieces.add(block)
    except BrokenStreamError as broken:
        yield maker.reject(0, UNREADABLE, str(broken), pieces.joined(), bytes_unreadable=broken.bytes_unreadable)
        return
    raw = pieces.joined()
    if pieces.size > chunk.longest:
        error = too_long("the file", pieces.size, "bytes", chunk)
        yield maker.reject(0, TOO_LONG, error, raw, payload_bytes=pieces.size)
        return
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        head, mend = raw[:HEAD], mend_file(raw, maker.stated_lang, bool(chunk.compression))
        other = not_text(head) is not None and marked_encoding(head) is None  # encodings are told already
        what = f"{where_not_utf8(error)}; {mend}{looks_like(head) if other else ''}"
        yield maker.reject(0, "not UTF-8", what, raw, bytes_unreadable=chunk.bytes)
        return
    if marked_encoding(raw[:HEAD]):  # all bytes of ASCII text in UTF-16 are UTF-8, half of them NUL
        what = f"the file is not UTF-8; {mend_file(raw, maker.stated_lang, bool(chunk.compression))}"
        yield maker.reject(0, "not UTF-8", what, raw, bytes_unreadable=chunk.bytes)
        return
    yield maker.make({maker.settings.text: text}, 0, raw)
