"""A corpus of large compressed files: more chunks, the same documents, and older corpora as they are."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.config.load import load_config
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.runs import known_edges
from pipeline.inputs import chunks as chunks_module
from pipeline.planning.plan import make_plan
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import run

CHUNK = 1 << 16
DRAW = random.Random(3)
DOCUMENTS = [
    {"id": f"{n}", "lang": "eng_Latn", "title": "", "text": " ".join(DRAW.randbytes(9).hex() for _ in range(500)) + "."}
    for n in range(52)
]


def members(documents: list[dict[str, str]]) -> bytes:
    """Members of four documents, which end in the middle of a line."""
    data = "".join(json.dumps(one) + "\n" for one in documents).encode()
    size = 4 * len(json.dumps(documents[0]))
    return b"".join(gzip.compress(data[at : at + size]) for at in range(0, len(data), size))


@pytest.fixture
def path(make_config: MakeConfig, tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl.gz").write_bytes(members(DOCUMENTS[:40]))
    segment = {"method": "spacy-capped", "max_chars": 200}
    return make_config(
        input=[{"path": "in/*", "id": "id", "lang": "eng_Latn"}],
        encode=None,
        autobleu=None,
        chunk_bytes=CHUNK,
        part_sentences=1000,
        segment=segment,
    )


def documents(out: Path) -> dict[str, int]:
    """Id → rows, in the order of the file."""
    corpus = Corpus(str(out))
    tables = [corpus.documents(part) for part in corpus.parts]
    found = [pair for one in tables for pair in zip(one["doc_id"].to_pylist(), one["rows"].to_pylist(), strict=True)]
    assert len(dict(found)) == len(found)
    return dict(sorted(found, key=lambda pair: int(pair[0])))


def test_a_file_of_several_members(path: Path, tmp_path: Path) -> None:
    """Has chunks of about `chunk_bytes`; what is appended is new work, and the chunks before stay."""
    out, file = tmp_path / "out", tmp_path / "in/a.jsonl.gz"
    run(path)
    plan = make_plan(load_config(path))
    assert len(plan.chunks) >= 3 and not plan.chunks_to_segment()
    accounting = compute_accounting(Store(str(out)), Corpus(str(out)).chunks)
    assert accounting.documents_in == accounting.kept == 40 and not accounting.problems
    write_jsonl(tmp_path / "plain/a.jsonl", DOCUMENTS[:40])
    run(path, f"output={tmp_path / 'plain-out'}", f"input.0.path={tmp_path / 'plain'}/*")
    assert documents(out) == documents(tmp_path / "plain-out")

    with file.open("ab") as opened:
        opened.write(members(DOCUMENTS[40:]))
    again = make_plan(load_config(path))
    assert len(again.chunks) > len(plan.chunks)
    before = {one.chunk.id for one in plan.chunks}
    assert len([one for one in again.chunks_to_segment() if one.id in before]) == 1  # which had the end of the file
    run(path)
    assert list(documents(out)) == [one["id"] for one in DOCUMENTS]
    assert pipeline("verify", path).returncode == 0


def test_a_large_file_of_one_member(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has chunks too, with the rows of the plain file; with another time it is recognised, and its cuts are kept."""
    out, file = tmp_path / "out", tmp_path / "in/a.jsonl.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in DOCUMENTS).encode()))
    run(path)
    plan = make_plan(load_config(path))
    assert len(plan.chunks) >= 4 and all(one.chunk.by_text for one in plan.chunks) and not plan.chunks_to_segment()
    accounting = compute_accounting(Store(str(out)), Corpus(str(out)).chunks)
    assert accounting.documents_in == accounting.kept == len(DOCUMENTS) and not accounting.problems
    write_jsonl(tmp_path / "plain/a.jsonl", DOCUMENTS)
    run(path, f"output={tmp_path / 'plain-out'}", f"input.0.path={tmp_path / 'plain'}/*")
    assert documents(out) == documents(tmp_path / "plain-out")
    assert pipeline("verify", path).returncode == 0
    with monkeypatch.context() as patched:
        patched.delattr(chunks_module, "starts_of")
        patched.delattr(chunks_module, "ranges_of")
        assert make_plan(load_config(path)).nothing_to_do
    file.touch()
    again = make_plan(load_config(path))
    assert again.nothing_to_do and again.same_files == 1
    assert run(path).startswith("1 file has another modification time")


def test_cuts_are_found_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that a file has only one member; a run keeps them in its view."""
    (tmp_path / "in/b.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(one | {"id": f"b{one['id']}"}) + "\n" for one in DOCUMENTS[:20]).encode())
    )
    run(path)
    read: list[str] = []
    find = chunks_module.starts_of
    monkeypatch.setattr(chunks_module, "starts_of", lambda chunk, size: read.append(chunk.path) or find(chunk, size))
    plan = make_plan(load_config(path))
    assert not read and len(known_edges(Store(str(tmp_path / "out")), CHUNK)) == 2
    assert [one.chunk.end for one in plan.chunks if one.chunk.path == "b.jsonl.gz"] == [-1]
    (tmp_path / "in/b.jsonl.gz").touch()
    make_plan(load_config(path))
    assert read == ["b.jsonl.gz"]


def test_a_corpus_of_an_earlier_version_keeps_its_chunks(path: Path, tmp_path: Path) -> None:
    """Its header names no members; a lost header is written as its chunks are."""
    out = tmp_path / "out"
    out.mkdir()
    header = {"layout": 1, "name": "test", "packed": ["jsonl", "parquet", "text"]}
    (out / "corpus.json").write_text(json.dumps(header))
    run(path)
    (one,) = make_plan(load_config(path)).chunks
    assert one.chunk.end == -1 and list(documents(out)) == [one["id"] for one in DOCUMENTS[:40]]
    (out / "corpus.json").unlink()
    assert "corpus.json" in said(pipeline("verify", path, "--repair"))
    assert json.loads((out / "corpus.json").read_text())["packed"] == header["packed"]
    assert run(path).startswith("Nothing to do.")
