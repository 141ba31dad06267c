"""A decoding step alone, and beside what the CPU does for other parts: in threads of the same process, and in others.

    python -m benchmarks.beside                          24 layers, d=1024, ffn 8192; half a minute on a GPU
    python -m benchmarks.beside --device cpu --small     tiny networks, whose steps are short as a GPU's
    python -m benchmarks.beside --device cpu --small --apart     steps have a core of their own, as beside a GPU

Beside it two workers tokenise, make token lists, detokenise and compute BLEU, again and again, as `prepare` and
`finish` of two parts do. Threads hold the interpreter while they do so, and Python takes it from them after its switch
interval. The ways are timed in turns, so that what else the machine does meets all of them; figures are medians over
the rounds of a step's time, and of its ratio to the step alone in the same round. Processes that only count show what
the machine itself takes from a step when its other cores are busy: cores that share a clock, a cache or a real core.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks import command_line
from benchmarks.encode_gpu import FORMATS, LANGUAGE, SMALL, add_network_options, endless_decoder
from benchmarks.flops import Shape, wait
from benchmarks.worker_gpu import TOKENIZER, made_up_sentences
from launchers.actors import SWITCH_SECONDS
from stages.autobleu.bleu import sentence_bleu, sentence_statistics
from stages.batching import Tokens
from stages.device import describe, prepare_cuda
from stages.sonar.card import load_card
from stages.sonar.greedy import Greedy
from stages.sonar.ids import END
from stages.sonar.tokenizer import SonarTokenizer

LANG = "eng_Latn"
TEXT, COUNT = "text", "count"  # what processes do
DEFAULT_SECONDS = sys.getswitchinterval()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    if options.work:
        work = _work if options.work == TEXT else _count
        work(threading.Event(), lambda: print("ready", flush=True), options.cores)
        return
    if options.apart:
        own, *options.cores = sorted(os.sched_getaffinity(0))
        if not options.cores:
            raise SystemExit("--apart needs a second core, and this process may use one; leave it out")
        os.sched_setaffinity(0, {own})
        torch.set_num_threads(1)
    prepare_cuda(options.device)
    shape, vocab_size = (SMALL, 1000) if options.small else (Shape(), 256_206)
    decode = _decoder(options, shape, vocab_size)
    ways: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
        "alone": contextlib.nullcontext,
        "beside threads": lambda: _threads(options, DEFAULT_SECONDS),
        f"beside threads, switch interval {SWITCH_SECONDS * 1e6:.0f} µs": lambda: _threads(options, SWITCH_SECONDS),
    }
    times: dict[str, list[float]] = {}
    with _processes(options, TEXT) as beside, _processes(options, COUNT) as counting:
        ways |= {"beside processes": beside, "beside processes that only count": counting}
        decode()
        for _ in range(options.rounds):
            for name, way in ways.items():
                with way():
                    times.setdefault(name, []).append(decode())
    print(f"{describe(options.device)}; torch {torch.__version__}; {shape}, {options.rows} sentences a step")
    print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores{', apart' if options.apart else ''}")
    for name, seconds in times.items():
        ratio = statistics.median(one / alone for one, alone in zip(seconds, times["alone"], strict=True))
        print(f"a step {name}: {statistics.median(seconds) * 1e3:.2f} ms, {ratio - 1:+.1%}", flush=True)


def _decoder(options: argparse.Namespace, shape: Shape, vocab_size: int) -> Callable[[], float]:
    """Return what decodes a batch and returns the seconds of one step."""
    dtype = FORMATS[options.format]
    network = endless_decoder(shape, vocab_size, options.device, dtype, options.seed)
    embeddings = torch.randn(options.rows, shape.dim, device=options.device).to(dtype)
    prefixes = torch.tensor([[END, LANGUAGE]] * options.rows, device=options.device)
    limits = torch.full((options.rows,), options.steps)
    search = Greedy(network)  # keeps its CUDA graphs

    def decode() -> float:
        wait(options.device)
        start = time.perf_counter()
        search(embeddings, prefixes, limits)
        wait(options.device)
        seconds = time.perf_counter() - start
        return seconds / int(options.steps)

    return decode


def _work(stop: threading.Event, started: Callable[[], object], cores: Sequence[int]) -> None:
    """Do what the CPU does for parts of sentences, until it is told to stop. cores: of this thread, if not all."""
    if cores:
        os.sched_setaffinity(0, cores)
    tokenizer, texts = SonarTokenizer(load_card(TOKENIZER)), made_up_sentences(1000, 0)
    started()
    while not stop.is_set():
        lists = tokenizer.encode(texts, LANG)
        Tokens.of(lists)
        sentence_bleu(sentence_statistics(tokenizer.decode(lists), texts, LANG))


def _count(stop: threading.Event, started: Callable[[], object], cores: Sequence[int]) -> None:
    """Keep a core busy without memory."""
    if cores:
        os.sched_setaffinity(0, cores)
    started()
    number = 0
    while not stop.is_set():
        number += 1


@contextlib.contextmanager
def _threads(options: argparse.Namespace, interval: float) -> Iterator[None]:
    stop, started = threading.Event(), threading.Barrier(options.workers + 1)
    order = stop, started.wait, options.cores
    threads = [threading.Thread(target=_work, args=order) for _ in range(options.workers)]
    sys.setswitchinterval(interval)
    for thread in threads:
        thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(DEFAULT_SECONDS)


@contextlib.contextmanager
def _processes(
    options: argparse.Namespace, work: str
) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Start processes that work only while the context that this gives is entered."""
    command = [sys.executable, "-m", "benchmarks.beside", "--work", work, "--cores", *map(str, options.cores)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(options.workers)]

    def tell(sign: signal.Signals) -> None:
        for process in processes:
            process.send_signal(sign)

    @contextlib.contextmanager
    def running() -> Iterator[None]:
        tell(signal.SIGCONT)
        try:
            yield
        finally:
            tell(signal.SIGSTOP)

    try:
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n"
        tell(signal.SIGSTOP)
        yield running
    finally:
        tell(signal.SIGKILL)
        for process in processes:
            process.wait()


def _parser() -> argparse.ArgumentParser:
    parser = command_line("beside", "A decoding step alone, beside threads, and beside processes.")
    add_network_options(parser, rounds=5)
    parser.add_argument("--rows", type=int, default=64, help="sentences that are decoded together")
    parser.add_argument("--steps", type=int, default=64, help="steps of one decoding")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes beside it")
    parser.add_argument("--apart", action="store_true", help="on Linux: give the step a core of its own")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--work", choices=(TEXT, COUNT), help="only do the work beside the step, for ever")
    return parser


if __name__ == "__main__":
    main()
