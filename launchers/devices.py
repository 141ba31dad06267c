"""The devices of this machine, and the CPUs, processes and threads that this process may use."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import resource
import sys
from pathlib import Path
from typing import Any

from stages.cores import cores

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


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


def threads_left() -> float:
    """Return how many more processes and threads the system allows this process: by the limits of its control groups
    (`pids.max`), and of its user (`ulimit -u`), who is not root. Infinite where no limit is known. Linux only.
    """
    found = [math.inf]
    with contextlib.suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controller, path = line.split(":", 2)
            if controller in ("", "pids"):  # of version 2, or 1
                folder = CGROUPS / controller / path.lstrip("/")
                found += [_left_in(one) for one in (folder, *folder.parents)]
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and os.getuid() and sys.platform == "linux":  # elsewhere, of processes alone
        psutil: Any = importlib.import_module("psutil")  # which Ray brings
        every = (one.info for one in psutil.process_iter(["uids", "num_threads"]))
        mine = [one["num_threads"] or 0 for one in every if one["uids"] and one["uids"].real == os.getuid()]
        found.append(limit - sum(mine))
    return max(0, min(found))


def _left_in(group: Path) -> float:
    try:
        return int((group / "pids.max").read_text()) - int((group / "pids.current").read_text())
    except (OSError, ValueError):  # there is no such group, or no limit ("max")
        return math.inf
