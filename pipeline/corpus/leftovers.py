"""Data files that no receipt names, left by killed attempts and purged documents, and how they are deleted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from pipeline.corpus.ledger import forget
from pipeline.corpus.recipes import Recipes
from pipeline.corpus.states import ChunkState
from pipeline.corpus.tombstones import mark_erased, read_tombstones
from pipeline.storage import layout
from pipeline.storage.store import Store

REPORT = "report"  # the folder of reports, which quote documents
# stages whose family names other documents
NAMING = {"duplicates": "duplicates", "near": "near-duplicates", "semantic": "semantic-duplicates"}


def live_files(chunk: ChunkState) -> Iterator[str]:
    """Yield the receipts of a chunk and its parts, and the files that they name."""
    if chunk.receipt:
        yield layout.chunk_receipt_path(chunk.receipt.chunk, chunk.receipt.fingerprint)
        if chunk.receipt.quarantine:
            yield chunk.receipt.quarantine.path
    for part in chunk.parts:
        for stage, receipt in part.receipts.items():
            yield layout.receipt_path(stage, receipt.part, receipt.fingerprint)
            yield from (file.path for file in receipt.files)


def erase(
    store: Store,
    chunks: Collection[ChunkState],
    recipes: Recipes,
    stages: Collection[str] = (),
    check: Callable[[], None] = lambda: None,
) -> int:
    """Delete what purged documents left: reports, and all files of their chunks but those that the new receipts name.

    Chunks that are not segmented again yet, or lack one of `stages`, keep their files, from which the other rows are
    copied, unless no run of this configuration would read them.

    Args:
        store: the corpus.
        chunks: the chunks of the view.
        recipes: the recipes of the configuration, with the tombstones as they are now: a chunk is only taken to be
            segmented again if its receipt says so of all that was purged of it.
        stages: the stages that a chunk must have before its older files are deleted.
        check: called before each chunk; raises if this process has lost the corpus to another one.

    Returns:
        How many files of chunks were deleted.
    """
    hits = read_tombstones(store, waiting=True).by_chunk
    if not hits:
        return 0
    delete_reports(store)  # which `purge` has done, unless it was killed before
    states = {one.chunk.id: one for one in chunks if one.chunk.id in hits}
    waiting = {
        name
        for name, state in states.items()
        if not state.receipt
        or state.receipt.fingerprint != recipes.chunk_fingerprint(state.chunk)
        or state.lacks(stages)
    }
    ready = sorted(set(hits) - waiting)
    stages = store.folders("receipts")
    forget(store, ready)
    gone = 0
    for chunk in ready:
        check()
        live = set(live_files(states[chunk])) if chunk in states else set()
        for path in _files_of(store, chunk, stages):
            if path not in live:
                store.delete(path)
                gone += 1
    check()
    gone += _erase_names(store, chunks) if ready else 0
    mark_erased(store, waiting)
    return gone


def delete_reports(store: Store) -> int:
    """Delete all reports, also those that a killed command was writing. Returns how many files were deleted."""
    paths = store.find(REPORT)
    for path in paths:
        store.delete(path)
    return len(paths)


def _erase_names(store: Store, chunks: Collection[ChunkState]) -> int:
    """Delete what older comparisons of the corpus left of any chunk: it may name a purged document."""
    folders = [*(f"receipts/{stage}" for stage in NAMING), *NAMING.values()]
    old = [path for folder in folders for path in store.find(folder)]
    live = {path for chunk in chunks for path in live_files(chunk)} if old else set()
    dead = [path for path in old if path not in live]
    forget(store, {path.rpartition("/")[2].partition("-")[0] for path in dead if path.startswith("receipts/")})
    for path in dead:
        store.delete(path)
    return len(dead)


def _files_of(store: Store, chunk: str, stages: Collection[str]) -> Iterator[str]:
    """Yield every file of a chunk, receipts first: if deleting is interrupted, no receipt is left without its files."""
    yield from store.find("chunks", prefix=f"{chunk[:2]}/{chunk}.")
    for stage in stages:
        yield from store.find(f"receipts/{stage}", prefix=f"{chunk[:2]}/{chunk}-")
    for family in ("documents", *layout.ROW_FAMILIES, "quarantine"):
        yield from _attempts(store, family, [chunk], unfinished=True)


def _attempts(store: Store, family: str, chunks: Sequence[str], unfinished: bool) -> Iterator[str]:
    """Yield the files of a family that belong to some chunks.

    `unfinished`: whether also those that interrupted writes left, which only disks and copies of them have.
    """
    folders: dict[str, list[str]] = {family: []}  # layout 1 has them there
    for chunk in chunks:
        names = [chunk, f".{chunk}"] if unfinished else [chunk]
        folders[family] += names
        folders.setdefault(f"{family}/{chunk[:2]}", []).extend(names)
    for folder, names in folders.items():
        yield from store.find_any(folder, names)


# a data file, also one that `Store.write` did not finish; files that people put beside them do not match
ATTEMPT = re.compile(r"\.?(?P<part>[0-9a-f-]+)\.(?P<fingerprint>[0-9a-f]{8})-[0-9a-f]{6}\.parquet(\.[0-9a-f]{8}\.tmp)?")


ONE_LISTING = 100_000  # parts whose files are listed at once


PAGE = 1000  # names that an object store lists at a time


def sweep(store: Store, chunks: Sequence[ChunkState], whole: bool = True) -> int:
    """Delete data files of finished work that no receipt names: killed attempts left them.

    Call this for chunks before they are folded into a ledger; `pipeline gc` sees all. It is safe beside other writers:
    once a receipt exists, no other attempt at the same part and fingerprint can win. Cost: a listing of each family, in
    pieces if there are many parts, or listings of what belongs to those chunks if that is less.

    Args:
        store: the corpus.
        chunks: the chunks whose files are looked at.
        whole: whether these are all chunks of the corpus.

    Returns:
        How many files were deleted.
    """
    named: set[str] = set()
    finished: set[tuple[str, str, str]] = set()
    every = 0
    swept: list[str] = []
    for chunk in chunks:
        every += len(chunk.numbers)
        if chunk.folded or not chunk.receipt:
            continue
        swept.append(chunk.chunk.id)
        finished.add(("quarantine", chunk.receipt.chunk, chunk.receipt.fingerprint[:8]))
        if chunk.receipt.quarantine:
            named.add(chunk.receipt.quarantine.path)
        for part in chunk.parts:
            for receipt in part.receipts.values():
                for file in receipt.files:
                    named.add(file.path)
                    finished.add((file.family, part.ref.part, receipt.fingerprint[:8]))
    gone = 0
    few = not whole or 2 * len(swept) < every // PAGE
    for family in sorted({family for family, _, _ in finished}):
        listings = (
            [_attempts(store, family, swept, store.local)]
            if few
            else (store.find(family, one) for one in prefixes(every))
        )
        for path in itertools.chain.from_iterable(listings):
            attempt = ATTEMPT.fullmatch(path.rsplit("/", 1)[-1])
            if attempt and path not in named and (family, attempt["part"], attempt["fingerprint"]) in finished:
                store.delete(path)
                gone += 1
    return gone


def prefixes(parts: int) -> Sequence[str]:
    """Return prefixes by which names that begin with a hash (or the dot of an unfinished file) are listed in bounded
    memory.
    """
    return [""] if parts <= ONE_LISTING else "0123456789abcdef."
