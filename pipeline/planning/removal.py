"""Says what enters and leaves a corpus when a configuration is run: no documents disappear silently.

Readers see the documents of the newest run's inputs. What leaves is reported by file, because a chunk's range may
change while its documents stay: a file that the inputs do not name any more, that lies beyond `limit`, or that holds
fewer records than documents were kept of it. Documents that leave stay on disk, unseen, until `pipeline gc --delete`;
naming their input again brings them back at once. Cost: reading the newest run's list of chunks, the receipts of what
leaves, the list of documents where files share a chunk or a limit ends in one, and files that have become smaller.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from pipeline.base.errors import CorpusError, PipelineError, visible
from pipeline.base.formats import counted, size
from pipeline.base.messages import warn
from pipeline.base.parallel import prefetch
from pipeline.corpus.counters import CHUNK
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_view
from pipeline.corpus.states import read_state
from pipeline.corpus.tombstones import read_tombstones
from pipeline.corpus.view import View
from pipeline.inputs import ChunkTable, count_documents
from pipeline.inputs.chunk import PACKED, Chunk
from pipeline.inputs.packing import files_of
from pipeline.storage import layout
from pipeline.storage.remote import AwayError
from pipeline.storage.store import Store

SHOWN_FILES = 3
DOCUMENTS = pa.schema([("source", pa.string()), ("subdocument", pa.int32()), ("rows", pa.int64())])
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Leaving:
    """Files of an input that leave, with their documents and rows. `whole`: the input leaves completely. `about`: the
    numbers are estimates, because a limit cuts records of which some were set aside, or a file of documents is damaged.
    `fewer`: the files stay, with fewer records than documents were kept of them, so that at least so many leave.
    """

    input: str
    whole: bool
    files: tuple[str, ...]
    documents: int
    rows: int
    renamed: str = ""  # an input that reads the same files under this name
    about: bool = False
    fewer: bool = False

    def __str__(self) -> str:
        rest = len(self.files) - SHOWN_FILES
        named = ", ".join(self.files[:SHOWN_FILES]) + (f" and {counted(rest, 'more file')}" if rest > 0 else "")
        what = f"input {self.input}" + ("" if self.whole else f": {named}" if self.files else ", by its limit")
        hint = f"; input {self.renamed} reads the same files: give it `name: {self.input}` to keep them"
        of_what = f" ({counted(len(self.files), 'file')}: {named})" if self.whole and self.files else ""
        bound = "about " if self.about else "at least " if self.fewer else ""
        return (
            f"{what}{of_what}{' with fewer records than before' if self.fewer else ''}, "
            f"{bound}{counted(self.documents, 'document')}, {counted(self.rows, 'row')}"
            f"{hint if self.renamed else ''}"
        )


@dataclass(frozen=True)
class Entering:
    """New files of an input. `whole`: the input is new."""

    input: str
    whole: bool
    files: int
    bytes: int
    first: tuple[str, ...] = ()  # of the files, in order

    def __str__(self) -> str:
        of = "" if self.whole else "more of "
        rest = self.files - len(self.first)
        named = ", ".join(self.first) + (f" and {counted(rest, 'more file')}" if rest > 0 else "")
        return f"{of}input {self.input}, {counted(self.files, 'file')} ({named}), {size(self.bytes)}"


@dataclass(frozen=True)
class ViewChange:
    """The difference between what readers see now and what they will see. `names`: of the corpus, old and new, if they
    differ; `before`: the view that readers see now.
    """

    url: str
    leaving: tuple[Leaving, ...]
    entering: tuple[Entering, ...]
    names: tuple[str, str] | None
    before: View

    @property
    def documents(self) -> int:
        """The number of documents that leave."""
        return sum(one.documents for one in self.leaving)

    @property
    def rows(self) -> int:
        """The number of sentences that leave."""
        return sum(one.rows for one in self.leaving)

    @property
    def needs_consent(self) -> bool:
        """Whether a person has to agree: documents leave, or another corpus may have been meant."""
        return self.documents > 0 or self.names is not None

    def like(self, other: ViewChange | None) -> bool:
        """Return whether the same documents leave and enter as by another change."""
        same = (self.leaving, self.entering, self.names)
        return other is not None and same == (other.leaving, other.entering, other.names)

    def lines(self) -> list[str]:
        """Return the whole change, one line each."""
        found = [f"leaves: {one}" for one in self.leaving] + [f"enters: {one}" for one in self.entering]
        return found + ([f"name: {self.names[0]} → {self.names[1]}"] if self.names else [])

    def refusal(self, consent: str = "run again with --accept-removal") -> str:
        """Return the message for a user who has not agreed. `consent`: what to do if the change is intended."""
        what = []
        if self.documents:
            what.append(f"{counted(self.documents, 'document')} ({counted(self.rows, 'row')}) would leave {self.url}")
        if self.names:
            what.append(f"{self.url} is the corpus {self.names[0]!r}, and this file is named {self.names[1]!r}")
        stay = " (documents that leave stay on disk until pipeline gc --delete)" if self.documents else ""
        back = ["restore the inputs"] if self.documents else []
        back += [f"write `name: {self.names[0]}`"] if self.names else []
        return (
            f"{', and '.join(what)}:\n"
            + "".join(f"  {line}\n" for line in self.lines())
            + f"Nothing was changed. If that is intended, {consent}{stay}; "
            f"otherwise {' and '.join(back)}, or give another `output`"
        )


def view_change(store: Store, view: View) -> ViewChange | None:
    """Return what running a view changes for readers; None if there is no earlier view, or it is unreadable.

    A damaged view is repaired by running, so it is not in the way.
    """
    try:
        if not store.exists(layout.CORPUS_FILE):
            return None
        old = newest_view(store)
    except CorpusError:
        return None
    before, after = old.listed.chunks, view.listed.chunks
    names = (visible(old.name), visible(view.name)) if old.name != view.name else None
    compared = ["id", "url", "take", "stamp", "bytes"]
    if before.table.select(compared).equals(after.table.select(compared)):
        return ViewChange(store.url, (), (), names, old)
    files_before, files_after = _Files.of(before), _Files.of(after)
    gone, new = files_before.not_in(files_after), files_after.not_in(files_before)
    for row in _cut(after):  # the rest of the last chunk's file, for an input with a limit
        last = after[row]
        for key in files_after.keys.filter(pa.array(files_after.rows == row)).to_pylist():
            same = pc.equal(files_before.keys, key).to_numpy(zero_copy_only=False)
            gone |= same & (before.table["start"].to_numpy()[files_before.rows] > last.start)
    leaving = _leaving(store, old, files_before, gone, after, new, files_after)
    leaving += _of_smaller_files(store, old, files_before, after, files_after)
    entering = tuple(_entering(before, after, files_after, new))
    return ViewChange(store.url, tuple(leaving), entering, names, old)


def show_change(console: Console, change: ViewChange | None) -> None:
    """Print a few lines if anything enters or leaves."""
    for line in change.lines() if change else ():
        if line.startswith("enters"):
            console.print(line, markup=False, highlight=False)
        else:
            warn(console, Text(line, "yellow"))


@dataclass(frozen=True)
class _Files:
    """The files of chunks. `keys`: input and path of each; `rows`: the chunks that read them, and so many `bytes`."""

    keys: pa.Array
    rows: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, chunks: ChunkTable) -> _Files:
        """Return the files of chunks, also files that share a chunk."""
        table = chunks.table
        texts = [table[name].combine_chunks().dictionary_decode() for name in ("input", "path")]
        keys = pc.binary_join_element_wise(*texts, "\0")
        packed = pc.equal(table["format"].combine_chunks().dictionary_decode(), PACKED).to_numpy(zero_copy_only=False)
        alone = np.flatnonzero(~packed)
        more, rows, sizes = list[str](), list[int](), list[int]()
        for row in np.flatnonzero(packed).tolist():
            chunk = chunks[row]
            for file in files_of(chunk):
                more.append(f"{chunk.input}\0{file.path}")
                rows.append(row)
                sizes.append(file.bytes)
        every = pa.concat_arrays([keys.take(pa.array(alone)), pa.array(more, pa.string())])
        stored = np.concatenate([chunks.table["bytes"].to_numpy()[alone], np.asarray(sizes, np.int64)])
        return cls(every, np.concatenate([alone, np.asarray(rows, np.int64)]).astype(np.int64), stored)

    def sizes(self) -> pa.Table:
        """Return `key` and `bytes` of each file, all its chunks together."""
        table = pa.table({"key": self.keys, "bytes": self.bytes}).group_by("key").aggregate([("bytes", "sum")])
        return table.rename_columns(["key", "bytes"])

    def places(self, keys: pa.ChunkedArray) -> list[npt.NDArray[np.int64]]:
        """Return where each of these files stands, one array each."""
        of = pc.fill_null(pc.index_in(self.keys, value_set=keys.combine_chunks()), -1).to_numpy(zero_copy_only=False)
        order = np.argsort(of, kind="stable")
        return np.split(order, np.searchsorted(of[order], np.arange(len(keys))))[1:]

    def not_in(self, others: _Files) -> Mask:
        """Return which of the files are not among the others."""
        found: Mask = pc.invert(pc.is_in(self.keys, value_set=others.keys)).to_numpy(zero_copy_only=False)
        return found.copy()


def _cut(chunks: ChunkTable) -> list[int]:
    """Return rows of the chunks in which a limit ends: at most one per input."""
    return [int(row) for row in np.flatnonzero(chunks.table["take"].is_valid().to_numpy())]


def _inputs(chunks: ChunkTable) -> set[str]:
    return set(chunks.table["input"].combine_chunks().dictionary_decode().unique().to_pylist())


def _leaving(
    store: Store, old: View, files: _Files, gone: Mask, after: ChunkTable, new: Mask, files_after: _Files
) -> list[Leaving]:
    stays, found = _inputs(after), dict[str, Leaving]()
    rows = np.unique(files.rows[gone])
    every, left = (
        np.bincount(files.rows, minlength=len(old.listed)),
        np.bincount(files.rows[gone], minlength=len(old.listed)),
    )
    leaves = old.listed.take(pa.array(rows))
    enters = after.take(pa.array(np.unique(files_after.rows[new])))
    for name in sorted(_inputs(leaves.chunks)):
        of_input = pc.equal(leaves.chunks.table["input"].combine_chunks().dictionary_decode(), name)
        mine = np.flatnonzero(of_input.to_numpy(zero_copy_only=False))
        whole = [one for one in mine if left[rows[one]] == every[rows[one]]]
        total = read_state(store, replace(old, chunks=leaves.take(pa.array(whole, pa.int64())))).total
        documents, sentences = total.get(f"{CHUNK}/kept", 0.0), total.get(f"{CHUNK}/sentences", 0.0)
        about = False
        for one in sorted(set(mine) - set(whole)):  # some of the files that share a chunk
            keys = files.keys.filter(pa.array(gone & (files.rows == rows[one])))
            alone = replace(old, chunks=leaves.take(pa.array([one])))
            there = _documents(store, alone)
            if there is None:
                share, some = left[rows[one]] / every[rows[one]], read_state(store, alone).total
                documents += math.ceil(share * some.get(f"{CHUNK}/kept", 0.0))
                sentences += math.ceil(share * some.get(f"{CHUNK}/sentences", 0.0))
                about = True
                continue
            of_files = there.filter(pc.is_in(there["source"], pc.replace_substring(keys, "\0", ":")))
            documents += pc.equal(of_files["subdocument"], 0).to_numpy().sum()
            sentences += pc.sum(of_files["rows"]).as_py() or 0
        mask = gone & np.isin(files.rows, rows[mine])
        paths = {key.partition("\0")[2] for key in files.keys.filter(pa.array(mask)).to_pylist()}
        renamed = _reader_of(leaves.chunks.take(pa.array(mine)), enters) if name not in stays else ""
        found[name] = Leaving(
            visible(name),
            name not in stays,
            tuple(sorted(map(visible, paths))),
            int(documents),
            int(sentences),
            visible(renamed),
            about,
        )
    _add_of_limits(store, old, after, found)
    return list(found.values())


def _of_smaller_files(
    store: Store, old: View, files: _Files, after: ChunkTable, files_after: _Files
) -> Iterable[Leaving]:
    """Return the files of each input that have fewer records than documents were kept of them.

    Only files that store fewer bytes than before are read. Those of inputs with a limit are not: how many of their
    records are taken depends on the other files.
    """
    both = files.sizes().join(files_after.sizes(), "key", join_type="inner", right_suffix="_now")
    smaller = both.filter(pc.less(both["bytes_now"], both["bytes"])).sort_by("key").combine_chunks()
    if not len(smaller):
        return ()
    limited = {chunks[row].input for chunks in (old.listed.chunks, after) for row in _cut(chunks)}
    places, places_now = files.places(smaller["key"]), files_after.places(smaller["key"])
    kept = _KeptDocuments(store, old, files, np.unique(files.rows[np.concatenate([[], *places]).astype(np.int64)]))
    in_chunk = functools.cache(lambda row: {file.path: file for file in files_of(after[row])})
    candidates = list[_Smaller]()
    for key, then, now in zip(smaller["key"].to_pylist(), places, places_now, strict=True):
        name, _, path = key.partition("\0")
        pieces = [in_chunk(row)[path] for row in files_after.rows[now].tolist()]
        if name not in limited and pieces[0].format != "text":  # a text file is one document, however short
            candidates.append(_Smaller(name, path, *kept.of(key, then), pieces))
    found = dict[str, Leaving]()
    for file, records in zip(candidates, prefetch(_Smaller.records, candidates), strict=True):
        if records < file.documents:
            left = file.documents - records
            leaving = found.get(file.input, Leaving(visible(file.input), False, (), 0, 0, fewer=True))
            found[file.input] = replace(
                leaving,
                files=(*leaving.files, visible(file.path)),
                documents=leaving.documents + left,
                rows=leaving.rows + math.ceil(file.rows * left / file.documents),
            )
    return found.values()


@dataclass(frozen=True)
class _Smaller:
    """A file that has become smaller, and what was kept of it. `pieces`: it, as its chunks read it now."""

    input: str
    path: str
    documents: int
    rows: int
    pieces: list[Chunk]

    def records(self) -> int:
        """Count what it holds now."""
        return sum(count_documents(piece).documents for piece in self.pieces)


class _KeptDocuments:
    """Says how many documents of files were kept, and their rows. `rows`: the chunks that are asked about."""

    def __init__(self, store: Store, old: View, files: _Files, rows: npt.NDArray[np.int64]) -> None:
        self._store, self._old, self._files = store, old, files
        self._number = {row: number for number, row in enumerate(rows.tolist())}
        self._states = read_state(store, replace(old, chunks=old.listed.take(pa.array(rows))))
        self._purged = read_tombstones(store, waiting=True)
        self._beside = np.bincount(files.rows, minlength=len(old.listed))
        self._documents = functools.lru_cache(2)(self._documents_of)  # files follow each other as chunks have them

    def of(self, key: str, places: npt.NDArray[np.int64]) -> tuple[int, int]:
        """Return what was kept of a file, given its places among all files; nothing where that is damaged."""
        documents = rows = 0
        for place in places.tolist():
            row = int(self._files.rows[place])
            if self._beside[row] > 1:
                if (there := self._documents(row)) is not None:
                    mine = there.filter(pc.equal(there["source"], key.replace("\0", ":", 1)))
                    documents += int(pc.equal(mine["subdocument"], 0).to_numpy().sum())
                    rows += pc.sum(mine["rows"]).as_py() or 0
            elif receipt := (state := self._states[self._number[row]]).receipt:
                documents += receipt.kept - len(self._purged.of(state.chunk.id))
                rows += receipt.sentences
        return documents, rows

    def _documents_of(self, row: int) -> pa.Table | None:
        return _documents(self._store, replace(self._old, chunks=self._old.listed.take(pa.array([row]))))


def _documents(store: Store, view: View) -> pa.Table | None:
    """Return `source`, `subdocument` and `rows` of the documents of a view, in their order.

    None if a file is damaged or missing: a run makes it again, so it is not in the way.
    """
    corpus = Corpus(store.url, view, store=store)
    tables = [DOCUMENTS.empty_table()]
    try:
        for part in corpus.parts:
            with corpus.reader(part) as reader:
                tables.append(reader.documents(DOCUMENTS.names).cast(DOCUMENTS))
    except AwayError:
        raise
    except PipelineError:
        return None
    return pa.concat_tables(tables)


def _reader_of(gone: ChunkTable, new: ChunkTable) -> str:
    """Return the input that reads the same files now, if there is one."""
    urls = gone.table["url"].combine_chunks().dictionary_decode()
    same = pc.is_in(new.table["url"].combine_chunks().dictionary_decode(), value_set=urls.unique())
    row = same.index(pa.scalar(True)).as_py()
    return new[row].input if row >= 0 else ""


def _add_of_limits(store: Store, old: View, after: ChunkTable, found: dict[str, Leaving]) -> None:
    """Add records of a chunk that a limit cuts now, and did not cut before, or cut later."""
    for row in _cut(after):
        now = after[row]
        at = pc.index(old.listed.chunks.table["id"], now.id).as_py()
        if at < 0:
            continue
        then = old.listed.chunks[at]
        alone = replace(old, chunks=old.listed.take(pa.array([at])))
        receipt = read_state(store, alone)[0].receipt
        if not receipt or now.take is None or (then.take is not None and then.take <= now.take):
            continue
        paths = [file.path for file in files_of(now)] if now.format == PACKED else [now.path]
        there, set_aside = _documents(store, alone), receipt.documents_in - receipt.kept
        if there is None:
            share = max(0, receipt.documents_in - now.take) / max(1, receipt.documents_in)
            documents, rows = math.ceil(receipt.kept * share), math.ceil(receipt.sentences * share)
            about = documents > 0
        else:  # without the files that the limit does not reach, which leave as a whole
            there = there.filter(pc.is_in(there["source"], pa.array([f"{now.input}:{path}" for path in paths])))
            starts = np.flatnonzero(pc.equal(there["subdocument"], 0).to_numpy())
            records = len(starts) + set_aside  # of these files, at most
            share = max(0, records - now.take) / max(1, records)
            documents = math.ceil(len(starts) * share - 1e-9)  # exact where every record became a document
            about = documents > 0 and set_aside > 0
            first = starts[len(starts) - documents] if documents else len(there)
            rows = pc.sum(there["rows"].slice(int(first))).as_py() or 0
        name = visible(now.input)
        one = found.get(now.input, Leaving(name, False, (), 0, 0))
        if documents:
            found[now.input] = replace(
                one, documents=one.documents + documents, rows=one.rows + rows, about=one.about or about
            )


def _entering(before: ChunkTable, after: ChunkTable, files: _Files, new: Mask) -> list[Entering]:
    there, found = _inputs(before), []
    for name in sorted(_inputs(after.take(pa.array(np.unique(files.rows[new]))))):
        mine = new & pc.starts_with(files.keys, f"{name}\0").to_numpy(zero_copy_only=False)
        paths = [key.partition("\0")[2] for key in files.keys.filter(pa.array(mine)).unique().to_pylist()]
        first = tuple(visible(one) for one in sorted(paths)[:SHOWN_FILES])
        stored = int(files.bytes[mine].sum())
        found.append(Entering(visible(name), name not in there, len(paths), stored, first))
    return found
