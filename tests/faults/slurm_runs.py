"""Runs on the SLURM of tests/slurm/start.sh: how tests configure them, and wait for their end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
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


def running(output: Path, node: str = "") -> list[str]:
    """Those of `jobs_of` that run, on one node if it is named."""
    mine = set(jobs_of(output))
    where = ["-w", node] if node else []
    command = ["squeue", "-h", "-r", "-t", "R", "-o", "%i", *where]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
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


def lose_a_node(node: str) -> None:
    """Kill all of a node of partition several at once, as a power failure does, and start it again without its jobs.

    SLURM is told that the node is lost, as a site's health check tells it; it would find that out in some minutes.
    """
    daemon = Path(f"/var/lib/pipeline-test-slurm/run/slurmd.{node}.pid")
    killed = [int(daemon.read_text())]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # processes end meanwhile
            if f"SLURMD_NODENAME={node}\0".encode() in (folder / "environ").read_bytes():
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                killed += [int(folder.name)]
                if (Path("/proc") / str(parent) / "comm").read_text() == "slurmstepd\n":
                    killed += [parent]
    for pid in dict.fromkeys(killed):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["scontrol", "update", f"node={node}", "state=down", "reason=lost"], check=True)
    subprocess.run([shutil.which("slurmd", path="/usr/sbin:/usr/bin") or "slurmd", "-N", node], check=True)


def logs(output: Path) -> str:
    """Ends of all logs."""
    return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in sorted(output.glob("jobs/*/*.log")))
