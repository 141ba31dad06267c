"""Decides which rows of ledgers hold for a view, and which of their stages are still valid under changed recipes.

A row holds for a chunk of the view if it has the chunk's fingerprint; those of its stages are valid whose recipe is
still the view's. This is decided once for each distinct set of recipes, and by comparing columns for everything else.
Names of receipts are listed and compared only where receipts may have been added or deleted since: for a stage whose
recipe changed and that a run has begun, and for small corpora, whose receipts people delete by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from pipeline.corpus.counters import CHUNK
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.ledger import Ints, Ledgers
from pipeline.corpus.recipes import SEGMENT, recipe_path
from pipeline.corpus.view import View
from pipeline.storage import layout
from pipeline.storage.store import Store

LISTED_PARTS = 20_000  # up to this many parts, a corpus is compared with the files that exist


@dataclass(frozen=True)
class RecipeMatch:
    """What one set of recipes is worth under a view: the stages that are done, and the columns that they wrote."""

    recipes: Mapping[str, Any]
    done: tuple[str, ...]
    columns: frozenset[str]
    missing: tuple[str, ...]


def recipe_match(recipes: Mapping[str, Any], view: View) -> RecipeMatch:
    """Match a set of recipes with a view. A chunk without parts has everything."""
    columns = set(recipes[SEGMENT]["columns"]) if SEGMENT in recipes else set()
    done = [SEGMENT]
    for stage, recipe in view.stages.items():
        if SEGMENT in recipes and not columns.issuperset(view.reads[stage]):
            break
        if SEGMENT not in recipes or (stage in recipes and recipes[stage]["recipe"] == fingerprint(recipe)):
            done.append(stage)
            columns |= set(recipes[stage]["columns"]) if stage in recipes else set()
    return RecipeMatch(recipes, tuple(done), frozenset(columns), tuple(one for one in view.stages if one not in done))


class Listings:
    """The names of receipts, whose folders are listed once for several views, as long as memory holds `most` names."""

    def __init__(self, store: Store, most: int = 0) -> None:
        self.store = store
        self._left = most
        self._found: dict[tuple[str, str], list[str]] = {}

    def find(self, folder: str, prefix: str) -> list[str]:
        """Return what `Store.find` returned for the first time."""
        found = self._found.get((folder, prefix))
        if found is None:
            found = self.store.find(folder, prefix)
            if len(found) <= self._left:
                self._left -= len(found)
                self._found[folder, prefix] = found
        return found


def match_recipes(
    listings: Listings, view: View, ledgers: Ledgers
) -> tuple[Ints, list[RecipeMatch], list[int], dict[int, list[int]]]:
    """Match the rows of ledgers with a view.

    Args:
        listings: the names of the receipts of the corpus.
        view: the view, with fingerprints of its chunks.
        ledgers: the rows of all ledger files.

    Returns:
        For every chunk of the view, its row in the ledgers, or −1; the match of each distinct set of recipes; the rows
            whose receipts are gone; and, by chunk, the rows of those whose valid stages stand in several rows.
    """
    matches = [recipe_match(recipes, view) for recipes in ledgers.recipes]
    rows = np.full(len(view.chunks), -1, np.int64)
    if not len(ledgers):
        return rows, matches, [], {}
    place = pc.index_in(ledgers.fingerprints, value_set=view.listed.fingerprints)
    owners = place.fill_null(-1).to_numpy().astype(np.int64)  # row → chunk
    worth = np.asarray([len(one.done) for one in matches])[ledgers.recipe]
    best_last = np.argsort(worth, kind="stable")
    best_last = best_last[owners[best_last] >= 0]
    rows[owners[best_last]] = best_last  # the last of those that have the same owner stays
    doubtful = _doubtful(listings.store, view, ledgers, rows, matches)
    divided = _divided(ledgers, rows, owners, matches, tuple(view.stages))
    more, gone = _changed(listings, ledgers, rows, owners, matches, doubtful, divided) if doubtful else (set(), set())
    rows[sorted(more | gone | divided)] = -1
    rows_of: dict[int, list[int]] = {chunk: [] for chunk in divided - more - gone}
    for row in np.flatnonzero(np.isin(owners, list(rows_of))).tolist():
        rows_of[int(owners[row])].append(row)
    return rows, matches, np.flatnonzero(np.isin(owners, sorted(gone))).tolist(), rows_of


def _divided(
    ledgers: Ledgers, rows: Ints, owners: Ints, matches: Sequence[RecipeMatch], stages: Sequence[str]
) -> set[int]:
    """Return the chunks of which another row has a valid stage that the chosen one lacks: no row has all receipts.

    So it is if a stage was done while another one was not asked for, and that one is asked for again.
    """
    several = np.flatnonzero(np.bincount(owners[owners >= 0], minlength=len(rows)) > 1)
    of_several = np.flatnonzero(np.isin(owners, several))
    done = np.asarray([[stage in one.done for stage in stages] for one in matches], np.bool_)
    found = np.zeros((len(rows), len(stages)), np.bool_)
    np.logical_or.at(found, owners[of_several], done[ledgers.recipe[of_several]])
    return set(several[(found[several] & ~done[ledgers.recipe[rows[several]]]).any(axis=1)].tolist())


def _doubtful(
    store: Store, view: View, ledgers: Ledgers, rows: Ints, matches: Sequence[RecipeMatch]
) -> dict[str, bool]:
    """Return the stages whose receipts must be listed, and whether receipts that ledgers vouch for may be gone too."""
    used = rows[rows >= 0]
    if ledgers.parts[used].sum() <= LISTED_PARTS:
        return dict.fromkeys((CHUNK, SEGMENT, *view.stages), True) if len(used) else {}
    lacking = {stage for one in np.unique(ledgers.recipe[used]).tolist() for stage in matches[one].missing}
    return {stage: False for stage in lacking if store.exists(recipe_path(view.stages[stage]))}


def _changed(
    listings: Listings,
    ledgers: Ledgers,
    rows: Ints,
    owners: Ints,
    matches: Sequence[RecipeMatch],
    doubtful: Mapping[str, bool],
    divided: Collection[int],
) -> tuple[set[int], set[int]]:
    """Return the chunks with receipts that no ledger knows, and the chunks whose receipts are gone."""
    table = ledgers.columns("chunk", "fingerprint", "prints")
    every: dict[str, list[int]] = defaultdict(list)  # by the first two digits of the chunk
    for row in np.flatnonzero(owners >= 0).tolist():
        every[table["chunk"][row].as_py()[:2]].append(row)
    more: set[int] = set()
    gone: set[int] = set()
    for stage, may_be_gone in doubtful.items():
        folder = "chunks" if stage == CHUNK else f"receipts/{stage}"
        for xx in listings.store.folders(folder) if not may_be_gone else sorted(every):
            listed: dict[str, set[str]] = defaultdict(set)
            for path in listings.find(folder, f"{xx}/"):
                name = path.rpartition("/")[2].removesuffix(".json")
                listed[name[:12]].add(name)
            known: dict[int, set[str]] = defaultdict(set)
            for row in every[xx]:
                chunk, print_, fingerprints = (table[name][row].as_py() for name in ("chunk", "fingerprint", "prints"))
                recipes = ledgers.recipes[ledgers.recipe[row]]
                names = set(_names(chunk, print_, fingerprints, recipes, ledgers.numbers(row), stage))
                owner = int(owners[row])
                known[owner] |= names
                vouched = stage == CHUNK or stage in matches[ledgers.recipe[row]].done
                used = rows[owner] == row or owner in divided
                if may_be_gone and used and vouched and not names <= listed[chunk]:
                    gone.add(owner)
            for row in every[xx]:
                owner = int(owners[row])
                lacking = rows[owner] == row and stage in matches[ledgers.recipe[row]].missing
                if lacking and not listed[table["chunk"][row].as_py()] <= known[owner]:
                    more.add(owner)
    return more, gone


def _names(
    chunk: str, print_: bytes, fingerprints: bytes, recipes: Mapping[str, Any], numbers: Sequence[int], stage: str
) -> Iterator[str]:
    """Yield the names of the receipts of one stage, as the row knows them."""
    if stage == CHUNK:
        yield f"{chunk}.{print_.hex()[:8]}"
    stages = [one for one in recipes if one != CHUNK]
    if stage in stages:
        first = stages.index(stage) * len(numbers)
        for place, number in enumerate(numbers, first):
            at = 4 * place
            yield f"{layout.part_name(chunk, number)}.{fingerprints[at : at + 4].hex()}"
