"""Conditions on columns, as text: `autobleu < 20 and lang == 'deu_Latn'` → a `pyarrow.compute` expression.

Only this grammar is understood; nothing else is evaluated:

    condition   = condition "and" condition | condition "or" condition | "not" condition | "(" condition ")" | test
    test        = value operator value …          operator: < <= > >= == != (= and <> too); chains: 20 <= autobleu < 40
                | column ["not"] "in" [value, …]
                | value ["not"] "in" column       of a column of lists
                | column "is" ["not"] "null"
                | column                          of true and false
                | function(column, "text")        function: contains, startswith, endswith, matches (RE2)
    value       = column | number | "text" | 'text' | true | false
    column      = name | name.field               of a struct

A column whose name is no plain word stands in backquotes: `page-title`. Columns of days and moments are compared with
texts, '2010-01-31' or '2010-01-31T10:00:00+02:00'; without a zone, that is UTC. Null satisfies no test but `is null`;
`not`, `and`, `or` take it as unknown, as SQL does: neither `autobleu < 20` nor `not autobleu < 20` keeps a row that was
not scored. Numbers are compared in the column's own precision; a column of whole numbers with one of float32 or float64
as float64, as in SQL. Parsing takes microseconds.
"""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.conditions.condition import Clause, Condition, Membership
from pipeline.conditions.tokens import ConditionTokens, ExpressionError, Token

__all__ = ["ExpressionError", "parse"]

MAX_DEPTH = 100  # of parentheses and `not`s: far more than anyone writes, far less than Python's stack
MAX_TESTS = 200  # Arrow walks expressions recursively: on a stack of 512 kB, 500 tests passed and 1000 crashed
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_TWO_CONSTANTS = "this compares two constants; name a column (one with blanks or signs in its name: `my column`)"
_SPELLED = {"=": "==", "<>": "!="} | {sign: sign for sign in _COMPARE}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_FUNCTIONS: dict[str, Callable[[Any, str], Any]] = {
    "contains": pc.match_substring,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "matches": pc.match_substring_regex,
}


def parse(
    text: str,
    columns: Mapping[str, pa.DataType],
    origin: str = "--where",
    absent: Mapping[str, str] | None = None,
    kept: Collection[str] = (),
) -> Condition:
    """Parse a condition on the given columns.

    Args:
        text: the condition, such as `autobleu >= 90 and lang = 'eng_Latn'`.
        columns: name → type of the columns that a condition may name.
        origin: the option or setting that holds the text, for messages.
        absent: columns that do not exist yet → what makes them, for messages.
        kept: columns of inputs, whose types can be declared, for messages.

    Returns:
        The condition and its clauses: the parts that are joined by `and`.

    Raises:
        ExpressionError: for a syntax error, an unknown column, or a test that does not fit the column's type.
    """
    node = _Parser(ConditionTokens(text, origin), columns, absent or {}, kept).whole()
    clauses = tuple(
        Clause(text[one.start : one.end], one.columns, one.null_columns, one.expression, one.memberships)
        for one in node.conjuncts or (node,)
    )
    return Condition(text, clauses, node.expression)


@dataclass(frozen=True)
class _Node:
    expression: pc.Expression
    start: int
    end: int
    columns: tuple[str, ...]
    null_columns: frozenset[str] = frozenset()
    conjuncts: tuple[_Node, ...] = ()  # sides of an outermost `and`
    memberships: tuple[Membership, ...] = ()


@dataclass(frozen=True)
class _Place:
    """What a name stands for: a column, or a field of one that is a struct."""

    path: tuple[str, ...]
    type: pa.DataType

    @property
    def field(self) -> pc.Expression:
        return pc.field(*self.path)


def _places(columns: Mapping[str, pa.DataType]) -> dict[str, _Place]:
    structs = {name: kind for name, kind in columns.items() if pa.types.is_struct(kind)}
    fields = [(name, one) for name, kind in structs.items() for one in kind]
    of_structs = {f"{name}.{one.name}": _Place((name, one.name), one.type) for name, one in fields}
    return of_structs | {name: _Place((name,), kind) for name, kind in columns.items()}


class _Parser:
    """Recursive descent: each method consumes the tokens of one rule of the grammar."""

    def __init__(
        self,
        tokens: ConditionTokens,
        columns: Mapping[str, pa.DataType],
        absent: Mapping[str, str],
        kept: Collection[str],
    ) -> None:
        self._tokens, self._columns, self._absent, self._kept = tokens, _places(columns), absent, kept
        self._fail = tokens.fail
        self._depth = self._tests = 0

    def whole(self) -> _Node:
        if self._tokens.peek().kind == "end":
            self._fail(self._tokens.peek(), "the condition is empty; write for instance: autobleu < 20")
        node = self._or()
        if self._tokens.peek().kind != "end":
            self._fail(self._tokens.peek(), "expected `and`, `or` or the end here")
        return node

    def _or(self) -> _Node:
        nodes = [self._and()]
        while self._tokens.took("keyword", "or"):
            nodes.append(self._and())
        return nodes[0] if len(nodes) == 1 else _joined(nodes, operator.or_)

    def _and(self) -> _Node:
        nodes = [self._not()]
        while self._tokens.took("keyword", "and"):
            nodes.append(self._not())
        if len(nodes) == 1:
            return nodes[0]
        conjuncts = tuple(part for node in nodes for part in node.conjuncts or (node,))
        return replace(_joined(nodes, operator.and_), conjuncts=conjuncts)

    def _not(self) -> _Node:
        token = self._tokens.peek()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(token, f"more than {MAX_DEPTH} parentheses and `not`s inside each other; write it with fewer")
        if self._tokens.took("keyword", "not"):
            inner = self._not()
            node = replace(inner, expression=~inner.expression, start=token.start, conjuncts=())
        elif self._tokens.took("sign", "("):
            inner = self._or()
            end = self._tokens.need(")", "to close the parenthesis").end
            node = replace(inner, start=token.start, end=end)
        else:
            node = self._test()
        self._depth -= 1
        return node

    def _test(self) -> _Node:
        left = self._value()
        token = self._tokens.peek()
        if token.kind == "sign" and token.value in _SPELLED:
            return self._chain(left)
        if left.kind == "name" and token.kind == "sign" and token.value == "(":
            return self._function(left)
        if left.kind == "name":
            if self._tokens.took("keyword", "is"):
                return self._null(left)
            kind = self._column(left)  # an unknown column is the better complaint
            if pa.types.is_boolean(kind) and not (token.kind == "keyword" and token.value in ("not", "in")):
                return self._node(left, self._columns[left.value].field, left.start, left.end)
            negated = self._tokens.took("keyword", "not")
            if self._tokens.took("keyword", "in"):
                return self._in(left, kind, negated)
        elif token.kind == "keyword" and token.value in ("not", "in"):
            negated = self._tokens.took("keyword", "not")
            if self._tokens.took("keyword", "in"):
                return self._membership(left, negated)
        return self._fail(self._tokens.peek(), "expected a comparison here: < <= > >= == != in, is null")

    def _value(self) -> Token:
        token = self._tokens.take()
        if token.kind in ("name", "number", "text", "boolean"):
            return token
        if token.kind == "keyword" and token.value == "null":
            self._fail(token, "nothing can be compared with null; write: column is null, or: column is not null")
        return self._fail(token, "expected a column, a number or a text in quotes here")

    def _chain(self, left: Token) -> _Node:
        nodes = []
        while self._tokens.peek().kind == "sign" and self._tokens.peek().value in _SPELLED:
            sign = _SPELLED[self._tokens.take().value]
            right = self._value()
            nodes.append(self._compare(left, sign, right))
            left = right
        return nodes[0] if len(nodes) == 1 else _joined(nodes, operator.and_)

    def _compare(self, left: Token, sign: str, right: Token) -> _Node:
        if left.kind != "name" and right.kind != "name":
            self._fail(Token("sign", "", left.start, right.end), _TWO_CONSTANTS)
        if left.kind != "name":
            return replace(self._compare(right, _MIRRORED[sign], left), start=left.start, end=right.end)
        kind = self._column(left)
        if right.kind != "name":
            sign, value = self._constant(left, kind, sign, right)
            expression = _COMPARE[sign](self._columns[left.value].field, pc.scalar(value))
            return self._node(left, expression, left.start, right.end)
        other = self._column(right)
        exact = pa.uint64() in (kind, other) or _class(kind) == "time"
        if _class(kind) != _class(other) or (kind != other and exact):
            self._fail(right, f"{left.value} holds {_holds(kind)}, but {right.value} holds {_holds(other)}")
        self._check_order(right, kind, sign)
        first, second = self._columns[left.value], self._columns[right.value]
        columns = tuple(dict.fromkeys((first.path[0], second.path[0])))
        sides = [first.field, second.field]
        if pa.types.is_floating(kind) != pa.types.is_floating(other):  # Arrow fails at whole numbers beyond a float's
            sides = [side.cast(pa.float64(), safe=False) for side in sides]
        return _Node(_COMPARE[sign](*sides), left.start, right.end, columns)

    def _check_order(self, token: Token, kind: pa.DataType, sign: str) -> None:
        if pa.types.is_boolean(kind) and sign not in ("==", "!="):
            self._fail(token, f"true and false have no order for {sign}; write == or !=")

    def _node(self, column: Token, expression: pc.Expression, start: int, end: int) -> _Node:
        """Return a test of one column."""
        return _Node(expression, start, end, (self._columns[column.value].path[0],))

    def _membership(self, value: Token, negated: bool) -> _Node:
        """Parse `value in column`."""
        column = self._tokens.take()
        if column.kind != "name":
            self._fail(column, "expected a column of lists here: 'poetry' in tags; or a column before the list")
        place = self._known(column)
        if not pa.types.is_list(place.type):
            what = f"{column.value} holds {_holds(place.type)}, not lists"
            self._fail(column, f"{what}; to look for a piece of text: contains({column.value}, '…')")
        _, constant = self._constant(column, place.type.value_type, "==", value)
        name = f"{value.value!r} in {'.'.join(place.path)}\0"
        field = pc.field(name)
        node = self._node(column, ~field if negated else field, value.start, column.end)
        return replace(node, memberships=(Membership(name, place.path, constant),))

    def _in(self, column: Token, kind: pa.DataType, negated: bool) -> _Node:
        opening = self._tokens.take()
        closing = {"[": "]", "(": ")"}.get(opening.value if opening.kind == "sign" else "")
        if not closing:
            self._fail(opening, "expected a list here, such as ['deu_Latn', 'fra_Latn']")
        values: list[Any] = []
        while not values or self._tokens.took("sign", ","):
            token = self._value()
            if token.kind == "name":
                self._fail(token, "a list holds numbers, or texts in quotes")
            values.append(self._constant(column, kind, "==", token)[1].as_py())
        if pa.types.is_floating(kind) and 0.0 in values:
            values += [0.0, -0.0]  # Arrow's is_in tells them apart, == does not
        end = self._tokens.need(closing, "or a comma and one more value").end
        field = self._columns[column.value].field
        inside = field.isin(pa.array(values, type=kind))
        # Arrow's is_in is false for null, which `not` would turn into true
        expression = pc.if_else(
            field.is_valid(), ~inside if negated else inside, pc.scalar(pa.scalar(None, pa.bool_()))
        )
        return self._node(column, expression, column.start, end)

    def _null(self, column: Token) -> _Node:
        place = self._known(column)
        if not (pa.types.is_list(place.type) or pa.types.is_struct(place.type)):
            self._column(column)
        negated = self._tokens.took("keyword", "not")
        token = self._tokens.take()
        if token.kind != "keyword" or token.value != "null":
            self._fail(token, "expected `null` or `not null` after `is`")
        expression = place.field.is_valid() if negated else place.field.is_null()
        node = self._node(column, expression, column.start, token.end)
        return replace(node, null_columns=frozenset(node.columns))

    def _function(self, name: Token) -> _Node:
        function = _FUNCTIONS.get(name.value)
        if not function:
            self._fail(name, f"there is no function {name.value}; allowed: {', '.join(_FUNCTIONS)}")
        self._tokens.need("(", "after the function's name")
        column = self._tokens.take()
        if column.kind != "name":
            self._fail(column, f"expected a column here: {name.value}(text, '…')")
        kind = self._column(column)
        if _class(kind) != "text":
            self._fail(column, f"{name.value} is for text; {column.value} holds {_holds(kind)}")
        self._tokens.need(",", f"and a text: {name.value}({column.value}, '…')")
        pattern = self._tokens.take()
        if pattern.kind != "text":
            self._fail(pattern, "expected a text in quotes here")
        end = self._tokens.need(")", f"to end {name.value}").end
        try:
            function(pa.array([""]), pattern.value)
        except pa.ArrowInvalid as error:
            self._fail(pattern, f"not a regular expression that RE2 understands: {error}")
        expression = function(self._columns[column.value].field, pattern.value)
        return self._node(column, expression, name.start, end)

    def _known(self, token: Token) -> _Place:
        """Return what a name stands for."""
        self._tests += 1
        if self._tests > MAX_TESTS:
            self._fail(token, f"more than {MAX_TESTS} tests; a list does it in one: column in [1, 2, 3]")
        place = self._columns.get(token.value)
        if place is None:
            near = difflib.get_close_matches(token.value, self._columns, n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else "text stands in quotes"
            if token.value in self._absent:
                hint = self._absent[token.value]
            columns = [name for name, one in self._columns.items() if len(one.path) == 1]
            self._fail(token, f"there is no column {token.value}; {hint}", f"columns: {', '.join(columns)}")
        return place

    def _column(self, token: Token) -> pa.DataType:
        """Return the type of a column that can be compared."""
        kind = self._known(token).type
        if _class(kind) is None:
            usable = [name for name, one in self._columns.items() if _class(one.type)]
            hint = f"; test what it holds: 'x' in {token.value}" if pa.types.is_list(kind) else ""
            what = f"{token.value} holds {_holds(kind)}, not one value per row{hint}"
            self._fail(token, what, f"columns: {', '.join(usable)}")
        return kind

    def _constant(self, column: Token, kind: pa.DataType, sign: str, token: Token) -> tuple[str, pa.Scalar]:
        """Convert the constant to the column's own type; against whole numbers, a fraction becomes the whole number
        below.
        """
        value = token.value
        if _class(kind) == "time" and token.kind == "text":
            return sign, self._moment(column, kind, token)
        if _class(kind) != token.kind:
            self._fail(
                token, f"{column.value} holds {_holds(kind)}; this is a {token.kind}", self._other_type(column, token)
            )
        self._check_order(token, kind, sign)
        if not pa.types.is_integer(kind):
            return sign, pa.scalar(float(value) if token.kind == "number" else value, kind)
        if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
            if sign in ("==", "!="):
                self._fail(token, f"{column.value} holds whole numbers and never equals {value}")
            sign, value = ("<=" if sign[0] == "<" else ">"), math.floor(value)
        try:
            return sign, pa.scalar(int(value), kind)
        except (pa.ArrowInvalid, OverflowError):
            limits = np.iinfo(kind.to_pandas_dtype())
            self._fail(token, f"{column.value} lies between {limits.min} and {limits.max}")

    def _other_type(self, column: Token, token: Token) -> str:
        """Say how a column that an input keeps gets the type of a constant; empty for other columns."""
        name = column.value
        if name not in self._kept:
            return ""
        kind = {"number": "float64", "boolean": "bool"}.get(token.kind, "string")
        whole = ", or int64 or uint64 if all are whole numbers" if kind == "float64" else ""
        lost = "" if kind == "string" else "; values that do not fit become null and are counted"
        return (
            "metadata has the type that its values have in common; to state another: "
            f"keep: {{{name}: {kind}}}{whole}{lost}"
        )

    def _moment(self, column: Token, kind: pa.DataType, token: Token) -> pa.Scalar:
        """Convert a text to the day or the moment that it states."""
        try:
            if pa.types.is_date(kind):
                return pa.scalar(dt.date.fromisoformat(token.value), kind)
            moment = dt.datetime.fromisoformat(token.value)
        except ValueError:
            form = "'2010-01-31'" if pa.types.is_date(kind) else "'2010-01-31', '2010-01-31T10:00:00+02:00'"
            self._fail(token, f"{column.value} holds {_holds(kind)}; write one so: {form}")
        if moment.tzinfo is not None and kind.tz is None:
            self._fail(token, f"{column.value} holds {_holds(kind)}, without a zone; leave the zone out")
        return pa.scalar(moment.replace(tzinfo=moment.tzinfo or dt.UTC) if kind.tz else moment, kind)


def _joined(nodes: Sequence[_Node], join: Callable[[Any, Any], Any]) -> _Node:
    expression = functools.reduce(join, (node.expression for node in nodes))
    columns = tuple(dict.fromkeys(column for node in nodes for column in node.columns))
    nulls = frozenset[str]().union(*(node.null_columns for node in nodes))
    memberships = tuple(one for node in nodes for one in node.memberships)
    return _Node(expression, nodes[0].start, nodes[-1].end, columns, nulls, memberships=memberships)


def _class(kind: pa.DataType) -> str | None:
    """Return what a column's values can be compared with; None if nothing can."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "time"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "number" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else None


def _holds(kind: pa.DataType) -> str:
    if _class(kind) == "text":
        return "text"
    if _class(kind) == "time":
        return "days" if pa.types.is_date(kind) else "moments"
    if _class(kind) == "boolean":
        return "true and false"
    if pa.types.is_list(kind):
        return f"lists ({kind})"
    if pa.types.is_fixed_size_list(kind):
        return "vectors"
    if pa.types.is_struct(kind):
        return f"structs with the fields {', '.join(one.name for one in kind)}"
    if _class(kind) is None:
        return str(kind)
    return f"whole numbers ({kind})" if pa.types.is_integer(kind) else f"numbers ({kind})"
