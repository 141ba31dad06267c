"""The same from S3: a real endpoint, served by moto on this machine's loopback."""

from __future__ import annotations

import re
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import ConfigError
from pipeline.inputs import (
    Document,
    InputError,
    Rejected,
    SplitSettings,
    count_documents,
    list_files,
    plan_chunks,
    read_documents,
)
from pipeline.planning.checks import load_checked
from tests.conftest import MakeConfig
from tests.support.inputs import COMPRESS, entry, jsonl, read_all, texts


def test_reads_every_format_from_s3(bucket: str, tmp_path: Path) -> None:
    fs = fsspec.filesystem("s3")
    values = [f"text {i}" for i in range(50)]
    fs.pipe_file("corpus/in/a.jsonl", jsonl([{"text": text} for text in values]))
    fs.pipe_file("corpus/in/b.jsonl.zst", COMPRESS[".zst"](jsonl([{"text": text} for text in values])))
    pq.write_table(pa.table({"text": values}), tmp_path / "c.parquet", row_group_size=20)
    fs.put_file(str(tmp_path / "c.parquet"), "corpus/in/sub/c.parquet")
    assert [file.path for file in list_files(entry(f"{bucket}/in"))] == ["a.jsonl", "b.jsonl.zst", "sub/c.parquet"]
    assert texts(read_all(entry(f"{bucket}/in"), chunk_bytes=100)) == values * 3
    assert texts(read_all(entry(f"{bucket}/in/*.jsonl*"))) == values * 2

    with pytest.raises(InputError, match="nothing matches s3://corpus/in/none/"):
        list_files(entry(f"{bucket}/in/none/*"))

    source = entry(f"{bucket}/in/a.jsonl")
    (chunk,) = plan_chunks(source)
    fs.pipe_file("corpus/in/a.jsonl", jsonl([{"text": "other"}] * 50))
    with pytest.raises(InputError, match=r"has changed since the run was planned"):
        list(read_documents(chunk, source, SplitSettings()))


def test_keys_with_slashes_in_a_row_are_read_as_what_they_are(bucket: str) -> None:
    """`in//a.jsonl` and `in/a.jsonl` are two objects, which had one name in the corpus; `s3://corpus//in` was taken for
    `s3://corpus/in`.
    """
    keys = ["/in/a.jsonl", "in//a.jsonl", "in/a.jsonl", "in/sub//a.jsonl"]
    for key in keys:
        fsspec.filesystem("s3").call_s3("put_object", Bucket="corpus", Key=key, Body=jsonl([{"text": key}]))
    assert [file.path for file in list_files(entry(f"{bucket}/in"))] == ["/a.jsonl", "a.jsonl", "sub//a.jsonl"]
    assert texts(read_all(entry(bucket))) == keys and len({one.id for one in plan_chunks(entry(bucket))}) == len(keys)
    assert [file.path for file in list_files(entry(f"{bucket}/in//a.jsonl"))] == ["a.jsonl"]
    assert texts(read_all(entry(f"{bucket}/in//a.jsonl"))) == ["in//a.jsonl"]
    for path in ("s3://corpus//in", "s3://corpus/in//*.jsonl"):
        with pytest.raises(InputError, match=f"{re.escape(path)} has two slashes in a row, .* leave out one"):
            list_files(entry(path))


def test_a_missing_bucket_is_told_from_an_empty_folder(bucket: str) -> None:
    for path, said in (
        ("s3://nope/in/*.jsonl", "nothing matches s3://nope/in/*.jsonl: there is no bucket nope; make it"),
        (f"{bucket}/in/*.jsonl", "nothing matches s3://corpus/in/*.jsonl in folder corpus/in; check the path"),
    ):
        with pytest.raises(InputError) as caught:
            list_files(entry(path))
        assert said in str(caught.value) and "relative" not in str(caught.value)


def test_a_missing_bucket_of_the_output_is_told_before_the_run(bucket: str, make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.yaml:\d+: output s3://nope/out: there is no bucket nope; make it"):
        load_checked(make_config(output="s3://nope/out"))
    load_checked(make_config(output=f"{bucket}/out"))


def test_empty_objects(bucket: str) -> None:
    """Stores answer a request for a range of nothing with an error."""
    fs = fsspec.filesystem("s3")
    fs.pipe_file("corpus/in/a.jsonl", b"")
    fs.pipe_file("corpus/in/b.parquet", b"")
    fs.pipe_file("corpus/in/c.jsonl", jsonl([{"text": "here"}]))
    settings = entry(f"{bucket}/in")
    records = read_all(settings)
    assert texts([record for record in records if isinstance(record, Document)]) == ["here"]
    assert [record.reason for record in records if isinstance(record, Rejected)] == ["unreadable"]
    assert [count_documents(chunk).documents for chunk in plan_chunks(settings)] == [0, 1, 1]
