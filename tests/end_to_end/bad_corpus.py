"""A corpus with nothing bad in it, and the same with everything bad that an input can have."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda raw: gzip.compress(raw, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def record(doc_id: Any, text: Any = "The house is red. The water runs.", **more: Any) -> bytes:
    return json.dumps({"id": doc_id, "lang": "eng_Latn", "text": text, **more}, ensure_ascii=False).encode()


def lines(*records: bytes) -> bytes:
    return b"".join(one + b"\n" for one in records)


def some(name: str, count: int = 3) -> bytes:
    return lines(*(record(f"{name}-{n}", f"Document {n} of {name}. It is good.") for n in range(count)))


def parquet(*rows: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def zipped(data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.jsonl", data)
    return sink.getvalue()


@dataclass(frozen=True)
class BadFile:
    """`quarantined`: how many, by reason. `says`: in every error. `good`: the same file without what is bad in it."""

    data: bytes
    quarantined: dict[str, int]
    says: str = ""
    good: bytes = b""


UNREADABLE = {"unreadable": 1}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
ROW = {"id": "row", "lang": "eng_Latn", "text": "A good row. Two sentences."}

BAD_FILES = {
    "empty.jsonl": BadFile(b"", {}),
    "empty.jsonl.gz": BadFile(gzip.compress(b""), {}),
    "zero-bytes.jsonl.gz": BadFile(b"", UNREADABLE, "is empty, without even a header"),
    "zero-bytes.parquet": BadFile(b"", UNREADABLE, "0 bytes"),
    "plain-text.parquet": BadFile(b"Just text.\n" * 50, UNREADABLE, "begins like plain text"),
    "zip.jsonl.gz": BadFile(zipped(some("zip")), UNREADABLE, "begins like a zip archive"),
    "image.jsonl": BadFile(PNG, UNREADABLE, "begins like a PNG image"),
    "parquet.jsonl": BadFile(parquet(ROW), UNREADABLE, "begins like a Parquet file"),
    "not-compressed.jsonl.zst": BadFile(some("plain"), UNREADABLE, "begins like plain JSON"),
    "utf-16.jsonl": BadFile(some("16").decode().encode("utf-16"), UNREADABLE, "begins like UTF-16 text"),
    "pretty.json": BadFile(json.dumps([ROW], indent=2).encode(), UNREADABLE, "one JSON value over many lines"),
    "latin-1.jsonl": BadFile(
        lines(record("l1", "Fraîche."), record("l2", "Été.")).decode().encode("latin-1"),
        {"not UTF-8": 2},
        "correct this record",
    ),
    "no-text-column.parquet": BadFile(
        parquet({"id": "a", "lang": "eng_Latn", "body": "x"}, {"id": "b", "lang": "eng_Latn", "body": "y"}),
        {"text column missing": 2},
        "there is no 'text'",
    ),
    **{
        f"truncated.jsonl{suffix}": BadFile(
            compress(some(suffix)) + compress(record("last", os.urandom(2000).hex()))[:-300],
            UNREADABLE,
            "ends in the middle",
            good=compress(some(suffix)),
        )
        for suffix, compress in COMPRESS.items()
    },
}  # fmt: skip

FAMILY = "👨‍👩‍👧‍👦"
SCRIPTS = {  # of Thai and Arabic the model that ships knows no word
    "word": "word",
    "emoji": "😀",
    "families": f"{FAMILY} 👩🏽‍🚀🏳️‍🌈",
    "chinese": "这是第一句。这是第二句，没有空格。",
    "thai": "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "arabic": "مرحبا بالعالم. كيف حالك؟",
}
GOOD_LINES = [
    record("twice", "The first of two documents with one id."),
    *(record(key, text) for key, text in SCRIPTS.items()),
    record("chinese-2", SCRIPTS["chinese"], lang="zho_Hans"),
    record("control characters", "One\0 two\x07.\r\nThree\x1b[31m four."),
    record("numbers", "Numbers.", number=10**400, nan=float("nan")),
    record(10**20, "An id that is a huge integer."),
    record("across chunks", "An id that a document of another chunk has too."),
]
DEEP = 100_000
BAD_LINES: list[tuple[bytes, str, str]] = [  # line, reason, pattern of the error
    (b'{"id": "x", "lang": "eng_Latn", "text": "\xff"}', "not UTF-8", "byte 0xff at 41 .*; correct this record"),
    (record("null", None), "text is null", "text is null, where a string is needed"),
    (record("number", 3), "text is not a string", r"text is 3 \(int\)"),
    (record("list", ["a"]), "text is not a string", r"\['a'\] \(list\)"),
    (b'{"id": "none", "lang": "eng_Latn"}', "text column missing", "no 'text'; name .* of 'id', 'lang'"),
    (record("twice", "The second of two documents with one id."), "duplicate id", "the id 'twice'"),
    (record(""), "id is empty", "id is empty"),
    (record(None), "id is null", "id is null"),
    (record("lang-1", lang="eng_Lat"), "unknown language", "lang is 'eng_Lat'; nearest .*: eng_Latn"),
    (record("lang-2", lang="de"), "unknown language", "lang is 'de'; the code is deu_Latn"),
    (record("lang-3", lang="\x1b[31m"), "unknown language", r"lang is '.x1b\[31m'; nearest"),
    (record("lang-4", lang=None), "lang is not a string", "lang is null, where a code such as eng_Latn"),
    (b'{"id": "half", "lang": "eng_Latn", "text": "\\ud800"}', "not encodable", r"half a character, '.ud800' at 0"),
    (b'{"id": "half key", "lang": "eng_Latn", "\\ud800": "a"}', "text column missing", r"'.ud800'"),
    (b'{"text": ' + b"[" * DEEP + b"]" * DEEP + b"}", "invalid JSON", "too deeply"),
    (b'{"id": "deep", "text": ' + b"[" * 800 + b"]" * 800 + b"}", "text is not a string", r"\[\["),
    (b'{"id": "key", "lang": "eng_Latn", "text": "a", "text": "b"}', "duplicate key", "'text' is repeated"),
    (b'{"id": "nan", "lang": "eng_Latn", "text": NaN}', "text is not a string", r"nan \(float\)"),
    (b'{"id": ' + b"9" * 5000 + b', "text": "a"}', "invalid JSON", "more than 4300 digits; write"),
    (b'{"id": "cut off", "lang": "eng_La', "invalid JSON", r"at character 33, near .*eng_La.r"),
    (b'["a list"]', "not a JSON object", "write one object per line"),
]
DROPPED_LINES = [record("empty", ""), record("blank", " \t\u2028\u00a0\0"), b"", b"  "]

GOOD_ROWS = [ROW, ROW | {"id": "row-2", "text": "Another good row."}]
BAD_ROWS = [ROW | {"id": "null", "text": None}, ROW, ROW | {"id": "lang", "lang": "xyz"}]


def mixed(good: list[Any], bad: list[Any]) -> list[Any]:
    """Good ones first and last, the rest by turns."""
    rest = list(good)
    out = []
    for one in bad:
        out += [rest.pop(0)] if len(rest) > 1 else []
        out.append(one)
    return out + rest


def write_good(folder: Path) -> None:
    """A corpus with nothing bad in it: some of the documents in every file that has bad ones in `write_bad`."""
    folder.mkdir()
    for name, file in BAD_FILES.items():
        if file.good:
            (folder / name).write_bytes(file.good)
    (folder / "lines.jsonl").write_bytes(lines(*GOOD_LINES))
    (folder / "rows.parquet").write_bytes(parquet(*GOOD_ROWS))
    for number, name in enumerate(["a b", "a#b", "a%20b", "a:b", "a?b", "a\nb", "a\x1b[31mb"]):
        (folder / f"{name}.jsonl").write_bytes(some(f"name-{number}", 1))
    (folder / "more.jsonl").write_bytes(lines(record("across chunks", "The same id as a document of another chunk.")))


def write_bad(folder: Path) -> None:
    """The same, and everything bad."""
    write_good(folder)
    for name, file in BAD_FILES.items():
        (folder / name).write_bytes(file.data)
    bad = [line for line, _, _ in BAD_LINES] + DROPPED_LINES
    (folder / "lines.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(mixed(GOOD_LINES, bad)))
    (folder / "rows.parquet").write_bytes(parquet(*mixed(GOOD_ROWS, BAD_ROWS)))
    (folder / "dangling.jsonl").symlink_to("nowhere")
    (folder / "self.jsonl").symlink_to("self.jsonl")
    (folder / "around").symlink_to(".")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "not-utf-8-\udcff.jsonl").write_bytes(some("name"))


FILES_THAT_CANNOT_BE_OPENED = 5
