"""What reading an input yields: documents, and rejected records, each with a reason."""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.base.errors import visible

PAYLOAD = 4 << 10  # bytes kept of a rejected record: the input holds the whole record, at the place that `record` gives
ERROR = 500  # characters
NEAR = 20  # characters on both sides of a mistake that are shown
JSON_TYPES = (bool, int, float, list, tuple, dict)
Kind = Literal["dropped", "quarantined"]

_SHORT = reprlib.Repr()  # bounded in width and depth, however large the value
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class BadRecordError(Exception):
    """A record cannot become a document. `reason`, `error`, `kind` and `bytes_unreadable` are as in `Rejected`.

    Args:
        reason: the reason that the accounting counts, such as `empty`.
        error: what is wrong, for a person.
        bytes_unreadable: how many bytes of the file are lost with the record.
        kind: `quarantined` or `dropped`.
        lang: of an unknown language, what was stated or detected.
    """

    def __init__(
        self, reason: str, error: str, bytes_unreadable: int = 0, kind: Kind = "quarantined", lang: str | None = None
    ) -> None:
        super().__init__(error)
        self.reason = reason
        self.error = error
        self.bytes_unreadable = bytes_unreadable
        self.kind: Kind = kind
        self.lang = lang


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    `source`: input name and relative path. `record`: where the document stands, as in `Rejected`. `lang_confidence`: 0
    to 1; None if the language was stated. `kept`: the metadata columns; None where null or missing.
    """

    doc_id: str
    text: str
    lang: str
    split: str
    source: str
    kept: dict[str, Any]
    record: str = ""
    lang_confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is not a document, or several at once when a file breaks.

    `record`: where it stands: "path line 17, byte 1234" of the decompressed file (lines count from 1, bytes from 0; in
    the later chunks of a large file only "path byte 67108901"), "path row 17" (from 0), or "path". `reason`: a short
    stable label. `error`: the details, safe to write and show. `payload`: the beginning of the raw record, at most 4
    KiB. `payload_bytes`: the length of the whole raw record. `kind`: "dropped" needs no attention (a blank line);
    "quarantined" does. `records`: how many records this stands for: 1, or the remaining rows of a broken Parquet row
    group. `bytes_unreadable`: stored bytes that could not be decoded (of a record in a compressed file: its own bytes).
    """

    doc_id: str | None
    record: str
    reason: str
    error: str
    payload: bytes
    payload_bytes: int
    kind: Kind = "quarantined"
    records: int = 1
    bytes_unreadable: int = 0

    @classmethod
    def of(
        cls,
        doc_id: str | None,
        record: str,
        reason: str,
        error: str,
        payload: bytes = b"",
        payload_bytes: int | None = None,
        **more: Any,
    ) -> Rejected:
        """Make a rejected record whose texts can be stored and shown, whatever the record holds.

        Args:
            doc_id: the id of the document, if it is known.
            record: where the record is: a line, a row.
            reason: the reason that the accounting counts.
            error: what is wrong, for a person; long texts are cut.
            payload: the content of the record; at most `PAYLOAD` bytes are stored.
            payload_bytes: the size of the whole content, if it is more than the length of `payload`.
            **more: further fields of this class.

        Returns:
            The rejected record.
        """
        error = visible(error if len(error) <= ERROR else f"{error[:ERROR]}…")
        size = len(payload) if payload_bytes is None else payload_bytes
        return cls(doc_id, record, reason, error, payload[:PAYLOAD], size, **more)


def short(value: Any) -> str:
    """Show a value of a record in a message: shortened, with escapes for invisible characters."""
    return "null" if value is None else _SHORT.repr(value)


def where_not_utf8(error: UnicodeDecodeError) -> str:
    """Say what is wrong with bytes that are not UTF-8, and where."""
    near = error.object[max(0, error.start - NEAR) : error.start + NEAR].decode("utf-8", "replace")
    return f"byte 0x{error.object[error.start]:02x} at {error.start} is not UTF-8 ({error.reason}), near {short(near)}"


def as_text(value: Any, column: str) -> str:
    """Return a string as it is, numbers, lists and objects as JSON text, and dates and the like as Python writes them.

    Raises BadRecordError for what cannot be written as UTF-8.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, JSON_TYPES) else str(value)
    except (RecursionError, ValueError, TypeError) as error:  # too deep, or keys that JSON has no word for
        raise BadRecordError("not encodable", f"{column}: {error}") from error
    encode(text, column)
    return text


def encode(text: str, column: str) -> bytes:
    """Encode as UTF-8, or raise BadRecordError: JSON can spell lone surrogates ("\ud800"), which UTF-8 cannot hold."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        what = f"{column} holds half a character, {text[error.start]!r} at {error.start}, which UTF-8 has no bytes for"
        raise BadRecordError("not encodable", what) from error
