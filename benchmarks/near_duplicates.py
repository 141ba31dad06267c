"""Measures near-duplicates on planted copies: recall, precision and speed, against datatrove's way in plain NumPy.

    python -m benchmarks.near_duplicates shared/corpora/books-en.jsonl.xz --documents 2000

Each document gets one copy, in which a share of the words is replaced by other words of the corpus, deleted or repeated
(one third each). Recall is the share of copies that are in one cluster with their original; precision is the share of
linked pairs of documents (one key in common) that are an original and its copy, or have a Jaccard similarity of at
least 0.5 anyway. datatrove's way has the same words, runs and sizes; its hashes of a run are (a·h + b) mod (2⁶¹ − 1),
one for each value, as in its `MinhashDedupSignature`. Speeds are of keys from runs on, and of ours from the text on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks.machine import console, describe_cpu
from stages.duplicates import minhash
from stages.duplicates.groups import clusters
from stages.duplicates.hashing import Hashes, Ints
from stages.duplicates.settings import NearSettings

EDITS = (0.0, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3)
ALIKE = 0.5
PRIME = (1 << 61) - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSONL, compressed by xz, with a text in each line")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--words", type=int, default=NearSettings().words)
    parser.add_argument("--bands", type=int, default=NearSettings().bands)
    parser.add_argument("--band-hashes", type=int, default=NearSettings().band_hashes)
    options = parser.parse_args(arguments)
    out = console()
    settings = NearSettings(words=options.words, bands=options.bands, band_hashes=options.band_hashes)
    for file in options.files:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in itertools.islice(lines, options.documents)]
        load = f"load {os.getloadavg()[0]:.0f}"
        out.print(f"{describe_cpu()}; {Path(file).name}, {len(texts)} documents, {load}; {settings}")
        ours_heads = ("recall", "precision", "docs/s", "from text")
        table = Table("edits", "similarity", "expected", *ours_heads, "datatrove: recall", "precision", "docs/s")
        for share in EDITS:
            table.add_row(f"{share:.0%}", *measure(texts, share, settings))
        out.print(table)


def measure(texts: Sequence[str], share: float, settings: NearSettings) -> list[str]:
    """Plant copies with a share of edits, and return the cells of a row."""
    random = np.random.default_rng(int(share * 1000))
    words = np.asarray(" ".join(texts[:200]).split())
    every = [*texts, *(edited(text, share, words, random) for text in texts)]
    column, starts = pa.array(every), np.arange(len(every))
    shingles, edges = minhash.shingles_of(column, starts, settings)
    sets = [np.unique(shingles[a:b]) for a, b in itertools.pairwise(edges.tolist())]
    alike = [jaccard(sets[one], sets[one + len(texts)]) for one in range(len(texts))]
    expected = np.mean([1 - (1 - s**settings.band_hashes) ** settings.bands for s in alike])
    cells = [f"{np.mean(alike):.2f}", f"{expected:.3f}"]
    for keys_of in (ours, datatroves):
        began = time.process_time()
        keys = keys_of(shingles, edges, settings)
        seconds = time.process_time() - began
        recall, precision = judged(keys, sets, len(texts))
        cells += [f"{recall:.3f}", f"{precision:.3f}", f"{len(every) / seconds:,.0f}"]
        if keys_of is ours:
            began = time.process_time()
            assert (minhash.document_keys(column, starts, settings) == keys).all()
            cells.append(f"{len(every) / (time.process_time() - began):,.0f}")
    return cells


def edited(text: str, share: float, words: np.ndarray, random: np.random.Generator) -> str:
    """Return a text of which a share of the words is replaced, deleted or repeated."""
    found = []
    for word, edit, other in zip(
        split := text.split(), random.random(len(split)), random.choice(words, len(split)), strict=True
    ):
        if edit >= share:
            found.append(word)
        elif edit < share / 3:
            found.append(str(other))
        elif edit < 2 * share / 3:
            found += [word, word]
    return " ".join(found)


def ours(shingles: Hashes, edges: Ints, settings: NearSettings) -> Hashes:
    """Return the keys of the stage."""
    return minhash.keys_of_shingles(shingles, edges, settings)


def datatroves(shingles: Hashes, edges: Ints, settings: NearSettings) -> Hashes:
    """Return the keys with one hash function for each value."""
    random = np.random.RandomState(1)
    size = settings.bands * settings.band_hashes
    a, b = (random.randint(1, PRIME, (1, size), np.uint64) for _ in range(2))
    rows = []
    with np.errstate(over="ignore"):
        for first, end in itertools.pairwise(edges.tolist()):
            runs = shingles[first:end, None] & np.uint64(2**32 - 1)
            rows.append(np.min((runs * a + b) % np.uint64(PRIME) & np.uint64(2**32 - 1), axis=0))
    return minhash._banded(np.stack(rows).astype(np.uint32), settings)


def judged(keys: Hashes, sets: Sequence[Hashes], originals: int) -> tuple[float, float]:
    """Return recall of copies, and precision of linked pairs."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for document, several in enumerate(keys.tolist()):
        for key in set(several):
            found[key].append(document)
    pairs = {pair for some in found.values() for pair in itertools.combinations(some, 2)}
    if not pairs:
        return 0.0, 1.0
    places, first, _ = clusters(np.asarray(sorted(pairs)))
    label = dict(zip(places.tolist(), first.tolist(), strict=True))
    recall = np.mean([label.get(one, -1) == label.get(one + originals, -2) for one in range(originals)])
    right = [other - one == originals or jaccard(sets[one], sets[other]) >= ALIKE for one, other in pairs]
    return float(recall), float(np.mean(right))


def jaccard(one: Hashes, other: Hashes) -> float:
    """Return the share of common elements of two sets, sorted and distinct."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


if __name__ == "__main__":
    main()
