"""Every row of GPU.md in one command, within nine minutes on one H100 or H200, and the tests that are marked `gpu`.

    python -m benchmarks.gpu_all --out gpu.md                            the most important rows first
    python -m benchmarks.gpu_all --out gpu.md --only lcm lcm-quant       some of them
    python -m benchmarks.gpu_all --out gpu.md --device cpu --small       a smoke test: its figures mean nothing

Each row is a process of its own with a limit of its own: what it prints is shown as it comes, and one that fails or
takes too long does not end the others. The table is written again after each. Rows for which no time is left are left
out, with a word. Needs torch, numpy, pyarrow, PyYAML, safetensors, sentencepiece, fsspec, tokenizers, sacrebleu and
rich, and for the baselines transformers; no Ray, pydantic, spaCy or wtpsplit.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks import command_line

ROOT = Path(__file__).parent.parent
SECONDS = 540.0  # for everything
TEST_SECONDS = 60.0  # of those, for the tests
FAILED = "no figure: see the output"


@dataclass(frozen=True)
class Metric:
    """A line of the table. pattern: what holds the figure in what the command prints; of several, `best` of the first
    group counts. figure: how it is shown, by groups.
    """

    row: str
    goal: str
    pattern: str
    figure: str
    least: bool = False

    def found(self, text: str) -> str | None:
        matches = sorted(re.finditer(self.pattern, text), key=lambda one: float(one[1].replace(",", "").rstrip("%")))
        return matches[0 if self.least else -1].expand(self.figure) if matches else None


@dataclass(frozen=True)
class Row:
    """A command, and what is read from its output. small: the same as a smoke test; limit: in seconds."""

    name: str
    command: str
    figures: tuple[Metric, ...]
    limit: float
    small: str


RATE = r": (\d+) sentences/s.*?"
SHARES = r"(?:MFU ([\d.]+%), )?([\d.]+%) of F\.linear"

ROWS = (
    Row("encode", "encode_gpu --only encode --batch-tokens 32768 16384", (
        Metric("encode, ids on the host → embeddings on the host", "≥ 12 000 sentences/s, stretch 16 000",
               r"(?m)^encode, (?:\d+) tokens per batch" + RATE, r"\1 sentences/s"),
        Metric("… its MFU, and as a share of `F.linear` on the encoder's shapes", "the higher the better",
               r"(?m)^encode, .*?([\d.]+) TFLOP/s, " + SHARES, r"MFU \2, \3 of F.linear"),
    ), 80, "encode_gpu --small --only encode --sentences 24 --rounds 1 --batch-tokens 512"),
    Row("decode", "encode_gpu --only decode --decode-rows 2048 512 --decode-sentences 4096 --beam 5 --rounds 2", (
        Metric("greedy decoding, each sentence to its own length", "≥ 4 000 sentences/s, stretch 8 000",
               r"(?m)^greedy decode, \d+ sentences per batch" + RATE, r"\1 sentences/s"),
        Metric("… its MFU", "the higher the better", r"(?m)^greedy decode, .*?([\d.]+) TFLOP/s, " + SHARES, r"MFU \2"),
        Metric("beam search, beam 5", "none", r"(?m)^beam search, .*?" + RATE, r"\1 sentences/s"),
    ), 100, "encode_gpu --small --only decode --sentences 12 --rounds 1 --decode-rows 16"),
    Row("worker", "worker_gpu --parts 8", (
        Metric("device busy from disk to disk, from the first part to the last, parts of 30 000 sentences", "≥ 97 %",
               r"device busy: ([\d.]+)%", r"\1 %"),
        Metric("… its sentences/s", "≥ 97 % of the first row", r"from disk to disk: (\d+)", r"\1 sentences/s"),
    ), 90, "worker_gpu --small --parts 3"),
    Row("beside", "beside --rounds 3 --steps 16", (
        Metric("a decoding step of 64 sentences while other processes compute BLEU", "≤ 5 % slower than alone",
               r"a step beside processes: [\d.]+ ms, [+]?(-?[\d.]+)%", r"\1 %"),
        Metric("… while threads of the same process do", "none",
               r"a step beside threads: [\d.]+ ms, [+]?(-?[\d.]+)%", r"\1 %"),
    ), 60, "beside --small --rows 4 --steps 8 --rounds 1 --workers 1"),
    Row("baseline", "encode_gpu --only baseline --baseline-batches 512 --rounds 1 --sentences 16384", (
        Metric("Hugging Face's M2M100 encoder, the same weights, sorted by length", "slower in the same run",
               r"Hugging Face M2M100 encoder.*?" + RATE, r"\1 sentences/s"),
    ), 60, "encode_gpu --small --only baseline --sentences 24 --rounds 1 --baseline-batches 16"),
    Row("segment", "segment_gpu --batch-tokens 32768 --rounds 2", (
        Metric("segment by SaT of the size of sat-3l-sm, documents of 78 sentences", "≥ 60 000 sentences/s",
               r"documents of 78 sentences.*?" + RATE, r"\1 sentences/s"),
        Metric("… documents of 8 sentences", "none", r"documents of 8 sentences.*?" + RATE, r"\1 sentences/s"),
    ), 50, "segment_gpu --small --rounds 1 --batch-tokens 1024 --sentences 50"),
    Row("fragility", "fragility_gpu --batch-rows 2048 --rounds 2", (
        Metric("fragility at nine noise levels: noise and greedy decodings", "≥ 250 sentences/s, stretch 500",
               r"decodings/s, .*?; (\d+) sentences/s", r"\1 sentences/s"),
        Metric("… with ten texts per sentence encoded by an encoder of mGTE's size", "as above",
               r"with the external encoder (\d+)", r"\1 sentences/s"),
    ), 60, "fragility_gpu --small --rounds 1 --sentences 6 --levels 2 --batch-rows 16"),
    Row("lcm", "lcm_gpu --files 200000", (
        Metric("train Two-Tower 1.6B, documents of 20 to 128 sentences, bfloat16: MFU", "≥ 40 %",
               r"MFU ([\d.]+%)", r"\1"),
        Metric("… concepts/s", "the higher the better", r"concepts/s  ([\d,]+)", r"\1"),
        Metric("… the share of the time in which steps wait for the loader, from files", "≤ 2 %",
               r"loader +steps wait for it ([\d.]+)%", r"\1 %"),
    ), 110, "lcm_gpu --small --files 3000"),
    Row("rvq", "fit_rvq --codebooks 4 --units 8192 --dim 1024 --rows 524288 --project 2000000 --test-rows 65536", (
        Metric("RVQ: 4 of 64 codebooks of 8192 units, projected to 2 million vectors of 1024", "under 19 s",
               r"projection for \d+ rows: (\d+) s", r"\1 s", least=True),
        Metric("… encode with these codebooks, float16 on the host → codes on the host", "none",
               r"encode by ours: (\d+)", r"\1 vectors/s"),
    ), 60, "fit_rvq --rounds 1 --codebooks 2 --units 32 --dim 32 --rows 600 --test-rows 100 --backends torch"),
    Row("lcm-base", "lcm_gpu --model lcm-base-1.6b", (
        Metric("Base-LCM of 1.6B: MFU", "none", r"MFU ([\d.]+%)", r"\1"),
    ), 90, "lcm_gpu --small"),
    Row("lcm-one-tower", "lcm_gpu --model lcm-one-tower-1.6b", (
        Metric("One-Tower of 1.6B: MFU", "none", r"MFU ([\d.]+%)", r"\1"),
    ), 90, "lcm_gpu --small"),
    Row("lcm-quant", "lcm_gpu --model lcm-quant-c-1.6b", (
        Metric("Quant-LCM of 1.6B: MFU", "none", r"MFU ([\d.]+%)", r"\1"),
    ), 90, "lcm_gpu --small"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the table; 1 if a row or a test failed."""
    options = _parser().parse_args(arguments)
    end = time.monotonic() + options.seconds
    told: dict[str, str] = {}  # row → what it printed, or why it did not
    failed = []
    for row in ROWS:
        if row.name not in options.only:
            continue
        left = end - time.monotonic() - (0 if options.no_tests else TEST_SECONDS)
        if left < min(30.0, row.limit):
            told[row.name] = "not measured: no time was left"
            print(f"── {row.name}: {told[row.name]}", flush=True)
            continue
        words = (row.small if options.small else row.command).split()
        command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:], "--device", options.device]
        told[row.name], well = run(row.name, command, left if options.small else min(row.limit, left))
        failed += [] if well else [row.name]
        Path(options.out).write_text(table(told), encoding="utf-8")
    if not options.no_tests:
        os.environ["PIPELINE_TEST_DEVICE"] = options.device
        told["tests"], well = run("tests", marked_tests(), max(30.0, end - time.monotonic()))
        failed += [] if well else ["tests"]
    done = table(told) + (f"\nfailed: {', '.join(failed)}\n" if failed else "\neverything ran\n")
    Path(options.out).write_text(done, encoding="utf-8")
    print(f"\n{done}", flush=True)
    return 1 if failed else 0


def run(name: str, command: Sequence[str], limit: float) -> tuple[str, bool]:
    """Return what a command prints, shown as it comes, and whether it ended well; killed with its children at the
    limit.
    """
    print(f"── {name}: {' '.join(command[1:])} (at most {limit:.0f} s)", flush=True)
    start, lines = time.monotonic(), list[str]()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    late = threading.Timer(limit, _kill, [process])
    late.start()
    try:
        assert process.stdout
        for line in process.stdout:
            lines.append(line)
            print(line, end="", flush=True)
        code = process.wait()
    finally:
        late.cancel()
        _kill(process)
    seconds = time.monotonic() - start
    print(f"── {name}: {f'exit code {code}' if code else 'done'} after {seconds:.0f} s", flush=True)
    return "".join(lines), code == 0


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def table(told: dict[str, str]) -> str:
    """Return the table of GPU.md, from what the rows printed."""
    device = next((found[1] for text in told.values() if (found := re.search(r"(?m)^(.*?); torch \S+", text))), "")
    lines = ["| row | goal | command | figure | device | date |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        for figure in row.figures if row.name in told else ():
            text = told[row.name]
            value = text if text.startswith("not measured") else figure.found(text) or FAILED
            cells = (figure.row, figure.goal, f"`{row.command}`", value, device, date.today().isoformat())
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def marked_tests() -> list[str]:
    """Return the command that runs the tests marked `gpu`: pytest, or its stand-in where pytest is not installed.

    tests/conftest.py is left out, since it needs pydantic.
    """
    files = [str(one.relative_to(ROOT)) for one in sorted((ROOT / "tests").rglob("test_*_gpu.py"))]
    if importlib.util.find_spec("pytest") is None:
        return [sys.executable, "-m", "benchmarks.marked_tests", *files]
    return [sys.executable, "-m", "pytest", "-v", "--noconftest", "-p", "benchmarks", "-m", "gpu", *files]


def _parser() -> argparse.ArgumentParser:
    parser = command_line("gpu_all", "Measure every row of GPU.md and run the tests for GPUs.")
    parser.add_argument("--out", required=True, help="the file that the table goes to")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="very small networks, to see that everything runs")
    parser.add_argument("--only", nargs="+", default=[row.name for row in ROWS], choices=[row.name for row in ROWS])
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all rows and tests")
    return parser


if __name__ == "__main__":
    sys.exit(main())
