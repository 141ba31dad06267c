"""What batches are made of: each distinct (text, language) of a part once, and token ids as one flat array.

Costs one dictionary encoding and one sort per part.
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
    """Distinct texts. `first[k]`: the row of the first occurrence of the k-th (text, lang); `inverse[row]`: its k."""

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
        """The number of tokens of each sentence."""
        return np.diff(self.offsets)

    def select(self, rows: Indices) -> Tokens:
        """Return the tokens of some sentences, in the order of `rows`."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Tokens(self.ids[places], offsets)
