"""What a figure was measured on, and where tables are printed."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from rich.console import Console


def console() -> Console:
    """Return a console that is wide enough for the tables also when the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def describe_cpu() -> str:
    """Return `Intel(R) Xeon(R) Processor @ 2.80GHz, 2 CPUs, avx512`: what it says of itself, and what this process may
    use.
    """
    name, flags = platform.processor() or platform.machine(), set[str]()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = [line.partition(":") for line in information.read_text(encoding="utf-8").splitlines()]
        entries = {key.strip(): value.strip() for key, _, value in reversed(lines)}
        name, flags = entries.get("model name", name), set(entries.get("flags", "").split())
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return ", ".join([name, f"{len(os.sched_getaffinity(0))} CPUs", *known])
