"""Shuffle buffers in memory: rows of Parquet row groups, decoded once, each copied to its place in the order.

Every block of a buffer is a task of its own for a pool of threads; decoding and copying do not hold the interpreter. A
micro-batch is a view of its buffer. Memory: 2 · dim bytes per sentence of a buffer, and for each thread one row group
of 8192.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline.base.errors import CorpusError, MissingError
from pipeline.corpus.vectors import read_embeddings
from pipeline.storage import layout
from pipeline.storage.remote import translate_errors
from pipeline.storage.store import Store
from pipeline.training.data.checks import REMEDY
from pipeline.training.data.end_of_text import LANG, TEXTS
from pipeline.training.data.index import Index
from pipeline.training.data.order import BufferSlice, ShuffleBuffer
from pipeline.training.data.row_range_files import concatenated_ranges
from pipeline.training.data.row_ranges import Ints
from pipeline.training.data.sequences import BREAK_SENTENCE, CLOSING_SENTENCE, GIVEN_PLAN, PLAN_COPY
from stages.arrow import embedding_matrix
from stages.batching import Tokens
from stages.lcm.batch import Batch
from stages.lcm.packing import layout_of

COLUMNS = {  # what is read → its family and column
    "embeddings": ("embeddings", "embedding"),
    "codes": ("codes", "codes"),
    "fragility-predicted": ("fragility-predicted", "weight"),
    "sentences": ("sentences", "text"),
    "sentences.lang": ("sentences", "lang"),
    "sentences.paragraph": ("sentences", "paragraph"),
}
OF_PLANS = COLUMNS | {"embeddings": ("plan-embeddings", "plan_embedding"), "sentences": ("plans", "plan")}
Tokenise = Callable[[Sequence[str], Sequence[str]], Tokens]


class Reader:
    """Reads shuffle buffers of one source.

    Args:
        index: the index of the source.
        families: the families that are read, keys of `COLUMNS`.
        first: the number of the source's first sequence, counted over all sources.
    """

    def __init__(self, index: Index, families: Sequence[str], first: int) -> None:
        self.index, self.families, self.first = index, families, first
        self._store = Store(index.url)

    def read(
        self,
        part: int,
        rows: Ints,
        into: Mapping[str, npt.NDArray[Any]],
        places: Ints,
        columns: Mapping[str, tuple[str, str]] = COLUMNS,
    ) -> None:
        """Copy rows of a part to their places in the arrays of every family.

        Args:
            part: the number of the part in the index.
            rows: (rows,) int64, ascending; of plans a row may come again.
            into: what is read, a key of `COLUMNS` → the array to fill.
            places: (rows,) int64, where each row goes.
            columns: where it stands.

        Raises:
            CorpusError: if a file cannot be read.
            MissingError: if it was deleted meanwhile.
        """
        groups = rows // layout.ROW_GROUP_ROWS
        borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(rows)]
        for name, array in into.items():
            family, column = columns[name]
            path = self.index.parts[family][part].as_py()
            with translate_errors(self.index.url), self._told(path), self._store.open(path) as handle:
                source = handle if isinstance(handle, pa.NativeFile) else pa.PythonFile(handle, "r")
                file = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
                for low, high in pairwise(borders):
                    group = int(groups[low])
                    inside = rows[low:high] - group * layout.ROW_GROUP_ROWS
                    if name == "embeddings":
                        # Of the end of a document that begins in the row group before, no more than that.
                        values = read_embeddings(file, source, group, int(inside[-1]) + 1)
                    else:
                        values = _column(file, group, column)
                    _scatter(values, inside, array, places[low:high])

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """Report a file that is gone, or that Arrow cannot read."""
        try:
            yield
        except MissingError:
            raise MissingError(
                f"{self.index.url}/{path} is gone: the corpus has changed since it began to be read, so the index "
                f"{self.index.digest[:12]} no longer matches it. {REMEDY}"
            ) from None
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            raise CorpusError(
                f"{self.index.url}/{path} cannot be read ({error}); if it was damaged, delete its receipt and run "
                "again, then make the index again: pipeline index"
            ) from error


def _column(file: pq.ParquetFile, group: int, name: str) -> npt.NDArray[Any]:
    column = file.read_row_group(group, [name], use_threads=False)[name]
    vectors = pa.types.is_fixed_size_list(column.type)
    return embedding_matrix(column) if vectors else np.asarray(column.to_numpy())


def _scatter(values: npt.NDArray[Any], inside: Ints, into: npt.NDArray[Any], places: Ints) -> None:
    """Assign into[places] = values[inside]; if most values are wanted, in one copy, with the others in the last row of
    `into`.
    """
    first, end = int(inside[0]), int(inside[-1]) + 1
    if 2 * len(inside) < end - first or (inside[1:] == inside[:-1]).any():
        into[places] = values[inside]
        return
    every = np.full(end - first, len(into) - 1)
    every[inside - first] = places
    into[every] = values[first:end]


class LoadedBuffer:
    """A shuffle buffer whose blocks are being read by `pool`. It does not reference the buffer, so both are freed
    together.

    Args:
        buffer: what the buffer holds.
        reader: reads its rows.
        pool: the threads that read.
        structure: whether breaks and plans have a weight.
    """

    def __init__(self, buffer: ShuffleBuffer, reader: Reader, pool: Executor, structure: bool = True) -> None:
        self._reader = reader
        self.lengths = buffer.lengths
        taken = buffer.taken
        self.numbers = taken.sequences[buffer.cut[0]][buffer.order] + reader.first  # of sequences, of all sources
        self.part, self.row = taken.rows()
        # Where each sentence goes: documents in the order of the buffer, sentences within one as they were.
        sizes = buffer.cut[1]
        begins = np.empty_like(sizes)
        begins[buffer.order] = buffer.ends - buffer.lengths
        self.place = concatenated_ranges(begins, sizes)
        answer = np.repeat(taken.answers, taken.lengths)
        self._unweighted = (self.part >= 0) & (self.row < answer)
        plans = np.flatnonzero(np.isin(self.part, (PLAN_COPY, GIVEN_PLAN)))
        breaks = np.flatnonzero((self.part == CLOSING_SENTENCE) & (self.row == BREAK_SENTENCE))
        for places in (plans, breaks):  # as what follows: a plan as its sentence, then a break as a plan or a sentence
            self._unweighted[places] = self._unweighted[places + 1]
        self._unweighted[np.concatenate([plans, breaks])] |= not structure
        self.arrays = self._arrays(len(self.row))
        self._close()
        borders = np.cumsum(buffer.sequences.block_lengths[buffer.blocks])
        self.reading: list[Future[None]] = [
            pool.submit(self._read, int(low), int(high)) for low, high in zip([0, *borders[:-1]], borders, strict=True)
        ]

    def _arrays(self, sentences: int) -> dict[str, npt.NDArray[Any]]:
        """Return arrays for this many sentences, and a row for values that are not wanted."""
        rows = sentences + 1
        index = self._reader.index
        kinds: dict[str, tuple[tuple[int, ...], Any]] = {
            "embeddings": ((rows, index.dim), np.float16),
            "codes": ((rows, index.about.codebooks or 0), np.int32),
            "fragility-predicted": ((rows,), np.float32),
            "sentences": ((rows,), object),
            "sentences.lang": ((rows,), object),
            "sentences.paragraph": ((rows,), np.int32),
        }
        return {family: np.empty(*kinds[family]) for family in self._reader.families}

    def _close(self) -> None:
        """Put closing sentences in their places; they have the weight 1."""
        closing = self.part == CLOSING_SENTENCE
        which, places, index = self.row[closing], self.place[closing], self._reader.index
        values: dict[str, Any] = {
            "embeddings": index.closing_embeddings,
            "codes": index.closing_codes,
            "fragility-predicted": np.ones(len(TEXTS), np.float32),
            "sentences": np.asarray(TEXTS, object),
            "sentences.lang": np.asarray([LANG] * len(TEXTS), object),
            "sentences.paragraph": np.full(len(TEXTS), -1, np.int32),
        }
        for family, array in self.arrays.items():
            array[places] = values[family][which]

    def _read(self, low: int, high: int) -> None:
        """Read one shuffle block: the sentences from `low` to before `high`, as the corpus has them."""
        part = self.part[low:high]
        real = np.flatnonzero(part >= 0) + low
        if len(real):
            self._reader.read(int(self.part[real[0]]), self.row[real], self.arrays, self.place[real])
        plans = np.flatnonzero(part == PLAN_COPY) + low
        for array in self.arrays.values() if len(plans) else ():
            array[self.place[plans]] = array[self.place[self.row[plans]]]
        given = np.flatnonzero(part == GIVEN_PLAN) + low
        if len(given):
            read = {name: array for name, array in self.arrays.items() if name != "fragility-predicted"}
            self._reader.read(int(self.part[real[0]]), self.row[given], read, self.place[given], OF_PLANS)
            if "fragility-predicted" in self.arrays:
                self.arrays["fragility-predicted"][self.place[given]] = 1  # as of a closing sentence: none is measured

    @cached_property
    def weights(self) -> npt.NDArray[np.float32]:
        """(sentences,) The weights of the buffer, in its order."""
        weights = self.arrays.get("fragility-predicted", np.ones(len(self.row), np.float32))
        weights[self.place[self._unweighted]] = 0
        return weights


_NOTHING = np.empty(0, object)


def batch_of(loaded: Sequence[tuple[LoadedBuffer, BufferSlice]], pin: bool, tokenise: Tokenise | None = None) -> Batch:
    """Return a micro-batch of slices of shuffle buffers, once these have been read.

    Args:
        loaded: the buffers with the slice of each.
        pin: whether tensors are in pinned memory.
        tokenise: (texts, languages) → tokens of the sentences; None to have no tokens.

    Returns:
        The micro-batch.
    """
    for buffer, _ in loaded:
        for one in buffer.reading:
            one.result()
    with_codes, with_texts, with_paragraphs = (
        name in loaded[0][0].arrays for name in ("codes", "sentences", "sentences.paragraph")
    )
    texts, langs = (
        tuple(one for buffer, segment in loaded for one in buffer.arrays.get(name, _NOTHING)[segment.sentences])
        for name in ("sentences", "sentences.lang")
    )
    lengths = _joined([one.lengths[segment.low : segment.high] for one, segment in loaded])
    layout = layout_of(lengths)
    return Batch(
        embeddings=_joined([one.arrays["embeddings"][segment.sentences] for one, segment in loaded], pin),
        lengths=lengths,
        weights=_joined([one.weights[segment.sentences] for one, segment in loaded], pin),
        codes=_joined([one.arrays["codes"][segment.sentences] for one, segment in loaded], pin) if with_codes else None,
        sequences=_joined([one.numbers[segment.low : segment.high] for one, segment in loaded]),
        texts=texts if with_texts else None,
        paragraphs=_joined([one.arrays["sentences.paragraph"][segment.sentences] for one, segment in loaded])
        if with_paragraphs
        else None,
        tokens=tokenise(texts, langs) if tokenise else None,
        layout=replace(layout, places=_joined([layout.places.numpy()], pin)),
    )


def _joined(arrays: list[npt.NDArray[Any]], pin: bool = False) -> torch.Tensor:
    """End to end; copied once, into page-locked memory, to `pin` it."""
    if len(arrays) == 1 and not pin:
        return torch.from_numpy(arrays[0])
    dtype = torch.from_numpy(arrays[0][:0]).dtype
    found = torch.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), dtype=dtype, pin_memory=pin)
    np.concatenate(arrays, out=found.numpy())
    return found
