"""Embeddings a second from files in the page cache into tensors: the loader, what users have today, and the limit.

    python -m benchmarks.loader

The corpus is segmented and committed as a run does it, from made-up documents, with embeddings of the sample by
sonar-tiny, tiled with noise, at any dimension. "As the LCM release": what its loader does with a row group, over the
corpus in its layout (`pipeline export --format lcm`): pandas, and for each document its vectors stacked to a tensor.
"to_pylist": Python lists of our files made tensors. The limit: row groups are decoded (as the loader does it, and by
Arrow), and nothing else happens. Every method reads the corpus once, lists one row group; the first batch counts. The
figures by CPU second are what to look at where a machine does other things meanwhile.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import command_line
from benchmarks.flops import Shape
from benchmarks.machine import console, describe_cpu
from benchmarks.random_model import make_model
from benchmarks.storage import model_values
from launchers.launch import launch
from pipeline import Corpus
from pipeline.config.load import load_config
from pipeline.config.select import SelectSettings
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.receipts import commit
from pipeline.corpus.recipes import SEGMENT, part_fingerprint
from pipeline.corpus.runs import RunRecord
from pipeline.corpus.vectors import read_embeddings
from pipeline.export import ExportOptions, export_corpus
from pipeline.export.lcm import EMBEDDINGS
from pipeline.planning.plan import make_plan
from pipeline.storage.store import Store
from pipeline.training.data.index import Index, make_index
from pipeline.training.data.loader import Loader, TrainingSource
from stages.arrow import embedding_array

DOCUMENT = 80  # sentences, about as many as in the LCM paper
WORDS = ("house", "river", "light", "stone", "under", "every", "morning", "they", "found", "small", "quiet", "answer")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    out = console()
    torch.set_num_threads(1)
    out.print(f"{describe_cpu()}; pyarrow {pa.__version__}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="loader-", dir=options.folder) as name:
        corpus = make_corpus(Path(name), options.rows, options.dim)
        started = time.perf_counter()
        index = make_index(corpus, SelectSettings())
        files = [Path(corpus.url, path) for path in index.parts["embeddings"].to_pylist()]
        out.print(
            f"{corpus.rows} sentences in {len(files)} parts, d={options.dim}, {sum(f.stat().st_size for f in files):,} "
            f"bytes of embeddings; index made in {time.perf_counter() - started:.1f} s"
        )
        exported = Path(name, "lcm")
        export_corpus(Console(file=io.StringIO()), corpus.url, corpus, ExportOptions("lcm", str(exported)))
        table = Table(title=f"Thousand embeddings per second, median of {options.rounds} rounds")
        table.add_column("method")
        for threads in options.threads:
            table.add_column(f"{threads} threads" if threads > 1 else "1 thread", justify="right")
            table.add_column("by CPU second", justify="right")
        for method, measure in methods(index, files, exported).items():
            rates = [one for threads in options.threads for one in rate(measure, threads, options.rounds)]
            table.add_row(method, *(f"{one / 1000:.0f}" for one in rates))
        out.print(table)
        out.print(f"goal: 300 on 2 cores; load {os.getloadavg()[0]:.1f} at the end")


def make_corpus(folder: Path, rows: int, dim: int) -> Corpus:
    """Make a corpus of about so many sentences in parts of 100 000."""
    make_model(folder, Shape(dim, 1, 4, dim), tokenizer_of="sonar-tiny", seed=0, fairseq2=False)
    words = random.Random(0)
    with (folder / "in.jsonl").open("w", encoding="utf-8") as file:
        for number in range(-(-rows // DOCUMENT)):
            sentences = (" ".join(words.choices(WORDS, k=8)).capitalize() + "." for _ in range(DOCUMENT))
            file.write(json.dumps({"id": str(number), "text": "\n".join(sentences)}) + "\n")
    value = {
        "name": "loader",
        "output": "out",
        "input": [{"path": "in.jsonl", "id": "id", "lang": "eng_Latn"}],
        "segment": {"method": "spacy-capped", "max_chars": 200},
        "encode": {"model": "card.yaml"},
        "launcher": "inline",
    }
    (folder / "corpus.yaml").write_text(yaml.safe_dump(value))
    plan = make_plan(load_config(folder / "corpus.yaml"), until="segment")
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    failed = [event for event in launch(plan, record.folder) if event.kind == "failed"]
    if failed:
        raise SystemExit(f"the corpus could not be segmented: {failed[0]}")
    recipe = plan.view.stages["encode"]
    segmented = Corpus(plan.config.output)
    for number, part in enumerate(segmented.parts):
        receipt = segmented.state_of(part).receipts[SEGMENT]
        inputs = {name: receipt.columns[name] for name in plan.view.reads["encode"]}
        commit(
            record.store,
            stage="encode",
            part=receipt.part,
            fingerprint=part_fingerprint(recipe, inputs),
            recipe=fingerprint(recipe),
            inputs=inputs,
            families={
                "embeddings": pa.table({"embedding": embedding_array(model_values(receipt.rows, dim, number))}),
                "status": pa.table({"status": np.zeros(receipt.rows, np.uint8)}),
            },
            counts={},
            seconds={},
            device="none",
        )
    return Corpus(plan.config.output)


Measured = Callable[[int], int]  # threads → embeddings


def methods(index: Index, files: Sequence[Path], exported: Path) -> dict[str, Measured]:
    """Return what is measured, by name."""
    places = [(file, number) for file in files for number in range(pq.ParquetFile(file).num_row_groups)]

    def ours(threads: int) -> int:
        loader = Loader(
            [TrainingSource(index)], split="train", max_sentences=128, micro_concepts=8192, epochs=1, threads=threads
        )
        return sum(batch.sentences for _, batch in loader)

    def decode(threads: int) -> int:
        def group(place: tuple[Path, int]) -> int:
            file = pq.ParquetFile(pa.memory_map(str(place[0])))
            return int(file.read_row_group(place[1], ["embedding"], use_threads=False).num_rows)

        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(group, places))

    def limit(threads: int) -> int:
        def group(place: tuple[Path, int]) -> int:
            source = pa.memory_map(str(place[0]))
            file = pq.ParquetFile(source)
            return len(read_embeddings(file, source, place[1], file.metadata.row_group(place[1]).num_rows))

        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(group, places))

    def release(threads: int) -> int:
        pa.set_cpu_count(threads)
        dataset = pq.ParquetDataset(str(exported / "data"))
        groups = (group for fragment in dataset.fragments for group in fragment.split_by_row_group())
        tables = (group.to_table(columns=[EMBEDDINGS], use_threads=threads > 1) for group in groups)
        documents = (one for table in tables for one in table[EMBEDDINGS].to_pandas())
        return sum(len(torch.from_numpy(np.vstack(one))) for one in documents)

    def lists(threads: int) -> int:
        pa.set_cpu_count(threads)
        table = pq.ParquetFile(files[0]).read_row_group(0, ["embedding"], use_threads=threads > 1)
        return len(torch.tensor(table["embedding"].to_pylist(), dtype=torch.float16))

    return {
        "ours": ours,
        "decoded as by the loader, nothing else": limit,
        "decoded by Arrow, nothing else": decode,
        "as the LCM release": release,
        "to_pylist": lists,
    }


def rate(measure: Measured, threads: int, rounds: int) -> tuple[float, float]:
    """Return embeddings a second, and a second of CPU time."""
    rates, by_cpu = [], []
    for _ in range(rounds):
        started, cpu = time.perf_counter(), time.process_time()
        count = measure(threads)
        rates.append(count / (time.perf_counter() - started))
        by_cpu.append(count / (time.process_time() - cpu))
    return statistics.median(rates), statistics.median(by_cpu)


def _parser() -> argparse.ArgumentParser:
    parser = command_line("loader", "Embeddings a second from the page cache into tensors.")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path, help="where the corpus is made; the system's temporary one if not given")
    return parser


if __name__ == "__main__":
    main()
