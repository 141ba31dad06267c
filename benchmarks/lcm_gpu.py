"""Training steps of a Large Concept Model on a GPU: concepts/s, TFLOP/s, MFU, and how long the paper's training takes.

The trainer's own steps (pipeline/training/step.py) on random documents of 20 to 127 sentences, packed as the loader
packs them; weights in float32, products in bfloat16, compiled blocks. The middle one of five rounds counts. Then, with
--files, as many rounds on batches that the loader reads from so many sentences on disk, and what share of the time
steps wait for it. Needs torch, numpy, pyarrow, PyYAML, rich, safetensors and fsspec; 26 GB of GPU memory for the 1.6B
models, and activations; 2 kB of disk a sentence.

    python -m benchmarks.lcm_gpu
    python -m benchmarks.lcm_gpu --model lcm-one-tower-1.6b --micro-concepts 8192 --activation-checkpointing
    python -m benchmarks.lcm_gpu --device cpu --small       # a smoke test: its figures mean nothing
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.machine import describe_cpu
from benchmarks.training_files import made_up_index
from pipeline.config.train import TrainSettings
from pipeline.training.data.index import TrainingSource
from pipeline.training.data.loader import Loader
from pipeline.training.data.order import BUFFER_SENTENCES
from pipeline.training.distributed import Processes, parallel
from pipeline.training.step import Stepper, adamw
from stages.device import peak_tflops, prepare_cuda
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import load_lcm_card
from stages.lcm.packing import layout_of
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler

STEPS, CONCEPTS = 250_000, 229_000  # of the LCM paper's 2.4.1
WARM_UP, ROUNDS = 3, 5


def documents(concepts: int, context: int, dim: int, codebooks: Codebooks | None) -> Batch:
    """Return random embeddings in documents of 20 sentences to the context, up to the first that does not fit."""
    lengths: list[int] = []
    longest = min(context, concepts)
    while sum(lengths) + (length := int(torch.randint(min(20, longest), longest + 1, ()))) <= concepts:
        lengths.append(length)
    concepts = sum(lengths)
    codes = None
    if codebooks is not None:
        count, units = codebooks.centroids.shape[:2]
        codes = torch.randint(units, (concepts, count), dtype=torch.int32)
    batch = Batch(torch.randn(concepts, dim).half(), torch.tensor(lengths), torch.ones(concepts), codes)
    batch = replace(batch, layout=layout_of(batch.lengths))
    return batch.pinned() if torch.cuda.is_available() else batch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lcm-two-tower-1.6b", help="card: a name that ships, or a file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dim", type=int, default=1024, help="dimensions of the embeddings")
    parser.add_argument("--micro-concepts", type=int, default=16_384, help="sentences computed at once")
    parser.add_argument("--micros", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=5, help="steps per round")
    parser.add_argument(
        "--files", type=int, default=0, help="sentences on disk for the loader to read; 0: leave it out"
    )
    parser.add_argument("--compile", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--small", action="store_true", help="a smoke test: its figures mean nothing")
    asked = parser.parse_args()
    if asked.small:
        asked.files = min(asked.files, 3000)
        asked.model, asked.dim, asked.micro_concepts, asked.steps = "lcm-two-tower-tiny", 64, 256, 1
    device = torch.device(asked.device)
    prepare_cuda(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    card = load_lcm_card(asked.model)
    settings = TrainSettings(
        model=asked.model,
        batch_concepts=asked.micros * asked.micro_concepts,
        micro_concepts=asked.micro_concepts,
        compile=asked.compile,
        activation_checkpointing=asked.activation_checkpointing,
    )
    torch.manual_seed(0)
    codebooks = Codebooks(torch.randn(64, 8192, asked.dim).half()) if card.quantised else None
    with device:
        model = build(card, RobustScaler(torch.zeros(asked.dim), torch.ones(asked.dim)), codebooks)
    processes = Processes(0, 1, device)
    losses = parallel(model.train(), settings, processes, dtype)
    stepper = Stepper(losses, adamw(losses, settings), settings, processes, dtype)
    batches = [documents(asked.micro_concepts, card.context, asked.dim, codebooks) for _ in range(8)]

    def steps(count: int, first: int) -> tuple[int, float, float]:
        began, sentences, flops, pending = time.perf_counter(), 0, 0.0, []
        for step in range(first, first + count):
            micros = [(step, batches[(step * asked.micros + at) % len(batches)]) for at in range(asked.micros)]
            pending.append(stepper.step(step, micros))
        for one in pending:
            result = one.result()
            sentences, flops = sentences + result.sentences, flops + result.flops
        return sentences, flops, time.perf_counter() - began

    steps(WARM_UP, 0)
    rounds = [steps(asked.steps, WARM_UP + number * asked.steps) for number in range(ROUNDS)]
    rates = sorted(sentences / seconds for sentences, _, seconds in rounds)
    tflops = statistics.median(flops / seconds for _, flops, seconds in rounds) / 1e12
    middle = statistics.median(rates)
    peak = peak_tflops(device, dtype)
    parameters = sum(one.numel() for one in model.parameters())
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else describe_cpu()
    print(
        f"{card.name}: {parameters / 1e6:,.1f} M parameters, {asked.micros} × at most {asked.micro_concepts:,} "
        "concepts a step"
    )
    print(f"on {on}, {str(dtype).removeprefix('torch.')}, torch {torch.__version__}")
    print(f"concepts/s  {middle:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})")
    print(f"TFLOP/s     {tflops:,.3g}" + (f", MFU {tflops / peak:.1%} of {peak:g}" if peak else ""))
    if asked.files:
        with tempfile.TemporaryDirectory(prefix="lcm-gpu-") as folder:
            codes = (64, 8192) if codebooks else None
            index = made_up_index(Path(folder), asked.files, asked.dim, min(card.context, asked.micro_concepts), codes)
            loader = Loader(
                [TrainingSource(index)],
                split="train",
                max_sentences=card.context,
                micro_concepts=asked.micro_concepts,
                codes=card.quantised,
                pin=device.type == "cuda",
                buffer_sentences=min(BUFFER_SENTENCES, max(asked.micro_concepts, asked.files // 2)),
            )
            with contextlib.closing(iter(loader)) as micros:
                print(_with_loader(stepper, micros, asked.micros, asked.steps))
    if device.type == "cuda":
        print(f"memory      {torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB")
    hours = STEPS * CONCEPTS / middle / 3600
    print(f"the paper's {STEPS:,} steps of {CONCEPTS:,} concepts: {hours:,.0f} hours on one, {hours / 32:,.0f} on 32")


def _with_loader(stepper: Stepper, micros: Iterator[tuple[int, Batch]], a_step: int, steps: int) -> str:
    """Time rounds of steps on what the loader gives; the first one, in which it begins to read, does not count."""
    shares, rates, step = [], [], WARM_UP + ROUNDS * steps
    for number in range(ROUNDS + 1):
        began, waited, pending = time.perf_counter(), 0.0, []
        for _ in range(steps):
            since = time.perf_counter()
            mine = [next(micros) for _ in range(a_step)]
            waited += time.perf_counter() - since
            pending.append(stepper.step(step, mine))
            step += 1
        sentences = sum(one.result().sentences for one in pending)
        seconds = time.perf_counter() - began
        if number:
            shares.append(waited / seconds)
            rates.append(sentences / seconds)
    share, rate = statistics.median(shares), statistics.median(rates)
    return f"loader      steps wait for it {share:.2%} of the time; {rate:,.0f} concepts/s from files"


if __name__ == "__main__":
    main()
