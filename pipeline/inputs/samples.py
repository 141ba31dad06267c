"""Reads the first records of an input: which columns they have, and what becomes of them.

A hundred records each of up to three files (the first, the middle and the last) are read, so the cost does not grow
with the input; of files that share a chunk, up to a hundred files give a hundred records together. With `lang: detect`,
languages are identified as in a run, in 0.2 to 0.4 ms a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pipeline.inputs.chunk import TO_THE_END, UNREADABLE, Chunk
from pipeline.inputs.column_types import TEXT, ColumnType, common_type, holds_nested
from pipeline.inputs.documents import BadRecordError, Document, Rejected
from pipeline.inputs.kept_values import found_type, types_of_file
from pipeline.inputs.packing import files_of
from pipeline.inputs.parquet import BrokenParquetError, open_parquet
from pipeline.inputs.readers import documents_of
from pipeline.inputs.records import RecordMaker
from pipeline.inputs.settings import InputSettings, SplitSettings

RECORDS = 100  # records read of each file
FILES = 3
COUNTED = 1 << 20  # characters of an input in which sentences are counted


@dataclass
class RecordSample:
    """What was read: `records` counts those that could not be read, too, `unread` only those whose columns are not
    known, `columns` the records that have each column, `langs` the languages of documents, `unknown` those of records
    that were rejected because the model does not know their language.
    """

    files: list[str] = field(default_factory=list)
    records: int = 0
    unread: int = 0
    documents: int = 0
    characters: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    langs: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    ids: Counter[tuple[str, str]] = field(default_factory=Counter)  # of documents: source, and id
    splits: Counter[str] = field(default_factory=Counter)  # of documents
    sentences: int = 0  # about, if they were to be counted and there are at most COUNTED characters
    refused: dict[str, list[str]] = field(default_factory=dict)  # reason → errors
    kept: dict[str, list[Any]] = field(default_factory=dict)  # of documents: the values of kept columns
    kinds: dict[str, dict[ColumnType, tuple[str, Any]]] = field(default_factory=dict)  # of kept values: file, value
    stored: dict[str, list[ColumnType]] = field(default_factory=dict)  # of kept columns, in Parquet files
    values: list[dict[str, Any]] = field(default_factory=list)  # of records, if they were asked for
    whole: bool = False  # whether these are all records of the input

    def where(self) -> str:
        """Describe what was read."""
        files = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files"
        return f"the first {self.records} records of {files}" if self.records > 1 else f"the first record of {files}"

    def kept_types(self) -> dict[str, ColumnType]:
        """Return the types of kept columns, as far as these records tell."""
        found = {name: found_type(values) for name, values in self.kept.items()}
        return {name: common_type([kind, *self.stored.get(name, ())]) for name, kind in found.items()}


def sample(
    chunks: Sequence[Chunk],
    settings: InputSettings,
    split: SplitSettings,
    languages: Sequence[str] | None = None,
    keep_values: bool = False,
    count: Callable[[str, str], int] | None = None,
) -> RecordSample:
    """Read a sample from the chunks of one input.

    Args:
        chunks: the chunks, in the order of paths.
        settings: the settings of the input.
        split: how documents are divided into splits.
        languages: the codes that documents may have; None allows any.
        keep_values: whether the values of all columns are kept.
        count: estimates the sentences of a text in a language; None to leave that out.

    Returns:
        Counts and examples of the records; errors of reading are raised as `read_documents` raises them.
    """
    found = RecordSample()
    readable = [one for one in chunks if one.format != UNREADABLE]
    some = _some(readable)
    found.whole = len(readable) == len(some)
    for chunk in some:
        files, most = _files(chunk)
        found.whole &= len(files) == sum(1 for _ in files_of(chunk))
        for file in files:
            before = found.records
            found.files.append(file.path)
            stored = types_of_file(file, settings.keep)
            for name, kind in stored.items():
                found.stored.setdefault(name, []).append(kind)
            maker = _Noting(file, settings, split, languages, found, keep_values)
            for item in islice(documents_of(maker), most):
                found.records += 1
                if isinstance(item, Document):
                    found.documents += 1
                    found.characters += len(item.text)
                    found.langs[item.lang] += 1
                    found.ids[item.source, item.doc_id] += 1
                    found.splits[item.split] += 1
                    if count and found.characters <= COUNTED:
                        found.sentences += count(item.text, item.lang)
                    for name, value in item.kept.items():
                        found.kept.setdefault(name, []).append(value)
                        kind = found_type([value], stored.get(name))
                        if kind == TEXT or name not in maker.nested:
                            found.kinds.setdefault(name, {}).setdefault(kind, (file.path, value))
                elif item.kind == "quarantined":
                    found.refused.setdefault(item.reason, []).append(item.error)
            found.whole &= file.format == "text" or found.records - before < most
    return found


def _some(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return the first, the middle and the last of the files' first chunks."""
    first = list({one.path: one for one in reversed(chunks)}.values())[::-1]
    return [first[one] for one in sorted({0, len(first) // 2, len(first) - 1})][:FILES] if first else []


def _files(chunk: Chunk) -> tuple[list[Chunk], int]:
    """Return files of a chunk, evenly spaced from the first to the last, and how many records to read of each."""
    files = list(files_of(chunk))
    if len(files) > RECORDS:
        files = [files[at * (len(files) - 1) // (RECORDS - 1)] for at in range(RECORDS)]
    return files, RECORDS if len(files) <= FILES else max(2, RECORDS // len(files))


class _Noting(RecordMaker):
    """A record maker that also notes which columns the records have, or that they could not be read, and languages that
    are not known.
    """

    def __init__(
        self,
        chunk: Chunk,
        settings: InputSettings,
        split: SplitSettings,
        languages: Sequence[str] | None,
        found: RecordSample,
        keep_values: bool,
    ) -> None:
        super().__init__(chunk, settings, split, languages)
        self._found, self._keep_values = found, keep_values
        self._stored, self.nested = _parquet_columns(chunk) if chunk.format == "parquet" else ((), frozenset[str]())
        if keep_values:
            self.columns = list(self._stored)

    def make(
        self, values: Mapping[str, Any], place: int, raw: bytes | None = None, line: int | None = None
    ) -> Document | Rejected:
        self._found.columns.update(self._stored or list(values))
        if self._keep_values:
            self._found.values.append(dict(values))
        return super().make(values, place, raw, line)

    def reject(self, place: int, reason: str, error: str, payload: bytes = b"", **more: Any) -> Rejected:
        found = super().reject(place, reason, error, payload, **more)
        self._found.unread += found.kind == "quarantined"
        return found

    def _language(self, values: Mapping[str, Any], text: str) -> tuple[str, float | None]:
        try:
            return super()._language(values, text)
        except BadRecordError as bad:
            if bad.lang is not None:
                self._found.unknown[bad.lang] += 1
            raise


def _parquet_columns(chunk: Chunk) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return all columns of a Parquet file, although only the needed ones are read, and those of nested values."""
    try:
        with open_parquet(replace(chunk, start=0, end=TO_THE_END)) as (file, _):
            schema = file.schema_arrow
            return tuple(schema.names), frozenset(one.name for one in schema if holds_nested(one.type))
    except BrokenParquetError:
        return (), frozenset()
