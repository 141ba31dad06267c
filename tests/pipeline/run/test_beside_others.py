"""A run goes by the corpus as it is when it holds the lock, and changes nothing once it has lost it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.coordination.leases import Lease
from pipeline.corpus.states import ChunkState
from pipeline.planning.checks import load_checked
from pipeline.run import finish
from pipeline.run import run as module
from pipeline.run.options import RunOptions
from pipeline.storage.store import Store
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline
from tests.support.runs import run

DOCUMENTS = sample_documents("libreoffice-eng", 6)
VICTIM = str(DOCUMENTS[0]["id"])


def made(folder: Path) -> Path:
    """The configuration of a corpus of two files, each a chunk."""
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "a.jsonl", DOCUMENTS[:3])
    write_jsonl(folder / "b.jsonl", DOCUMENTS[3:])
    source = {"path": "*.jsonl", "id": "id", "lang": "eng_Latn"}
    path = write_config(folder, input=[source], chunk_bytes=1 << 16, autobleu=None, encode=None, report=None)
    run(path)
    (folder / "ids").write_text(VICTIM)
    return path


def purge(path: Path) -> None:
    done = pipeline("purge", path, "--ids", path.parent / "ids")
    assert done.returncode == 0, done


def holders(out: Path, doc_id: str) -> list[str]:
    """The files that hold a document."""
    found = (out / "documents").rglob("*.parquet")
    return [file.name for file in found if doc_id in pq.read_table(file)["doc_id"].to_pylist()]


def take_away(out: Path) -> None:
    """Take the lock of a corpus from its holder."""
    lease = Lease.of(Store(str(out)), f"lock/{max(one.name for one in out.glob('lock/*.lease'))}")
    lease.store.create(replace(lease, generation=lease.generation + 1).path, b"{}")


def before_the_lock(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen between the next run's first plan and its lock."""
    take = module.take_lock

    def later(*of: Any) -> Lease:
        monkeypatch.setattr(module, "take_lock", take)
        happens()
        return take(*of)

    monkeypatch.setattr(module, "take_lock", later)


def test_documents_that_are_purged_while_a_run_asks_are_erased(tmp_path: Path) -> None:
    path = made(tmp_path / "asked")
    (path.parent / "b.jsonl").unlink()
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        purge(path)
        return True

    run(path, options=RunOptions(ask=ask, chunks=load_checked(path, []).chunks))
    out = path.parent / "out"
    assert len(asked) == 1, "what leaves is what was agreed to"
    assert list(out.glob("tombstones/*.erased")) and not holders(out, VICTIM)
    assert pipeline("verify", out).returncode == 0

    other = made(tmp_path / "other")
    purge(other)
    (other.parent / "b.jsonl").unlink()
    run(other, options=RunOptions(accept_removal=True))
    assert data_digests(out) == data_digests(other.parent / "out")


def test_what_has_changed_meanwhile_is_asked_again(tmp_path: Path) -> None:
    path = made(tmp_path / "asked")
    whole = (path.parent / "b.jsonl").read_text()
    (path.parent / "b.jsonl").unlink()
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        if len(asked) == 1:  # somebody else adds a document, and brings the corpus up to date
            (path.parent / "b.jsonl").write_text(whole)
            write_jsonl(path.parent / "c.jsonl", sample_documents("libreoffice-eng", 7)[6:])
            run(path)
            for name in ("b", "c"):
                (path.parent / f"{name}.jsonl").unlink()
            return True
        return False

    with pytest.raises(ConfigError, match="Nothing was changed"):
        run(path, options=RunOptions(ask=ask))
    corpus = Corpus(str(path.parent / "out"))
    assert len(asked) == 2 and sum(len(corpus.documents(part)) for part in corpus.parts) == 7


@pytest.mark.parametrize("accept", [True, False])
def test_files_that_another_run_adds_after_they_were_listed_stay(tmp_path: Path, accept: bool) -> None:
    """The command lists the inputs when it checks them, which may be long before the run begins."""
    path = made(tmp_path / "listed")
    options = RunOptions(accept_removal=accept, chunks=load_checked(path, []).chunks)
    write_jsonl(path.parent / "c.jsonl", sample_documents("libreoffice-eng", 7)[6:])
    run(path)
    assert "leaves" not in run(path, options=options)
    corpus = Corpus(str(path.parent / "out"))
    assert sum(len(corpus.documents(part)) for part in corpus.parts) == 7


def test_documents_that_another_run_let_go_do_not_come_back(tmp_path: Path) -> None:
    path = made(tmp_path / "gone")
    options = RunOptions(chunks=load_checked(path, []).chunks)
    (path.parent / "b.jsonl").unlink()
    run(path, options=RunOptions(accept_removal=True))
    assert "enters" not in run(path, options=options)
    corpus = Corpus(str(path.parent / "out"))
    assert sum(len(corpus.documents(part)) for part in corpus.parts) == 3


def test_what_leaves_by_the_second_plan_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "told")

    def another() -> None:
        write_jsonl(path.parent / "c.jsonl", sample_documents("libreoffice-eng", 7)[6:])
        run(path)
        (path.parent / "c.jsonl").unlink()

    before_the_lock(monkeypatch, another)
    assert "leaves: input" in run(path, options=RunOptions(accept_removal=True))


def test_who_loses_the_corpus_while_planning_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "taken")

    def lose(*of: Any) -> None:
        take_away(path.parent / "out")
        time.sleep(60)  # until the heartbeat stops it

    def another() -> None:
        run(path)
        monkeypatch.setattr(module, "plan_run", lose)  # by which the run plans again

    before_the_lock(monkeypatch, another)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command line has it
    try:
        with pytest.raises(CorpusError, match="another process has taken over the lock"):
            run(path, "launcher.lease_seconds=2")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_files_that_come_while_a_run_waits_for_the_corpus_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "waiting")

    def another() -> None:
        write_jsonl(path.parent / "c.jsonl", sample_documents("libreoffice-eng", 7)[6:])
        run(path)

    before_the_lock(monkeypatch, another)
    options = RunOptions(accept_removal=True, chunks=load_checked(path, []).chunks)
    assert "leaves" not in run(path, options=options)
    corpus = Corpus(str(path.parent / "out"))
    assert sum(len(corpus.documents(part)) for part in corpus.parts) == 7


def test_a_run_that_has_lost_the_corpus_erases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "lost")
    out = path.parent / "out"
    purge(path)
    before, sweep = holders(out, VICTIM), finish.sweep
    assert len(before) == 1

    def lose(store: Store, chunks: Sequence[ChunkState]) -> int:
        take_away(out)
        return sweep(store, chunks)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(finish, "sweep", lose)
        with pytest.raises(CorpusError, match="another process has taken over the lock"):
            run(path)
    assert "another process" in max(out.glob("runs/*/summary.json")).read_text()
    assert before[0] in holders(out, VICTIM) and not list(out.glob("tombstones/*.erased"))
    for one in out.glob("lock/*"):
        one.unlink()
    run(path)
    assert not holders(out, VICTIM) and list(out.glob("tombstones/*.erased"))
