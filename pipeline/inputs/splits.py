"""Decides which split a document is in, by a hash that is the same on every machine and in every run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from pipeline.inputs.documents import BadRecordError, as_text, short
from pipeline.inputs.settings import ColumnHashSplit, ColumnSplit, IdGroupSplit, SplitSettings

SPLITS = ("train", "validation", "test")

Splitter = Callable[[str, bytes, Any], str]


def split_column(split: SplitSettings) -> str | None:
    """Return the column that the split needs, if any."""
    if isinstance(split.by, ColumnSplit):
        return split.by.column
    return split.by.column_hash if isinstance(split.by, ColumnHashSplit) else None


def by_hash(split: SplitSettings, value: bytes) -> str:
    """Return the split of a value: validation is the low end of the hashes, test the high end."""
    u = int.from_bytes(hashlib.blake2b(value, digest_size=8, person=b"split").digest(), "big") / 2**64
    if u < split.validation:
        return "validation"
    return "test" if u >= 1 - split.test else "train"


def splitter(split: SplitSettings) -> Splitter:
    """Return a function of (doc_id, text as UTF-8, value of the split column) that may raise BadRecordError."""
    by = split.by
    if isinstance(by, ColumnSplit):
        column = by.column

        def choose(doc_id: str, text: bytes, value: Any) -> str:
            if value not in SPLITS:
                raise BadRecordError("unknown split", f"{column} is {short(value)}; allowed are {', '.join(SPLITS)}")
            return str(value)

    elif isinstance(by, ColumnHashSplit):
        column = by.column_hash

        def choose(doc_id: str, text: bytes, value: Any) -> str:
            if value is None:
                raise BadRecordError("unknown split", f"{column} is missing or null, so there is nothing to hash")
            return by_hash(split, as_text(value, column).encode())

    elif isinstance(by, IdGroupSplit):
        search = re.compile(by.id_group).search

        def choose(doc_id: str, text: bytes, value: Any) -> str:
            found = search(doc_id)
            if found is None or found[1] is None:
                raise BadRecordError("unknown split", f"id {short(doc_id)} has no group {by.id_group!r}")
            return by_hash(split, found[1].encode())

    else:

        def choose(doc_id: str, text: bytes, value: Any) -> str:
            return by_hash(split, text)

    return choose
