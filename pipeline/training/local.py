"""Processes of a training on this machine: one per GPU, or as many as asked for on CPUs.

A single process trains right here. Several are started and watched by PyTorch's elastic agent: when one dies, the
others are ended within seconds, and the failed one is reported; starting again resumes from the newest checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import torch
from rich.console import Console
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.storage.retry import patience
from pipeline.storage.store import Store
from pipeline.training.status import failure_of
from pipeline.training.worker import RECORDED, SETTING, progress, work
from stages.cores import cores

SHUTDOWN_SECONDS = 300  # seconds for the present step and its checkpoint, when somebody asks to stop
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by torch's launcher, which leaves them so
ENDED = -signal.SIGTERM  # the code of a process that was ended because another one failed


MOST_ANYWAY = 4  # processes that any machine runs, as a first try of several does


def check_processes(processes: int | None, oversubscribe: bool = False) -> None:
    """Raise `ConfigError` for more processes than this machine has GPUs or, without any, CPUs.

    Without GPUs, `oversubscribe` allows them.
    """
    gpus, cpus = torch.cuda.device_count(), cores()
    if gpus and processes and processes > gpus:
        raise ConfigError(
            f"train.processes is {processes}, but this machine has {gpus} GPUs; leave it out for one per GPU"
        )
    most = max(cpus, MOST_ANYWAY)
    if not gpus and processes and processes > most and not oversubscribe:
        raise ConfigError(
            f"train.processes is {processes}, but this machine has {cpus} CPUs and no GPU, and each process loads the "
            f"model and a loader of its own; give at most {most}, or leave it out for one. If it is meant: --set "
            "train.oversubscribe=true"
        )


def here(console: Console, url: str, run: str, processes: int | None, begin: Callable[[int], None]) -> bool:
    """Train on this machine; return when the training is done, or saved after a request to stop.

    Args:
        console: where progress is shown.
        url: the corpus.
        run: the folder of the training.
        processes: how many processes train; None for one per GPU.
        begin: is told their number before they start; it may refuse.

    Returns:
        Whether a signal asked to stop, also if the training was done by then.

    Raises:
        CorpusError: if a process was killed or failed. What the processes recorded before they gave up is raised as it
            is: another start would fail in the same way.
        ConfigError: if the processes recorded that a setting is impossible.
    """
    count = processes or torch.cuda.device_count() or 1
    begin(count)
    if count == 1:
        return work(console, url, run)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        run_id=run.rpartition("/")[2],
        max_restarts=0,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    try:
        elastic_launch(config, sys.executable)("-m", "pipeline.training.worker", url, run, str(patience()))
    except SignalException:
        return True
    except ChildFailedError as error:
        codes, said = {one.exitcode for one in error.failures.values()}, failure_of(Store(url), run)
        if said and codes - {ENDED} <= {SETTING, RECORDED}:  # or the others recorded only that one was lost
            if SETTING in codes:
                raise ConfigError(said) from None
            raise CorpusError(said) from None
        rank, first = error.get_first_failure()
        how = f"was killed by signal {-first.exitcode}" if first.exitcode < 0 else f"ended with code {first.exitcode}"
        now = progress(Store(url), run)
        raise CorpusError(
            f"training stopped: process {rank} of {count} {how}, and the others were ended; what it said stands above. "
            f"Run the same command again: it goes on from step {now.steps}"
        ) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return False
