"""Inputs that keep other columns than each other: each has files of its own, and readers see one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.accounting import compute_accounting
from pipeline.planning.plan import make_plan
from pipeline.run.options import RunOptions
from pipeline.storage import layout
from tests.conftest import TINY_CARD, write_config, write_jsonl
from tests.pipeline.export.test_sql import in_duckdb
from tests.support.cli import pipeline
from tests.support.runs import bring_up_to_date, run

TEXT = "The market opens at seven. By nine the best bread is gone."
VALUES: dict[str, dict[str, Any]] = {
    "a": {"title": "Bread", "rank": 1},
    "b": {"year": 2010, "rank": 2.5},
    "c": {"url": "x.org", "rank": "third"},
}
KEEP: dict[str, Any] = {"a": ["title"], "b": ["year", "rank"], "c": ["url", "rank"]}
NAMES = ("title", "year", "url", "rank")


def config(folder: Path, names: str, keep: dict[str, Any] = KEEP, **sections: Any) -> Path:
    for name in names:
        rows = [{"id": f"{name}{number}", "text": TEXT, **VALUES[name]} for number in range(2)]
        write_jsonl(folder / f"in/{name}.jsonl", rows)
    inputs = [
        {"path": f"in/{name}.jsonl", "name": name, "id": "id", "lang": "eng_Latn", "keep": keep.get(name, [])}
        for name in names
    ]
    return write_config(folder, **({"input": inputs, "encode": None, "autobleu": None} | sections))


def to_segment(path: Path) -> list[str]:
    return [one.input for one in make_plan(load_config(path)).chunks_to_segment()]


def of_documents(url: Path) -> dict[str, tuple[Any, ...]]:
    corpus = Corpus(str(url))
    names = [name for name in NAMES if name in corpus.catalogue]
    rows = corpus.to_arrow("doc_id", *names, where="position == 0").to_pylist()
    return {row["doc_id"]: tuple(row.get(name) for name in NAMES) for row in rows}


@pytest.fixture(params=["now", "earlier"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A corpus of two inputs, by this version or by one that gave all files the columns of all inputs."""
    path = config(tmp_path, "ab", duplicate_ids="keep-first")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "earlier":
            patch.setattr(RunConfig, "stored_columns", lambda self, one: self.keep_columns())
        run(path)
    return path


def test_an_input_that_comes_or_goes_redoes_no_other(two: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = {one.name: one.stat().st_mtime_ns for one in (out / "receipts/segment").rglob("*.json")}
    assert to_segment(two) == [] and len(before) == 2
    assert of_documents(out)["a0"] == ("Bread", None, None, None)
    assert str(Corpus(str(out)).catalogue["rank"].type) == "double"
    path = config(tmp_path, "abc")
    assert to_segment(path) == ["c"]
    bring_up_to_date(path)
    expected = {"a": ("Bread", None, None, None), "b": (None, 2010, None, "2.5"), "c": (None, None, "x.org", "third")}
    assert of_documents(out) == {f"{name}{number}": row for name, row in expected.items() for number in range(2)}
    for names in ("ab", "bca", "a", "ab"):
        path = config(tmp_path, names)
        assert to_segment(path) == []
        run(path, options=RunOptions(accept_removal=True))
    after = {one.name: one.stat().st_mtime_ns for one in (out / "receipts/segment").rglob("*.json")}
    assert before.items() <= after.items() and len(after) == 3
    assert str(Corpus(str(out)).catalogue["rank"].type) == "double"  # no text without the third input


def test_no_reader_shows_what_no_input_keeps_any_more(two: Path, tmp_path: Path) -> None:
    run(config(tmp_path, "a"), options=RunOptions(accept_removal=True))
    corpus = Corpus(str(tmp_path / "out"))
    assert list(corpus.kept_types) == ["title"] == list(compute_accounting(corpus.store, corpus.chunks).kept_types)
    assert set(corpus.documents(0).column_names) == {*layout.DOCUMENT_COLUMNS, "title"}
    assert not {"year", "rank"} & set(corpus.catalogue)
    assert pipeline("verify", tmp_path / "out").returncode == 0
    assert in_duckdb(pipeline("sql", tmp_path / "out").stdout, "doc_id, title") == [
        [f"a{number}", "Bread"] for number in (0, 0, 1, 1)
    ]


def test_files_have_the_columns_of_their_input(tmp_path: Path) -> None:
    bring_up_to_date(config(tmp_path, "abc"))
    found = [set(pq.read_schema(one).names) for one in Corpus(str(tmp_path / "out")).files("documents")]
    wanted = [{*layout.DOCUMENT_COLUMNS, *columns} for columns in KEEP.values()]
    assert sorted(map(sorted, found)) == sorted(map(sorted, wanted))


def test_all_readers_see_one_table(two: Path, tmp_path: Path) -> None:
    bring_up_to_date(config(tmp_path, "abc"))
    out = tmp_path / "out"
    corpus = Corpus(str(out))
    types = {name: str(corpus.catalogue[name].type) for name in NAMES}
    assert types == {"title": "string", "year": "int64", "url": "string", "rank": "string"}
    for part in corpus.parts:
        assert corpus.documents(part).schema == corpus.documents(0).schema
        assert corpus.table("rank", "url", "title", part=part).num_rows == 4
    assert corpus.to_arrow("doc_id", where="year is null and rank != 'third'").num_rows == 0
    assert set(corpus.to_arrow("doc_id", where="url is null")["doc_id"].to_pylist()) == {"a0", "a1", "b0", "b1"}
    rows = corpus.to_arrow("doc_id", *NAMES).to_pylist()
    views = pipeline("sql", out).stdout
    assert sorted(in_duckdb(views, "doc_id, title, year, url, rank")) == sorted(list(row.values()) for row in rows)
    done = pipeline("inspect", out, "--where", "year >= 2000", "--to", tmp_path / "rows.jsonl")
    assert done.returncode == 0 and len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4, done
    said = pipeline("status", out).stdout
    assert "rank string, title string, url string, year int64" in " ".join(said.split()), said
    assert pipeline("verify", out).returncode == 0


def test_names_that_differ_in_case_alone_in_two_inputs(tmp_path: Path) -> None:
    given = {"a": {"Rank": 1}, "b": {"rank": 2, "LANG": "x"}}
    for name, values in given.items():
        write_jsonl(tmp_path / f"in/{name}.jsonl", [{"id": name, "text": TEXT, **values}])
    inputs = [
        {"path": f"in/{name}.jsonl", "name": name, "id": "id", "lang": "eng_Latn", "keep": list(values)}
        for name, values in given.items()
    ]
    bring_up_to_date(write_config(tmp_path, input=inputs, encode=None, autobleu=None))
    found = in_duckdb(pipeline("sql", tmp_path / "out").stdout, 'doc_id, "Rank", "rank_", "LANG_"')
    assert sorted(map(str, found)) == ["['a', 1, None, None]"] * 2 + ["['b', None, 2, 'x']"] * 2


def test_a_declared_type_holds_in_all_inputs(tmp_path: Path) -> None:
    keep = KEEP | {"c": {"url": "string", "rank": "string"}}
    bring_up_to_date(config(tmp_path, "ab"))
    assert sorted(to_segment(config(tmp_path, "abc", keep))) == ["b", "c"]
    with pytest.raises(ConfigError, match=r"keep says that rank is string, input 2 that it is int32"):
        load_config(config(tmp_path, "abc", keep | {"b": {"rank": "int32"}}))


def test_plans_are_read_of_inputs_that_have_none(tmp_path: Path) -> None:
    sections = {"encode": {"model": str(TINY_CARD)}, "plans": {"column": "title"}}
    bring_up_to_date(config(tmp_path, "ab", **sections))
    assert to_segment(config(tmp_path, "abc", **sections)) == ["c"]
    bring_up_to_date(config(tmp_path, "abc", **sections))
    corpus = Corpus(str(tmp_path / "out"))
    assert corpus.to_arrow("plan_embedding").num_rows == 12


def test_ids_are_not_compared_again(two: Path, tmp_path: Path) -> None:
    there = sorted((tmp_path / "out/ids").rglob("*.parquet"))
    assert "Nothing to do" in run(two)
    assert len(there) == 2 and sorted((tmp_path / "out/ids").rglob("*.parquet")) == there
    assert "ids: reading those of 1 chunk\n" in run(config(tmp_path, "abc", duplicate_ids="keep-first"))
