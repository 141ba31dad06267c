"""Turns the values of one record into a document, or into the reason why it is rejected.

This is the same for all formats: a reader gives the record's values by column name and the place of the record.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pipeline.base.errors import starting
from pipeline.base.formats import to_json
from pipeline.inputs.chunk import GROWTH, LONGEST, UNREADABLE, Chunk
from pipeline.inputs.documents import (
    BadRecordError,
    Document,
    Rejected,
    as_text,
    encode,
    short,
    where_not_utf8,
)
from pipeline.inputs.kept_values import KEPT
from pipeline.inputs.magic import mend_value
from pipeline.inputs.settings import DetectSettings, InputSettings, LangColumn, LangDetect, SplitSettings
from pipeline.inputs.splits import split_column, splitter

LONGEST_ID = 4096  # characters
SHOWN = 20  # column names in a message
TOO_LONG = "too long"
DUPLICATE_KEY = "duplicate key"  # a record has two values for one column
UNKNOWN_LANGUAGE = "unknown language"  # the model does not have it

_MISSING = object()


class NotUtf8:
    """Stands for a value of a column whose bytes are not UTF-8."""

    def __init__(self, error: UnicodeDecodeError) -> None:
        self.raw: bytes = error.object
        self.where = where_not_utf8(error)
        self.error = f"{self.where}; {mend_value(self.raw)}"

    def __repr__(self) -> str:
        return repr(self.raw)


class Unconvertible:
    """Stands for a value of a column that Python has no value for (a date in the year 10000)."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<{self.error}>"


class RecordMaker:
    """Makes the documents of one chunk.

    `columns` are the columns that it reads, each once. With `lang: detect`, the first maker of a process loads the
    identification model, and raises StartError if that fails.

    Args:
        chunk: the chunk that records are read from.
        settings: the settings of the chunk's input.
        split: how documents are divided into splits.
        languages: the codes that documents may have; None allows any.
    """

    def __init__(
        self, chunk: Chunk, settings: InputSettings, split: SplitSettings, languages: Sequence[str] | None
    ) -> None:
        self.chunk = chunk
        self.settings = settings
        self.stated_lang = settings.lang if isinstance(settings.lang, str) else None  # of all records
        self.source = chunk.source
        self.languages = None if languages is None else dict.fromkeys(languages)
        self.lang_column = settings.lang.column if isinstance(settings.lang, LangColumn) else None
        detect = settings.lang.detect if isinstance(settings.lang, LangDetect) else None
        self.detect = None if detect is None else detector(detect, self.languages)
        self.split_column = split_column(split)
        self.splitter = splitter(split)
        self.columns = needed_columns(settings, split)
        self.present: Sequence[str] = ()  # columns of the file, if it states them

    def make(
        self, values: Mapping[str, Any], place: int, raw: bytes | None = None, line: int | None = None
    ) -> Document | Rejected:
        """Make a document of a record, or reject the record.

        Args:
            values: the record's values by column.
            place: byte offset or row, counted in the whole file; in a chunk that begins inside a compressed file, the
                byte offset among the chunk's own lines.
            raw: the bytes of the record, for the quarantine; None if only values are known.
            line: the number of its line in the whole file; None if it is not known.

        Returns:
            The document, or the rejected record with the reason.
        """
        doc_id: str | None = None
        try:
            doc_id = self._doc_id(values, place)
            text = self._text(values)
            encoded = encode(text, self.settings.text)
            lang, confidence = self._language(values, text)
            shared = None if self.split_column is None else _checked(values.get(self.split_column), self.split_column)
            split = self.splitter(doc_id, encoded, shared)
            kept = {name: self._kept(values, name) for name in self.settings.keep}
        except BadRecordError as bad:
            payload = raw if raw is not None else to_json(dict(values)).encode(errors="backslashreplace")
            where, unreadable = self.where(place, line), bad.bytes_unreadable
            return Rejected.of(
                doc_id, where, bad.reason, bad.error, payload, kind=bad.kind, bytes_unreadable=unreadable
            )
        return Document(doc_id, text, lang, split, self.source, kept, self.where(place, line), confidence)

    def reject(
        self,
        place: int,
        reason: str,
        error: str,
        payload: bytes = b"",
        *,
        line: int | None = None,
        records: int = 1,
        **more: Any,
    ) -> Rejected:
        """Reject a record whose values could not be read.

        Args:
            place: byte offset or row, counted in the whole file.
            reason: the reason that the accounting counts.
            error: what is wrong, for a person.
            payload: the bytes of the record, as far as they could be read.
            line: the number of its line in the whole file; None if it is not known.
            records: how many records this stands for, if a file breaks.
            **more: further fields of `Rejected`.

        Returns:
            The rejected record; it has an id only if ids are generated and it stands for one record.
        """
        doc_id = self.generated_id(place) if self.settings.id is None and records == 1 else None
        return Rejected.of(doc_id, self.where(place, line), reason, error, payload, records=records, **more)

    def where(self, place: int, line: int | None = None) -> str:
        """Say where a record stands, for people."""
        if self.chunk.format in ("text", UNREADABLE):
            return self.chunk.path
        if self.chunk.format == "parquet":
            return f"{self.chunk.path} row {place}"
        if self._counts_from_its_start:
            return f"{self.chunk.path} stored byte {self.chunk.start}, from there byte {place}"
        return f"{self.chunk.path} byte {place}" if line is None else f"{self.chunk.path} line {line}, byte {place}"

    @property
    def _counts_from_its_start(self) -> bool:
        """Whether places are counted from the chunk's start, because nobody knows how much text is before that."""
        return bool(self.chunk.compression and self.chunk.start) and not self.chunk.by_text

    def generated_id(self, place: int) -> str:
        """Return 16 hex digits of a hash of input, path and place; for a text file, the path itself."""
        if self.chunk.format == "text":
            return self.chunk.path
        behind = f"{self.chunk.start}+" if self._counts_from_its_start else ""
        name = f"{self.chunk.input}\0{self.chunk.path}\0{behind}{place}"
        return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()

    def _doc_id(self, values: Mapping[str, Any], place: int) -> str:
        column = self.settings.id
        if column is None:
            return self.generated_id(place)
        value = _checked(values.get(column, _MISSING), column)
        if value is _MISSING or value is None or value == "":
            state = "missing" if value is _MISSING else "null" if value is None else "empty"
            what = f"{column} is {state}; every record needs one, or leave `id:` out to have ids made"
            raise BadRecordError(f"id {'column missing' if state == 'missing' else 'is ' + state}", what)
        if isinstance(value, bool) or not isinstance(value, str | int | uuid.UUID):
            what = f"{column} is {_typed(value)}; make it a string or integer, or leave `id:` out to have ids made"
            raise BadRecordError("id is not a string or integer", what)
        doc_id = str(value)
        if len(doc_id) > LONGEST_ID:
            raise BadRecordError(
                "id is too long", f"{column} has {len(doc_id)} characters; at most {LONGEST_ID} can be"
            )
        encode(doc_id, column)
        return doc_id

    def _text(self, values: Mapping[str, Any]) -> str:
        column = self.settings.text
        value = _checked(values.get(column, _MISSING), column)
        if isinstance(value, str):
            if len(value) > self.chunk.longest:
                raise BadRecordError(TOO_LONG, too_long(column, len(value), "characters", self.chunk))
            return value
        if value is _MISSING:
            names = self.present or list(values)
            there = [*map(short, names[:SHOWN]), *(["…"] if len(names) > SHOWN else [])]
            what = f"there is no {column!r}; name the right column in `text:`, of {', '.join(there) or 'none'}"
            raise BadRecordError("text column missing", what)
        if value is None:
            raise BadRecordError("text is null", f"{column} is null, where a string is needed")
        raise BadRecordError("text is not a string", f"{column} is {_typed(value)}, where a string is needed")

    def _language(self, values: Mapping[str, Any], text: str) -> tuple[str, float | None]:
        """Return the language of a document, and how certain it is; None if it was stated."""
        return (self._lang(values), None) if self.detect is None else self.detect(text)

    def _lang(self, values: Mapping[str, Any]) -> str:
        if self.lang_column is None:
            return str(self.settings.lang)
        value = _checked(values.get(self.lang_column, _MISSING), self.lang_column)
        if value is _MISSING:
            what = f"there is no {self.lang_column!r}; name the right column in `lang:`"
            raise BadRecordError("lang column missing", what)
        if not isinstance(value, str):
            what = f"{self.lang_column} is {_typed(value)}, where a code such as eng_Latn is needed"
            raise BadRecordError("lang is not a string", what)
        if self.languages is not None and value not in self.languages:
            error = f"{self.lang_column} is {short(value)}; {nearest_languages(value, self.languages)}"
            raise BadRecordError(UNKNOWN_LANGUAGE, error, lang=value)
        return value

    def _kept(self, values: Mapping[str, Any], column: str) -> Any:
        """Return the value as it is, or as text if no column can hold it.

        Raises BadRecordError if it cannot be written.
        """
        value = values.get(column)
        if isinstance(value, NotUtf8):
            what = f"keep: {column} is not UTF-8; leave {column} out of `keep`, or write it to the input as UTF-8 text"
            raise BadRecordError("not UTF-8", f"{what} (binary data: as base64); {value.where}", len(value.raw))
        value = _checked(value, column)
        if value is None:
            return None
        text = as_text(value, column)
        return value if isinstance(value, KEPT) else text


def too_long(what: str, size: int, unit: str, chunk: Chunk) -> str:
    """Say why a record is set aside.

    Args:
        what: the line, file or column.
        size: how long it is.
        unit: bytes or characters.
        chunk: the chunk, which says how long it may be.

    Returns:
        The error, with what to do.
    """
    most = chunk.longest
    why = (
        f", {GROWTH} times the {chunk.bytes} bytes that are stored"
        if most == GROWTH * chunk.bytes
        else ", in a compressed file of that size"
        if most < LONGEST
        else ""
    )
    return f"{what} has {size} {unit}, and at most {most} are read into memory{why}; cut the document into several"


def needed_columns(settings: InputSettings, split: SplitSettings) -> list[str]:
    """Return every column that is read, once, in a fixed order."""
    lang = settings.lang.column if isinstance(settings.lang, LangColumn) else None
    names = [settings.text, settings.id, lang, split_column(split), *settings.keep]
    return list(dict.fromkeys(name for name in names if name is not None))


def _checked(value: Any, column: str) -> Any:
    if isinstance(value, NotUtf8):
        raise BadRecordError("not UTF-8", f"{column}: {value.error}", len(value.raw))
    if isinstance(value, Unconvertible):
        raise BadRecordError("not a Python value", f"{column}: {value.error}")
    return value


def _typed(value: Any) -> str:
    return short(value) if value is None else f"{short(value)} ({type(value).__name__})"


_SAME = {"nb": "no", "iw": "he", "in": "id", "fil": "tl"}  # other codes of languages in `SONAR_CODES`


def nearest_languages(code: str, languages: Collection[str]) -> str:
    """Say which codes were probably meant, or which model knows the language; two letters (es), also of a longer tag
    (zh-Hant, en_US), are looked up.
    """
    from stages.language.identifier import SONAR_CODES
    from stages.sonar import card

    language, *more = re.split("[-_]", code.lower())
    meant = sorted(SONAR_CODES.get(_SAME.get(language, language), ()), key=lambda known: known[-4:].lower() not in more)
    if same := [known for known in meant if known in languages]:
        return f"the code is {' or '.join(same)}"
    nearest = ", ".join(card.nearest_languages(code, languages)[:3])
    elsewhere = next(
        (
            f"{known} is known to {one.name} (encode: {{model: {one.name}}}); "
            for one in card.readable_cards()
            for known in (code, *meant)
            if known in one.languages and known not in languages
        ),
        "",
    )
    return f"{elsewhere}nearest of the model's {len(languages)} languages: {nearest}"


NOT_CERTAIN = "language not certain"

Detector = Callable[[str], tuple[str, float]]


def detector(settings: DetectSettings, languages: Collection[str] | None) -> Detector:
    """Return a function that gives SONAR code and confidence of a text, or raises BadRecordError.

    `languages` are the codes that documents may have; None allows any. A text in which nothing is visible is dropped
    for the same reason as after segmenting. Raises StartError if the identification model is missing.
    """
    from stages.language.identifier import SONAR_CODES, identifier
    from stages.segment import marks

    with starting("lang: detect"):
        identify = identifier().identify
    stated = "state the language of such documents (lang: eng_Latn, or {column: NAME})"

    def detect(text: str) -> tuple[str, float]:
        if not marks.VISIBLE.search(text):
            raise BadRecordError("no text", "it holds no visible character", kind="dropped")
        found = identify(text)
        if found is None:
            raise BadRecordError(NOT_CERTAIN, f"the text has no letter to tell its language by; {stated}")
        seems = f"the text looks like {found.label!r} with confidence {found.confidence:.3f}"
        if found.confidence < settings.threshold:
            what = f"{seems}, below lang.detect.threshold {settings.threshold}; {stated}, or lower the threshold"
            raise BadRecordError(NOT_CERTAIN, what)
        if found.lang is None:
            codes = " or ".join(SONAR_CODES.get(found.label, ()))
            why = f"but few of its letters are in the script of {codes}" if codes else "for which SONAR has no code"
            what = f"{seems}, {why}; leave such documents out, or {stated}"
            raise BadRecordError(UNKNOWN_LANGUAGE, what, lang=found.label)
        if languages is not None and found.lang not in languages:
            what = f"{seems}: {found.lang}, which is not among the model's {len(languages)} languages"
            what = f"{what}; use a model that knows it, or leave such documents out"
            raise BadRecordError(UNKNOWN_LANGUAGE, what, lang=found.lang)
        return found.lang, found.confidence

    return detect
