"""Headless training of a token language model against cross-entropy: seconds per step, memory and likelihood.

The small decoder of Godey et al. 2024 (Table 10: 192 dimensions, 3 layers, 3 heads), sequences of 128 tokens, with the
trainer's own steps. Text: the sample corpus by sonar-tiny's tokenizer, 8 006 pieces. With the larger vocabulary, that
of SONAR, the text is the same and the other rows of the embedding never occur: time and memory depend on their number
alone, the likelihood on the text. Every line is a process of its own, so that memory is its own: all that it held at
most, on a GPU what PyTorch had allocated. The last 2 % of headless steps, at least one, are cross-entropy; the step's
time is the median of those before, without the first two: by the clock on a GPU, of CPU (all threads) without one, so
that other work on the machine changes little.

    python -m benchmarks.headless
    python -m benchmarks.headless --micro-batches 8,32 --steps 50
    python -m benchmarks.headless --quick        # a smoke test: its figures mean nothing
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.table import Table

from benchmarks.machine import console, describe_cpu
from pipeline.config.train import TrainSettings
from pipeline.training.distributed import Processes, WrappedModel
from pipeline.training.step import Stepper, adamw
from stages.batching import Tokens
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.lcm.token_lm import TokenLm
from stages.scaler.robust import RobustScaler
from stages.shipped import SAMPLE
from stages.sonar.card import load_card
from stages.sonar.ids import END
from stages.sonar.tokenizer import SonarTokenizer

SENTENCES, LENGTH = 4, 32  # of a sequence: 128 tokens, 124 of which are predicted
LOSSES = ("cross-entropy", "cwt")


@dataclass(frozen=True)
class Asked:
    """One line of the table."""

    vocabulary: int
    micro_batch: int  # sequences
    loss: str
    steps: int
    device: str
    held_out: int  # sequences


def sequences() -> list[list[int]]:
    """Return the sample's text in sentences of `LENGTH` tokens."""
    tokenizer = SonarTokenizer(load_card("sonar-tiny"))
    lang = tokenizer.language_id("eng_Latn")
    texts: list[str] = []
    for file in sorted(SAMPLE.glob("*eng.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            texts += [paragraph for line in lines for paragraph in json.loads(line)["text"].split("\n")]
    pieces = [token for ids in tokenizer.encode(texts, "eng_Latn") for token in ids[1:-1]]
    room = LENGTH - 2
    return [[lang, *pieces[at : at + room], END] for at in range(0, len(pieces) - room, room)]


def batch_of(sentences: list[list[int]]) -> Batch:
    """Return sequences of `SENTENCES` sentences."""
    count = len(sentences)
    lengths = torch.full((count // SENTENCES,), SENTENCES)
    return Batch(torch.zeros(count, 1), lengths, torch.ones(count), tokens=Tokens.of(sentences))


def measured(asked: Asked) -> dict[str, float]:
    """Train, in this process."""
    card = LcmCard.model_validate(
        {"name": "small decoder", "description": "Table 10", "licence": "MIT", "kind": "token-lm", "model_dim": 192,
         "heads": 3, "layers": 3, "inner_dim": 512, "context": SENTENCES, "context_tokens": SENTENCES * LENGTH,
         "dropout": 0.0, "token_lm": {"loss": asked.loss}}
    )  # fmt: skip
    concepts = SENTENCES * asked.micro_batch
    chosen = TrainSettings(steps=asked.steps, batch_concepts=concepts, micro_concepts=concepts, lr=1e-3, clip_norm=30.0)
    device = torch.device(asked.device)
    torch.manual_seed(0)
    model = build(card, RobustScaler(torch.zeros(1), torch.ones(1)), vocabulary=asked.vocabulary)
    assert isinstance(model, TokenLm)
    losses = WrappedModel(model.to(device).train())
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    stepper = Stepper(losses, adamw(losses, chosen), chosen, Processes(0, 1, device), dtype)
    text = sequences()
    held, text = text[: asked.held_out * SENTENCES], text[asked.held_out * SENTENCES :]
    draw, seconds = np.random.default_rng(0), []
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for step in range(asked.steps):
        starts = draw.integers(0, len(text) - SENTENCES, asked.micro_batch)
        batch = batch_of([one for start in starts for one in text[start : start + SENTENCES]])
        began = clock()
        stepper.step(step, [(step, batch)]).result()
        seconds.append(clock() - began)
    last = max(1, -(-asked.steps // 50)) if asked.loss == "cwt" else 0
    counted = seconds[2 : asked.steps - last] or seconds[:1]
    model.eval()
    with torch.no_grad():
        nats = model.likelihoods(batch_of(held)).sum().item() / (len(held) * (LENGTH - 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    memory = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else peak
    return {"ms": 1000 * statistics.median(counted), "gb": memory, "nll": nats}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", default="8006,256206")
    parser.add_argument("--micro-batches", default="8,16,32,64,128", help="sequences of 128 tokens per micro-batch")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--held-out", type=int, default=64, help="sequences that the likelihood is measured on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a smoke test: its figures mean nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(Asked(**json.loads(asked.one)))))
        return
    if asked.quick:
        asked.vocabularies, asked.micro_batches, asked.steps, asked.held_out = "8006", "2", 3, 4
    table = Table(box=None, header_style="bold")
    for name in ("vocabulary", "sequences", "loss", "ms per step", "GB at most", "NLL, nats per token"):
        table.add_column(name, justify="left" if name == "loss" else "right")
    for vocabulary in map(int, asked.vocabularies.split(",")):
        for micro_batch in map(int, asked.micro_batches.split(",")):
            for loss in LOSSES:
                one = Asked(vocabulary, micro_batch, loss, asked.steps, asked.device, asked.held_out)
                command = [sys.executable, "-m", "benchmarks.headless", "--one", json.dumps(vars(one))]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found = json.loads(done.stdout)
                figures = (f"{found['ms']:,.0f}", f"{found['gb']:.2f}", f"{found['nll']:.3f}")
                table.add_row(f"{vocabulary:,}", str(micro_batch), loss, *figures)
                print(f"{vocabulary:,} × {micro_batch}, {loss}: {', '.join(figures)}", file=sys.stderr, flush=True)
    on = torch.cuda.get_device_name() if asked.device == "cuda" else describe_cpu()
    console().print(f"{asked.steps} steps each, on {on}, torch {torch.__version__}")
    console().print(table)


if __name__ == "__main__":
    main()
