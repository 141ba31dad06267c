"""Fragility at the published size on a GPU: noise, decodings at nine levels, the external encoder; five minutes.

    python -m benchmarks.fragility_gpu                         24 layers, d=1024, ffn 8192, vocabulary 256 206
    python -m benchmarks.fragility_gpu --device cpu --small    a smoke test that takes seconds

Random weights, real lengths. It calls what the stage calls: `noise` on the host, `perturbed` and `greedy` on the device
in batches of rows and levels together, then `embed` of the texts in an encoder of mGTE's size. Every decoding goes on
to its sentence's own length; with noise a real one may stop sooner or later, at 1.3 · tokens + 8 at most. Detokenising
and BLEU are work of the CPU beside it and not in it. Needs torch, numpy, pyarrow and safetensors; the external encoder
needs transformers 5.23, without it that part is left out, with a word.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import command_line
from benchmarks.encode_gpu import FORMATS, LANGUAGE, SMALL, add_network_options, endless_decoder, sentence_lengths
from benchmarks.flops import Shape, decoder_flops, wait
from stages.batching import Tokens
from stages.device import Budget, describe, prepare_cuda
from stages.fragility.noise import noise, perturbed
from stages.scaler.robust import RobustScaler
from stages.sonar.embed import embed
from stages.sonar.greedy import Greedy
from stages.sonar.ids import END


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    shape, vocab_size = (SMALL, 1000) if options.small else (Shape(), 256_206)
    prepare_cuda(options.device)
    levels = np.arange(1, options.levels + 1) / (options.levels + 1)
    lengths = sentence_lengths(options.sentences or (20 if options.small else 2048), options.seed)
    print(f"{describe(options.device)}; torch {torch.__version__}, {options.format}; {shape}, vocabulary {vocab_size}")
    print(f"{len(lengths)} sentences of {np.mean(lengths):.1f} tokens, {len(levels)} noise levels")
    external = _external(options, lengths, len(levels))
    for rows, seconds in _decoding(options, shape, vocab_size, levels, lengths):
        flops = len(levels) * decoder_flops(
            lengths, dim=shape.dim, layers=shape.layers, ffn_dim=shape.ffn_dim, vocab_size=vocab_size
        )
        whole = "" if external is None else f"; with the external encoder {len(lengths) / (seconds + external):.0f}"
        print(
            f"noise and greedy decoding, {rows} a batch: {len(lengths) * len(levels) / seconds:.0f} decodings/s, "
            f"{flops / seconds / 1e12:.3f} TFLOP/s; {len(lengths) / seconds:.0f} sentences/s{whole}",
            flush=True,
        )


@torch.inference_mode()
def _decoding(
    options: argparse.Namespace, shape: Shape, vocab_size: int, levels: npt.NDArray[np.float64], lengths: list[int]
) -> list[tuple[int, float]]:
    """Return seconds by rows per batch."""
    device, dtype = options.device, FORMATS[options.format]
    decoder = endless_decoder(shape, vocab_size, device, dtype, options.seed)
    scaler = RobustScaler(torch.zeros(shape.dim), torch.ones(shape.dim))
    rng = np.random.default_rng(options.seed)
    embeddings = rng.standard_normal((len(lengths), shape.dim), np.float32).astype(np.float16)
    u = rng.random(len(lengths))
    limits = np.repeat(lengths, len(levels))
    prefix, search = torch.tensor([[END, LANGUAGE]], device=device), Greedy(decoder)

    def decode(rows: int) -> None:
        for start in range(0, len(limits), rows):
            batch = np.arange(start, min(start + rows, len(limits)))
            row, alpha = batch // len(levels), levels[batch % len(levels)]
            eps = torch.from_numpy(noise(u[row], alpha, options.seed, shape.dim)).to(device)
            given = torch.from_numpy(embeddings[row]).to(device)
            x = perturbed(given, eps, torch.from_numpy(alpha).to(device), scaler).to(dtype)
            found = search(x, prefix.expand(len(batch), 2), torch.from_numpy(limits[batch]))
            if [len(ids) for ids in found] != limits[batch].tolist():
                raise SystemExit("a decoding ended before its length; the figure would mean nothing")

    return [(rows, _seconds(options, partial(decode, rows))) for rows in options.batch_rows]


@torch.inference_mode()
def _external(options: argparse.Namespace, lengths: list[int], levels: int) -> float | None:
    """Return seconds to encode every sentence and every decoding in an encoder of mGTE's size; None where it
    cannot be.
    """
    if importlib.util.find_spec("transformers") is None:
        print("external encoder: not measured, transformers is not installed")
        return None
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, __version__

    if "gte" not in CONFIG_MAPPING:
        print(f"external encoder: not measured, transformers {__version__} does not have GTE; 5.23 does")
        return None
    small = {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 1000}
    config: Any = AutoConfig.for_model("gte", **(small if options.small else {}))
    with torch.device(options.device):
        made: Any = AutoModel  # its methods have no types
        network = made.from_config(config).to(FORMATS[options.format]).eval()
    rng = np.random.default_rng(options.seed)
    texts = Tokens.of([rng.integers(5, config.vocab_size, n).tolist() for n in lengths for _ in range(levels + 1)])

    def work() -> None:
        budget = Budget(options.external_tokens, "--external-tokens", "tokens", "use --small")
        embed(
            lambda ids: network(input_ids=ids).last_hidden_state[:, 0],
            texts,
            budget,
            dim=config.hidden_size,
            device=options.device,
        )

    seconds = _seconds(options, work)
    print(f"external encoder of mGTE's size: {len(texts.lengths) / seconds:.0f} texts/s", flush=True)
    return seconds


def _seconds(options: argparse.Namespace, work: Callable[[], None]) -> float:
    """Run once to warm up, then the middle one of some rounds."""
    work()
    times = []
    for _ in range(options.rounds):
        wait(options.device)
        start = time.perf_counter()
        work()
        wait(options.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "fragility_gpu", "Sentences a second of noise, decoding and external encoding at the published size."
    )
    add_network_options(parser)
    parser.add_argument("--sentences", type=int, help="sentences; 2048 if not given, 20 with --small")
    parser.add_argument("--levels", type=int, default=9, help="noise levels")
    parser.add_argument("--batch-rows", type=int, nargs="+", default=[512, 1024, 2048], help="decodings per batch")
    parser.add_argument("--external-tokens", type=int, default=32_768, help="tokens per batch of the external encoder")
    return parser


if __name__ == "__main__":
    main()
