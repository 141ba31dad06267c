"""The index of a corpus for training: which rows of which files are read, as row ranges, pinned by a digest.

    index = make_index(corpus, SelectSettings(where="autobleu >= 30"))
    index.digest                # of the files, the selection and the fits: it is part of every checkpoint
    read_index(corpus, digest)  # the same again, as long as its files exist, whatever was added to the corpus

Files of a corpus are never rewritten, so an index stays valid until `gc` or `purge` deletes what it names. A row range
is a document, or an unbroken stretch of one that lost sentences: 22 bytes in files that are mapped, not held in memory
(`row_range_files.py`). In memory are the parts, and about 40 bytes for each shuffle block of about 32 000 rows. Cost of
making one: a pass over the columns that the selection reads, and the encoder for the two end-of-text sentences.
"""

from __future__ import annotations

import base64
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from pipeline.base.errors import ConfigError, CorpusError, DamagedError, MissingError
from pipeline.base.formats import counted, number
from pipeline.config.select import SelectSettings
from pipeline.config.train import Plans
from pipeline.corpus.reader import Corpus
from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import Counts, Selection
from pipeline.storage import layout
from pipeline.storage.records import Record, parse_json, sealed
from pipeline.storage.store import Store
from pipeline.training.data.end_of_text import end_of_text_sentences
from pipeline.training.data.index_shares import Collected, IndexShares, collect
from pipeline.training.data.row_range_files import Records, RowRanges, RowRangeWriter, damaged_files
from pipeline.training.data.row_ranges import SHUFFLE_BLOCKS, SplitBuilder
from pipeline.training.data.snapshot import (
    VERSION,
    Snapshot,
    checked,
    encoder_used,
    families_of,
    fit_content,
    parts_schema,
    snapshot_of,
)
from stages.arrow import table_of

_DAY = 86_400.0  # seconds after which an unfinished index is abandoned
_SHARE_DAYS = 7  # after which its shares are, if none was written meanwhile
_OUTDATED = "an index over files that the newest run does not have, with which no model of this corpus was trained"


class IndexHeader(Record):
    """The description of an index. `encoder`, `scaler`, `rvq`: digests by content."""

    version: int
    digest: str
    corpus: str
    select: dict[str, Any]
    answers: str | None  # kept column with the place where the answer begins
    unanswered: int  # documents without a value: every sentence counts
    plans: str | None = None  # how plans of paragraphs are made; None: there are no plans and no breaks
    planned: tuple[int, int] | None = None  # with plans of a column: paragraphs that have one, and all
    counts: dict[str, Any]  # of the selection
    splits: dict[str, tuple[int, int, int]]  # documents, sequences, sentences
    runs: dict[str, list[int]]  # how many each file of a split holds
    dim: int
    model: str
    encoder: str
    scaler: str | None
    rvq: str | None
    codebooks: int | None
    weighted: bool  # whether there is a column `weight`
    embeddings: str  # embeddings of the end-of-text sentences, (3, dim) float16 in base64; earlier versions have two
    codes: str | None  # (3, codebooks) uint16
    digests: dict[str, list[str]] = Field(default_factory=dict)  # of the files of a split; earlier versions have none


@dataclass(frozen=True, eq=False)
class Index:
    """An index. `parts`, `blocks`: columns as declared above, in the order of the corpus.

    A shuffle block has a split (number in `SPLITS`), the number of its first row range in the split, and the sentences
    of the sequences that begin there, closing ones included.
    """

    url: str
    about: IndexHeader
    parts: pa.Table
    blocks: pa.Table

    @property
    def digest(self) -> str:
        """32 hex digits of everything that decides what is read."""
        return self.about.digest

    @property
    def dim(self) -> int:
        """The dimension of the embeddings."""
        return self.about.dim

    @property
    def counts(self) -> Counts:
        """Where every sentence went when it was selected."""
        return Counts(**self.about.counts)

    @cached_property
    def closing_embeddings(self) -> npt.NDArray[np.float16]:
        """(3, dim): the embeddings of "End of text.", "End of response." and "End of paragraph."."""
        return np.frombuffer(base64.b64decode(self.about.embeddings), np.float16).reshape(-1, self.about.dim)

    @cached_property
    def closing_codes(self) -> npt.NDArray[np.uint16] | None:
        """(3, codebooks): their codes, if the corpus has codes."""
        if self.about.codes is None:
            return None
        return np.frombuffer(base64.b64decode(self.about.codes), np.uint16).reshape(len(self.closing_embeddings), -1)

    def row_ranges(self, split: str) -> RowRanges:
        """Return the row ranges of a split. Raises `CorpusError` if files of them are gone or damaged."""
        return RowRanges(Store(self.url), self.digest, split, self.about.runs[split])

    def sentences(self, split: str) -> int:
        """Return how many sentences an epoch of a split has: with plans, breaks, and those that close documents."""
        blocks = self.blocks
        return int(blocks["sentences"].to_numpy()[blocks["split"].to_numpy() == SPLITS.index(split)].sum())

    def said_of_splits(self) -> str:
        """Return `train 120, validation 3, test 0 documents`."""
        return ", ".join(f"{name} {self.about.splits[name][0]}" for name in SPLITS) + " documents"


def make_index(
    corpus: Corpus,
    select: SelectSettings,
    *,
    answers: str | None = None,
    plans: Plans = "none",
    origin: str = "select.where",
    done: Callable[[int], None] = lambda rows: None,
) -> Index:
    """Return the index of what `select` selects; it is read if the corpus has it already, otherwise made and written.

    Args:
        corpus: the corpus.
        select: the selection.
        answers: a kept column with the code point at which a document's answer begins; what precedes it is a prompt.
        plans: whether paragraphs begin with plans, their headlines or those of a column, and breaks separate them (LCM
            4.3).
        origin: what error messages begin with.
        done: is told how many further rows were read.

    Returns:
        The index, which is read if the corpus has it already.

    Raises:
        ConfigError: or `CorpusError`, for what the corpus cannot answer, or if nothing is selected.
        CorpusError: if nothing is selected, or the corpus cannot be read; `ConfigError` for what it cannot answer.
    """
    return index_of_snapshot(snapshot_of(checked(corpus, select, origin), answers, plans), done)


def index_of_snapshot(snapshot: Snapshot, done: Callable[[int], None] = lambda rows: None) -> Index:
    """Return the index of a snapshot, as `make_index` does. `done` is told how many further rows were read."""
    corpus = snapshot.selection.corpus
    if is_present(corpus, snapshot.digest):
        return whole_index(corpus, snapshot.digest)
    builders = _builders(snapshot)

    def add(by_split: Sequence[Records], rows: int) -> None:
        for builder, of_split in zip(builders, by_split, strict=True):
            builder.add(of_split, rows)

    return _completed(snapshot, collect(snapshot, snapshot.selection, add, done), builders)


def index_of_shares(snapshot: Snapshot, shares: IndexShares) -> Index:
    """Return the index that all shares together make. Raises `CorpusError` if files of them are gone or damaged."""
    corpus = snapshot.selection.corpus
    if not is_present(corpus, snapshot.digest):
        builders = _builders(snapshot)
        try:
            _completed(snapshot, shares.together(builders), builders)
        except MissingError:  # deleted by another process, which completed the index
            if not is_present(corpus, snapshot.digest):
                raise
    index = whole_index(corpus, snapshot.digest)
    shares.notes.forget()
    return index


def _builders(snapshot: Snapshot) -> list[SplitBuilder]:
    store = snapshot.selection.corpus.store
    return [SplitBuilder(RowRangeWriter(store, snapshot.digest, name)) for name in SPLITS]


def _completed(snapshot: Snapshot, found: Collected, splits: Sequence[SplitBuilder]) -> Index:
    """Write what follows the row ranges, and return the index. Raises `CorpusError` if nothing is selected."""
    selection, counts, planned = snapshot.selection, found.counts, found.planned
    corpus, answers, plans = selection.corpus, snapshot.answers, snapshot.plans
    counts.check(corpus.url)
    if not counts.kept:
        raise CorpusError(f"{corpus.url}: the selection keeps no sentence: {_removed(selection, counts)}")
    if answers is not None and not found.answered:
        raise ConfigError(f"answers: {answers} is null in all {found.unanswered} documents; name another column")
    if plans == "column" and not planned[0]:
        raise CorpusError(
            f"{corpus.url}: none of the {number(planned[1])} selected paragraphs has a plan; fill the column that "
            "plans.column names, or give plans.lm another model or prompt, run again, and look: pipeline inspect "
            f"{shlex.quote(corpus.url)} --where 'plan is not null'; or give train.plans: headline"
        )
    closing = end_of_text_sentences(corpus)
    about = IndexHeader(
        version=VERSION,
        digest=snapshot.digest,
        corpus=corpus.view.name,
        select=selection.settings.model_dump(mode="json"),
        answers=answers,
        unanswered=found.unanswered,
        plans=None if plans == "none" else plans,
        planned=planned if plans == "column" else None,
        counts=vars(counts),
        splits={name: split.size for name, split in zip(SPLITS, splits, strict=True)},
        runs={name: split.close() for name, split in zip(SPLITS, splits, strict=True)},
        dim=closing.embeddings.shape[1],
        model=corpus.view.stages["encode"]["encode"]["model"],
        encoder=encoder_used(corpus),
        scaler=fit_content(corpus, "scaler"),
        rvq=fit_content(corpus, "rvq"),
        codebooks=None if closing.codes is None else closing.codes.shape[1],
        weighted="weight" in corpus.catalogue,
        embeddings=base64.b64encode(closing.embeddings.tobytes()).decode(),
        codes=None if closing.codes is None else base64.b64encode(closing.codes.tobytes()).decode(),
        digests={name: split.digests for name, split in zip(SPLITS, splits, strict=True)},
    )
    index = Index(
        corpus.url, about, snapshot.parts, pa.concat_tables(split.blocks(at) for at, split in enumerate(splits))
    )
    _write(corpus, index)
    return index


def _removed(selection: Selection, counts: Counts) -> str:
    """Say what removed the sentences, and which command shows it for just these settings, from wherever they come."""
    settings = selection.settings
    removed = ", ".join(f"{reason} removes {number(count)}" for reason, count in counts.removed.items() if count)
    rules = {"--where": settings.where, "--broken": settings.broken, "--min-sentences": str(settings.min_sentences)}
    options = " ".join(f"{key} {shlex.quote(value)}" for key, value in rules.items() if value is not None)
    return f"of {number(counts.sentences)}, {removed}; to try another: pipeline select {selection.corpus.url} {options}"


def is_present(corpus: Corpus, digest: str) -> bool:
    """Return whether the corpus has the index with a digest."""
    return corpus.store.exists(layout.index_paths(digest)[0])


def read_index(corpus: Corpus, digest: str) -> Index:
    """Return the index with a digest (its first 12 digits suffice). Raises `CorpusError` if it is missing or
    damaged.
    """
    paths = layout.index_paths(digest)
    if not corpus.store.exists(paths[0]):
        names = [path.rpartition("/")[2] for path in corpus.store.find(layout.INDEXES)]
        have = sorted(name.removesuffix(".parquet") for name in names if name.count(".") == 1)
        raise CorpusError(
            f"{corpus.url} has no index {digest[:12]}; those that it has: {', '.join(have) or 'none'}; "
            f"make one: pipeline index {corpus.url}"
        )
    try:
        blocks, parts = (table_of(corpus.store.read(path)) for path in paths)
        about = parse_json(blocks.schema.metadata[b"index"], IndexHeader, paths[0], "it is made again")
        index = Index(
            corpus.url,
            about,
            parts.cast(parts_schema(families_of(parts))),
            blocks.replace_schema_metadata(None).cast(SHUFFLE_BLOCKS),
        )
    except (ValueError, KeyError, TypeError, OSError, pa.ArrowException, MissingError, DamagedError) as error:
        raise CorpusError(
            f"{corpus.url}/{paths[0]} or its .parts.parquet is damaged or of another version ({type(error).__name__}); "
            f"delete {paths[0]} and run the same command again, which rebuilds it"
        ) from error
    if not about.digest.startswith(digest):
        raise CorpusError(f"{corpus.url}/{paths[0]} is the index {about.digest}, not {digest}; delete it")
    return index


def whole_index(corpus: Corpus, digest: str) -> Index:
    """Read an index and check all its files. Raises `CorpusError` for one that is missing or damaged."""
    index = read_index(corpus, digest)
    for path, what in damage(corpus.store, index.about):
        raise CorpusError(
            f"{corpus.url}/{path} {what}; delete {layout.index_paths(digest)[0]} and run the same command again, which "
            "makes the index again"
        )
    return index


def damage(store: Store, about: IndexHeader) -> Iterator[tuple[str, str]]:
    """Yield files of row ranges that differ from what the index says: (path, what is wrong). Reads all of them."""
    for split, files in about.runs.items():
        yield from damaged_files(store, about.digest, split, files, about.digests.get(split, ()))


def unusable(corpus: Corpus) -> dict[str, str]:
    """Return files of indexes, also of other versions, that can be deleted, and why.

    They are of an index that names what the newest run does not need, or that was begun a day ago and not completed; or
    of shares, which nobody completed for a week, or which are left of an index that was completed a day ago.
    """
    files: dict[str, dict[str, float]] = {}
    for path, written in corpus.store.listing(layout.INDEXES).items():
        files.setdefault(path.rpartition("/")[2].split(".")[0], {})[path] = written
    found: dict[str, str] = {}
    for digest, times in files.items():
        shares, age = sorted(filter(layout.is_of_share, times)), time.time() - max(times.values())
        days = counted(int(age / _DAY), "day")
        if layout.index_paths(digest)[0] in times:
            if not _is_usable(corpus, digest):
                found |= dict.fromkeys(sorted(times), _OUTDATED)
            elif age > _DAY:
                found |= dict.fromkeys(shares, "left by the shares of an index that is completed")
        elif not shares and age > _DAY:
            found |= dict.fromkeys(sorted(times), f"an index that was begun {days} ago and not completed")
        elif shares and age > _SHARE_DAYS * _DAY:
            found |= dict.fromkeys(sorted(times), f"shares of an index or of select, the last written {days} ago")
    return found


def _is_usable(corpus: Corpus, digest: str) -> bool:
    try:
        for row in read_index(corpus, digest).parts.to_pylist():
            receipts = corpus.state_of(row["part"]).receipts.values()
            live = {file.path for receipt in receipts for file in receipt.files}
            if any(row[family] and row[family] not in live for family in row.keys() - {"part", "rows"}):
                return False
    except CorpusError:
        return False
    return True


def _write(corpus: Corpus, index: Index) -> None:
    blocks = index.blocks.replace_schema_metadata({"index": sealed(index.about.model_dump_json())})
    for path, table in zip(reversed(layout.index_paths(index.digest)), (index.parts, blocks), strict=True):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_statistics=False, write_page_checksum=True)
        corpus.store.write(path, memoryview(sink.getvalue()))


@dataclass(frozen=True)
class TrainingSource:
    """A corpus of a mix. `weight`: its share of the micro-batches, relative to the others."""

    index: Index
    weight: float = 1.0
