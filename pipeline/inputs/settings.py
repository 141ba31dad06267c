"""Settings of the documents that go in: one entry of `input:`, and the `split:` section of corpus.yaml.

Everything here carries meaning: another path, column or fraction makes another corpus. Nothing is opened here;
`resolve_inputs` only makes paths absolute and checks that names are unique, so it costs nothing.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, StringConstraints, Tag, model_validator

from pipeline.base.errors import ConfigError, visible
from pipeline.inputs.column_types import AUTO, ColumnType, declared_type
from stages.stage import Settings, execution, meaning


class InputError(ConfigError):
    """Something about an input has to be corrected by a person; the message says what, where and how, in one line.

    `name`: the input, where the message is about one of several.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(visible(message))
        self.name = name


def _regex_with_group(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from error
    if not groups:
        raise ValueError(f"{value!r} has no group; put what documents of one split share in parentheses: ^([^/]+)/")
    return value


def _distinct(values: list[str]) -> list[str]:
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise ValueError(f"{', '.join(twice)} given more than once; name each column once")
    return values


Name = Annotated[str, StringConstraints(min_length=1)]


def _type_as_written(value: Any) -> Any:
    """Normalise a declared type, so that settings can be compared; None stands for `auto`."""
    return AUTO if value is None or value == AUTO else declared_type(value).as_json()


def _kept_form(value: Any) -> str:
    return "keep as a mapping" if isinstance(value, dict) else "keep as a list"


def _list_if_all_auto(value: list[str] | dict[str, Any]) -> list[str] | dict[str, Any]:
    return list(value) if isinstance(value, dict) and set(map(str, value.values())) <= {AUTO} else value


TypeName = Annotated[str | dict[str, str], BeforeValidator(_type_as_written)]
Keep = Annotated[
    Annotated[Annotated[list[Name], AfterValidator(_distinct)], Tag("keep as a list")]
    | Annotated[dict[Name, TypeName], Tag("keep as a mapping")],
    Discriminator(_kept_form),
    AfterValidator(_list_if_all_auto),
]


class LangColumn(Settings):
    """`lang: {column: NAME}`: a column gives each document's language."""

    column: Name = meaning(description="column that holds each document's SONAR language code")


class DetectSettings(Settings):
    """How certain the detection of a language has to be."""

    threshold: float = meaning(
        0.5, description="documents whose language is detected with less confidence are quarantined", ge=0, le=1
    )


class LangDetect(Settings):
    """`lang: {detect: {threshold: 0.5}}`, or `lang: detect`: each document's language is identified from its text."""

    detect: DetectSettings = meaning(description="settings of language detection; {} for the defaults")


def _lang_in_full(value: Any) -> Any:
    return {"detect": {}} if value == "detect" else value


def _lang_form(value: Any) -> str:
    """Return which form of `lang:` is meant, so that a mistake in one form is not explained as mistakes in all."""
    if isinstance(value, dict):
        return LangDetect.__name__ if "detect" in value else LangColumn.__name__
    return type(value).__name__ if isinstance(value, Settings) else "code"


Lang = Annotated[
    Annotated[Name, Tag("code")]
    | Annotated[LangColumn, Tag(LangColumn.__name__)]
    | Annotated[LangDetect, Tag(LangDetect.__name__)],
    Discriminator(_lang_form),
    BeforeValidator(_lang_in_full),
]


class InputSettings(Settings):
    """One entry of `input:`: where documents are, and which columns they have."""

    path: Name = meaning(description="glob, directory, file or fsspec URL; relative to the YAML's folder")
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = meaning(
        None, description="name of the input in ids and in `source` (default: made from `path` as written)"
    )
    format: Literal["auto", "jsonl", "parquet", "text"] = meaning("auto", description="auto: by the file's extension")
    text: Name = meaning("text", description="column that holds the text")
    id: Name | None = meaning(None, description="column that holds the id (default: a hash of input, path and place)")
    lang: Lang = meaning(
        description="SONAR language code of all documents (eng_Latn), {column: NAME}, or detect; stated codes "
        "are not checked against the text"
    )
    keep: Keep = meaning(
        [],
        description="columns kept as metadata: a list, whose types are found in the data, or {column: type}, such as "
        "{year: int32, score: float32, tags: list<string>, title: auto}",
    )
    limit: int | None = meaning(None, description="use only this many documents, the first in the order of paths", ge=1)
    follow_links: bool = execution(
        False, description="follow links that lead out of the input's folder; otherwise they are quarantined"
    )

    @property
    def input_name(self) -> str:
        """The given name, or one made from the path as it is now."""
        return self.name or _name_from(self.path)

    @property
    def declared_types(self) -> dict[str, ColumnType]:
        """The types of kept columns whose type is stated."""
        types = self.keep if isinstance(self.keep, dict) else {}
        return {name: ColumnType.from_json(kind) for name, kind in types.items() if kind != AUTO}

    def resolve(self, base: str) -> InputSettings:
        """Return the input with an absolute path and a fixed name; `base` is the YAML's folder, a path or a URL.

        The name comes from the path as written, so moving YAML and data together changes no id.
        """
        return self.model_copy(update={"name": self.input_name, "path": _absolute(self.path, base)})


class ColumnSplit(Settings):
    """`by: {column: NAME}`: the column holds train, validation or test; documents with other values are quarantined."""

    column: Name = meaning(description="column that holds train, validation or test")


class ColumnHashSplit(Settings):
    """`by: {column_hash: NAME}`: documents with the same value (a site, a book) are in the same split."""

    column_hash: Name = meaning(description="column whose value is hashed")


class IdGroupSplit(Settings):
    """`by: {id_group: REGEX}`: documents whose ids agree in the first group are in the same split."""

    id_group: Annotated[str, AfterValidator(_regex_with_group)] = meaning(
        description="regular expression, searched in the id; its first group is hashed"
    )


class SplitSettings(Settings):
    """`split:`: how documents are divided into train, validation and test.

    Fractions refer to the hashed values, so they hold on average. Validation takes the low end of the hashes and test
    the high end: changing one fraction moves no document into or out of the other. With `by: {column: NAME}` the column
    decides, and the fractions are not used.
    """

    validation: float = meaning(0.01, description="fraction of validation documents", ge=0, le=1)
    test: float = meaning(0.01, description="fraction of test documents", ge=0, le=1)
    by: Literal["text"] | ColumnSplit | ColumnHashSplit | IdGroupSplit = meaning(
        "text", description="text (copies stay together), {column: NAME}, {column_hash: NAME} or {id_group: REGEX}"
    )

    @model_validator(mode="after")
    def _fractions_fit(self) -> SplitSettings:
        if self.validation + self.test > 1:
            raise ValueError(f"validation {self.validation} and test {self.test} add up to more than 1; lower one")
        return self


def resolve_inputs(inputs: Sequence[InputSettings], base: str) -> list[InputSettings]:
    """Resolve all inputs. Raises InputError if two have the same name: their ids and sources would be mixed up."""
    resolved = [settings.resolve(base) for settings in inputs]
    for name, times in Counter(settings.input_name for settings in resolved).items():
        if times > 1:
            raise InputError(f"input: {times} entries are named {name!r}; give each its own `name:`")
    return resolved


def _name_from(path: str) -> str:
    """Name an input: `sample/*.jsonl.gz` → `sample-1f2e3d`, the path's last word without wildcards and a hash of the
    path.
    """
    words = [word for word in re.split(r"[^A-Za-z0-9]+", re.split(r"[*?\[]", path)[0]) if word]
    return f"{words[-1] if words else 'input'}-{hashlib.blake2b(path.encode(), digest_size=3).hexdigest()}"


def _absolute(path: str, base: str) -> str:
    if "::" in path:
        raise InputError(f"input: path {path} is a chained URL; give the plain URL (s3://…, https://…) of the files")
    if "://" in path:
        return path
    if path.startswith("~"):
        return str(Path(path).expanduser())
    if "://" in base:
        return path if path.startswith("/") else f"{base.rstrip('/')}/{path}"
    return posixpath.normpath(posixpath.join(str(Path(base).absolute()), path))
