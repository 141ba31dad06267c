"""What a corpus holds now, as its receipts say: chunks, their parts, and which stages are done for each.

A *view* is a configuration's list of chunks with the recipes that apply; everything else follows: the fingerprint of a
chunk gives its receipt, which names its parts, whose column digests give the fingerprint of the next stage, and so on.
Cost: one listing a folder and one small read a receipt, 16 at a time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline import layout
from pipeline.config import RunConfig
from pipeline.fingerprint import fingerprint
from pipeline.inputs import Chunk
from pipeline.receipts import ChunkReceipt, PartRef, Receipt, read_chunk_receipt, read_receipt
from pipeline.recipes import SEGMENT, Recipes, part_fingerprint, recipe_path
from pipeline.store import Store

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class PartState:
    """A part and the receipts it has under the view's recipes, in the order of the stages."""

    ref: PartRef
    chunk: str
    receipts: dict[str, Receipt]
    missing: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Sentences of the part."""
        return self.receipts[SEGMENT].rows


@dataclass
class ChunkState:
    """A chunk of the view; `receipt` is None until it is segmented under the view's recipe."""

    chunk: Chunk
    fingerprint: str
    receipt: ChunkReceipt | None
    parts: list[PartState] = field(default_factory=list)


@dataclass
class View:
    """Chunks with their fingerprints, and the recipes of the row-wise stages: what a run is about."""

    name: str
    chunks: list[tuple[Chunk, str]]
    segment: dict[str, dict[str, Any]]
    stages: dict[str, dict[str, Any]]
    reads: dict[str, list[str]]
    fits: dict[str, str] = field(default_factory=dict)  # name → record of the fit

    @classmethod
    def of(cls, config: RunConfig, chunks: Iterable[Chunk]) -> View:
        """The view of a configuration over chunks."""
        recipes = Recipes.of(config)
        return cls(
            name=config.name,
            chunks=[(chunk, recipes.chunk_fingerprint(chunk)) for chunk in chunks],
            segment=recipes.segment,
            stages=recipes.stages,
            reads={stage.name: list(stage.reads) for stage in config.row_stages()},
            fits={name: fit.record for name, fit in config.frozen.fits.items()},
        )

    def to_json(self) -> str:
        """For the run's folder: the view that readers open."""
        value = {
            "name": self.name,
            "segment": self.segment,
            "stages": self.stages,
            "reads": self.reads,
            "fits": self.fits,
            "chunks": [[json.loads(chunk.to_json()), one] for chunk, one in self.chunks],
        }
        return json.dumps(value, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> View:
        """Read back what `to_json` wrote."""
        value = json.loads(text)
        chunks = [(Chunk.from_json(json.dumps(chunk)), one) for chunk, one in value["chunks"]]
        return cls(value["name"], chunks, value["segment"], value["stages"], value["reads"], value.get("fits", {}))


def read_state(store: Store, view: View) -> list[ChunkState]:
    """Every chunk of the view with what is there of it, in the order of the view."""
    present = {*store.find("chunks"), *store.find(f"receipts/{SEGMENT}")}

    def open_chunk(entry: tuple[Chunk, str]) -> ChunkState:
        chunk, print_of_chunk = entry
        path = layout.chunk_receipt_path(chunk.id, print_of_chunk)
        receipt = read_chunk_receipt(store, path) if path in present else None
        paths = [layout.receipt_path(SEGMENT, ref.part, ref.fingerprint) for ref in receipt.parts] if receipt else []
        whole = all(one in present for one in paths)  # a part's receipt may have been deleted to have it made again
        return ChunkState(chunk, print_of_chunk, receipt if whole else None)

    chunks = in_parallel(open_chunk, view.chunks)
    refs = [(ref, one.chunk.id) for one in chunks if one.receipt for ref in one.receipt.parts]
    parts = read_parts(store, view, refs)
    for one in chunks:
        if one.receipt:
            one.parts = [parts[ref.part] for ref in one.receipt.parts]
    return chunks


def read_parts(store: Store, view: View, refs: Sequence[tuple[PartRef, str]]) -> dict[str, PartState]:
    """The state of parts that are segmented."""
    present = {path for stage in view.stages for path in store.find(f"receipts/{stage}")}

    def open_part(entry: tuple[PartRef, str]) -> PartState:
        ref, chunk = entry
        receipts = {SEGMENT: read_receipt(store, layout.receipt_path(SEGMENT, ref.part, ref.fingerprint))}
        digests = dict(receipts[SEGMENT].columns)
        for stage, recipe in view.stages.items():
            inputs = {column: digests[column] for column in view.reads[stage] if column in digests}
            if len(inputs) < len(view.reads[stage]):
                break
            path = layout.receipt_path(stage, ref.part, part_fingerprint(recipe, inputs))
            if path in present:
                receipts[stage] = read_receipt(store, path)
                digests |= receipts[stage].columns
        missing = tuple(stage for stage in view.stages if stage not in receipts)
        return PartState(ref, chunk, receipts, missing)

    return {state.ref.part: state for state in in_parallel(open_part, refs)}


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`[function(item) for item in items]`, 16 at a time (small reads, where waiting is the cost)."""
    if len(items) < 4:
        return [function(item) for item in items]
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(function, items))


def save_recipes(store: Store, view: View) -> None:
    """Keep every recipe once, so that a later plan can say what changed."""
    for recipe in (*view.segment.values(), *view.stages.values()):
        path = recipe_path(recipe)
        if not store.exists(path):
            store.create(path, json.dumps(recipe, ensure_ascii=False, indent=1, sort_keys=True).encode())


@functools.cache  # many parts have the same old recipe, and a recipe's file never changes
def saved_recipe(store: Store, stage: str, digest: str) -> dict[str, Any] | None:
    """A recipe of an earlier run by its fingerprint; None if it was not kept."""
    path = f"recipes/{stage}.{digest}.json"
    if not store.exists(path):
        return None
    recipe: dict[str, Any] = json.loads(store.read(path))
    return recipe if fingerprint(recipe) == digest else None
