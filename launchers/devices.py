"""The devices of this machine, and the CPUs that this process may use."""

from __future__ import annotations

import os

from stages.cores import cores


def devices() -> list[str]:
    """Return `cuda` once for each GPU, or one `cpu`."""
    import torch

    return ["cuda"] * torch.cuda.device_count() if torch.cuda.is_available() else ["cpu"]


def allowed_cpus() -> int:
    """Return how many CPUs this process may use: in a SLURM job, or if it is bound to some, fewer than the
    machine has.
    """
    present = os.cpu_count() or 1
    given = int(os.environ.get("SLURM_CPUS_ON_NODE", present))  # not every site binds jobs to their CPUs
    return min(given, cores())
