"""Types of the columns that `keep` carries along: declared in corpus.yaml, found in values, stored, and unified.

    bool                                            true, false
    int8 int16 int32 int64  uint8 … uint64          whole numbers
    float32 float64                                 numbers
    date  timestamp  timestamp_ntz                  days; moments, in UTC; times of day on a date, without a zone
    string                                          text, and the JSON text of everything that is nothing of this list
    list<T>                                         a list of one of the above
    {name: T, …}                                    a flat struct: fields of the above

Parts are written at different times from different files, so the same column may have another type in each. What a
reader sees is `common_type` of all: the narrowest that holds every value exactly, `string` where no other does. It does
not depend on the order, and null is any type.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

EXACT_IN_FLOAT = 2**53  # whole numbers up to here are the same as float64
MOST_FIELDS = 64  # of a struct: more are keys of a dictionary
AUTO = "auto"  # declared: the type is found in the values
NULL, STRING, LIST, STRUCT = "null", "string", "list", "struct"
LARGE = "int64 > 2^53"  # int64 in which some values are not the same as float64

_SIGNED = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
_UNSIGNED = {"uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64()}
_FLOATS = {"float32": pa.float32(), "float64": pa.float64()}
_TIMES = {"date": pa.date32(), "timestamp_ntz": pa.timestamp("us"), "timestamp": pa.timestamp("us", "UTC")}
DECLARED: dict[str, pa.DataType] = {
    "bool": pa.bool_(), **_SIGNED, **_UNSIGNED, **_FLOATS, **_TIMES, STRING: pa.string(),
}  # fmt: skip
_STORED = {**DECLARED, NULL: pa.string(), LARGE: pa.int64()}
_BITS = {name: kind.bit_width for name, kind in (_SIGNED | _UNSIGNED).items()} | {LARGE: 64}
_OTHER_NAMES = {
    "int": "int64", "integer": "int64", "long": "int64", "float": "float64", "double": "float64", "number": "float64",
    "str": STRING, "text": STRING, "boolean": "bool", "datetime": "timestamp", "time": "timestamp",
}  # fmt: skip


@dataclass(frozen=True)
class ColumnType:
    """A column's type. `name`: a scalar, `list` or `struct`; `element`: of a list; `fields`: of a struct, by name."""

    name: str
    element: ColumnType | None = None
    fields: tuple[tuple[str, ColumnType], ...] = ()

    @classmethod
    def list_of(cls, element: ColumnType) -> ColumnType:
        """Make the type of lists of a type."""
        return cls(LIST, element)

    @classmethod
    def struct_of(cls, fields: Mapping[str, ColumnType]) -> ColumnType:
        """Make the type of a struct, with fields sorted by name."""
        return cls(STRUCT, fields=tuple(sorted(fields.items())))

    @property
    def arrow(self) -> pa.DataType:
        """What it is stored as: nulls, and structs without a field, as text."""
        if self.element is not None:
            return pa.list_(pa.field("element", self.element.arrow))  # as Parquet calls it: digests see the name
        if self.fields:
            return pa.struct([pa.field(name, kind.arrow) for name, kind in self.fields])
        return pa.string() if self.name == STRUCT else _STORED[self.name]

    def as_json(self) -> Any:
        """Return what `from_json` reads: a name, `list<name>`, or a mapping of fields."""
        if self.name == STRUCT:
            return {name: kind.as_json() for name, kind in self.fields}
        return self.name if self.element is None else f"list<{self.element.name}>"

    @classmethod
    def from_json(cls, value: Any) -> ColumnType:
        """Read the type that `as_json` wrote."""
        if isinstance(value, dict):
            return cls.struct_of({name: cls.from_json(kind) for name, kind in value.items()})
        inner = re.fullmatch(r"list<(.*)>", value)
        return cls.list_of(cls(inner[1])) if inner else cls(value)

    def __str__(self) -> str:
        """Return the type as corpus.yaml declares it."""
        if self.name == STRUCT:
            return "{" + ", ".join(f"{name}: {kind}" for name, kind in self.fields) + "}"
        if self.element is not None:
            return f"list<{self.element}>"
        return {LARGE: "int64", NULL: STRING}.get(self.name, self.name)


TEXT = ColumnType(STRING)
NOTHING = ColumnType(NULL)


def declared_type(value: Any) -> ColumnType:
    """Parse a declared type. Raises `ValueError` with what is allowed."""
    if isinstance(value, dict):
        if not value:
            raise ValueError("a struct needs fields: {name: type}")
        if len(value) > MOST_FIELDS:
            raise ValueError(f"a struct has at most {MOST_FIELDS} fields, and this has {len(value)}; declare string")
        return ColumnType.struct_of({str(name): _field_type(str(name), kind) for name, kind in value.items()})
    inner = re.fullmatch(r"\s*list\s*<(.*)>\s*", value) if isinstance(value, str) else None
    if inner:
        return ColumnType.list_of(_scalar(inner[1], "what a list holds"))
    return _scalar(value, "the type")


def _field_type(name: str, value: Any) -> ColumnType:
    if isinstance(value, dict) or (isinstance(value, str) and "<" in value):
        raise ValueError(
            f"the field {name} is {value!r}, and fields of a struct hold one value each; declare string for the whole "
            "column, which keeps it as JSON text"
        )
    return _scalar(value, f"the field {name}")


def _scalar(value: Any, what: str) -> ColumnType:
    name = value.strip() if isinstance(value, str) else value
    if name in DECLARED:
        return ColumnType(name)
    meant = _OTHER_NAMES.get(str(name).lower()) or next(iter(difflib.get_close_matches(str(name), DECLARED, 1)), None)
    hint = f"did you mean {meant}? " if meant else ""
    raise ValueError(
        f"{what} is {name!r}; {hint}allowed: {', '.join(DECLARED)}, list<T> of one of them, {{name: T}} for the fields "
        f"of a flat struct, and {AUTO} for what is found in the values"
    )


def stored_type(kind: pa.DataType) -> ColumnType | None:
    """Return the type of a Parquet column; None if its values are kept as text."""
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = stored_type(kind.value_type)
        return ColumnType.list_of(element) if element and element.element is None and not element.fields else None
    if pa.types.is_struct(kind):
        fields = {field.name: stored_type(field.type) for field in kind}
        flat = {name: one for name, one in fields.items() if one and one.element is None and not one.fields}
        usable = 0 < kind.num_fields <= MOST_FIELDS and len(flat) == kind.num_fields and all(flat)
        return ColumnType.struct_of(flat) if usable else None
    if pa.types.is_timestamp(kind):
        return ColumnType("timestamp" if kind.tz else "timestamp_ntz")
    if pa.types.is_float16(kind):
        return ColumnType("float32")
    if pa.types.is_date(kind):
        return ColumnType("date")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return TEXT
    return next((ColumnType(name) for name, one in DECLARED.items() if one == kind), None)


def holds_nested(kind: pa.DataType) -> bool:
    """Return whether values of a type hold lists, structs or maps: they are kept as text, also where one is empty."""
    inside = [kind.field(index).type for index in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return pa.types.is_map(kind) or any(map(pa.types.is_nested, inside))


def is_kept_type(kind: pa.DataType) -> bool:
    """Return whether a corpus stores kept columns with this type."""
    found = stored_type(kind)
    return found is not None and found.arrow == kind


def common_type(types: Iterable[ColumnType]) -> ColumnType:
    """Return the narrowest type that holds all values of all types exactly; their order does not matter."""
    return reduce(_common, types, NOTHING)


def _common(one: ColumnType, other: ColumnType) -> ColumnType:
    if one == other or other == NOTHING:
        return one
    if one == NOTHING:
        return other
    if one.element is not None and other.element is not None:
        return ColumnType.list_of(_common(one.element, other.element))
    if one.name == other.name == STRUCT:
        mine, theirs = dict(one.fields), dict(other.fields)
        fields = {name: _common(mine.get(name, NOTHING), theirs.get(name, NOTHING)) for name in mine | theirs}
        return ColumnType.struct_of(fields) if len(fields) <= MOST_FIELDS else TEXT
    if STRUCT in (one.name, other.name) or LIST in (one.name, other.name):
        return TEXT
    return ColumnType(_common_scalar(*sorted((one.name, other.name))))


def _common_scalar(one: str, other: str) -> str:
    """Return the common type of two different scalars."""
    both = {one, other}
    if both <= _BITS.keys():
        return _common_integer(one, other)
    if both <= _BITS.keys() | _FLOATS.keys():
        return STRING if both & {LARGE, "uint64"} else "float64"
    if both <= _TIMES.keys():
        return "timestamp" if "timestamp" in both else "timestamp_ntz"
    return STRING


def _common_integer(one: str, other: str) -> str:
    signed = [name for name in (one, other) if name not in _UNSIGNED]
    bits = max(_BITS[one], _BITS[other])
    if not signed:
        return f"uint{bits}"
    if len(signed) == 1:
        (unsigned,) = {one, other} - set(signed)
        bits = max(_BITS[signed[0]], 2 * _BITS[unsigned])
    if bits > 64:
        return STRING
    return LARGE if LARGE in signed else f"int{bits}"


def labels(types: Mapping[str, ColumnType]) -> dict[str, float]:
    """Return the counts that the receipt of a part has for its columns of these types."""
    return {f"{_LABEL}{json.dumps([name, kind.as_json()], sort_keys=True)}": 1.0 for name, kind in types.items()}


_LABEL = "kept."


def types_in(counts: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, ColumnType]:
    """Return the common types of kept columns over parts, from their summed counts.

    `parts`: how many parts have a column, by its name. If fewer have counts of it, it is text: versions that kept text
    alone counted nothing.
    """
    found: dict[str, list[ColumnType]] = {}
    told: dict[str, float] = {}
    for key, times in counts.items():
        if key.startswith(_LABEL):
            name, kind = json.loads(key.removeprefix(_LABEL))
            found.setdefault(name, []).append(ColumnType.from_json(kind))
            told[name] = told.get(name, 0) + times
    return {
        name: common_type([*found.get(name, ()), *([TEXT] if told.get(name, 0) < parts.get(name, 0) else [])])
        for name in sorted(found.keys() | parts)
    }
