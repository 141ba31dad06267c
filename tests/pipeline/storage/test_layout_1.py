"""Corpora of layout 1, in which data files lie directly in the folder of their family: they are read and continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.storage import layout
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import run

DOCUMENTS = sample_documents("libreoffice-eng", 9)


def made(folder: Path, documents: list[dict[str, object]]) -> Path:
    """The configuration of documents in two files, and so two chunks; the first three are in the first."""
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "a.jsonl", documents[:3])
    write_jsonl(folder / "b.jsonl", documents[3:])
    sections = {"duplicates": {}, "autobleu": {"sample": 0.5, "length_factor": 1.0}, "report": None}
    source = {"path": "*.jsonl", "id": "id", "lang": "eng_Latn"}
    return write_config(folder, input=[source], chunk_bytes=1 << 16, part_sentences=100, **sections)


def named(out: Path) -> set[str]:
    """The data files that receipts vouch for."""
    corpus = Corpus(str(out))
    receipts = (one for part in corpus.parts for one in corpus.state_of(part).receipts.values())
    return {file.path for one in receipts for file in one.files}


def test_a_corpus_of_layout_1_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = layout.data_path

    def flat(family: str, part: str, fingerprint: str) -> str:
        return f"{family}/{new(family, part, fingerprint).rpartition('/')[2]}"

    path = made(tmp_path / "old", DOCUMENTS[:6])
    with monkeypatch.context() as earlier:
        earlier.setattr(layout, "data_path", flat)
        earlier.setattr(layout, "LAYOUT_VERSION", 1)
        run(path)
    out = tmp_path / "old/out"
    header = json.loads((out / "corpus.json").read_text())
    before = {file.relative_to(out).as_posix() for file in out.glob("embeddings/**/*.parquet")}
    assert header["layout"] == 1 and {one.count("/") for one in before} == {1}
    assert pipeline("verify", out).returncode == 0, "it is read as it is"
    assert json.loads((out / "corpus.json").read_text()) == header, "only a run writes"

    made(tmp_path / "old", DOCUMENTS)
    run(path)
    assert json.loads((out / "corpus.json").read_text()) == header | {"layout": 2}
    live = {one for one in named(out) if one.startswith("embeddings/")}
    assert live & before and {one.count("/") for one in live - before} == {2}, "both places are in use"

    orphan = f"{min(live & before).rsplit('-', 1)[0]}-000000.parquet"  # of killed attempts, in both places
    nested = f"{max(live - before).rsplit('-', 1)[0]}-000000.parquet"
    for one in (orphan, nested):
        (out / one).write_bytes(b"half a fi")
        (out / one).with_name(f".{(out / one).name}.01234567.tmp").write_bytes(b"half")
    (tmp_path / "ids").write_text(f"{DOCUMENTS[0]['id']}\n{DOCUMENTS[8]['id']}\n")
    assert said(pipeline("purge", out, "--ids", tmp_path / "ids"))
    run(path)
    assert said(pipeline("gc", out, "--delete", "--yes"))
    folders = [out / family for family in ("documents", *layout.ROW_FAMILIES)]
    left = {one.relative_to(out).as_posix() for folder in folders for one in folder.rglob("*") if one.is_file()}
    assert left == named(out), left ^ named(out)
    assert pipeline("verify", out).returncode == 0

    fresh = made(tmp_path / "fresh", DOCUMENTS)
    run(fresh)
    assert said(pipeline("purge", tmp_path / "fresh/out", "--ids", tmp_path / "ids"))
    run(fresh)
    assert data_digests(tmp_path / "fresh/out") == data_digests(out)
