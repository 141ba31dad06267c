"""Encode on CPU: sentences per second of our stage and of what users have today, in one run, on the same sentences.

    python -m benchmarks.encode_cpu                                   against the official way of working, rebuilt here
    python -m benchmarks.encode_cpu --official PYTHON                 … and against the official package in that Python

The sentences are the sample corpus that ships, segmented, without copies; the weights are random. Ours is the stage as
a run calls it: prepare (tokenise, plan), compute, finish. The reference gets a `predict` for each language. It is asked
in two ways: from a file it encodes sentences as they arrive, from a list it sorts them by characters first. The first
round tries every way, the others take turns between the default and those that may be the best; what counts is the
median. Costs minutes, most of them the reference's bfloat16 on CPUs that do not multiply it (`--formats float32`).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import command_line
from benchmarks.flops import Shape, combined_rate, encoder_flops, layer_shapes, matmul_rates
from benchmarks.machine import console, describe_cpu
from benchmarks.random_model import make_model
from benchmarks.reference import DEFAULT, Order, Reference, ReferenceError, Request, rebuilt, write_job
from benchmarks.sample import Sentences, sample_sentences
from stages.arrow import embedding_matrix
from stages.batching import Indices
from stages.device import Budget, compute_dtype, in_batches
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings

AGREEMENT = 0.9999  # cosine between ours and the reference's fp32 embedding of every sentence
LARGE_BATCH = 4096  # tokens: a matmul of so many rows reaches what the machine can do


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    out = console()
    size = Shape(options.dim, options.layers, options.heads, options.ffn_dim or 4 * options.dim)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="encode-cpu-")))
        sentences = sample_sentences(options.sentences, options.tokenizer)
        card = make_model(folder, size, tokenizer_of=options.tokenizer, seed=options.seed)
        write_job(folder, card, size, sentences)
        stage = Encode(EncodeSettings(model=str(folder / "card.yaml"), batch_tokens=options.batch_tokens))
        stage.setup("cpu")
        dtype = compute_dtype(stage.settings.precision, "cpu")
        references = _references(stack, out, options, folder)
        _print_setting(out, options, sentences, size, dtype, references)

        first, lengths = _ours(stage, sentences)[1:]
        formats, batches, orders = options.formats, options.batches, options.orders
        ways = list(dict.fromkeys([DEFAULT, *(Request(*one) for one in product(orders, batches, formats))]))
        for reference in references:
            reference.seconds(DEFAULT)  # warms up
            _check(out, reference.kind, first, reference.embeddings(sentences))

        ours: list[float] = []
        theirs: dict[tuple[str, Request], list[float]] = {}
        for number in range(options.rounds):
            if number:
                ways = _contenders(ways, theirs, references[0].kind)
            for way in ways:
                # next to the official package, the rebuilt way shows that it is like it: the contenders are enough
                for reference in references[: 1 if number == 0 and options.rounds > 1 else None]:
                    ours.append(_ours(stage, sentences)[0])
                    theirs.setdefault((reference.kind, way), []).append(reference.seconds(way))
        count = len(sentences.texts)
        _print_speeds(out, count, ours, theirs, options.batch_tokens, dtype)
        for reference in references:
            _print_factors(out, reference.kind, ours, theirs)
        _print_share(out, size, lengths, options.batch_tokens, statistics.median(ours), dtype, references[-1])


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "encode_cpu", "Sentences a second of the encode stage and of the official package, in one run."
    )
    parser.add_argument(
        "--official", metavar="PYTHON", help="a Python that has sonar-space and fairseq2; PYTHONPATH is handed on to it"
    )
    parser.add_argument("--sentences", type=int, default=2000, help="number of sentences, from all files of the sample")
    parser.add_argument("--rounds", type=int, default=3, help="how often the default and the fastest ways are measured")
    parser.add_argument("--batches", type=int, nargs="+", default=[5, 32, 256], help="sentences per batch, reference")
    parser.add_argument("--formats", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument(
        "--orders",
        nargs="+",
        default=list(get_args(Order)),
        choices=get_args(Order),
        help="arrival: the reference reads a file; characters: it gets a list, and sorts it",
    )
    parser.add_argument("--batch-tokens", type=int, default=16_384, help="tokens per batch, ours")
    parser.add_argument("--tokenizer", default="sonar-tiny", help="model card whose tokenizer and vocabulary are used")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--ffn-dim", type=int, help="width of the feed-forward network; 4 · dim if not given")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of every method")
    return parser


def _contenders(ways: list[Request], theirs: dict[tuple[str, Request], list[float]], kind: str) -> list[Request]:
    """Return the default, and what may turn out to be the best: at most a quarter slower than the best so far."""
    speeds = {way: statistics.median(theirs[kind, way]) for way in ways}
    return [way for way in ways if way == DEFAULT or speeds[way] <= 1.25 * min(speeds.values())]


def _references(stack: ExitStack, out: Console, options: argparse.Namespace, folder: Path) -> list[Reference]:
    """Return the official package, if there is one, and its way of working rebuilt, last."""
    found = []
    if options.official:
        try:
            found.append(stack.enter_context(Reference("official", options.official, folder, options.threads)))
        except (ReferenceError, OSError) as error:
            out.print(f"[bold]{options.official} gives no official package[/]: {error}")
    return [*found, stack.enter_context(rebuilt(folder, options.threads))]


def _ours(stage: Encode, sentences: Sentences) -> tuple[float, npt.NDArray[np.float16], Indices]:
    """Return seconds, embeddings, and the token counts of what was computed."""
    part = sentences.part()
    start = time.perf_counter()
    prepared = stage.prepare(part)
    computed = stage.finish(stage.compute(prepared))
    seconds = time.perf_counter() - start
    return seconds, embedding_matrix(computed.families["embeddings"]["embedding"]), prepared.tokens.lengths


def agreement(ours: npt.NDArray[np.float16], theirs: npt.NDArray[np.float32]) -> float:
    """Return the lowest cosine between two embeddings of the same sentence."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return float(((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def _check(out: Console, kind: str, ours: npt.NDArray[np.float16], theirs: npt.NDArray[np.float32]) -> None:
    lowest = agreement(ours, theirs)
    others = agreement(ours, np.roll(theirs, 1, axis=0))
    if lowest <= AGREEMENT:
        raise SystemExit(f"the {kind} reference gives other embeddings: lowest cosine {lowest:.6f}, want > {AGREEMENT}")
    out.print(f"ours and {kind}: lowest cosine of a sentence {lowest:.7f} (of two different sentences {others:.3f})")


def _print_setting(
    out: Console,
    options: argparse.Namespace,
    sentences: Sentences,
    size: Shape,
    dtype: torch.dtype,
    references: list[Reference],
) -> None:
    languages = ", ".join(f"{lang} {len(rows)}" for lang, rows in sentences.by_language().items())
    out.print(f"{describe_cpu()}; torch {torch.__version__}, {options.threads} threads")
    out.print(
        f"encoder: d={size.dim}, {size.layers} layers, {size.heads} heads, ffn {size.ffn_dim}, random weights (seed "
        f"{options.seed}); we compute in {_name(dtype)}"
    )
    out.print(f"{len(sentences.texts)} distinct sentences in arrival order: {languages}")
    for reference in references:
        what = ", ".join(f"{name} {version}" for name, version in reference.versions.items())
        out.print(f"reference: [bold]{reference.kind}[/] ({what})")
    if references[0].kind == "rebuilt":
        out.print("the official package was not measured (see --official)")


def _print_speeds(
    out: Console,
    count: int,
    ours: list[float],
    theirs: dict[tuple[str, Request], list[float]],
    batch_tokens: int,
    dtype: torch.dtype,
) -> None:
    main_kind = next(iter(theirs))[0]  # the official package where it is there
    default = statistics.median(theirs[main_kind, DEFAULT])
    best = min(statistics.median(seconds) for (kind, _), seconds in theirs.items() if kind == main_kind)
    table = Table(
        title="Encode on CPU", caption=f"× against the {main_kind} reference; range: slowest to fastest round"
    )
    for name in ("method", "order", "batch", "format"):
        table.add_column(name)
    for name in ("sentences/s", "range", "× default", "× its best"):
        table.add_column(name, justify="right")

    def row(method: str, order: str, batch: str, format: str, seconds: list[float]) -> None:
        median = statistics.median(seconds)
        spread = f"{count / max(seconds):.0f}–{count / min(seconds):.0f}"
        factors = (f"{default / median:.2f}", f"{best / median:.2f}")
        table.add_row(method, order, batch, format, f"{count / median:.0f}", spread, *factors)

    for (kind, way), seconds in theirs.items():
        row(f"{kind}, default" if way == DEFAULT else kind, way.order, str(way.batch), way.format, seconds)
    row("ours", "tokens", f"≤ {batch_tokens} tokens", _name(dtype), ours)
    out.print(table)


def _print_factors(out: Console, kind: str, ours: list[float], theirs: dict[tuple[str, Request], list[float]]) -> None:
    speeds = {way: statistics.median(seconds) for (one, way), seconds in theirs.items() if one == kind}
    own = statistics.median(ours)
    best = min(speeds, key=lambda way: speeds[way])
    out.print(
        f"ours is {speeds[DEFAULT] / own:.2f} × the default of {kind} (goal ≥ 4) and {speeds[best] / own:.2f} × its "
        f"best (goal ≥ 1.5), which is order {best.order}, batch {best.batch}, {best.format}"
    )


def _print_share(
    out: Console,
    size: Shape,
    lengths: Indices,
    batch_tokens: int,
    seconds: float,
    dtype: torch.dtype,
    reference: Reference,
) -> None:
    """Print our FLOP/s against what F.linear gives on the encoder's own shapes, in a process without our settings of
    MKL.
    """
    flops = encoder_flops(lengths.tolist(), dim=size.dim, layers=size.layers, ffn_dim=size.ffn_dim)
    longest_first, tokens = np.sort(lengths)[::-1], list[int]()
    budget = Budget(batch_tokens, "--batch-tokens", "tokens", "give a lower --batch-tokens")
    in_batches(
        longest_first, budget, lambda start, stop: tokens.append(int(longest_first[start:stop].sum())), mixed=True
    )
    tokens.sort(reverse=True)
    middle = tokens[int(np.searchsorted(np.cumsum(tokens), sum(tokens) / 2))]  # half of all tokens are in larger ones
    shapes = layer_shapes(size.dim, size.ffn_dim)
    table = Table(title=f"Matmul rate in {_name(dtype)}, GFLOP/s")
    for name in ("rows", *(f"{inner}→{outer}" for inner, outer in shapes), "a layer", "ours reaches"):
        table.add_column(name, justify="right")
    achieved = flops / seconds
    for title, rows, ours in (
        (f"{LARGE_BATCH}", LARGE_BATCH, False),
        (f"{middle} (our median batch)", middle, False),
        (f"{middle}, reproducible", middle, True),
    ):
        rates = matmul_rates(rows, shapes, dtype) if ours else reference.rates(rows, shapes, _name(dtype))
        whole = combined_rate(rates, shapes)
        table.add_row(title, *(f"{rate / 1e9:.0f}" for rate in rates), f"{whole / 1e9:.0f}", f"{achieved / whole:.0%}")
    out.print(table)
    out.print(
        f"{sum(tokens)} tokens in {len(tokens)} batches, {flops / 1e9:.0f} GFLOP in {seconds:.2f} s: "
        f"{achieved / 1e9:.0f} GFLOP/s (goal: 60 % of the rate)"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    main()
