"""Which rows need work, in which batches: each distinct (text, language) once, batches of exactly equal token count.

Equal token counts need no padding and no mask: no computation is wasted, and a sentence's result cannot depend on its
neighbours. Costs one dictionary encoding and one sort a part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Distinct:
    """`first[k]`: row where the k-th distinct (text, lang) stands first; `inverse[row]`: its k. In row order."""

    first: Indices
    inverse: Indices


def distinct_rows(text: pa.ChunkedArray, lang: pa.ChunkedArray) -> Distinct:
    """Find equal (text, language) pairs among the rows of a part."""
    if len(text) == 0:
        return Distinct(np.empty(0, np.int64), np.empty(0, np.int64))
    texts = _codes(text)
    langs = _codes(lang)
    _, first, inverse = np.unique(texts * (int(langs.max()) + 1) + langs, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return Distinct(first[order].astype(np.int64), rank[inverse].astype(np.int64))


def _codes(column: pa.ChunkedArray) -> Indices:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = array if isinstance(array, pa.DictionaryArray) else pc.dictionary_encode(array)
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def equal_length_batches(lengths: Indices, batch_tokens: int) -> list[Indices]:
    """Rows of equal length together, at most `batch_tokens` tokens a batch (at least one row), longest first.

    Longest first, so that the batch that needs the most memory comes at once. Within a length the order of rows stays.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    ordered = lengths[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    batches: list[Indices] = []
    for group in np.split(order, edges):
        if len(group):
            rows = max(1, batch_tokens // max(1, int(lengths[group[0]])))
            batches += [group[start : start + rows] for start in range(0, len(group), rows)]
    return batches


@dataclass(frozen=True)
class Tokens:
    """Token ids of many sentences as one flat array: sentence k is `ids[offsets[k] : offsets[k + 1]]`."""

    ids: npt.NDArray[np.int32]
    offsets: Indices

    @classmethod
    def of(cls, lists: list[list[int]]) -> Tokens:
        """Flatten a list of lists of ids."""
        lengths = np.fromiter((len(one) for one in lists), np.int64, len(lists))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        flat = (token for one in lists for token in one)
        return cls(np.fromiter(flat, np.int32, int(offsets[-1])), offsets)

    @property
    def lengths(self) -> Indices:
        """Tokens of each sentence."""
        return np.diff(self.offsets)

    def rows(self, batch: Indices) -> npt.NDArray[np.int32]:
        """(rows, length) ids of sentences of equal length."""
        length = int(self.offsets[batch[0] + 1] - self.offsets[batch[0]])
        picked: npt.NDArray[np.int32] = self.ids[self.offsets[batch][:, None] + np.arange(length)]
        return picked
