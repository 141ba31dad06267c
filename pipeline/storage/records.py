"""Reads the records of a corpus (small JSON, YAML and Parquet files) as their declared type, or fails.

Every such file is read here, so that damage leads to one error, `DamagedError`: which file, what is wrong with it, and
what to do. A *sealed* record ends with a digest of itself, so that a changed digit is found as well as a missing
bracket. Records of earlier versions have no seal, and only their types are checked.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from pipeline.base.errors import DamagedError, MissingError
from pipeline.storage.store import Store
from stages.yaml_text import load_yaml

T = TypeVar("T")
Values = dict[str, Any]
_SHOWN = 160  # characters of what is wrong, in a message
_SEAL = re.compile(rb',\s*"seal":\s*"(?P<digest>[0-9a-f]{32})"\s*\}\s*\Z')
_YAML_SEAL = "# seal: "


class Record(BaseModel):
    """A record that has exactly its fields, of exactly their types."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def read_json(store: Store, path: str, kind: type[T], remedy: str) -> T:
    """Read a JSON file.

    Args:
        store: the corpus.
        path: the file.
        kind: the type to read: a pydantic model, a dataclass, or `Values` for any object.
        remedy: what to do if the file is damaged; it ends the message.

    Returns:
        The value.

    Raises:
        MissingError: if the file does not exist.
        DamagedError: if its content is not of this type.
    """
    return parse_json(store.read(path), kind, f"{store.url}/{path}", remedy)


def parse_json(data: bytes | str, kind: type[T], where: str, remedy: str) -> T:
    """Parse JSON as a certain type.

    Args:
        data: the content, with or without a seal.
        kind: the type: a pydantic model, a dataclass, or `Values` for any object.
        where: names the data in messages.
        remedy: what to do if the data is damaged; it ends the message.

    Returns:
        The value.

    Raises:
        DamagedError: if the content is not of this type, or its seal is broken.
    """
    try:
        value: T = _adapter(cast(Hashable, kind)).validate_json(_unsealed(data))
    except (ValueError, RecursionError) as error:  # of pydantic, and of bytes that are not text
        raise DamagedError(where, said_of(error), remedy) from error
    return value


def read_lines(store: Store, path: str, kind: type[T], remedy: str) -> list[T]:
    """Read the lines of a JSONL file, without empty lines; errors are those of `read_json`.

    Args:
        store: the corpus.
        path: the file.
        kind: the type of a line.
        remedy: what to do if the file is damaged; it ends the message.

    Returns:
        The values.
    """
    where = f"{store.url}/{path}"
    lines = store.read(path).split(b"\n")
    return [parse_json(line, kind, f"line {number} of {where}", remedy) for number, line in enumerate(lines, 1) if line]


def read_yaml(store: Store, path: str, remedy: str) -> Values:
    """Read a YAML file that holds a mapping.

    Args:
        store: the corpus.
        path: the file.
        remedy: what to do if the file is damaged; it ends the message.

    Returns:
        The mapping.

    Raises:
        DamagedError: if it is no mapping, or its seal is broken.
    """
    where = f"{store.url}/{path}"
    try:
        text = store.read(path).decode()
        head, _, body = text.partition("\n")
        if head.startswith(_YAML_SEAL) and head.removeprefix(_YAML_SEAL) != _digest(body.encode()):
            raise ValueError("it is not the text that its seal was made of")
        value = load_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise DamagedError(where, said_of(error), remedy) from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DamagedError(where, "it holds no settings", remedy)
    return value


def read_table(
    store: Store, path: str, schema: pa.Schema, remedy: str, names: Sequence[str] = (), optional: Sequence[str] = ()
) -> pa.Table:
    """Read a Parquet file in a declared schema.

    Args:
        store: the corpus.
        path: the file.
        schema: the declared schema.
        remedy: what to do if the file is damaged; it ends the message.
        names: read only these columns; none for all.
        optional: columns of texts that are empty where the file has no such column.

    Returns:
        The table, in one chunk.

    Raises:
        DamagedError: if the file cannot be read in this schema.
    """
    try:
        with store.open(path) as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read(
                list(names) or schema.names, use_threads=False
            )
            for name in set(optional).difference(table.column_names):
                table = table.append_column(name, pa.repeat("", len(table)))
            expected = pa.schema([schema.field(name) for name in names]) if names else schema
            return table.select(expected.names).cast(expected.with_metadata(table.schema.metadata)).combine_chunks()
    except (pa.ArrowException, ValueError, KeyError, OSError) as error:
        raise DamagedError(f"{store.url}/{path}", said_of(error), remedy) from error


@contextlib.contextmanager
def needed(store: Store, path: str, remedy: str) -> Iterator[None]:
    """Report a missing file inside the `with` block as damage.

    Args:
        store: the corpus.
        path: a file without which the corpus cannot be read.
        remedy: what to do if the file is missing; it ends the message.

    Yields:
        Nothing; the block runs once.

    Raises:
        DamagedError: if the file is missing.
    """
    try:
        yield
    except MissingError as error:
        raise DamagedError(f"{store.url}/{path}", "it is missing", remedy) from error


def sealed(text: str) -> bytes:
    """Return a JSON object, which has at least one key, with a digest of itself as its last key."""
    data = text.encode()
    body = data.rstrip().removesuffix(b"}").rstrip()
    return body + b', "seal": "' + _digest(body).encode() + b'"}'


def is_sealed(data: bytes) -> bool:
    """Return whether a JSON record ends with a seal, right or wrong; `parse_json` checks it."""
    return _SEAL.search(data, max(0, len(data) - 80)) is not None


def sealed_yaml(text: str) -> bytes:
    """Return YAML text after a comment with its digest."""
    return f"{_YAML_SEAL}{_digest(text.encode())}\n{text}".encode()


def _unsealed(data: bytes | str) -> bytes:
    """Return a record without its seal. Raises ValueError if the seal does not match."""
    data = data.encode() if isinstance(data, str) else data
    found = _SEAL.search(data, max(0, len(data) - 80))
    if not found:
        return data
    body = data[: found.start()]
    if _digest(body).encode() != found["digest"]:
        raise ValueError("it is not the text that its seal was made of")
    return body + b"}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def said_of(error: Exception) -> str:
    """Return one line that says what is wrong."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = first["msg"].removeprefix("Value error, ")
        said = f"{place}: {what}" if place else what
    else:
        said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
