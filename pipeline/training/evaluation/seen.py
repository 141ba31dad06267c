"""Leaves out held-out documents that a model was trained on, when the split or the inputs were others.

Documents are the same if their texts are: ids may differ from one corpus of a mix to another. What the initial weights
of a model learned from counts too. An exported model names its indexes, which are looked for in the corpus that is
evaluated. Nothing has to be read where the documents of a training are the files of the index that is evaluated: a
document has one split. Of other files, hashes of texts and splits are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError, PipelineError, StorageError
from pipeline.base.formats import counted
from pipeline.base.messages import print_plain
from pipeline.corpus.part_reader import opened_data_file
from pipeline.corpus.reader import Corpus
from pipeline.storage.remote import AwayError
from pipeline.storage.store import Store
from pipeline.training.data.index import Index, read_index
from pipeline.training.evaluation.held_out import HeldOut
from pipeline.training.evaluation.trained import Trained
from pipeline.training.model_header import model_header
from pipeline.training.record import Pinned, located, places_of_indexes, read_started

COLUMNS = ["text_hash", "split"]
Source = tuple[tuple[str, ...], str]  # where an index may be, and its digest; ((), ""): it is not known


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
        seen, is_known = seen_by(learned_from(one.place, one.about.pinned), index, held)
        now = [of_text in seen for of_text in held.hashes]
        if any(now):
            documents = held.wholes_among(now)
            print_plain(
                console,
                f"left out: {counted(documents, 'document')} of the split {split} on which {one.name} was trained, "
                "when the split or the inputs were others",
                style="yellow",
            )
        if not is_known:
            say_unknown(console, one.name)
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


def say_unknown(console: Console, name: str) -> None:
    """Print that nobody can tell whether a model has seen the documents by which it is judged."""
    print_plain(
        console,
        f"{name}: what it was trained on is not all here, so whether it has seen what it is judged by cannot be told",
        style="yellow",
    )


def seen_by(sources: Iterable[Source], index: Index, held: HeldOut) -> tuple[set[str], bool]:
    """Return which held-out documents have the text of a document that something was trained on.

    Args:
        sources: what it learned from.
        index: the index of the held-out documents.
        held: the documents.

    Returns:
        The hashes of their texts, and whether all files of the sources could be read.
    """
    present = set(index.parts["documents"].to_pylist())
    hashes = pa.array([int(value) for value in set(held.hashes)], pa.uint64())
    seen: set[str] = set()
    is_known = True
    for urls, digest in sources:
        found = next(filter(None, (_index_at(url, digest) for url in dict.fromkeys((*urls, index.url)))), None)
        if found is None:
            is_known = False
            continue
        store = Store(found.url)
        for path in found.parts["documents"].to_pylist():
            if store.url == Store(index.url).url and path in present:
                continue
            try:
                with opened_data_file(store, path) as opened:
                    table = opened.read(COLUMNS)
            except StorageError:  # nothing is known of the file
                raise
            except CorpusError:
                is_known = False
                continue
            table = table.filter(pc.and_(pc.is_in(table["text_hash"], hashes), pc.equal(table["split"], "train")))
            seen.update(map(str, table["text_hash"].to_pylist()))
    return seen, is_known


def learned_by_weights(place: str, seen: frozenset[str] = frozenset()) -> Iterator[Source]:
    """Yield the indexes that a model learned from, as `learned_from` does, by its folder alone."""
    try:
        pinned = model_header(*located(place)).pinned
    except AwayError:
        raise
    except PipelineError:
        yield (), ""
        return
    yield from learned_from(place, pinned, seen)


def learned_from(place: str, pinned: Pinned, seen: frozenset[str] = frozenset()) -> Iterator[Source]:
    """Yield the indexes that a model learned from, and those of its initial weights, which are looked at once.

    There is no corpus, and no digest, for initial weights that are gone.

    Args:
        place: the folder of the model.
        pinned: what it is pinned to.
        seen: the folders of models that began with its weights.

    Yields:
        The indexes.
    """
    store, run = located(place)
    urls, begun = [one.url for one in pinned.indexes], pinned.settings.get("init_from")
    try:
        settings = read_started(store, run).settings
        urls, begun = places_of_indexes(pinned, settings), settings.init_from
    except AwayError:
        raise
    except PipelineError:  # an exported model has no record of its training
        pass
    for url, of_mix in zip(urls, pinned.indexes, strict=True):
        yield (url or store.url,), of_mix.digest
    if begun and str(begun) not in (seen := seen | {place}):
        yield from learned_by_weights(str(begun), seen)


def _index_at(url: str, digest: str) -> Index | None:
    """Return an index; None if there is no such corpus, or the index is not there or damaged."""
    try:
        return read_index(Corpus(url), digest) if digest else None
    except AwayError:  # nothing is known of the index
        raise
    except PipelineError:
        return None
