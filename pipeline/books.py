"""The books of a corpus: everything that went in is in a part, dropped with a reason, or in quarantine.

Read from receipts alone, after the work, so that what a worker claimed does not matter, only what it committed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from pipeline import layout
from pipeline.receipts import REPEATED, summed
from pipeline.recipes import SEGMENT
from pipeline.state import ChunkState
from pipeline.store import Store

# a data file, or what `Store.write` had of it when it was killed; files that people put beside them are not ours
ATTEMPT = re.compile(r"\.?(?P<part>[0-9a-f-]+)\.(?P<fingerprint>[0-9a-f]{8})-[0-9a-f]{6}\.parquet(\.[0-9a-f]{8}\.tmp)?")


@dataclass
class Books:
    """Totals over a view, and what is wrong with them."""

    chunks: int = 0
    documents_in: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    sentences: int = 0
    parts: int = 0
    bytes_read: int = 0
    bytes_unreadable: int = 0
    counts: dict[str, dict[str, float]] = field(default_factory=dict)  # by stage
    rows: Counter[str] = field(default_factory=Counter)  # sentences, by stage
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, without waiting
    data_bytes: Counter[str] = field(default_factory=Counter)  # by family
    open_chunks: int = 0
    open_parts: Counter[str] = field(default_factory=Counter)  # by stage
    warnings: Counter[str] = field(default_factory=Counter)  # text → parts of a stage that it was raised for
    problems: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """Requests to the store that had to be repeated."""
        return int(sum(counts.get(REPEATED, 0) for counts in self.counts.values()))

    @property
    def complete(self) -> bool:
        """Whether every chunk is segmented and every part has every stage."""
        return not self.open_chunks and not self.open_parts


def keep_books(store: Store, chunks: list[ChunkState]) -> Books:
    """Add up the receipts of a view and check that they agree with each other and with the files that are there."""
    books = Books()
    present = {family: set(store.find(family)) for family in ("documents", *layout.ROW_FAMILIES, "quarantine")}
    for chunk in chunks:
        receipt = chunk.receipt
        if not receipt:
            books.open_chunks += 1
            continue
        books.chunks += 1
        books.documents_in += receipt.documents_in
        books.kept += receipt.kept
        books.dropped.update(receipt.dropped)
        books.quarantined.update(receipt.quarantined)
        books.sentences += receipt.sentences
        books.bytes_read += receipt.bytes_read
        books.bytes_unreadable += receipt.bytes_unreadable
        _check_chunk(books, chunk)
        files = [receipt.quarantine] if receipt.quarantine else []
        for part in chunk.parts:
            books.parts += 1
            books.open_parts.update(part.missing)
            for stage, done in part.receipts.items():
                files += done.files
                books.warnings.update(f"{stage}: {text}" for text in done.warnings)
                books.rows[stage] += done.rows
                books.counts[stage] = summed([books.counts.get(stage, {}), done.counts])
                busy = sum(value for key, value in done.seconds.items() if key != "wait")
                books.seconds[stage] = books.seconds.get(stage, 0.0) + busy
                if done.rows != part.rows:
                    books.problems.append(f"{stage} of part {part.ref.part} has {done.rows} rows, not {part.rows}")
        for file in files:
            books.data_bytes[file.family] += file.bytes
            if file.path not in present[file.family]:
                books.problems.append(
                    f"{file.path} is missing, though a receipt vouches for it; delete that receipt, run again"
                )
    return books


def _check_chunk(books: Books, chunk: ChunkState) -> None:
    receipt = chunk.receipt
    if not receipt:
        return
    wrong = receipt.balance()
    if wrong:
        books.problems.append(wrong)
    rows = sum(part.rows for part in chunk.parts)
    if rows != receipt.sentences:
        books.problems.append(f"chunk {receipt.chunk} counts {receipt.sentences} sentences, its parts {rows}")
    segmented = [part.receipts[SEGMENT].counts for part in chunk.parts]
    documents = sum(one["documents"] - one.get("split_documents", 0) for one in segmented)
    if documents != receipt.kept:
        books.problems.append(f"chunk {receipt.chunk} kept {receipt.kept} documents, its parts hold {documents:.0f}")


def sweep(store: Store, chunks: list[ChunkState]) -> int:
    """Delete data files of finished work that no receipt names (a killed attempt left them). Returns how many.

    Safe beside other writers: once a receipt stands, no other attempt at the same part and fingerprint can win.
    """
    named: set[str] = set()
    finished: set[tuple[str, str, str]] = set()
    for chunk in chunks:
        if chunk.receipt:
            finished.add(("quarantine", chunk.receipt.chunk, chunk.receipt.fingerprint[:8]))
            if chunk.receipt.quarantine:
                named.add(chunk.receipt.quarantine.path)
        for part in chunk.parts:
            for receipt in part.receipts.values():
                for file in receipt.files:
                    named.add(file.path)
                    finished.add((file.family, part.ref.part, receipt.fingerprint[:8]))
    gone = 0
    for family in sorted({family for family, _, _ in finished}):
        for path in store.find(family):
            attempt = ATTEMPT.fullmatch(path.rsplit("/", 1)[-1])
            if attempt and path not in named and (family, attempt["part"], attempt["fingerprint"]) in finished:
                store.delete(path)
                gone += 1
    return gone
