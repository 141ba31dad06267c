"""The same id in several files: found whatever the order of work, left out as the configuration says."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from launchers import inline
from launchers.launch import launch
from pipeline import Corpus
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus import document_ids
from pipeline.corpus.document_ids import read_duplicates
from pipeline.corpus.states import read_state
from pipeline.planning.plan import make_plan
from pipeline.run import compare_ids as compare_module
from pipeline.run.compare_ids import DuplicateIds, compare_ids, count_duplicate_ids
from pipeline.run.options import RunOptions
from pipeline.run.phases import plan_of_shard, read_phase, write_phase
from pipeline.storage.store import Store
from tests.conftest import data_digests, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.corpora import begin_without_packing
from tests.support.runs import run

FIRST = {"duplicate_ids": "keep-first"}


def document(doc_id: str, text: str) -> dict[str, Any]:
    return {"id": doc_id, "lang": "eng_Latn", "text": text}


def files(folder: Path, **contents: list[str]) -> None:
    """Files of documents, each id with the name of the file as its text."""
    for name, ids in contents.items():
        write_jsonl(folder / f"in/{name}.jsonl", [document(one, f"This is {one} of {name}.") for one in ids])


def config_of(folder: Path, packed: bool = False, **settings: Any) -> Path:
    """A configuration for a corpus in which each small file has a chunk of its own, or in which they share chunks."""
    if not packed:
        begin_without_packing(folder / "out")
    return write_config(
        folder,
        encode=None,
        autobleu=None,
        report=None,
        segment={"method": "spacy-capped", "model": "sonar-tiny"},
        **settings,
    )


def kept(folder: Path) -> list[tuple[str, str]]:
    """Id and file of every document, sorted."""
    corpus = Corpus(str(folder / "out"))
    tables = [corpus.documents(part) for part in corpus.parts]
    return sorted((one["doc_id"], one["source"][-7]) for table in tables for one in table.to_pylist())


def compared(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """`compare_ids` over the inputs of a configuration, and what it said."""
    told: list[str] = []
    chunks = make_plan(config).view.listed.chunks
    return compare_ids(Store(config.output), config, chunks, told.append), told


def test_the_first_document_is_that_of_the_first_file_in_any_order_of_work(tmp_path: Path) -> None:
    found = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        files(folder, a=["1", "2", "3"], b=["3", "4", "1", "4"], c=["5", "1", "4"])
        shown = run(config_of(folder, seed=seed, **FIRST))
        assert "ids: 4 documents left out, because earlier chunks have documents with the same ids" in shown
        assert "5 (duplicate id 5) quarantined" in shown
        assert kept(folder) == [("1", "a"), ("2", "a"), ("3", "a"), ("4", "b"), ("5", "c")]
        found.append(data_digests(folder / "out"))
    assert found[0] == found[1] == found[2]
    lists = (tmp_path / "0/out/quarantine").rglob("*.parquet")
    rows = [row for path in lists for row in pq.read_table(path).to_pylist()]
    errors = sorted(row["error"] for row in rows if row["doc_id"] == "1")
    assert len(errors) == 2 and all("a.jsonl has the id '1' too; the first one is kept" in error for error in errors)


def test_only_what_loses_or_regains_a_document_is_done_again(tmp_path: Path) -> None:
    files(tmp_path, b=["1", "2"], c=["2", "3"], d=["4"])
    shown = run(config_of(tmp_path))
    assert "1 id stands in more than one document (2 documents in all)" in shown
    path = config_of(tmp_path, **FIRST)
    run(path)
    assert kept(tmp_path) == [("1", "b"), ("2", "b"), ("3", "c"), ("4", "d")]
    assert len(list((tmp_path / "out/chunks").rglob("*.json"))) == 4  # c twice
    assert "Nothing to do." in run(path)
    files(tmp_path, a=["3", "4"])
    plan = make_plan(load_config(path))
    assert [Path(one.path).name for one in plan.chunks_to_segment()] == ["a.jsonl"]  # of new ids nothing is known yet
    shown = run(path)
    assert "ids: reading those of 1 chunk" in shown and "(3 chunks to segment" in shown
    assert kept(tmp_path) == [("1", "b"), ("2", "b"), ("3", "a"), ("4", "a")]
    (tmp_path / "in/a.jsonl").unlink()
    assert [one.kind for one in _work(path)] == []  # everything is still there
    run(path, options=RunOptions(accept_removal=True))
    assert kept(tmp_path) == [("1", "b"), ("2", "b"), ("3", "c"), ("4", "d")]


def _work(path: Path) -> list[Any]:
    config, _ = compared(load_config(path))
    plan = make_plan(load_config(path))
    assert plan.config.frozen.duplicates == config.frozen.duplicates
    return list(launch(plan, "runs/none"))


def test_a_corpus_without_such_ids_stays_as_it_is(tmp_path: Path) -> None:
    files(tmp_path, a=["1", "2", "2"], b=["3"])
    shown = run(config_of(tmp_path))
    assert "more than one document" not in shown and "(duplicate id 1) quarantined" in shown
    before = data_digests(tmp_path / "out")
    assert "Nothing to do." in run(config_of(tmp_path, **FIRST))
    assert data_digests(tmp_path / "out") == before


def test_error_comes_before_anything_is_computed(tmp_path: Path) -> None:
    files(tmp_path, a=["1", "2"], b=["2", "5", "5"])
    with pytest.raises(
        CorpusError,
        match=r"2 ids in more than one document \(4 documents in all\): '2' \(in-.*:a.jsonl and in-.*:b.jsonl\), ",
    ):
        run(config_of(tmp_path, duplicate_ids="error"))
    assert not (tmp_path / "out/receipts").exists() and not (tmp_path / "out/runs").exists()
    files(tmp_path, b=["3"])
    run(config_of(tmp_path, duplicate_ids="error"))
    assert kept(tmp_path) == [("1", "a"), ("2", "a"), ("3", "b")]


def test_all_can_be_kept(tmp_path: Path) -> None:
    files(tmp_path, a=["1", "1"], b=["1"])
    shown = run(config_of(tmp_path, duplicate_ids="keep-all"))
    assert kept(tmp_path) == [("1", "a"), ("1", "a"), ("1", "b")] and "more than one document" not in shown


def test_files_that_share_a_chunk_are_compared_as_others_are(tmp_path: Path) -> None:
    """Without `duplicate_ids` only within a file; the first of all where that is asked for, and back again."""
    files(tmp_path, a=["1", "1", "2"], b=["2", "3"], c=["3", "3"])
    path = config_of(tmp_path, packed=True)
    shown = run(path)
    all_of_them = [("1", "a"), ("2", "a"), ("2", "b"), ("3", "b"), ("3", "c")]
    assert len(Corpus(str(tmp_path / "out")).chunks) == 1 and kept(tmp_path) == all_of_them
    assert "(duplicate id 2) quarantined" in shown and "2 ids stand in more than one document" in shown
    run(config_of(tmp_path, packed=True, **FIRST))
    assert kept(tmp_path) == [("1", "a"), ("2", "a"), ("3", "b")]
    done = pipeline("quarantine", tmp_path / "out", "--most", "9")
    assert "b.jsonl has the id '3' too; the first one is kept" in " ".join(said(done).split()), said(done)
    run(config_of(tmp_path, packed=True))
    assert kept(tmp_path) == all_of_them
    with pytest.raises(
        CorpusError, match=r"3 ids.*'1' \(in-.*:a.jsonl and in-.*:a.jsonl\), '2' .*a.jsonl and in-.*b.js"
    ):
        run(config_of(tmp_path, packed=True, duplicate_ids="error"))


def test_documents_without_text_do_not_take_an_id(tmp_path: Path) -> None:
    files(tmp_path, b=["1"])
    write_jsonl(tmp_path / "in/a.jsonl", [document("1", " \n"), document("2", "Two.") | {"lang": "nonsense"}])
    write_jsonl(tmp_path / "in/c.jsonl", [document("2", "Two.")])
    run(config_of(tmp_path, **FIRST))
    assert kept(tmp_path) == [("1", "b"), ("2", "c")]


def test_records_without_an_id_column_are_left_alone_but_text_files_have_ids(tmp_path: Path) -> None:
    """Their paths within the input; ids that are made for records are hashes of input, path and place."""
    for name in ("one", "two"):
        write_jsonl(tmp_path / name / "a.jsonl", [{"text": "The same."}, {"text": "The same."}])
        (tmp_path / name / "x.txt").write_text(f"A text of {name}.")
    inputs = [{"path": f"{name}/*.{end}", "lang": "eng_Latn"} for end in ("jsonl", "txt") for name in ("one", "two")]
    run(config_of(tmp_path, input=inputs, **FIRST))
    found = [doc_id for doc_id, _ in kept(tmp_path)]
    assert found.count("x.txt") == 1 and len(found) == len(set(found)) == 5
    with pytest.raises(CorpusError, match=r"1 id in more than one document \(2 documents in all\): 'x\.txt'"):
        run(config_of(tmp_path, input=inputs, duplicate_ids="error"))


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_it_finds_what_comparing_all_with_all_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """With memory for one id, for a few, and for all; read at once, or file after file."""
    monkeypatch.setattr(compare_module, "RUN_IDS", size)
    monkeypatch.setattr(document_ids, "GROUP_IDS", 5)
    rng = random.Random(size)
    names = {f"{number:02d}": [str(rng.randrange(60)) for _ in range(rng.randrange(15))] for number in range(12)}
    names["12"] = ["x"] * 1000
    expected: Counter[str] = Counter()
    first: set[str] = set()
    path = config_of(tmp_path, **FIRST)
    for name, ids in names.items():
        expected[name] = len(set(ids) & first)
        first |= set(ids)
        files(tmp_path, **{name: ids})
        if size == 7:
            compared(load_config(path))
    config, told = compared(load_config(path))
    record = read_duplicates(Store(config.output), config.frozen.duplicates)
    chunks = make_plan(load_config(path)).view.listed.chunks
    assert {Path(one.path).stem: len(record.of(one.id)) for one in chunks} == dict(expected)
    assert bool(told) == (size != 7)
    Path(config.output, config.frozen.duplicates).unlink()  # killed before it was written
    again, told = compared(load_config(path))
    assert all("reading" not in one for one in told)
    assert read_duplicates(Store(again.output), again.frozen.duplicates).table.equals(record.table)


def test_a_damaged_file_of_ids_is_named_found_and_made_again(tmp_path: Path) -> None:
    files(tmp_path, a=["1", "2", "3"], b=["1", "4"])
    path = config_of(tmp_path, **FIRST)
    run(path)
    whole, expected = data_digests(tmp_path / "out"), kept(tmp_path)
    names = sorted(file.name for file in (tmp_path / "out/ids").iterdir())
    assert len(names) == 2 and names[1].startswith("duplicates-")
    for name in names:
        file = tmp_path / "out/ids" / name
        good = file.read_bytes()
        for damage in (b"", b"PAR1 no", good[: len(good) // 2], good[:40] + bytes([good[40] ^ 1]) + good[41:]):
            file.write_bytes(damage)
            files(tmp_path, c=["5"])  # so that ids have to be compared again
            with pytest.raises(CorpusError, match=rf"ids/{name}.*delete it, and run again"):
                config = load_config(path)
                read_duplicates(Store(config.output), f"ids/{name}") if "dup" in name else compared(config)
            found = pipeline("verify", tmp_path / "out")
            assert found.returncode == 1 and f"ids/{name}" in "".join(found.stdout.split()), said(found)
            (tmp_path / "in/c.jsonl").unlink()
            file.write_bytes(good)
        file.write_bytes(good[:-1])
        mended = pipeline("verify", tmp_path / "out", "--repair")
        assert not file.exists(), said(mended)
        run(path)
        assert data_digests(tmp_path / "out") == whole and kept(tmp_path) == expected
        assert pipeline("verify", tmp_path / "out").returncode == 0
        for one in (tmp_path / "out/ids").iterdir():
            if one.name not in names:
                one.rename(one.with_name(name))


def test_workers_of_a_phase_leave_out_the_same(tmp_path: Path) -> None:
    """They know the chunks of their range only, and have what is left out from the order."""
    files(tmp_path, a=["1", "2"], b=["2", "3"])
    path = config_of(tmp_path, **FIRST)
    compared(load_config(path))
    plan, store = make_plan(load_config(path)), Store(str(tmp_path / "out"))
    write_phase(store, "runs/x/phase-1", plan, "main", ())
    spec = read_phase(store, "runs/x/phase-1")
    for number in range(spec.ranges):
        of_range = plan_of_shard(store, "runs/x/phase-1", spec, number)
        assert not [event for event in launch(of_range, "runs/x") if event.kind == "failed"]
    assert not [one for one in read_state(store, plan.view) if not one.segmented]
    old = json.loads((tmp_path / "out/runs/x/phase-1/order.json").read_text())
    del old["duplicates"]  # an order of an older version
    (tmp_path / "out/runs/x/phase-1/order.json").write_text(json.dumps(old))
    assert read_phase(store, "runs/x/phase-1").duplicates == ""


@pytest.mark.parametrize("at_once", [1, 3, 1 << 20])
def test_counting_takes_ranges_of_ids(tmp_path: Path, at_once: int) -> None:
    files(tmp_path, a=["1", "2", "3", "4"], b=["2", "4", "5"], c=["2"])
    run(config_of(tmp_path))
    assert count_duplicate_ids(Corpus(str(tmp_path / "out")), at_once) == DuplicateIds(2, 5)


@pytest.mark.slow
def test_a_process_that_segments_beside_leaves_out_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for beside in (False, True):
        monkeypatch.setattr(inline, "_much_to_segment", lambda plan, beside=beside: beside)
        folder = tmp_path / str(beside)
        files(folder, a=["1", "2"], b=["2", "3"])
        run(write_config(folder, autobleu=None, report=None, **FIRST))
        assert kept(folder) == [("1", "a"), ("2", "a"), ("3", "b")]
        digests.append(data_digests(folder / "out"))
    assert digests[0] == digests[1]
