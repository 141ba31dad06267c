"""Groups of equal keys: which rows have the same key, which of them is the first, how many there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.duplicates.hashing import Hashes, Ints

MEMBERS = pa.schema([("key", pa.uint64()), ("part", pa.int32()), ("row", pa.int32()), ("count", pa.int32())])
FOUND = pa.schema(
    [("key", pa.uint64()), ("part", pa.int32()), ("first_part", pa.int32()), ("first_row", pa.int32()),
     ("count", pa.int32())]
)  # fmt: skip


def members(keys: Hashes, rows: Ints, part: int) -> pa.Table:
    """Return the distinct keys of a part, sorted, each with its first row and how often it occurs (`MEMBERS`).

    So a part adds one row for each key, however often it repeats it.
    """
    distinct, places, counts = np.unique(keys, return_index=True, return_counts=True)
    columns = [distinct, np.full(len(distinct), part, np.int32), rows[places].astype(np.int32), counts.astype(np.int32)]
    return pa.table(columns, schema=MEMBERS)


def groups(table: pa.Table) -> pa.Table:
    """Return the members of all keys that occur more than once (`FOUND`), each with its group's first row and size.

    `table`: `MEMBERS` of several parts in the order of the parts.
    """
    keys, counts = table["key"].to_numpy(), table["count"].to_numpy()
    order = np.argsort(keys, kind="stable")  # members of a group stay in the order of their parts
    new = np.ones(len(order), np.bool_)
    new[1:] = keys[order[1:]] != keys[order[:-1]]
    starts = np.flatnonzero(new)
    totals = np.add.reduceat(counts[order], starts) if len(starts) else np.zeros(0, np.int64)
    group = np.cumsum(new) - 1
    several = totals[group] > 1
    rows, group = order[several], group[several]
    first = order[starts][group]
    part, row = table["part"].to_numpy(), table["row"].to_numpy()
    columns = [keys[rows], part[rows], part[first], row[first], totals[group].astype(np.int32)]
    return pa.table(columns, schema=FOUND)


@dataclass(frozen=True)
class Lookup:
    """For the rows of a part: the place of their group in a table sorted by key, and whether they are in one."""

    place: Ints
    grouped: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, keys: Hashes, known: Hashes) -> Lookup:
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
