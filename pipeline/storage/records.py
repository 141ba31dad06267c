"""Small JSON files of a corpus, read as what they are declared to be; damage is told with its remedy."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from pipeline.base.errors import CorpusError
from pipeline.storage.store import Store

T = TypeVar("T")
Values = dict[str, Any]
_SHOWN = 160  # characters of what is wrong, in a message


def read_json(store: Store, path: str, kind: type[T], remedy: str) -> T:
    """A file as `kind`: a pydantic model, a dataclass, `Values` for any object.

    Raises `MissingError` if it is not there, `CorpusError` with the remedy if it is no such thing.
    """
    return parse_json(store.read(path), kind, f"{store.url}/{path}", remedy)


def parse_json(data: bytes | str, kind: type[T], where: str, remedy: str) -> T:
    """`read_json` of what was read already. where: names it in messages."""
    try:
        value: T = _adapter(cast(Hashable, kind)).validate_json(data)
    except ValueError as error:  # of pydantic, and of text that is none
        raise CorpusError(f"{where} is damaged ({said_of(error)}); {remedy}") from error
    return value


def said_of(error: ValueError) -> str:
    """What is wrong, in a line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        said = f"{place}: {first['msg']}" if place else first["msg"]
    else:
        said = str(error)
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
