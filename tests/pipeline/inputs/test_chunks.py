"""Listing, cutting into chunks, limits, order: ids stay, nothing is read twice or never."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.inputs import (
    Chunk,
    Document,
    InputError,
    Rejected,
    chunks,
    list_files,
    order_chunks,
    plan_chunks,
    plan_inputs,
    streams,
)
from tests.support.inputs import COMPRESS, entry, jsonl, read, read_all, texts


def write_docs(path: Path, first: int, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jsonl([{"text": f"text {i}"} for i in range(first, first + number)]))


def without_lines(records: list[Document | Rejected]) -> list[Document | Rejected]:
    """Numbers of lines are known only in the first chunk of a file; the bytes always are."""
    return [replace(record, record=re.sub(r"line \d+, ", "", record.record)) for record in records]


def test_lists_folders_globs_and_files(tmp_path: Path) -> None:
    for name in ["b.jsonl", "a.jsonl", "sub/c.jsonl", "sub/[x].jsonl", ".hidden.jsonl", ".git/d.jsonl", "_SUCCESS"]:
        write_docs(tmp_path / name, 0, 1)
    found = {
        "": ["a.jsonl", "b.jsonl", "sub/[x].jsonl", "sub/c.jsonl"],
        "/": ["a.jsonl", "b.jsonl", "sub/[x].jsonl", "sub/c.jsonl"],
        "/*.jsonl": ["a.jsonl", "b.jsonl"],
        "/**/*.jsonl": ["a.jsonl", "b.jsonl", "sub/[x].jsonl", "sub/c.jsonl"],
        "/s*/c.jsonl": ["sub/c.jsonl"],
        "/sub/c.jsonl": ["c.jsonl"],
        "/.hidden.jsonl": [".hidden.jsonl"],
        "/sub/[x].jsonl": ["[x].jsonl"],
        "/[ab].jsonl": ["a.jsonl", "b.jsonl"],
    }
    assert {path: [file.path for file in list_files(entry(f"{tmp_path}{path}"))] for path in found} == found


@pytest.mark.parametrize("pattern", ["none/*.jsonl", "none", "empty", "empty/*.txt"])
def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nothing matches") as caught:
        list_files(entry(tmp_path / pattern))
    assert str(tmp_path / pattern) in str(caught.value)
    assert str(tmp_path / pattern.split("/")[0]) in str(caught.value)


def test_what_cannot_be_opened_is_listed_as_unreadable(tmp_path: Path) -> None:
    write_docs(tmp_path / "in/good.jsonl", 0, 1)
    write_docs(tmp_path / "elsewhere/a.jsonl", 5, 1)
    folder = tmp_path / "in"
    (folder / "link.jsonl").symlink_to(tmp_path / "elsewhere/a.jsonl")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "dangling.jsonl").symlink_to("nowhere")
    (folder / "self.jsonl").symlink_to("self.jsonl")
    (folder / "around").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "a\udcff.jsonl").write_bytes(b"")
    (folder / "a::b.jsonl").write_bytes(b"")
    (folder / "folder.jsonl").mkdir()
    listed = {file.path: file for file in list_files(entry(folder, follow_links=True))}
    good = {path for path, file in listed.items() if file.format == "jsonl"}
    assert good == {"good.jsonl", "link.jsonl"}
    why = {path: file.stamp for path, file in listed.items() if file.format == "unreadable"}
    expected = {
        "linked/a.jsonl": "the same file as link.jsonl",
        "dangling.jsonl": "No such file",
        "self.jsonl": "symbolic links",
        "around": "lies in",
        "pipe.jsonl": "not a regular file",
        "a\\xff.jsonl": "not UTF-8; rename",
        "a::b.jsonl": "rename it",
    }
    assert why.keys() == expected.keys()
    assert all(words in why[path] for path, words in expected.items()), why
    globbed = {file.path: file for file in list_files(entry(folder / "*.jsonl", follow_links=True))}
    assert globbed.keys() == (good | expected.keys() | {"folder.jsonl"}) - {"around", "linked/a.jsonl"}
    assert "is a folder" in globbed["folder.jsonl"].stamp
    records = [record for record in read_all(entry(folder, follow_links=True)) if isinstance(record, Rejected)]
    assert {record.record: record.error for record in records} == why


def test_links_that_leave_the_folder_are_not_read(tmp_path: Path) -> None:
    """A link to /proc/self/environ made a document of credentials."""
    folder, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    write_docs(folder / "good.jsonl", 0, 1)
    write_docs(folder / "below/other.jsonl", 1, 1)
    write_docs(elsewhere / "a.jsonl", 5, 1)
    (folder / "inside.jsonl").symlink_to("below/other.jsonl")
    (folder / "file.jsonl").symlink_to(elsewhere / "a.jsonl")
    (folder / "all").symlink_to(elsewhere)
    (folder / "environment.txt").symlink_to("/proc/self/environ")
    (folder / "zero.txt").symlink_to("/dev/zero")
    (folder / "system").symlink_to("/proc")
    for place in (folder, f"{folder}/**"):
        found = {file.path: file for file in list_files(entry(place))}
        why = {path: file.stamp for path, file in found.items() if file.format == "unreadable"}
        assert found.keys() - why.keys() == {"good.jsonl", "below/other.jsonl"}
        assert why.keys() == {"inside.jsonl", "file.jsonl", "all", "environment.txt", "zero.txt", "system"}
        assert "same file as below/other.jsonl" in why["inside.jsonl"]
        assert all("leads out of the input's folder" in why[one] for one in ("file.jsonl", "all")), why
        assert all("is the system's" in why[one] for one in ("environment.txt", "zero.txt", "system")), why
    found = {file.path: file for file in list_files(entry(folder, follow_links=True))}
    assert {path for path, file in found.items() if file.format != "unreadable"} == {
        "good.jsonl", "below/other.jsonl", "all/a.jsonl"
    }  # fmt: skip
    (tmp_path / "link.jsonl").symlink_to(elsewhere / "a.jsonl")  # one that is asked for by its name is meant
    assert [file.format for file in list_files(entry(tmp_path / "link.jsonl"))] == ["jsonl"]
    with pytest.raises(InputError, match="is the system's"):
        list_files(entry(folder / "environment.txt"))
    (tmp_path / "linked").symlink_to(folder)  # and so is a folder
    assert {file.path for file in list_files(entry(tmp_path / "linked"))} == (found.keys() - {"all/a.jsonl"}) | {"all"}


def test_a_link_that_may_not_be_followed_hides_no_other_file(tmp_path: Path) -> None:
    """The root folder of another process, in a container: even where it leads may not be asked."""
    write_docs(tmp_path / "good.jsonl", 0, 1)
    (tmp_path / "root.txt").symlink_to("/proc/1/root/etc/passwd")
    found = {file.path: file for file in list_files(entry(tmp_path))}
    assert [found[one].format for one in ("good.jsonl", "root.txt")] == ["jsonl", "unreadable"]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no file system in memory")
def test_files_in_memory_are_inputs_like_others() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        write_docs(Path(folder) / "a.jsonl", 0, 1)
        assert [file.format for file in list_files(entry(Path(folder)))] == ["jsonl"]


@pytest.mark.parametrize("name", ["pipe.jsonl", "dangling.jsonl", "self.jsonl", "*.jsonl"])
def test_an_input_of_which_nothing_can_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "dangling.jsonl").symlink_to("nowhere")
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    with pytest.raises(InputError, match=r"can be read; .*(pipe|dangling|self)"):
        list_files(entry(tmp_path / name))


@pytest.mark.parametrize("pattern", ["", "/*.jsonl", "/a?b.jsonl", "/a[ \n#%:]b.jsonl"])
def test_file_names_of_every_kind(tmp_path: Path, pattern: str) -> None:
    names = ["a b.jsonl", "a\nb.jsonl", "a#b.jsonl", "a%b.jsonl", "a:b.jsonl"]
    for number, name in enumerate(names):
        write_docs(tmp_path / name, number, 1)
    assert sorted(texts(read_all(entry(f"{tmp_path}{pattern}")))) == [f"text {i}" for i in range(5)]


def test_two_inputs_of_the_same_text_are_an_error(tmp_path: Path) -> None:
    write_docs(tmp_path / "a.jsonl", 0, 1)
    write_docs(tmp_path / "b.jsonl", 0, 1)
    both = [entry(tmp_path / "*.jsonl", name="all"), entry(tmp_path / "b.jsonl", name="one")]
    with pytest.raises(InputError, match=r"all and one both match .*b\.jsonl"):
        plan_inputs(both)
    assert len(plan_inputs([both[0], entry(tmp_path / "b.jsonl", name="titles", text="title")])) == 3


def test_a_file_that_goes_away_after_planning(tmp_path: Path) -> None:
    write_docs(tmp_path / "a.jsonl", 0, 1)
    (chunk,) = plan_chunks(entry(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InputError, match=r"a\.jsonl is gone since the run was planned"):
        read([chunk], entry(tmp_path))


def test_a_file_that_goes_away_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_docs(tmp_path / "a.jsonl", 0, 1)
    (chunk,) = plan_chunks(entry(tmp_path))
    of_planned = streams.stamp

    def last_seen(*args: Any) -> str:
        seen = of_planned(*args)
        (tmp_path / "a.jsonl").unlink()
        return seen

    monkeypatch.setattr(streams, "stamp", last_seen)
    with pytest.raises(
        InputError, match=rf"^{tmp_path}/a\.jsonl is gone since the run was planned; start the run again"
    ):
        read([chunk], entry(tmp_path))


def test_an_unknown_extension_is_an_error_unless_the_format_is_given(tmp_path: Path) -> None:
    write_docs(tmp_path / "a.data.gz", 0, 1)
    with pytest.raises(InputError, match=r"a\.data\.gz cannot be told"):
        list_files(entry(tmp_path))
    write_docs(tmp_path / "a.data", 0, 2)
    assert texts(read_all(entry(tmp_path / "a.data", format="jsonl"))) == ["text 0", "text 1"]


def test_a_compressed_parquet_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet.gz").write_bytes(b"")
    with pytest.raises(InputError, match="compressed Parquet"):
        list_files(entry(tmp_path))


def test_any_fsspec_url(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/inputs-test/a b#c.jsonl", jsonl([{"text": "a"}, {"text": "b"}]))
    assert texts(read_all(entry("memory://inputs-test/*.jsonl"), chunk_bytes=5)) == ["a", "b"]
    write_docs(tmp_path / "x.jsonl", 0, 1)
    assert texts(read_all(entry(f"file://{tmp_path}"))) == ["text 0"]


def test_every_line_is_read_once_wherever_chunks_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b'{"text":"a"}', b"", b'{"text":"\xc3\xa4"}\r', b'{"text":"' + b"l" * 50 + b'"}', b"", b'{"text":"z"}']
    for ending in (b"", b"\n"):
        data = b"\n".join(lines) + ending
        path.write_bytes(data)
        whole = read_all(entry(path))
        assert [record.record.split(",")[0] for record in whole] == [f"a.jsonl line {n}" for n in range(1, 7)]
        for chunk_bytes in range(1, len(data) + 2):
            records = read_all(entry(path), chunk_bytes=chunk_bytes)
            assert without_lines(records) == without_lines(whole), chunk_bytes


def test_lines_longer_than_blocks_wherever_chunks_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        jsonl([{"text": letter * length} for letter, length in zip("abcd", [3, 3 << 20, 1 << 20, 5], strict=True)])
    )
    whole = read_all(entry(path))
    for chunk_bytes in (1 << 18, (1 << 20) - 1, 1 << 20, (1 << 20) + 1):
        assert without_lines(read_all(entry(path), chunk_bytes=chunk_bytes)) == without_lines(whole), chunk_bytes


def test_appending_and_adding_files_changes_no_other_chunk(tmp_path: Path) -> None:
    write_docs(tmp_path / "b.jsonl", 0, 100)
    write_docs(tmp_path / "c.jsonl", 0, 100)
    before = plan_chunks(entry(tmp_path), chunk_bytes=300)
    write_docs(tmp_path / "a.jsonl", 0, 50)
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(jsonl([{"text": "more"}] * 50))
    after = {chunk.id: chunk for chunk in plan_chunks(entry(tmp_path), chunk_bytes=300)}
    assert len(after) > len(before) > 10
    for chunk in before:
        assert (after[chunk.id].path, after[chunk.id].start) == (chunk.path, chunk.start)
        if chunk.path == "c.jsonl":
            assert after[chunk.id] == chunk


def test_parquet_chunks_keep_their_ids_when_row_groups_are_added(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    tables = [pa.table({"text": [f"{group} {row}" * 50 for row in range(100)]}) for group in range(9)]
    plans = []
    for groups in (7, 9):
        with pq.ParquetWriter(path, tables[0].schema, compression="none", use_dictionary=False) as writer:
            for table in tables[:groups]:
                writer.write_table(table)
        plans.append(plan_chunks(entry(path), chunk_bytes=50_000))
    before, after = ([(chunk.id, chunk.start) for chunk in plan] for plan in plans)
    assert len(before) >= 3
    assert after[: len(before)] == before
    assert [chunk.end for chunk in plans[1][:-1]] == [chunk.start for chunk in plans[1][1:]]
    assert texts(read(plans[1], entry(path))) == [text for table in tables for text in table["text"].to_pylist()]


def test_empty_files_have_a_chunk_without_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "b.parquet")
    assert len(plan_chunks(entry(tmp_path))) == 2
    assert read_all(entry(tmp_path)) == []


def test_chunks_go_through_json(tmp_path: Path) -> None:
    write_docs(tmp_path / "ä.jsonl", 0, 3)
    (chunk,) = plan_chunks(entry(tmp_path))
    assert Chunk.from_json(chunk.to_json()) == chunk
    assert json.loads(chunk.to_json())["path"] == "ä.jsonl"
    assert len(chunk.id) == 12 and int(chunk.id, 16) >= 0


@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("limit", [1, 9, 10, 11, 25, 30, 31])
def test_limit_takes_the_first_documents_in_path_order(tmp_path: Path, limit: int, suffix: str) -> None:
    for number, name in enumerate("abc"):
        path = tmp_path / f"{name}.jsonl{suffix}"
        path.write_bytes(COMPRESS[suffix](jsonl([{"text": f"text {number * 10 + i}"} for i in range(10)])))
    chunks = plan_chunks(entry(tmp_path, limit=limit), chunk_bytes=50)
    assert texts(read(chunks, entry(tmp_path, limit=limit))) == [f"text {i}" for i in range(min(limit, 30))]
    assert [chunk.take for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_limit_across_parquet_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [str(i) for i in range(100)]}), tmp_path / "a.parquet", row_group_size=30)
    source = entry(tmp_path, limit=70)
    assert texts(read_all(source, chunk_bytes=1)) == [str(i) for i in range(70)]


def test_limit_inside_a_broken_row_group_balances(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{i:050}" for i in range(100)]}), path, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:30] = b"\xff" * 26
    path.write_bytes(data)
    (rejected,) = read_all(entry(path, limit=40))
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.records) == ("unreadable", 40)


def test_columns_that_no_parquet_file_has_are_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "url": ["u"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"no Parquet file has a column 'text', 'titel'; there are body, url"):
        plan_chunks(entry(tmp_path, keep=["titel"]))


def test_a_column_may_be_missing_beside_other_formats(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "a.parquet")
    write_docs(tmp_path / "b.jsonl", 0, 1)
    assert [isinstance(record, Document) for record in read_all(entry(tmp_path))] == [False, True]


def test_text_files_have_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a")
    with pytest.raises(InputError, match=r"a\.md is a text file.*id, keep, lang"):
        plan_chunks(entry(tmp_path, id="id", keep=["title"], lang={"column": "lang"}))


def fake_chunks(name: str, number: int, size: int) -> Iterator[Chunk]:
    for i in range(number):
        yield Chunk(f"{name}{i:011}", name, "p", "u", "jsonl", "", i, i + 1, size, None, "s")


def test_order_is_seeded_complete_and_stratified() -> None:
    chunks = [*fake_chunks("a", 900, 10), *fake_chunks("b", 90, 100), *fake_chunks("c", 10, 1)]
    order = order_chunks(chunks, 1)
    assert sorted(order, key=lambda c: c.id) == sorted(chunks, key=lambda c: c.id)
    assert order == order_chunks(list(reversed(chunks)), 1) != order_chunks(chunks, 2)
    for part in (100, 300, 700):
        for name, total in (("a", 900), ("b", 90)):
            share = sum(chunk.input == name for chunk in order[:part]) / total
            assert share == pytest.approx(part / 1000, abs=0.03)
    starts = [chunk.start for chunk in order if chunk.input == "a"]
    assert sum(x < y for x, y in pairwise(starts)) == pytest.approx(450, abs=60)


def test_documents_are_the_same_from_any_folder(tmp_path: Path) -> None:
    out: list[list[Document | Rejected]] = []
    for folder in ("one", "two"):
        write_docs(tmp_path / folder / "data" / "a.jsonl", 0, 5)
        source = entry("data/*.jsonl", name=None).resolve(str(tmp_path / folder))
        out.append(read_all(source))
    assert out[0] == out[1]


def test_two_chunks_with_one_id_are_refused_by_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        write_docs(tmp_path / f"in/{number}.jsonl", number, 1)
    assert len(order_chunks(plan_inputs([entry(tmp_path / "in")]), 0)) == 40
    full = chunks.chunk_id
    monkeypatch.setattr(chunks, "chunk_id", lambda *named: full(*named)[:2])
    with pytest.raises(InputError, match=r"two chunks have the same id .*, by chance") as caught:
        order_chunks(plan_inputs([entry(tmp_path / "in")]), 0)
    ids = {chunk.path: chunk.id for chunk in plan_chunks(entry(tmp_path / "in"))}
    one, two = (path for path in ids if f":{path} from 0" in str(caught.value))
    assert ids[one] == ids[two]
