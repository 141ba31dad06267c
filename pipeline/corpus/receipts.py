"""Receipts: the record of finished work. A file that no receipt names is not part of the corpus.

A part's receipt vouches for the files that one stage wrote for one part. A chunk's receipt, written after those of its
parts, vouches for the accounting: documents in = kept + dropped by reason + quarantined by reason. Receipts are
created, never changed; if two writers compete, the second one deletes its own files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from pipeline.base.errors import CorpusError, DamagedError, visible
from pipeline.base.parallel import prefetch
from pipeline.corpus.fingerprint import column_digest, content_digest
from pipeline.storage import layout
from pipeline.storage.records import Record, read_json, sealed
from pipeline.storage.retry import take_retry_counts
from pipeline.storage.store import Store

AGAIN = "delete it and run again: pipeline verify --repair does so for all that are damaged"
COPIED = "copied"  # a count in receipts: rows that an earlier version of the part had
REPEATED = "storage_retries"  # a count in receipts: requests to the store that were repeated
UNCOMPARED = "files of {} are not compared with their receipts first: pipeline verify does that"
CHECKED_BYTES = 1 << 30  # of embeddings: two cores hash as many bytes in 0.9 s, from the page cache


AnyRecord = TypeVar("AnyRecord", bound=Record)


class DataFile(Record):
    """A file that a receipt vouches for: family, relative path, rows, bytes and the digest of its bytes."""

    family: str
    path: str
    rows: int
    bytes: int
    digest: str


def compare_content(store: Store, files: Iterable[DataFile]) -> None:
    """Raise `CorpusError` if a file is not what its receipt says. Reads all of them."""

    def is_whole(file: DataFile) -> bool:
        return store.exists(file.path) and content_digest(store.read(file.path)) == file.digest

    for file, whole in prefetch(lambda one: (one, is_whole(one)), files):
        if not whole:
            raise CorpusError(
                f"{store.url}/{file.path} is not what its receipt says: it was changed, damaged or deleted; pipeline "
                f"verify {store.url} --repair deletes what is wrong, and the next run makes it again"
            )


class Receipt(Record):
    """The record of one stage's work on one part."""

    stage: str
    part: str
    fingerprint: str
    recipe: str  # fingerprint of the stage's settings, version and models alone
    inputs: dict[str, str]  # digests of the columns it read
    files: list[DataFile]
    columns: dict[str, str]  # digests of the columns it wrote
    rows: int
    counts: dict[str, float]
    seconds: dict[str, float]
    device: str
    created: float
    warnings: list[str] = Field(default_factory=list)  # what stages and libraries warned of, each text once
    replaces: str = ""  # of `segment`: the fingerprint of the part's version before, whose rows other stages may copy

    @model_serializer(mode="wrap")
    def _only_what_says_something(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `replaces` out where it is empty, as earlier versions did: ledgers hold receipts verbatim."""
        found: dict[str, Any] = dump(self)
        if not self.replaces:
            del found["replaces"]
        return found


class PartRef(Record):
    """A part as the segment stage left it: its name and the fingerprint of its segmentation."""

    part: str
    fingerprint: str


class ChunkReceipt(Record):
    """The accounting of one chunk."""

    chunk: str
    fingerprint: str
    recipe: str
    input: str
    source: str
    stamp: str  # of the input file; another stamp means another content
    take: int | None  # documents taken from it, if a limit cut it
    parts: list[PartRef]
    documents_in: int  # counted independently of the reader
    kept: int
    dropped: dict[str, int]
    quarantined: dict[str, int]
    quarantine: DataFile | None
    sentences: int
    counts: dict[str, float]
    bytes_read: int
    bytes_unreadable: int
    seconds: float
    created: float
    content: str = ""  # of what was read, as `pipeline/inputs/counting.py` has it; earlier versions have none

    def balance(self) -> str | None:
        """Return None if documents in = kept + dropped + quarantined; otherwise say what is wrong."""
        out = self.kept + sum(self.dropped.values()) + sum(self.quarantined.values())
        if out == self.documents_in:
            return None
        return (
            f"the accounting of {self.source} (chunk {self.chunk}) does not balance: "
            f"{self.documents_in} documents in, but "
            f"{self.kept} kept + {sum(self.dropped.values())} dropped + {sum(self.quarantined.values())} quarantined "
            f"= {out}"
        )


def write_family(
    store: Store, family: str, part: str, fingerprint: str, table: pa.Table
) -> tuple[DataFile, dict[str, str]]:
    """Write one data file under a new name.

    Args:
        store: the corpus.
        family: the family, one of `layout`'s schemas.
        part: the name of the part.
        fingerprint: the fingerprint of the result, 64 hex digits.
        table: the rows.

    Returns:
        The file's entry for the receipt, and column → digest.
    """
    data = layout.to_parquet(table)
    path = layout.data_path(family, part, fingerprint)
    store.write(path, memoryview(data))
    file = DataFile(family=family, path=path, rows=table.num_rows, bytes=data.size, digest=content_digest(data))
    return file, {f"{family}.{name}": column_digest(table[name]) for name in table.column_names}


def commit(
    store: Store,
    *,
    stage: str,
    part: str,
    fingerprint: str,
    recipe: str,
    inputs: dict[str, str],
    families: dict[str, pa.Table],
    counts: dict[str, float],
    seconds: dict[str, float],
    device: str,
    warnings: Sequence[str] = (),
    replaces: str = "",
) -> tuple[Receipt, bool]:
    """Write a part's files, then its receipt.

    If another worker was faster, its receipt stays and our files are deleted.

    Args:
        store: the corpus.
        stage: the stage that made the files.
        part: the name of the part.
        fingerprint: the fingerprint of the result, 64 hex digits.
        recipe: the digest of the recipe.
        inputs: column → digest of what the stage read.
        families: family → its rows; empty if the stage writes no file.
        counts: the stage's counters.
        seconds: seconds by kind of work; the time of this commit is added.
        device: where it was computed.
        warnings: what is to be shown at the end of the run.
        replaces: the fingerprint of the version whose rows were copied; empty if none were.

    Returns:
        The receipt that exists, and whether it is ours.
    """
    started = time.perf_counter()
    files: list[DataFile] = []
    columns: dict[str, str] = {}
    for family, table in families.items():
        file, digests = write_family(store, family, part, fingerprint, table)
        files.append(file)
        columns |= digests
    receipt = Receipt(
        stage=stage,
        part=part,
        fingerprint=fingerprint,
        recipe=recipe,
        inputs=inputs,
        files=files,
        columns=columns,
        rows=max((table.num_rows for family, table in families.items() if family != "documents"), default=0),
        counts=counts | _repeated(),
        seconds={**seconds, "commit": round(time.perf_counter() - started, 4)},
        device=device,
        created=time.time(),
        warnings=list(warnings),
        replaces=replaces,
    )
    path = layout.receipt_path(stage, part, fingerprint)
    if store.create(path, sealed(receipt.model_dump_json())):
        return receipt, True
    first = read_receipt(store, path)
    if first.files == files:  # our own: the answer to the first request was lost, and the request was repeated
        return first, True
    for file in files:
        store.delete(file.path)
    return first, False


def _repeated() -> dict[str, float]:
    """Return how often this process repeated requests to the store since its last receipt, also for other threads'
    parts.
    """
    repeated = take_retry_counts().total()
    return {REPEATED: repeated} if repeated else {}


def commit_chunk(store: Store, receipt: ChunkReceipt) -> ChunkReceipt:
    """Write a chunk's receipt if its accounting balances. Raises `CorpusError` if it does not."""
    wrong = receipt.balance()
    if wrong:
        raise CorpusError(wrong)
    counts = {key: value for key, value in receipt.counts.items() if key != REPEATED}  # receipts of parts hold these
    receipt = receipt.model_copy(update={"counts": counts | _repeated()})
    path = layout.chunk_receipt_path(receipt.chunk, receipt.fingerprint)
    if store.create(path, sealed(receipt.model_dump_json())):
        return receipt
    first = read_chunk_receipt(store, path)
    if receipt.quarantine and receipt.quarantine != first.quarantine:
        store.delete(receipt.quarantine.path)
    accounting = ("parts", "documents_in", "kept", "dropped", "quarantined", "sentences")
    differing = [name for name in accounting if getattr(receipt, name) != getattr(first, name)]
    if differing:
        raise CorpusError(
            f"{path} ({receipt.source}) was written before with other {', '.join(differing)}; the input changed during "
            "the run, or a retry was cut off: delete that file and run again"
        )
    return first


def read_receipt(store: Store, path: str) -> Receipt:
    """Read a part's receipt. Raises `CorpusError` if it is missing, damaged, or the receipt of something else."""
    receipt = read_json(store, path, Receipt, AGAIN)
    return _checked(store, path, receipt, layout.receipt_path(receipt.stage, receipt.part, receipt.fingerprint))


def read_chunk_receipt(store: Store, path: str) -> ChunkReceipt:
    """Read a chunk's receipt. Raises `CorpusError` if it is missing, damaged, or the receipt of something else."""
    receipt = read_json(store, path, ChunkReceipt, AGAIN)
    return _checked(store, path, receipt, layout.chunk_receipt_path(receipt.chunk, receipt.fingerprint))


def _checked(store: Store, path: str, receipt: AnyRecord, place: str) -> AnyRecord:
    if path != place:
        raise DamagedError(f"{store.url}/{path}", f"it is the receipt {visible(place)}", AGAIN)
    return receipt


def summed(counts: list[dict[str, Any]]) -> dict[str, float]:
    """Add up counts key by key; of keys named `least.…`, keep the smallest value."""
    total: dict[str, float] = {}
    for one in counts:
        for key, value in one.items():
            total[key] = min(total.get(key, value), value) if key.startswith("least.") else total.get(key, 0) + value
    return total
