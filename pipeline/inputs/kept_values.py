"""Values of kept columns: which type they have, and as an Arrow array of a type.

JSON tells numbers, booleans, texts, lists and objects apart, and their types are found in the values; of Parquet the
file knows the type. A text is never taken for anything else unless the type is declared: then text that writes a
number, a date or JSON is read (`"2010"` is 2010 for int32). What does not fit a type becomes null, and is handed back.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.base.parallel import in_parallel
from pipeline.inputs.chunk import PACKED, Chunk
from pipeline.inputs.column_types import (
    DECLARED,
    EXACT_IN_FLOAT,
    LARGE,
    LIST,
    MOST_FIELDS,
    NOTHING,
    STRUCT,
    TEXT,
    ColumnType,
    common_type,
    stored_type,
)
from pipeline.inputs.documents import as_text
from pipeline.inputs.packing import files_of
from pipeline.inputs.parquet import BrokenParquetError, open_parquet

KEPT = (bool, int, float, str, list, tuple, dict, dt.date)  # everything else is kept as text from the beginning
_INTEGER = re.compile(r"[-+]?\d{1,20}")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_FINER = re.compile(r"[.,]\d{7}")  # than a microsecond
_INT64 = 2**63

Misfit = tuple[str, Any]  # path of a column or of a field in it (`meta.year`), and the value that does not fit


class _MisfitError(ValueError):
    """A value does not fit the type."""


def types_of_file(chunk: Chunk, names: Iterable[str]) -> dict[str, ColumnType]:
    """Return the types of these columns in a chunk's Parquet files; none for other formats or values kept as text.

    The type of a column in several files is the common one.
    """
    if chunk.format == PACKED:
        files, wanted = [one for one in files_of(chunk) if one.format == "parquet"], list(names)
        several = defaultdict[str, list[ColumnType]](list)
        for types in in_parallel(lambda one: types_of_file(one, wanted), files):
            for name, kind in types.items():
                several[name].append(kind)
        return {name: common_type(kinds) for name, kinds in several.items()}
    if chunk.format != "parquet":
        return {}
    try:
        with open_parquet(chunk) as (file, _):
            schema = file.schema_arrow
    except BrokenParquetError:
        return {}
    found = {name: stored_type(schema.field(name).type) for name in names if schema.names.count(name) == 1}
    return {name: kind for name, kind in found.items() if kind is not None}


def found_type(values: Sequence[Any], stored: ColumnType | None = None) -> ColumnType:
    """Return the type of values; `stored`: that of the Parquet column that some of them come from, if there is one."""
    found = common_type(map(_type_of, values))
    if stored is None or stored == TEXT:
        return found if stored is None else common_type([TEXT, found])
    if any(_holds_text(value, stored) for value in values):  # of another file of the chunk: no such column gives texts
        return common_type([stored, found])
    if all(_fits(value, stored) for value in values):
        return _with_large(stored, found)
    return common_type([stored, found])


def _holds_text(value: Any, kind: ColumnType) -> bool:
    """Return whether a value is a text, or holds one, where a type has none."""
    if isinstance(value, str):
        return bool(kind.arrow != pa.string())
    if kind.element is not None and isinstance(value, list | tuple):
        return any(_holds_text(one, kind.element) for one in value)
    return isinstance(value, dict) and any(_holds_text(value.get(name), one) for name, one in kind.fields)


def _with_large(stored: ColumnType, found: ColumnType) -> ColumnType:
    """Return a stored type that also states whether whole numbers exceed 2^53."""
    if stored.name == "int64" and found.name == LARGE:
        return found
    if stored.element is not None and found.element is not None:
        return ColumnType.list_of(_with_large(stored.element, found.element))
    there = dict(found.fields)
    fields = tuple((name, _with_large(kind, there.get(name, NOTHING))) for name, kind in stored.fields)
    return ColumnType(stored.name, stored.element, fields)


def proves(kind: ColumnType, values: Sequence[Any]) -> bool:
    """Return whether values that are stored as a type prove that it was found in their originals, not in others.

    A whole number in `float64` or `7` in text may have been a number in the input; then the answer is no.
    """
    given = [value for value in values if value is not None]
    if kind.element is not None:
        return bool(given) and proves(kind.element, [one for value in given for one in value])
    if kind.fields:
        return all(one != NOTHING and proves(one, [value[name] for value in given]) for name, one in kind.fields)
    return not given if kind == NOTHING else any(_proves(kind.name, value) for value in given)


def _proves(name: str, value: Any) -> bool:
    if name == "float64":
        return not float(value).is_integer()
    if name == TEXT.name:
        return _is_text(value)
    return abs(value) > EXACT_IN_FLOAT if name == LARGE else name in ("bool", "int64")


def _is_text(value: str) -> bool:
    """Return whether a text is not how a number, a list, an object or a time is written."""
    try:
        json.loads(value)
    except ValueError:
        return any(map(str.isalpha, value))
    except RecursionError:
        return False
    return False


def _type_of(value: Any) -> ColumnType:
    if isinstance(value, list | tuple):
        if any(isinstance(one, list | tuple | dict) for one in value):
            return TEXT
        return ColumnType.list_of(common_type(map(_type_of, value)))
    if isinstance(value, dict):
        flat = not any(isinstance(one, list | tuple | dict) for one in value.values())
        named = all(isinstance(name, str) and name for name in value)
        if flat and named and len(value) <= MOST_FIELDS:
            return ColumnType.struct_of({name: _type_of(one) for name, one in value.items()})
        return TEXT
    return ColumnType(_scalar_of(value))


def _scalar_of(value: Any) -> str:
    if value is None:
        return NOTHING.name
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        inside = -_INT64 <= value < _INT64
        return ("int64" if abs(value) <= EXACT_IN_FLOAT else LARGE) if inside else TEXT.name
    if isinstance(value, float):
        return "float64"
    if type(value) is dt.datetime:
        return "timestamp_ntz" if value.tzinfo is None else "timestamp"
    return "date" if type(value) is dt.date else TEXT.name


def as_array(values: Sequence[Any], kind: ColumnType, name: str) -> tuple[pa.Array, list[Misfit]]:
    """Convert values to an Arrow array of a type.

    Args:
        values: Python values, or None.
        kind: the type of the column.
        name: the name of the column, for messages.

    Returns:
        The array, in which values that do not fit are null; and these values.
    """
    misfits: list[Misfit] = []
    if kind.arrow == pa.string():
        return pa.array([None if value is None else _text(value, name) for value in values], pa.string()), misfits
    return pa.array([_converted(value, kind, name, misfits) for value in values], kind.arrow), misfits


def _converted(value: Any, kind: ColumnType, path: str, misfits: list[Misfit]) -> Any:
    if value is None:
        return None
    try:
        if kind.name == STRUCT and kind.fields:
            given = _json(value, dict)
            return {name: _converted(given.get(name), one, f"{path}.{name}", misfits) for name, one in kind.fields}
        return _value(value, kind, path)
    except (ValueError, OverflowError, RecursionError):
        misfits.append((path, value))
        return None


def _fits(value: Any, kind: ColumnType) -> bool:
    misfits: list[Misfit] = []
    _converted(value, kind, "", misfits)
    return not misfits


def _value(value: Any, kind: ColumnType, path: str) -> Any:
    """Convert a scalar or a list; raises `ValueError` or `OverflowError` for a value that does not fit."""
    if kind.name == LIST and kind.element is not None:
        element = kind.element
        return [None if one is None else _value(one, element, path) for one in _json(value, list)]
    if kind.arrow == pa.string():
        return _text(value, path)
    return _SCALARS[kind.name](value)


def _text(value: Any, path: str) -> str:
    with contextlib.suppress(RecursionError, OverflowError):  # too deep, or a time of the year 1 or 9999
        value = _in_one_form(value)
    return as_text(value, path)


def _in_one_form(value: Any) -> Any:
    """Return a value as all parts write it as text, whether theirs was converted to a type of its own before or not.

    Whole numbers have no point, fields are sorted and those that are null left out, times with a zone are in UTC.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT_IN_FLOAT:
        return int(value)
    if isinstance(value, list | tuple):
        return [_in_one_form(one) for one in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _in_one_form(value[name]) for name in sorted(value) if value[name] is not None}
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


def _json(value: Any, wanted: type) -> Any:
    """Return a list or an object, which may also be given as JSON text."""
    if isinstance(value, str):
        value = json.loads(value)
    if wanted is list and isinstance(value, tuple):
        return value
    if not isinstance(value, wanted):
        raise _MisfitError
    return value


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise _MisfitError


def _integer(kind: pa.DataType) -> Callable[[Any], int]:
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = limits.min, limits.max

    def convert(value: Any) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _MisfitError
        return value

    return convert


def _float(kind: type[np.floating[Any]]) -> Callable[[Any], float]:
    most = float(np.finfo(kind).max)

    def convert(value: Any) -> float:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _MisfitError
        found = float(value)
        if math.isfinite(found) and abs(found) > most:
            raise _MisfitError
        if isinstance(value, int) and int(kind(found)) != value:
            raise _MisfitError  # a whole number whose last digits would be lost
        return found

    return convert


def _date(value: Any) -> dt.date:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    if isinstance(value, dt.datetime):
        if value.time() != dt.time():
            raise _MisfitError
        return value.date()
    if isinstance(value, dt.date):
        return value
    raise _MisfitError


def _moment(value: Any) -> dt.datetime:
    if isinstance(value, str) and not _FINER.search(value):
        value = dt.datetime.fromisoformat(value)
    if isinstance(value, dt.datetime):
        return value
    if isinstance(value, dt.date):
        return dt.datetime.combine(value, dt.time())
    raise _MisfitError


def _timestamp(value: Any) -> dt.datetime:
    """Convert to UTC; a time without a zone is taken as UTC."""
    moment = _moment(value)
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


def _timestamp_ntz(value: Any) -> dt.datetime:
    moment = _moment(value)
    if moment.tzinfo is not None:
        raise _MisfitError
    return moment


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "bool": _bool,
    **{name: _integer(kind) for name, kind in DECLARED.items() if pa.types.is_integer(kind)},
    LARGE: _integer(pa.int64()),
    "float32": _float(np.float32),
    "float64": _float(np.float64),
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
