"""The section `duplicates` of whole corpora: against a plain Python count, in every order of work, after kills."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.load import load_config
from pipeline.config.report import ReportSettings
from pipeline.planning.plan import make_plan
from pipeline.quality.expectations import check_expectations
from pipeline.run import duplicates
from pipeline.run.options import RunOptions
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.faults.slurm_runs import SLURM, ended, logs
from tests.support.cli import pipeline, said
from tests.support.runs import run

TEXT = {"encode": None, "autobleu": None, "duplicates": {"near": {}}}
COLUMNS = ("duplicate_of", "duplicate_of_position", "duplicate_count", "doc_duplicate_of", "doc_duplicate_count")
WHERE = ("part", "row", "doc_id", "position", "text")


def documents() -> list[dict[str, Any]]:
    """Documents with sentences in common; the last but one repeats the second in capitals with other white space, and
    the last one has other words in three places.
    """
    found = [one | {"id": f"doc {at}"} for at, one in enumerate(sample_documents("postgresql-eng", 3))]
    found += [one | {"id": f"help {at}"} for at, one in enumerate(sample_documents("libreoffice-eng", 8))]
    text = found[1]["text"]
    edited = text.replace("the", "a", 2).replace(".", " indeed.", 1)
    again = text.upper().replace(" ", "  ")
    return [*found, found[1] | {"id": "again", "text": again}, found[1] | {"id": "edited", "text": edited}]


def plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def expected(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """The columns by dictionaries, of rows in the order of the corpus."""
    sentences = Counter(plain(row["text"]) for row in rows)
    of_document: dict[str, list[str]] = {}
    for row in rows:
        of_document.setdefault(row["doc_id"], []).append(plain(row["text"]))
    texts = {name: tuple(several) for name, several in of_document.items()}
    copies = Counter(texts.values())
    first: dict[str, tuple[str, int]] = {}
    first_document: dict[tuple[str, ...], str] = {}
    found = []
    for row in rows:
        here, text, name = (row["doc_id"], row["position"]), plain(row["text"]), row["doc_id"]
        of = first.setdefault(text, here)
        of_doc = first_document.setdefault(texts[name], name)
        found.append(
            (
                *((None, None) if of == here else of),
                sentences[text],
                None if of_doc == name else of_doc,
                copies[texts[name]],
            )
        )
    return found


def columns(out: Path) -> pa.Table:
    """The columns of all rows, in the order of the inputs."""
    corpus = Corpus(str(out))
    table = corpus.to_arrow(*WHERE, "source", *COLUMNS)
    return table.sort_by([("source", "ascending"), ("part", "ascending"), ("row", "ascending")])


def found(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


def words_of(table: pa.Table) -> str:
    """What summary and report say of these columns."""
    repeated = table.num_rows - table["duplicate_of"].null_count
    share = f"{repeated} of {table.num_rows} sentences ({repeated / table.num_rows:.1%})"
    return f"{share} and 1 of 13 documents (7.7%) repeat earlier ones; 2 of 13 documents (15.4%) nearly do"


def write(folder: Path, some: list[dict[str, Any]]) -> None:
    for number in range(0, len(some), 4):
        write_jsonl(folder / f"in/{number:02d}.jsonl", some[number : number + 4])


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    write(tmp_path, documents())
    path = write_config(tmp_path, **TEXT)
    run(path)
    return path


def test_columns_summary_plan_select_and_inspect(tmp_path: Path) -> None:
    write(tmp_path, documents())
    path = write_config(tmp_path, **TEXT, select={"where": "duplicate_of is null"})
    planned = pipeline("plan", path)
    assert re.search(r"^duplicates +0 parts", planned.stdout, re.MULTILINE), said(planned)
    done = pipeline("run", path)
    assert done.returncode == 0, said(done)
    table = columns(tmp_path / "out")
    assert found(table) == expected(table.to_pylist())
    assert set(table.filter(pa.compute.is_valid(table["doc_duplicate_of"]))["doc_id"].to_pylist()) == {"again"}
    repeated = table.num_rows - table["duplicate_of"].null_count
    assert words_of(table) in " ".join(done.stdout.split())
    assert "Nothing to do." in pipeline("run", path).stdout
    selected = pipeline("select", path)
    assert f"{table.num_rows - repeated}" in selected.stdout, said(selected)
    shown = pipeline("inspect", tmp_path / "out", "--where", "doc_duplicate_of == 'doc 1'", "--json")
    copied = table.filter(pa.compute.equal(table["doc_id"], "again")).num_rows
    assert shown.returncode == 0 and f'"sentences": {copied},' in shown.stdout, said(shown)
    types = {field.name: str(field.type) for field in table.schema}
    assert [types[name] for name in COLUMNS] == ["string", "int32", "int32", "string", "int32"]


@pytest.mark.parametrize("at_once", [1, 60, 10_000])
def test_pieces_do_not_change_the_result(compared: Path, at_once: int) -> None:
    before = data_digests(compared.parent / "out")
    for stage in ("duplicates", "near"):
        for receipt in (compared.parent / "out/receipts" / stage).rglob("*.json"):
            receipt.unlink()
    plan = make_plan(load_config(compared))
    assert plan.compares == ("duplicates", "near") and not plan.launches
    parts = len(Corpus(str(compared.parent / "out")).parts)
    for stage in plan.compares:
        assert duplicates.find_duplicates(plan, stage, at_once=at_once) == parts > 3
    run(compared)
    assert data_digests(compared.parent / "out") == before


def test_near_duplicates_are_the_clusters_of_common_keys(compared: Path) -> None:
    corpus = Corpus(str(compared.parent / "out"))
    table = corpus.to_arrow(*WHERE, "source", "minhash", "near_duplicate_of", "near_duplicate_count")
    rows = table.sort_by([("source", "ascending"), ("part", "ascending"), ("row", "ascending")]).to_pylist()
    keys = {row["doc_id"]: set(row["minhash"]) for row in rows if row["minhash"]}  # in the order of the corpus
    cluster = {one: {one} for one in keys}
    for one, other in itertools.combinations(keys, 2):
        if keys[one] & keys[other]:
            joined = cluster[one] | cluster[other]
            cluster |= dict.fromkeys(joined, joined)
    assert cluster["edited"] >= {"doc 1", "again", "edited"} and len(cluster["doc 0"]) < len(keys)
    for row in rows:
        first = next(one for one in keys if one in cluster[row["doc_id"]])
        assert row["near_duplicate_of"] == (None if first == row["doc_id"] else first)
        assert row["near_duplicate_count"] == len(cluster[row["doc_id"]])


def test_a_comparison_that_was_stopped_goes_on(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = data_digests(compared.parent / "out")
    receipts = sorted((compared.parent / "out/receipts/duplicates").rglob("*.json"))
    kept, *lost = receipts
    for one in lost:
        one.unlink()
    stamp, commit, left = kept.stat().st_mtime_ns, duplicates.commit, iter([True])

    def stopped(*arguments: Any, **named: Any) -> Any:
        if next(left, False):
            return commit(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(duplicates, "commit", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(compared)
    monkeypatch.undo()
    with pytest.raises(CorpusError, match="duplicate_of"):
        Corpus(str(compared.parent / "out")).to_arrow("duplicate_of")
    shown = run(compared)
    assert "Corpus done" in shown and kept.stat().st_mtime_ns == stamp
    assert data_digests(compared.parent / "out") == before


def test_more_documents_compare_the_corpus_again_and_hash_only_themselves(compared: Path, tmp_path: Path) -> None:
    hashes = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/receipts/hashes").rglob("*.json")}
    copy = documents()[4]
    write_jsonl(tmp_path / "in/-first.jsonl", [copy | {"id": "now first"}])
    shown = run(compared)
    assert "Corpus done" in shown
    table = columns(tmp_path / "out")
    assert found(table) == expected(table.to_pylist())
    rows = table.filter(pa.compute.equal(table["doc_id"], copy["id"]))
    assert set(rows["doc_duplicate_of"].to_pylist()) == {"now first"}
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in hashes.items())
    fresh = tmp_path / "fresh"
    write(fresh, documents())
    write_jsonl(fresh / "in/-first.jsonl", [copy | {"id": "now first"}])
    run(write_config(fresh, **TEXT))
    assert found(columns(fresh / "out")) == found(table)


def test_nothing_names_a_purged_document(compared: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("doc 1\n")
    assert "duplicate_of" in Corpus(str(tmp_path / "out")).catalogue
    assert pipeline("purge", tmp_path / "out", "--ids", tmp_path / "ids.txt").returncode == 0
    between = Corpus(str(tmp_path / "out"))  # what repeated the purged document may be the only one now
    assert not {"duplicate_of", "doc_duplicate_of", "near_duplicate_of"} & {
        *between.catalogue,
        *between.table().column_names,
    }
    with pytest.raises(ConfigError, match=r"no column duplicate_of; .* since documents were added or purged"):
        between.condition("duplicate_of is null")
    held = check_expectations(between, ReportSettings(expect={"documents": ">= 1", "duplicate_sentences": "< 1"}))
    assert [one.value for one in held] == [None, None] and "purged since the last run" in held[0].why
    run(compared)
    table = columns(tmp_path / "out")
    assert found(table) == expected(table.to_pylist()) and "again" in table["doc_id"].to_pylist()
    files = [one for name in ("duplicates", "near-duplicates") for one in (tmp_path / "out" / name).rglob("*.parquet")]
    named = {value for one in files for row in pa.parquet.read_table(one).to_pylist() for value in row.values()}
    assert "doc 0" in named and "doc 1" not in named


def test_other_normalisation_and_parts_without_hashes(compared: Path, tmp_path: Path) -> None:
    near = sorted((tmp_path / "out/receipts/near").rglob("*.json"))
    run(compared, "duplicates.normalise=none")
    assert sorted((tmp_path / "out/receipts/near").rglob("*.json")) == near
    table = columns(tmp_path / "out")
    assert set(table["doc_duplicate_of"].to_pylist()) == {None}
    with pytest.raises(CorpusError, match=r"is not segmented; run without --only|has no hashes; run without --only"):
        write_jsonl(tmp_path / "in/more.jsonl", documents()[:1])
        done = pipeline("run", compared, "--only", "duplicates")
        assert done.returncode != 0
        raise CorpusError(said(done))


@pytest.mark.parametrize(
    ("texts", "sentences"),
    [
        (["The same sentence."] * 30, 30),  # documents of one sentence
        (["The same sentence again.\n\n" * 500], 500),  # one document of many equal sentences
        (["One document, with one sentence."], 1),
        ([], 0),
    ],
    ids=["all equal", "many sentences", "one document", "empty"],
)
def test_hostile_corpora(tmp_path: Path, texts: list[str], sentences: int) -> None:
    some = [{"id": f"<b>{at}</b>", "lang": "eng_Latn", "title": "", "text": text} for at, text in enumerate(texts)]
    write_jsonl(tmp_path / "in/a.jsonl", some)
    path = write_config(tmp_path, **TEXT)
    run(path)
    corpus = Corpus(str(tmp_path / "out"))
    assert corpus.rows == sentences
    if sentences:
        table = columns(tmp_path / "out")
        assert found(table) == expected(table.to_pylist())


@pytest.mark.slow
def test_the_report_says_how_many(compared: Path, tmp_path: Path) -> None:
    done = pipeline("report", tmp_path / "out")
    assert done.returncode == 0, said(done)
    assert words_of(columns(tmp_path / "out")) in (tmp_path / "out/report/index.html").read_text("utf-8")


@pytest.mark.slow
def test_ray_gives_the_same_bytes(compared: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    done = pipeline("run", compared, "--set", f"output={other / 'out'}", "--set", "launcher.kind=local")
    assert done.returncode == 0, said(done)
    assert data_digests(other / "out") == data_digests(tmp_path / "out")


@pytest.mark.slow
def test_semantic_duplicates_are_similar_embeddings_with_one_first_code(tmp_path: Path) -> None:
    write(tmp_path, documents()[3:9])
    rvq = {"codebooks": 2, "units": 4}
    duplicates_ = {"semantic": {"cosine": 0.9}}
    path = write_config(tmp_path, autobleu=None, duplicates=duplicates_, rvq=rvq, fit={"rows": 100})
    shown = run(path)
    assert "mean the same as earlier ones" in shown
    names = ("semantic_duplicate_of", "semantic_duplicate_of_position", "semantic_duplicate_count")
    table = Corpus(str(tmp_path / "out")).to_arrow(*WHERE, "source", "codes", "embedding", *names)
    rows = table.sort_by([("source", "ascending"), ("part", "ascending"), ("row", "ascending")]).to_pylist()
    matrix = np.asarray([row["embedding"] for row in rows], np.float64)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    code = np.asarray([row["codes"][0] for row in rows])
    cosines, same = matrix @ matrix.T, code[:, None] == code
    doubtful = (np.abs(cosines - 0.9) < 1e-5).any(axis=1)  # where the last bits would decide
    alike = same & (cosines >= 0.9)
    assert doubtful.mean() < 0.1 and len(set(code.tolist())) > 1
    for at, row in enumerate(rows):
        if not doubtful[at]:
            first = int(alike[at].argmax())
            place = (rows[first]["doc_id"], rows[first]["position"]) if first != at else (None, None)
            assert (row[names[0]], row[names[1]], row[names[2]]) == (*place, alike[at].sum())
    assert 0 < sum(row[names[0]] is not None for row in rows) < len(rows)
    before = data_digests(tmp_path / "out")
    for receipt in (tmp_path / "out/receipts/semantic").rglob("*.json"):
        receipt.unlink()
    plan = make_plan(load_config(path))
    assert duplicates.find_duplicates(plan, "semantic", lambda: "cpu", 40) > 1
    run(path)
    assert data_digests(tmp_path / "out") == before


def test_semantic_duplicates_need_codes(tmp_path: Path) -> None:
    write(tmp_path, documents()[:1])
    done = pipeline("plan", write_config(tmp_path, duplicates={"semantic": {}}))
    assert done.returncode == 2
    assert "corpus.yaml:" in said(done) and "add a section `rvq: {}`" in " ".join(said(done).split()), said(done)


@pytest.mark.usefixtures("slurm")
def test_slurm_gives_the_same_columns(compared: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    for document in (tmp_path / "in").iterdir():
        write_jsonl(other / "in" / document.name, [json.loads(line) for line in document.read_text().splitlines()])
    path = write_config(other, **TEXT, launcher=SLURM)
    done = pipeline("run", path)
    assert done.returncode == 0, said(done)
    assert ended(other / "out")["done"], logs(other / "out")
    assert found(columns(other / "out")) == found(columns(tmp_path / "out"))
    kinds = [json.loads(one.read_text())["kind"] for one in sorted((other / "out/runs").glob("*/phase-*/order.json"))]
    assert kinds == ["main", "compare"]


def test_a_stage_that_comes_back_while_the_corpus_changed_is_put_together_with_what_was_done_meanwhile(
    tmp_path: Path,
) -> None:
    docs = documents()
    for number in range(2):  # of two chunks one goes later
        write_jsonl(tmp_path / f"in/{number}.jsonl", docs[number::2])
    path = write_config(tmp_path, **TEXT | {"noise": {}})
    run(path)
    (tmp_path / "in/1.jsonl").unlink()
    run(path, "noise=null", options=RunOptions(accept_removal=True))  # compares what is left, without noise
    run(path)
    plan = make_plan(load_config(path))
    assert plan.nothing_to_do and not plan.compares
    table = Corpus(str(tmp_path / "out")).table("digit_share", *COLUMNS)
    write_jsonl(tmp_path / "alone/in/0.jsonl", docs[0::2])
    run(write_config(tmp_path / "alone", **TEXT | {"noise": {}}))
    assert table.equals(Corpus(str(tmp_path / "alone/out")).table("digit_share", *COLUMNS))
