"""What a loader refuses before it reads: numbers and corpora that do not fit together, and missing files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError, PipelineError, StorageError
from pipeline.base.formats import counted
from pipeline.base.messages import print_plain
from pipeline.base.parallel import in_parallel
from pipeline.config.select import SelectSettings
from pipeline.corpus.part_reader import opened_data_file
from pipeline.corpus.reader import Corpus
from pipeline.corpus.receipts import CHECKED_BYTES, UNCOMPARED, compare_content
from pipeline.corpus.tombstones import purged_from, read_tombstones
from pipeline.select.selection import Selection
from pipeline.storage import layout
from pipeline.storage.store import Store
from pipeline.training.data.index import Index, TrainingSource
from pipeline.training.data.snapshot import snapshot_of
from pipeline.training.record import Pinned

Weights = Literal["none", "fragility"]
REMEDY = (
    "Bring the corpus up to date (pipeline run corpus.yaml), then make the index again (pipeline index); a training "
    "that began with the old one has to start over: --fresh"
)
OF_PURGED = (
    "Begin again on the corpus as it is now: make the index again (pipeline index); for a training, pipeline train "
    "corpus.yaml --fresh"
)
COMPARED_DOCUMENTS = 5_000_000  # of a mix: 8 bytes of each are read


def check_numbers(
    max_sentences: int, micro_concepts: int, rank: int, world: int, streams: int, buffer_sentences: int
) -> None:
    """Check the numbers that a loader is made with.

    Args:
        max_sentences: the most sentences of a sequence, the closing one counted; at least 2.
        micro_concepts: the most sentences of a micro-batch; not below `max_sentences`.
        rank: the number of this process, from 0.
        world: how many processes there are.
        streams: how many streams read the corpus; at least 1.
        buffer_sentences: how many sentences a shuffle buffer holds; at least 1.

    Raises:
        ConfigError: for settings that a user gives.
        ValueError: for arguments that only a program can pass.
    """
    if max_sentences < 2:
        raise ConfigError(
            f"max_sentences is {max_sentences}, the context of the model; a document has 2 sentences or more, the "
            "closing one counted: take a card with a context of 2 or more"
        )
    if max_sentences > micro_concepts:
        raise ConfigError(
            f"max_sentences is {max_sentences}, micro_concepts {micro_concepts}: a micro-batch must hold the longest "
            f"document; set micro_concepts to {max_sentences} or more, or max_sentences lower"
        )
    if not 0 <= rank < world or streams < 1 or buffer_sentences < 1:
        raise ValueError(
            f"rank {rank} of {world}, {streams} streams, buffer_sentences {buffer_sentences}: "
            "0 ≤ rank < world, the others ≥ 1"
        )


def check_mix(sources: Sequence[TrainingSource], codes: bool) -> None:
    """Raise `ConfigError` for corpora of different encoders or codebooks, and for invalid weights."""
    if not sources:
        raise ConfigError("there is no corpus to load from; name one or more")
    first = sources[0].index
    for source in sources:
        other = source.index
        if not 0 < source.weight < math.inf:
            raise ConfigError(f"the weight of {other.url} is {source.weight}; it must be a number over 0")
        if (other.dim, other.about.encoder) != (first.dim, first.about.encoder):
            raise ConfigError(
                f"{first.url} was encoded by {first.about.model} ({first.dim} dimensions), {other.url} by "
                f"{other.about.model} ({other.dim}): embeddings of different encoders cannot be mixed"
            )
        if codes and other.about.rvq != first.about.rvq:
            raise ConfigError(
                f"{first.url} and {other.url} have codes of different codebooks, which cannot be mixed; give rvq.file "
                "of one the artifact of the other"
            )


def check_columns(index: Index, weights: Weights, codes: bool) -> None:
    """Refuse a corpus that lacks a column, and name the section that makes it.

    Args:
        index: the index.
        weights: `none`, or `fragility` for the weights of sentences.
        codes: whether codes are read.

    Raises:
        ConfigError: if a column is missing.
    """
    lacking = None
    if codes and index.about.codebooks is None:
        lacking = "codes of its sentences; add a section `rvq: {}`"
    if weights == "fragility" and not index.about.weighted:
        lacking = "weights of its sentences (weights: fragility); add sections `fragility: {}` and `predictor: {}`"
    if codes and index.about.plans == "column":
        raise ConfigError(f"{index.url}: plans of a column have no codes; make the index with plans: headline")
    if lacking:
        raise ConfigError(
            f"{index.url} has no {lacking} to its corpus.yaml, and run it; indexes made after that have them"
        )


def check_files(index: Index, families: Sequence[str]) -> None:
    """Raise `CorpusError` if the corpus has lost something that the index names, or purged it."""
    store = Store(index.url)
    waiting = read_tombstones(store, waiting=True).by_chunk
    if waiting.keys() & {layout.part_owner(part) for part in index.parts["part"].to_pylist()}:
        raise _outdated(index, "documents were purged since", REMEDY)
    if index.digest[:12] in purged_from(store):
        raise _outdated(index, "documents that it names were purged since", OF_PURGED)
    for family in families:
        present = pa.array(store.find(family), pa.string())
        gone = index.parts[family].filter(pc.invert(pc.is_in(index.parts[family], value_set=present)))
        if len(gone):
            lost = f"{len(gone)} of its {counted(len(index.parts), 'file')} of {family}"
            raise _outdated(index, f"{lost} are gone, for instance {gone[0].as_py()}", REMEDY)


def _outdated(index: Index, why: str, remedy: str) -> CorpusError:
    return CorpusError(f"{index.url}: the index {index.digest[:12]} no longer matches the corpus: {why}. {remedy}")


def say_if_changed(console: Console, corpus: Corpus, run: str, pinned: Pinned) -> None:
    """Print a line if a corpus is not any more what a training began with, which it keeps. Reads receipts.

    Args:
        console: where it is said.
        corpus: the training's own corpus.
        run: the folder of the training.
        pinned: what it is pinned to.
    """
    then = pinned.indexes[0].digest
    try:
        selection = Selection(corpus, SelectSettings.model_validate(pinned.select or {}))
        now = snapshot_of(selection, pinned.settings.get("answers"), pinned.settings.get("plans", "none")).digest
    except StorageError:  # of a store that is away
        raise
    except PipelineError:  # it lacks a column by now that the selection reads
        now = ""
    if now != then:
        print_plain(
            console,
            f"the corpus has changed since {run} began, which goes on with what it began with (index {then[:12]}); to "
            "train on the corpus as it is now, give train.name another name, or start over with --fresh",
        )


def check_or_say(console: Console, corpus: Corpus, index: Index, families: Sequence[str]) -> None:
    """Compare the files that an index names with their receipts, or say that its embeddings are more than
    `CHECKED_BYTES`.

    Args:
        console: where it is said.
        corpus: the corpus of the index.
        index: the index. Of a part that has been replaced since, no receipt is known here.
        families: the families that are read.

    Raises:
        CorpusError: if a file is not what its receipt says.
    """
    if pc.sum(index.parts["rows"]).as_py() * index.dim * 2 > CHECKED_BYTES:
        print_plain(console, UNCOMPARED.format(corpus.url), style="dim")
        return
    named = {path for family in families for path in index.parts[family].to_pylist()}
    present = set(corpus.parts)
    files = corpus.files_of([part for part in index.parts["part"].to_pylist() if part in present], families)
    compare_content(corpus.store, [file for file in files if file.path in named])


def texts_in_train(own: Index, others: Sequence[Index]) -> int | None:
    """Count documents of the split validation whose texts other corpora of a mix have in the split train.

    `own`: the index that is validated on. None if there are more documents than `COMPARED_DOCUMENTS`: these are not
    compared.
    """
    if sum(counts[0] for one in (own, *others) for counts in one.about.splits.values()) > COMPARED_DOCUMENTS:
        return None
    learned = pa.chunked_array([_hashes(one, "train") for one in others], pa.uint64())
    return pc.sum(pc.is_in(_hashes(own, "validation"), value_set=learned)).as_py() or 0


def _hashes(index: Index, split: str) -> pa.Array:
    """Return hashes of the texts of documents in a split."""
    store = Store(index.url)

    def read(path: str) -> pa.Array:
        with opened_data_file(store, path) as opened:
            table = opened.read(["text_hash", "split"])
        return table.filter(pc.equal(table["split"], split))["text_hash"].combine_chunks()

    return pa.chunked_array(in_parallel(read, index.parts["documents"].to_pylist()), pa.uint64()).combine_chunks()
