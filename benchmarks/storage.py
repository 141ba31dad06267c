"""Embeddings on disk: write and read speed and size, in our layout and in pyarrow's default one, in one run.

    python -m benchmarks.storage

Writing is what a worker does with an embeddings table: Parquet bytes in memory, then `Store.write`, which syncs. With
`+ digests` it also hashes the file and the column, as every commit does. Reading takes one thread, from the page cache,
row group by row group to numpy without a copy of the values. MB are 10⁶ bytes of raw float16. 100 000 rows of
d=1024 are 205 MB raw, and several times that in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from benchmarks import command_line
from benchmarks.machine import console, describe_cpu
from benchmarks.sample import sample_sentences
from pipeline.corpus.receipts import write_family
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.arrow import embedding_array, embedding_matrix
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings

Matrix = npt.NDArray[np.float16]
SAMPLE = 1000  # sentences whose embeddings are tiled
NOISE = 0.1  # of each dimension's standard deviation


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    out = console()
    out.print(f"{describe_cpu()}; pyarrow {pa.__version__}, one thread; {options.rows} rows, d={options.dim}")
    with tempfile.TemporaryDirectory(prefix="storage-", dir=options.folder) as folder:
        out.print(f"folder {folder}; goals: write ≥ 130 MB/s, read ≥ 600 MB/s, size ≤ 0.87 of raw")
        table = Table(title=f"Embeddings on disk: median of {options.rounds} rounds, MB of raw float16 a second")
        table.add_column("values")
        table.add_column("layout")
        for name in ("write", "read", "size / raw"):
            table.add_column(name, justify="right")
        for values in options.values:
            matrix = VALUES[values](options.rows, options.dim, options.seed)
            for name, row in measure(Store(folder), matrix, options.rounds).items():
                table.add_row(values, name, *row)
        out.print(table)


def measure(store: Store, matrix: Matrix, rounds: int) -> dict[str, tuple[str, str, str]]:
    """Return write and read speed and size by layout; the layouts take turns."""
    methods: dict[str, Callable[[Store, pa.Table], str]] = {
        "ours": _write_ours,
        "ours + digests": _write_committed,
        "pyarrow's defaults": _write_defaults,
    }
    writing: dict[str, list[float]] = {name: [] for name in methods}
    reading: dict[str, list[float]] = {name: [] for name in methods}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        for name, write in methods.items():
            start = time.perf_counter()
            path = write(store, pa.table({"embedding": embedding_array(matrix)}))
            writing[name].append(time.perf_counter() - start)
            sizes[name] = (Path(store.url) / path).stat().st_size
            start = time.perf_counter()
            groups = _read(store, path)
            reading[name].append(time.perf_counter() - start)
            if not np.array_equal(np.concatenate(groups).view(np.uint16), matrix.view(np.uint16)):
                raise SystemExit(f"{name}: other values came back than were written")
            store.delete(path)
    megabytes = matrix.nbytes / 1e6
    return {
        name: (
            f"{megabytes / statistics.median(writing[name]):.0f}",
            f"{megabytes / statistics.median(reading[name]):.0f}",
            f"{sizes[name] / matrix.nbytes:.3f}",
        )
        for name in methods
    }


def _write_ours(store: Store, table: pa.Table) -> str:
    path = layout.data_path("embeddings", "benchmark-00000", "0" * 8)
    store.write(path, memoryview(layout.to_parquet(table)))
    return path


def _write_committed(store: Store, table: pa.Table) -> str:
    return write_family(store, "embeddings", "benchmark-00000", "0" * 8, table)[0].path


def _write_defaults(store: Store, table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    path = layout.data_path("embeddings", "benchmark-00000", "1" * 8)
    store.write(path, memoryview(sink.getvalue()))
    return path


def _read(store: Store, path: str) -> list[Matrix]:
    with store.open(path) as handle:
        file = pq.ParquetFile(handle)
        return [
            embedding_matrix(file.read_row_group(number, use_threads=False)["embedding"])
            for number in range(file.num_row_groups)
        ]


def model_values(rows: int, dim: int, seed: int) -> Matrix:
    """Return embeddings of the sample by sonar-tiny, repeated to the asked size with noise that makes every value
    differ.
    """
    stage = Encode(EncodeSettings())
    stage.setup("cpu")
    part = sample_sentences(min(rows, SAMPLE)).part()
    found = embedding_matrix(stage.finish(stage.compute(stage.prepare(part))).families["embeddings"]["embedding"])
    tiled = np.tile(found.astype(np.float32), (-(-rows // len(found)), -(-dim // found.shape[1])))[:rows, :dim]
    noise = np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)
    scale: npt.NDArray[np.float32] = NOISE * tiled.std(axis=0)
    noise *= scale
    noise += tiled
    return noise.astype(np.float16)


def normal_values(rows: int, dim: int, seed: int) -> Matrix:
    """Return a normal distribution with mean 0; each dimension has its own scale around 0.01."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, dim), dtype=np.float32)
    values *= (0.01 * np.exp(0.3 * generator.standard_normal(dim))).astype(np.float32)
    return values.astype(np.float16)


VALUES = {"model": model_values, "normal": normal_values}


def _parser() -> argparse.ArgumentParser:
    parser = command_line("storage", "Write and read speed and size of embeddings on disk.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--values",
        nargs="+",
        default=list(VALUES),
        choices=list(VALUES),
        help="model: the sample's embeddings by sonar-tiny, tiled with noise; normal: a normal distribution",
    )
    parser.add_argument("--folder", type=Path, help="on the disk to measure; the system's temporary one if not given")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
