"""MinHash signatures of documents, as keys of locality-sensitive hashing: documents with one key in common are alike.

A document is the set of its runs of `words` words (shingles). A signature has bands · band_hashes values, of which two
documents share a share that is, on average, the Jaccard similarity of their sets. It is made by Fast Similarity
Sketching (Dahlgaard, Knudsen and Thorup 2017, arXiv 1704.04370): one hash of a shingle sets one value, and further
rounds fill what is still empty, so a document costs as many hashes as it has shingles, not a hundred times as many.
Two documents of similarity s have a key in common with a probability of 1 − (1 − s^band_hashes)^bands.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.arrow import scattered
from stages.duplicates.hashing import (
    SLICE,
    STEP,
    Hashes,
    Ints,
    bytes_of,
    folded,
    hash_spans,
    hash_texts,
    mixed,
    normalised,
    steps,
)
from stages.duplicates.settings import MinhashSettings, NearSettings
from stages.stage import Computed, HostStage

_EMPTY = np.uint32(2**32 - 1)
_SHINGLES = 1 << 18  # shingles of documents that are sketched together
_SEPARATORS = np.zeros(256, np.bool_)  # ASCII bytes that are in no word
_SEPARATORS[:128] = [not chr(code).isalnum() for code in range(128)]
_UNSEEN = r"[\p{Cf}\x{180B}-\x{180D}\x{180F}\x{FE00}-\x{FE0F}\x{E0100}-\x{E01EF}]+"  # joiners, variation selectors, …
_MARKS = r"[\p{P}\p{S}\p{Z}\p{Cc}][\p{P}\p{S}\p{Z}\p{Cc}\p{M}]*|^\p{M}+"  # and combining ones without a letter


class Minhash(HostStage):
    """The stage `minhash`; see `MinhashSettings`."""

    def __init__(self, settings: MinhashSettings) -> None:
        self.settings = settings

    def prepare(self, part: pa.Table) -> Computed:
        """Make the keys of a part's documents, which stand in their first rows."""
        starts = np.flatnonzero(np.diff(part["sentences.doc"].to_numpy(), prepend=-1))
        keys = document_keys(part["sentences.text"].combine_chunks(), starts, self.settings)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), keys.shape[1]).cast(_KEYS)
        return Computed({"minhash": pa.table({"minhash": scattered(lists, starts, part.num_rows)})})


_KEYS = pa.list_(pa.field("element", pa.uint64()))


def document_keys(text: pa.Array, starts: Ints, settings: NearSettings) -> Hashes:
    """Return the keys by which near duplicates meet.

    Args:
        text: (rows,) the sentences of documents.
        starts: (documents,) int64, the first row of each.
        settings: the sizes.

    Returns:
        (documents, bands) uint64.
    """
    return keys_of_shingles(*shingles_of(text, starts, settings), settings)


def shingles_of(text: pa.Array, starts: Ints, settings: NearSettings) -> tuple[Hashes, Ints]:
    """Return the runs of words that documents are compared by; of a document without words, its text as a whole.

    Args:
        text: (rows,) the sentences of documents.
        starts: (documents,) int64, the first row of each.
        settings: the sizes.

    Returns:
        uint64, the hashes of all documents' runs; and (documents + 1,) int64, where each document begins in them.
    """
    slices = [_without_marks(normalised(text.slice(start, SLICE))) for start in range(0, max(1, len(text)), SLICE)]
    words, owner = _words(pa.concat_arrays(slices), starts)
    edges = np.searchsorted(owner, np.arange(len(starts) + 1))
    found, places = _shingles(words, edges, settings.words)
    wordless = np.diff(edges) == 0
    rows = np.diff(starts, append=len(text))
    these = text.take(pa.array(np.flatnonzero(np.repeat(wordless, rows))))
    hashes = hash_texts(pa.chunked_array([these]), "light")
    found[places[:-1][wordless]] = folded(hashes, np.append(0, np.cumsum(rows[wordless])))
    return found, places


def keys_of_shingles(shingles: Hashes, edges: Ints, settings: NearSettings) -> Hashes:
    """Return the keys of sets of shingles.

    Args:
        shingles: uint64, the hashes of all sets.
        edges: (documents + 1,) int64, where each set begins, and the end of the last.
        settings: the sizes.

    Returns:
        (documents, bands) uint64.
    """
    keys = [np.zeros((0, settings.bands), np.uint64)]
    first = 0
    while first < len(edges) - 1:
        end = max(first + 1, int(np.searchsorted(edges, edges[first] + _SHINGLES, "right")) - 1)
        signatures = sketched(shingles[edges[first] : edges[end]], edges[first : end + 1] - edges[first], settings)
        keys.append(_banded(signatures, settings))
        first = end
    return np.concatenate(keys)


def sketched(shingles: Hashes, edges: Ints, settings: NearSettings) -> npt.NDArray[np.uint32]:
    """Return the sketches of sets of shingles; no set may be empty.

    Args:
        shingles: uint64, the hashes of all sets.
        edges: (documents + 1,) int64, where each set begins, and the end of the last.
        settings: the sizes.

    Returns:
        (documents, values) uint32.
    """
    size = settings.bands * settings.band_hashes
    documents = len(edges) - 1
    found = np.full(documents * size, _EMPTY, np.uint32)
    owner = np.repeat(np.arange(documents), np.diff(edges))
    for turn in range(2 * size):  # Algorithm 1: values of a later turn never replace those of an earlier one
        hashes = mixed(shingles + steps(turn + 1))
        place = owner * size
        place += (
            ((hashes >> np.uint64(32)) * np.uint64(size) >> np.uint64(32)).astype(np.int64)
            if turn < size
            else (turn - size)
        )
        value = np.minimum(hashes.astype(np.uint32), _EMPTY - np.uint32(1))
        free = found[place] == _EMPTY
        np.minimum.at(found, place[free], value[free])
        open_ = (found.reshape(documents, size) == _EMPTY).any(axis=1)
        if not open_.any():
            break
        left = open_[owner]
        shingles, owner = shingles[left], owner[left]
    return found.reshape(documents, size)


def _banded(signatures: npt.NDArray[np.uint32], settings: NearSettings) -> Hashes:
    """Return (documents, bands) one key for the values of each band."""
    values = signatures.reshape(-1).astype(np.uint64)
    edges = np.arange(0, len(values) + 1, settings.band_hashes)
    keys = folded(values, edges).reshape(len(signatures), settings.bands)
    return mixed(keys + np.arange(settings.bands, dtype=np.uint64) * STEP)


def _without_marks(text: pa.Array) -> pa.Array:
    """Replace marks and symbols that are not ASCII, which `_words` would take for letters, by spaces.

    What is never seen by itself (joiners, variation selectors) is removed.
    """
    data, edges = bytes_of(text)
    rows = np.flatnonzero(np.diff(np.append(0, np.cumsum(data > 127))[edges]))
    if not len(rows):
        return text
    mask = np.zeros(len(text), np.bool_)
    mask[rows] = True
    seen = pc.replace_substring_regex(text.take(pa.array(rows)), _UNSEEN, "")
    spaced = pc.replace_substring_regex(seen, _MARKS, " ")
    return pc.replace_with_mask(text, pa.array(mask), spaced)


def _words(text: pa.Array, starts: Ints) -> tuple[Hashes, Ints]:
    """Return the hashes of all words, and their documents.

    A word is a run of letters and digits. Of scripts that are written without spaces (Chinese, Japanese, Thai, Lao,
    Khmer, Burmese) it is one character.
    """
    data, edges = bytes_of(text)
    separator = _SEPARATORS[data]
    begins = np.zeros(len(data) + 1, np.bool_)
    begins[1:] = separator  # after a separator
    begins[edges] = True
    begins[:-1] |= _alone(data)
    begins = begins[:-1] & ~separator
    ends = np.flatnonzero(np.append(begins[1:] | separator[1:], True)) + 1 if len(data) else np.zeros(0, np.int64)
    firsts = np.flatnonzero(begins)
    last = ends[np.searchsorted(ends, firsts, "right")] if len(firsts) else firsts
    row = np.searchsorted(edges, firsts, "right") - 1
    return hash_spans(data, firsts, last - firsts), np.searchsorted(starts, row, "right") - 1


def _alone(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return which bytes begin a character that is a word by itself, or the first one after such a character."""
    following = np.append(data[1:], 0).astype(np.uint8)
    wide = (data >= 0xE3) & (data <= 0xE9)  # U+3000 to U+9FFF
    wide |= (data == 0xE0) & (following >= 0xB8) & (following <= 0xBB)  # Thai, Lao
    wide |= (data == 0xE1) & np.isin(following, np.asarray([0x80, 0x81, 0x82, 0x9E, 0x9F], np.uint8))
    behind = np.zeros(len(data), np.bool_)
    behind[3:] = wide[:-3]
    return wide | behind


def _shingles(words: Hashes, edges: Ints, length: int) -> tuple[Hashes, Ints]:
    """Return the hashes of runs of `length` words of each document, and where each document begins.

    A document with fewer words is one shingle; one without any has room for one.
    """
    counts = np.diff(edges)
    long = counts >= length
    rolled = np.zeros(max(0, len(words) - length + 1), np.uint64)
    for place in range(length):
        rolled += words[place : place + len(rolled)]
        rolled = mixed(rolled + steps(place))
    sizes = np.where(long, counts - length + 1, 1)
    found = np.zeros(int(sizes.sum()), np.uint64)
    new_edges = np.append(0, np.cumsum(sizes))
    of_long = np.repeat(long, sizes)
    within = np.arange(len(found)) - np.repeat(new_edges[:-1], sizes)
    at = np.repeat(edges[:-1], sizes) + within
    found[of_long] = rolled[at[of_long]]
    short = np.flatnonzero(~long & (counts > 0))
    if len(short):
        inside = np.repeat(~long, counts)
        found[new_edges[short]] = folded(words[inside], np.append(0, np.cumsum(counts[short])))
    return found, new_edges
