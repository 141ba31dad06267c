"""Turns one chunk of input into parts of sentences on disk, and does the accounting of the chunk.

Documents are streamed in batches; a part closes at the end of the document that reaches `part_sentences`. Segmenting a
chunk is deterministic, so after a crash it is repeated from the chunk's start, and the existing parts are recognised by
their receipts. A chunk that differs from its earlier version only in purged documents is written from the rows of that
version (`rewriting.py`). Memory: one part, and one batch of documents; a large document takes 9 to 15 times its bytes
(50 MB: 0.5 to 0.7 GB).
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.captured import capture_warnings
from pipeline.base.errors import CorpusError, starting
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import column_digest, fingerprint
from pipeline.corpus.part_reader import kept_names
from pipeline.corpus.receipts import (
    ChunkReceipt,
    DataFile,
    PartRef,
    Receipt,
    commit,
    commit_chunk,
    read_receipt,
    summed,
    write_family,
)
from pipeline.corpus.recipes import SEGMENT, Recipes, first_only, segment_part_fingerprint
from pipeline.inputs import Chunk, Content, Document, InputSettings, Rejected, count_documents, read_documents
from pipeline.inputs.column_types import types_in
from pipeline.inputs.records import needed_columns
from pipeline.inputs.rows import read_otherwise_before
from pipeline.run.chunk_accounting import PURGED, ChunkAccounting
from pipeline.run.kept_columns import KeptColumns
from pipeline.run.rewriting import PartBefore, PartLeft, chunk_left, part_left, rewriting, same_part, version_before
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.computing import segmenting
from stages.sampling import document_seed, uniform
from stages.segment import marks
from stages.segment.segmenter import Segmented, Segmenter
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer

BATCH_DOCUMENTS = 512
BATCH_CHARACTERS = 2_000_000
OFFSETS = ("sentences.start", "sentences.end")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Segmentation:
    """A part that is on disk and ready for the row-wise stages."""

    ref: PartRef
    rows: int


@dataclass
class _Part:
    """The open part: rows of documents and pieces of the sentence table, in order.

    `purged`: rows that count towards its end but are not in it, so that other parts stay as they are.
    """

    documents: dict[str, list[object]]
    sentences: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    purged: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    since: float = field(default_factory=time.perf_counter)

    @property
    def kept(self) -> list[str]:
        """The metadata columns."""
        return list(self.documents)[len(layout.DOCUMENT_COLUMNS) :]


class ChunkSegmenter:
    """Segments chunks on `device`; holds the segmenter and its tokenizer, so make one per process."""

    def __init__(self, config: RunConfig, device: str = "cpu") -> None:
        self.config = config
        self.store = Store(config.output)
        self.recipes = Recipes.of(config)
        self.card = load_card(config.segment.model)
        with starting("segment"), capture_warnings() as self._warned_loading:  # warnings concern every part
            self.segmenter = Segmenter(config.segment, SonarTokenizer(self.card).count, device)
        self._device = device
        self._warned: list[str] = []  # since the last part

    def run(self, chunk: Chunk) -> Iterator[Segmentation | ChunkReceipt]:
        """Yield each part as soon as it is on disk, and at the end the chunk's receipt.

        Raises `CorpusError` if the accounting does not balance or a part differs from what an earlier attempt wrote.
        """
        chunk_fingerprint = self.recipes.chunk_fingerprint(chunk)
        recipe = fingerprint(self.recipes.segment[chunk.input])
        self._warned = []
        before = version_before(self.store, chunk, chunk_fingerprint, recipe)
        columns = KeptColumns.of(chunk, self._settings(chunk), self.config)
        done: set[str] = set()
        if before:
            for item in self._rewritten(chunk, chunk_fingerprint, before, columns):
                yield item
                if isinstance(item, ChunkReceipt):
                    return
                done.add(item.ref.part)
        for item in self._segmented(chunk, chunk_fingerprint, recipe, before, columns):
            if isinstance(item, ChunkReceipt) or item.ref.part not in done:
                yield item

    def _rewritten(
        self, chunk: Chunk, chunk_fingerprint: str, before: ChunkReceipt, columns: KeptColumns
    ) -> Iterator[Segmentation | ChunkReceipt]:
        """Yield what `run` does, from the rows of the earlier version; without the chunk's receipt if that cannot be
        done.
        """
        started = time.perf_counter()
        parts: list[Receipt] = []
        try:
            how = rewriting(self.store, self.recipes, chunk, before, columns.stay)
            if how is None:
                return
            for part in how.parts:
                part_fingerprint = segment_part_fingerprint(chunk_fingerprint, part.number)
                since = time.perf_counter()
                if not part.touched:
                    parts.append(same_part(self.store, part, part_fingerprint))
                elif left := part_left(self.store, part, how.gone):
                    parts.append(self._commit_left(chunk, part, left, part_fingerprint, since))
                else:
                    continue
                yield _segmentation(parts[-1])
        except CorpusError as error:
            self._warned.append(f"{chunk.path} is segmented again, though only documents were purged: {error}")
            return
        receipt = chunk_left(how, chunk_fingerprint, parts)
        receipt = receipt.model_copy(
            update={
                "quarantine": self._quarantine(chunk, chunk_fingerprint, how.quarantine),
                "seconds": round(receipt.seconds + time.perf_counter() - started, 3),
            }
        )
        yield commit_chunk(self.store, receipt)

    def _commit_left(
        self, chunk: Chunk, part: PartBefore, left: PartLeft, part_fingerprint: str, since: float
    ) -> Receipt:
        before = part.receipt
        share = left.sentences.num_rows / before.rows
        seconds = {step: round(taken * share, 4) for step, taken in before.seconds.items() if step != "commit"}
        return self._commit(
            chunk,
            before.part,
            part_fingerprint,
            {"documents": left.documents, "sentences": left.sentences},
            recipe=before.recipe,
            counts=left.counts,
            seconds=seconds | {"copy": round(time.perf_counter() - since, 4)},
            device=before.device,
            warnings=before.warnings,
            replaces=before.fingerprint,
        )

    def _quarantine(self, chunk: Chunk, chunk_fingerprint: str, listed: pa.Table | None) -> DataFile | None:
        if listed is None or not listed.num_rows:
            return None
        return write_family(self.store, "quarantine", chunk.id, chunk_fingerprint, listed)[0]

    def _segmented(
        self, chunk: Chunk, chunk_fingerprint: str, recipe: str, before: ChunkReceipt | None, columns: KeptColumns
    ) -> Iterator[Segmentation | ChunkReceipt]:
        started = time.perf_counter()
        accounting = ChunkAccounting(self.recipes.tombstones.ids)
        replaced = {ref.part: ref.fingerprint for ref in before.parts} if before else {}
        parts: list[Receipt] = []
        for number, part in enumerate(self._parts(chunk, accounting)):
            if part.rows:  # of one whose documents were all purged, only the number is left
                name = layout.part_name(chunk.id, number)
                part_fingerprint = segment_part_fingerprint(chunk_fingerprint, number)
                parts.append(self._close(chunk, part, columns, name, part_fingerprint, recipe, replaced.get(name, "")))
                yield _segmentation(parts[-1])
        content = Content(needed_columns(self._settings(chunk), self.config.split))
        counted = count_documents(chunk, content)
        receipt = ChunkReceipt(
            chunk=chunk.id,
            fingerprint=chunk_fingerprint,
            recipe=recipe,
            input=chunk.input,
            source=chunk.path,
            stamp=chunk.stamp,
            take=chunk.take,
            parts=[PartRef(part=one.part, fingerprint=one.fingerprint) for one in parts],
            documents_in=counted.documents,
            kept=accounting.kept,
            dropped=dict(accounting.dropped),
            quarantined=dict(accounting.quarantined),
            quarantine=self._quarantine(chunk, chunk_fingerprint, accounting.table()),
            sentences=sum(one.rows for one in parts),
            counts=summed([one.counts for one in parts]),
            bytes_read=counted.bytes_read,
            bytes_unreadable=max(accounting.bytes_unreadable, counted.bytes_unreadable),
            seconds=round(time.perf_counter() - started, 3),
            created=time.time(),
            content=content.of(chunk),
        )
        yield commit_chunk(self.store, receipt)

    def _parts(self, chunk: Chunk, accounting: ChunkAccounting) -> Iterator[_Part]:
        part = self._open(chunk)
        for batch in _batches(self._documents(chunk, accounting)):
            for document, number, table, counts in self._segment(batch, accounting):
                if document.doc_id in accounting.purged:
                    part.purged += table.num_rows
                    part.counts = summed([part.counts, counts])  # counts of the whole batch
                else:
                    self._add(part, document, number, table, counts)
                if part.rows + part.purged >= self.config.part_sentences:
                    yield part
                    part = self._open(chunk)
        yield part

    def _settings(self, chunk: Chunk) -> InputSettings:
        return next(one for one in self.config.input if one.name == chunk.input)

    def _documents(self, chunk: Chunk, accounting: ChunkAccounting) -> Iterator[Document]:
        settings = self._settings(chunk)
        later = self.recipes.duplicates.of(chunk.id)
        any_id = self.config.duplicate_ids == "keep-all"
        for item in read_documents(chunk, settings, self.config.split, self.card.languages):
            if isinstance(item, Rejected):
                accounting.reject(item)
            elif any_id or not marks.VISIBLE.search(item.text):
                yield item
            elif item.doc_id in later:
                accounting.quarantine_later(item, later[item.doc_id])
            elif settings.id is None or accounting.is_first(item, in_chunk=first_only(self.config)):
                yield item

    def _segment(
        self, batch: list[Document], accounting: ChunkAccounting
    ) -> Iterator[tuple[Document, int, pa.Table, dict[str, float]]]:
        """Yield documents of the batch that have text, with their sentences; the batch's counts go with the first one.

        A document of more than `max_document_sentences` is yielded as numbered sub-documents, which may be in several
        parts. A purged document is yielded too: its sentences count towards the ends of parts.
        """
        try:
            with capture_warnings() as warned, segmenting(sum(len(one.text) for one in batch)):
                texts = [one.text if marks.VISIBLE.search(one.text) else "" for one in batch]
                segmented = self.segmenter.segment(texts, [one.lang for one in batch])
            self._warned += warned
        except Exception as error:
            if len(batch) == 1:
                accounting.quarantine(batch[0], "segmentation failed", f"{type(error).__name__}: {error}")
            else:
                for one in batch:
                    yield from self._segment([one], accounting)
            return
        table, edges = _sentence_table(segmented, batch)
        counts = {
            "cap_splits": float(segmented.cap_splits),
            "hard_cuts": float(segmented.hard_cuts),
            "over_cap": float(segmented.over_cap),
        }
        limit = self.config.segment.max_document_sentences
        for document, (first, last) in zip(batch, pairwise(edges.tolist()), strict=True):
            if first == last:
                accounting.dropped["no text"] += 1
            elif document.doc_id in accounting.purged:
                accounting.dropped[PURGED] += 1
            else:
                accounting.kept += 1
            for number, start in enumerate(range(first, last, limit)):
                yield document, number, table.slice(start, min(limit, last - start)), counts
                counts = {}

    def _describe_device(self) -> str:
        if not self.config.segment.uses_sat:
            return "cpu"
        from stages.device import describe  # imports torch, as SaT does

        return describe(self._device)

    def _open(self, chunk: Chunk) -> _Part:
        kept = self.recipes.segment[chunk.input]["keep"]
        return _Part({name: [] for name in (*layout.DOCUMENT_COLUMNS, *kept)})

    def _add(self, part: _Part, document: Document, number: int, table: pa.Table, counts: dict[str, float]) -> None:
        """Append a document, or the number-th sub-document of a very long one."""
        row = {
            "doc": len(part.documents["doc"]),
            "doc_id": document.doc_id,
            "subdocument": number,
            "lang": document.lang,
            "lang_confidence": document.lang_confidence,
            "split": document.split,
            "source": document.source,
            "text_hash": int.from_bytes(hashlib.blake2b(document.text.encode(), digest_size=8).digest(), "little"),
            "first_row": part.rows,
            "rows": table.num_rows,
            **{name: document.kept.get(name) for name in part.kept},
        }
        for name, value in row.items():
            part.documents[name].append(value)
        doc = pa.array(np.full(table.num_rows, row["doc"], np.int32))
        part.sentences.append(table.add_column(0, "doc", doc))
        part.rows += table.num_rows
        part.counts = summed([part.counts, counts, {"split_documents": 1} if number else {}])

    def _close(
        self,
        chunk: Chunk,
        part: _Part,
        columns: KeptColumns,
        name: str,
        part_fingerprint: str,
        recipe: str,
        replaces: str,
    ) -> Receipt:
        """Commit a part, or recognise the one that an earlier attempt committed."""
        kept = columns.arrays({name: part.documents[name] for name in part.kept})
        own = pa.table({name: part.documents[name] for name in layout.DOCUMENT_COLUMNS}, layout.schema("documents"))
        of_documents = pa.table(dict(zip(own.column_names, own.columns, strict=True)) | kept.arrays)
        documents = layout.schema("documents", keep={name: kind.arrow for name, kind in kept.types.items()})
        table = pa.concat_tables(part.sentences).combine_chunks()
        families = {
            "documents": layout.checked("documents", of_documents, documents, None),
            "sentences": layout.checked("sentences", table, layout.schema("sentences"), part.rows),
        }
        tokens = float(np.asarray(table["tokens"]).sum())
        receipt = self._commit(
            chunk,
            name,
            part_fingerprint,
            families,
            recipe=recipe,
            counts={**part.counts, "documents": float(len(part.documents["doc"])), "tokens": tokens, **kept.counts},
            seconds={"compute": round(time.perf_counter() - part.since, 4)},
            device=self._describe_device(),
            warnings=list(dict.fromkeys([*self._warned_loading, *self._warned, *kept.warnings])),
            replaces=replaces,
        )
        self._warned = []
        return receipt

    def _commit(
        self, chunk: Chunk, name: str, part_fingerprint: str, families: dict[str, pa.Table], **facts: Any
    ) -> Receipt:
        """Commit the files of a part, or recognise those that an earlier attempt committed. facts: of the receipt.

        Raises `CorpusError` if they differ from these.
        """
        path = layout.receipt_path(SEGMENT, name, part_fingerprint)
        if self.store.exists(path):
            receipt, ours = read_receipt(self.store, path), False
        else:
            receipt, ours = commit(
                self.store,
                stage=SEGMENT,
                part=name,
                fingerprint=part_fingerprint,
                inputs={},
                families=families,
                **facts,
            )
        if not ours:
            _same(families, receipt, f"{chunk.path}: {path}", chunk, facts["device"])
        return receipt


def _same(families: dict[str, pa.Table], receipt: Receipt, where: str, chunk: Chunk, device: str) -> None:
    """Raise `CorpusError` if a part that was committed before comes out differently now, on this device.

    What an earlier version wrote in another way stays as it is: offsets inside letters that are composed, and kept
    bytes and nanoseconds.
    """
    digests = {f"{family}.{c}": column_digest(t[c]) for family, t in families.items() for c in t.column_names}
    if not types_in(receipt.counts, {}):  # of a version that kept everything as text
        kept = {f"documents.{name}" for name in kept_names(digests)}
        digests = {key: one for key, one in digests.items() if key not in kept}
    changed = sorted(key for key in digests if digests[key] != receipt.columns.get(key))
    if not changed:
        return
    kept = {f"documents.{name}" for name in read_otherwise_before(chunk, kept_names(digests))}
    if {*changed} <= {*OFFSETS, *kept}:
        _log.warning(
            "%s has %s as an earlier version wrote them, and keeps them; delete that file and run again to have them "
            "as this version writes them",
            where,
            ", ".join(changed),
        )
        return
    causes = []
    on_cpus = device.startswith("cpu") and receipt.device.startswith("cpu")
    if on_cpus or "documents.text_hash" in changed:
        causes.append("the input changed during the run, or a library did")
    if not on_cpus:
        causes.append(
            f"SaT cut the same text differently (on {receipt.device}, now on {device}): on GPUs a probability near the "
            "threshold depends in its last bits on the sizes of batches, which follow segment.batch_tokens, the memory "
            "that was free, and the kind of GPU"
        )
    raise CorpusError(
        f"{where} was written before with other {', '.join(changed)}; "
        f"{'; or '.join(causes)}: delete that file and run again"
    )


def _segmentation(receipt: Receipt) -> Segmentation:
    return Segmentation(PartRef(part=receipt.part, fingerprint=receipt.fingerprint), receipt.rows)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _sentence_table(segmented: Segmented, batch: list[Document]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the sentences of a batch without `doc`, and the rows where each document begins."""
    owner = np.asarray(segmented.document)
    edges = np.searchsorted(owner, np.arange(len(batch) + 1)).astype(np.int64)
    position = np.arange(len(owner)) - edges[owner] if len(owner) else np.empty(0, np.int64)
    langs = pa.array([one.lang for one in batch]).dictionary_encode()
    seeds = np.asarray([document_seed(one.doc_id) for one in batch], dtype=np.uint64)
    table = pa.table(
        {
            "position": pa.array(position.astype(np.int32)),
            "paragraph": pa.array(np.asarray(segmented.paragraph)),
            "text": segmented.text,
            "lang": langs.take(pa.array(owner)).dictionary_decode(),
            "start": pa.array(np.asarray(segmented.start).astype(np.int32)),
            "end": pa.array(np.asarray(segmented.end).astype(np.int32)),
            "chars": pa.array(np.asarray(segmented.chars).astype(np.int32)),
            "tokens": pa.array(np.asarray(segmented.tokens).astype(np.int32)),
            "u": pa.array(uniform(seeds[owner] if len(owner) else seeds[:0], position)),
        }
    )
    return table, edges
