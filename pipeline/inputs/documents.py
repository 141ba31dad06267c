"""What comes out of an input: documents, and records that are none, each with its reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

PAYLOAD = 4 << 10  # bytes kept of a rejected record: the whole of it stands in the input, where `record` says
ERROR = 500  # characters
JSON_TYPES = (bool, int, float, list, tuple, dict)


class BadRecordError(Exception):
    """A record that cannot become a document. `reason` is a short stable label, `error` the detail."""

    def __init__(self, reason: str, error: str, bytes_unreadable: int = 0) -> None:
        super().__init__(error)
        self.reason = reason
        self.error = error
        self.bytes_unreadable = bytes_unreadable


@dataclass(frozen=True, slots=True)
class Document:
    """One document. `source`: input name and relative path. `kept`: columns asked for; None where null or missing.

    `record`: where it stands, as in `Rejected`.
    """

    doc_id: str
    text: str
    lang: str
    split: str
    source: str
    kept: dict[str, str | None]
    record: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no document, or several at once when a file breaks.

    `record`: where it stands ("path:byte offset", of the decompressed file; "path row 17"; "path").
    `reason`: short stable label; `error`: the detail, fit to be written and shown.
    `payload`: the beginning of the raw record, at most 4 KiB; `payload_bytes`: the length of the whole of it.
    `kind`: "dropped" is nothing to look at (a blank line); "quarantined" is.
    `records`: how many records this stands for: 1, or the rows left in a broken Parquet row group.
    `bytes_unreadable`: stored bytes that could not be decoded (of a record in a compressed file: its own bytes).
    """

    doc_id: str | None
    record: str
    reason: str
    error: str
    payload: bytes
    payload_bytes: int
    kind: Literal["dropped", "quarantined"] = "quarantined"
    records: int = 1
    bytes_unreadable: int = 0

    @classmethod
    def of(
        cls, doc_id: str | None, record: str, reason: str, error: str, payload: bytes = b"", **more: Any
    ) -> Rejected:
        """Texts that can be stored and shown whatever the record holds: bounded, without half characters."""
        error = error if len(error) <= ERROR else f"{error[:ERROR]}…"
        error = error.encode("utf-8", "backslashreplace").decode()
        return cls(doc_id, record, reason, error, payload[:PAYLOAD], len(payload), **more)


def as_text(value: Any, column: str) -> str:
    """A string as it is, numbers, lists and objects as JSON text, dates and the like as Python writes them.

    Raises BadRecordError for what cannot be written as UTF-8.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, JSON_TYPES) else str(value)
    except (RecursionError, ValueError, TypeError) as error:  # too deep, or keys that JSON has no word for
        raise BadRecordError("not encodable", f"{column}: {error}") from error
    encode(text, column)
    return text


def encode(text: str, column: str) -> bytes:
    """UTF-8, or BadRecordError: JSON can spell half a character ("\\ud800") that no UTF-8 file can hold."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRecordError("not encodable", f"{column}: {error.reason} at character {error.start}") from error
