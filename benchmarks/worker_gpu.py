"""From disk to disk on one device: parts of sentences → embeddings, by the worker of a run; how busy the device is.

    python -m benchmarks.worker_gpu                          20 parts, an encoder of the published size
    python -m benchmarks.worker_gpu --device cpu --small     a smoke test that takes seconds

A corpus of segmented parts is made first: windows of words of the sample that ships, of the lengths that `encode_gpu`
draws. Then a `PartWorker` visits them, three at a time, as a launcher would have it: read, verify, tokenise, encode,
compress, write, receipt. Busy, on a GPU: the time in which a kernel or a copy ran, as CUPTI saw it, between the start
of the first and the end of the last; on a CPU the seconds inside `compute`, which count waiting too. Needs torch,
numpy, pyarrow, PyYAML, safetensors, sentencepiece and fsspec, but no Ray and no spaCy. Costs 2.2 kB of disk a sentence.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch.profiler import ProfilerActivity, profile

from benchmarks import command_line
from benchmarks.encode_gpu import SMALL, sentence_lengths
from benchmarks.flops import Shape, encoder_flops
from benchmarks.random_model import make_model
from benchmarks.segmented import LANG, segmented_part
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.run.hosts import HostedWorker
from pipeline.run.worker import PartVisit, PartWorker
from stages.device import describe
from stages.shipped import SAMPLE
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer

TOKENIZER = "sonar-tiny"


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    shape = SMALL if options.small else Shape()
    rows = options.rows or (60 if options.small else 30_000)
    with tempfile.TemporaryDirectory(prefix="worker-gpu-", dir=options.folder) as name:
        folder = Path(name)
        make_model(folder, shape, tokenizer_of=TOKENIZER, seed=options.seed, fairseq2=False, device=options.device)
        config = _config(folder, options.batch_tokens)
        sizes = [200] * options.in_flight + [rows] * options.parts
        refs = [
            segmented_part(config, one, made_up_sentences(size, options.seed + one)) for one, size in enumerate(sizes)
        ]
        hosted = options.hosted == "yes" or (options.hosted == "auto" and options.device.startswith("cuda"))
        order = config, options.device, ("encode",)
        worker = HostedWorker(*order, module="benchmarks.host") if hosted else PartWorker(*order)
        with ThreadPoolExecutor(options.in_flight) as pool:
            list(pool.map(worker.visit, refs[: options.in_flight]))  # loads the model, starts hosts, warms up
        computing = _watch(config, worker)
        with _kernels(options.device) as kernels, ThreadPoolExecutor(options.in_flight) as pool:
            visits = list(pool.map(worker.visit, refs[options.in_flight :]))
        if isinstance(worker, HostedWorker):
            worker.close()
        _print(options, shape, visits, computing, kernels)


def _config(folder: Path, batch_tokens: int) -> RunConfig:
    (folder / "in.txt").write_text("The parts are made without it.", encoding="utf-8")
    described = {
        "name": "worker-gpu",
        "output": "out",
        "input": [{"path": "in.txt", "lang": LANG}],
        "encode": {"model": str(folder / "card.yaml"), "batch_tokens": batch_tokens},
    }
    (folder / "corpus.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    return load_config(folder / "corpus.yaml")


@cache
def _words() -> list[str]:
    """Return the words of the sample's English documents, in their order."""
    words: list[str] = []
    for file in sorted(SAMPLE.glob("*-eng.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                words += json.loads(line)["text"].split()
    return words


@cache
def _tokens_a_word() -> float:
    (tokens,) = SonarTokenizer(load_card(TOKENIZER)).count([" ".join(_words()[:5000])])
    return (tokens - 2) / 5000


def made_up_sentences(rows: int, seed: int) -> list[str]:
    """Return windows of words, about as many tokens long as `sentence_lengths` says, in random order."""
    words = _words()
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(np.asarray(sentence_lengths(rows, seed)) - 2)
    spans = np.maximum(1, np.round(lengths / _tokens_a_word())).astype(int)
    starts = rng.integers(0, len(words) - spans)
    return [" ".join(words[start : start + span]) for start, span in zip(starts, spans, strict=True)]


def _watch(config: RunConfig, worker: PartWorker | HostedWorker) -> list[tuple[float, float]]:
    """Return when the encode stage computes, from now on: (start, end) of each part."""
    (settings,) = config.row_stages()
    stage: Any = worker.networks.stage(settings)[0]
    compute: Callable[[Any], Any] = stage.compute
    spans: list[tuple[float, float]] = []

    def timed(prepared: Any) -> Any:
        start = time.perf_counter()
        computed = compute(prepared)
        spans.append((start, time.perf_counter()))
        return computed

    stage.compute = timed
    return spans


@contextmanager
def _kernels(device: str) -> Iterator[list[tuple[float, float]]]:
    """Return (start, end) in seconds of all that ran on the device meanwhile, filled in at the end; empty on a CPU."""
    spans: list[tuple[float, float]] = []
    if not device.startswith("cuda"):
        yield spans
        return
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        yield spans
        torch.cuda.synchronize()
    results: Any = taken.profiler
    for event in results.kineto_results.events():
        if event.device_type().name == "CUDA" and not event.is_user_annotation():  # which spans what lies within
            spans.append((event.start_ns() / 1e9, (event.start_ns() + event.duration_ns()) / 1e9))


def busy(spans: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return seconds in which at least one of (start, end) was running, and seconds from the first start to the last
    end.
    """
    first = last = total = 0.0
    for number, (start, end) in enumerate(sorted(spans)):
        if number == 0:
            first = last = start
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total, last - first


def _print(
    options: argparse.Namespace,
    shape: Shape,
    visits: list[PartVisit],
    computing: list[tuple[float, float]],
    kernels: list[tuple[float, float]],
) -> None:
    receipts = [visit.receipts["encode"] for visit in visits]
    rows, tokens = sum(receipt.rows for receipt in receipts), sum(receipt.counts["tokens"] for receipt in receipts)
    distinct = rows - sum(receipt.counts["duplicates_saved"] for receipt in receipts)
    inside, span = busy(computing)
    # as if all sentences were of the mean length: the pairs of tokens are a small part of the work
    flops = distinct * encoder_flops(
        [round(tokens / distinct)], dim=shape.dim, layers=shape.layers, ffn_dim=shape.ffn_dim
    )
    seconds = {
        lap: statistics.mean(receipt.seconds[lap] for receipt in receipts)
        for lap in ("read", "prepare", "wait", "compute", "finish", "commit")
    }
    print(
        f"{describe(options.device)}: {len(visits)} parts, {rows} sentences, {tokens / distinct:.1f} tokens on average"
    )
    print("seconds a part: " + ", ".join(f"{lap} {value:.2f}" for lap, value in seconds.items()))
    print(f"from disk to disk: {rows / span:.0f} sentences/s, {flops / span / 1e12:.3f} TFLOP/s")
    ran, of = busy(kernels) if kernels else (inside, span)
    by = (
        f", by {len(kernels)} kernels and copies; compute() took {inside / span:.1%} of {span:.1f} s" if kernels else ""
    )
    print(f"device busy: {ran / of:.1%} of {of:.1f} s from the first part to the last{by}")


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "worker_gpu", "How busy a device is from the first part to the last, with reading and writing."
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", type=int, default=20)
    parser.add_argument("--rows", type=int, help="sentences per part: 30 000 if not given; 60 with --small")
    parser.add_argument("--in-flight", type=int, default=3, help="parts that are read, computed and written at once")
    parser.add_argument("--hosted", choices=("auto", "yes", "no"), default="auto", help="host processes; auto: on GPUs")
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--folder", help="where the corpus is made (a temporary folder)")
    parser.add_argument("--small", action="store_true", help="a very small network, to see that everything runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
