"""Is writing to S3 hidden behind encoding? How busy a device of a given speed is, over a slow and faulty S3.

    python -m benchmarks.s3_overlap                              1, 2, 3 and 4 parts in flight, 8 parts each
    python -m benchmarks.s3_overlap --in-flight 3 --rate 2000

A `PartWorker` visits segmented parts as a launcher has it, several at a time: read and verify the sentences, "encode",
compress, write, receipt. Only the network is not real: it sleeps for rows / rate, and hands on random values of the
spread that embeddings have, which compress alike. The store is moto's S3 server behind `tests/faults/s3_proxy.py`, on
this machine: what it and the proxy compute is taken from the same cores. Busy: the seconds inside `compute`, one part
at a time, as a share of the time from the first part's start to the last receipt; `steady`: until the last `compute`
ends, as in a run that goes on. Costs about 45 MB of moto's memory a part of 20 000 rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import yaml

from benchmarks.machine import console, describe_cpu
from benchmarks.segmented import LANG, segmented_part
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.receipts import PartRef
from pipeline.run.networks import Networks
from pipeline.run.worker import PartWorker
from pipeline.storage.retry import take_retry_counts
from stages.arrow import embedding_array
from stages.stage import Computed
from tests.faults.s3_proxy import elsewhere
from tests.support.s3 import moto

DIM = 1024


@dataclass
class SimulatedEncoder:
    """A stage that takes as long as an encoder of `rate` sentences/s, and nothing of the processor."""

    rate: float
    values: pa.Array  # of as many rows as a part has
    spans: list[tuple[float, float]] = field(default_factory=list)

    def setup(self, device: str) -> None:
        """Do nothing: there is nothing to load."""

    def prepare(self, part: pa.Table) -> int:
        """Return the number of its rows."""
        return int(part.num_rows)

    def compute(self, rows: int) -> int:
        """Wait as long as the device would compute."""
        start = time.perf_counter()
        time.sleep(rows / self.rate)
        self.spans.append((start, time.perf_counter()))
        return rows

    def finish(self, rows: int) -> Computed:
        """Return the columns of the encode stage."""
        status = pa.array(np.zeros(rows, np.uint8))
        return Computed({"embeddings": pa.table({"embedding": self.values}), "status": pa.table({"status": status})})


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    out = console()
    out.print(f"{describe_cpu()}; {options.rows} rows of {DIM} dimensions a part, {options.rate:.0f} sentences/s")
    out.print(f"S3: {options.latency * 1000:.0f} ms a request, {options.errors:.1%} errors, half of them lost answers")
    with tempfile.TemporaryDirectory(prefix="s3-overlap-") as name, _bad_s3(Path(name), options):
        config = _config(Path(name))
        values = np.random.default_rng(0).normal(0, 0.01, (options.rows, DIM)).astype(np.float16)
        number = 0
        for in_flight in options.in_flight:
            numbers = range(number, number + options.parts)
            refs = [segmented_part(config, one, _texts(one, options.rows)) for one in numbers]
            number += options.parts
            _measure(out, config, SimulatedEncoder(options.rate, embedding_array(values)), refs, in_flight)


def _measure(out: Any, config: RunConfig, encoder: SimulatedEncoder, refs: list[PartRef], in_flight: int) -> None:
    networks = Networks(config, "cpu")
    networks._stages["encode"] = encoder, []  # in the place of the network
    worker = PartWorker(config, "cpu", ("encode",), networks)
    take_retry_counts()
    with ThreadPoolExecutor(in_flight) as pool:
        start, cpu = time.perf_counter(), time.process_time()
        receipts = [visit.receipts["encode"] for visit in pool.map(worker.visit, refs)]
        end, cpu = time.perf_counter(), time.process_time() - cpu
    busy = sum(last - first for first, last in encoder.spans)
    steady = max(last for _, last in encoder.spans) - min(first for first, _ in encoder.spans)
    laps = {
        lap: statistics.mean(receipt.seconds[lap] for receipt in receipts)
        for lap in ("read", "prepare", "wait", "compute", "finish", "commit")
    }
    repeated = take_retry_counts().total() + sum(receipt.counts.get("storage_retries", 0) for receipt in receipts)
    out.print(
        f"{in_flight} in flight: device busy {busy / (end - start):.1%} of {end - start:.1f} s, {busy / steady:.1%} "
        f"steady; {cpu / len(refs):.2f} s of processor a part; {repeated:.0f} requests repeated; seconds a part: "
        + ", ".join(f"{lap} {value:.2f}" for lap, value in laps.items())
    )


@contextmanager
def _bad_s3(folder: Path, options: argparse.Namespace) -> Iterator[None]:
    """Start an empty bucket `corpus` behind the proxy, for the S3 clients of this process."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    half = str(options.errors / 2)
    with (
        moto(folder / "moto.log") as good,
        elsewhere(good, "--latency", str(options.latency), "--refused", half, "--lost", half) as bad,
    ):
        fsspec.filesystem("s3", endpoint_url=good).mkdir("corpus")
        os.environ["AWS_ENDPOINT_URL"] = bad
        yield


def _config(folder: Path) -> RunConfig:
    (folder / "in.txt").write_text("The parts are made without it.", encoding="utf-8")
    described = {
        "name": "s3-overlap",
        "output": "s3://corpus/overlap",
        "input": [{"path": "in.txt", "lang": LANG}],
        "encode": {"model": "sonar"},
    }
    (folder / "corpus.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    return load_config(folder / "corpus.yaml")


def _texts(number: int, rows: int) -> list[str]:
    """Return sentences of 90 characters."""
    rng = np.random.default_rng(number)
    letters = rng.choice(np.frombuffer(b"etaoinshrdlu      ", np.uint8), (rows, 90))
    return [row.tobytes().decode() for row in letters]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.s3_overlap",
        description="How busy a device is whose results go to a slow and faulty S3.",
        epilog="example: python -m benchmarks.s3_overlap --in-flight 1 3 --rate 4000 --latency 0.05 --errors 0.01",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 2, 3, 4], help="parts at once")
    parser.add_argument("--parts", type=int, default=8, help="parts for each number in flight")
    parser.add_argument("--rows", type=int, default=20_000, help="sentences per part")
    parser.add_argument("--rate", type=float, default=4000.0, help="sentences/s of the simulated encoder")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds that each request waits")
    parser.add_argument("--errors", type=float, default=0.01, help="share of requests that fail")
    return parser


if __name__ == "__main__":
    main()
