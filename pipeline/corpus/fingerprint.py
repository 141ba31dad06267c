"""Fingerprints (one hash of everything that a result depends on), and digests of columns.

fingerprint = hash(recipe, digests of the columns read); recipe = hash(stage, its version, the meaning settings, digests
of models and fits). Because the *content* of columns enters, not how it was made, text that is segmented again but does
not change keeps its embeddings. Data is hashed by SHA-256, which server CPUs compute in hardware: about 1 GB/s per
core, against 0.6 for BLAKE2.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def fingerprint(value: Any) -> str:
    """Return 32 hex digits for a JSON-serialisable value, independent of the order of keys."""
    return fingerprint_bytes(value).hex()


def fingerprint_bytes(value: Any) -> bytes:
    """Return the 16 bytes of a fingerprint."""
    return hashlib.blake2b(_canonical(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def fingerprint_of_many(before: Sequence[Any], pieces: Iterable[Any], after: Sequence[Any] = ()) -> str:
    """Return `fingerprint([*before, [*pieces], *after])` with one piece in memory.

    Args:
        before: the values before the pieces, at least one.
        pieces: the pieces.
        after: the values after the pieces.

    Returns:
        32 hex digits.
    """
    return _in_pieces(before, map(_canonical, pieces), "[]", after)


def fingerprint_of_mapping(before: Sequence[Any], items: Iterable[tuple[str, Any]]) -> str:
    """Return `fingerprint([*before, dict(items)])` with one item in memory.

    Args:
        before: the values before the mapping, at least one.
        items: keys, which must ascend, and values.

    Returns:
        32 hex digits.
    """
    return _in_pieces(before, (f"{_canonical(key)}:{_canonical(value)}" for key, value in items), "{}", ())


def _in_pieces(before: Sequence[Any], pieces: Iterable[str], brackets: str, after: Sequence[Any]) -> str:
    found = hashlib.blake2b(digest_size=16)
    begin = f"{_canonical(before)[:-1]},{brackets[0]}"
    for number, piece in enumerate(pieces):
        found.update(f"{',' if number else begin}{piece}".encode("utf-8", "surrogatepass"))
        begin = ""
    end = f"{brackets[1]}{''.join(f',{_canonical(one)}' for one in after)}]"
    found.update(f"{begin}{end}".encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def content_digest(data: bytes | memoryview | pa.Buffer) -> str:
    """Return 32 hex digits for a file's bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def column_digest(column: pa.ChunkedArray) -> str:
    """Return 32 hex digits for a column's type and values; chunks, slices and values behind nulls make no
    difference.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks keeps chunks only for columns of 2 GB and more
        raise ValueError(f"a column of {array.nbytes} bytes is too large for one part; use a smaller part_sentences")
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    sink = _Hash()
    if nested := _nested_digests(array):
        return hashlib.sha256("".join(nested).encode()).hexdigest()[:32]
    columns = [array]
    if array.null_count:
        columns = [array.drop_null(), array.is_valid()]
    for one in columns:
        batch = pa.record_batch([one], names=["column"])
        with pa.ipc.new_stream(sink, batch.schema) as writer:  # IPC writes a slice's own values, rebased
            writer.write_batch(batch)
    return sink.sha.hexdigest()[:32]


def _nested_digests(array: pa.Array) -> list[str]:
    """Digest the parts of structs, and of lists with nulls inside, because the bytes behind inner nulls mean nothing.

    Empty for all other types, whose own bytes are digested.
    """
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        return [column_digest(array.is_valid()), *names, *map(column_digest, array.flatten())]
    if pa.types.is_list(array.type) and (inner := array.flatten()).null_count:
        return ["list", column_digest(pc.list_value_length(array)), column_digest(inner)]
    return []


class _Hash(io.RawIOBase):
    """A file object that only hashes what is written to it."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha.update(data)
        return len(data)


def difference(old: Any, new: Any, path: str = "") -> list[str]:
    """Describe where two JSON values differ.

    Args:
        old: the earlier value.
        new: the later value.
        path: the keys that lead to the two values, joined by dots.

    Returns:
        One line per key, such as `encode.model: sonar-tiny → sonar`.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            lines += difference(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
        return lines
    return [] if old == new else [f"{path}: {_short(old)} → {_short(new)}"]


def _short(value: Any) -> str:
    text = "(none)" if value is None else json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 60 else text[:57] + "…"
