"""What benchmarks use of pydantic and pytest, for a machine that has neither; where they are installed, they are used.

A borrowed GPU often comes with torch and little else. Of pydantic there are models that take their values from keywords
or JSON, by annotation, and give them back; nothing is checked, so only for values that are known to be right. Of pytest
there are marks, which tests for GPUs need; of zstandard its error, which the reader of inputs names.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

REQUIRED: Any = object()


def install(*names: str) -> list[str]:
    """Put stand-ins for those of `pydantic`, `pytest` and `zstandard` that are not installed. Returns which."""
    missing = [name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None]
    for name in missing:
        module = types.ModuleType(name)
        vars(module).update(STAND_INS[name])
        sys.modules[name] = module
    return missing


class FieldInfo:
    """A default, and what a field says of itself."""

    def __init__(self, default: Any = REQUIRED, **said: Any) -> None:
        self.default, self.default_factory = default, said.get("default_factory")
        self.json_schema_extra = said.get("json_schema_extra")
        self.description = said.get("description")

    def value(self) -> Any:
        if self.default_factory:
            return self.default_factory()
        if self.default is REQUIRED or self.default is ...:
            raise TypeError("a value is missing")
        return self.default


class BaseModel:
    """Fields by annotation, values by keyword."""

    model_config: ClassVar[dict[str, Any]] = {}
    model_fields: ClassVar[dict[str, FieldInfo]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own: dict[str, FieldInfo] = {}
        for name, kind in vars(cls).get("__annotations__", {}).items():
            given = vars(cls).get(name, REQUIRED)
            if name != "model_config" and not str(kind).startswith(("ClassVar", "typing.ClassVar")):
                own[name] = given if isinstance(given, FieldInfo) else FieldInfo(given)
                if given is not REQUIRED:
                    delattr(cls, name)
        cls.model_fields = cls.model_fields | own

    def __init__(self, **values: Any) -> None:
        unknown = set(values) - {name for name in self.model_fields if not name.startswith("_")}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        kinds = _kinds(type(self))
        for name, info in self.model_fields.items():
            value = _made(values[name], kinds[name]) if name in values else copy.copy(info.value())
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> Any:
        return cls(**values)

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Any:
        return cls(**json.loads(text))

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Any:
        made = copy.copy(self)
        for name, value in (update or {}).items():
            object.__setattr__(made, name, value)
        return made

    def model_dump(self, *, mode: str = "python", include: set[str] | None = None, **_: Any) -> dict[str, Any]:
        names = [one for one in self.model_fields if not one.startswith("_") and (include is None or one in include)]
        return {name: _plain(getattr(self, name)) for name in names}

    def model_dump_json(self, *, indent: int | None = None, **_: Any) -> str:
        return json.dumps(self.model_dump(), indent=indent, default=str)


class TypeAdapter:
    """Values of any annotation, of JSON."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def validate_json(self, text: str | bytes) -> Any:
        return _made(json.loads(text), self.kind)


def _kinds(model: type) -> dict[str, Any]:
    found = vars(model).get("_kinds_found")
    if found is None:
        found = typing.get_type_hints(model)
        type.__setattr__(model, "_kinds_found", found)
    return dict(found)


def _made(value: Any, kind: Any) -> Any:
    """Convert a value to what the annotation names: mappings to models, lists to tuples."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _made(value, inner[0])
    if origin in (Union, types.UnionType):
        for one in inner:
            made = _made(value, one)
            if made is not value:
                return made
        return value
    if isinstance(value, Mapping):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind(**value)
        return {key: _made(one, inner[1]) for key, one in value.items()} if origin is dict else value
    if isinstance(value, list | tuple) and origin in (list, tuple):
        return origin(_made(one, inner[0]) for one in value)
    return Path(value) if kind is Path else value


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _nothing(*_: Any, **__: Any) -> Any:
    """Stand in for a decorator or an annotation that has no effect here."""
    return lambda given: given


class _Marks:
    """`pytest.mark`: functions keep what they are marked with."""

    def __getattr__(self, name: str) -> Any:
        def mark(*arguments: Any, **_: Any) -> Any:
            def put(function: Any) -> Any:
                function.marks = {**getattr(function, "marks", {}), name: arguments}
                return function

            return put(arguments[0]) if len(arguments) == 1 and callable(arguments[0]) else put

        return mark


class SkippedError(Exception):
    """A test cannot be run here."""


def _skip(reason: str) -> None:
    raise SkippedError(reason)


_PYDANTIC = {
    "BaseModel": BaseModel,
    "ConfigDict": dict,
    "Field": FieldInfo,
    "PrivateAttr": FieldInfo,
    "TypeAdapter": TypeAdapter,
    "ValidationError": type("ValidationError", (ValueError,), {}),
    "SerializerFunctionWrapHandler": Any,
} | dict.fromkeys(
    ("AfterValidator", "BeforeValidator", "Discriminator", "StringConstraints", "Tag", "field_validator",
     "model_serializer", "model_validator"), _nothing,
)  # fmt: skip

STAND_INS: dict[str, dict[str, Any]] = {
    "pydantic": _PYDANTIC,
    "pytest": {"mark": _Marks(), "skip": _skip},
    "zstandard": {"ZstdError": type("ZstdError", (OSError,), {})},  # no benchmark reads such a file
}
