"""SaT of the size of sat-3l-sm on a GPU: sentences per second, random weights, and what is not matmul; takes a minute.

    python -m benchmarks.segment_gpu                         3 layers, d=768, ffn 3072, 12 heads, vocabulary 250 002
    python -m benchmarks.segment_gpu --device cpu --small    a smoke test that takes seconds

It calls what the stage calls: `SatRunner` from token ids on the host to averaged logits on the host, at its
default stride, as many documents at once as the stage gives it. Tokenizing and cutting are work of the CPU and not in
it. A sentence has 24 tokens, about what XLM-R's tokenizer makes of 100 characters of English; the lengths of documents
are log-normal. Needs what `encode_gpu` needs, and tokenizers; 2 GB of memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from torch.profiler import ProfilerActivity, profile

from benchmarks import command_line
from benchmarks.encode_gpu import SMALL, Bench, Round, add_network_options
from benchmarks.flops import Shape, encoder_flops
from stages.segment.sat.networks import SatNetwork
from stages.segment.sat.runner import SatRunner, windows

Indices = npt.NDArray[np.int64]

SENTENCE = 24  # tokens
FIRST_PIECE = 4  # the first id that is not a control symbol
SIZE, VOCAB_SIZE = Shape(dim=768, layers=3, heads=12, ffn_dim=3072), 250_002
MATMULS = tuple(
    f"aten::{name}"
    for name in ("addmm", "mm", "bmm", "linear", "_scaled_dot_product", "_flash_att", "_efficient_att", "_cudnn_att")
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    shape, vocab_size = (SMALL, 1000) if options.small else (SIZE, VOCAB_SIZE)
    bench = Bench.of(options, shape, vocab_size, max(options.batch_tokens))
    torch.manual_seed(options.seed)
    with torch.device(bench.device):
        network = SatNetwork(**asdict(shape), vocab_size=vocab_size, max_positions=514)
    network = network.to(bench.dtype).eval().requires_grad_(False)
    sentences = options.sentences or (200 if options.small else 200_000)
    for mean in options.document_sentences:
        for batch_tokens in options.batch_tokens:
            runner = SatRunner(
                network, Tokenizer(Unigram()), stride=options.stride, batch_tokens=batch_tokens, device=bench.device
            )
            title = f"documents of {mean} sentences, {batch_tokens} tokens per batch, stride {runner.stride}"
            draw = partial(_drawn, runner, bench, options, sentences, mean)
            bench.report(title, draw)
        if options.profile:
            _profile(bench, f"documents of {mean} sentences", draw(0).work)


def _drawn(
    runner: SatRunner, bench: Bench, options: argparse.Namespace, sentences: int, mean: int, number: int
) -> Round:
    """Draw documents of their own for each round."""
    rng = np.random.default_rng(options.seed + number)
    calls = documents(sentences, mean, options.call_tokens, rng)
    ids = [torch.from_numpy(rng.integers(FIRST_PIECE, bench.vocab_size, int(one.sum()))) for one in calls]
    lengths = [windows(one, runner.network.block, runner.stride)[1] + 2 for one in calls]
    shape = bench.shape
    flops = encoder_flops(np.concatenate(lengths).tolist(), dim=shape.dim, layers=shape.layers, ffn_dim=shape.ffn_dim)
    return Round(partial(_run, runner, ids, calls), [SENTENCE] * sentences, flops)


def documents(sentences: int, mean: int, call_tokens: int, rng: np.random.Generator) -> list[Indices]:
    """Return token counts of documents for each call; together they have that many sentences."""
    found: list[int] = []
    left = sentences
    while left > 0:
        size = min(left, max(1, round(rng.lognormal(np.log(mean) - 0.5, 1.0))))
        found.append(size * SENTENCE)
        left -= size
    call = np.cumsum(found) // call_tokens
    return np.split(np.array(found, np.int64), np.flatnonzero(np.diff(call)) + 1)


@torch.inference_mode()
def _run(runner: SatRunner, ids: list[torch.Tensor], calls: list[Indices]) -> None:
    for one, lengths in zip(ids, calls, strict=True):
        if not np.isfinite(runner.averaged(one, lengths)).all():
            raise SystemExit("logits are not finite: the figure would mean nothing")


def _profile(bench: Bench, title: str, work: Callable[[], object]) -> None:
    """Print what part of the time is in matmuls and attention, and what in the rest."""
    on_gpu = bench.device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as taken:
        work()
    times: dict[str, float] = {}
    for one in taken.key_averages():
        spent = one.self_device_time_total if on_gpu else one.self_cpu_time_total
        if one.key.startswith("aten::"):  # on a GPU kernels are listed, too: what they take is in their operators
            times[one.key] = times.get(one.key, 0.0) + spent
    total = sum(times.values())
    matmul = sum(spent for name, spent in times.items() if name.startswith(MATMULS))
    print(f"{title}: matmuls and attention take {matmul / total:.1%} of the operators' time; the rest is")
    for name, spent in sorted(times.items(), key=lambda item: -item[1])[:12]:
        if not name.startswith(MATMULS):
            print(f"    {name}: {spent / total:.1%}")


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "segment_gpu", "Sentences a second of the SaT runner at the size of sat-3l-sm, random weights."
    )
    add_network_options(parser)
    parser.add_argument("--sentences", type=int, help="sentences in all; 200 000 if not given, 200 with --small")
    parser.add_argument(
        "--document-sentences", type=int, nargs="+", default=[78, 8], help="mean length of documents; 78 in the paper"
    )
    parser.add_argument(
        "--batch-tokens", type=int, nargs="+", default=[16_384, 32_768, 65_536], help="tokens per batch"
    )
    parser.add_argument(
        "--call-tokens", type=int, default=480_000, help="tokens per call; the stage's 2 million characters"
    )
    parser.add_argument(
        "--stride", type=int, help="tokens between windows; the stage's default if not given; wtpsplit: 64"
    )
    parser.add_argument("--peak-tflops", type=float, help="peak for the MFU, if the device's is not known")
    parser.add_argument("--profile", action="store_true", help="print which time is not matmul")
    return parser


if __name__ == "__main__":
    main()
