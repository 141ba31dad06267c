"""Reduces a list of pydantic's errors to one mistake per value, and removes the wrong values from the settings.

A key that may hold a number or a section gives an error for each of the two, though the author of the file meant one of
them. What is left without the mistakes is checked further, so that all mistakes are reported at once.
"""

from __future__ import annotations

import copy
import difflib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Error = dict[str, Any]
PLACEHOLDERS: dict[str, Any] = {"name": "unnamed", "output": "output", "lang": "detect"}  # of required values
KEYS = ("missing", "extra_forbidden")  # errors that are about a key itself, not its value


def key_of(error: Error, data: Any) -> tuple[str, ...]:
    """Return the steps of an error's location that are keys of the file (pydantic adds the names of union members)."""
    steps: list[str] = []
    for index, step in enumerate(words := _words(error)):
        if isinstance(data, dict) and step in data:
            data = data[step]
        elif isinstance(data, list) and step.isdigit() and int(step) < len(data):
            data = data[int(step)]
        elif index < len(words) - 1 or not isinstance(data, dict) or error["type"] not in KEYS:
            continue
        steps.append(step)
    return tuple(steps)


def causes(errors: Sequence[Error], data: Any) -> list[Error]:
    """Return the errors that are not mere consequences of other ones."""
    inside = {one["loc"][:depth] for one in errors for depth in range(len(one["loc"]))}
    found = [one for one in errors if one["type"] != "too_short" or one["loc"] not in inside]
    return _without_misspelt(_without_other_kinds(_of_one_member(found, data), data))


def _without_misspelt(errors: list[Error]) -> list[Error]:
    """Drop keys that are missing because they are misspelt: the error of the unknown key says so already."""
    unknown = [_words(one) for one in errors if one["type"] == "extra_forbidden"]

    def misspelt(one: Error) -> bool:
        if one["type"] != "missing":
            return False
        *around, name = _words(one)
        others = [words[-1] for words in unknown if list(words[:-1]) == around]
        return bool(difflib.get_close_matches(name, others, cutoff=0.6))

    return [one for one in errors if not misspelt(one)]


def _without_other_kinds(errors: Sequence[Error], data: Any) -> list[Error]:
    """Among several errors of one value, keep those that fit its kind: a number's for a number, a section's for a
    section.
    """
    by_key: dict[tuple[str, ...], list[Error]] = defaultdict(list)
    for one in errors:
        by_key[key_of(one, data)].append(one)
    kept = []
    for key, some in by_key.items():
        deeper = any(len(other) > len(key) and other[: len(key)] == key for other in by_key)
        if key and deeper and isinstance(value_of(data, key), dict):
            continue
        right = [one for one in some if not one["type"].endswith("_type")]
        kept += (right or some[:1]) if len({one["loc"] for one in some}) > 1 else some
    return kept


def _of_one_member(errors: Sequence[Error], data: Any) -> list[Error]:
    """Among errors of several sections that a key may hold, keep those of the section whose keys resemble the given
    ones.
    """
    by_member: dict[tuple[tuple[str, ...], str], list[Error]] = defaultdict(list)
    alone = []
    for one in errors:
        at = _member_at(_words(one), data)
        if at is None:
            alone.append(one)
        else:
            by_member[key_of({**one, "loc": _words(one)[:at]}, data), _words(one)[at]].append(one)
    best: dict[tuple[str, ...], tuple[float, list[Error]]] = {}
    for (key, _), some in by_member.items():
        given = value_of(data, key)
        keys = list(given) if isinstance(given, dict) else []
        wanted = [_words(one)[-1] for one in some if one["type"] == "missing"]
        near = [max((difflib.SequenceMatcher(None, one, key).ratio() for key in keys), default=0.0) for one in wanted]
        score = min(near, default=1.0) - len(some) / 100
        if key not in best or score > best[key][0]:
            best[key] = score, some
    return [*alone, *(one for _, some in best.values() for one in some)]


def _member_at(words: tuple[str, ...], data: Any) -> int | None:
    """Return where a location names a member of a union, which is the name of a class."""
    for index, step in enumerate(words[:-1]):
        if isinstance(data, dict) and step in data:
            data = data[step]
        elif isinstance(data, list) and step.isdigit() and int(step) < len(data):
            data = data[int(step)]
        elif step[:1].isupper() and isinstance(data, dict):
            return index
    return None


def _words(error: Error) -> tuple[str, ...]:
    return tuple(str(step) for step in error["loc"])


def value_of(data: Any, key: Sequence[str]) -> Any:
    """Return the value at these steps; None if it is not there."""
    for step in key:
        data = data[int(step)] if isinstance(data, list) else data.get(step) if isinstance(data, dict) else None
    return data


def renamed(data: Any, key: Sequence[str], name: str) -> Any:
    """Return a copy of the values in which a key has another name.

    Args:
        data: the values.
        key: the steps to the key.
        name: its new name.

    Returns:
        The copy.
    """
    kept = copy.deepcopy(data)
    around = value_of(kept, key[:-1])
    around[name] = around.pop(key[-1])
    return kept


def without(errors: Sequence[Error], data: Any) -> Any:
    """Return a copy of the values without the wrong ones, with placeholders for missing ones."""
    kept = copy.deepcopy(data)
    keys = [key_of(one, data) for one in errors]
    for one, key in zip(errors, keys, strict=True):
        if one["type"] == "too_short" and any(len(other) > len(key) and other[: len(key)] == key for other in keys):
            continue  # pydantic does not count entries that are wrong
        if one["type"] == "missing" and key and (key[-1] in PLACEHOLDERS or len(key) == 1):
            around = value_of(kept, key[:-1])
            if isinstance(around, dict):
                around.setdefault(key[-1], PLACEHOLDERS.get(key[-1]))
            continue
        _drop(kept, key[:-1] if one["type"] == "missing" else key)
    return _without_none(kept)


def _drop(data: Any, key: Sequence[str]) -> None:
    around = value_of(data, key[:-1]) if key else None
    if isinstance(around, dict):
        around.pop(key[-1], None)
    elif isinstance(around, list) and int(key[-1]) < len(around):
        around[int(key[-1])] = None


def _without_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_none(one) for one in value if one is not None]
    return {key: _without_none(one) for key, one in value.items()} if isinstance(value, dict) else value
