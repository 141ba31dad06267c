"""`pipeline files` and `pipeline sql`: exactly the live files, also after some were replaced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from tests.conftest import MakeConfig, write_config, write_jsonl
from tests.support.cli import pipeline
from tests.support.corpora import make_corpus
from tests.support.runs import bring_up_to_date

QUERY = """
import duckdb, json, sys
names = sys.argv[2]
print(json.dumps(duckdb.execute(sys.argv[1] + f"SELECT {names} FROM corpus ORDER BY part, row").fetchall()))
"""


def in_duckdb(views: str, names: str = "part, row, doc_id, split, text, lang, autobleu") -> list[list[object]]:
    done = subprocess.run([sys.executable, "-c", QUERY, views, names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[object]] = json.loads(done.stdout)
    return found


def test_views_show_exactly_the_live_rows(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_config(segment={"method": "spacy-capped", "max_chars": 80})
    bring_up_to_date(path, "launcher.kind=inline")
    bring_up_to_date(path, "launcher.kind=inline", "segment.max_chars=60")
    url = path.parent / "out"
    corpus = Corpus(str(url))
    rows = corpus.to_arrow("part", "row", "doc_id", "split", "text", "lang", "autobleu")
    rows = rows.sort_by([("part", "ascending"), ("row", "ascending")])
    views = pipeline("sql", url)
    assert views.returncode == 0, views
    assert in_duckdb(views.stdout) == [list(row.values()) for row in rows.to_pylist()]
    monkeypatch.chdir(url.parent)
    assert pipeline("sql", "out").stdout == views.stdout, "an address holds wherever it is used"
    listed = pipeline("files", url, "--family", "sentences").stdout.splitlines()
    assert sum(pq.read_metadata(file).num_rows for file in listed) == corpus.rows
    assert len(listed) < len(list((url / "sentences").rglob("*.parquet"))), "nothing was replaced"
    every = json.loads(pipeline("files", url, "--json").stdout)
    assert {one["family"] for one in every} == {"documents", "sentences", "embeddings", "status", "autobleu"}
    assert [one["file"] for one in every if one["family"] == "sentences"] == listed
    assert all(Path(one["file"]).is_file() for one in every)


def test_kept_columns_that_differ_from_others_by_case_have_names_of_their_own(tmp_path: Path) -> None:
    kept = {"Lang": "l", "Source": "s", "Doc": 7, "Text": "t", "Part": "p", "Title": "T", "title": "u", "titlE": "v"}
    write_jsonl(tmp_path / "in/a.jsonl", [{"id": "a", "text": "One. Two.", **kept}])
    one = {"path": "in/*.jsonl", "id": "id", "lang": "eng_Latn", "keep": list(kept)}
    assert pipeline("run", write_config(tmp_path, input=[one]), "--until", "segment").returncode == 0
    views = pipeline("sql", tmp_path / "out").stdout
    shown = {"Lang": "Lang_", "Source": "Source_", "Doc": "Doc_", "Text": "Text_", "Part": "Part_", "Title": "Title"}
    shown |= {"titlE": "titlE_", "title": "title__"}
    assert in_duckdb(views, ", ".join(shown.values())) == [[kept[name] for name in shown]] * 2
    assert in_duckdb(views, "lang, text, doc") == [["eng_Latn", "One.", 0], ["eng_Latn", "Two.", 0]]
    assert "-- The kept column Lang is Lang_ here: SQL does not heed case." in views and "column Title is" not in views


def test_kept_columns_of_several_types_are_what_readers_see(tmp_path: Path) -> None:
    """Parts whose casts are written alike are read apart: DuckDB would first make floats of 2^53 + 1 and 0.5."""
    of_inputs: list[list[object]] = [[2**53 + 1, 1], [0.5, 1.0], ["x", "1"], [True, False]]
    inputs = []
    for number, values in enumerate(of_inputs):
        rows = [{"id": f"{number}-{at}", "text": f"It is {value}.", "w": value} for at, value in enumerate(values)]
        write_jsonl(tmp_path / f"in/{number}.jsonl", rows)
        inputs.append({"path": f"in/{number}.jsonl", "id": "id", "lang": "eng_Latn", "keep": ["w"]})
    assert pipeline("run", write_config(tmp_path, input=inputs), "--until", "segment").returncode == 0
    corpus = Corpus(str(tmp_path / "out"))
    assert len(corpus.parts) == len(inputs)
    read = [row for part in corpus.parts for row in corpus.documents(part).select(["doc_id", "w"]).to_pylist()]
    expected = sorted([row["doc_id"], row["w"]] for row in read)
    assert ["0-0", "9007199254740993"] in expected and ["1-1", "1"] in expected
    assert sorted(in_duckdb(pipeline("sql", tmp_path / "out").stdout, "doc_id, w")) == expected


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    (tmp_path / "it's").mkdir()
    url = make_corpus(tmp_path / "it's", until="segment")
    assert len(pq.read_table(pipeline("files", url).stdout.splitlines()[0])) > 0
    views = pipeline("sql", url).stdout
    assert "it''s" in views and "autobleu" not in views
    unknown = pipeline("files", url, "--family", "vectors")
    assert unknown.returncode == 1 and "there is no family vectors; allowed: sentences" in unknown.stderr
    missing = pipeline("files", url, "--family", "embeddings")
    assert missing.returncode == 1 and "its stage has not run there" in missing.stderr
