"""What pydantic says of settings, in words: the place in the file, the value, what is allowed, and what was meant."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from pipeline.base.formats import plain
from pipeline.config.causes import Error, key_of

_A_LIST, _SECTION = "a list: [a, b], or lines that begin with -", "keys and values: {key: value, …}, or {} for defaults"
_KINDS = {"tuple_type": _A_LIST, "list_type": _A_LIST, "model_type": _SECTION, "model_attributes_type": _SECTION}
SHOWN = 80  # characters of a value in messages


def explain(
    path: Path, error: Error, places: Mapping[tuple[str, ...], str], data: Any, root: type[BaseModel]
) -> list[str]:
    """Explain one pydantic error: `corpus.yaml:12: segment.max_chars is 0; allowed: at least 10`.

    Args:
        path: the file.
        error: what pydantic says.
        places: path of keys → where the file has them.
        data: what the file holds.
        root: the settings that it holds.

    Returns:
        Lines for a person; none for sections that do not fit together, which is not an error of one value.
    """
    full = tuple(str(step) for step in error["loc"])
    where = key_of(error, data)
    place = next((places[where[:n]] for n in range(len(where), 0, -1) if where[:n] in places), str(path))
    key = _written(where)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        allowed, near = _allowed(full[:-1], root), near_key(full, root)
        hint = f"did you mean {near}? " if near else ""
        if len(where) > 1 and where[-1] in root.model_fields:
            hint = f"{where[-1]} belongs to the top level of the file, beside {where[0]}; "
        return [f"{place}: unknown key {key}; {hint}allowed here: {', '.join(allowed)}"]
    if kind == "missing":
        return [f"{place}: {key} is missing; {_description(full, root)}"]
    value = error.get("input")
    shown = plain(json.dumps(value, ensure_ascii=False, default=str), SHOWN)
    if kind == "value_error":
        return [f"{place}: {key}: {context['error']}"] if key else []
    alike = difflib.get_close_matches(str(value), re.findall(r"'([^']+)'", str(context.get("expected", ""))), n=1)
    hint = f"did you mean {alike[0]}? " if alike else ""
    if isinstance(value, bool) and kind == "string_type":
        code = ", or the code nob_Latn for Norwegian" if where[-1] == "lang" else ""
        hint = f"YAML reads no, off, yes and on as false and true; write the word in quotes{code}; "
    named, about = next((step for step in reversed(where) if not step.isdigit()), key), _description(full, root)
    told = f". About {named}: {about}" if about else ""
    return [f"{place}: {key} is {shown}; {hint}allowed: {_limits(error)}{told}"]


def near_key(where: tuple[str, ...], root: type[BaseModel], cutoff: float = 0.5) -> str | None:
    """Find the key that was probably meant by an unknown one.

    Args:
        where: the unknown key, and the keys that it lies below.
        root: the settings that the file holds.
        cutoff: how alike they must be, from 0 to 1.

    Returns:
        The allowed key that is spelled most like it; None if none is spelled alike.
    """
    return next(iter(difflib.get_close_matches(where[-1], _allowed(where[:-1], root), n=1, cutoff=cutoff)), None)


def _written(where: tuple[str, ...]) -> str:
    """Return a key as messages name it: input.0.keep.year is "input 1: keep.year"."""
    if where[:1] == ("input",) and len(where) > 1 and where[1].isdigit():
        return ": ".join(filter(None, (f"input {int(where[1]) + 1}", ".".join(where[2:]))))
    return ".".join(where)


def _limits(error: dict[str, Any]) -> str:
    if error["type"] in ("tuple_type", "list_type") and isinstance(error.get("input"), str):
        return f"a list: [{plain(error['input'], SHOWN)}]"
    if error["type"] in _KINDS:
        return _KINDS[error["type"]]
    if error["type"] == "too_short":
        what = "keys and values, {key} or more" if isinstance(error.get("input"), dict) else "a list of {key} or more"
        return what.format(key=error["ctx"]["min_length"])
    text = str(error["msg"]).removeprefix("Input should be ").removeprefix("a valid ").removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def models_along(where: tuple[str, ...], root: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the settings classes along a path of keys; if a key can hold several, the one that the path names."""
    models: list[type[BaseModel]] = [root]
    choices: list[type[BaseModel]] = []
    for step in where:
        info = models[-1].model_fields.get(step)
        if info:
            choices = list(models_in(info.annotation))
            models += choices[:1]
        else:
            models += [one for one in choices if one.__name__ == step]
    return models


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes that a type names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def _allowed(where: tuple[str, ...], root: type[BaseModel]) -> list[str]:
    return list(models_along(where, root)[-1].model_fields)


def _description(where: tuple[str, ...], root: type[BaseModel]) -> str:
    for model in reversed(models_along(where, root)):
        for step in reversed(where):
            if step in model.model_fields:
                return model.model_fields[step].description or ""
    return ""
