"""Folders of a corpus that are links to somewhere else: what is there is read, and never changed or deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeConfig, data_digests, sample_documents
from tests.support.cli import pipeline, said

ORPHAN = "{part}.00000000-0123ab.parquet"  # as a killed attempt leaves it
COMMANDS = {
    "gc": ("documents", "gc", "--delete", "--yes"),
    "purge": ("report", "purge", "--ids", "ids.txt"),
    "run": ("embeddings", "run", "--set", "segment.max_chars=50"),
    "verify": ("ledger", "verify", "--repair"),
    "records": ("runs", "run", "--set", "segment.max_chars=50"),
    "index": ("train", "index"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_deleted_behind_a_link_out_of_the_corpus(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    linked, command, *options = COMMANDS[name]
    path, out, precious = make_config(autobleu=None), tmp_path / "out", tmp_path / "precious"
    monkeypatch.chdir(tmp_path)
    assert pipeline("run", path).returncode == 0
    before = data_digests(out)
    part = next(one.partition("/")[2] for one in before if one.startswith("embeddings/"))
    (tmp_path / "ids.txt").write_text(f"{sample_documents('postgresql-eng', 1)[0]['id']}\n")
    (out / linked).mkdir(exist_ok=True)
    (out / linked).rename(precious)
    (out / linked).symlink_to(precious)
    assert data_digests(out) == before, "what is there is read"
    (precious / "index.html").write_text("years")
    (precious / ORPHAN.format(part=part)).write_text("years")

    def content() -> dict[Path, bytes]:
        return {one: one.read_bytes() for one in precious.rglob("*") if one.is_file()}

    there, runs = content(), sorted(one.name for one in (out / "runs").iterdir())
    done = pipeline(command, path, *options)
    told = f"out/{linked} is a link out of the corpus, to {precious}: nothing is written or deleted there"
    assert done.returncode == 1 and told in " ".join(said(done).split()), said(done)
    assert content() == there and (out / linked).is_symlink()
    assert sorted(one.name for one in (out / "runs").iterdir()) == runs, "it is told before any work"
