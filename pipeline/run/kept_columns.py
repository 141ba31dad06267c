"""The columns that an input keeps, of one part: their types, their arrays, and what its receipt says of them.

Types are declared or found over the documents of the part; readers see the common type of all parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline.config.run_config import RunConfig
from pipeline.corpus.counters import MISFITS
from pipeline.inputs import Chunk, InputSettings
from pipeline.inputs.column_types import ColumnType, labels
from pipeline.inputs.documents import short
from pipeline.inputs.kept_values import as_array, found_type, types_of_file


@dataclass
class KeptPart:
    """`counts`: which types there are, and how many values of each column did not fit; `warnings`: an example each."""

    types: dict[str, ColumnType] = field(default_factory=dict)
    arrays: dict[str, pa.Array] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class KeptColumns:
    """declared: types that settings state; stored: those that the chunk's Parquet file states."""

    declared: Mapping[str, ColumnType]
    stored: Mapping[str, ColumnType]

    @classmethod
    def of(cls, chunk: Chunk, settings: InputSettings, config: RunConfig) -> KeptColumns:
        """Those of a chunk."""
        declared = config.kept_types(settings)
        open_types = [name for name in settings.keep if name not in declared]
        return cls(declared, types_of_file(chunk, open_types) if open_types else {})

    def arrays(self, documents: Mapping[str, Sequence[Any]]) -> KeptPart:
        """Columns of documents, as they are stored."""
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
                part.warnings.append(f"keep: {path} is {short(value)}, which is no {at}, and null stands for it")
        part.counts |= labels(part.types)
        return part
