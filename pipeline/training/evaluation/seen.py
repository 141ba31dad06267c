"""Leaves out held-out documents that a model was trained on, when the split or the inputs were others.

Nothing has to be read where the documents of a training are the files of the index that is evaluated: a document has
one split. Of files that have been replaced since, ids, hashes of texts and splits are read. Nothing is known of a model
that was trained elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from pipeline.base.errors import ConfigError, MissingError, PipelineError
from pipeline.base.formats import counted
from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training.data.index import Index, read_index
from pipeline.training.evaluation.held_out import HeldOut
from pipeline.training.evaluation.trained import Trained
from pipeline.training.record import located

COLUMNS = ["doc_id", "text_hash", "split"]


def without_seen(
    console: Console, index: Index, split: str, held: HeldOut, trained: Sequence[Trained]
) -> tuple[HeldOut, list[bool]]:
    """Leave out documents that any of the models was trained on, and say so.

    Args:
        console: where it is said.
        index: the index whose documents these are.
        split: their split.
        held: the documents; those of the split train, which models were trained on, are all kept.
        trained: the models.

    Returns:
        The documents that none has seen, and for each of `held` whether it was left out.

    Raises:
        ConfigError: if nothing is left.
    """
    left_out = [False] * len(held.ids)
    for one in trained if split != "train" else ():
        seen, is_known = _seen_by(one, index, held)
        now = [document in seen for document in zip(held.ids, held.hashes, strict=True)]
        if any(now):
            documents = len({held.ids[n] for n, here in enumerate(now) if here})
            console.print(
                f"left out: {counted(documents, 'document')} of the split {split} on which {one.name} was trained, "
                "when the split or the inputs were others",
                style="yellow", markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        if not is_known:
            console.print(
                f"{one.name}: files of what it was trained on are gone or damaged, so whether it has seen what it is "
                "judged by cannot be told",
                style="yellow", markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        left_out = [before or here for before, here in zip(left_out, now, strict=True)]
    if not any(left_out):
        return held, left_out
    found = held.without(left_out)
    if not any(length > 1 for length in found.lengths.tolist()):
        raise ConfigError(
            f"{index.url}: every document of the split {split} that would be judged was trained on; train the model "
            "again on the present split (pipeline train corpus.yaml --fresh), or name another split"
        )
    return found, left_out


def _seen_by(one: Trained, index: Index, held: HeldOut) -> tuple[set[tuple[str, str]], bool]:
    """Return which documents, by id and hash of text, a model was trained on, and whether all files of its training
    could be read.
    """
    present = set(index.parts["documents"].to_pylist())
    own = located(one.place)[0].url
    hashes = pa.array([int(value) for value in set(held.hashes)], pa.uint64())
    seen: set[tuple[str, str]] = set()
    is_known = True
    for pinned in one.about.pinned.indexes:
        store = Store(pinned.url or own)
        same = store.url == Store(index.url).url
        try:
            theirs = read_index(Corpus(store.url, store=store), pinned.digest)
        except PipelineError:
            is_known = is_known and not same  # a model that was copied here has left its index where it learned
            continue
        for path in theirs.parts["documents"].to_pylist():
            if same and path in present:
                continue
            try:
                with store.open(path) as handle:
                    table = pq.read_table(handle, columns=COLUMNS)
            except (OSError, MissingError, pa.ArrowException):
                is_known = False
                continue
            table = table.filter(pc.and_(pc.is_in(table["text_hash"], hashes), pc.equal(table["split"], "train")))
            seen.update(zip(table["doc_id"].to_pylist(), map(str, table["text_hash"].to_pylist()), strict=True))
    return seen, is_known
