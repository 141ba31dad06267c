"""Hashes of sentences and documents, 64 bits each: 2 million sentences of 100 characters per second of a core.

A hash is a sum of mixed words (8 bytes of text, or the hash of a sentence) and their places, so the words of all rows
are hashed at once, without a loop. Two different texts share a hash with a probability of 2⁻⁶⁴: among ten billion
distinct sentences, about three do. It is no protection against texts that are made to collide.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.duplicates.settings import HashSettings, Normalise
from stages.stage import Computed

SLICE = 8192  # sentences at once, which stay in the processor's cache
_STEP = np.uint64(0x9E3779B97F4A7C15)
Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


class Hash:
    """The stage `hashes`; see `HashSettings`."""

    def __init__(self, settings: HashSettings) -> None:
        self.settings = settings

    def setup(self, device: str) -> None:
        """Do nothing: there is no model."""

    def prepare(self, part: pa.Table) -> Computed:
        """Hash the sentences and documents of a part."""
        doc = part["sentences.doc"].to_numpy()
        sentences = hash_texts(part["sentences.text"], self.settings.normalise)
        starts = np.flatnonzero(np.diff(doc, prepend=-1))
        edges = np.append(starts, len(doc))
        documents = np.repeat(folded(sentences, edges), np.diff(edges))
        return Computed({"hashes": pa.table({"sentence_hash": sentences, "doc_hash": documents})})

    def compute(self, prepared: Computed) -> Computed:
        """Return what `prepare` found: there is nothing to do on the device."""
        return prepared

    def finish(self, computed: Computed) -> Computed:
        """Return the columns."""
        return computed


def hash_texts(text: pa.ChunkedArray, normalise: Normalise) -> Hashes:
    """Return (rows,) the hashes of normalised texts."""
    slices = [text.slice(start, SLICE).combine_chunks() for start in range(0, len(text), SLICE)]
    found = [_hash_bytes(normalised(one) if normalise == "light" else one) for one in slices]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def normalised(text: pa.Array) -> pa.Array:
    """Return texts in Unicode NFKC and lower case, with one space for each run of white space."""
    text = pc.utf8_lower(pc.utf8_normalize(text, form="NFKC"))
    uneven = pc.match_substring_regex(text, r"\s\s|[^\S ]|^ | $")
    if not pc.any(uneven).as_py():
        return text
    even = pc.utf8_trim_whitespace(pc.replace_substring_regex(text.filter(uneven), r"\s+", " "))
    return pc.replace_with_mask(text, uneven, even)


def folded(values: Hashes, edges: Ints) -> Hashes:
    """Return (groups,) one hash of the values of each group, in order; no group is empty.

    Args:
        values: (rows,) hashes.
        edges: (groups + 1,) where each group begins, and the end of the last.
    """
    lengths = np.diff(edges)
    if not len(lengths):
        return np.zeros(0, np.uint64)
    places = np.arange(1, len(values) + 1) - np.repeat(edges[:-1], lengths)
    mixed = _mixed(values + places.astype(np.uint64) * _STEP)
    return _mixed(np.add.reduceat(mixed, edges[:-1]) + lengths.astype(np.uint64))


def _hash_bytes(text: pa.Array) -> Hashes:
    """Return (rows,) the hashes of the UTF-8 bytes of texts. A last word is filled up with zeros."""
    _, offsets, data = text.buffers()
    edges = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    padded = np.zeros(int(edges[-1] - edges[0]) + 8, np.uint8)
    if data is not None:
        padded[:-8] = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]
    starts, lengths = edges[:-1] - edges[0], np.diff(edges)
    counts = np.maximum(1, -(-lengths // 8))  # an empty text is a word of zeros
    groups = np.append(0, np.cumsum(counts))
    words = np.lib.stride_tricks.as_strided(padded[:8].view(np.uint64), (len(padded) - 7,), (1,))
    within = np.arange(groups[-1]) - np.repeat(groups[:-1], counts)
    found = words[np.repeat(starts, counts) + 8 * within]
    unused = (8 * counts - lengths).astype(np.uint64) * np.uint64(8)  # bits of each last word
    whole = unused < 64
    last = groups[1:] - 1
    found[last[whole]] &= np.uint64(2**64 - 1) >> unused[whole]
    found[last[~whole]] = 0
    return _mixed(folded(found, groups) + lengths.astype(np.uint64))


def _mixed(values: Hashes) -> Hashes:
    """Return well-mixed hashes: the finaliser of SplitMix64."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
