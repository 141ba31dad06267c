"""`gc` takes what no live receipt names, and nothing else; what it leaves is whole."""

from __future__ import annotations

import io
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.coordination.lock import locked
from pipeline.corpus.exports import record_export
from pipeline.corpus.leftovers import live_files
from pipeline.maintenance.gc import delete, delete_garbage, find_garbage, garbage
from pipeline.maintenance.made_with import exports_made_with
from pipeline.maintenance.verify import check
from pipeline.run.options import RunOptions
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, data_digests
from tests.support.cli import pipeline
from tests.support.runs import FITS, run

ORPHAN = "fits/scaler.00000000-000000.safetensors"


@pytest.mark.slow
def test_results_of_older_settings_go(make_config: MakeConfig, tmp_path: Path) -> None:
    path, out = make_config(**FITS), tmp_path / "out"
    run(path)
    assert garbage(Corpus(str(out))) == {}
    before = data_digests(out)
    old = {file.relative_to(out).as_posix() for file in (*out.glob("codes/*/*"), *out.glob("fits/rvq*"))}
    run(path, "rvq.units=16")
    (out / "codes/notes.txt").write_text("mine")
    (out / ORPHAN).write_bytes(b"left by a killed attempt")
    corpus = Corpus(str(out))
    found = garbage(corpus)
    assert {*found["codes"], *found["fits"]} == {*old, ORPHAN}
    assert len(found["receipts"]) == len(found["codes"]) and set(found) == {"codes", "receipts", "fits"}
    shown = pipeline("gc", out)
    assert shown.returncode == 0 and "pipeline gc --delete deletes them" in shown.stdout and garbage(corpus) == found
    delete(corpus, found)
    assert garbage(Corpus(str(out))) == {} and check(Corpus(str(out)), lambda done: None) == []
    assert (out / "codes/notes.txt").exists()
    run(path)  # the old settings again: made again, with the same bytes
    assert data_digests(out) == before


def test_what_has_lost_the_lock_deletes_nothing_more(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(make_config(autobleu=None, encode=None))
    corpus = Corpus(str(tmp_path / "out"))
    names = [f"{corpus.parts[0]}.00000000-{number:06x}.parquet" for number in range(150)]
    for name in names:
        (tmp_path / "out/documents" / name).write_bytes(b"left by a killed attempt")

    delete_one = Store.delete

    def lose(store: Store, path: str) -> None:
        delete_one(store, path)
        if path.endswith(names[0]):
            store.create(replace(lease, generation=lease.generation + 1).path, b"{}")

    with pytest.raises(CorpusError, match="another process has taken over"), locked(corpus.store, "gc") as lease:
        found = find_garbage(corpus)
        assert len(found.why) == len(names)
        monkeypatch.setattr(Store, "delete", lose)
        delete_garbage(Console(file=io.StringIO()), corpus, found, lease)
    assert len([name for name in names if (tmp_path / "out/documents" / name).exists()]) == 50


def test_what_killed_writes_left_of_any_file_goes_after_a_day(make_config: MakeConfig, tmp_path: Path) -> None:
    run(make_config(autobleu=None, encode=None))
    out = tmp_path / "out"
    named = [out / "README.md", *(max(out.glob(one)) for one in ("chunks/*/*", "receipts/*/*/*", "runs/*/view.json"))]
    fits = ("fits/decoder.01234567-000.json", "fits/rates/fragility.json")
    left = [one.with_name(f".{one.name}.0123abcd.tmp") for one in [*named, *(out / one for one in fits)]]
    (out / "fits/rates").mkdir(parents=True, exist_ok=True)
    for one in left:
        one.write_bytes(b"half a fi")
    assert find_garbage(Corpus(str(out))).why == {}, "it may be being written"
    for one in left:
        os.utime(one, (0, time.time() - 2 * 86400))
    done = pipeline("gc", out, "--delete", "--yes")
    assert done.returncode == 0 and "left by a killed write" in done.stdout, done
    assert not [one for one in left if one.exists()] and all(one.exists() for one in named)


def test_not_while_a_run_is_under_way(make_config: MakeConfig, tmp_path: Path) -> None:
    run(path := make_config())
    (summary,) = (tmp_path / "out/runs").glob("*/summary.json")
    summary.unlink()
    with pytest.raises(CorpusError, match="is not finished"):
        garbage(Corpus(str(tmp_path / "out")))
    assert run(path).startswith("Nothing to do.")  # and that run comes to its end
    assert garbage(Corpus(str(tmp_path / "out"))) == {}


def test_a_trial_with_fewer_documents_costs_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    path, out = make_config(autobleu=None), tmp_path / "out"
    run(path)
    before = data_digests(out)
    run(path, "input.0.limit=1", options=RunOptions(accept_removal=True))
    said = pipeline("gc", out)
    assert "run of the last 30 days" in said.stdout and "embeddings" not in said.stdout, said
    refused = pipeline("gc", out, "--delete")
    assert refused.returncode == 2 and "give --yes" in refused.stderr, refused
    done = pipeline("gc", out, "--delete", "--yes")
    assert done.returncode == 0 and "deleted" not in done.stdout
    run(path)
    assert data_digests(out) == before
    run(path, "input.0.limit=1", options=RunOptions(accept_removal=True))
    counted = pipeline("gc", out, "--older-views")
    assert "embeddings: " in counted.stdout and "kB: made with settings" in counted.stdout, counted
    assert "pipeline gc --older-views --delete deletes them" in counted.stdout, counted
    done = pipeline("gc", out, "--older-views", "--delete", "--yes")
    assert done.returncode == 0 and "deleted, " in done.stdout, done
    assert garbage(Corpus(str(out))) == {} and check(Corpus(str(out)), lambda done: None) == []


def test_fits_of_older_views_that_were_deleted_are_not_missed(make_config: MakeConfig, tmp_path: Path) -> None:
    path, out = make_config(autobleu=None, scaler={}), tmp_path / "out"
    run(path)
    run(path, "segment.max_chars=50")
    before = {one.name for one in out.glob("fits/*")}
    done = pipeline("gc", out, "--older-views", "--delete", "--yes")
    assert done.returncode == 0 and len(before - {one.name for one in out.glob("fits/*")}) == 2, done
    again = pipeline("gc", out)
    assert again.returncode == 0 and "The newest run needs every file." in again.stdout, again


def test_more_views_need_no_more_listings(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(encode=None, autobleu=None)
    assert pipeline("run", config).returncode == 0
    corpus = Corpus(load_config(config).output)
    store, view, first = corpus.store, corpus.view, corpus.chunks[0]
    listed: list[str] = []
    find = Store.find

    def counted(asked: Store, folder: str, prefix: str = "") -> list[str]:
        listed.extend([folder] if folder.startswith(("chunks", "receipts", "ledger")) else [])
        return find(asked, folder, prefix)

    monkeypatch.setattr(Store, "find", counted)
    costs = []
    for number, chunks in enumerate(([0, 1], [1, 2], [0], [1], [2], [0, 2])):
        older = replace(view, chunks=view.listed.take(chunks))
        folder = f"runs/{datetime.now(UTC) - timedelta(days=9 - number):%Y%m%dT%H%M%S.%f}-00000{number}"
        older.write_chunks(store, folder)
        older.write_header(store, folder)
        record_export(store, older, f"/exports/{number}", 1, {}, "", format="parquet", sentences=1, sequences=0)
        if number in (1, 5):
            listed.clear()
            assert not find_garbage(Corpus(corpus.url)).bytes
            costs.append(len(listed))
            listed.clear()
            made = exports_made_with(corpus, {first.chunk.id}, set(live_files(first)))
            assert [int(one.place.rpartition("/")[2]) for one in made] == ([0] if number == 1 else [0, 2, 5])
            costs.append(len(listed))
    assert costs[:2] == costs[2:], costs
