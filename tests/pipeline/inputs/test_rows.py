"""Parquet of every kind as documents; what is broken costs its rows only, and they are counted."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.inputs import Document, Rejected, rows
from pipeline.inputs.chunks import plan_chunks
from pipeline.inputs.column_types import TEXT, ColumnType
from pipeline.inputs.counting import Content, count_documents
from pipeline.inputs.kept_values import as_array
from pipeline.inputs.records import RecordMaker
from pipeline.inputs.settings import SplitSettings
from tests.support.inputs import TEXTS, entry, only_rejected, read_all, texts


def test_parquet_types_of_every_kind_spoil_at_most_their_row(tmp_path: Path) -> None:
    far = pa.array([0, 1, 2**62, None], pa.int64())
    uuid = pa.array([bytes([i] * 16) for i in range(4)], pa.binary(16)).cast(pa.uuid())
    table = pa.table(
        {
            "id": uuid,
            "text": pa.array([b"good", b"\xff\xfe", b"fine", None], pa.binary_view()),
            "fixed": pa.array([b"abcd"] * 4, pa.binary(4)),
            "time": far.cast(pa.timestamp("ns")),
            "day": pa.array([0, 10**7, 1, 2], pa.int32()).cast(pa.date32()),
            "json": pa.array(['{"a": 1}'] * 4).cast(pa.json_()),
            "nested": [{"a": [b"x", None]}] * 4,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    keep = ["fixed", "time", "day", "json", "nested"]
    records = read_all(entry(tmp_path, id="id", keep=keep))
    assert [getattr(record, "reason", "") for record in records] == ["", "not UTF-8", "", "text is null"]
    first, third = records[0], records[2]
    assert isinstance(first, Document) and isinstance(third, Document)
    assert first.doc_id == "00000000-0000-0000-0000-000000000000"
    assert (first.kept["fixed"], first.kept["json"]) == ("abcd", '{"a": 1}')
    assert (first.kept["time"], first.kept["day"]) == (dt.datetime(1970, 1, 1), dt.date(1970, 1, 1))
    assert third.kept["time"] == "2116-02-20 23:53:38.427387904"
    records = read_all(entry(tmp_path, text="day"))
    assert {record.reason for record in records if isinstance(record, Rejected)} == {"text is not a string"}


def test_the_quarantine_shows_a_row_as_a_person_reads_it(tmp_path: Path) -> None:
    """As JSON that every parser reads, whatever the values are."""
    moment = dt.datetime(2024, 2, 29, 12)
    table = {"text": [None], "title": ["Ça – 好"], "day": [moment.date()], "at": [moment], "score": [float("nan")]}
    pairs = pa.array([[("a", float("inf"))]], pa.map_(pa.string(), pa.float64()))
    pq.write_table(pa.table(table | {"pairs": pairs, "tags": [[dt.time(1)]]}), tmp_path / "a.parquet")
    payload = only_rejected(read_all(entry(tmp_path, keep=["title", "day", "at", "score", "pairs", "tags"]))).payload
    assert payload.decode() == (
        '{"text": null, "title": "Ça – 好", "day": "2024-02-29", "at": "2024-02-29T12:00:00", "score": null, '
        '"pairs": [["a", null]], "tags": ["01:00:00"]}'
    )
    source = entry(tmp_path)
    (chunk,) = plan_chunks(source)
    half = RecordMaker(chunk, source, SplitSettings(), None).make({"text": "half a character: \ud800"}, 0)
    assert isinstance(half, Rejected) and half.payload == rb'{"text": "half a character: \ud800"}'


def test_large_rows_are_not_all_in_memory_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{i}" * (8 << 20) for i in range(9)]}), path, use_dictionary=False)
    with pq.ParquetFile(path) as file:
        assert rows._rows_at_once(9, [file.metadata.row_group(0).column(0)], 0) == 7
    assert [text[:2] for text in texts(read_all(entry(path)))] == [f"{i}{i}" for i in range(9)]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]
)
def test_parquet_in_every_string_type(tmp_path: Path, kind: pa.DataType, compression: str) -> None:
    table = pa.table({"text": pa.array(TEXTS).cast(kind), "unused": list(range(len(TEXTS)))})
    pq.write_table(table, tmp_path / "a.parquet", compression=compression, row_group_size=3)
    assert texts(read_all(entry(tmp_path / "a.parquet"))) == TEXTS
    assert texts(read_all(entry(tmp_path / "a.parquet"), chunk_bytes=1)) == TEXTS


def test_parquet_values_that_are_not_utf8_spoil_only_their_row(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe", b"fine", None]).view(pa.string())
    nested = pa.array([["a"], ["b"], ["c"], ["d"]])
    pq.write_table(pa.table({"text": raw, "tags": nested}), tmp_path / "a.parquet")
    records = read_all(entry(tmp_path, keep=["tags"]))
    assert [getattr(record, "reason", "") for record in records] == ["", "not UTF-8", "", "text is null"]
    assert records[1].record == "a.parquet row 1"
    bad_nested = pa.ListArray.from_arrays([0, 1, 2], pa.array([b"ok", b"\xff"]).view(pa.string()))
    pq.write_table(pa.table({"text": ["a", "b"], "tags": bad_nested}), tmp_path / "a.parquet")
    records = read_all(entry(tmp_path, keep=["tags"]))
    assert [getattr(record, "reason", "") for record in records] == ["", "not UTF-8"]


def test_a_parquet_file_without_the_text_column_among_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"body": ["b", "c"]}), tmp_path / "b.parquet")
    records = read_all(entry(tmp_path))
    assert [getattr(record, "reason", "") for record in records] == ["", "text column missing", "text column missing"]
    assert getattr(records[1], "error", "").endswith("of 'body'")


def test_a_broken_parquet_page_costs_its_row_group_only(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [os.urandom(50).hex() for _ in range(3000)]
    pq.write_table(pa.table({"text": values}), path, row_group_size=1000, compression="zstd", use_dictionary=False)
    column = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = column.data_page_offset + 200
    data[begin : begin + 5000] = os.urandom(5000)
    path.write_bytes(data)
    records = read_all(entry(path))
    rejected = only_rejected(records)
    assert (rejected.reason, rejected.records) == ("unreadable", 1000)
    assert rejected.bytes_unreadable == column.total_compressed_size
    assert texts([record for record in records if record is not rejected]) == values[:1000] + values[2000:]


def test_a_parquet_file_without_a_footer_is_one_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    rejected = only_rejected(read_all(entry(tmp_path)))
    assert (rejected.reason, rejected.bytes_unreadable) == ("unreadable", 19)


def test_bytes_and_nanoseconds_in_lists_and_structs(tmp_path: Path) -> None:
    """Bytes are text there as in a column of their own, and no digit of a time is lost."""
    moment = 1577836800_000000_000
    moments, days = pa.array([[moment], [moment + 1], None]), pa.array([moment, None, 1])
    columns = {
        "text": pa.array(["a", "b", "c"]),
        "bytes": pa.array([[b"x", None], [], [b"\xff"]]),
        "pairs": pa.array([[("k", b"v")], None, []], pa.map_(pa.string(), pa.binary())),
        "moments": moments.cast(pa.list_(pa.timestamp("ns"))),
        "time": pa.array([1, 1000, None], pa.time64("ns")),
        "took": pa.array([-1, 1500, 2000], pa.duration("ns")),
        "made": pa.StructArray.from_arrays([days.cast(pa.timestamp("ns"))], ["at"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    first, second, third = read_all(entry(tmp_path, keep=[*columns][1:]))
    assert isinstance(first, Document) and isinstance(second, Document) and isinstance(third, Rejected)
    day, finer = dt.datetime(2020, 1, 1), "2020-01-01 00:00:00.000000001"
    assert first.kept["bytes"] == ["x", None] and first.kept["pairs"] == [("k", "v")]
    assert first.kept["moments"] == [day] and second.kept["moments"] == [finer] and first.kept["made"] == {"at": day}
    assert [one.kept["time"] for one in (first, second)] == ["00:00:00.000000001", "00:00:00.000001"]
    assert [one.kept["took"] for one in (first, second)] == ["-1 day, 23:59:59.999999999", "0:00:00.000001500"]
    assert third.reason == "not UTF-8" and "bytes" in third.error


def test_nanoseconds_with_a_zone_are_in_utc(tmp_path: Path) -> None:
    moments = pa.array([1262340000_123456789, 1262340000_000000000, None])
    columns = {
        "text": pa.array(["a", "b", "c"]),
        "fine": moments.cast(pa.timestamp("ns", "Europe/Berlin")),
        "inside": pa.StructArray.from_arrays([moments.cast(pa.timestamp("ns", "+02:00"))], ["at"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    kept = [one.kept for one in read_all(entry(tmp_path, keep=["fine", "inside"])) if isinstance(one, Document)]
    fine, inside = (as_array([one[name] for one in kept], TEXT, name)[0].to_pylist() for name in ("fine", "inside"))
    assert fine == ["2010-01-01 10:00:00.123456789+00:00", "2010-01-01 10:00:00+00:00", None]
    assert inside == [f'{{"at": "{fine[0]}"}}', f'{{"at": "{fine[1]}"}}', "{}"]
    array, misfits = as_array([one["fine"] for one in kept], ColumnType("timestamp"), "fine")
    assert array.to_pylist() == [None, dt.datetime(2010, 1, 1, 10, tzinfo=dt.UTC), None], "no digit is lost untold"
    assert misfits == [("fine", fine[0])]


@pytest.mark.parametrize(
    ("true", "lie", "why"),
    [(b"\x15\x0c", b"\x15\x7e", "codec value: 63"), (b"\x18\x04text", b"\x18\x04t\xffxt", "can't decode")],
    ids=["compression", "path"],
)
def test_a_footer_that_cannot_be_true_sets_its_rows_aside(tmp_path: Path, true: bytes, lie: bytes, why: str) -> None:
    """Arrow would end the process when it is asked what the footer says of the column."""
    options: dict[str, Any] = {"compression": "zstd", "write_statistics": False, "store_schema": False}
    pq.write_table(pa.table({"text": ["A sentence.", "Another one."]}), tmp_path / "a.parquet", **options)
    data = (tmp_path / "a.parquet").read_bytes()
    before, after = data.rsplit(true, 1)
    (tmp_path / "a.parquet").write_bytes(before + lie + after)
    rejected = only_rejected(read_all(entry(tmp_path / "a.parquet")))
    assert (rejected.reason, rejected.records) == ("unreadable", 2) and why in rejected.error, rejected
    assert count_documents(plan_chunks(entry(tmp_path / "a.parquet"))[0], Content(["text"])).documents == 2
