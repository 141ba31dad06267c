"""The books of a corpus: everything that went in is in a part, dropped with a reason, or in quarantine.

Read from receipts (or the ledgers that sum them up) alone, after the work, so that what a worker claimed does not
matter, only what it committed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.config import STAGES
from pipeline.state.receipts import REPEATED
from pipeline.state.recipes import SEGMENT
from pipeline.state.standing import LISTED_PARTS
from pipeline.state.states import ChunkState, problems_in, total_of
from pipeline.state.sums import CHUNK, Sums, below, busy, counted, stages_of
from pipeline.storage.store import Store

# a data file, or what `Store.write` had of it when it was killed; files that people put beside them are not ours
ATTEMPT = re.compile(r"\.?(?P<part>[0-9a-f-]+)\.(?P<fingerprint>[0-9a-f]{8})-[0-9a-f]{6}\.parquet(\.[0-9a-f]{8}\.tmp)?")

ONE_LISTING = 100_000  # parts whose files are listed at once
PAGE = 1000  # names that an object store lists at a time


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
    repeated: int = 0  # requests to the store that had to be sent again
    open_chunks: int = 0
    open_parts: Counter[str] = field(default_factory=Counter)  # by stage
    warnings: Counter[str] = field(default_factory=Counter)  # text → parts of a stage that it was raised for
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every chunk is segmented and every part has every stage."""
        return not self.open_chunks and not self.open_parts


def keep_books(store: Store, chunks: Sequence[ChunkState]) -> Books:
    """Add up the receipts of a view and check that they agree with each other.

    Of at most 20 000 parts it is also checked that their files are there; of more, `pipeline verify` does that.
    """
    books = _books_of(total_of(chunks))
    books.problems = problems_in(chunks)
    if books.parts <= LISTED_PARTS:
        books.problems += _missing_files(store, chunks)
    return books


def _books_of(total: Sums) -> Books:
    def chunk(name: str) -> int:
        return int(total.get(f"{CHUNK}/{name}", 0))

    books = Books(
        chunks=chunk("chunks"),
        documents_in=chunk("documents_in"),
        kept=chunk("kept"),
        dropped=counted(total, CHUNK, "dropped"),
        quarantined=counted(total, CHUNK, "quarantined"),
        sentences=chunk("sentences"),
        parts=chunk("parts"),
        bytes_read=chunk("bytes_read"),
        bytes_unreadable=chunk("bytes_unreadable"),
        repeated=int(sum(total.get(f"{owner}/counts/{REPEATED}", 0) for owner in (CHUNK, *STAGES))),
        open_chunks=int(total.get(f"{SEGMENT}/left", 0)),
        data_bytes=counted(total, CHUNK, "bytes"),
    )
    for stage in stages_of(total):
        books.data_bytes.update(counted(total, stage, "bytes"))
        books.warnings.update({f"{stage}: {text}": parts for text, parts in counted(total, stage, "warnings").items()})
        left = int(total.get(f"{stage}/left", 0))
        if left and stage != SEGMENT:
            books.open_parts[stage] = left
        if f"{stage}/parts" in total:
            books.rows[stage] = int(total[f"{stage}/rows"])
            books.counts[stage] = below(total, stage, "counts")
            books.seconds[stage] = busy(below(total, stage, "seconds"))
    return books


def _missing_files(store: Store, chunks: Sequence[ChunkState]) -> Iterator[str]:
    present: dict[str, set[str]] = {}
    for one in chunks:
        files = [one.receipt.quarantine] if one.receipt and one.receipt.quarantine else []
        files += [file for part in one.parts for done in part.receipts.values() for file in done.files]
        for file in files:
            if file.path not in present.setdefault(file.family, set(store.find(file.family))):
                yield f"{file.path} is missing, though a receipt vouches for it; delete that receipt, run again"


def sweep(store: Store, chunks: Sequence[ChunkState], whole: bool = True) -> int:
    """Delete data files of finished work that no receipt names (a killed attempt left them). Returns how many.

    whole: these are all chunks of the corpus.

    Of chunks that are in no ledger yet: call it before they are folded; `pipeline gc` sees all. Safe beside other
    writers: once a receipt stands, no other attempt at the same part and fingerprint can win. Cost: a listing of each
    family, by pieces where there are many parts, or listings of what belongs to those chunks where that is less.
    """
    named: set[str] = set()
    finished: set[tuple[str, str, str]] = set()
    every = 0
    swept: list[str] = []
    for chunk in chunks:
        every += len(chunk.numbers)
        if chunk.folded or not chunk.receipt:
            continue
        swept.append(chunk.chunk.id)
        finished.add(("quarantine", chunk.receipt.chunk, chunk.receipt.fingerprint[:8]))
        if chunk.receipt.quarantine:
            named.add(chunk.receipt.quarantine.path)
        for part in chunk.parts:
            for receipt in part.receipts.values():
                for file in receipt.files:
                    named.add(file.path)
                    finished.add((file.family, part.ref.part, receipt.fingerprint[:8]))
    gone = 0
    names = [f"{hidden}{chunk}" for chunk in swept for hidden in ("", ".")]
    few = not whole or len(names) < every // PAGE
    listed = [names] if few else [[prefix] for prefix in prefixes(every)]
    for family in sorted({family for family, _, _ in finished}):
        for some in listed:
            for path in store.find_any(family, some):
                attempt = ATTEMPT.fullmatch(path.rsplit("/", 1)[-1])
                if attempt and path not in named and (family, attempt["part"], attempt["fingerprint"]) in finished:
                    store.delete(path)
                    gone += 1
    return gone


def prefixes(parts: int) -> Sequence[str]:
    """How names that begin with a hash (or the dot of an unfinished file) are listed, so that memory is bounded."""
    return [""] if parts <= ONE_LISTING else "0123456789abcdef."
