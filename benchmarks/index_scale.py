"""What the index and the order of training data cost a process of training, in memory and time, for many documents.

    python -m benchmarks.index_scale --documents 50000000

Index files are written as `pipeline index` writes them, from made-up documents: 20 sentences on average, every tenth
has over 100. No embeddings exist and none are read. Then, each in a process of its own, as every process of a training
does it: the index is opened and micro-batches are planned, the first ones and those that come after `--resume` epochs.
Memory is what the process has more than before: its own, and pages of mapped files, which a machine has once for all
its processes and gives away when it needs them. A store that answers every request after `--latency` seconds stands for
an object store; its requests are counted, and the time until 10 micro-batches are planned.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from benchmarks.machine import console, describe_cpu
from benchmarks.slow_store import LATENCY, SlowFileSystem
from pipeline.config.train import LANES
from pipeline.storage.store import Store
from pipeline.training.data.order import BUFFER_SENTENCES, DataOrder, OrderRules
from pipeline.training.data.row_range_files import CLOSING, ROW_RANGE, RowRanges, RowRangeWriter
from pipeline.training.data.row_ranges import SplitBuilder
from pipeline.training.data.sequences import Sequences

PART = 100_000  # sentences
DIGEST, SPLIT = "0" * 32, "train"
Measured = tuple[str, float, float, float, float, int, float]  # the columns of the table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=50_000_000)
    parser.add_argument("--world", type=int, default=LANES, help="processes of the training")
    parser.add_argument("--resume", type=float, default=1.0, help="epochs after which a training goes on")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds of the slow store")
    parser.add_argument("--folder", help="where the files are written for the time of the measurement")
    options = parser.parse_args(arguments)
    out = console()
    with tempfile.TemporaryDirectory(prefix="index-scale-", dir=options.folder) as name:
        files, blocks = write(Path(name), options.documents)
        out.print(
            f"{describe_cpu()}; {sum(files):,} documents, {pc.sum(blocks['sentences']).as_py():,} sentences in "
            f"{len(blocks):,} shuffle blocks; {sum(files) * ROW_RANGE.itemsize / 1e6:,.0f} MB in {len(files)} files"
        )
        table = Table("what", "seconds", "CPU seconds", "MB of its own", "MB mapped", "requests", "MB read")
        os.environ[LATENCY] = str(options.latency)
        context = multiprocessing.get_context("spawn")
        for url in (name, f"slow://{name}"):
            for epochs in (0.0, options.resume):
                with context.Pool(1) as pool:
                    what, *times, own, mapped, requests, read = pool.apply(
                        measure, (url, files, blocks, options.world, epochs)
                    )
                sizes = (f"{own:,.0f}", f"{mapped:,.0f}", f"{requests:,}", f"{read:,.1f}")
                table.add_row(what, *(f"{one:.2f}" for one in times), *sizes)
        out.print(table)


def write(folder: Path, documents: int) -> tuple[list[int], pa.Table]:
    """Write and return how many runs each file holds, and the shuffle blocks."""
    random, split = np.random.default_rng(0), SplitBuilder(RowRangeWriter(Store(str(folder)), DIGEST, SPLIT))
    part = 0
    while split.size[0] < documents:
        long = random.random(PART // 10) < 0.1
        rows = np.where(long, random.integers(100, 130, len(long)), random.integers(1, 18, len(long)))
        ends = np.cumsum(rows)
        runs = np.zeros(min(int(np.searchsorted(ends, PART)), documents - split.size[0]), ROW_RANGE)
        runs["part"], runs["doc"], runs["rows"] = part, np.arange(len(runs)), rows[: len(runs)]
        runs["first_row"] = (ends - rows)[: len(runs)]
        runs["answer"], runs["new"], runs["after"] = -1, True, CLOSING
        split.add(runs, PART)
        part += 1
    return split.close(), split.blocks(0)


def measure(url: str, files: list[int], blocks: pa.Table, world: int, epochs: float) -> Measured:
    """Measure one process of a training: it opens the index and plans micro-batches from `epochs` on."""
    rules = OrderRules(128, 8192, seed=0, shuffle=True, epochs=None, streams=LANES, buffer_sentences=BUFFER_SENTENCES)
    first, sentences = (blocks[name].to_numpy() for name in ("first_run", "sentences"))  # which imports pandas
    before, began, cpu = _memory(), time.perf_counter(), time.process_time()
    runs = RowRanges(Store(url), DIGEST, SPLIT, files)
    pieces = Sequences(runs, np.append(first, len(runs)), sentences)
    order = DataOrder([pieces], [1.0], rules)
    start = int(epochs * pieces.sentences / (0.97 * rules.micro_concepts))
    plans = list(islice(order.mine(0, world, start), 10))
    seconds, spent, (own, mapped) = time.perf_counter() - began, time.process_time() - cpu, _memory()
    what = f"{'slow store' if url.startswith('slow:') else 'files'}, from micro-batch {plans[0][0]:,} on"
    counts = SlowFileSystem.requests, SlowFileSystem.sent / 1e6
    return what, seconds, spent, own - before[0], mapped - before[1], *counts


def _memory() -> tuple[float, float]:
    """Return MB that the process has by itself, and of mapped files (on a disk or in memory)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {line[0]: float(line[1]) / 1000 for line in lines if line[0].startswith("Rss")}
    return found["RssAnon:"], found["RssFile:"] + found["RssShmem:"]


if __name__ == "__main__":
    main()
