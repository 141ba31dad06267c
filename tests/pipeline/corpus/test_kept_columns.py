"""Kept columns from the input to whoever reads a corpus: with their types, alike in all parts, and no silent loss."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.corpus.fingerprint import column_digest
from pipeline.corpus.receipts import Receipt
from pipeline.corpus.recipes import reading_recipe
from pipeline.inputs import plan_chunks
from pipeline.run import segmenting
from tests.conftest import write_config, write_jsonl
from tests.support.cli import pipeline
from tests.support.corpora import begin_without_packing
from tests.support.inputs import entry
from tests.support.runs import bring_up_to_date

TEXT = "The market opens at seven. By nine the best bread is gone."
FIRST: list[dict[str, Any]] = [
    {"year": 2010, "score": 1, "ok": True, "tags": ["x", "y"], "meta": {"place": "Rome", "n": 1}, "mixed": 1},
    {"year": 2**40, "score": 2, "ok": None, "tags": [], "meta": {"place": "Oslo"}, "mixed": 2, "deep": {"a": {"b": 1}}},
    {},
]
SECOND: list[dict[str, Any]] = [
    {"year": 1999, "score": 0.5, "ok": False, "tags": ["z", None], "meta": {"era": "new"}, "mixed": "seven"},
    {"year": "n.d.", "score": float("nan"), "ok": True, "tags": None, "meta": None, "mixed": None},
]
KEEP: dict[str, Any] = {
    "year": "int32",
    "score": None,
    "ok": None,
    "tags": None,
    "meta": None,
    "mixed": None,
    "deep": None,
}


def documents(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": f"{name}{number}", "text": TEXT, **row} for number, row in enumerate(rows)]


def config(folder: Path, keep: Any = KEEP, **sections: Any) -> Path:
    source = {"path": "in/*.jsonl", "id": "id", "lang": "eng_Latn", "keep": keep}
    return write_config(folder, **({"input": [source], "encode": None, "autobleu": None} | sections))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    begin_without_packing(folder / "out")
    write_jsonl(folder / "in/a.jsonl", documents("a", FIRST))
    write_jsonl(folder / "in/b.jsonl", documents("b", SECOND))
    done = pipeline("run", config(folder))
    assert done.returncode == 0, done
    said = " ".join(done.stdout.split())
    assert "year int32 (2 values did not fit and are null)" in said and "mixed string" in said, said
    assert "year is 'n.d.', which does not fit int32; it becomes null" in said
    assert f"year is {2**40}, which does not fit int32" in said
    return folder / "out"


def of_documents(url: Path, *names: str) -> dict[str, tuple[Any, ...]]:
    rows = Corpus(str(url)).to_arrow("doc_id", *names, where="position == 0").to_pylist()
    return {row["doc_id"]: tuple(row[name] for name in names) for row in rows}


def test_values_arrive_as_such(finished: Path) -> None:
    corpus = Corpus(str(finished))
    types = {name: str(corpus.catalogue[name].type) for name in KEEP}
    assert types == {
        "year": "int32", "score": "double", "ok": "bool", "tags": "list<element: string>", "mixed": "string",
        "meta": "struct<era: string, n: int64, place: string>", "deep": "string",
    }  # fmt: skip
    found = of_documents(finished, "year", "ok", "tags", "mixed", "deep")
    assert found == {
        "a0": (2010, True, ["x", "y"], "1", None),
        "a1": (None, None, [], "2", '{"a": {"b": 1}}'),
        "a2": (None, None, None, None, None),
        "b0": (1999, False, ["z", None], "seven", None),
        "b1": (None, True, None, None, None),
    }
    assert of_documents(finished, "meta")["b0"] == ({"era": "new", "n": None, "place": None},)
    scores = of_documents(finished, "score")
    assert [scores[name] for name in ("a0", "a1", "a2", "b0")] == [(1.0,), (2.0,), (None,), (0.5,)]
    assert scores["b1"][0] != scores["b1"][0]  # NaN stays what it is


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("year >= 2000 and score > 0.8", {"a0"}),
        ("year < 2000 or score == 2", {"a1", "b0"}),
        ("ok", {"a0", "b1"}),
        ("not ok", {"b0"}),
        ("ok != true and not year is null", {"b0"}),
        ("'x' in tags", {"a0"}),
        ("'z' in tags or 'y' in tags", {"a0", "b0"}),
        ("'x' not in tags", {"a1", "b0"}),
        ("not 'x' in tags", {"a1", "b0"}),
        ("tags is null", {"a2", "b1"}),
        ("meta.place == 'Rome' or meta.era in ['new', 'old']", {"a0", "b0"}),
        ("meta.n is null and meta is not null", {"a1", "b0"}),
        ("contains(meta.place, 'O')", {"a1"}),
        ("mixed == '1' or contains(deep, '\"b\"')", {"a0", "a1"}),
    ],
)
def test_conditions(finished: Path, where: str, expected: set[str]) -> None:
    rows = Corpus(str(finished)).to_arrow("doc_id", where=where)
    assert set(rows["doc_id"].to_pylist()) == expected


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mixed >= 2", r"(?s)mixed holds text; this is a number.*to state another: keep: \{mixed: float64\}"),
        ("text == 2", r"(?s)text holds text; this is a number(?!.*keep:)"),
        ("year > 'a'", r"year holds whole numbers \(int32\); this is a text"),
        ("ok > true", "true and false have no order for >"),
        ("tags == 'x'", "tags holds lists .* test what it holds: 'x' in tags"),
        ("1 in tags", "tags holds text; this is a number"),
        ("'x' in mixed", r"mixed holds text, not lists; to look for a piece of text: contains\(mixed, "),
        ("meta == 1", "meta holds structs with the fields era, n, place"),
        ("meta.plase == 'x'", "there is no column meta.plase; did you mean meta.place"),
        ("'x' in ['x']", "expected a column of lists here"),
    ],
)
def test_conditions_that_do_not_fit_a_type(finished: Path, where: str, said: str) -> None:
    done = pipeline("inspect", finished, "--where", where)
    assert done.returncode == 2
    with pytest.raises(Exception, match=said):
        Corpus(str(finished)).condition(where)


def test_what_reads_a_corpus_has_the_types(finished: Path, tmp_path: Path) -> None:
    assert pipeline("verify", finished).returncode == 0
    corpus = Corpus(str(finished))
    assert corpus.to_pandas("year")["year"].dropna().tolist() == [2010, 2010, 1999, 1999]
    assert corpus.documents(0).schema.field("score").type == corpus.documents(1).schema.field("score").type
    for ending in ("jsonl", "csv", "parquet"):
        done = pipeline("inspect", finished, "--where", "'x' in tags", "--to", tmp_path / f"rows.{ending}")
        assert done.returncode == 0, done
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert (row["year"], row["ok"], row["tags"], row["meta"]["place"]) == (2010, True, ["x", "y"], "Rome")
    assert '"[""x"", ""y""]"' in (tmp_path / "rows.csv").read_text()
    assert pq.read_schema(tmp_path / "rows.parquet").field("year").type == pa.int32()
    script = (
        "import duckdb, sys; print(duckdb.sql(sys.argv[1] + 'SELECT DISTINCT year, mixed, score FROM corpus').types)"
    )
    views = pipeline("sql", finished).stdout
    shown = subprocess.run([sys.executable, "-c", script, views], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["[INTEGER,", "VARCHAR,", "DOUBLE]"], shown


def test_views_of_duckdb_lose_nothing_that_parts_have_in_different_types(tmp_path: Path) -> None:
    begin_without_packing(tmp_path / "out")
    big = 2**53 + 1
    write_jsonl(tmp_path / "in/a.jsonl", documents("a", [{"n": big, "b": True, "o": {"k": 1}, "e": None}]))
    write_jsonl(tmp_path / "in/b.jsonl", documents("b", [{"n": 0.5, "b": 2, "o": "x", "e": [1]}]))
    bring_up_to_date(config(tmp_path, ["n", "b", "o", "e"]))
    script = (
        "import duckdb, json, sys; duckdb.execute(sys.argv[1]); "
        "print(json.dumps(duckdb.sql('SELECT doc_id, n, b, o, e FROM documents ORDER BY doc_id').fetchall()))"
    )
    views = pipeline("sql", tmp_path / "out").stdout
    shown = subprocess.run([sys.executable, "-c", script, views], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == [["a0", str(big), "true", '{"k":1}', None], ["b0", "0.5", "2", "x", [1]]]
    rows = of_documents(tmp_path / "out", "n", "b", "o", "e")
    assert rows == {"a0": (str(big), "true", '{"k": 1}', None), "b0": ("0.5", "2", "x", [1])}


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    moment = dt.datetime(2010, 1, 31, 10)
    table = pa.table(
        {
            "id": ["a", "b"],
            "text": [TEXT, TEXT],
            "year": pa.array([2010, None], pa.int16()),
            "when": pa.array([moment, None], pa.timestamp("ns", "Europe/Paris")),
            "fine": pa.array([1_000_000_001, None], pa.timestamp("ns")),
            "day": pa.array([dt.date(2010, 1, 31), None]),
            "price": pa.array(["1.50", None]).cast(pa.decimal128(5, 2)),
            "kind": pa.array(["x", "y"]).dictionary_encode(),
            "empty": pa.array([None, None], pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "in/a.parquet")
    keep = table.column_names[2:]
    path = config(tmp_path, input=[{"path": "in/*.parquet", "id": "id", "lang": "eng_Latn", "keep": keep}])
    bring_up_to_date(path)
    corpus = Corpus(str(tmp_path / "out"))
    assert {name: str(corpus.catalogue[name].type) for name in keep} == {
        "year": "int16", "when": "timestamp[us, tz=UTC]", "fine": "string", "day": "date32[day]", "price": "string",
        "kind": "string", "empty": "float",
    }  # fmt: skip
    found = of_documents(tmp_path / "out", "year", "when", "fine", "price")["a"]
    assert found == (2010, moment.replace(tzinfo=dt.UTC), "1970-01-01 00:00:01.000000001", "1.50")
    wheres = ["when >= '2010-01-31T11:00:00+01:00'", "when == '2010-01-31T10:00:00'", "day <= '2010-01-31'"]
    assert [len(corpus.to_arrow("text", where=where)) for where in wheres] == [2, 2, 2]
    with pytest.raises(Exception, match="day holds days; write one so: '2010-01-31'"):
        corpus.condition("day > 'today'")


OTHERS: dict[str, tuple[Any, list[Any], tuple[str, ...]]] = {
    "float and texts": (pa.array([1.5]), ["0012345678901234567890", "1e3"], ("0012345678901234567890", "1.5", "1e3")),
    "integer and text": (pa.array([7]), ["007"], ("007", "7")),
    "day and text": (pa.array([dt.date(2019, 2, 3)]), ["2019-02-04"], ("2019-02-03", "2019-02-04")),
    "boolean and text": (pa.array([True]), ["false"], ("false", "true")),
    "list and text": (pa.array([["x"]]), ['["y"]'], ('["x"]', '["y"]')),
    "float and decimal": (pa.array([0.5]), pa.array(["12345678901234567890.10"]).cast(pa.decimal128(24, 2)),
                          ("0.5", "12345678901234567890.10")),
    "integer and bytes": (pa.array([8]), pa.array([b"007"]), ("007", "8")),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_texts_stay_as_they_are_beside_a_file_that_stores_another_type(tmp_path: Path, case: str) -> None:
    typed, others, expected = OTHERS[case]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["a"], "text": [TEXT], "code": typed}), tmp_path / "in/a.parquet")
    ids = [f"b{at}" for at in range(len(others))]
    if isinstance(others, pa.Array):
        pq.write_table(pa.table({"id": ids, "text": [TEXT] * len(ids), "code": others}), tmp_path / "in/b.parquet")
    else:
        rows = zip(ids, others, strict=True)
        write_jsonl(tmp_path / "in/b.jsonl", [{"id": one, "text": TEXT, "code": code} for one, code in rows])
    source = {"path": "in", "id": "id", "lang": "eng_Latn", "keep": ["code"]}
    bring_up_to_date(config(tmp_path, input=[source], chunk_bytes=1 << 26))
    corpus = Corpus(str(tmp_path / "out"))
    assert str(corpus.catalogue["code"].type) == "string" and len(corpus.parts) == 1
    assert tuple(sorted(found[0] for found in of_documents(tmp_path / "out", "code").values())) == expected


def test_types_of_a_file_stay_beside_one_without_the_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    typed = {
        "small": pa.array([7, None], pa.int16()), "none": pa.array([None, None], pa.float64()),
        "single": pa.array([0.5, None], pa.float32()), "list": pa.array([[], [1]], pa.list_(pa.int64())),
    }  # fmt: skip
    pq.write_table(pa.table({"id": ["a", "b"], "text": [TEXT] * 2, **typed}), tmp_path / "in/a.parquet")
    write_jsonl(tmp_path / "in/b.jsonl", [{"id": "c", "text": TEXT}])
    source = {"path": "in", "id": "id", "lang": "eng_Latn", "keep": list(typed)}
    bring_up_to_date(config(tmp_path, input=[source], chunk_bytes=1 << 26))
    corpus = Corpus(str(tmp_path / "out"))
    assert len(corpus.parts) == 1
    assert [corpus.catalogue[name].type for name in typed] == [values.type for values in typed.values()]


def test_corpora_of_text_alone_stay_as_they_are(tmp_path: Path) -> None:
    """Receipts of earlier versions say nothing of types: their kept columns are text, and so the whole column is."""
    write_jsonl(tmp_path / "in/a.jsonl", documents("a", [{"year": "2010"}]))
    path = config(tmp_path, ["year"])
    recipe = reading_recipe(load_config(path), load_config(path).input[0])
    assert recipe["keep"] == recipe["input"]["keep"] == ["year"] and "keep_types" not in recipe
    bring_up_to_date(path)
    (receipt,) = (tmp_path / "out/receipts/segment").glob("*/*.json")
    value = json.loads(receipt.read_text())
    value["counts"] = {key: one for key, one in value["counts"].items() if not key.startswith("kept.")}
    value.pop("seal", None)
    receipt.write_text(json.dumps(value))
    for ledger in (tmp_path / "out/ledger").rglob("*.parquet"):
        ledger.unlink()
    assert str(Corpus(str(tmp_path / "out")).catalogue["year"].type) == "string"
    write_jsonl(tmp_path / "in/b.jsonl", documents("b", [{"year": 2011}]))
    done = pipeline("run", path)
    assert done.returncode == 0 and json.loads(receipt.read_text()) == value, done
    assert of_documents(tmp_path / "out", "year") == {"a0": ("2010",), "b0": ("2011",)}
    assert pipeline("verify", tmp_path / "out").returncode == 0


def test_a_chunk_that_an_earlier_version_began_is_gone_on_with(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", documents("a", [{"year": 2010}]))
    (chunk,) = plan_chunks(entry(tmp_path))
    families = {"documents": pa.table({"doc": [0], "year": [2010]})}
    as_text = {"documents.doc": column_digest(pa.array([0])), "documents.year": column_digest(pa.array(["2010"]))}
    receipt = Receipt.model_construct(columns=as_text, counts={}, device="cpu")
    segmenting._same(families, receipt, "in.jsonl: part", chunk, "cpu")
    typed = receipt.model_copy(update={"counts": {'kept.["year", "string"]': 1.0}})
    with pytest.raises(CorpusError, match=r"documents\.year"):
        segmenting._same(families, typed, "in.jsonl: part", chunk, "cpu")


def test_a_declared_type_makes_a_column_anew_and_nothing_else(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", documents("a", [{"year": "2010"}, {"year": "n.d."}]))
    bring_up_to_date(config(tmp_path, ["year"]))
    before = Corpus(str(tmp_path / "out"))
    bring_up_to_date(config(tmp_path, {"year": "int32"}))
    after = Corpus(str(tmp_path / "out"))
    assert of_documents(tmp_path / "out", "year") == {"a0": (2010,), "a1": (None,)}
    mine, theirs = (one.state_of(0).receipts["segment"].columns for one in (before, after))
    assert {name for name in mine if mine[name] != theirs[name]} == {"documents.year"}


def test_nested_columns_have_the_same_digest_when_they_are_read_again(tmp_path: Path) -> None:
    """What lies behind a null inside a struct or a list is not the same in memory and in a file."""
    rows = [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]
    lists = pa.array([["x", None], None, []], pa.list_(pa.field("element", pa.string())))
    table = pa.table({"meta": pa.array(rows), "tags": lists})
    pq.write_table(table, tmp_path / "a.parquet")
    again = pq.read_table(tmp_path / "a.parquet")
    for name in table.column_names:
        assert column_digest(again[name]) == column_digest(table[name])
        assert column_digest(table[name].slice(1)) != column_digest(table[name])
        assert column_digest(pa.chunked_array([table[name].chunk(0)[:1], table[name].chunk(0)[1:]])) == column_digest(
            table[name]
        )
    other = pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None])
    assert column_digest(other) != column_digest(table["meta"])
