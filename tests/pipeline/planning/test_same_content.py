"""Inputs that were touched, copied or appended to: what holds the same is not segmented again; on the command line."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from pipeline.config.load import load_config
from pipeline.inputs import Content, InputSettings, SplitSettings, count_documents, plan_chunks, read_documents
from pipeline.planning.plan import make_plan
from pipeline.planning.same_content import content_of
from tests.conftest import MakeConfig, data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said

DOCUMENTS = sample_documents("libreoffice-eng", 5)
SEGMENTS: dict[str, Any] = {"encode": None, "autobleu": None}


def jsonl(folder: Path, documents: list[dict[str, Any]] = DOCUMENTS) -> None:
    write_jsonl(folder / "a.jsonl", documents)


def compressed(folder: Path) -> None:
    folder.mkdir(parents=True)
    with gzip.open(folder / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in DOCUMENTS)


def parquet(folder: Path) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(DOCUMENTS), folder / "a.parquet", row_group_size=2)


def texts(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, one in enumerate(DOCUMENTS):
        (folder / f"{number}.txt").write_text(one["text"], "utf-8")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def touch(paths: Iterable[Path], seconds: int = 3600) -> None:
    for path in paths:
        at = path.stat().st_mtime_ns + seconds * 10**9
        os.utime(path, ns=(at, at))


def words(*arguments: object) -> str:
    done = pipeline(*arguments)
    assert done.returncode == 0, said(done)
    return " ".join(said(done).split())


def left(config: Path) -> dict[str, Any]:
    return dict(json.loads(pipeline("plan", config, "--json").stdout))


def test_a_copy_of_corpus_and_inputs_has_no_other_settings(tmp_path: Path) -> None:
    jsonl(tmp_path / "here/in")
    words("run", write_config(tmp_path / "here", input=[{"path": "in", "lang": "eng_Latn"}], **SEGMENTS))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    copy = tmp_path / "there/corpus.yaml"
    assert "has changed since" not in words("status", copy)
    assert "Nothing to do." in words("run", copy)
    copy.write_text(copy.read_text().replace("path: in", "path: ../other"))
    assert "has changed since the newest run (input)" in words("status", copy)


@pytest.mark.parametrize("write", [jsonl, compressed, parquet, texts])
@pytest.mark.parametrize("limit", [None, 3])
def test_touched_inputs_are_read_and_not_segmented(
    tmp_path: Path, write: Callable[[Path], None], limit: int | None
) -> None:
    write(tmp_path / "in")
    source: dict[str, Any] = {"path": "in", "lang": "eng_Latn", "limit": limit}
    path = write_config(tmp_path, input=[source], **SEGMENTS)
    words("run", path)
    before, receipts = data_digests(tmp_path / "out"), files(tmp_path / "out/chunks")
    touch(files(tmp_path / "in"))
    shown = words("plan", path)
    assert "another modification time or version but the same content" in shown
    assert left(path)["nothing_to_do"] and left(path)["chunks_to_segment"] == 0
    assert "Nothing to do." in words("run", path)
    assert files(tmp_path / "out/chunks") == receipts and data_digests(tmp_path / "out") == before
    assert left(path)["same_files"] == 0  # that run recorded it: nothing is read any more
    assert "another modification time" not in words("plan", path)


def test_files_stay_recognised_however_often_a_run_plans(tmp_path: Path) -> None:
    """Purged documents have chunks written again; until then each plan of a run finds their files touched."""
    jsonl(tmp_path / "in")
    path = write_config(tmp_path, input=[{"path": "in", "lang": "eng_Latn", "id": "id"}], **SEGMENTS)
    words("run", path)
    (tmp_path / "ids.txt").write_text(f"{DOCUMENTS[0]['id']}\n")
    words("purge", tmp_path / "out", "--ids", tmp_path / "ids.txt")
    (before,) = make_plan(load_config(path)).chunks_to_segment()
    touch(files(tmp_path / "in"))
    content_of.cache_clear()
    plan = make_plan(load_config(path))
    for _ in range(4):
        (chunk,) = plan.chunks_to_segment()
        assert chunk.stamp == before.stamp and chunk.current and chunk.current != chunk.stamp
        plan = make_plan(plan.config, chunks=plan.view.listed.chunks)
    words("run", path)
    assert DOCUMENTS[0]["id"] not in Corpus(str(tmp_path / "out")).table("doc_id")["doc_id"].to_pylist()


def test_inputs_that_nobody_touched_are_not_read_after_a_purge(tmp_path: Path) -> None:
    jsonl(tmp_path / "in")
    path = write_config(tmp_path, input=[{"path": "in", "lang": "eng_Latn", "id": "id"}], **SEGMENTS)
    words("run", path)
    (tmp_path / "ids.txt").write_text(f"{DOCUMENTS[0]['id']}\n")
    words("purge", tmp_path / "out", "--ids", tmp_path / "ids.txt")
    content_of.cache_clear()
    plan = make_plan(load_config(path))
    assert len(plan.chunks_to_segment()) == 1 and plan.same_files == 0
    assert content_of.cache_info().misses == 0


def test_a_corpus_copied_with_its_inputs_works_at_once(make_config: MakeConfig, tmp_path: Path) -> None:
    """As `cp -r` and most ways to another machine leave it: other folder, other times."""
    path = make_config(**SEGMENTS)
    words("run", path)
    here, copy = path.parent, tmp_path / "elsewhere/corpus"
    for name in ("in", "out", "corpus.yaml"):
        if (here / name).is_dir():
            shutil.copytree(here / name, copy / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(here / name, copy / name)
    before = data_digests(here / "out")
    shutil.rmtree(here / "in")
    shutil.rmtree(here / "out")
    for command in ("status", "inspect", "verify"):
        words(command, copy / "out")
    plan = left(copy / "corpus.yaml")
    assert plan["nothing_to_do"] and plan["same_files"] == 3 and not plan["view"]["leaving"]
    shown = words("run", copy / "corpus.yaml")
    assert "3 files have another modification time or version but the same content" in shown
    assert data_digests(copy / "out") == before
    assert left(copy / "corpus.yaml")["same_files"] == 0
    words("verify", copy / "corpus.yaml")


def test_one_byte_of_the_same_size_is_seen(make_config: MakeConfig) -> None:
    path = make_config(**SEGMENTS)
    words("run", path)
    one, other = sorted((path.parent / "in").glob("libreoffice*"))
    text = one.read_text("utf-8")
    assert " die " in text
    one.write_text(text.replace(" die ", " dle ", 1), "utf-8")
    touch([other, one])
    plan = left(path)
    assert plan["chunks_to_segment"] == 1 and plan["same_files"] == 1
    (reason,) = plan["stages"][0]["reasons"]
    assert one.name in reason
    words("run", path)
    assert words("inspect", path, "--where", "contains(text, ' dle ')").startswith("1 of")
    # who restores the time as well is not noticed before the time is another one
    stamp = one.stat().st_mtime_ns
    one.write_text(text.replace(" die ", " dke ", 1), "utf-8")
    os.utime(one, ns=(stamp, stamp))
    assert left(path)["nothing_to_do"]
    touch([one])
    assert left(path)["chunks_to_segment"] == 1
    one.write_text(text, "utf-8")  # as it was the first time
    assert left(path)["chunks_to_segment"] == 0


@pytest.mark.slow
def test_appending_redoes_only_what_changed(tmp_path: Path) -> None:
    documents = [{"text": f"Document {number}. {'The cat sat on the mat. ' * 40}"} for number in range(320)]
    jsonl(tmp_path / "in", documents[:220])
    settings = {"input": [{"path": "in/a.jsonl", "lang": "eng_Latn"}], **SEGMENTS, "chunk_bytes": 1 << 16}
    path = write_config(tmp_path, **settings)
    words("run", path)
    assert len(files(tmp_path / "out/chunks")) == 4
    jsonl(tmp_path / "in", documents)
    plan = left(path)
    assert plan["chunks_to_segment"] == 2 and plan["same_files"] == 1  # the last one, and the one that follows
    words("run", path)
    fresh = tmp_path / "fresh"
    words("run", path, "--set", f"output={fresh}")
    assert data_digests(tmp_path / "out").keys() == data_digests(fresh).keys()
    assert data_digests(tmp_path / "out") == data_digests(fresh)
    words("verify", path)


def test_other_settings_and_lost_receipts_after_a_touch(make_config: MakeConfig) -> None:
    """What was recognised is read again where it has to be segmented again, by the time that the file has now."""
    path = make_config(**SEGMENTS)
    words("run", path)
    touch(files(path.parent / "in"))
    assert "Nothing to do." in words("run", path)
    receipt = files(path.parent / "out/chunks")[0]
    expected = data_digests(path.parent / "out")
    receipt.unlink()
    words("run", path)
    assert data_digests(path.parent / "out") == expected
    words("run", path, "--set", "segment.max_chars=60")
    assert left(path)["nothing_to_do"]  # the first settings again
    words("verify", path)


def test_workers_of_their_own_processes_read_what_was_recognised(make_config: MakeConfig) -> None:
    """A phase of SLURM or Ray gets chunks as JSON: the stamp that they were segmented with, and the present one."""
    path = make_config(**SEGMENTS)
    words("run", path, "--until", "segment")
    touch(files(path.parent / "in"))
    words("run", path)
    words("retry", path, "--quarantined")
    assert left(path)["nothing_to_do"]


def test_duplicate_ids_of_touched_inputs_are_not_read_again(make_config: MakeConfig) -> None:
    path = make_config(**SEGMENTS, duplicate_ids="keep-first")
    words("run", path)
    records = files(path.parent / "out/ids")
    touch(files(path.parent / "in"))
    shown = words("run", path)
    assert "Nothing to do." in shown and "reading those of" not in shown
    assert files(path.parent / "out/ids") == records


def test_receipts_of_earlier_versions_are_segmented_again_as_before(make_config: MakeConfig) -> None:
    path = make_config(**SEGMENTS)
    words("run", path)
    for receipt in files(path.parent / "out/chunks"):
        value = json.loads(receipt.read_text())
        del value["content"], value["seal"]
        receipt.write_text(json.dumps(value))
    shutil.rmtree(path.parent / "out/ledger")
    assert left(path)["nothing_to_do"]
    touch(files(path.parent / "in"))
    plan = left(path)
    assert plan["chunks_to_segment"] == 3 and plan["same_files"] == 0
    words("run", path)
    touch(files(path.parent / "in"))
    assert left(path)["nothing_to_do"]


def content(path: Path, columns: tuple[str, ...] = ("text",), **changed: Any) -> list[str]:
    found = []
    for chunk in plan_chunks(InputSettings(path=str(path), lang="eng_Latn", name="n").resolve("/"), 1000):
        seen = Content(columns)
        plain, with_content = count_documents(chunk), count_documents(replace(chunk, **changed), seen)
        assert changed or plain == with_content
        found.append(seen.of(chunk))
    return found


def test_the_digest_is_of_what_documents_are_read_from(tmp_path: Path) -> None:
    """Of every single byte that is changed: chunks whose documents change have another digest."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"{number} " + "word " * (number % 5 * 90)}).encode() for number in range(12)]
    data = b"\n".join(lines)
    path.write_bytes(data)
    settings = InputSettings(path=str(path), lang="eng_Latn", name="n").resolve("/")

    def look() -> tuple[list[str], list[list[Any]]]:
        chunks = plan_chunks(settings, 1000)
        return content(path), [list(read_documents(chunk, settings, SplitSettings())) for chunk in chunks]

    digests, documents = look()
    assert len(digests) >= 4 and any(not one for one in documents), "a chunk in which no line begins"
    seen = 0
    for at in [*range(0, len(data), 190), 999, 1000, 1001, *(one for one in range(len(data)) if data[one] == 10)]:
        for byte in (b"x", b"\n"):
            path.write_bytes(data[:at] + byte + data[at + 1 :])
            now, read = look()
            for before, after, then, here in zip(digests, now, documents, read, strict=True):
                assert before != after or then == here
                seen += before != after
    assert seen > 20
    path.write_bytes(data + b"\n" + lines[0])  # the last chunk ends elsewhere, or its last line goes on
    assert content(path)[: len(digests) - 1] == digests[:-1]


def test_columns_that_are_not_read_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def write(text: str = "text", other: str = "other", rows: int = 2) -> list[str]:
        table = pa.table({"text": ["first", text] * 10, "other": [other] * 20})
        pq.write_table(table, path, row_group_size=rows)
        return content(path)

    first = write()
    assert write(other="rehto") == first
    assert [one.partition("-")[2] for one in write(text="txet")] != [one.partition("-")[2] for one in first]
    assert len(first) > 1


def test_files_that_break_and_records_that_a_limit_takes(tmp_path: Path) -> None:
    data = gzip.compress("".join(json.dumps({"text": f"{number}"}) + "\n" for number in range(5000)).encode())
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data)
    whole, some = content(path), content(path, take=3)
    path.write_bytes(data[:-20] + b"\0" * 20)
    assert content(path) != whole
    assert len(content(path, take=3)) == len(some) == 1
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing more")
    assert content(tmp_path / "b.parquet") == content(tmp_path / "b.parquet")
