"""How busy are the devices of a node, and how many CPU cores does that take? Made-up devices; the rest is real.

    python -m benchmarks.node                             8 devices of 12 000 sentences/s, as a node of 8 GPUs has
    python -m benchmarks.node --devices 8 --rate 1500     the same work at a speed that 2 cores can follow

One process for each device visits segmented parts, three at a time, as a launcher has it: read and verify, tokenise,
"encode", compress, write, receipt. Only the network is not real: it sleeps for distinct rows / rate, and hands on
random values of the spread that embeddings have, which compress alike (d = 1024). The store is a local folder each of
whose requests takes --latency longer. Sentences are windows of the sample's words, of the lengths that `encode_gpu`
draws. Processes are started, and have visited some parts, before the clock starts.

Busy: the seconds inside `compute`, from the start of a device's first to the end of its last. Cores: the CPU seconds
of a sentence, of all threads, times the sentences/s of all devices; where that is more than the machine has, devices
wait. A real device's process also starts kernels, which is not counted here. Costs 2.2 kB of disk a sentence.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import yaml

from benchmarks import command_line
from benchmarks.machine import console, describe_cpu
from benchmarks.segmented import LANG, segmented_part
from benchmarks.slow_store import LATENCY, SlowFileSystem
from benchmarks.worker_gpu import TOKENIZER, busy, made_up_sentences
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.receipts import PartRef
from pipeline.run.networks import Networks
from pipeline.run.worker import PartWorker
from stages.encode.encoder import Encode, Encoded, PreparedSentences
from stages.encode.settings import EncodeSettings

DIM = 1024
LAPS = ("read", "prepare", "wait", "compute", "finish", "commit")
WARM_ROWS = 500
STARTING = 600  # seconds, at most, until all devices are ready

_ready: list[Barrier] = []  # of this process: where a device waits until all are ready


class MadeUpDevice(Encode):
    """The encode stage with a network that takes the time of one of `rate` sentences/s, and nothing of the CPU."""

    def __init__(self, rate: float, values: npt.NDArray[np.float16]) -> None:
        super().__init__(EncodeSettings(model=TOKENIZER))
        self._rate, self._values = rate, values
        self.spans: list[tuple[float, float]] = []

    def setup(self, device: str) -> None:
        """Do nothing: there is nothing to load."""

    def compute(self, prepared: PreparedSentences) -> Encoded:
        """Wait as long as the device would compute."""
        rows = len(prepared.distinct.first)
        start = time.perf_counter()
        time.sleep(rows / self._rate)
        self.spans.append((start, time.perf_counter()))
        return Encoded(prepared, self._values[:rows].copy(), {})


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    os.environ |= {LATENCY: "0", "OMP_NUM_THREADS": "1"}
    out = console()
    out.print(
        f"{describe_cpu()}; {options.devices} devices of {options.rate:g} sentences/s, {options.parts} parts of "
        f"{options.rows} sentences each, {options.in_flight} in flight; {options.latency * 1000:g} ms a request"
    )
    with tempfile.TemporaryDirectory(prefix="node-", dir=options.folder) as name:
        folder = Path(name)
        config = _config(folder)
        refs = [
            [segmented_part(config, *_part(options, device, part)) for part in range(-options.in_flight, options.parts)]
            for device in range(options.devices)
        ]
        os.environ[LATENCY] = str(options.latency)
        context = multiprocessing.get_context("spawn")
        ready = context.Barrier(options.devices)
        with ProcessPoolExecutor(options.devices, context, _remember, (ready,)) as processes:
            measured = list(processes.map(partial(_device, options, folder), refs))
    shares = [one["busy"] / one["span"] for one in measured]
    sentences = options.devices * options.parts * options.rows
    each = sum(one["cpu"] for one in measured) / sentences
    requests = sum(one["requests"] for one in measured) / (options.devices * options.parts)
    longest = max(one["span"] for one in measured)
    out.print(f"devices busy: {np.mean(shares):.1%} of {longest:.1f} s, the least {min(shares):.1%}")
    laps = (f"{lap} {np.mean([one[lap] for one in measured]):.2f}" for lap in LAPS)
    out.print(f"seconds a part: {', '.join(laps)}; {requests:.1f} requests a part")
    out.print(
        f"CPU: {each * 1e6:.1f} s a million sentences: {each * options.devices * options.rate:.2f} cores for these "
        f"devices, {each * 8 * 12_000:.2f} for eight of 12 000 sentences/s"
    )


def _part(options: argparse.Namespace, device: int, part: int) -> tuple[int, list[str]]:
    """Return a number and sentences for `segmented_part`; parts below 0 are small, to start with."""
    number = device * (options.parts + options.in_flight) + part + options.in_flight
    return number, made_up_sentences(options.rows if part >= 0 else WARM_ROWS, options.seed + number)


def _remember(ready: Barrier) -> None:
    _ready.append(ready)


def _device(options: argparse.Namespace, folder: Path, refs: list[PartRef]) -> dict[str, float]:
    """Visit the parts of one device, in a process of its own, and return what that took.

    In seconds: `busy`, in a `span`; `cpu`, of all threads; each of LAPS, on average. `requests`: how many.
    """
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    config = load_config(folder / "corpus.yaml")
    rows = max(options.rows, WARM_ROWS)
    values = np.random.default_rng(0).normal(0, 0.01, (rows, DIM)).astype(np.float16)
    device = MadeUpDevice(options.rate, values)
    networks = Networks(config, "cpu")
    networks._stages["encode"] = device, []  # in the place of the network
    worker = PartWorker(config, "cpu", ("encode",), networks)
    with ThreadPoolExecutor(options.in_flight) as pool:
        list(pool.map(worker.visit, refs[: options.in_flight]))
        device.spans.clear()
        _ready[0].wait(STARTING)
        asked, cpu = SlowFileSystem.requests, time.process_time()
        receipts = [visit.receipts["encode"] for visit in pool.map(worker.visit, refs[options.in_flight :])]
        cpu, asked = time.process_time() - cpu, SlowFileSystem.requests - asked
    working, span = busy(device.spans)
    laps = {lap: float(np.mean([receipt.seconds[lap] for receipt in receipts])) for lap in LAPS}
    return {"busy": working, "span": span, "cpu": cpu, "requests": asked, **laps}


def _config(folder: Path) -> RunConfig:
    (folder / "in.txt").write_text("The parts are made without it.", encoding="utf-8")
    described = {
        "name": "node",
        "output": f"slow://{folder}/out",
        "input": [{"path": "in.txt", "lang": LANG}],
        "encode": {"model": "sonar"},
    }
    (folder / "corpus.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    return load_config(folder / "corpus.yaml")


def _parser() -> argparse.ArgumentParser:
    parser = command_line("node", "How busy the devices of a node are, and how many CPU cores that takes.")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--rate", type=float, default=12_000.0, help="sentences/s of a device")
    parser.add_argument("--parts", type=int, default=10, help="parts for each device")
    parser.add_argument("--rows", type=int, default=30_000, help="sentences per part")
    parser.add_argument("--in-flight", type=int, default=3, help="parts that are read, computed and written at once")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds that each request takes longer")
    parser.add_argument("--folder", help="where the corpus is made (a temporary folder)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
