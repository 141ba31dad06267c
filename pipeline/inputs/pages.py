"""Looks at the headers of Parquet pages before pyarrow unpacks them: 100 kB can hold pages of gigabytes.

A page is unpacked as a whole, and a value of a dictionary once for every row that refers to it; the footer says neither
how large the pages are nor has to be true. So the pages of a column are walked, from header to header: on local disks
all of them (a thousandth of the time to read them), on stores, where each page costs a request, those of columns that
have few (up to 1 MiB stored) or of which the footer says that they grow much. Of all others the first header is read,
that of the dictionary, if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from pipeline.inputs.chunk import GROWTH

LARGE_PAGE = 32 << 20  # bytes; a larger page may have GROWTH times its stored bytes
FEW_BYTES = 1 << 20
HEADER = 1 << 14  # bytes that are read for one; with long statistics, more
LONGEST_HEADER = 16 << 20  # as in pyarrow
DICTIONARY_PAGE = 2


class PageError(Exception):
    """The pages of a column should not be unpacked."""


def largest_dictionary(file: IO[bytes], columns: Sequence[Any], *, local: bool) -> int:
    """Find the largest dictionary of columns of a row group.

    Args:
        file: the Parquet file.
        columns: what its footer says of the stored columns that are read.
        local: whether it lies on a local disk, so that all pages are walked.

    Returns:
        Its bytes; 0 if there is none.

    Raises:
        PageError: if a page is too large for what is stored, or has no header.
    """
    return max((_of_column(file, column, local) for column in columns), default=0)


def _of_column(file: IO[bytes], column: Any, local: bool) -> int:
    stored, start = column.total_compressed_size, column.data_page_offset
    dictionary = column.dictionary_page_offset if column.has_dictionary_page else None
    if dictionary is not None and 0 < dictionary < start:  # as in pyarrow
        start = dictionary
    grows = column.total_uncompressed_size > max(LARGE_PAGE, GROWTH * stored)
    walked = column.compression != "UNCOMPRESSED" and (local or stored <= FEW_BYTES or grows)
    at, end, largest = start, start + stored, 0
    while at < end:
        kind, unpacked, packed, length = _header(file, at, end)
        if unpacked > max(LARGE_PAGE, GROWTH * packed):
            raise PageError(
                f"{column.path_in_schema}: a page of {unpacked} bytes is stored in {packed}, and pages of more than "
                f"{LARGE_PAGE} bytes are read only up to {GROWTH} times what is stored"
            )
        largest = max(largest, unpacked if kind == DICTIONARY_PAGE else 0)
        at += length + packed
        if not walked:
            break
    return largest


def _header(file: IO[bytes], at: int, end: int) -> tuple[int, int, int, int]:
    """Return kind, size unpacked, size packed and length of the page header at a place."""
    size = HEADER
    while True:
        file.seek(at)
        data = file.read(min(size, end - at))
        try:
            fields, length = _Compact(data).top_level()
            kind, unpacked, packed = fields[1], fields[2], fields[3]
        except IndexError:
            if size < min(LONGEST_HEADER, end - at):
                size *= 8
                continue
            raise PageError(f"a page header at byte {at} cannot be read") from None
        except (KeyError, RecursionError):
            raise PageError(f"a page header at byte {at} cannot be read") from None
        if min(kind, unpacked, packed) < 0:
            raise PageError(f"a page header at byte {at} states negative sizes")
        return kind, unpacked, packed, length


class _Compact:
    """Thrift's compact protocol, as far as page headers use it. Raises IndexError where bytes are missing, and
    KeyError for what it does not have.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def top_level(self) -> tuple[dict[int, int], int]:
        """Return the integers of a struct by field, and its length in bytes."""
        return self._struct(), self._at

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise KeyError("an integer of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)

    def _struct(self) -> dict[int, int]:
        found: dict[int, int] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            value = self._value(head & 15)
            if value is not None:
                found[field] = value
        return found

    def _value(self, kind: int, *, in_list: bool = False) -> int | None:
        """Pass over a value; returns integers."""
        if kind in (1, 2):
            if in_list:
                self._byte()
        elif kind == 3:
            self._byte()
        elif kind in (4, 5, 6):
            return self._signed()
        elif kind == 7:
            self._skip(8)
        elif kind == 8:
            self._skip(self._unsigned())
        elif kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            for _ in range(min(count, len(self._data) + 1)):
                self._value(head & 15, in_list=True)
        elif kind == 12:
            self._struct()
        else:
            raise KeyError(kind)
        return None

    def _skip(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            raise IndexError(size)
