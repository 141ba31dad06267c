"""Finished exports are recorded: purge, gc, verify, status and plan know them; damaged records spoil nothing."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pipeline.export as exporting
from pipeline import Corpus
from pipeline.base.errors import CorpusError, MissingError
from pipeline.base.formats import counted
from pipeline.corpus.exports import exports_of, read_export, record_export
from pipeline.corpus.tombstones import create_tombstone
from pipeline.export import ExportOptions, export_corpus
from pipeline.maintenance.gc import VIEW_DAYS, find_garbage
from pipeline.maintenance.records import check_records, repair
from pipeline.storage.export_target import ExportTarget
from pipeline.storage.store import Store
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.corpora import made_once
from tests.support.records import change_record
from tests.support.rights import without_rights_of_root
from tests.support.runs import run

MUCH_LATER = (VIEW_DAYS + 10) * 24 * 3600.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        write_jsonl(folder / "in/eng.jsonl", sample_documents("libreoffice-eng", 3))
        run(write_config(folder, autobleu=None))

    return made_once(tmp_path_factory, "recorded", make)


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A folder with a corpus, which lies in `out`."""
    shutil.copytree(made, tmp_path / "place")
    return tmp_path / "place"


def export(place: Path, to: Path, kind: str = "parquet") -> str:
    shown = io.StringIO()
    corpus = Corpus(str(place / "out"))
    export_corpus(Console(file=shown, width=300), corpus.url, corpus, ExportOptions(kind, str(to)))
    return " ".join(shown.getvalue().split())


def first_id(place: Path) -> str:
    return str(json.loads((place / "in/eng.jsonl").read_text("utf-8").split("\n")[0])["id"])


def purge(place: Path, doc_id: str, *more: str) -> str:
    (place / "ids.txt").write_text(f"{doc_id}\n", "utf-8")
    done = pipeline("purge", place / "out", "--ids", place / "ids.txt", *more)
    assert done.returncode == 0, said(done)
    return " ".join(said(done).split())


def states(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pipeline("status", place / "out", "--json").stdout)["exports"]
    return found


def plans(place: Path, *more: str) -> list[str]:
    shown = json.loads(pipeline("plan", place / "corpus.yaml", "--json", *more).stdout)
    return [one["text"] for one in shown["further"] if one["subject"] == "export"]


def test_purge_names_it_and_status_and_plan_until_it_is_made_again(place: Path, tmp_path: Path) -> None:
    export(place, place / "beside", "lcm")
    export(place, tmp_path / "far/away")
    records = exports_of(Store(str(place / "out"))).records
    assert [(one.place, one.format) for one in records] == [
        ("../beside", "lcm"), (str(tmp_path / "far/away"), "parquet"),
    ]  # fmt: skip
    assert {one.sentences for one in records} == {Corpus(str(place / "out")).rows}
    assert not [one for one in states(place) if one["older"] or one["purged"]] and not plans(place)
    assert len(plans(place, "--set", "segment.max_chars=90")) == 2
    shown = purge(place, first_id(place))
    assert "made with them, and not changed: export ../beside (lcm, 20" in shown and "/far/away (parquet, 20" in shown
    assert "make them again after the next run" in shown
    assert [one["purged"] for one in states(place)] == [True, True]
    run(place / "corpus.yaml")
    assert [(one["older"], one["purged"]) for one in states(place)] == [(True, True)] * 2 and len(plans(place)) == 2
    shutil.rmtree(place / "beside")
    assert {one["place"]: one["gone"] for one in states(place)} == {
        "../beside": True,
        str(tmp_path / "far/away"): False,
    }
    shown = " ".join(said(pipeline("status", place / "out")).split())
    assert "gone: this machine finds no export.json there; copies of it hold documents that were purged since" in shown
    export(place, place / "beside", "lcm")
    found = {one["place"]: (one["older"], one["purged"]) for one in states(place)}
    assert found == {"../beside": (False, False), str(tmp_path / "far/away"): (True, True)}
    shown = " ".join(said(pipeline("status", place / "out")).split())
    assert "export ../beside (lcm, 20" in shown and "holds documents that were purged since" in shown
    assert "export" not in purge(place, "nobody", "--in-advance").partition("Now run")[0]
    sorted((place / "out/tombstones").glob("*.parquet"))[0].write_bytes(b"")
    told = [one["damaged"] for one in states(place)]
    assert told[:-1] == [None, None] and "tombstones/" in told[-1], told


def test_files_of_an_export_that_were_lost_or_cut_off_are_told(place: Path) -> None:
    export(place, place / "beside")
    assert states(place)[0]["changed"] == [] and "up to date" in said(pipeline("status", place / "out"))
    files = sorted((place / "beside/data").rglob("*.parquet"))
    files[0].write_bytes(files[0].read_bytes()[:100])
    cut = files[0].relative_to(place / "beside").as_posix()
    assert states(place)[0]["changed"] == [cut]
    for file in files[1:]:
        file.unlink()
    shown = " ".join(said(pipeline("status", place / "out")).split())
    told = f"{counted(len(files), 'file')} of it changed or went away ({cut}"
    assert told in shown and "delete it, and export again" in shown and "up to date" not in shown, shown
    (place / "out.parquet").touch()  # its size is nobody's business
    (place / "beside/export.json").write_text('{"files": {"../out.parquet": {"bytes": 0}}}')
    assert states(place)[0]["changed"] == ["../out.parquet"]
    for damaged in ("{", '{"files": {"a": 3}}', '{"files": []}'):
        (place / "beside/export.json").write_text(damaged)
        assert states(place)[0]["changed"] == ["export.json"]


def test_of_many_exports_the_newest_are_shown(place: Path, tmp_path: Path) -> None:
    export(place, tmp_path / "first")
    store = Store(str(place / "out"))
    (record,) = exports_of(store).records
    corpus = Corpus(str(place / "out"))
    for number in range(12):
        record_export(
            store, corpus.view, f"/exports/{number}", record.rows, {}, "", format="lcm", sentences=1, sequences=1
        )
    last = ["export /exports/2 ", "export /exports/11 "]
    purged = purge(place, first_id(place), "--dry-run")
    status, plan = (
        said(pipeline(*command))
        for command in (("status", place / "out"), ("plan", place / "corpus.yaml", "--set", "segment.max_chars=90"))
    )
    for shown in (purged, status, plan.replace("export: ", "export ")):
        assert all(one in shown for one in last) and "/exports/1 " not in shown and "/first" not in shown, shown
        assert "… and 3 more (" in shown
    assert len(states(place)) == len(plans(place, "--set", "segment.max_chars=90")) == 13
    assert status.count("gone: this machine finds no export.json there\n") == 10 and "up to date" not in status
    create_tombstone(store, ["gone"], {}, "a test", exports=[record.name])
    status = said(pipeline("status", place / "out"))
    assert "/first" in status and "holds documents that were purged" in status and "/exports/2 " not in status


def test_purge_names_an_export_of_older_settings_even_when_its_files_are_gone(place: Path) -> None:
    run(place / "corpus.yaml", "segment.max_chars=90")
    export(place, place / "old")
    run(place / "corpus.yaml")
    doc_id = first_id(place)
    (place / "ids.txt").write_text(f"{doc_id}\n", "utf-8")
    asked = ("purge", place / "out", "--ids", place / "ids.txt", "--dry-run")
    assert "export ../old" in said(pipeline(*asked))
    assert pipeline("gc", place / "out", "--delete", "--yes", "--older-views").returncode == 0
    assert "export ../old" in said(pipeline(*asked))


def test_gc_keeps_what_it_was_made_from(place: Path) -> None:
    run(place / "corpus.yaml", "segment.max_chars=90")
    export(place, place / "old")
    run(place / "corpus.yaml")
    corpus, later = Corpus(str(place / "out")), time.time() + MUCH_LATER
    found = find_garbage(corpus, now=later)
    assert not found.why and set(found.kept) == {"an export was made from them"}
    assert len(find_garbage(corpus, older_views=True, now=later).why) == sum(found.kept.values()) > 0
    (path,) = (place / "out/exports").iterdir()
    path.unlink()  # as a person does it when the export is gone
    assert len(find_garbage(corpus, now=later).why) == sum(found.kept.values())


def test_a_damaged_record_hides_nothing_and_is_repaired(place: Path) -> None:
    export(place, place / "one")
    export(place, place / "other")
    store = Store(str(place / "out"))
    bad, good = (place / "out" / one.path for one in exports_of(store).records)
    whole = bad.read_bytes()
    for content in (b"", b"{", whole.replace(b"../one", b"../two"), good.read_bytes(), b'{"a": 1}'):
        bad.write_bytes(content)
        (found,) = check_records(store)
        assert found.path == found.receipt == f"exports/{bad.name}"
        status = pipeline("status", place / "out")
        assert status.returncode == 1 and "export ../other" in said(status) and bad.name in said(status), said(status)
        refused = pipeline("gc", place / "out")
        assert refused.returncode == 1 and "not known what an export was made from" in said(refused), said(refused)
        (place / "ids.txt").write_text(f"{first_id(place)}\n", "utf-8")
        shown = said(pipeline("purge", place / "out", "--ids", place / "ids.txt", "--dry-run"))
        assert "export ../other" in shown and "an export may hold them" in shown, shown
    bad.write_bytes(whole)
    change_record(bad, run="runs/../../..")
    with pytest.raises(CorpusError, match="nothing in runs/"):
        read_export(store, f"exports/{bad.name}")
    assert repair(store, check_records(store)) == (1, 0, []) and not bad.exists()
    assert check_records(store) == [] and pipeline("status", place / "out").returncode == 0


def test_a_lost_view_is_told_until_it_is_restored_or_noted(place: Path) -> None:
    run(place / "corpus.yaml", "segment.max_chars=90")
    export(place, place / "old")
    run(place / "corpus.yaml")
    store = Store(str(place / "out"))
    (record,) = exports_of(store).records
    (place / "out" / record.run / "view.json").write_bytes(b"{")
    (found,) = check_records(store)
    assert found.path == record.path and "is lost" in found.what and f"verify {store.url} --repair" in found.what
    refused = pipeline("gc", place / "out")
    assert refused.returncode == 1 and f"pipeline verify {store.url} --repair" in said(refused), said(refused)
    purging = ("purge", place / "out", "--ids", place / "ids.txt", "--dry-run")
    (place / "ids.txt").write_text(f"{first_id(place)}\n", "utf-8")
    assert "export ../old" in said(pipeline(*purging))
    repaired = pipeline("verify", place / "out", "--repair")
    assert "1 record made again" in said(repaired) and "cannot" not in said(repaired), said(repaired)
    assert exports_of(store).records == (record.model_copy(update={"lost": True}),)
    for command in ("verify", "gc", "status"):
        done = pipeline(command, place / "out")
        assert done.returncode == 0, said(done)
    assert "export ../old" in said(pipeline(*purging))  # nobody knows any more whether it holds them


def test_the_newest_view_that_is_made_again_is_the_one_that_was_exported(place: Path) -> None:
    export(place, place / "one")
    store = Store(str(place / "out"))
    (record,) = exports_of(store).records
    (place / "out" / record.run / "view.json").write_bytes(b"{")
    done = pipeline("verify", place / "corpus.yaml", "--repair")
    assert "cannot be made again" not in said(done)
    assert pipeline("verify", place / "corpus.yaml").returncode == 0 and pipeline("gc", place / "out").returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="permissions of root are dropped the Linux way")
def test_a_corpus_that_cannot_be_written_to_is_exported_all_the_same(place: Path) -> None:
    (place / "out").chmod(0o555)
    with without_rights_of_root():
        try:
            (place / "out/try").write_text("")
            pytest.skip("this user may write everywhere and cannot give up that right")
        except PermissionError:
            shown = export(place, place / "to")
    (place / "out").chmod(0o755)
    assert "does not record this export, so purge and gc do not know it: Permission denied" in shown
    assert "same command again" not in shown
    assert (place / "to/export.json").exists() and not (place / "out/exports").exists()


def test_a_complete_export_is_recorded_whenever_it_is_killed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = exporting.ExportTarget.write_text

    def killed(target: exporting.ExportTarget, name: str, value: Any) -> None:
        writes(target, name, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting.ExportTarget, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        export(place, place / "to")
    assert (place / "to/export.json").exists() and "export ../to" in purge(place, first_id(place))


def test_hints_hold_for_places_with_quotation_marks(place: Path) -> None:
    assert f"FROM '{place}/it''s/data/*/*.parquet'" in export(place, place / "it's")
    assert f"np.load(\"{place}/it's/n/data/train/embeddings.npy\", mmap_mode='r')" in export(
        place, place / "it's/n", "numpy"
    )


def test_documents_that_are_purged_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = exporting.write_wide

    def meanwhile(*arguments: Any) -> Any:
        written = writes(*arguments)
        purge(place, first_id(place))
        return written

    monkeypatch.setattr(exporting, "write_wide", meanwhile)
    with pytest.raises(CorpusError, match=r"purged from .* during this export, which may hold them: export again"):
        export(place, place / "to")
    assert not (place / "to/export.json").exists() and not exports_of(Store(str(place / "out"))).records


@pytest.mark.parametrize("fails", ["purge", "disk"])
def test_an_export_that_fails_after_its_record_is_not_listed(
    place: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    records, write = exporting.record_export, ExportTarget.write_text

    def recorded(*arguments: Any, **more: Any) -> Any:
        found = records(*arguments, **more)
        if fails == "purge":
            purge(place, first_id(place))
        return found

    def full(target: ExportTarget, name: str, value: Any) -> None:
        if fails == "disk" and name == "export.json":
            raise OSError(28, "No space left on device")
        write(target, name, value)

    monkeypatch.setattr(exporting, "record_export", recorded)
    monkeypatch.setattr(ExportTarget, "write_text", full)
    with pytest.raises((CorpusError, OSError), match=r"purged from .* during this export|No space left"):
        export(place, place / "to")
    assert not (place / "to/export.json").exists() and not exports_of(Store(str(place / "out"))).records
    monkeypatch.undo()
    export(place, place / "to")  # the same command again: nothing is in its way
    assert (place / "to/export.json").exists()


def test_files_that_a_run_removes_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a purge, the next run copies what is left, and deletes the files that the export reads."""
    writes = exporting.write_wide

    def meanwhile(*arguments: Any) -> Any:
        purge(place, first_id(place))
        run(place / "corpus.yaml")
        return writes(*arguments)

    def changed(*arguments: Any) -> Any:
        run(place / "corpus.yaml", "segment.max_chars=70")
        raise MissingError("a file is missing, though a receipt names it")

    for instead, what in ((meanwhile, "documents were purged from"), (changed, "another run has changed")):
        monkeypatch.setattr(exporting, "write_wide", instead)
        with pytest.raises(CorpusError, match=f"{what} .* during this export.*: export again"):
            export(place, place / "to")
        assert not (place / "to/export.json").exists()
