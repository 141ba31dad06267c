"""Large compressed files are cut at their members or by their text, and every line is in one of the chunks."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from pipeline.inputs import (
    Chunk,
    Content,
    Document,
    InputError,
    InputSettings,
    Rejected,
    SplitSettings,
    count_documents,
    plan_chunks,
    read_documents,
    resolve_inputs,
)
from pipeline.inputs import members as cuts
from pipeline.inputs.counting import content_digest
from pipeline.inputs.packing import MEMBERS, PACKABLE

LENGTH = 4000  # bytes of a chunk
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 1),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def lines(count: int, seed: int = 0) -> list[bytes]:
    """Records that hardly shrink; some are longer than a member."""
    draw = random.Random(seed)
    long = {45, 46, 77}
    return [
        json.dumps({"id": f"{n}", "text": draw.randbytes(9000 if n in long else draw.randrange(200)).hex()}).encode()
        for n in range(count)
    ]


def settings(folder: Path, *, named: bool = True) -> InputSettings:
    value = InputSettings.model_validate({"path": "in/*", "lang": "eng_Latn", **({"id": "id"} if named else {})})
    return resolve_inputs([value], str(folder))[0]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def items(one: InputSettings, chunks: list[Chunk]) -> list[Document | Rejected]:
    """All records, and a check that as many are counted."""
    found: list[Document | Rejected] = []
    for chunk in chunks:
        some = list(read_documents(chunk, one, SplitSettings()))
        assert sum(x.records if isinstance(x, Rejected) else 1 for x in some) == count_documents(chunk).documents
        found += some
    return found


def ids(found: list[Document | Rejected]) -> list[str | None]:
    return [x.doc_id for x in found]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("at_lines", [True, False])
def test_each_line_is_read_once(tmp_path: Path, ending: str, at_lines: bool) -> None:
    """Whether members end at line ends or not; lines run across several members and chunks."""
    records = lines(120)
    data = b"\n".join(records) + b"\n"
    draw = random.Random(1)
    if at_lines:
        members = [b"".join(line + b"\n" for line in records[n : n + 4]) for n in range(0, len(records), 4)]
    else:
        members = cut(data, [draw.randrange(3000) for _ in range(40)])
    (tmp_path / "in").mkdir()
    file = tmp_path / f"in/a.jsonl.{ending}"
    file.write_bytes(b"".join(map(COMPRESS[ending], members)))
    one = settings(tmp_path)
    chunks = plan_chunks(one, LENGTH, PACKABLE)
    assert len(chunks) > 5 and [c.end for c in chunks[:-1]] == [c.start for c in chunks[1:]]
    assert chunks[-1].end == file.stat().st_size and all(c.bytes == c.end - c.start for c in chunks)
    assert ids(items(one, chunks)) == [f"{n}" for n in range(120)]
    (whole,) = plan_chunks(one, LENGTH, ("jsonl",))  # as corpora that began without this
    assert whole.end == -1 and ids(items(one, [whole])) == [f"{n}" for n in range(120)]
    made = settings(tmp_path, named=False)
    generated = ids(items(made, plan_chunks(made, LENGTH, PACKABLE)))
    assert len(set(generated)) == 120


@pytest.mark.parametrize("ending", COMPRESS)
def test_many_empty_lines_in_a_file_of_several_members(tmp_path: Path, ending: str) -> None:
    """Of which a chunk holds far more text than its end counts stored bytes."""
    (tmp_path / "in").mkdir()
    records = lines(120)
    empty = b"\n" * 30_000
    members = [b"".join(line + b"\n" for line in records[n : n + 4]) + empty for n in range(0, 120, 4)]
    (tmp_path / f"in/a.jsonl.{ending}").write_bytes(b"".join(map(COMPRESS[ending], members)))
    one = settings(tmp_path)
    chunks = plan_chunks(one, LENGTH, PACKABLE)
    assert len(chunks) > 5 and not any(c.by_text for c in chunks)
    found = items(one, chunks)
    assert [x.doc_id for x in found if isinstance(x, Document)] == [f"{n}" for n in range(120)]
    assert sum(x.records for x in found if isinstance(x, Rejected)) == 30 * len(empty)


def test_a_last_line_without_an_end_and_padding(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = b"\n".join(lines(60))
    members = cut(data, [2500] * 20)
    (tmp_path / "in/a.jsonl.gz").write_bytes(b"".join(map(COMPRESS["gz"], members)) + b"\0" * 5000)
    one = settings(tmp_path)
    assert ids(items(one, plan_chunks(one, LENGTH, PACKABLE))) == [f"{n}" for n in range(60)]


@pytest.mark.parametrize("ending", ["gz", "xz"])
def test_padding_between_members_belongs_to_no_chunk(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in").mkdir()
    members = cut(b"\n".join(lines(300)), [700] * 200)
    for zeros in (4, 2000):
        (tmp_path / f"in/a.jsonl.{ending}").write_bytes(
            bytes(zeros).join(map(COMPRESS[ending], members)) + bytes(zeros)
        )
        one = settings(tmp_path)
        chunks = plan_chunks(one, LENGTH, PACKABLE)
        assert ids(items(one, chunks)) == [f"{n}" for n in range(300)]
    first, second = (COMPRESS[ending](line + b"\n") for line in lines(2))
    (tmp_path / f"in/a.jsonl.{ending}").write_bytes(first + bytes(4) + b"what is this?" + second)
    read, broken = items(one, plan_chunks(one, LENGTH, PACKABLE))
    assert isinstance(read, Document) and isinstance(broken, Rejected) and broken.reason == "unreadable"


@pytest.mark.parametrize("ending", COMPRESS)
def test_appending_a_member_leaves_chunks_as_they_are(tmp_path: Path, ending: str) -> None:
    """Except the last one; ids that are made stay too."""
    (tmp_path / "in").mkdir()
    records = lines(80)
    members = [b"".join(line + b"\n" for line in records[n : n + 3]) for n in range(0, 80, 3)]
    file = tmp_path / f"in/a.jsonl.{ending}"
    one = settings(tmp_path, named=False)

    def made() -> tuple[list[Chunk], list[str], list[str | None]]:
        chunks = plan_chunks(one, LENGTH, PACKABLE)
        contents = []
        for chunk in chunks:
            content = Content(["text"])
            count_documents(chunk, content)
            contents.append(content.of(chunk))
        return chunks, contents, ids(items(one, chunks))

    file.write_bytes(b"".join(map(COMPRESS[ending], members[:-5])))
    chunks, contents, names = made()
    with file.open("ab") as opened:
        opened.write(b"".join(map(COMPRESS[ending], members[-5:])))
    more, again, all_names = made()
    assert len(more) > len(chunks) and [c.id for c in more[: len(chunks)]] == [c.id for c in chunks]
    assert again[: len(chunks) - 1] == contents[:-1] and all_names[: len(names)] == names


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_large_file_of_one_member_is_divided_by_its_text(tmp_path: Path, ending: str) -> None:
    """Records, their places and the ids that are made of these are those of the undivided file."""
    (tmp_path / "in").mkdir()
    file = tmp_path / f"in/a.jsonl.{ending}"
    for tail in (b"", b"\n", b"\n" * 5000, b"\n" * 50_000 + lines(1, 1)[0], b"\n{"):
        file.write_bytes(COMPRESS[ending](b"\n".join(lines(90)) + tail))
        one = settings(tmp_path, named=False)
        chunks = plan_chunks(one, LENGTH, PACKABLE)
        assert len(chunks) == round(file.stat().st_size / LENGTH) and all(c.by_text for c in chunks)
        assert min(c.bytes for c in chunks) >= LENGTH / 2  # a tiny last one would refuse lines that are not long
        assert [c.end for c in chunks[:-1]] == [c.start for c in chunks[1:]] and chunks[-1].end == -1
        assert sum(c.bytes for c in chunks) == file.stat().st_size and chunks == plan_chunks(one, LENGTH, PACKABLE)
        (whole,) = plan_chunks(one, LENGTH, ("jsonl", MEMBERS))  # as corpora that began without this
        assert not whole.by_text and alike(items(one, chunks)) == alike(items(one, [whole]))
        named = settings(tmp_path)
        read = [x for x in ids(items(named, chunks)) if x]
        assert read[:90] == [f"{n}" for n in range(90)]
    assert len(plan_chunks(one, file.stat().st_size // 4 + 1, PACKABLE)) == 1  # which is not large
    assert cuts.MOST_RANGES / 2 < len(plan_chunks(one, 50, PACKABLE)) <= cuts.MOST_RANGES


def alike(found: list[Document | Rejected]) -> list[tuple[str | None, str | None, str]]:
    """What is the same however a file is divided: ids, texts and reasons; empty lines one by one."""
    return [
        what
        for x in found
        for what in (
            [(x.doc_id, x.text, "")]
            if isinstance(x, Document)
            else [(x.doc_id if x.kind == "quarantined" else None, None, x.reason)] * x.records
        )
    ]


@pytest.mark.parametrize("dense_first", [True, False])
def test_text_that_is_compressed_unevenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense_first: bool) -> None:
    """The beginning decides where cuts are: the last chunks are empty, or the last one is large."""
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(cuts, "MEASURED", 2000)
    dense = [json.dumps({"id": f"d{n}", "text": "word " * 2000}).encode() for n in range(300)]
    halves = (dense, lines(90)) if dense_first else (lines(90), dense)
    (tmp_path / "in/a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(halves[0] + halves[1])))
    one = settings(tmp_path)
    chunks = plan_chunks(one, 1000, PACKABLE)
    counts = [count_documents(c).documents for c in chunks]
    assert len(chunks) > 8 and counts.count(0) if dense_first else counts[-1] > 200
    assert ids(items(one, chunks)) == [json.loads(line)["id"] for half in halves for line in half]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("how", ["cut off", "changed"])
def test_a_break_in_a_file_that_is_divided_by_its_text(tmp_path: Path, ending: str, how: str) -> None:
    """Is told by one chunk, and what precedes it is read."""
    (tmp_path / "in").mkdir()
    file = tmp_path / f"in/a.jsonl.{ending}"
    whole_file = COMPRESS[ending](b"\n".join(lines(90)))
    told = 0
    for at in range(len(whole_file) // 2, len(whole_file) - 20, 3989):
        file.write_bytes(whole_file[:at] if how == "cut off" else whole_file[:at] + bytes(40) + whole_file[at + 40 :])
        one = settings(tmp_path)
        chunks = plan_chunks(one, LENGTH, PACKABLE)
        (whole,) = plan_chunks(one, LENGTH, ("jsonl", MEMBERS))
        found, expected = items(one, chunks), items(one, [whole])
        assert ids(found) == ids(expected)
        broken = [x for x in found if isinstance(x, Rejected) and x.reason == "unreadable"]
        assert [x.bytes_unreadable for x in broken] == [
            x.bytes_unreadable for x in expected if isinstance(x, Rejected) and x.reason == "unreadable"
        ]
        assert sum(count_documents(c).bytes_unreadable for c in chunks) <= sum(x.bytes_unreadable for x in broken)
        told += len(broken)
    assert told


def test_what_is_divided_by_text_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the stored bytes of the file and the range; appending to it leaves the ids of its chunks."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in/a.jsonl.gz"
    monkeypatch.setattr(cuts, "MEASURED", 1 << 16)
    file.write_bytes(gzip.compress(b"\n".join(lines(3000)) + b"\n"))
    one = settings(tmp_path)

    def contents() -> dict[str, str]:
        found = {}
        for chunk in plan_chunks(one, 10 * LENGTH, PACKABLE):
            content = Content(["text"])
            count_documents(chunk, content)
            found[chunk.id] = content.of(chunk)
            assert found[chunk.id] == content_digest(chunk, ["text"])
        return found

    before = contents()
    file.touch()
    assert contents() == before and len(set(before.values())) == len(before)
    with file.open("ab") as opened:
        opened.write(gzip.compress(lines(1)[0]))
    after = contents()
    assert list(after)[: len(before)] == list(before) and not set(after.values()) & set(before.values())
    assert len(items(one, plan_chunks(one, 10 * LENGTH, PACKABLE))) == 3001


def test_a_limit_within_a_file_that_is_divided_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl.xz").write_bytes(lzma.compress(b"\n".join(lines(90)) + b"\n"))
    for limit in (1, 37, 89, 90, 91):
        one = settings(tmp_path).model_copy(update={"limit": limit})
        assert ids(items(one, plan_chunks(one, LENGTH, PACKABLE))) == [f"{n}" for n in range(min(90, limit))]


def test_a_break_costs_the_rest_of_its_chunk(tmp_path: Path) -> None:
    """And what follows is read; without the cuts all of it was lost."""
    (tmp_path / "in").mkdir()
    records = lines(120)
    members = [COMPRESS["gz"](b"".join(line + b"\n" for line in records[n : n + 4])) for n in range(0, 120, 4)]
    stored = bytearray(b"".join(members))
    at = len(b"".join(members[:6])) + len(members[6]) // 2
    stored[at : at + 40] = b"\xff" * 40
    (tmp_path / "in/a.jsonl.gz").write_bytes(stored)
    one = settings(tmp_path)
    chunks = plan_chunks(one, LENGTH, PACKABLE)
    found = items(one, chunks)
    broken = [x for x in found if isinstance(x, Rejected)]
    assert 1 <= len(broken) <= 2 and {x.reason for x in broken} == {"unreadable"}
    assert ids(found)[-1] == "119" and len(found) > 60
    (whole,) = plan_chunks(one, LENGTH, ("jsonl",))
    assert len(items(one, [whole])) < 40


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_damaged_file_whose_name_is_right_is_not_to_be_named_otherwise(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in").mkdir()
    data = bytearray(COMPRESS[suffix](b'{"text": "a"}\n' * 3))
    at = -5 if suffix in ("gz", "zst") else 12  # a checksum
    data[at] ^= 1
    (tmp_path / f"in/a.jsonl.{suffix}").write_bytes(data)
    one = settings(tmp_path)
    broken = [x for x in items(one, list(plan_chunks(one, LENGTH, ("jsonl",)))) if isinstance(x, Rejected)]
    assert broken and all(x.reason == "unreadable" and "it begins like" not in x.error for x in broken), broken


def test_what_xz_keeps_is_judged_by_the_file(tmp_path: Path) -> None:
    """Not by a small last chunk. A dictionary of 128 MiB is read in files of every size."""
    (tmp_path / "in").mkdir()
    for dictionary, rest in ((128 << 20, b""), (192 << 20, random.Random(1).randbytes(2_200_000))):
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}]
        records = [*lines(90), b'{"text": "%s"}\n' % rest.hex().encode()]
        first = lzma.compress(b"\n".join(records), filters=filters)
        (tmp_path / "in/a.jsonl.xz").write_bytes(first + lzma.compress(lines(1)[0], filters=filters))
        one = settings(tmp_path, named=False)
        chunks = plan_chunks(one, len(first) - 10, PACKABLE)
        assert len(chunks) == 2 and all(isinstance(x, Document) for x in items(one, chunks))


def test_what_only_looks_like_a_member_is_noticed(tmp_path: Path) -> None:
    """A stored block of deflate may hold the file of another archive: no chunk begins there unnoticed."""
    (tmp_path / "in").mkdir()
    inner = gzip.compress(b'{"text": "inner"}\n' * 3)
    outer = gzip.compress(b'{"text": "' + b"a" * 3000 + inner + b"b" * 9000 + b'"}\n', 0)
    (tmp_path / "in/a.jsonl.gz").write_bytes(outer)
    one = settings(tmp_path)
    first, *others = plan_chunks(one, 2000, PACKABLE)
    assert others
    with pytest.raises(InputError, match="lie inside of one; compress the file again"):
        list(read_documents(first, one, SplitSettings()))
    with pytest.raises(InputError, match="lie inside of one"):
        count_documents(first)
