"""No documents vanish without a word: what leaves and enters is said, and a run does it only when somebody agrees."""

from __future__ import annotations

import os
import pty
import select
from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.corpus.reader import Corpus
from pipeline.planning.plan import make_plan
from pipeline.planning.removal import ViewChange, view_change
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.processes import start
from tests.support.runs import bring_up_to_date

SEGMENT_ONLY = {"encode": None, "autobleu": None}


def inputs(*names: str) -> list[dict[str, object]]:
    return [{"path": f"in/{name}.jsonl", "name": name, "id": "id", "lang": {"column": "lang"}} for name in names]


BOTH = inputs("libreoffice-eng", "postgresql-eng")
ONE = inputs("libreoffice-eng")


def change_of(path: Path, *overrides: str) -> ViewChange:
    config = load_config(path, overrides)
    found = view_change(Store(config.output), make_plan(config).view)
    assert found
    return found


def test_an_input_that_is_gone_needs_consent_and_comes_back(make_config: MakeConfig, tmp_path: Path) -> None:
    whole = bring_up_to_date(make_config(input=BOTH, **SEGMENT_ONLY))
    before = Corpus(whole.config.output)
    rows, runs = before.rows, len(list((tmp_path / "out/runs").iterdir()))
    path = make_config(input=ONE, **SEGMENT_ONLY)
    planned = pipeline("plan", path)
    assert (
        planned.returncode == 0
        and "leaves: input postgresql-eng (1 file: postgresql-eng.jsonl), 4 documents, " in planned.stdout
    )
    refused = pipeline("run", path)
    assert refused.returncode == 2, said(refused)
    assert "4 documents (" in refused.stderr and "--accept-removal" in refused.stderr
    assert len(list((tmp_path / "out/runs").iterdir())) == runs and Corpus(str(tmp_path / "out")).rows == rows
    accepted = pipeline("run", path, "--accept-removal")
    assert accepted.returncode == 0 and "leaves: input postgresql-eng" in accepted.stdout
    assert Corpus(str(tmp_path / "out")).rows < rows
    assert pipeline("run", path).returncode == 0, "what has left is not asked about again"
    again = pipeline("run", make_config(input=BOTH, **SEGMENT_ONLY))
    assert again.returncode == 0 and "enters: input postgresql-eng, 1 file (postgresql-eng.jsonl)" in again.stdout
    assert Corpus(str(tmp_path / "out")).rows == rows


@pytest.mark.parametrize("files", [1, 3])
def test_a_file_that_is_cut_off_needs_consent(tmp_path: Path, files: int) -> None:
    """A file that was only half copied has fewer records under its old name."""
    path = tmp_path / "in/b.jsonl"
    for name in "bac"[:files]:
        some = [{"id": f"{name}{number}", "text": f"Text {number}. And more."} for number in range(9)]
        write_jsonl(tmp_path / f"in/{name}.jsonl", some)
    lines = path.read_bytes().splitlines(keepends=True)
    one = {"path": "in/*.jsonl", "id": "id", "lang": "eng_Latn"}
    config = write_config(tmp_path, input=[one], encode=None, autobleu=None, chunk_bytes=1 << 20)
    assert pipeline("run", config).returncode == 0
    path.write_bytes(b"".join(lines[:3]) + b'{"id": "b3", "te')
    planned = pipeline("plan", config)
    assert "b.jsonl with fewer records than before, at least 5 documents, " in planned.stdout, said(planned)
    refused = pipeline("run", config)
    assert refused.returncode == 2 and "5 documents (" in refused.stderr, said(refused)
    path.write_bytes(b"".join(lines).replace(b"And more.", b"More."))  # shorter, with all of its records
    assert not change_of(config).needs_consent
    (tmp_path / "ids.txt").write_text("b8\n")
    assert pipeline("purge", config, "--ids", tmp_path / "ids.txt").returncode == 0
    path.write_bytes(b"".join(lines[:8]))  # without what was purged
    assert not change_of(config).needs_consent
    path.write_bytes(b"".join(lines[:3]))
    assert pipeline("run", config, "--accept-removal").returncode == 0
    assert Corpus(str(tmp_path / "out")).rows == 2 * (9 * files - 6)


def test_documents_of_files_that_share_a_chunk_are_counted(tmp_path: Path) -> None:
    """Not estimated by the number of files: a user agrees to what leaves."""
    long = " ".join(f"Sentence number {number} is here." for number in range(90))
    records = {
        "a": [{"id": f"a{number}", "text": "One."} for number in range(30)],
        "b": [{"id": "b", "text": long}],
        "c": [{"id": f"c{number}", "txt": "No text."} for number in range(20)],
    }
    for name, some in records.items():
        write_jsonl(tmp_path / f"in/{name}.jsonl", some)
    one = {"path": "in/*.jsonl", "id": "id", "lang": "eng_Latn"}
    path = write_config(tmp_path, input=[one], encode=None, autobleu=None, chunk_bytes=1 << 20)
    assert pipeline("run", path).returncode == 0
    for name, documents, rows in (("a", 30, 30), ("b", 1, 90), ("c", 0, 0)):
        (tmp_path / f"in/{name}.jsonl").rename(tmp_path / name)
        change = change_of(path)
        assert (change.documents, change.rows) == (documents, rows)
        assert change.needs_consent == (documents > 0)
        (tmp_path / name).rename(tmp_path / f"in/{name}.jsonl")
    (damaged,) = (tmp_path / "out/documents").rglob("*.parquet")
    whole = damaged.read_bytes()
    (tmp_path / "in/b.jsonl").rename(tmp_path / "b")
    for broken in (b"garbage", None):  # a run makes it again, and it is not in the way of what a plan says
        damaged.write_bytes(broken) if broken else damaged.unlink()
        (leaving,) = change_of(path).leaving
        assert leaving.about and 0 < leaving.documents < 31 and leaving.rows > 0
    (tmp_path / "b").rename(tmp_path / "in/b.jsonl")
    (limited,) = change_of(path, "input.0.limit=10").leaving
    assert limited.about and limited.documents > 0 and limited.rows > 0
    damaged.write_bytes(whole)
    (limited,) = change_of(path, "input.0.limit=10").leaving  # 20 records were set aside; it is not known which
    assert limited.about and 21 <= limited.documents <= 31 and "by its limit, about 25 documents, " in str(limited)
    (tmp_path / "in/c.jsonl").unlink()
    assert pipeline("run", path).returncode == 0, "nothing leaves that was a document"
    for limit, documents, rows in ((30, 1, 90), (10, 21, 110)):
        (limited,) = change_of(path, f"input.0.limit={limit}").leaving
        assert (limited.documents, limited.rows, limited.about) == (documents, rows, False)


def test_a_file_that_disappears_a_limit_and_another_name(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**SEGMENT_ONLY)
    bring_up_to_date(path)
    assert not change_of(path).lines()
    assert not change_of(path, "chunk_bytes=65536").documents, "other chunks of the same documents"
    (limited,) = change_of(path, "input.0.limit=7").leaving
    assert limited.documents == 14 - 7 and limited.rows > 0
    renamed = pipeline("run", path, "--set", "name=other")
    assert renamed.returncode == 2 and "is the corpus 'test', and this file is named 'other'" in renamed.stderr
    assert "otherwise write `name: test`, or give another" in renamed.stderr and "leave" not in renamed.stderr
    assert pipeline("run", path, "--set", "name=other", "--accept-removal").returncode == 0
    assert not change_of(path, "name=other").needs_consent
    (tmp_path / "in/libreoffice-deu.jsonl").unlink()
    (gone,) = change_of(path, "name=other").leaving
    assert gone.documents == 4 and gone.files == ("libreoffice-deu.jsonl",) and not gone.whole
    write_jsonl(tmp_path / "in/more.jsonl", sample_documents("libreoffice-zho", 1))
    (more,) = change_of(path, "name=other").entering
    assert more.files == 1 and not more.whole


def test_an_input_under_another_path_is_told_how_to_stay(make_config: MakeConfig) -> None:
    path = make_config(**SEGMENT_ONLY)
    bring_up_to_date(path)
    before = change_of(path, "input.0.path=in/**/*.jsonl")
    assert before.documents == 14 and "reads the same files: give it `name: in-" in str(before.leaving[0])
    name = before.leaving[0].input
    assert not change_of(path, "input.0.path=in/**/*.jsonl", f"input.0.name={name}").lines()


def test_what_was_never_there_cannot_leave(make_config: MakeConfig) -> None:
    path = make_config(input=BOTH, **SEGMENT_ONLY)
    config = load_config(path)
    assert view_change(Store(config.output), make_plan(config).view) is None
    one = pipeline("run", path, "--only", "segment", "--set", "input.0.limit=1", "--set", "input.1.limit=1")
    assert one.returncode == 0 and "enters" not in one.stdout
    assert not change_of(path).documents


def test_a_damaged_view_stands_in_nobodys_way(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**SEGMENT_ONLY)
    bring_up_to_date(path)
    (record,) = tmp_path.glob("out/runs/*/view.json")
    record.write_text("{")
    assert pipeline("run", path).returncode == 0


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2)])
def test_who_sits_at_a_terminal_is_asked(make_config: MakeConfig, answer: str, code: int) -> None:
    bring_up_to_date(make_config(input=BOTH, **SEGMENT_ONLY))
    path = make_config(input=ONE, **SEGMENT_ONLY)
    ours, theirs = pty.openpty()
    process = start("run", path, terminal=os.ttyname(theirs))
    os.write(ours, f"{answer}\n".encode())
    shown = b""
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.02)[0]:
            shown += os.read(ours, 1 << 16)
    assert process.returncode == code, shown.decode()
    assert b"leaves: input postgresql-eng" in shown and b"[y/N]" in shown
    os.close(theirs)
    os.close(ours)


def test_files_that_share_a_chunk(make_config: MakeConfig, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for number in range(40):
        (notes / f"{number:02d}.txt").write_text(f"This is the note with the number {number}. It has two sentences.")
    path = make_config(input=[{"path": "notes/*.txt", "lang": "eng_Latn"}], **SEGMENT_ONLY)
    bring_up_to_date(path)
    for number in (3, 7):
        (notes / f"{number:02d}.txt").unlink()
    (notes / "40.txt").write_text("One more.")
    change = change_of(path)
    (leaving,), (entering,) = change.leaving, change.entering
    assert leaving.documents == 2 and leaving.rows == 4 and leaving.files == ("03.txt", "07.txt") and not leaving.whole
    assert entering.files == 1 and not entering.whole and entering.bytes == len("One more.")
