"""Conditions: the rows that three-valued logic in plain Python keeps, whatever the condition; errors show the place."""

from __future__ import annotations

import functools
import math
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.conditions.expression import MAX_DEPTH, MAX_TESTS, ExpressionError, parse

TYPES = {
    "chars": pa.int32(),
    "status": pa.uint8(),
    "text_hash": pa.uint64(),
    "autobleu": pa.float32(),
    "lang": pa.string(),
    "page-title": pa.string(),
    "embedding": pa.list_(pa.float16(), 2),
}
VALUES = [
    (1, 0.0, "deu_Latn", None), (2, 33.5, "fra_Latn", "a b"), (3, None, "deu_Latn", "x"), (50, 99.5, "zho_Hans", "Ünï"),
    (7, None, "eng_Latn", ""), (199, 20.0, "deu_Latn", 'say "a"'), (20, 19.5, "rus_Cyrl", None),
]  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"chars": n, "status": n % 3, "text_hash": 2**64 - n, "autobleu": score, "lang": lang, "page-title": title}
    for n, score, lang, title in VALUES
]
TABLE = pa.Table.from_pylist(
    [row | {"row": number} for number, row in enumerate(ROWS)],
    schema=pa.schema([*((name, kind) for name, kind in TYPES.items() if name != "embedding"), ("row", pa.int64())]),
)

Test = tuple[str, Callable[[dict[str, Any]], bool | None]]  # a condition and what it says of a row


def rows(text: str) -> list[int]:
    kept: list[int] = TABLE.filter(parse(text, TYPES).expression)["row"].to_pylist()
    return kept


def of(column: str, say: Callable[[Any], bool]) -> Callable[[dict[str, Any]], bool | None]:
    return lambda row: None if row[column] is None else say(row[column])


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<>": lambda a, b: a != b,
}  # fmt: skip
NUMBERS: dict[str, list[float]] = {
    "chars": [1, 2, 2.0, 50, -4, 200],
    "status": [0, 1, 2],
    "autobleu": [0, 19.5, 20, 33.5, 100, -1.5e1],
}
LANGS = ["deu_Latn", "fra_Latn", "xxx"]


@st.composite
def simple(draw: st.DrawFn) -> Test:
    kind = draw(st.sampled_from(["number", "mirrored", "text", "in", "null", "function"]))
    if kind in ("number", "mirrored"):
        column = draw(st.sampled_from(sorted(NUMBERS)))
        value, sign = draw(st.sampled_from(NUMBERS[column])), draw(st.sampled_from(sorted(COMPARE)))
        if kind == "number":
            return f"{column} {sign} {value}", of(column, lambda found: COMPARE[sign](found, value))
        return f"{value} {sign} {column}", of(column, lambda found: COMPARE[sign](value, found))
    column = draw(st.sampled_from(["lang", "page-title"]))
    written = f"`{column}`" if column == "page-title" else column
    if kind == "null":
        negated = draw(st.booleans())
        return f"{written} is {'not ' * negated}null", lambda row: (row[column] is None) != negated
    if kind == "in":
        values, negated = draw(st.lists(st.sampled_from([*LANGS, "x", ""]), min_size=1)), draw(st.booleans())
        text = f"{written} {'not ' * negated}in {values}"
        return text, of(column, lambda found: (found in values) != negated)
    word = draw(st.sampled_from(["deu", "Latn", "a", "Ü", "", "Hans"]))
    if kind == "text":
        return f"{written} == '{word}'", of(column, lambda found: found == word)
    name = draw(st.sampled_from(["contains", "startswith", "endswith", "matches"]))
    say = {
        "contains": lambda found: word in found,
        "startswith": lambda found: found.startswith(word),
        "endswith": lambda found: found.endswith(word),
        "matches": lambda found: re.search(word, found) is not None,
    }[name]
    return f'{name}({written}, "{word}")', of(column, say)


def negation(one: Test) -> Test:
    text, say = one
    return f"not ({text})", lambda row: None if say(row) is None else not say(row)


def joined(one: tuple[str, list[Test]]) -> Test:
    word, parts = one

    def say(row: dict[str, Any]) -> bool | None:
        said = [part(row) for _, part in parts]
        decisive = word == "or"
        return decisive if decisive in said else None if None in said else not decisive

    return "(" + f" {word} ".join(text for text, _ in parts) + ")", say


def larger(inner: st.SearchStrategy[Test]) -> st.SearchStrategy[Test]:
    several = st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3))
    return st.one_of(inner.map(negation), several.map(joined))


@settings(max_examples=150, deadline=None)
@given(st.recursive(simple(), larger, max_leaves=6))
def test_keeps_the_rows_that_three_valued_logic_keeps(condition: Test) -> None:
    text, say = condition
    assert rows(text) == [number for number, row in enumerate(ROWS) if say(row)], text
    kept = TABLE
    for clause in parse(text, TYPES).clauses:
        kept = kept.filter(clause.expression)
    assert kept["row"].to_pylist() == rows(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chars > 2.5 and chars < 20.5", [2, 4, 6]),  # fractions against whole numbers
        ("20 <= autobleu < 99.5", [1, 5]),
        ("status == 1 OR chars == 2 AND lang == 'xxx'", [0, 4, 5]),  # `and` binds closer; keywords in any case
        ("not chars == 1 and not chars == 2", [2, 3, 4, 5, 6]),
        (f"text_hash == {2**64 - 7}", [4]),  # beyond 64 bits with a sign
        ("chars == status", [0, 1]),
        ('`page-title` == \'say "a"\' or `page-title` == "Ünï"', [3, 5]),
        (r"matches(lang, '^\w{3}_H')", [3]),
        ("chars > 1_0 and chars < 2e1", []),
        ("autobleu == 19.5", [6]),
    ],
)
def test_keeps(text: str, expected: list[int]) -> None:
    assert rows(text) == expected


def test_numbers_are_compared_in_the_precision_of_the_column() -> None:
    table = pa.table({"autobleu": pa.array([33.3], pa.float32())})
    assert table.filter(parse("autobleu == 33.3", TYPES).expression).num_rows == 1
    assert table.filter(parse("autobleu > 33.3", TYPES).expression).num_rows == 0


def test_whole_numbers_are_compared_with_floats_however_large_they_are() -> None:
    large = {"whole": pa.int64(), "double": pa.float64(), "single": pa.float32()}
    columns = [[2**53 + 1, 20_000_001, 3, -(2**62), None], [1e300, 2e7, 3.0, -1e18, 1.0], [3.4e38, 2e7, 2.5, 0.0, 1.0]]
    table = pa.table([pa.array(one, kind) for one, kind in zip(columns, large.values(), strict=True)], list(large))

    def kept(text: str) -> object:
        return table.filter(parse(text, large).expression)["whole"].to_pylist()

    assert kept("whole > double") == [20_000_001]
    assert kept("whole == double") == [3]
    assert kept("single < whole") == [20_000_001, 3]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_lists_of_numbers_take_zeros_and_nan_as_comparisons_do(kind: pa.DataType) -> None:
    table = pa.table({"f": pa.array([0.0, -0.0, 1.0, None, math.nan], kind), "row": range(5)})

    def kept(text: str) -> object:
        return table.filter(parse(text, {"f": kind}).expression)["row"].to_pylist()

    for zero in ("0", "-0", "0.0", "-0.0"):
        assert kept(f"f in [{zero}]") == kept(f"f == {zero}") == [0, 1]
        assert kept(f"f not in [{zero}]") == kept(f"not f in [{zero}]") == kept(f"f != {zero}") == [2, 4]
    assert kept("f in [1, 0]") == kept("f <= 1") == [0, 1, 2]
    assert kept("f not in [1, 2]") == [0, 1, 4]


def test_rows_with_null_are_kept_or_left_out_by_all_columns_that_may_have_it() -> None:
    types = {"a b": pa.int64(), "price": pa.float64(), "chars": pa.int32(), "in": pa.int64()}
    nullable = ["a b", "price", "in"]
    clause = parse("`a b` > price or chars > 3", types).clauses[0]
    keep, leave_out = clause.with_nulls(nullable)
    assert keep == "(`a b` is null or price is null or (`a b` > price or chars > 3))"
    assert leave_out == "`a b` is not null and price is not null and (`a b` > price or chars > 3)"
    lines = parse("`in` > price or\nchars > 3", types).clauses[0].with_nulls(nullable)
    assert lines[1] == "`in` is not null and price is not null and (`in` > price or\nchars > 3)"
    assert not any(parse(one, types).undecided(nullable) for one in (keep, leave_out, *lines))


def test_clauses_columns_and_what_null_means() -> None:
    condition = parse("autobleu >= 30 and (chars > 3 and lang == 'deu_Latn')", TYPES)
    assert [clause.text for clause in condition.clauses] == ["autobleu >= 30", "chars > 3", "lang == 'deu_Latn'"]
    assert condition.columns == ("autobleu", "chars", "lang")
    assert condition.undecided(["autobleu", "page-title"]) == ("autobleu",)
    for text in ("autobleu is null or autobleu >= 30", "autobleu >= 30 and autobleu is not null"):
        assert not parse(text, TYPES).undecided(["autobleu"])
    one_side = "(chars > 3 or autobleu is null) and autobleu >= 30"
    assert parse(one_side, TYPES).undecided(["autobleu"]) == ("autobleu",)


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        ("autoblu < 20", "did you mean autobleu?", "autoblu"),
        ("lang == deu_Latn", "text stands in quotes", "deu_Latn"),
        ("fragility < 1", "its stage has not run", "fragility"),
        ("chars == 'a'", "chars holds whole numbers (int32); this is a text", "'a'"),
        ("lang < 5", "lang holds text; this is a number", "5"),
        ("chars == 2.5", "never equals 2.5", "2.5"),
        ("status > 300", "lies between 0 and 255", "300"),
        ("chars < 1e400", "lies between", "1e400"),
        ("embedding == 1", "not one value per row", "embedding"),
        ("chars == lang", "chars holds whole numbers (int32), but lang holds text", "lang"),
        ("text_hash > chars", "uint64", "chars"),
        ("chars > 1 chars", "expected `and`, `or` or the end", "chars"),
        ("(chars > 1", "to close the parenthesis", ""),
        ("chars >", "expected a column, a number or a text", ""),
        ("chars", "expected a comparison", ""),
        ("chars is 3", "expected `null`", "3"),
        ("autobleu == null", "is not null", "null"),
        ("3 < 4", "compares two constants", "3 < 4"),
        ("lang in 'a'", "expected a list", "'a'"),
        ("lang in ['a'", "or a comma", ""),
        ("lang in []", "expected a column, a number or a text", "]"),
        ("matches(lang, '(')", "RE2", "'('"),
        ("startswith(chars, 'a')", "startswith is for text", "chars"),
        ("__import__('os')", "allowed: contains, startswith", "__import__"),
        ("lang == 'a", "' is not closed", "'"),
        ("chars > 1; chars", "means nothing here", ";"),
        ("", "write for instance", ""),
        ("(" * 200 + "chars > 1" + ")" * 200, "write it with fewer", "("),
        (" or ".join(["chars > 1"] * 201), "more than 200 tests", "chars"),
        ("chars > 1 \0", "the character U+0000 means nothing here", ""),
    ],
)
def test_errors_show_the_place(text: str, words: str, place: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, TYPES, origin="select", absent={"fragility": "its stage has not run"})
    first, line, carets = str(caught.value).split("\n")[:3]
    assert first.startswith("select: ") and words in first
    assert line[carets.index("^") : carets.rindex("^") + 1].strip() == place


def test_errors_of_long_and_of_odd_text_stay_readable() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("chars > 1 and\nlang == 'ж日本' and chars > x\x1b[31m", TYPES)
    lines = str(caught.value).splitlines()
    assert "\x1b" not in str(caught.value) and lines[1] == "  lang == 'ж日本' and chars > x [31m"
    assert lines[2].index("^") == 2 + len("lang == 'ж日本' and chars > x") + 2  # 日本 takes four columns
    with pytest.raises(ExpressionError) as caught:
        parse("`\x1b]0;title\x07\n` == 1", TYPES)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4 and all(line.isprintable() for line in lines) and r"column \x1b]0;title\x07\n;" in lines[0]


@pytest.mark.parametrize("before", [0, 1, 150])
@pytest.mark.parametrize("after", [0, 1, 150])
def test_of_a_long_line_the_mistake_and_its_surroundings_are_shown(before: int, after: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("chars > 1 and " * before + "autoblu > 2" + " and chars > 1" * after, TYPES)
    _, line, carets, *_ = str(caught.value).splitlines()
    assert line[carets.index("^") : carets.rindex("^") + 1] == "autoblu" and len(line) < 80
    assert line.startswith("  …") == (before == 150) and line.endswith("…") == (after == 150)


@pytest.mark.parametrize("join", [" or ", " and ", " or not "])
def test_the_longest_conditions_are_evaluated_on_the_smallest_stacks(join: str) -> None:
    tests = [f"chars not in [{n}, -1]" for n in range(MAX_TESTS)]
    nested = "not (" * (MAX_DEPTH // 2 - 1) + join.join(tests) + ")" * (MAX_DEPTH // 2 - 1)
    program = (
        "import pyarrow as pa; from pipeline.conditions.expression import parse\n"
        "table = pa.table({'chars': range(300)})\n"
        f"print(table.filter(parse({nested!r}, {{'chars': pa.int64()}}).expression).num_rows)"
    )
    small = (512 << 10, 512 << 10)  # bytes: what macOS gives to threads
    limited = functools.partial(resource.setrlimit, resource.RLIMIT_STACK, small)
    done = subprocess.run([sys.executable, "-c", program], preexec_fn=limited, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().isdigit(), done
