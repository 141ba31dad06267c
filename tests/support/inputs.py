"""Inputs of documents: how tests configure, write and read them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from pipeline.inputs import (
    Chunk,
    Document,
    InputSettings,
    Rejected,
    SplitSettings,
    count_documents,
    plan_chunks,
    read_documents,
)

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda raw: gzip.compress(raw, mtime=0),
    ".bz2": lambda raw: bz2.compress(raw, 1),
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TEXTS = [
    "First document.",
    "Zweites, mit Umlaut: ä",
    "第三个文档。",
    "emoji 👩‍👩‍👧",
    "  ",
    "",
    "nul \x00 inside",
    "line\nbreak",
]


def entry(path: Path | str, **values: Any) -> InputSettings:
    return InputSettings(**{"path": str(path), "lang": "eng_Latn", "name": "in", **values})


def read(chunks: list[Chunk], source: InputSettings, split: SplitSettings | None = None) -> list[Document | Rejected]:
    """All records; fails unless every chunk's accounting balances."""
    out: list[Document | Rejected] = []
    for chunk in chunks:
        records = list(read_documents(chunk, source, split or SplitSettings()))
        found = sum(record.records if isinstance(record, Rejected) else 1 for record in records)
        assert found == count_documents(chunk).documents, chunk
        out += records
    return out


def read_all(source: InputSettings, split: SplitSettings | None = None, **plan: Any) -> list[Document | Rejected]:
    return read(plan_chunks(source, **plan), source, split)


def texts(records: list[Document | Rejected]) -> list[str]:
    assert all(isinstance(record, Document) for record in records), records
    return [record.text for record in records if isinstance(record, Document)]


def only_rejected(records: list[Document | Rejected]) -> Rejected:
    (rejected,) = (record for record in records if isinstance(record, Rejected))
    return rejected


def jsonl(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in values)
