"""The *unfolded* chunks, which are in no ledger yet: their state is read from their receipts.

The fingerprint of a chunk leads to its receipt, which names its parts, whose column digests give the fingerprint of the
next stage, and so on. Cost: one small read per receipt, 16 at a time. Up to 1000 receipts are simply tried; for more,
the existing ones are listed first, folder by folder (`receipts/<stage>/<xx>/`), so that memory stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import CorpusError
from pipeline.base.parallel import in_parallel
from pipeline.corpus.ledger import Detail
from pipeline.corpus.receipts import ChunkReceipt, PartRef, Receipt, read_chunk_receipt, read_receipt
from pipeline.corpus.recipes import SEGMENT, part_fingerprint
from pipeline.storage import layout
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from pipeline.corpus.view import Listed, View

DIRECT = 1000  # receipts that are tried without listing which ones exist
Result = TypeVar("Result")


@dataclass
class PartState:
    """A part and the receipts that it has under the view's recipes, in the order of the stages."""

    ref: PartRef
    chunk: str
    receipts: dict[str, Receipt]
    missing: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The number of sentences of the part."""
        return self.receipts[SEGMENT].rows


Opened = tuple[ChunkReceipt, list[PartState]]


def probably_segmented(store: Store, listed: Listed, among: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """Return the numbers of the chunks that probably have a receipt; if there are few chunks, all of them.

    Args:
        store: the corpus.
        listed: the chunks of the view and their fingerprints.
        among: int64, the numbers of the chunks in question.

    Returns:
        Numbers of chunks; a few of them may turn out to have no receipt.
    """
    if len(among) <= DIRECT:
        return [int(one) for one in among]
    ids, found = listed.chunks.table["id"].combine_chunks(), set(among.tolist())
    there: list[int] = []
    for folder in store.folders("chunks"):
        owners = [layout.data_owner(path) for path in store.find("chunks", f"{folder}/")]
        places = pc.index_in(pa.array([chunk for chunk, _ in owners], pa.string()), value_set=ids)
        for place, (_, fingerprint8) in zip(places.to_pylist(), owners, strict=True):
            if place in found and listed.fingerprints[place].as_py().hex().startswith(fingerprint8):
                there.append(place)
    return there


def by_folder(listed: Listed, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of about `DIRECT` chunks, keeping those together whose receipts are in the same folders."""
    if len(numbers) <= DIRECT:
        yield list(numbers)
        return
    ids = listed.chunks.table["id"].take(pa.array(numbers)).to_pylist()
    batch: list[int] = []
    last = ""
    for one, number in sorted(zip(ids, numbers, strict=True)):
        if one[:2] != last and len(batch) >= DIRECT:
            yield batch
            batch = []
        last = one[:2]
        batch.append(number)
    if batch:
        yield batch


def read_chunks(store: Store, view: View, chunks: Sequence[tuple[str, str]]) -> list[Opened | None]:
    """Read the receipts of chunks.

    A part's receipt may have been deleted to have the part made again: then its chunk has to be segmented again.

    Args:
        store: the corpus.
        view: the view, whose recipes tell which receipts of parts are current.
        chunks: (id, fingerprint) of each.

    Returns:
        For each chunk, its receipt and the state of its parts; None if it is not segmented.
    """
    paths = [layout.chunk_receipt_path(*one) for one in chunks]
    receipts = _read_present(store, "chunks", paths, read_chunk_receipt)
    refs = [(ref, one.chunk) for one in receipts.values() for ref in one.parts]
    parts = _read_parts(store, view, refs)
    found: list[Opened | None] = []
    for path in paths:
        receipt = receipts.get(path)
        whole = receipt is not None and all(ref.part in parts for ref in receipt.parts)
        found.append((receipt, [parts[ref.part] for ref in receipt.parts]) if receipt and whole else None)
    return found


def merge_details(view: View, details: Sequence[tuple[Collection[str], Detail]]) -> Opened | None:
    """Put a chunk together from several rows of ledgers, each of which has stages that others lack.

    Args:
        view: the view, which tells the order of the stages.
        details: of each row, the stages that are valid under the view, and its receipts.

    Returns:
        The chunk's receipt and the state of its parts, each stage with the first receipt that was made from the columns
            of the receipts before it; None if the rows disagree about the parts.
    """
    chunk = details[0][1][0]
    if any(one.parts != chunk.parts or len(parts) != len(chunk.parts) for _, (one, parts) in details):
        return None
    found = []
    for at, ref in enumerate(chunk.parts):
        receipts: dict[str, Receipt] = {}
        digests: dict[str, str] = {}
        for stage in (SEGMENT, *view.stages):
            some = (parts[at][stage] for done, (_, parts) in details if stage in done and stage in parts[at])
            fitting = next((one for one in some if one.inputs.items() <= digests.items()), None)
            if fitting:
                receipts[stage] = fitting
                digests |= fitting.columns
        if SEGMENT not in receipts:
            return None
        found.append(PartState(ref, chunk.chunk, receipts, missing_of(view, receipts)))
    return chunk, found


def _read_parts(store: Store, view: View, refs: Sequence[tuple[PartRef, str]]) -> dict[str, PartState]:
    """Return the state of segmented parts, by name; parts whose receipt is gone are left out."""
    paths = {ref.part: layout.receipt_path(SEGMENT, ref.part, ref.fingerprint) for ref, _ in refs}
    read = _read_present(store, f"receipts/{SEGMENT}", paths.values(), read_receipt)
    receipts = {part: {SEGMENT: read[path]} for part, path in paths.items() if path in read}
    going_on = set(receipts)  # parts that have what the next stage reads
    for stage, recipe in view.stages.items():
        paths = {}
        for part in sorted(going_on):
            digests = {name: digest for one in receipts[part].values() for name, digest in one.columns.items()}
            inputs = {column: digests[column] for column in view.reads[stage] if column in digests}
            if len(inputs) < len(view.reads[stage]):
                going_on.discard(part)
            else:
                paths[part] = layout.receipt_path(stage, part, part_fingerprint(recipe, inputs))
        read = _read_present(store, f"receipts/{stage}", paths.values(), read_receipt)
        for part, path in paths.items():
            if path in read:
                receipts[part][stage] = read[path]
    return {
        ref.part: PartState(ref, chunk, receipts[ref.part], missing_of(view, receipts[ref.part]))
        for ref, chunk in refs
        if ref.part in receipts
    }


def missing_of(view: View, receipts: Mapping[str, Receipt]) -> tuple[str, ...]:
    """Return the stages that a part lacks."""
    return tuple(stage for stage in view.stages if stage not in receipts)


def _read_present(
    store: Store, folder: str, paths: Collection[str], read: Callable[[Store, str], Result]
) -> dict[str, Result]:
    """Return path → receipt for the receipts that exist."""
    if len(paths) > DIRECT:
        wanted = set(paths)
        folders = sorted({path[len(folder) + 1 :].partition("/")[0] for path in wanted})
        there = in_parallel(lambda xx: wanted.intersection(store.find(folder, f"{xx}/")), folders)
        paths = sorted(set().union(*there))

    def read_one(path: str) -> Result | None:
        try:
            return read(store, path)
        except CorpusError:
            if store.exists(path):
                raise
            return None

    found = zip(paths, in_parallel(read_one, list(paths)), strict=True)
    return {path: one for path, one in found if one is not None}
