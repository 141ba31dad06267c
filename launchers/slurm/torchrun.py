"""Runs one program on all nodes of a SLURM job: srun starts torchrun on each, which starts one process per GPU.

Only command lines go from node to node. The outcome is judged by the steps that are on disk: after a failure the
processes are started again in the same job, as long as that leads to new steps; near the time limit the job is queued
again. Preemption, `scontrol requeue` and a lost node do that by themselves. A program must save its work and end with
code 0 when it gets `WARNING` or SIGTERM; for the latter it has the site's KillWait (30 s by default).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from launchers.restart import RestartPolicy
from launchers.slurm import jobs
from launchers.slurm.sbatch import WARNING
from launchers.slurm.site import ask
from pipeline.base.errors import CorpusError
from pipeline.training.status import TrainingStatus

SHUTDOWN_SECONDS = 300  # seconds that torchrun gives its processes after SIGTERM; SLURM gives less
# the warning would kill torchrun and its processes; it stays ignored until a process handles it
_DEAF = f"trap '' {WARNING.name.removeprefix('SIG')}; exec \"$@\""


def run_in_job(
    console: Console, program: Sequence[str], processes: int | None, look: Callable[[], TrainingStatus]
) -> None:
    """Run `-m module arguments …` in `processes` processes per node (default: one per GPU) until `look` says it is
    finished.

    Returns early if SLURM ends this job. Raises `CorpusError` if repeated starts lead to no new step.
    """
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))  # the processes get it too
    policy = RestartPolicy(look)
    while True:
        before = look()
        code = subprocess.call(srun(program, processes))
        now = look()
        if now.finished or ended:
            return
        if code:
            now = policy.lost(f"srun ended with code {code}")
            console.print(f"a process was lost; starting again from step {now.steps}", highlight=False)
        elif now.steps == before.steps:
            raise CorpusError(f"launcher.time is too short for a step and its checkpoint, at step {now.steps}")
        else:
            console.print(f"near the time limit, at step {now.steps}: queued again", highlight=False)
            jobs.requeue()
            return


def srun(program: Sequence[str], processes: int | None) -> list[str]:
    """Return the command line for this process's job. Port 0: any free port, on a single node."""
    nodes = ask("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
    each = processes or int(os.environ.get("SLURM_GPUS_ON_NODE") or 1)
    job = os.environ["SLURM_JOB_ID"]
    address = ["--rdzv-endpoint", f"{nodes[0]}:{20_000 + int(job) % 10_000}"]
    if len(nodes) == 1:
        address = ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")  # srun ignores the job's value
    return [
        "srun", f"--nodes={len(nodes)}", "--ntasks-per-node=1", "--cpu-bind=none", "--kill-on-bad-exit=1",
        *([f"--cpus-per-task={cpus}"] if cpus else []), "bash", "-c", _DEAF, "torchrun",
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(nodes)), "--nproc-per-node", str(each),
        "--rdzv-backend", "c10d", "--rdzv-id", f"{job}-{jobs.restarts()}", *address,
        "--max-restarts", "0", "--shutdown-timeout", str(SHUTDOWN_SECONDS), *program,
    ]  # fmt: skip
