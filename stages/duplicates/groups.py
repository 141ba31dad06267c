"""Groups of equal keys: which rows have the same key, which of them is the first, how many there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.duplicates.hashing import Hashes, Ints

MEMBERS = pa.schema([("key", pa.uint64()), ("part", pa.int32()), ("row", pa.int32()), ("count", pa.int32())])
FOUND = pa.schema(
    [("key", pa.uint64()), ("part", pa.int32()), ("row", pa.int32()), ("first_part", pa.int32()),
     ("first_row", pa.int32()), ("count", pa.int32())]
)  # fmt: skip


def members(keys: Hashes, rows: Ints, part: int) -> pa.Table:
    """Return the distinct keys of a part, sorted, each with its first row and how often it occurs.

    So a part adds one row for each key, however often it repeats it.

    Args:
        keys: (rows,) uint64.
        rows: (rows,) int64, the row of each key in the part.
        part: the number of the part.

    Returns:
        A table with the columns of `MEMBERS`.
    """
    order, starts = sorted_keys(keys)
    first = np.minimum.reduceat(rows[order], starts) if len(starts) else rows[:0]
    counts = np.diff(np.append(starts, len(keys)))
    columns = [keys[order[starts]], np.full(len(starts), part), first, counts]
    return pa.table([pa.array(one, kind) for one, kind in zip(columns, MEMBERS.types, strict=True)], schema=MEMBERS)


def sorted_keys(keys: Hashes) -> tuple[Ints, Ints]:
    """Return an order in which equal keys follow each other, and where each key begins in it."""
    order = np.argsort(keys)  # not a stable one, which takes twice as long
    new = np.ones(len(order), np.bool_)
    new[1:] = keys[order[1:]] != keys[order[:-1]]
    return order, np.flatnonzero(new)


def groups(table: pa.Table) -> pa.Table:
    """Return the members of all keys that occur more than once (`FOUND`), each with its group's first row and size.

    `table`: `MEMBERS` of several parts; parts are numbered in order.
    """
    keys, counts = table["key"].to_numpy(), table["count"].to_numpy()
    part, row = table["part"].to_numpy(), table["row"].to_numpy()
    order, starts = sorted_keys(keys)
    sizes = np.diff(np.append(starts, len(keys)))
    totals = np.add.reduceat(counts[order], starts) if len(starts) else counts[:0]
    several = totals > 1
    in_several = np.repeat(several, sizes)
    order, sizes, totals = order[in_several], sizes[several], totals[several]
    starts = np.cumsum(sizes) - sizes
    places = (part[order].astype(np.int64) << 32) + row[order]
    first = np.repeat(np.minimum.reduceat(places, starts) if len(starts) else places, sizes)
    columns = [keys[order], part[order], row[order], first >> 32, first & 0xFFFFFFFF, np.repeat(totals, sizes)]
    return pa.table(columns, schema=FOUND)


def edges_of(keys: Hashes, places: Ints) -> Ints:
    """Return (edges, 2) each place with the first one of those with the same key, without those of firsts."""
    order, starts = sorted_keys(keys)
    if not len(starts):
        return np.zeros((0, 2), np.int64)
    first = np.repeat(np.minimum.reduceat(places[order], starts), np.diff(np.append(starts, len(keys))))
    found: Ints = np.stack([places[order], first], axis=1)[places[order] != first]
    return found


def clusters(edges: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the connected components of a graph: places, sorted; the first of each one's component; and its size.

    edges: (edges, 2) places. Labels are lowered along edges and then along labels until nothing changes.
    """
    places, ends = np.unique(edges, return_inverse=True)
    left, right = ends.reshape(-1, 2).T
    label = np.arange(len(places))
    while True:
        low = np.minimum(label[left], label[right])
        new = label.copy()
        for end in (left, right, label[left], label[right]):
            np.minimum.at(new, end, low)
        new = new[new]
        if (new == label).all():
            break
        label = new
    return places, places[label], np.bincount(label, minlength=len(places))[label]


@dataclass(frozen=True)
class GroupLookup:
    """For the rows of a part: the place of their group in a table sorted by key, and whether they are in one."""

    place: Ints
    grouped: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, keys: Hashes, known: Hashes) -> GroupLookup:
        """Find keys (rows,) among the known ones, which are sorted and distinct."""
        place = np.searchsorted(known, keys).astype(np.int64)
        inside = place < len(known)
        grouped = inside.copy()
        grouped[inside] = known[place[inside]] == keys[inside]
        return cls(np.where(grouped, place, 0), grouped)

    def take(self, values: pa.ChunkedArray, where: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return (rows,) the group's value; null for rows outside groups, or where `where` is false."""
        there = self.grouped if where is None else self.grouped & where
        return values.combine_chunks().take(pa.array(self.place, mask=~there))
