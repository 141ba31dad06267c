"""Metadata columns that an input keeps, part by part: their types, their arrays, and what a receipt says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline.config.run_config import RunConfig
from pipeline.corpus.counters import MISFITS
from pipeline.corpus.part_reader import kept_names
from pipeline.corpus.receipts import Receipt
from pipeline.inputs import Chunk, InputSettings
from pipeline.inputs.column_types import ColumnType, labels, types_in
from pipeline.inputs.documents import short
from pipeline.inputs.kept_values import as_array, found_type, proves, types_of_file


@dataclass
class KeptPart:
    """The kept columns of a part, the counts for its receipt, and a warning with an example of each misfit."""

    types: dict[str, ColumnType] = field(default_factory=dict)
    arrays: dict[str, pa.Array] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class KeptColumns:
    """The columns that an input keeps, of one part: their types and arrays, and what its receipt says of them.

    Types are declared or found over the documents of the part; readers see the common type of all parts.
    `declared`: types that settings state. `stored`: those that the chunk's Parquet file states.
    """

    declared: Mapping[str, ColumnType]
    stored: Mapping[str, ColumnType]

    @classmethod
    def of(cls, chunk: Chunk, settings: InputSettings, config: RunConfig) -> KeptColumns:
        """Find the types of the columns that the input of a chunk keeps.

        Args:
            chunk: the chunk.
            settings: the settings of its input.
            config: the configuration, which may declare types.

        Returns:
            The columns, still without values.
        """
        declared = config.kept_types(settings)
        open_types = [name for name in settings.keep if name not in declared]
        return cls(declared, types_of_file(chunk, open_types) if open_types else {})

    def stay(self, receipt: Receipt, left: pa.Table) -> bool:
        """Return whether a part has the same types if only these documents are left of it, as far as they tell."""
        types = types_in(receipt.counts, {})
        for name in kept_names([f"documents.{one}" for one in left.column_names]):
            kind, known = types.get(name), self.declared.get(name) or self.stored.get(name)
            if kind is None or not (kind == known if known else proves(kind, left[name].to_pylist())):
                return False
        return True

    def arrays(self, documents: Mapping[str, Sequence[Any]]) -> KeptPart:
        """Convert kept values of a part's documents to arrays, with the counts and warnings for its receipt."""
        part = KeptPart()
        for name, values in documents.items():
            kind = self.declared.get(name) or found_type(values, self.stored.get(name))
            part.types[name] = kind
            part.arrays[name], misfits = as_array(values, kind, name)
            examples: dict[str, Any] = {}
            counts: dict[str, int] = defaultdict(int)
            for path, value in misfits:
                examples.setdefault(path, value)
                counts[path] += 1
            for path, value in examples.items():
                part.counts[f"{MISFITS}{path}"] = float(counts[path])
                at = kind if path == name else dict(kind.fields)[path.removeprefix(f"{name}.")]
                part.warnings.append(f"keep: {path} is {short(value)}, which does not fit {at}; it becomes null")
        part.counts |= labels(part.types)
        return part
