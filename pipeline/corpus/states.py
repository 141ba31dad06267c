"""What a corpus holds now: chunks of a view, their parts, and which stages are done for each part.

Ledgers describe finished chunks, receipts all others (the *unfolded* ones). Objects of chunks are created on access,
and receipts of parts are read only when `receipt` or `parts` are. For example, of a million chunks in ledgers and ten
that were just segmented, one column of numbers says which stages each ledger row has, and only the receipts of the ten
are read. Cost: 40 bytes per chunk, some seconds per million chunks, and one small read per unfolded receipt.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from pipeline.base.errors import CorpusError
from pipeline.corpus.counters import CHUNK, NOT_SEGMENTED, Counters, add, by_detail, counters_of, problems_of
from pipeline.corpus.ledger import Ints, LedgerGoneError, Ledgers, row_of, write_rows
from pipeline.corpus.receipts import ChunkReceipt, PartRef, Receipt
from pipeline.corpus.recipe_match import Listings, RecipeMatch, match_recipes
from pipeline.corpus.recipes import SEGMENT, segment_part_fingerprint
from pipeline.corpus.unfolded import Opened, PartState, by_folder, merge_details, probably_segmented, read_chunks
from pipeline.corpus.view import View
from pipeline.inputs import Chunk, ChunkTable
from pipeline.inputs.column_types import ColumnType, types_in
from pipeline.storage import layout
from pipeline.storage.store import Store

__all__ = ["ChunkState", "PartState", "States", "View", "read_state"]
KEPT = 1000  # unfolded chunks whose receipts are kept in memory; those of further ones are read again on access
SHARED_NAMES = 500_000  # names of receipts that are kept in memory for other views
LISTINGS = 10  # rounds of listing ledgers while other processes compact them


@dataclass(frozen=True)
class Gap:
    """A part that lacks stages: its number in the chunk, the stages, and its sentences."""

    number: int
    missing: tuple[str, ...]
    rows: int


class ChunkState:
    """A chunk of the view.

    `numbers` are the numbers of its parts. `sentences` is None until the chunk is segmented under the view's recipe.

    Args:
        chunk: the chunk.
        fingerprint: the fingerprint of its segmentation.
        counts: the numbers of its parts and its sentences; None if it is not segmented.
        missing: the stages that some part lacks.
        gaps: the parts that lack something; None if all parts lack the same stages.
        load: reads the receipts of the chunk and of its parts; None if there are none.
        folded: whether a ledger has the receipts.
    """

    __slots__ = ("_gaps", "_load", "_opened", "chunk", "fingerprint", "folded", "missing", "numbers", "sentences")

    def __init__(
        self,
        chunk: Chunk,
        fingerprint: str,
        counts: tuple[Sequence[int], int] | None = None,
        missing: tuple[str, ...] = (),
        gaps: Sequence[Gap] | None = None,
        load: Callable[[], Opened] | None = None,
        folded: bool = False,
    ) -> None:
        self.chunk = chunk
        self.fingerprint = fingerprint
        self.numbers: Sequence[int] = counts[0] if counts else ()
        self.sentences: int | None = counts[1] if counts else None
        self.missing = missing
        self.folded = folded
        self._gaps = gaps
        self._load = load
        self._opened: Opened | None = None

    def _open(self) -> Opened | None:
        if self._load and not self._opened:
            self._opened = self._load()
        return self._opened

    @property
    def segmented(self) -> bool:
        """Whether the chunk has a receipt under the view's recipe."""
        return self._load is not None

    @property
    def receipt(self) -> ChunkReceipt | None:
        """The receipt, read on first access; None if the chunk is not segmented."""
        opened = self._open()
        return opened[0] if opened else None

    @property
    def parts(self) -> list[PartState]:
        """The parts, read on first access."""
        opened = self._open()
        return opened[1] if opened else []

    def lacks(self, stages: Collection[str]) -> bool:
        """Return whether one of these stages has something to do here."""
        return any(stage in stages for stage in self.missing) if self.segmented else SEGMENT in stages

    def part_names(self) -> list[str]:
        """Return the names of the parts without reading anything."""
        return [layout.part_name(self.chunk.id, number) for number in self.numbers]

    def waiting(self, stages: Collection[str]) -> list[PartRef]:
        """Return the parts that lack one of these stages, without reading anything."""
        fingerprints = ((one, segment_part_fingerprint(self.fingerprint, one)) for one in self._waiting(stages))
        return [PartRef(part=layout.part_name(self.chunk.id, one), fingerprint=print_) for one, print_ in fingerprints]

    def count_waiting(self, stages: Collection[str]) -> tuple[int, int]:
        """Return the number of parts that lack one of these stages, and the number of their sentences."""
        if self._gaps is None:
            parts, rows = len(self.numbers), self.sentences or 0
            return (parts, rows) if any(stage in stages for stage in self.missing) else (0, 0)
        rows_of = {gap.number: gap.rows for gap in self._gaps}
        numbers = self._waiting(stages)
        return len(numbers), sum(rows_of[number] for number in numbers)

    def _waiting(self, stages: Collection[str]) -> list[int]:
        if self._gaps is not None:
            return [gap.number for gap in self._gaps if any(stage in stages for stage in gap.missing)]
        return list(self.numbers) if any(stage in stages for stage in self.missing) else []

    def counters(self) -> Counters:
        """Return the counters of the chunk's receipts."""
        opened = self._open()
        return _counters_of(opened) if opened else NOT_SEGMENTED

    def problems(self) -> list[str]:
        """Say where the receipts of the chunk do not agree with each other."""
        opened = self._open()
        return _problems(opened) if opened else []


@dataclass(frozen=True)
class _Unfolded:
    """A segmented chunk that is in no ledger; `opened` is None if its receipts are read again on access.

    `quarantined`: whether records of it are in quarantine.
    """

    counts: tuple[Sequence[int], int]
    gaps: tuple[Gap, ...]
    quarantined: bool
    opened: Opened | None

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage for gap in self.gaps for stage in gap.missing))


def _counters_of(opened: Opened) -> Counters:
    return counters_of(opened[0], ((part.receipts, part.missing) for part in opened[1]))


def _problems(opened: Opened) -> list[str]:
    return problems_of(opened[0], [part.receipts for part in opened[1]])


class States(Sequence[ChunkState]):
    """Every chunk of a view with its state, in the order of the view; states are created on access.

    `total` is the sum of all counters.

    Args:
        store: the corpus.
        view: the view.
        ledgers: the rows of all ledger files.
        rows: (chunks,) int64, each chunk's row in the ledgers, or −1.
        matches: the match of each distinct set of recipes in the ledgers.
        gone: the rows of ledgers whose receipts no longer exist.
        divided: by number of the chunk, the rows of chunks whose stages stand in several rows of the ledgers.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        ledgers: Ledgers,
        rows: Ints,
        matches: list[RecipeMatch],
        gone: list[int],
        divided: Mapping[int, Sequence[int]],
    ) -> None:
        self.store, self.view, self.ledgers, self.rows, self.matches = store, view, ledgers, rows, matches
        self.gone = gone  # rows of ledgers that name receipts which no longer exist
        self._divided = divided
        self.total: Counters = {}
        self.problems: list[str] = []
        self.older: Counters = {}  # of stages whose recipe is another one now
        self.unfolded: dict[int, _Unfolded] = {}
        self._columns: Counter[frozenset[str]] = Counter()  # columns → how many parts have exactly these
        self._add_ledgers()
        self._add_unfolded()

    def _add_ledgers(self) -> None:
        used = self.rows[self.rows >= 0]
        groups = np.full(len(self.ledgers), -1, np.int64)
        groups[used] = self.ledgers.recipe[used]
        for number, counters in enumerate(self.ledgers.counters(groups, len(self.matches))):
            matched, inside = self.matches[number], used[self.ledgers.recipe[used] == number]
            parts, sentences = int(self.ledgers.parts[inside].sum()), int(self.ledgers.sentences[inside].sum())
            owners = {key: key.partition("/")[0] for key in counters}
            add(self.total, {key: counters[key] for key, owner in owners.items() if owner in (CHUNK, *matched.done)})
            add(self.older, {key: counters[key] for key, owner in owners.items() if owner in matched.missing})
            for stage in matched.missing if parts else ():
                add(self.total, {f"{stage}/left": parts, f"{stage}/waiting": sentences})
            if parts:
                self._columns[matched.columns] += parts

    def _add_unfolded(self) -> None:
        listed, among = self.view.listed, np.flatnonzero(self.rows < 0)
        there = probably_segmented(self.store, listed, among[~np.isin(among, list(self._divided))])
        kept = len(there) + len(self._divided) <= KEPT
        for number in sorted(self._divided, key=lambda one: self._divided[one][0]):
            self._add_opened(number, self._again(number), kept)
        for batch in by_folder(listed, there):
            entries = [(listed.chunks[one].id, listed.fingerprints[one].as_py().hex()) for one in batch]
            for number, opened in zip(batch, read_chunks(self.store, self.view, entries), strict=True):
                if opened:
                    self._add_opened(number, opened, kept)
        unsegmented = len(among) - len(self.unfolded)
        if unsegmented:
            add(self.total, {key: value * unsegmented for key, value in NOT_SEGMENTED.items()})

    def _add_opened(self, number: int, opened: Opened, kept: bool) -> None:
        receipt, parts = opened
        add(self.total, _counters_of(opened))
        self.problems += _problems(opened)
        numbers = [layout.part_number(part.ref.part) for part in parts]
        found = zip(numbers, parts, strict=True)
        gaps = tuple(Gap(at, part.missing, part.rows) for at, part in found if part.missing)
        self.unfolded[number] = _Unfolded(
            (numbers, receipt.sentences), gaps, bool(receipt.quarantined), opened if kept else None
        )
        self._columns.update(frozenset().union(*(one.columns for one in part.receipts.values())) for part in parts)

    @property
    def columns(self) -> frozenset[str]:
        """The columns ("family.column") that every part has."""
        return frozenset.intersection(*self._columns) if self._columns else frozenset()

    @property
    def kept_types(self) -> dict[str, ColumnType]:
        """The common types of the columns that inputs keep: text where a part does not tell; an input's parts need not
        have those of others.
        """
        names = {name for recipe in self.view.segment.values() for name in recipe["input"].get("keep", ())}
        parts = {
            name: sum(count for columns, count in self._columns.items() if f"documents.{name}" in columns)
            for name in sorted(names)
        }
        types = types_in(by_detail(self.total, SEGMENT, "counts"), parts)
        return {name: types[name] for name in parts}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ChunkState]:
        return (self._state(number, *entry) for number, entry in enumerate(self.view.chunks))

    @overload
    def __getitem__(self, index: int) -> ChunkState: ...
    @overload
    def __getitem__(self, index: slice) -> list[ChunkState]: ...
    def __getitem__(self, index: int | slice) -> ChunkState | list[ChunkState]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._state(range(len(self))[index], *self.view.chunks[index])

    def _state(self, number: int, chunk: Chunk, fingerprint: str) -> ChunkState:
        row, unfolded = int(self.rows[number]), self.unfolded.get(number)
        if row >= 0:
            counts = self.ledgers.numbers(row), int(self.ledgers.sentences[row])
            matched = self.matches[int(self.ledgers.recipe[row])]
            missing = matched.missing if len(counts[0]) else ()
            return ChunkState(
                chunk, fingerprint, counts, missing, load=lambda: self._from_ledger(row, matched), folded=True
            )
        if unfolded:
            return ChunkState(
                chunk,
                fingerprint,
                unfolded.counts,
                unfolded.missing,
                unfolded.gaps,
                lambda: unfolded.opened or self._again(number),
            )
        return ChunkState(chunk, fingerprint)

    def _from_ledger(self, row: int, matched: RecipeMatch) -> Opened:
        try:
            receipt, parts = self.ledgers.detail(row)
        except LedgerGoneError:  # compacted since, but the receipts say the same
            number = int(np.flatnonzero(self.rows == row)[0])
            return self._again(number)
        return receipt, [_part(matched, ref, one) for ref, one in zip(receipt.parts, parts, strict=True)]

    def _again(self, number: int) -> Opened:
        with contextlib.suppress(LedgerGoneError):
            rows = self._divided.get(number, ())
            details = [(self.matches[int(self.ledgers.recipe[row])].done, self.ledgers.detail(row)) for row in rows]
            merged = merge_details(self.view, details) if details else None
            if merged:
                return merged
        chunk, fingerprint = self.view.chunks[number]
        (opened,) = read_chunks(self.store, self.view, [(chunk.id, fingerprint)])
        if not opened:
            raise CorpusError(
                f"{self.store.url}: the receipts of chunk {chunk.id} were deleted while they were read; run again"
            )
        return opened

    def quarantined(self) -> Iterator[ChunkState]:
        """Yield the segmented chunks of which records are in quarantine, in order, without reading other receipts."""
        mask = self.rows >= 0
        try:
            mask[mask] = self.ledgers.having(f"{CHUNK}/quarantined/")[self.rows[mask]]
        except LedgerGoneError:  # compacted since
            return (one for one in self if one.receipt and one.receipt.quarantined)
        mask[[number for number, one in self.unfolded.items() if one.quarantined]] = True
        return (self[number] for number in np.flatnonzero(mask).tolist())

    def result_of(self, number: int) -> tuple[object, ...] | None:
        """Return what is equal for chunks with equal receipts, of states that share a reading; None if none tells."""
        row = int(self.rows[number])
        return (self.ledgers, row, self.matches[int(self.ledgers.recipe[row])].done) if row >= 0 else None

    def unsegmented(self) -> ChunkTable:
        """Return the chunks that have no receipt, in order."""
        left = self.rows < 0
        left[list(self.unfolded)] = False
        return self.view.listed.chunks.take(left)

    def lacking(self, stage: str) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Yield, for chunks in ledgers that lack a stage, their recipes and the number of their parts."""
        used = self.rows[self.rows >= 0]
        counts = np.bincount(self.ledgers.recipe[used], self.ledgers.parts[used], len(self.matches))
        for matched, parts in zip(self.matches, counts.tolist(), strict=True):
            if parts and stage in matched.missing:
                yield matched.recipes, int(parts)

    @functools.cached_property
    def by_id(self) -> dict[str, int]:
        """Return id of a chunk → its number."""
        ids = self.view.listed.chunks.columns("id")
        return {one: number for number, one in enumerate(one for (some,) in ids for one in some)}


def total_of(chunks: Sequence[ChunkState]) -> Counters:
    """Add up the counters of chunks."""
    if isinstance(chunks, States):
        return chunks.total
    total: Counters = {}
    for one in chunks:
        add(total, one.counters())
    return total


def problems_in(chunks: Sequence[ChunkState]) -> list[str]:
    """Say where the receipts of chunks do not agree with each other; those in ledgers agree, since otherwise they would
    not have been folded.
    """
    return list(chunks.problems) if isinstance(chunks, States) else [text for one in chunks for text in one.problems()]


def _part(matched: RecipeMatch, ref: PartRef, receipts: dict[str, Receipt]) -> PartState:
    kept = {stage: one for stage, one in receipts.items() if stage in matched.done}
    return PartState(ref, layout.part_owner(ref.part), kept, matched.missing)


class SharedReading:
    """What the states of several views of a corpus have in common, and is read once: ledgers, and names of receipts.

    Args:
        store: the corpus, which is taken not to change.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._ledgers: Ledgers | None = None
        self.forget()

    def ledgers(self) -> Ledgers:
        """Return the ledgers. Raises `LedgerGoneError` if one was compacted meanwhile."""
        if self._ledgers is None:
            self._ledgers = Ledgers.read(self.store)
        return self._ledgers

    def forget(self) -> None:
        """Read everything again when it is needed the next time."""
        self.listings = Listings(self.store, SHARED_NAMES)
        self._ledgers = None


def read_state(store: Store, view: View, ledgers: bool = True, shared: SharedReading | None = None) -> States:
    """Return every chunk of the view with its state, in the order of the view.

    Args:
        store: the corpus.
        view: the view.
        ledgers: whether ledgers are read; receipts alone are cheaper for a few chunks of a large corpus.
        shared: ledgers and names that are read once for several views.

    Returns:
        The states.

    Raises:
        CorpusError: if ledgers are replaced again and again while they are read.
    """
    for _ in range(LISTINGS):
        try:
            if shared:
                found, listings = shared.ledgers(), shared.listings
            else:
                found, listings = Ledgers.read(store) if ledgers else Ledgers(store, [], []), Listings(store)
            return States(store, view, found, *match_recipes(listings, view, found))
        except LedgerGoneError as error:
            gone = error
            if shared:
                shared.forget()
    raise CorpusError(f"{gone}, and so were others before it; does a process compact ledgers over and over?")


def fold(store: Store, chunks: Sequence[ChunkState]) -> int:
    """Write a ledger of the chunks that are in none, and whose parts all have the same stages. Returns how many.

    Folding twice does no harm: equal rows count once.
    """
    count = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal count
        unfolded = (chunks[number] for number in chunks.unfolded) if isinstance(chunks, States) else chunks
        for one in unfolded:
            receipts = [part.receipts for part in one.parts]
            alike = all(part.keys() == receipts[0].keys() for part in receipts)
            if one.receipt and not one.folded and alike and not one.problems():
                count += 1
                yield row_of(one.receipt, receipts, counters_of(one.receipt, ((part, ()) for part in receipts)))

    write_rows(store, rows())
    return count


def forget_gone(states: States) -> None:
    """Remove rows whose receipts were deleted from the ledgers, before a run makes these receipts again."""
    if states.gone:
        keep = np.ones(len(states.ledgers), np.bool_)
        keep[states.gone] = False
        states.ledgers.keep(keep)
