"""The robust scaler: seconds and peak memory of our fit, of NumPy and of scikit-learn on the same embeddings.

    python -m benchmarks.fit_scaler                          1 000 000 rows of 1024 (a file of 2 GB); some minutes
    python -m benchmarks.fit_scaler --rows 20000 --dim 64    a smoke test that takes seconds

Each way runs in a process of its own that reads the file in row groups of 8192. Ours counts them as they come. NumPy
and scikit-learn need all rows at once: NumPy gets float16, dimension after dimension in float64; scikit-learn gets
float32, twice the file, and makes a copy for the medians. The time includes reading, the memory the libraries. The
benchmark fails if a result differs from NumPy's by a bit; scikit-learn interpolates in float32 here.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.table import Table
from sklearn.preprocessing import RobustScaler

from benchmarks import command_line
from benchmarks.machine import console, describe_cpu
from stages.scaler.robust import ScalerFit

Matrix = npt.NDArray[np.float16]
Pair = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]  # medians, interquartile ranges

GROUP = 8192


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.way:
        return _measure(options.way, Path(options.folder), options.rows, options.dim)
    out = console()
    out.print(f"{describe_cpu()}; numpy {np.__version__}; {options.rows} rows of {options.dim}, float16")
    table = Table("way", "seconds", "peak memory, GB", "values that differ from numpy's", title="robust scaler")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _write(Path(folder), options.rows, options.dim, options.seed)
        found: dict[str, Pair] = {}
        for way in ("numpy", *(name for name in WAYS if name != "numpy")):
            numbers = ["--folder", folder, "--rows", str(options.rows), "--dim", str(options.dim)]
            command = [sys.executable, "-m", "benchmarks.fit_scaler", "--way", way, *numbers]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{way} failed:\n{done.stderr}")
            measured = json.loads(done.stdout)
            with np.load(Path(folder) / f"{way}.npz") as saved:
                found[way] = saved["median"], saved["iqr"]
            differ = sum(int((one != other).sum()) for one, other in zip(found[way], found["numpy"], strict=True))
            table.add_row(way, f"{measured['seconds']:.1f}", f"{measured['gigabytes']:.2f}", str(differ))
            if way == "ours" and differ:
                raise SystemExit(f"{differ} values of ours differ from numpy's")
    out.print(table)


def _measure(way: str, folder: Path, rows: int, dim: int) -> None:
    start = time.perf_counter()
    median, iqr = WAYS[way](folder / "embeddings.f16", rows, dim)
    seconds = time.perf_counter() - start
    np.savez(folder / f"{way}.npz", median=median, iqr=iqr)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"seconds": seconds, "gigabytes": gigabytes}))


def _groups(path: Path, dim: int) -> Iterator[Matrix]:
    with path.open("rb") as file:
        while (data := np.fromfile(file, np.float16, GROUP * dim)).size:
            yield data.reshape(-1, dim)


def _ours(path: Path, rows: int, dim: int) -> Pair:
    fit = ScalerFit(dim)
    for group in _groups(path, dim):
        fit.add(group)
    scaler = fit.finish()
    return scaler.median.numpy(), scaler.iqr.numpy()


def _numpy(path: Path, rows: int, dim: int) -> Pair:
    x = np.fromfile(path, np.float16).reshape(rows, dim)
    found = np.array([np.percentile(x[:, column].astype(np.float64), [25, 50, 75]) for column in range(dim)])
    iqr = found[:, 2] - found[:, 0]
    return found[:, 1].astype(np.float32), np.where(iqr == 0, 1, iqr).astype(np.float32)


def _scikit_learn(path: Path, rows: int, dim: int) -> Pair:
    x = np.empty((rows, dim), np.float32)
    for number, group in enumerate(_groups(path, dim)):
        x[number * GROUP : number * GROUP + len(group)] = group
    scaler = RobustScaler(quantile_range=(25, 75), copy=False).fit(x)
    return scaler.center_.astype(np.float32), scaler.scale_.astype(np.float32)


WAYS: dict[str, Callable[[Path, int, int], Pair]] = {"ours": _ours, "numpy": _numpy, "scikit-learn": _scikit_learn}


def _write(folder: Path, rows: int, dim: int, seed: int) -> None:
    """Write values of SONAR's size: about 0.01, with a median and a scale of its own in every dimension."""
    rng = np.random.default_rng(seed)
    centre, scale = rng.normal(size=dim) * 0.005, rng.lognormal(-4.5, 0.3, size=dim)
    with (folder / "embeddings.f16").open("wb") as file:
        for start in range(0, rows, GROUP):
            noise = rng.standard_normal((min(GROUP, rows - start), dim), dtype=np.float32)
            (noise * scale + centre).astype(np.float16).tofile(file)


def _parser() -> argparse.ArgumentParser:
    parser = command_line("fit_scaler", "Time and peak memory of fitting the robust scaler.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument(
        "--folder", default=os.environ.get("TMPDIR", "/tmp"), help="where the file is written and deleted again"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
