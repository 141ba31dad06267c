"""Columns whose values have several types are told before work starts, with the types that could be declared."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.planning.checks import load_checked
from tests.conftest import MakeConfig, write_jsonl
from tests.support.cli import pipeline, said


@pytest.mark.parametrize("apart", ["values", "files", "inputs"])
def test_a_column_of_numbers_and_texts_is_told_before_work_starts(
    make_config: MakeConfig, tmp_path: Path, apart: str
) -> None:
    """Such a column becomes text, of which a person who looked at one file knows nothing."""
    record = {"lang": "eng_Latn", "text": "A sentence."}
    rows = [record | {"id": str(at), "year": year, "n": at} for at, year in enumerate((2010, None, "about 1990"))]
    names = (
        ("in/a.jsonl",) if apart == "values" else ("in/a.jsonl", "more/b.jsonl" if apart == "inputs" else "in/b.jsonl")
    )
    for at, name in enumerate(names):
        write_jsonl(tmp_path / name, rows if apart == "values" else rows[2 * at : 2 * at + 2])
    paths = ["in/*.jsonl", *(["more/*.jsonl"] if apart == "inputs" else [])]

    def entries(keep: Any) -> list[dict[str, Any]]:
        return [{"path": path, "id": "id", "lang": {"column": "lang"}, "keep": keep} for path in paths]

    path = make_config(input=entries(["year", "n"]), encode=None, autobleu=None)
    for command in ("plan", "run"):
        done = pipeline(command, path)
        assert done.returncode == 0
        assert "Warning: " in done.stderr and "corpus.yaml:" in done.stderr and "n is " not in done.stderr
        assert "year is int64 in" in done.stderr and "(2010) and string in" in done.stderr, done.stderr
        assert "'about 1990'" in done.stderr and "keep: {year: int64}" in done.stderr
    declared = pipeline("plan", make_config(input=entries({"year": "string"}), encode=None, autobleu=None))
    assert declared.returncode == 0 and "Warning" not in declared.stderr, said(declared)


@pytest.mark.parametrize(
    ("numbers", "ways"),
    [
        ((5, 2**63), "keep: {n: uint64}, where values that do not fit become null and are counted, or {n: string}"),
        ((-5, 2**63), "declare what is meant: keep: {n: string}"),
        ((5, 2**64), "declare what is meant: keep: {n: string}"),
    ],
)
def test_no_type_is_proposed_that_cannot_hold_the_numbers(
    make_config: MakeConfig, tmp_path: Path, numbers: tuple[int, int], ways: str
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": "A sentence.", "n": n} for n in numbers])
    source = {"path": "in/a.jsonl", "lang": "eng_Latn", "keep": ["n"]}
    (told,) = load_checked(make_config(input=[source])).notices
    assert f"n is int64 in a.jsonl ({numbers[0]}) and beyond int64 in a.jsonl ({numbers[1]})" in told
    assert told.endswith(ways) and "int64}, " not in told.replace("uint64", "")


def test_nested_columns_of_parquet_are_text_whatever_some_values_lack(make_config: MakeConfig, tmp_path: Path) -> None:
    deep = pa.struct([("a", pa.struct([("b", pa.int64())])), ("c", pa.int64())])
    columns = {
        "text": pa.array(["A sentence."] * 3),
        "structs": pa.array([[], [{"a": 1}], None]),
        "lists": pa.array([[], [["x"]], [None]]),
        "pairs": pa.array([[], [("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([{"a": None, "c": 1}, {"a": {"b": 1}, "c": None}, None], deep),
    }
    (tmp_path / "in").mkdir()
    source = {"path": "in", "lang": "eng_Latn", "keep": [*[*columns][1:], "empty"]}
    for name, empty in (("in/a.parquet", pa.array([[], [], None])), ("in/b.parquet", pa.array([["x"], [], None]))):
        pq.write_table(pa.table(columns | {"empty": empty}), tmp_path / name)
    assert load_checked(make_config(input=[source])).notices == ()
    write_jsonl(tmp_path / "in/c.jsonl", [{"text": "A sentence.", "structs": ["x"]}])
    (told,) = load_checked(make_config(input=[source])).notices
    assert "structs is list<string> in c.jsonl (['x']) and string in a.parquet ([{'a': 1}])" in told


@pytest.mark.parametrize("numbers", permutations((1, 2**53 + 1, 1.5)))
@pytest.mark.parametrize("apart", [False, True])
def test_kinds_of_numbers_that_only_together_become_text(
    make_config: MakeConfig, tmp_path: Path, numbers: tuple[float, ...], apart: bool
) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"text": "A sentence.", "n": n} for n in numbers]
    for at, row in enumerate(rows):
        if apart and isinstance(row["n"], float):
            pq.write_table(pa.table({name: [value] for name, value in row.items()}), tmp_path / f"in/{at}.parquet")
        else:
            write_jsonl(tmp_path / f"in/{at}.jsonl", [row])
    source = {"path": "in", "lang": "eng_Latn", "keep": ["n"]}
    (told,) = load_checked(make_config(input=[source])).notices
    assert f"({2**53 + 1})" in told and "(1.5)" in told and "so all of n is kept as text" in told


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            [{"a": 1, "b": "x"}, {"a": 1.5}, {"a": 2**53 + 1}],
            f"keep: k.a is float64 in a.jsonl (1.5) and int64 in a.jsonl ({2**53 + 1}), so all of k.a is kept as text, "
            "and conditions compare it as text; declare what is meant: keep: {k: {a: float64, b: string}}, where "
            "values that do not fit become null and are counted, or {k: {a: string, b: string}}",
        ),
        (
            [{"a": 1}, {"a": 2**64}],
            f"k.a is int64 in a.jsonl (1) and beyond int64 in a.jsonl ({2**64}), so all of k.a is kept as text, and "
            "conditions compare it as text; declare what is meant: keep: {k: {a: string}}",
        ),
        (
            [[1, None], [], None, ["x"]],
            "what k holds is int64 in a.jsonl ([1, None]) and string in a.jsonl (['x']), so all of what k holds is "
            "kept as text, and conditions compare it as text; declare what is meant: keep: {k: list<int64>}, where "
            "values that do not fit become null and are counted, or {k: list<string>}",
        ),
        ([{"a": 1}, {"b": "x"}, {"a": None}, {}], None),
        ([{"a": 1}, {"a": 1.5, "b": 2}], None),
    ],
)
def test_fields_and_elements_that_become_text_are_told(
    make_config: MakeConfig, tmp_path: Path, values: list[Any], told: str | None
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": "A sentence.", "k": value} for value in values])
    source = {"path": "in/a.jsonl", "lang": "eng_Latn", "keep": ["k"]}
    notices = load_checked(make_config(input=[source])).notices
    assert len(notices) == (told is not None) and all(str(told) in one for one in notices), notices
