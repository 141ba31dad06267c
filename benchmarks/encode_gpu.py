"""The published size on a GPU: encoding, greedy decoding and beam search of real lengths by random weights, their MFU,
the tuned baseline, and how busy the device is from disk to disk; one run, meant to take less than ten minutes.

    python -m benchmarks.encode_gpu                          24 layers, d=1024, ffn 8192, 16 heads, vocabulary 256 206
    python -m benchmarks.encode_gpu --device cpu --small     a smoke test that takes seconds

It calls what the stages call: `embed` (batches of equal token count, ids on the host → embeddings on the host) and
`greedy` or `beam_search`. Every sentence is decoded to its own length: `</s>` is made the unlikeliest token. The
baseline is the Hugging Face M2M100 encoder with the same weights, in the same format, over padded batches of sentences
sorted by length that lie on the device already. Needs torch, numpy and pyarrow; the baseline needs transformers, and
the last part, `benchmarks.worker_gpu`, is a process of its own with needs of its own. At full size in float16 the
weights take 3 GB and the cache of 2048 sentences up to 17 GB.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks import command_line
from benchmarks.flops import Shape, combined_rate, decoder_flops, encoder_flops, layer_shapes, matmul_rates, wait
from stages.batching import Indices, Tokens
from stages.device import Budget, describe, peak_tflops, prepare_cuda
from stages.sonar.embed import embed
from stages.sonar.generate import beam_search
from stages.sonar.greedy import Greedy
from stages.sonar.ids import END
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder

# Token counts of the sample corpus's sentences (segmented, at most 200 characters), scaled to a mean of 27: the
# 0 %, 5 %, … 100 % quantiles.
LENGTHS = (
    *(3.9, 8.8, 11.7, 13.6, 15.6, 17.5, 18.5, 20.4, 22.4, 24.3, 25.3),
    *(27.2, 29.2, 31.1, 33.1, 35.0, 37.9, 40.8, 44.7, 49.6, 83.6),
)
FORMATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
PARTS = ("encode", "baseline", "decode", "worker")
LANGUAGE = 5  # any id that is not a control symbol
AGREEMENT = 0.999  # cosine between the baseline's embedding of a sentence and ours, both in 16 bits


SMALL = Shape(dim=64, layers=2, heads=4, ffn_dim=128)


@dataclass(frozen=True)
class Round:
    """What is timed once: tokens of each sentence, and the FLOPs of them all."""

    work: Callable[[], object]
    lengths: Sequence[int]
    flops: float


@dataclass(frozen=True)
class Bench:
    """What all measurements share. rate: FLOP/s of `F.linear` on the encoder's shapes; peak: what the maker says."""

    device: str
    dtype: torch.dtype
    shape: Shape
    vocab_size: int
    rounds: int
    rate: float
    peak: float | None

    @classmethod
    def of(cls, options: argparse.Namespace, shape: Shape, vocab_size: int, rows: int) -> Bench:
        """Set up the device and measure its rate for `rows` rows; print both."""
        device, dtype, shapes = options.device, FORMATS[options.format], layer_shapes(shape.dim, shape.ffn_dim)
        prepare_cuda(device)
        print(f"{describe(device)}; torch {torch.__version__}, {options.format}; {shape}, vocabulary {vocab_size}")
        rate = combined_rate(matmul_rates(rows, shapes, dtype, device), shapes)
        print(f"F.linear on the network's shapes, {rows} rows: {rate / 1e12:.3f} TFLOP/s", flush=True)
        peak = options.peak_tflops or peak_tflops(torch.device(device), dtype)
        return cls(device, dtype, shape, vocab_size, options.rounds, rate, peak and peak * 1e12)

    def report(self, title: str, draw: Callable[[int], Round]) -> None:
        """Run one round to warm up, then time some and print the middle one.

        draw: the number of a round → the round. With lengths of its own a round has shapes that none before it had, as
        the parts of a corpus do: what a library prepares for a shape is timed too.
        """
        draw(0).work()
        timed: list[tuple[float, float, Round]] = []
        for number in range(1, self.rounds + 1):
            one = draw(number)
            wait(self.device)
            start = time.perf_counter()
            one.work()
            wait(self.device)
            seconds = time.perf_counter() - start
            timed.append((len(one.lengths) / seconds, seconds, one))
        timed.sort(key=lambda found: found[0])
        rate, seconds, one = timed[len(timed) // 2]
        shares = [f"{one.flops / seconds / self.rate:.1%} of F.linear"]
        if self.peak:
            shares.insert(0, f"MFU {one.flops / seconds / self.peak:.1%}")
        print(
            f"{title}: {rate:.0f} sentences/s, {sum(one.lengths) / seconds:.0f} tokens/s, "
            f"{one.flops / seconds / 1e12:.3f} TFLOP/s, {', '.join(shares)} ({timed[0][0]:.0f}–{timed[-1][0]:.0f})",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    shape, vocab_size = (SMALL, 1000) if options.small else (Shape(), 256_206)
    lengths = sentence_lengths(options.sentences or (200 if options.small else 32_768), options.seed)
    print(f"{len(lengths)} sentences, {np.mean(lengths):.1f} tokens per sentence, at most {max(lengths)}")
    bench = Bench.of(options, shape, vocab_size, min(max(options.batch_tokens), sum(lengths)))
    if {"encode", "baseline"} & set(options.only):
        _encoding(bench, options, len(lengths))
    if "decode" in options.only:
        _decoding(bench, options, min(len(lengths), options.decode_sentences))
    if "worker" in options.only:
        _worker(options)


def sentence_lengths(count: int, seed: int) -> list[int]:
    """Draw token counts from the real distribution, longest first."""
    rng = np.random.default_rng(seed)
    drawn = np.interp(rng.random(count), np.linspace(0, 1, len(LENGTHS)), LENGTHS)
    return sorted((max(3, round(value)) for value in drawn.tolist()), reverse=True)


def _encoding(bench: Bench, options: argparse.Namespace, count: int) -> None:
    """Measure ours at each batch size, and the baseline on the same sentences and weights."""
    torch.manual_seed(options.seed)
    with torch.device(bench.device):
        encoder = SonarTextEncoder(**asdict(bench.shape), vocab_size=bench.vocab_size, max_tokens=514)
    encoder = encoder.to(bench.dtype).eval().requires_grad_(False)

    def sentences(number: int) -> Tokens:
        """Draw sentences in the order in which they come, not sorted."""
        rng = np.random.default_rng(options.seed + number)
        sizes = rng.permutation(sentence_lengths(count, options.seed + number))
        return Tokens.of([rng.integers(END + 1, bench.vocab_size, size).tolist() for size in sizes])

    def ours(tokens: Tokens, batch_tokens: int) -> npt.NDArray[np.float16]:
        budget = Budget(batch_tokens, "--batch-tokens", "tokens", "use --small")
        embeddings, halvings = embed(encoder, tokens, budget, dim=bench.shape.dim, device=bench.device)
        if halvings:
            raise SystemExit(f"--batch-tokens {batch_tokens} does not fit into the device's memory; give a lower one")
        return embeddings

    def timed(work: Callable[[], object], tokens: Tokens) -> Round:
        lengths = tokens.lengths.tolist()
        return Round(work, lengths, encoder_flops(lengths, **_numbers(bench.shape)))

    def encoding(batch_tokens: int, number: int) -> Round:
        tokens = sentences(number)
        return timed(partial(ours, tokens, batch_tokens), tokens)

    if "encode" in options.only:
        for batch_tokens in options.batch_tokens:
            bench.report(f"encode, {batch_tokens} tokens per batch", partial(encoding, batch_tokens))
    tokens = sentences(0)
    if options.profile:
        _profile(bench, "encode", partial(ours, tokens, options.batch_tokens[0]))
    if "baseline" not in options.only:
        return
    if importlib.util.find_spec("transformers") is None:
        print("baseline: not measured, transformers is not installed")
        return

    baseline = BaselineEncoder(encoder, heads=bench.shape.heads)
    order = np.argsort(tokens.lengths, kind="stable")
    expected = torch.from_numpy(ours(tokens, options.batch_tokens[0])[order]).to(bench.device)
    for size in options.baseline_batches:
        padded = [baseline.padded(tokens, order[at : at + size]) for at in range(0, len(order), size)]
        lowest = lowest_cosine(torch.cat(baseline.all(padded)), expected)
        if not lowest > AGREEMENT:
            raise SystemExit(f"the baseline gives other embeddings: lowest cosine {lowest:.5f}, want > {AGREEMENT}")
        title = f"Hugging Face M2M100 encoder, batches of {size} sorted by length (lowest cosine {lowest:.5f})"
        again = timed(partial(baseline.all, padded), tokens)
        bench.report(title, partial(_same, again))


def _same(one: Round, number: int) -> Round:
    return one


def lowest_cosine(theirs: Tensor, ours: Tensor) -> float:
    """Return the lowest cosine of two embeddings of the same sentence."""
    return float(torch.cosine_similarity(theirs.float(), ours.float(), dim=1).min())


@torch.inference_mode()
def _decoding(bench: Bench, options: argparse.Namespace, count: int) -> None:
    """Measure greedy decoding at each batch size and beam search, each sentence to its own length."""
    decoder = endless_decoder(bench.shape, bench.vocab_size, bench.device, bench.dtype, options.seed)
    embeddings = torch.randn(count, bench.shape.dim, device=bench.device).to(bench.dtype)
    prefixes, search = torch.tensor([[END, LANGUAGE]] * count, device=bench.device), Greedy(decoder)

    def decoding(rows: int, beam: int, number: int) -> Round:
        lengths = sentence_lengths(count, options.seed + number)
        flops = beam * decoder_flops(lengths, **_numbers(bench.shape), vocab_size=bench.vocab_size)
        return Round(partial(decode, lengths, rows, beam), lengths, flops)

    def decode(lengths: list[int], rows: int, beam: int) -> None:
        limits = torch.tensor(lengths)
        for start in range(0, count, rows):
            some = slice(start, start + rows)
            if beam == 1:
                found = search(embeddings[some], prefixes[some], limits[some])
            else:
                hypotheses = beam_search(decoder, embeddings[some], prefixes[some], limits[some], beam=beam)
                found = [row[0].ids for row in hypotheses]
            if [len(ids) for ids in found] != lengths[some]:
                raise SystemExit("a sentence ended before its length; the figure would mean nothing")

    for rows in options.decode_rows:
        bench.report(f"greedy decode, {rows} sentences per batch", partial(decoding, rows, 1))
    if options.profile:
        _profile(bench, "greedy decode", decoding(options.decode_rows[0], 1, 0).work)
    if options.beam > 1:
        rows = max(1, options.decode_rows[0] // options.beam)
        title = f"beam search, beam {options.beam}, {rows} sentences per batch"
        bench.report(title, partial(decoding, rows, options.beam))


def endless_decoder(shape: Shape, vocab_size: int, device: str, dtype: torch.dtype, seed: int) -> SonarTextDecoder:
    """Return a decoder of random weights that never ends a sentence by itself."""
    torch.manual_seed(seed)
    with torch.device(device):
        decoder = SonarTextDecoder(**asdict(shape), vocab_size=vocab_size, max_tokens=514)
    decoder = decoder.to(dtype).eval().requires_grad_(False)
    decoder.embedding.weight[END] = 0  # the logit of </s> is 0 and another's always greater
    return decoder


def _numbers(shape: Shape) -> dict[str, int]:
    return {"dim": shape.dim, "layers": shape.layers, "ffn_dim": shape.ffn_dim}


def _profile(bench: Bench, title: str, work: Callable[[], object]) -> None:
    """Print which kernels take the time."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = bench.device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as taken:
        work()
    sort = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(f"{title}, by kernel:\n{taken.key_averages().table(sort_by=sort, row_limit=20, max_name_column_width=80)}")


def _worker(options: argparse.Namespace) -> None:
    needed = ("fsspec", "sentencepiece")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"from disk to disk: not measured, not installed: {', '.join(missing)}")
        return
    command = [sys.executable, "-m", "benchmarks.worker_gpu", "--device", options.device]
    subprocess.run([*command, *(["--small"] if options.small else [])], check=True)


def add_network_options(parser: argparse.ArgumentParser, rounds: int = 3) -> None:
    """Add the options of all measurements of networks of random weights."""
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--format", default="float16" if on_gpu else "float32", choices=FORMATS)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--small", action="store_true", help="very small networks, to see that everything runs")
    parser.add_argument("--seed", type=int, default=0)


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "encode_gpu", "Encoding and decoding of the published size, random weights, real lengths; the baseline; a run."
    )
    add_network_options(parser)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, help="what to measure")
    parser.add_argument("--sentences", type=int, help="sentences; 32 768 if not given, 200 with --small")
    parser.add_argument("--decode-sentences", type=int, default=8192, help="of those, how many to decode")
    parser.add_argument(
        "--batch-tokens", type=int, nargs="+", default=[16_384, 32_768, 65_536], help="tokens per batch"
    )
    parser.add_argument("--decode-rows", type=int, nargs="+", default=[512, 1024, 2048], help="sentences per batch")
    parser.add_argument("--beam", type=int, default=5, help="beams of beam search; 1: leave it out")
    parser.add_argument("--baseline-batches", type=int, nargs="+", default=[128, 512, 2048], help="sentences per batch")
    parser.add_argument("--peak-tflops", type=float, help="peak for the MFU, if the device's is not known")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take the time")
    return parser


PAD = 1  # as in the ports; our random ids start above it


class BaselineEncoder:
    """Ids and mask of padded sentences → (rows, dim), on the device and in the format of the encoder it copies."""

    def __init__(self, encoder: SonarTextEncoder, *, heads: int) -> None:
        from benchmarks.random_model import m2m100_names  # cards need more packages than the rest of this file

        transformers = import_module("transformers")
        m2m100 = import_module("transformers.models.m2m_100.modeling_m2m_100")
        weight = encoder.embedding.weight
        config = transformers.M2M100Config(
            vocab_size=weight.shape[0],
            d_model=weight.shape[1],
            encoder_layers=len(encoder.layers),
            encoder_attention_heads=heads,
            encoder_ffn_dim=encoder.get_parameter("layers.0.ffn.inner_proj.weight").shape[0],
            max_position_embeddings=encoder.embedding.positions.shape[0],
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            attn_implementation="sdpa",
        )
        self.device = weight.device
        with torch.device(weight.device):
            self.network: Any = m2m100.M2M100Encoder(config)
        self.network = self.network.to(weight.dtype).eval().requires_grad_(False)
        self.network.load_state_dict(m2m100_names(encoder.state_dict()))

    def padded(self, tokens: Tokens, rows: Indices) -> tuple[Tensor, Tensor]:
        """Return ids and mask of some sentences, padded to the longest, on the device."""
        longest = int(tokens.lengths[rows].max())
        ids: npt.NDArray[np.int64] = np.full((len(rows), longest), PAD, dtype=np.int64)
        for place, row in enumerate(rows):
            sentence = tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]]
            ids[place, : len(sentence)] = sentence
        on_device = torch.from_numpy(ids).to(self.device)
        return on_device, (on_device != PAD).long()

    def all(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Return the embeddings of many batches; they stay on the device."""
        return [self(ids, mask) for ids, mask in batches]

    @torch.inference_mode()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the mean over the tokens of each sentence."""
        hidden = self.network(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask.unsqueeze(2).to(hidden.dtype)
        mean: Tensor = (hidden * kept).sum(dim=1) / kept.sum(dim=1)
        return mean


if __name__ == "__main__":
    main()
