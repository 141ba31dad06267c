"""A condition that was parsed (`expression.py`): it filters tables, as a whole or clause by clause."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.conditions.tokens import is_plain_name


@dataclass(frozen=True)
class Membership:
    """`value in column`: a column of true and false that a condition's expression reads, made of a column of lists."""

    name: str
    path: tuple[str, ...]
    value: pa.Scalar

    def of(self, table: pa.Table) -> pa.Array:
        """Return (rows) whether each list holds the value; null where there is no list."""
        lists = table[self.path[0]].combine_chunks()
        for field in self.path[1:]:
            lists = pc.struct_field(lists, field)
        found = np.zeros(len(lists), np.bool_)
        equal = pc.equal(pc.list_flatten(lists), self.value).fill_null(False)
        found[pc.list_parent_indices(lists).filter(equal).to_numpy()] = True
        return pa.array(found, mask=lists.is_null().to_numpy(zero_copy_only=False))


def _filtered(table: pa.Table, expression: pc.Expression, memberships: Sequence[Membership]) -> pa.Table:
    if not memberships:
        return table.filter(expression)
    wide = table
    for one in memberships:
        wide = wide.append_column(one.name, one.of(table))
    return wide.filter(expression).select(table.column_names)


@dataclass(frozen=True)
class Clause:
    """One of the tests that the outermost `and`s join.

    `columns`: what it reads; `null_columns`: those of which it says itself what null means (`is null`, `is not null`);
    `memberships`: further columns that `expression` reads.
    """

    text: str
    columns: tuple[str, ...]
    null_columns: frozenset[str]
    expression: pc.Expression
    memberships: tuple[Membership, ...] = ()

    def with_nulls(self, nullable: Collection[str]) -> tuple[str, str]:
        """Return two conditions that say what becomes of rows in which one of these columns is null.

        They are kept by the first, and left out by the second.
        """
        names = [one for one in self.columns if one in nullable and one not in self.null_columns]
        names = [one if is_plain_name(one) else f"`{one}`" for one in names]
        test = f"({self.text})" if re.search(r"\bor\b", self.text, re.IGNORECASE) else self.text
        keep, leave_out = ([f"{one} {null}" for one in names] for null in ("is null", "is not null"))
        return f"({' or '.join([*keep, test])})", " and ".join([*leave_out, test])

    def filter(self, table: pa.Table) -> pa.Table:
        """Return the rows that satisfy the clause."""
        return _filtered(table, self.expression, self.memberships)


@dataclass(frozen=True)
class Condition:
    """A whole condition. Filtering by it, or by all `clauses` one after the other, keeps the same rows."""

    text: str
    clauses: tuple[Clause, ...]
    expression: pc.Expression

    def filter(self, table: pa.Table) -> pa.Table:
        """Return the rows that satisfy the condition."""
        memberships = {one.name: one for clause in self.clauses for one in clause.memberships}
        return _filtered(table, self.expression, list(memberships.values()))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition reads, in the order of first mention."""
        return tuple(dict.fromkeys(column for clause in self.clauses for column in clause.columns))

    def undecided(self, nullable: Collection[str]) -> tuple[str, ...]:
        """Return the nullable columns for which some clause that reads them does not say what null means.

        This is for settings that must not lose rows unnoticed: `autobleu >= 30` does not say it, whereas `autobleu is
        null or autobleu >= 30` and `autobleu is not null and autobleu >= 30` do.
        """
        decided = {clause.columns[0] for clause in self.clauses if len(clause.columns) == 1 and clause.null_columns}
        found = (
            column
            for clause in self.clauses
            for column in clause.columns
            if column in nullable and column not in decided | clause.null_columns
        )
        return tuple(dict.fromkeys(found))
