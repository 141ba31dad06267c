"""The published size on a GPU: encode and greedy decoding of real lengths by random weights, and the MFU of both.

    python -m benchmarks.encode_gpu                          24 layers, d=1024, ffn 8192, 16 heads, vocabulary 256 206
    python -m benchmarks.encode_gpu --tiny --device cpu      a smoke test that takes seconds

Batches of equal token count, as the stages make them, with tokens already on the device: this is the ceiling of the
stages, without tokenising and without the disk. Every sentence is decoded to its own length, since random weights end
no sentence. Imports torch and our networks, and nothing else. At full size in float16 the weights take 3 GB, the
cache of a decoding batch up to 9 GB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.flops import combined_rate, encoder_flops, layer_shapes, matmul_rates, wait
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder

# Token counts of the sample corpus's sentences (segmented, at most 200 characters), scaled to a mean of 27: the
# 0 %, 5 %, … 100 % quantiles.
LENGTHS = (
    *(3.9, 8.8, 11.7, 13.6, 15.6, 17.5, 18.5, 20.4, 22.4, 24.3, 25.3),
    *(27.2, 29.2, 31.1, 33.1, 35.0, 37.9, 40.8, 44.7, 49.6, 83.6),
)
FORMATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
BEGIN, FIRST_PIECE = 3, 4


@dataclass(frozen=True)
class Shape:
    dim: int = 1024
    layers: int = 24
    heads: int = 16
    ffn_dim: int = 8192
    vocab_size: int = 256_206


TINY = Shape(dim=64, layers=2, heads=4, ffn_dim=128, vocab_size=1000)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    device, dtype = options.device, FORMATS[options.format]
    shape = TINY if options.tiny else Shape()
    count = options.sentences or (200 if options.tiny else 65_536)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    print(f"{name}; torch {torch.__version__}, {options.format}; {shape}")
    lengths = sentence_lengths(count, options.seed)
    print(f"{count} sentences, {sum(lengths) / count:.1f} tokens a sentence, at most {max(lengths)}")
    rows = min(options.batch_tokens, sum(lengths))
    shapes = layer_shapes(shape.dim, shape.ffn_dim)
    rate = combined_rate(matmul_rates(rows, shapes, dtype, device), shapes)
    print(f"F.linear on the encoder's shapes, {rows} rows: {rate / 1e12:.3f} TFLOP/s")
    peak = options.peak_tflops * 1e12 if options.peak_tflops else rate

    torch.manual_seed(options.seed)
    numbers = {"dim": shape.dim, "layers": shape.layers, "heads": shape.heads, "ffn_dim": shape.ffn_dim}
    tables = {"vocab_size": shape.vocab_size, "max_tokens": 514}
    with torch.device(device):
        encoder = SonarTextEncoder(**numbers, **tables).to(dtype).eval()
        decoder = SonarTextDecoder(**numbers, **tables).to(dtype).eval()
    work = encoder_flops(lengths, dim=shape.dim, layers=shape.layers, ffn_dim=shape.ffn_dim)
    batches = [
        torch.randint(FIRST_PIECE, shape.vocab_size, (size, length), device=device)
        for length, size in equal_batches(lengths, options.batch_tokens)
    ]
    report("encode", lambda: encode(encoder, batches), lengths, work, peak, device)

    # A decoder's token attends to half of its sentence on average, and needs a row of the vocabulary's matmul.
    attention = 2 * shape.layers * shape.dim * sum(length * length for length in lengths)
    work += 2 * shape.dim * shape.vocab_size * sum(lengths) - attention
    embedded = [
        (torch.randn(size, shape.dim, device=device).to(dtype), length)
        for length, size in equal_batches(lengths, options.decode_rows * max(lengths), options.decode_rows)
    ]
    report("greedy decode", lambda: decode(decoder, embedded), lengths, work, peak, device)


def sentence_lengths(count: int, seed: int) -> list[int]:
    """Token counts drawn from the real distribution, longest first."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.rand(count, generator=generator) * (len(LENGTHS) - 1)
    below = place.long()
    quantiles = torch.tensor(LENGTHS)
    values = torch.lerp(quantiles[below], quantiles[below + 1], place - below)
    return sorted((max(3, round(value)) for value in values.tolist()), reverse=True)


def equal_batches(lengths: Sequence[int], tokens: int, rows: int = 1 << 30) -> list[tuple[int, int]]:
    """(length, rows) of batches of equal length with at most so many tokens and rows. `lengths` are sorted."""
    found = []
    for length in dict.fromkeys(lengths):
        left, most = lengths.count(length), max(1, min(rows, tokens // length))
        while left:
            found.append((length, min(left, most)))
            left -= found[-1][1]
    return found


@torch.inference_mode()
def encode(encoder: SonarTextEncoder, batches: Sequence[Tensor]) -> None:
    """All batches; results stay on the device."""
    for ids in batches:
        encoder(ids).to(torch.float16)


@torch.inference_mode()
def decode(decoder: SonarTextDecoder, batches: Sequence[tuple[Tensor, int]]) -> None:
    """The likeliest token again and again, as many as the sentence has."""
    for embeddings, length in batches:
        state = decoder.start(embeddings, capacity=length)
        token = torch.full((len(embeddings),), BEGIN, device=embeddings.device)
        for _ in range(length):
            token = decoder.logits(decoder.step(token, state)).argmax(dim=1)


def report(
    title: str, work: Callable[[], None], lengths: Sequence[int], flops: float, peak: float, device: str
) -> None:
    """Run once to warm up, then time three runs and print the middle one."""
    work()
    times = []
    for _ in range(3):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    seconds = sorted(times)[1]
    print(
        f"{title}: {len(lengths) / seconds:.0f} sentences/s, {sum(lengths) / seconds:.0f} tokens/s, "
        f"{flops / seconds / 1e12:.3f} TFLOP/s, MFU {flops / seconds / peak:.1%}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encode_gpu",
        description="Encode and greedy decoding of the published size, random weights, real lengths.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--format", default="float16" if torch.cuda.is_available() else "float32", choices=FORMATS)
    parser.add_argument("--sentences", type=int, help="65 536 if not given; 200 with --tiny")
    parser.add_argument("--batch-tokens", type=int, default=16_384, help="tokens a batch, encode")
    parser.add_argument("--decode-rows", type=int, default=1024, help="sentences a batch, decode")
    parser.add_argument(
        "--peak-tflops", type=float, help="what MFU counts against (989 for an H100 in 16 bits); else the measured rate"
    )
    parser.add_argument("--tiny", action="store_true", help="a very small network, to see that everything runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
