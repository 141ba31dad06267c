"""Types of kept columns: found in values, declared, and common to parts, whatever their order."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pyarrow as pa
import pytest

from pipeline.inputs.column_types import (
    DECLARED,
    LARGE,
    NOTHING,
    TEXT,
    ColumnType,
    common_type,
    declared_type,
    is_kept_type,
    labels,
    stored_type,
    types_in,
)
from pipeline.inputs.kept_values import as_array, found_type, proves

BIG = 2**53 + 1
EVERY = [
    *map(ColumnType, (*DECLARED, LARGE)),
    NOTHING,
    *(ColumnType.list_of(ColumnType(name)) for name in ("int64", "string", "null", "float64")),
    *(ColumnType.struct_of(fields) for fields in ({}, {"a": ColumnType("int64")}, {"b": TEXT})),
]


def test_common_types_do_not_depend_on_the_order() -> None:
    for some in itertools.combinations_with_replacement(EVERY, 3):
        assert len({common_type(order) for order in itertools.permutations(some)}) == 1, some


def test_a_common_type_holds_the_values_of_both() -> None:
    values: dict[str, list[Any]] = {
        "bool": [True], "int8": [-128], "uint8": [255], "int32": [-(2**31)], "uint32": [2**32 - 1], "int64": [2**53],
        LARGE: [2**63 - 1], "uint64": [2**64 - 1], "float32": [0.5], "float64": [0.1], "string": ["x"],
        "date": [dt.date(2010, 1, 2)], "timestamp_ntz": [dt.datetime(2010, 1, 2, 3)],
        "timestamp": [dt.datetime(2010, 1, 2, 3, tzinfo=dt.UTC)],
    }  # fmt: skip
    for one, other in itertools.product(values, repeat=2):
        kind = common_type([ColumnType(one), ColumnType(other)])
        array, misfits = as_array(values[one], kind, "c")
        assert not misfits and array.null_count == 0, (one, other, kind)
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            assert array.to_pylist() == values[one], (one, other, kind)  # exactly


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([1, None, 2], "int64", [1, None, 2]),
        ([1, 0.5], "float64", [1.0, 0.5]),
        ([BIG, 1], LARGE, [BIG, 1]),
        ([BIG, 0.5], "string", [str(BIG), "0.5"]),  # as a float it would be another number
        ([2**63, 1], "string", [str(2**63), "1"]),
        ([float("inf"), 1], "float64", [float("inf"), 1.0]),
        ([True, False], "bool", [True, False]),
        ([True, 1], "string", ["true", "1"]),
        (["2010-01-01", "1"], "string", ["2010-01-01", "1"]),  # text is never taken for anything else
        (["a", 1, None], "string", ["a", "1", None]),
        ([["a"], [], None], "list<string>", [["a"], [], None]),
        ([["a", None, 1]], "list<string>", [["a", None, "1"]]),
        ([["a"], "a"], "string", ['["a"]', "a"]),
        ([{"a": 1}, {"b": "x"}], {"a": "int64", "b": "string"}, [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ([{"a": {"b": 1}}], "string", ['{"a": {"b": 1}}']),  # deeper than flat
        ([[["a"]]], "string", ['[["a"]]']),
        ([{}], {}, ["{}"]),
        ([{f"key{number}": 1 for number in range(65)}], "string", None),
        ([None], "null", [None]),
    ],
)
def test_types_are_found_in_values(values: list[Any], kind: Any, stored: list[Any] | None) -> None:
    found = found_type(values)
    assert found.as_json() == kind and ColumnType.from_json(kind) == found
    array, misfits = as_array(values, found, "c")
    assert not misfits and is_kept_type(array.type)
    assert stored is None or array.to_pylist() == stored


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        ("int32", ["2010", 2010.0, 7, 2010.5, "n.d.", 2**31, True], [2010, 2010, 7, None, None, None, None]),
        ("uint8", [255, 256, -1], [255, None, None]),
        ("float32", ["0.5", 2, 1e300, BIG, "x"], [0.5, 2.0, None, None, None]),
        ("float64", [2**53, BIG, float("inf")], [2.0**53, None, float("inf")]),
        ("bool", [True, "false", 1], [True, False, None]),
        ("string", [1, True, ["a"], "x"], ["1", "true", '["a"]', "x"]),
        ("date", ["2010-01-31", "2010-13-01", 5], [dt.date(2010, 1, 31), None, None]),
        ("list<string>", [["a", 1], '["b"]', "b"], [["a", "1"], ["b"], None]),
        ("list<int32>", [[1, 2], [1, "x"]], [[1, 2], None]),
        ("list<int32>", ["[" * 100_000], [None]),
        ({"y": "int32"}, [{"y": 1, "z": 2}, {}, {"y": "x"}, 5], [{"y": 1}, {"y": None}, {"y": None}, None]),
    ],
)
def test_declared_types_win_and_what_does_not_fit_is_null_and_told(kind: Any, values: Any, stored: Any) -> None:
    array, misfits = as_array(values, declared_type(kind), "c")
    assert array.to_pylist() == stored
    lost = [one for one, left in zip(values, stored, strict=True) if left is None]
    assert [value for path, value in misfits if path == "c"] == lost
    assert len(misfits) - len(lost) == (kind == {"y": "int32"})  # a field of a struct: ("c.y", "x")


def test_moments() -> None:
    texts = ["2010-01-31", "2010-01-31T10:00:00+02:00", "2010-01-31T10:00:00.1234567Z", "yesterday", 5]
    zoned, misfits = as_array(texts, declared_type("timestamp"), "c")
    assert [one and one.isoformat() for one in zoned.to_pylist()] == [
        "2010-01-31T00:00:00+00:00", "2010-01-31T08:00:00+00:00", None, None, None,
    ]  # fmt: skip
    assert len(misfits) == 3  # a digit too many would be lost
    plain, misfits = as_array(texts, declared_type("timestamp_ntz"), "c")
    assert plain[0].as_py() == dt.datetime(2010, 1, 31) and len(misfits) == 4


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("int", r"the type is 'int'; did you mean int64\? allowed: bool, int8, .*list<T>"),
        ("strng", r"did you mean string\?"),
        ("list<list<string>>", r"what a list holds is 'list<string>'"),
        ({"a": {"b": "string"}}, r"the field a is .*hold one value each; declare string for the whole column"),
        ({}, "a struct needs fields"),
        (5, "the type is 5"),
    ],
)
def test_declarations_that_are_no_type(kind: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        declared_type(kind)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int16(), "int16"), (pa.float16(), "float32"), (pa.large_string(), "string"), (pa.date64(), "date"),
        (pa.dictionary(pa.int8(), pa.string()), "string"), (pa.timestamp("ns", "Europe/Paris"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"), (pa.large_list(pa.int8()), "list<int8>"),
        (pa.struct([("a", pa.bool_())]), {"a": "bool"}), (pa.struct([("a", pa.list_(pa.int8()))]), None),
        (pa.decimal128(5, 2), None), (pa.binary(), None), (pa.map_(pa.string(), pa.int8()), None),
        (pa.time64("us"), None),
    ],
)  # fmt: skip
def test_types_of_parquet(kind: pa.DataType, expected: Any) -> None:
    found = stored_type(kind)
    assert (found and found.as_json()) == expected


def test_counts_of_receipts_say_the_common_type() -> None:
    one = labels({"year": ColumnType("int32"), "we/ird.näme": TEXT})
    two = labels({"year": ColumnType("float64"), "we/ird.näme": NOTHING})
    both = {key: one.get(key, 0) + two.get(key, 0) for key in one | two}
    assert types_in(both, {"year": 2, "we/ird.näme": 2}) == {"year": ColumnType("float64"), "we/ird.näme": TEXT}
    assert types_in(both, {"year": 3})["year"] == TEXT  # a part of a version that kept text alone


@pytest.mark.parametrize(
    ("kind", "values", "proven"),
    [
        ("int64", [None, 7], True),
        ("int64", [None], False),
        ("int64 > 2^53", [1, 2**60], True),
        ("int64 > 2^53", [1, 2], False),
        ("float64", [1.0, 0.5], True),
        ("float64", [1.0, None], False),
        ("bool", [False], True),
        ("null", [None], True),
        ("string", ["7", "seven"], True),
        ("string", ["7", "true", "[1]", '{"a": 1}', "2010-01-01 00:00:00", "NaN", ""], False),
        ("list<int64>", [[], [1]], True),
        ("list<int64>", [[]], False),
        ("list<null>", [[]], True),
        ("list<null>", [None], False),
        ({"a": "int64", "b": "string"}, [{"a": 1, "b": None}, {"a": None, "b": "two"}], True),
        ({"a": "int64", "b": "null"}, [{"a": 1, "b": None}], False),
        ("int32", [1], False),
    ],
)
def test_values_prove_the_type_that_was_found_in_them(kind: Any, values: list[Any], proven: bool) -> None:
    assert proves(ColumnType.from_json(kind), values) == proven


EAST = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1, 2.5], ["1", "2.5"]),
        ([BIG - 1, 0.5, 1], [str(BIG - 1), "0.5", "1"]),
        ([{"a": 1}, {"b": 2}], ['{"a": 1}', '{"b": 2}']),
        ([{"b": 1, "a": 2}, {"a": 3, "b": 1}], ['{"a": 2, "b": 1}', '{"a": 3, "b": 1}']),
        ([{}, {"a": 1}], ["{}", '{"a": 1}']),
        ([{"a": 1}, {"a": 2.5}], ['{"a": 1}', '{"a": 2.5}']),
        ([[1], [2.5]], ["[1]", "[2.5]"]),
        ([dt.datetime(2024, 1, 2, 3, tzinfo=EAST)], ["2024-01-02 01:00:00+00:00"]),
        ([1e300, float("inf"), -0.5], ["1e+300", "Infinity", "-0.5"]),
        ([True, False], ["true", "false"]),
    ],
)
def test_text_of_values_does_not_depend_on_the_part_that_they_are_in(values: list[Any], texts: list[str]) -> None:
    """A part that also holds a text has all as text; another one converts them first, and readers make text of it."""
    together, _ = as_array([*values, "x"], found_type([*values, "x"]), "k")
    first, _ = as_array(values, found_type(values), "k")
    apart, _ = as_array(first.to_pylist(), TEXT, "k")
    assert apart.to_pylist() == texts and together.to_pylist() == [*texts, "x"]


def test_values_that_are_nested_too_deeply_for_one_form_are_kept() -> None:
    value: Any = 1.0
    for _ in range(600):
        value = [value]
    assert as_array([value], TEXT, "k")[0].to_pylist()[0].startswith("[[[")
