"""Small text files share chunks: few parts, the same documents, and little to do again when files come and go."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from pipeline.config.load import load_config
from pipeline.inputs import (
    Chunk,
    Content,
    Document,
    Rejected,
    count_documents,
    files_of,
    order_chunks,
    packing,
    plan_chunks,
    plan_inputs,
)
from pipeline.inputs.packing import PACKABLE, TEXT, formats_of
from pipeline.planning.plan import make_plan
from tests.conftest import data_digests, write_config
from tests.support.cli import pipeline, said
from tests.support.inputs import entry, read
from tests.support.runs import bring_up_to_date, run

CHUNK_BYTES = 1 << 16  # files of 4 kB and more have a chunk each


def notes(folder: Path, count: int, size: int = 1000) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(count)
    for number in range(count):
        (folder / f"{number:06d}.txt").write_text(f"This is note {number}. " * max(1, rng.randrange(2 * size) // 20))


def planned(folder: Path) -> list[Chunk]:
    return plan_chunks(entry(folder), CHUNK_BYTES, packed=PACKABLE)


def identity(chunks: list[Chunk]) -> set[tuple[str, str]]:
    return {(chunk.id, chunk.stamp) for chunk in chunks}


def test_the_documents_are_those_of_single_chunks(tmp_path: Path) -> None:
    notes(tmp_path, 300)
    (tmp_path / "000007.txt").write_bytes(b"\xff\xfe no text")
    (tmp_path / "000011.txt").write_bytes(b"")
    (tmp_path / "000013.txt.gz").write_bytes(gzip.compress(b"A compressed note."))
    (tmp_path / "000017.txt.gz").write_bytes(gzip.compress(b"A broken note." * 99)[:-9])
    (tmp_path / "large.txt").write_text("A long text. " * 1000)
    (tmp_path / "lines.jsonl").write_text('{"text": "A record."}\n')
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "missing")
    source = entry(tmp_path)
    single, packed = plan_chunks(source, CHUNK_BYTES), planned(tmp_path)
    assert len(single) == 305 and 8 < len(packed) < 60
    assert read(packed, source) == read(single, source)
    assert sum(count_documents(chunk).bytes_read for chunk in packed) == sum(
        count_documents(chunk).bytes_read for chunk in single
    )
    assert sum(chunk.bytes for chunk in packed) == sum(chunk.bytes for chunk in single)
    assert [file.path for chunk in packed for file in files_of(chunk)] == [chunk.path for chunk in single]
    assert len({chunk.id for chunk in [*single, *packed]}) == len(single) + len(packed) - 3  # what is not packed
    assert all(Chunk.from_json(chunk.to_json()) == chunk for chunk in packed)
    order_chunks(plan_inputs([source], CHUNK_BYTES, packed=PACKABLE), seed=1)


def test_chunks_have_about_a_fourth_of_chunk_bytes(tmp_path: Path) -> None:
    notes(tmp_path, 2000)
    sizes = [chunk.bytes for chunk in planned(tmp_path)]
    assert max(sizes) <= CHUNK_BYTES and CHUNK_BYTES / 6 < sum(sizes) / len(sizes) < CHUNK_BYTES / 3


def test_many_empty_files_do_not_share_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(400):
        (tmp_path / f"{number}.txt").touch()
    assert 3 < len(planned(tmp_path)) < 30
    monkeypatch.setattr(packing, "MOST_FILES", 5)
    assert max(sum(1 for _ in files_of(chunk)) for chunk in planned(tmp_path)) == 5


def test_one_file_more_or_less_or_other_changes_its_chunk_alone(tmp_path: Path) -> None:
    notes(tmp_path, 1000)
    before = planned(tmp_path)
    for number in (0, 333, 999):
        path = tmp_path / f"{number:06d}-added.txt"
        path.write_text("One more note.")
        after = planned(tmp_path)
        assert len(identity(after) - identity(before)) <= 2 and len(identity(before) - identity(after)) == 1
        path.write_text("Another text.")
        assert len(identity(planned(tmp_path)) - identity(after)) == 1
        path.unlink()
        assert identity(planned(tmp_path)) == identity(before)


@pytest.mark.parametrize("limit", [1, 17, 40])
def test_a_limit_takes_the_first_files(tmp_path: Path, limit: int) -> None:
    notes(tmp_path, 40)
    source = entry(tmp_path, limit=limit)
    records = read(plan_chunks(source, CHUNK_BYTES, packed=PACKABLE), source)
    assert [record.doc_id for record in records] == [f"{number:06d}.txt" for number in range(limit)]


def test_files_of_all_formats_share_chunks(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02d}.{'jsonl' if number % 5 == 0 else 'txt'}").write_text('{"text": "A text."}\n')
    chunks = planned(tmp_path)
    assert {chunk.format for chunk in chunks} == {"packed"} and len(chunks) <= 4
    records = read(chunks, entry(tmp_path))
    assert len(records) == 20 and all(isinstance(record, Document) for record in records)


def test_other_files_stay_chunks_of_their_own_in_a_corpus_of_an_earlier_version(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02d}.{'jsonl' if number % 5 == 0 else 'txt'}").write_text('{"text": "A text."}\n')
    formats = [chunk.format for chunk in plan_chunks(entry(tmp_path), CHUNK_BYTES, packed=TEXT)]
    assert formats.count("jsonl") == 4 and 4 <= formats.count("packed") <= 8


def records_in_files(folder: Path, count: int) -> None:
    """Write files of three records as JSONL, as compressed JSONL and as Parquet; some of them are damaged."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        rows = [{"id": f"{number}-{one}", "text": f"Text {one} of {number}.", "year": number} for one in range(3)]
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if number % 3 == 0:
            (folder / f"{number:04d}.jsonl").write_bytes(lines)
        elif number % 3 == 1:
            (folder / f"{number:04d}.jsonl.gz").write_bytes(gzip.compress(lines))
        else:
            pq.write_table(pa.Table.from_pylist(rows), folder / f"{number:04d}.parquet")
    (folder / "0000-bad.jsonl").write_bytes(b'{"text": 3}\n\n{"text": \xff}\nno json\n{"id": "fine", "text": "Fine."}')
    (folder / "0000-broken.jsonl.gz").write_bytes(gzip.compress(b'{"id": "half", "text": "A half."}\n' * 99)[:-9])
    (folder / "0000-broken.parquet").write_bytes(b"PAR1 is not enough")
    (folder / "0000-empty.jsonl").touch()
    (folder / "0000-image.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\n" * 9)


def test_records_are_those_of_single_chunks_and_damage_stays_in_its_file(tmp_path: Path) -> None:
    records_in_files(tmp_path, 60)
    source = entry(tmp_path, id="id", keep=["year"])
    single, packed = plan_chunks(source), plan_chunks(source, 16 * CHUNK_BYTES, packed=PACKABLE)
    assert len(single) == 65 and sum(chunk.format == "packed" for chunk in packed) > 1 and len(packed) < 20
    assert {kind for chunk in packed for kind in formats_of(chunk)} == {"jsonl", "parquet"}
    assert read(packed, source) == read(single, source)
    for chunk in packed:
        files = [count_documents(file) for file in files_of(chunk)]
        found = count_documents(chunk, Content(["text", "id", "year"]))
        assert found == count_documents(chunk)
        assert found.documents == sum(one.documents for one in files) == accounted(read([chunk], source))
        assert found.bytes_read == sum(one.bytes_read for one in files)
        assert found.bytes_unreadable == sum(one.bytes_unreadable for one in files)
    assert all(Chunk.from_json(chunk.to_json()) == chunk for chunk in packed)


def accounted(records: list[Document | Rejected]) -> int:
    return sum(one.records if isinstance(one, Rejected) else 1 for one in records)


@pytest.mark.parametrize("limit", [1, 8, 9, 31, 70])
def test_a_limit_takes_the_first_records_of_the_first_files(tmp_path: Path, limit: int) -> None:
    records_in_files(tmp_path, 30)
    source = entry(tmp_path, id="id", limit=limit)
    single, packed = plan_chunks(source, CHUNK_BYTES), plan_chunks(source, CHUNK_BYTES, packed=PACKABLE)
    assert read(packed, source) == read(single, source) and accounted(read(packed, source)) == limit
    assert sum(count_documents(chunk).documents for chunk in packed) == limit


def test_what_a_packed_chunk_holds_is_told_by_the_columns_that_are_read(tmp_path: Path) -> None:
    """Content digests, by which files of another time are recognised."""

    def digests() -> list[str]:
        found = []
        for chunk in planned(tmp_path):
            content = Content(["text"])
            count_documents(chunk, content)
            found.append(content.of(chunk))
        return found

    records_in_files(tmp_path, 12)
    before = digests()
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    assert digests() == before
    with gzip.open(tmp_path / "0001.jsonl.gz", "at") as file:
        file.write('{"text": "More."}\n')
    assert sum(one != two for one, two in zip(digests(), before, strict=True)) == 1


def test_a_small_file_alone_and_a_large_one_have_ordinary_chunks(tmp_path: Path) -> None:
    source = entry(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n')
    assert planned(tmp_path) == plan_chunks(source, CHUNK_BYTES)
    line = json.dumps({"text": "word " * 20}) + "\n"
    (tmp_path / "b.jsonl").write_text(line * (CHUNK_BYTES // 64 // len(line) + 1))
    assert planned(tmp_path) == plan_chunks(source, CHUNK_BYTES)


def test_chunks_of_records_have_about_a_sixteenth_of_chunk_bytes(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04d}.jsonl").write_text(json.dumps({"text": "word " * 60}) + "\n")
    sizes = [chunk.bytes for chunk in planned(tmp_path)]
    assert max(sizes) <= CHUNK_BYTES // 4 and CHUNK_BYTES / 24 < sum(sizes) / len(sizes) < CHUNK_BYTES / 12


def config_of(folder: Path) -> Path:
    source = {"path": "notes", "name": "notes", "lang": "eng_Latn"}
    segment = {"method": "spacy-capped", "max_chars": 80}
    return write_config(folder, input=[source], segment=segment, encode=None, autobleu=None, chunk_bytes=CHUNK_BYTES)


def test_a_corpus_of_notes_has_few_files_and_one_more_note_is_little_work(tmp_path: Path) -> None:
    notes(tmp_path / "notes", 40, 50)
    path = config_of(tmp_path)
    run(path)
    corpus = Corpus(str(tmp_path / "out"))
    assert len(corpus.parts) <= 4 and sum(1 for one in (tmp_path / "out").rglob("*") if one.is_file()) < 60
    ids = sorted(one for part in corpus.parts for one in corpus.documents(part)["doc_id"].to_pylist())
    assert ids == [f"{number:06d}.txt" for number in range(40)]
    assert set(corpus.to_arrow("source")["source"].to_pylist()) == {f"notes:{one}" for one in ids}
    chunks = len(corpus.chunks)
    (tmp_path / "notes/000020-more.txt").write_text("One more note.")
    plan = make_plan(load_config(path))
    assert len(plan.chunks_to_segment()) == 1
    assert " files): files were added, changed or removed" in next(iter(plan.work["segment"].reasons))
    run(path)
    corpus = Corpus(corpus.url)
    assert len(corpus.chunks) == chunks and "000020-more.txt" in corpus.to_arrow("doc_id")["doc_id"].to_pylist()


def test_a_corpus_that_was_begun_without_packing_stays_so(tmp_path: Path) -> None:
    notes(tmp_path / "notes", 5, 50)
    path = config_of(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/corpus.json").write_text(json.dumps({"layout": 1, "name": "test"}))
    run(path)
    before = data_digests(tmp_path / "out")
    assert len(Corpus(str(tmp_path / "out")).parts) == 5
    (tmp_path / "notes/more.txt").write_text("One more note.")
    assert len(make_plan(load_config(path)).chunks_to_segment()) == 1
    run(path)
    assert data_digests(tmp_path / "out").items() >= before.items()
    assert "Nothing to do." in run(path)


def test_a_file_that_changes_during_the_run_is_named(tmp_path: Path) -> None:
    notes(tmp_path, 5)
    (chunk,) = planned(tmp_path)[:1]
    victim = next(files_of(chunk)).path
    (tmp_path / victim).write_text("Changed.")
    with pytest.raises(Exception, match=victim):
        read([chunk], entry(tmp_path))


def test_a_quarantined_note_is_shown_with_its_place(tmp_path: Path) -> None:
    notes(tmp_path / "notes", 5, 50)
    (tmp_path / "notes/bad.txt").write_bytes(b"\xff\xff")
    bring_up_to_date(config_of(tmp_path))
    done = pipeline("quarantine", tmp_path / "out")
    assert f"{tmp_path}/notes/bad.txt" in said(done).replace("\n", "")


def test_packed_files_on_a_store(tmp_path: Path, bucket: str) -> None:
    import fsspec

    store = fsspec.filesystem("s3")
    for number in range(60):
        store.pipe_file(f"{bucket}/notes/{number:02d}.txt", f"Note {number}.".encode())
    source = entry(f"{bucket}/notes/*.txt")
    chunks = plan_chunks(source, CHUNK_BYTES, packed=PACKABLE)
    assert len(chunks) < 20
    records = read(chunks, source)
    assert [record.text for record in records if not isinstance(record, Rejected)] == [f"Note {n}." for n in range(60)]
