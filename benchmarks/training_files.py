"""Embeddings on disk with an index of them, as a trainer reads them, without the corpus that they would come from."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.config.select import SelectSettings
from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import Counts
from pipeline.storage import layout
from pipeline.storage.store import Store
from pipeline.training.data.index import Index, IndexHeader
from pipeline.training.data.row_range_files import ROW_RANGE, RowRangeWriter
from pipeline.training.data.row_ranges import SplitBuilder
from pipeline.training.data.snapshot import VERSION, parts_schema
from stages.arrow import embedding_array

PART = 100_000  # sentences
DIGEST = "0" * 32


def made_up_index(folder: Path, rows: int, dim: int, longest: int, codes: tuple[int, int] | None = None) -> Index:
    """Make an index of about so many random sentences, in documents of 20 of them to `longest`, in parts as a run
    writes them.

    codes: codebooks and units, if there are to be codes.
    """
    store, rng = Store(str(folder)), np.random.default_rng(0)
    train = SplitBuilder(RowRangeWriter(store, DIGEST, SPLITS[0]))
    described = []
    for number in range(-(-rows // PART)):
        runs = _documents(min(PART, rows - number * PART), longest, rng)
        runs["part"] = number
        size = int(runs["rows"].sum())
        part = layout.part_name(DIGEST[:12], number)
        tables = {"embeddings": pa.table({"embedding": embedding_array(_vectors(size, dim, rng))})}
        if codes:
            tables["codes"] = pa.table({"codes": _codes(size, *codes, rng)})
        paths = {family: layout.data_path(family, part, DIGEST) for family in tables}
        for family, table in tables.items():
            store.write(paths[family], memoryview(layout.to_parquet(table)))
        train.add(runs, size)
        described.append({"part": part, "rows": size} | paths)
    files = train.close()
    endings = np.zeros((2, dim), np.float16)
    about = IndexHeader(
        version=VERSION,
        digest=DIGEST,
        corpus="made up",
        select=SelectSettings().model_dump(mode="json"),
        answers=None,
        unanswered=0,
        counts=vars(Counts(removed={})),
        splits={name: train.size if name == SPLITS[0] else (0, 0, 0) for name in SPLITS},
        runs={name: files if name == SPLITS[0] else [] for name in SPLITS},
        dim=dim,
        model="none",
        encoder="none",
        scaler=None,
        rvq=None,
        codebooks=codes[0] if codes else None,
        weighted=False,
        embeddings=base64.b64encode(endings.tobytes()).decode(),
        codes=base64.b64encode(np.zeros((2, codes[0]), np.uint16).tobytes()).decode() if codes else None,
        digests={SPLITS[0]: train.digests},
    )
    return Index(str(folder), about, pa.Table.from_pylist(described, schema=parts_schema()), train.blocks(0))


def _documents(rows: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Return runs of one part, each a whole document, with no closing sentence."""
    lengths: list[int] = []
    while sum(lengths) < rows:
        lengths.append(int(rng.integers(min(20, longest), longest + 1)))
    runs = np.zeros(len(lengths), ROW_RANGE)
    runs["doc"], runs["rows"] = np.arange(len(lengths)), lengths
    runs["first_row"] = np.cumsum(lengths) - lengths
    runs["answer"], runs["new"] = -1, True
    return runs


def _vectors(rows: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return (rows, dim) float16; normal ones, the same thousand again and again with their signs turned."""
    some = rng.standard_normal((1000, dim), np.float32).astype(np.float16)
    found: np.ndarray = some[rng.integers(0, len(some), rows)] * rng.choice(np.array([-1, 1], np.float16), (rows, 1))
    return found


def _codes(rows: int, codebooks: int, units: int, rng: np.random.Generator) -> pa.Array:
    values = pa.array(rng.integers(0, units, rows * codebooks).astype(np.uint16))
    item = pa.field("element", pa.uint16(), nullable=False)
    return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(item, codebooks))
