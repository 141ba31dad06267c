"""Says why a chunk or a part has to be made: it is new, or its last recipe differs from the present one.

For chunks in ledgers the reason is found once for each distinct set of recipes; for unfolded chunks part by part, from
the receipts with other fingerprints that still exist.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline.base.formats import counted
from pipeline.base.parallel import in_parallel
from pipeline.corpus.counters import busy_seconds, by_detail
from pipeline.corpus.fingerprint import difference, fingerprint
from pipeline.corpus.receipts import Receipt, read_receipt
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.runs import NoRunError, is_begun, newest_view
from pipeline.corpus.states import States
from pipeline.corpus.tombstones import read_tombstones
from pipeline.corpus.view import View, saved_recipe
from pipeline.inputs import Chunk, count_documents
from pipeline.inputs.chunk import PACKED
from pipeline.planning.earlier import Earlier, in_ledgers, in_receipts, tokens_per_sentence
from pipeline.storage import layout
from pipeline.storage.store import Store

NEW = "new"
PURGED = "documents were purged"
IDS = "other ids than before occur in earlier documents too"
_TYPES = "types of metadata"
_OF_ALL = {"keep": "metadata columns in files", "keep_types": _TYPES}  # keys of recipes: what they are


@dataclass
class StageWork:
    """What is done and left of one stage. `rate`: sentences/s measured so far (None: not measured).

    `scored_rate`: the same, of the sentences that a stage with a sample worked on; `guessed`: the rate was not
    measured, but follows from another stage's; `tokens_each`: of an average sentence, when the chunks that are left
    were segmented the last time.
    """

    stage: str
    done: int = 0
    left: int = 0
    sentences_done: int = 0
    sentences_left: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    rate: float | None = None
    scored_rate: float | None = None
    guessed: bool = False
    tokens_each: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """The time that the known sentences take at the measured rate."""
        return self.sentences_left / self.rate if self.rate else None


def segment_reasons(state: States, work: StageWork) -> None:
    """Record why chunks have to be segmented, and how many sentences they had the last time."""
    left = state.unsegmented()
    if not len(left):
        return
    ids = left.table["id"].combine_chunks()
    times = in_ledgers(state, ids)
    times |= in_receipts(state.store, ids, times)
    before, inputs = _view_before(state.store), left.table["input"].to_pylist()
    recipes = {name: fingerprint(recipe) for name, recipe in before.segment.items()} if before else {}
    found = {
        row: max(several, key=lambda one: (one.recipe == recipes.get(inputs[row]), one.created))
        for row, several in times.items()
    }
    work.tokens_each = tokens_per_sentence(state, list(found.values())) if found else None
    if len(found) < len(left):
        work.reasons[NEW] = len(left) - len(found)
    changes: dict[tuple[str, str], list[str]] = {}  # recipe, input → what changed
    rows, purged = sorted(found), read_tombstones(state.store)
    for row, chunk in zip(rows, left.take(pa.array(rows, pa.int64())), strict=True):
        last = found[row]
        work.sentences_left += round(last.sentences * _share(state, last, chunk))
        if (last.recipe, chunk.input) not in changes:
            changes[last.recipe, chunk.input] = _changes(state.store, last.recipe, state.view.segment[chunk.input])
        reasons = changes[last.recipe, chunk.input]
        work.reasons.update(reasons or _of_data(last, chunk) or [PURGED if purged.of(chunk.id) else IDS])


def _share(state: States, last: Earlier, chunk: Chunk) -> float:
    """Return how many documents a chunk has now, relative to the last time: another limit may cut it."""
    if last.take == chunk.take:
        return 1.0
    before = last.documents_in(state)
    return (count_documents(chunk).documents if chunk.take is None else chunk.take) / before if before else 1.0


def _changes(store: Store, recipe: str, now: Mapping[str, Any]) -> list[str]:
    if recipe == fingerprint(now):
        return []
    before = saved_recipe(store, SEGMENT, recipe)
    if before is None:
        return ["recipe changed"]
    same = before.get("input", {}).get("keep") == now["input"].get("keep")  # another input keeps something else
    old, new = ({_OF_ALL.get(key, key): value for key, value in one.items()} for one in (before, now))
    if not same:
        old, new = _without_own(old), _without_own(new)
    return difference(old, new) or ["recipe changed"]


def _without_own(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without what `input.keep` says itself: columns, and the types that it declares."""
    own = recipe.get("input", {}).get("keep")
    declared = own if isinstance(own, dict) else {}
    types = {name: kind for name, kind in recipe.get(_TYPES, {}).items() if declared.get(name) != kind}
    others = {key: value for key, value in recipe.items() if key not in _OF_ALL.values()}
    return others | ({_TYPES: types} if types else {})


def _of_data(last: Earlier, chunk: Chunk) -> list[str]:
    limited = "" if last.take == chunk.take else f"limit: {_taken(last.take)} → {_taken(chunk.take)}"
    if chunk.format == PACKED and last.stamp != chunk.stamp:
        return [f"{chunk.path}: {limited or 'files were added, changed or removed'}"]
    changed = [f"{chunk.path} has changed"] if last.stamp != chunk.stamp else []
    return changed + ([f"{chunk.path}: {limited}"] if limited else [])


def _taken(records: int | None) -> str:
    return "all records" if records is None else counted(records, "record")


def stage_reasons(state: States, work: StageWork) -> None:
    """Record why parts lack a stage; if it was never done under the present recipe, the old rate is used."""
    stage, view = work.stage, state.view
    if not work.left:
        return
    rows, seconds = state.older.get(f"{stage}/rows", 0.0), busy_seconds(by_detail(state.older, stage, "seconds"))
    for recipes, parts in state.lacking(stage):
        work.reasons.update(dict.fromkeys(_why(state.store, view, stage, recipes.get(stage, {}).get("recipe")), parts))
    waiting = [part.ref.part for number in state.unfolded for part in state[number].parts if stage in part.missing]
    older: dict[str, list[str]] = defaultdict(list)
    wanted = set(waiting)
    for folder in sorted({part[:2] for part in wanted}):
        for path in state.store.find(f"receipts/{stage}", f"{folder}/"):
            if layout.data_owner(path)[0] in wanted:
                older[layout.data_owner(path)[0]].append(path)
    before = _view_before(state.store)
    recipe = fingerprint(before.stages[stage]) if before and stage in before.stages else ""
    for last in in_parallel(lambda part: _last_receipt(state.store, older.get(part, []), recipe), waiting):
        work.reasons.update(_why(state.store, view, stage, last.recipe if last else None))
        if last:
            rows, seconds = rows + last.rows, seconds + busy_seconds(last.seconds)
    if not work.sentences_done and seconds:
        work.rate = rows / seconds


def _view_before(store: Store) -> View | None:
    """Return the view of the newest run, which may have returned to settings of an earlier one; None without a run."""
    try:
        return newest_view(store) if is_begun(store) else None
    except NoRunError:
        return None


def _last_receipt(store: Store, paths: list[str], recipe: str) -> Receipt | None:
    """Return the receipt of the recipe that the corpus has, or the newest one."""
    found = (read_receipt(store, path) for path in paths)
    return max(found, key=lambda receipt: (receipt.recipe == recipe, receipt.created), default=None)


def _why(store: Store, view: View, stage: str, last: str | None) -> list[str]:
    """Say why a part lacks a stage. `last`: its last recipe."""
    now = view.stages[stage]
    if last is None:
        return [NEW]
    if last != fingerprint(now):
        return difference(saved_recipe(store, stage, last), now) or ["recipe changed"]
    return [f"{', '.join(sorted(view.reads[stage]))}: the content changed"]
