"""RVQ codebooks by faiss and by PyTorch: seconds to fit, relative error on rows not seen, vectors encoded a second.

    python -m benchmarks.fit_rvq                       both, on the CPU; two minutes
    python -m benchmarks.fit_rvq --units 8192 --dim 1024 --rows 16384 --codebooks 2 --initialization kmeans \\
        --iterations 1 --backends torch                the speed of encoding at paper size, with poor codebooks
    python -m benchmarks.fit_rvq --device cuda --codebooks 64 --units 8192 --dim 1024 --rows 2000000      on a GPU

faiss encodes with its ResidualQuantizer, beam 1, no tables; ours with what the stage calls, from float16 on the host to
codes on the host; both with our fitted centroids and all threads (faiss fits on one: see `stages/rvq/fit_faiss.py`).
Rows are synthetic: a spectrum that falls as SONAR's, norms of about 0.3 that differ, not centred. Needs torch and
numpy; faiss for its rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import command_line
from stages.device import compute_dtype, describe, prepare_cuda
from stages.rvq.codebooks import Codebooks
from stages.rvq.fit import fit_codebooks

Matrix = npt.NDArray[np.float16]


@dataclass(frozen=True)
class FitOptions:
    """An `RvqRecipe` from the options; the rest has the defaults of `RvqSettings`."""

    codebooks: int
    units: int
    initialization: Literal["progressive", "kmeans"]
    backend: Literal["torch", "faiss"]
    iterations: int
    precision: str
    seed: int
    points_per_unit: int = 256


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device, has_faiss = options.device, find_spec("faiss") is not None
    recipe = FitOptions(
        options.codebooks,
        options.units,
        options.initialization,
        "torch",
        options.iterations,
        options.precision,
        options.seed,
    )
    prepare_cuda(device)
    print(f"{describe(device)}; torch {torch.__version__}, distances in {compute_dtype(recipe.precision, device)}")
    print(f"{options.rows} rows of {options.dim}; {recipe}", flush=True)
    x = vectors(options.rows + options.test_rows, options.dim, options.seed)
    sample, test = x[: options.rows], x[options.rows :]
    found: dict[str, tuple[Codebooks, float]] = {}
    for backend in options.backends or (["torch"] if device.startswith("cuda") else ["faiss", "torch"]):
        if backend == "faiss" and not has_faiss:
            print("fit by faiss: left out, because it is not installed")
            continue
        own = sample.copy()  # a fit overwrites it
        start = time.perf_counter()
        codebooks, numbers = fit_codebooks(own, replace(recipe, backend=backend), device, _progress(backend, start))
        seconds = time.perf_counter() - start
        codebooks = codebooks.to(device)
        error = codebooks.quantise(test, recipe.precision)[1].sum(dtype=np.float64) / _energy(test)
        found[backend] = codebooks, seconds
        print(f"fit by {backend}: {seconds:.1f} s, relative error {error:.4f} on {len(test)} rows not seen, ", end="")
        print(f"{_last(numbers['relative_error']):.4f} on those seen", flush=True)
    codebooks, seconds = found.get("torch") or next(iter(found.values()))
    rate = _encode(codebooks, test, recipe, options.rounds, has_faiss and not device.startswith("cuda"))
    if options.project and "torch" in found:
        most = recipe.points_per_unit * recipe.units
        clustering = max(0.0, seconds - options.rows / rate)
        scale = min(most, options.project) / min(most, options.rows)
        print(f"projection for {options.project} rows: {clustering * scale + options.project / rate:.0f} s")


def vectors(rows: int, dim: int, seed: int) -> Matrix:
    """Return (rows, dim) float16 synthetic embeddings on the host."""
    generator = torch.Generator().manual_seed(seed)
    spectrum = torch.arange(1, dim + 1) ** -0.5
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator))[0] * spectrum[:, None]
    turn *= 0.3 / spectrum.square().sum().sqrt()
    centre = torch.randn(dim, generator=generator) * 0.1 / dim**0.5
    x = torch.empty((rows, dim), dtype=torch.float16)
    for start in range(0, rows, 65536):
        some = x[start : start + 65536]
        size = torch.exp(torch.randn(len(some), 1, generator=generator) * 0.2)
        some[:] = size * (torch.randn(len(some), dim, generator=generator) @ turn) + centre
    return np.asarray(x.numpy())


def _encode(codebooks: Codebooks, test: Matrix, recipe: FitOptions, rounds: int, with_faiss: bool) -> float:
    """Measure our encoding and that of faiss in turns, print vectors per second, and return our rate."""
    exact = test.astype(np.float32)
    ways: dict[str, Callable[[], object]] = {"ours": lambda: codebooks.encode(test, recipe.precision)}
    if with_faiss and recipe.units & (recipe.units - 1):
        print("encode by faiss: left out, because it needs a power of two of units")
    elif with_faiss:
        print(f"encode: {torch.get_num_threads()} threads")
        quantizer = _faiss_quantizer(codebooks)
        ways["faiss"] = lambda: quantizer.compute_codes(exact)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for count in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if count:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    rates = {name: len(test) / statistics.median(seconds) for name, seconds in times.items()}
    for name, rate in rates.items():
        low, high = len(test) / max(times[name]), len(test) / min(times[name])
        print(f"encode by {name}: {rate:.0f} vectors/s ({low:.0f}-{high:.0f})", end="")
        print(f", {rates['ours'] / rate:.2f} x as fast by ours" if name != "ours" else "", flush=True)
    if "faiss" in ways:
        theirs = quantizer.decode(quantizer.compute_codes(exact))
        ours = codebooks.decode(codebooks.encode(test, recipe.precision)).cpu().numpy()
        errors = [float(np.square(exact - one, dtype=np.float64).sum() / _energy(test)) for one in (ours, theirs)]
        print(f"relative error of codes with the same centroids: ours {errors[0]:.5f}, faiss {errors[1]:.5f}")
    return rates["ours"]


def _faiss_quantizer(codebooks: Codebooks) -> Any:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    count, units, dim = codebooks.centroids.shape
    quantizer = faiss.ResidualQuantizer(dim, count, int(np.log2(units)))
    quantizer.train_type = faiss.ResidualQuantizer.Train_default | faiss.ResidualQuantizer.Skip_codebook_tables
    quantizer.max_beam_size = 1
    faiss.copy_array_to_vector(codebooks.centroids.float().numpy().reshape(-1), quantizer.codebooks)
    quantizer.is_trained = True
    return quantizer


def _energy(x: Matrix) -> float:
    return sum(float(np.square(part, dtype=np.float32).sum(dtype=np.float64)) for part in np.array_split(x, 64))


def _last(errors: float | list[float]) -> float:
    return errors[-1] if isinstance(errors, list) else errors


def _progress(backend: str, start: float) -> Callable[[int, int], None]:
    def show(done: int, of: int) -> None:
        if done in (1, of // 4, of // 2):
            print(f"    {backend}: {done} of {of} codebooks after {time.perf_counter() - start:.1f} s", flush=True)

    return show


def _parser() -> argparse.ArgumentParser:
    parser = command_line("fit_rvq", "Fit RVQ codebooks by faiss and by PyTorch, and encode with them.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=("faiss", "torch"),
        help="libraries that fit; if not given, torch on a GPU, else both",
    )
    parser.add_argument("--codebooks", type=int, default=4)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rows", type=int, default=20_000, help="rows to fit on")
    parser.add_argument("--test-rows", type=int, default=4096, help="rows to encode")
    parser.add_argument("--initialization", choices=("progressive", "kmeans"), default="progressive")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of encoding")
    parser.add_argument("--project", type=int, default=15_000_000, help="rows that the time to fit is projected to")
    parser.add_argument("--threads", type=int, help="threads of PyTorch and faiss; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
