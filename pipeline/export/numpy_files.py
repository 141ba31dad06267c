"""Vectors that NumPy maps into memory, beside their texts as JSON lines.

    data/train/embeddings.npy    (rows, dim) float16 or float32, C order, little-endian
    data/train/rows.jsonl        line i describes row i: the columns of `pipeline/export/pieces.py`

    vectors = np.load("data/train/embeddings.npy", mmap_mode="r")

A split is one file, so a row is found by its number alone; float16 is bit for bit what the corpus holds. Numbers that
JSON cannot express (NaN) become null, days and moments ISO 8601. Cost: one more pass over the columns of the condition,
since a .npy begins with its number of rows. Memory: a row group of the corpus.
"""

from __future__ import annotations

import contextlib
from typing import IO

import numpy as np
import pyarrow as pa

from pipeline.base.errors import CorpusError
from pipeline.base.formats import to_json
from pipeline.export.pieces import ExportTask, Written, row_columns, rows_by_split, split_rows
from pipeline.inputs.splits import SPLITS
from stages.arrow import embedding_matrix


def write_numpy(task: ExportTask) -> Written:
    """Write every selected sentence. Raises `CorpusError` for a damaged file of the corpus, or if the corpus changes
    meanwhile.
    """
    selection, target = task.selection, task.target
    names = row_columns(selection.corpus, embedding=True)
    sizes = split_rows(selection)
    with contextlib.ExitStack() as closing:
        writers: dict[str, _SplitWriter] = {}
        for chosen in selection:
            for split, table in rows_by_split(task, chosen, names):
                if split not in writers:
                    matrix = closing.enter_context(target.file(f"data/{split}/embeddings.npy"))
                    lines = closing.enter_context(target.file(f"data/{split}/rows.jsonl"))
                    dtype = np.dtype(task.vectors).newbyteorder("<")
                    writers[split] = _SplitWriter(matrix, lines, sizes.get(split, 0), dtype)
                writers[split].write(table)
        for writer in writers.values():
            writer.finish(task.written)
    first = next(split for split in SPLITS if split in writers)
    first_file = f"{target.url}/data/{first}/embeddings.npy"
    task.written.next_step = f"np.load({first_file!r}, mmap_mode='r')"
    return task.written


class _SplitWriter:
    """Writes the two files of a split. `rows`: how many it will have."""

    def __init__(self, vectors: IO[bytes], lines: IO[bytes], rows: int, dtype: np.dtype[np.floating]) -> None:
        self._vectors, self._lines, self._expected, self._dtype = vectors, lines, rows, dtype
        self._rows = self._dim = 0

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        matrix = embedding_matrix(table["embedding"])
        if not self._rows:
            self._dim = matrix.shape[1]
            header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._expected, self._dim)}
            np.lib.format.write_array_header_1_0(self._vectors, header)
        self._rows += len(matrix)
        self._vectors.write(np.ascontiguousarray(matrix, self._dtype).tobytes())
        rows = table.drop_columns("embedding").to_pylist()
        self._lines.write("".join(f"{to_json(row)}\n" for row in rows).encode())

    def finish(self, written: Written) -> None:
        """Count the files. Raises `CorpusError` if the .npy file states another number of rows than it has."""
        if self._rows != self._expected:
            raise CorpusError(
                f"{self._expected} sentences were counted, but {self._rows} read: the corpus changed during the "
                "export; export again, to another folder"
            )
        written.files += 2
        written.bytes += self._vectors.tell() + self._lines.tell()
        written.dim = self._dim
