"""Accounts for documents of a chunk that do not become sentences: counted by reason, and listed for people to look at.

The list names each record's place (file and byte offset or row), so it stays small whatever the input contains: only
the first 4 KiB of a record are kept, and after 10 000 records of a chunk, each reason has one row for all further
records, with the place of the first of them. That bounds the list to about 60 MB of memory per chunk; whole records can
be read from the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pyarrow as pa

from pipeline.corpus.recipes import SEGMENT
from pipeline.inputs import Document, Rejected
from pipeline.inputs.documents import short
from pipeline.storage import layout

PURGED = "purged"
DUPLICATE = "duplicate id"
LISTED = 10_000  # records of a chunk that have a row of their own


class ChunkAccounting:
    """The accounting of one chunk. Costs about 150 bytes for each document that has an id of its own.

    `purged`: ids that are dropped with the reason `purged`, whatever else is wrong with their records, unless there is
    no text in them: nothing of such a record was ever kept, so a purge changes nothing about it.
    """

    def __init__(self, purged: Collection[str] = ()) -> None:
        self.purged = purged
        self.kept = 0
        self.dropped: Counter[str] = Counter()
        self.quarantined: Counter[str] = Counter()
        self.bytes_unreadable = 0
        self._rows: list[dict[str, object]] = []
        self._rest: dict[tuple[str, str], Rejected] = {}  # stage, reason → the first one without a row, and how many
        self._more: Counter[tuple[str, str]] = Counter()
        self._ids: dict[str, str] = {}  # id → source of the last document that has it

    def reject(self, item: Rejected) -> None:
        """Count a record that the reader rejected; quarantined records are listed."""
        self.bytes_unreadable += item.bytes_unreadable
        if item.kind == "dropped":
            self.dropped[item.reason] += item.records
        elif item.doc_id in self.purged:
            self.dropped[PURGED] += item.records
        else:
            self._list(item, "input")

    def quarantine(self, document: Document, reason: str, error: str) -> None:
        """Put a document into quarantine, with its text.

        Args:
            document: the document.
            reason: the reason that the accounting counts.
            error: what is wrong, for a person.
        """
        if document.doc_id in self.purged:
            self.dropped[PURGED] += 1
            return
        payload = document.text.encode()
        self._list(Rejected.of(document.doc_id, document.record, reason, error, payload), SEGMENT)

    def is_first(self, document: Document, in_chunk: bool) -> bool:
        """Return whether no earlier document had the same id; a later one goes into quarantine.

        in_chunk: also count the documents of other files that share the chunk.
        """
        before = self._ids.get(document.doc_id)
        if before == document.source or (in_chunk and before):
            of = "this file" if before == document.source else before
            what = f"an earlier document of {of} has the id {short(document.doc_id)} too; the first one is kept"
            self.quarantine(document, DUPLICATE, what)
            return False
        self._ids[document.doc_id] = document.source
        return True

    def quarantine_later(self, document: Document, first: str) -> None:
        """Put a document into quarantine because an earlier one of another chunk has its id. `first`: the source of
        that document.
        """
        what = f"an earlier document of {first} has the id {short(document.doc_id)} too; the first one is kept"
        self.quarantine(document, DUPLICATE, what)

    def table(self) -> pa.Table | None:
        """Return the list, in the order of the input; None if nothing was quarantined."""
        rows = self._rows + [
            _row(first, stage)
            | {
                "records": self._more[stage, reason],
                "error": f"{first.error} (this record and all later ones of the chunk with the same reason)",
            }
            for (stage, reason), first in self._rest.items()
        ]
        return pa.Table.from_pylist(rows, schema=layout.schema("quarantine")) if rows else None

    def _list(self, item: Rejected, stage: str) -> None:
        self.quarantined[item.reason] += item.records
        if len(self._rows) < LISTED:
            self._rows.append(_row(item, stage))
        else:
            self._rest.setdefault((stage, item.reason), item)
            self._more[stage, item.reason] += item.records


def _row(item: Rejected, stage: str) -> dict[str, object]:
    names = ("record", "records", "doc_id", "reason", "error", "payload", "payload_bytes")
    return {name: getattr(item, name) for name in names} | {"stage": stage}
