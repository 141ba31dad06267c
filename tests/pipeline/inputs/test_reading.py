"""Every format and compression, bad records one by one, broken files: read = counted."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fsspec.implementations.local import LocalFileSystem
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pipeline.inputs.chunk as chunk_module
from pipeline.inputs import (
    Document,
    InputError,
    Rejected,
    SplitSettings,
    count_documents,
    plan_chunks,
    read_documents,
    readers,
    streams,
)
from pipeline.inputs.listing import stamp
from pipeline.inputs.magic import HEAD, not_text
from pipeline.storage import retry
from tests.support.inputs import COMPRESS, TEXTS, entry, jsonl, only_rejected, read_all, texts


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("extension", [".jsonl", ".ndjson", ".json"])
def test_jsonl_in_every_compression(tmp_path: Path, extension: str, suffix: str) -> None:
    path = tmp_path / f"a{extension}{suffix}"
    path.write_bytes(COMPRESS[suffix](jsonl([{"text": text} for text in TEXTS])))
    assert texts(read_all(entry(path))) == TEXTS


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("extension", [".txt", ".md"])
def test_a_text_file_is_one_document_named_by_its_path(tmp_path: Path, extension: str, suffix: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / f"a{extension}{suffix}").write_bytes(
        COMPRESS[suffix](b"\xef\xbb\xbf# Title\r\n\r\nText \xc3\xa4")
    )
    (document,) = read_all(entry(tmp_path))
    assert isinstance(document, Document)
    assert document.text == "# Title\r\n\r\nText ä"
    assert document.doc_id == f"sub/a{extension}{suffix}"
    assert document.source == f"in:sub/a{extension}{suffix}"


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_files_of_several_members_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    members = [COMPRESS[suffix](jsonl([{"text": text}])) for text in TEXTS]
    (tmp_path / f"a.jsonl{suffix}").write_bytes(b"".join(members))
    assert texts(read_all(entry(tmp_path))) == TEXTS


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_file_cut_off_in_its_second_member_is_broken(tmp_path: Path, suffix: str) -> None:
    first, second = (COMPRESS[suffix](jsonl([{"text": text}])) for text in "ab")
    (tmp_path / f"a.jsonl{suffix}").write_bytes(first + second[:-3])
    records = read_all(entry(tmp_path))
    assert only_rejected(records).reason == "unreadable"
    assert texts(records[:1]) == ["a"]


def test_zero_padding_after_gzip_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text":"a"}\n') + bytes(512))
    assert texts(read_all(entry(tmp_path))) == ["a"]


def test_bom_crlf_and_a_last_line_without_newline(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text":"a"}\r\n{"text":"b"}\r\n{"text":"c"}')
    assert texts(read_all(entry(tmp_path))) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_byte_order_mark_between_files_is_told_with_a_command_that_removes_it(tmp_path: Path, end: str) -> None:
    whole = f'\ufeff{{"text": "a"}}{end}\ufeff{{"text": "b \ufeff"}}\n'
    (tmp_path / "a.jsonl").write_text(whole, encoding="utf-8")
    rejected = only_rejected(read_all(entry(tmp_path)))
    told = "this is a byte order mark, left where one file was appended to another: "
    assert rejected.reason == "invalid JSON" and told in rejected.error
    command = rejected.error.partition(told)[2].removesuffix(" removes such marks")
    subprocess.run(command.replace("FILE > NEW", "a.jsonl > b.jsonl"), shell=True, check=True, cwd=tmp_path)
    assert texts(read_all(entry(tmp_path / "b.jsonl"))) == ["a", "b \ufeff"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "invalid JSON"),
        (b'{"text": 1' + b"0" * 5000 + b"}", "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "not UTF-8"),
        (b'["a"]', "not a JSON object"),
        (b'{"text": "a", "text": "b"}', "duplicate key"),
        (b'{"text": "a", "title": [{"a": {"b": 1, "b": 2}}]}', "duplicate key"),
        (b'{"text": ' + b"[" * 800 + b"]" * 800 + b"}", "text is not a string"),
        (b'{"\\ud800": "a"}', "text column missing"),
        (b'{"other": {"a": 1, "a": 2}, "text": NaN}', "text is not a string"),
        (b'{"body": "a"}', "text column missing"),
        (b'{"text": null}', "text is null"),
        (b'{"text": 3}', "text is not a string"),
        (b'{"text": ["a"]}', "text is not a string"),
        (b'{"text": "\\ud800"}', "not encodable"),
        (b'{"text": "a", "title": {"deep": "\\udfff"}}', "not encodable"),
    ],
)
def test_a_bad_line_is_quarantined_and_its_neighbours_survive(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    records = read_all(entry(tmp_path, keep=["title"]))
    rejected = only_rejected(records)
    assert (rejected.reason, rejected.kind, rejected.record) == (reason, "quarantined", "a.jsonl line 2, byte 19")
    assert (rejected.payload, rejected.payload_bytes) == (line[: 4 << 10], len(line))
    assert rejected.error and rejected.doc_id
    assert texts([records[0], records[2]]) == ["before", "after"]


@pytest.mark.parametrize("extension", ["log", "py", "srt", "rst"])
def test_files_of_other_names_are_read_as_text_if_the_format_says_so(tmp_path: Path, extension: str) -> None:
    (tmp_path / f"a.{extension}").write_text("One.")
    assert texts(read_all(entry(tmp_path / f"*.{extension}", format="text"))) == ["One."]
    with pytest.raises(InputError, match="read by an input with `format: text`"):
        read_all(entry(tmp_path))


def test_errors_are_bounded_whatever_the_record_holds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl([{f"{'key' * 100}{i}": i for i in range(1000)}]))
    rejected = only_rejected(read_all(entry(tmp_path)))
    assert len(rejected.error) < 600 and len(rejected.payload) == 4096 < rejected.payload_bytes


def test_records_too_long_for_memory_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_module, "LONGEST", 3 << 20)
    long = "x" * (5 << 20)
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"text": "a"}, {"text": long}, {"text": "b"}]))
    records = read_all(entry(tmp_path / "a.jsonl"), chunk_bytes=1 << 20)
    rejected = only_rejected(records)
    assert (rejected.reason, rejected.payload_bytes) == ("too long", len(long) + 12)
    assert texts([record for record in records if record is not rejected]) == ["a", "b"]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(long.encode()))
    assert only_rejected(read_all(entry(tmp_path / "a.txt.gz"))).payload_bytes == len(long)
    pq.write_table(pa.table({"text": ["a", long]}), tmp_path / "a.parquet")
    assert only_rejected(read_all(entry(tmp_path / "a.parquet"))).reason == "too long"


def test_a_record_far_larger_than_its_file_is_set_aside(tmp_path: Path) -> None:
    """A hundred times what is stored, if that is more than a MiB: what takes a hundredth of its length is no text."""
    long, good = "x" * (2 << 20), "A sentence."
    lines = jsonl([{"text": good}, {"text": long}, {"text": "y" * (1 << 19)}])
    for name, data in (("a.jsonl.zst", COMPRESS[".zst"](lines)), ("a.txt.gz", gzip.compress(long.encode()))):
        (tmp_path / name).write_bytes(data)
        rejected = only_rejected(read_all(entry(tmp_path / name)))
        assert rejected.reason == "too long" and "at most 1048576 are read into memory" in rejected.error
    pq.write_table(pa.table({"text": [good, long]}), tmp_path / "a.parquet", compression="zstd")
    rejected = only_rejected(read_all(entry(tmp_path / "a.parquet")))
    assert rejected.reason == "too long" and "at most 1048576" in rejected.error
    text = random_text(3 << 20)  # takes what it takes
    pq.write_table(pa.table({"text": [good, text]}), tmp_path / "b.parquet", compression="zstd")
    assert [one.text for one in read_all(entry(tmp_path / "b.parquet")) if isinstance(one, Document)] == [good, text]


def random_text(size: int) -> str:
    return random.Random(0).randbytes(size // 2).hex()


def test_a_parquet_file_with_two_columns_of_one_name_is_set_aside(tmp_path: Path) -> None:
    """Which of them is meant nobody knows; columns that are not read may have any names."""
    columns = [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]
    pq.write_table(pa.table(columns, names=["text", "text", "note", "note"]), tmp_path / "a.parquet")
    pq.write_table(pa.table(columns, names=["text", "more", "note", "note"]), tmp_path / "b.parquet")
    rejected = only_rejected(read_all(entry(tmp_path / "a.parquet")))
    assert (rejected.reason, rejected.records) == ("duplicate key", 2) and "'text'; keep one" in rejected.error
    assert [one.text for one in read_all(entry(tmp_path / "b.parquet")) if isinstance(one, Document)] == ["a", "b"]


@pytest.mark.parametrize("line", [b"", b" \t", b"\r"])
def test_blank_lines_are_dropped_and_counted(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + line + b"\n")
    rejected = only_rejected(read_all(entry(tmp_path)))
    assert (rejected.reason, rejected.kind) == ("blank line", "dropped")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_small_files_that_hold_much_are_read_in_pieces(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.jsonl{suffix}").write_bytes(
        COMPRESS[suffix](b'{"text": "a"}' + b"\n" * (40 << 20) + b'{"text": "a"}\n')
    )
    (chunk,) = plan_chunks(entry(tmp_path))
    assert chunk.bytes < 64 << 10
    assert max(map(len, streams.decompressed_blocks(chunk))) <= (streams.BLOCK if suffix != ".zst" else 32 << 20)
    records = list(read_documents(chunk, entry(tmp_path), SplitSettings()))
    assert count_documents(chunk).documents == (40 << 20) + 1
    assert sum(one.records for one in records if isinstance(one, Rejected)) == (40 << 20) - 1 and len(records) < 5000
    assert [one.record for one in records if isinstance(one, Document)] == [
        f"a.jsonl{suffix} line 1, byte 0",
        f"a.jsonl{suffix} line {(40 << 20) + 1}, byte {(40 << 20) + 13}",
    ]


def test_empty_lines_are_counted_alike_one_by_one_and_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever blocks end, and whatever stands between them."""
    raw = b"\n" * 3 + b'{"text": "a"}' + b"\n" * 9 + b'{"text": "b"}\n\n{"text": "c"}' + b"\n" * 4 + b'{"text": "d"}'
    for end in (b"", b"\n", b"\n" * 7):
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(raw + end))
        for block in (1, 2, 3, 5, 100):
            monkeypatch.setattr(streams, "BLOCK", block)
            found = []
            for many in (1024, 2, 3, 4):
                monkeypatch.setattr(readers, "MANY", b"\n" * many)
                monkeypatch.setattr(readers, "_RUN", re.compile(rb"(\n{%d,})" % many))
                records = read_all(entry(tmp_path))
                documents = [(one.record, one.text) for one in records if isinstance(one, Document)]
                found.append((documents, sum(one.records for one in records if isinstance(one, Rejected))))
            assert all(one == found[0] for one in found) and len(found[0][0]) == 4


_PEAK = """
import re, sys
from pathlib import Path
from pipeline.inputs import InputSettings, SplitSettings, count_documents, plan_chunks, read_documents
def kib(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
for path in sys.argv[1:]:
    one = InputSettings(path=path, lang="eng_Latn", name="x")
    Path("/proc/self/clear_refs").write_text("5")  # the peak, which begins with that of the process that started this
    before = kib("VmRSS")
    (chunk,) = plan_chunks(one)
    lines = sum(getattr(record, "records", 1) for record in read_documents(chunk, one, SplitSettings()))
    assert lines == count_documents(chunk).documents, path
    print(path, lines, kib("VmHWM") - before)
"""


def zstd_of(piece: bytes, pieces: int) -> bytes:
    writer = zstandard.ZstdCompressor().compressobj()
    return b"".join(writer.compress(piece) for _ in range(pieces)) + writer.flush()


def zstd_with_a_window_of_2_gb(pieces: int) -> bytes:
    """Of 128 KiB of one byte each, in blocks of four bytes (RFC 8878)."""
    sizes = [(128 << 10) << 3 | 1 << 1] * (pieces - 1) + [(128 << 10) << 3 | 1 << 1 | 1]
    return b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + b"".join(one.to_bytes(3, "little") + b"\n" for one in sizes)


def test_an_xz_file_that_takes_much_memory_is_set_aside(tmp_path: Path) -> None:
    """230 kB that state a dictionary of 4 GB, which nothing bounds but what they hold, took 1.5 GB of memory."""
    data = bytearray(lzma.compress(jsonl([{"text": "One."}]), filters=[{"id": lzma.FILTER_LZMA2, "preset": 9}]))
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(data)
    assert texts(read_all(entry(path))) == ["One."]
    end = 12 + 4 * (data[12] + 1)  # of the head of the first block; its second field is the filter (the XZ file format)
    size = data.index(b"\x21\x01", 12, end) + 2
    data[size] = 40
    data[end - 4 : end] = zlib.crc32(data[12 : end - 4]).to_bytes(4, "little")
    path.write_bytes(data)
    rejected = only_rejected(read_all(entry(path)))
    assert "more than 134217728 bytes of memory, 100 times what is stored" in rejected.error


@pytest.mark.slow
def test_memory_does_not_grow_with_what_a_small_file_holds(tmp_path: Path) -> None:
    """A few kB hold 67 million line ends or a line of 250 MB, which is set aside, as are a page of Parquet of 200 MB
    and a frame whose window is 2 GB; and not many rows at once have a copy of a long value of a dictionary.
    """
    files = {
        "lines.jsonl.zst": zstd_of(b"\n" * (1 << 20), 64),
        "short.jsonl.zst": zstd_of(b"\na" * (1 << 17), 1),
        "long.jsonl.zst": zstd_of(b"a" * (1 << 20), 250),
        "window.jsonl.zst": zstd_with_a_window_of_2_gb(3000),
    }
    for name, data in files.items():
        assert len(data) < 64 << 10, name
        (tmp_path / name).write_bytes(data)
    page = pa.table({"text": pa.array(["x" * (200 << 20), "A sentence."], pa.large_string())})
    pq.write_table(page, tmp_path / "page.parquet", compression="zstd", use_dictionary=False, write_statistics=False)
    del page
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array([random_text(4 << 20)]))
    pq.write_table(pa.table({"text": rows}), tmp_path / "rows.parquet", dictionary_pagesize_limit=1 << 30)
    paths = [str(tmp_path / name) for name in (*files, "page.parquet", "rows.parquet")]
    done = subprocess.run([sys.executable, "-c", _PEAK, *paths], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = {Path(path).name: (int(lines), int(peak)) for path, lines, peak in map(str.split, done.stdout.splitlines())}
    assert all(peak < 300_000 for _, peak in found.values()), found
    read = {name: lines for name, (lines, _) in found.items()}
    assert read.pop("window.jsonl.zst") < 128 << 20, "the rest is one break"
    assert list(read.values()) == [64 << 20, (1 << 17) + 1, 1, 2, 200]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "id column missing"),
        ({"id": None}, "id is null"),
        ({"id": ""}, "id is empty"),
        ({"id": True}, "id is not a string or integer"),
        ({"id": 1.5}, "id is not a string or integer"),
        ({"id": "\ud800"}, "not encodable"),
        ({"id": "x" * 5000}, "id is too long"),
        ({"id": "a", "lang": "en"}, "unknown language"),
        ({"id": "a", "lang": None}, "lang is not a string"),
        ({"id": "a"}, "lang column missing"),
    ],
)
def test_bad_ids_and_languages(tmp_path: Path, value: dict[str, Any], reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "t", **value}) + "\n")
    source = entry(tmp_path, id="id", lang={"column": "lang"})
    (chunk,) = plan_chunks(source)
    (rejected,) = read_documents(chunk, source, SplitSettings(), ["eng_Latn", "deu_Latn"])
    assert isinstance(rejected, Rejected)
    assert rejected.reason == reason
    assert rejected.doc_id == ("a" if value.get("id") == "a" else None)


def test_columns_ids_languages_and_kept_values(tmp_path: Path) -> None:
    value = {"body": "t", "nr": 7, "l": "deu_Latn", "title": "T", "tags": ["a", "ä"], "score": 0.5, "none": None}
    (tmp_path / "a.jsonl").write_bytes(jsonl([value]))
    pq.write_table(pa.Table.from_pylist([value]), tmp_path / "b.parquet")
    keep = ["title", "tags", "score", "none"]
    source = entry(tmp_path, text="body", id="nr", lang={"column": "l"}, keep=keep)
    kept = {"title": "T", "tags": ["a", "ä"], "score": 0.5, "none": None}
    split = SplitSettings(validation=0, test=0)
    assert read_all(source, split) == [
        Document("7", "t", "deu_Latn", "train", "in:a.jsonl", kept, "a.jsonl line 1, byte 0"),
        Document("7", "t", "deu_Latn", "train", "in:b.parquet", kept, "b.parquet row 0"),
    ]


def test_generated_ids_differ_by_place_and_stay_when_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl([{"text": "same"}, {"text": "same"}]))
    before = [record.doc_id for record in read_all(entry(path))]
    path.write_bytes(jsonl([{"text": "same"}] * 3))
    after = [record.doc_id for record in read_all(entry(path))]
    assert len(set(after)) == 3
    assert after[:2] == before


def test_a_very_long_line(tmp_path: Path) -> None:
    long = "x" * (100 << 20)
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"text": "a"}, {"text": long}, {"text": "b"}]))
    assert texts(read_all(entry(tmp_path), chunk_bytes=32 << 20)) == ["a", long, "b"]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_truncated_file_gives_what_is_readable_and_one_rejected(tmp_path: Path, suffix: str) -> None:
    values = [{"text": f"{i} " + os.urandom(2000).hex()} for i in range(400)]
    whole = COMPRESS[suffix](jsonl(values))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(whole[: len(whole) * 2 // 3])
    records = read_all(entry(tmp_path))
    rejected = only_rejected(records)
    assert records[-1] is rejected
    assert (rejected.reason, rejected.bytes_unreadable) == ("unreadable", 0)
    good = texts(records[:-1])
    assert good == [value["text"] for value in values[: len(good)]]
    assert 100 < len(good) < 400


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_damaged_file_accounts_for_the_bytes_it_could_not_read(tmp_path: Path, suffix: str) -> None:
    whole = bytearray(COMPRESS[suffix](jsonl([{"text": os.urandom(2000).hex()} for _ in range(400)])))
    middle = len(whole) // 2
    whole[middle : middle + 64] = bytes(64)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(whole)
    records = read_all(entry(tmp_path))
    rejected = [record for record in records if isinstance(record, Rejected)]
    assert [record.reason == "unreadable" for record in rejected] == [False] * (len(rejected) - 1) + [True]
    assert rejected[-1] is records[-1]
    (chunk,) = plan_chunks(entry(tmp_path))
    counted = count_documents(chunk)
    assert 0 < rejected[-1].bytes_unreadable == counted.bytes_unreadable < len(whole)
    assert counted.bytes_read + counted.bytes_unreadable == len(whole)
    assert len(records) - len(rejected) > 100


def test_garbage_instead_of_a_compressed_text_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"this is no gzip")
    rejected = only_rejected(read_all(entry(tmp_path)))
    assert (rejected.reason, rejected.bytes_unreadable, rejected.record) == ("unreadable", 15, "a.txt.gz")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.txt"])
def test_a_file_that_changed_since_planning_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table({"text": ["a"]}), path)
    else:
        path.write_bytes(b'{"text": "a"}\n')
    source = entry(path)
    (chunk,) = plan_chunks(source)
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match="has changed since the run was planned"):
        list(read_documents(chunk, source, SplitSettings()))


class _LosingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A store whose connection is lost in the middle of a file."""

    protocol = "losing"

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> Any:
        file = super()._open(path, mode, block_size, **kwargs)
        size = Path(path).stat().st_size

        class Losing:
            def read(self, length: int = -1) -> bytes:
                if file.tell() < size // 2:
                    raise ConnectionResetError("connection lost")
                return bytes(file.read(length))

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def __enter__(self) -> Losing:
                return self

            def __exit__(self, *error: object) -> None:
                file.close()

        return Losing()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt.zst", "a.parquet"])
def test_a_failing_store_is_not_taken_for_a_broken_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "current", retry.RetryPolicy(0.5))
    fsspec.register_implementation("losing", _LosingFileSystem, clobber=True)
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [os.urandom(50).hex() for _ in range(10_000)]}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(
            COMPRESS["" if name == "a.jsonl" else Path(name).suffix](b'{"text": "a"}\n' * 100)
        )
    source = entry(tmp_path / name)
    (chunk,) = plan_chunks(source)
    fs = _LosingFileSystem()
    path = str(tmp_path / name)
    chunk = replace(chunk, url=f"losing://{path}", stamp=stamp(fs, path, fs.info(path)))
    with pytest.raises(ConnectionResetError, match="connection lost"):
        list(read_documents(chunk, source, SplitSettings()))


LINES = st.lists(
    st.one_of(
        st.builds(lambda text: json.dumps({"text": text}).encode(), st.text(max_size=20)),
        st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")),
        st.sampled_from([b"", b"\r", b" ", b'{"text": "x"}\r', b"\xef\xbb\xbf", b'{"text": null}']),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(LINES, st.booleans(), st.integers(1, 40), st.sampled_from(sorted(COMPRESS)), st.none() | st.integers(1, 8))
def test_records_equal_the_count_for_any_file(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ended: bool,
    chunk_bytes: int,
    suffix: str,
    limit: int | None,
) -> None:
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    assume(not not_text(data[:HEAD]))  # such a file is one record
    path = tmp_path_factory.mktemp("any") / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](data))
    expected = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    records = read_all(entry(path, limit=limit), chunk_bytes=chunk_bytes)
    assert len(records) == (expected if limit is None else min(expected, limit))
