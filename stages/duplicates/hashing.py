"""Hashes of sentences and documents, 64 bits each: 2 million sentences of 100 characters per second and core.

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
from stages.stage import Computed, HostStage

SLICE = 8192  # sentences at once, which stay in the processor's cache
STEP = np.uint64(0x9E3779B97F4A7C15)
Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


class Hash(HostStage):
    """The stage `hashes`; see `HashSettings`."""

    def __init__(self, settings: HashSettings) -> None:
        self.settings = settings

    def prepare(self, part: pa.Table) -> Computed:
        """Hash the sentences and documents of a part."""
        doc = part["sentences.doc"].to_numpy()
        sentences = hash_texts(part["sentences.text"], self.settings.normalise)
        starts = np.flatnonzero(np.diff(doc, prepend=-1))
        edges = np.append(starts, len(doc))
        documents = np.repeat(folded(sentences, edges), np.diff(edges))
        return Computed({"hashes": pa.table({"sentence_hash": sentences, "doc_hash": documents})})


def hash_texts(text: pa.ChunkedArray, normalise: Normalise) -> Hashes:
    """Return (rows,) the hashes of normalised texts."""
    slices = [text.slice(start, SLICE).combine_chunks() for start in range(0, len(text), SLICE)]
    found = [_hash_bytes(normalised(one) if normalise == "light" else one) for one in slices]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def normalised(text: pa.Array) -> pa.Array:
    """Return texts in Unicode NFKC and lower case, with one space for each run of white space."""
    data, _ = bytes_of(text)
    if len(data) and data.max() < 128:  # ASCII is in NFKC already, and its lower case is quickly found
        text = pc.ascii_lower(text)
    else:
        text = pc.utf8_lower(pc.utf8_normalize(text, form="NFKC"))
    rows = _uneven(text)
    if not len(rows):
        return text
    even = pc.utf8_trim_whitespace(pc.replace_substring_regex(text.take(pa.array(rows)), r"\s+", " "))
    mask = np.zeros(len(text), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(text, pa.array(mask), even)


def _uneven(text: pa.Array) -> Ints:
    """Return the rows with other white space than single spaces between words, or with control characters."""
    data, edges = bytes_of(text)
    if not len(data):
        return np.zeros(0, np.int64)
    space = data == 32
    odd = data < 32
    odd[1:] |= space[1:] & space[:-1]
    places = np.flatnonzero(odd)
    filled = np.flatnonzero(np.diff(edges))  # rows that are not empty
    ends = space[edges[filled]] | space[edges[filled + 1] - 1]
    found: Ints = np.union1d(np.searchsorted(edges, places, "right") - 1, filled[ends])
    return found


def folded(values: Hashes, edges: Ints) -> Hashes:
    """Return (groups,) one hash of the values of each group, in order; no group is empty.

    values: (rows,); edges: (groups + 1,) where each group begins, and the end of the last.
    """
    lengths = np.diff(edges)
    if not len(lengths):
        return np.zeros(0, np.uint64)
    places = np.arange(len(values), dtype=np.uint64)
    places -= np.repeat(edges[:-1].astype(np.uint64), lengths)
    places += np.uint64(1)
    places *= STEP
    places += values
    return mixed(np.add.reduceat(mixed(places), edges[:-1]) + lengths.astype(np.uint64))


def _hash_bytes(text: pa.Array) -> Hashes:
    """Return (rows,) the hashes of the UTF-8 bytes of texts."""
    data, edges = bytes_of(text)
    return hash_spans(data, edges[:-1], np.diff(edges))


def hash_spans(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """Return the hashes of spans of bytes.

    A last word of fewer than 8 bytes is filled up with zeros.

    Args:
        data: uint8, the bytes.
        starts: (spans,) int64, the offset of each span.
        lengths: (spans,) int64, its length in bytes.

    Returns:
        (spans,) uint64.
    """
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[:-8] = data
    counts = np.maximum(1, -(-lengths // 8))  # an empty span is a word of zeros
    groups = np.append(0, np.cumsum(counts))
    words = np.lib.stride_tricks.as_strided(padded[:8].view(np.uint64), (len(padded) - 7,), (1,))
    found = words[8 * np.arange(groups[-1]) + np.repeat(starts - 8 * groups[:-1], counts)]
    unused = (8 * counts - lengths).astype(np.uint64) * np.uint64(8)  # bits of each last word
    whole = unused < 64
    last = groups[1:] - 1
    found[last[whole]] &= np.uint64(2**64 - 1) >> unused[whole]
    found[last[~whole]] = 0
    return mixed(folded(found, groups) + lengths.astype(np.uint64))


def bytes_of(text: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the UTF-8 bytes of all rows, and where each row begins in them and the last ends."""
    _, offsets, data = text.buffers()
    if not len(text) or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(text) + 1, np.int64)
    edges = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8)[edges[0] : edges[-1]], edges - edges[0]


def steps(count: int) -> np.uint64:
    """Return `count` times the constant that sets places and turns apart."""
    return np.uint64(count * int(STEP) % 2**64)


def mixed(values: Hashes) -> Hashes:
    """Mix hashes in place (the finaliser of SplitMix64), and return them."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
