"""Runs on the SLURM of tests/slurm/start.sh: how tests configure them, and wait for their end."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

SLURM: dict[str, Any] = {
    "kind": "slurm",
    "inside": "inline",
    "tasks": 2,
    "chunks_per_claim": 1,
    "lease_seconds": 4,
    "cpus_per_task": 1,
    "memory": "2G",
    "time": "10",
}


def ended(output: Path, seconds: float = 900) -> dict[str, Any]:
    """The summary of the newest run, once it is there and no job is left."""
    deadline = time.monotonic() + seconds
    while True:
        newest = max(output.glob("runs/*"))
        if (newest / "summary.json").exists() and not jobs_of(output):
            summary: dict[str, Any] = json.loads((newest / "summary.json").read_text())
            return summary
        assert time.monotonic() < deadline, f"the run has not ended in {seconds} s:\n{logs(output)}"
        assert jobs_of(output) or (newest / "summary.json").exists(), f"no job is left:\n{logs(output)}"
        time.sleep(0.5)


def jobs_of(output: Path) -> list[str]:
    """Jobs and tasks of a corpus that run or wait: their ids. SLURM shows where their logs go."""
    shown = subprocess.run(["squeue", "-h", "-r", "-o", "%i|%o|%Z"], capture_output=True, text=True, check=True)
    return [line.partition("|")[0] for line in shown.stdout.splitlines() if str(output) in line]


def running(output: Path) -> list[str]:
    """Those of `jobs_of` that run."""
    mine = set(jobs_of(output))
    shown = subprocess.run(["squeue", "-h", "-r", "-t", "R", "-o", "%i"], capture_output=True, text=True, check=True)
    return sorted(mine & set(shown.stdout.split()))


def preempt_a_task(output: Path) -> None:
    """Have SLURM take a node away from a task that works, as for a job of more weight."""
    deadline = time.monotonic() + 600  # of a busy machine
    while True:
        assert time.monotonic() < deadline, logs(output)
        tasks = [task for task in running(output) if "_" in task] if list(output.glob("receipts/*/*/*")) else []
        if tasks and not subprocess.run(["scontrol", "requeue", tasks[0]], capture_output=True).returncode:
            return
        time.sleep(0.2)


def logs(output: Path) -> str:
    """Ends of all logs."""
    return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in sorted(output.glob("jobs/*/*.log")))
