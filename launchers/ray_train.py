"""Trains with Ray Train: one worker per GPU of the cluster; all of them are restarted when one is lost.

Ray starts the workers and joins them in a process group; checkpoints are this program's, so a new group resumes from
the newest one. Ray's own record of the run is stored beside them, and deleted afterwards. Cost: about ten seconds per
start.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow.fs
from ray.exceptions import RayError, RayTaskError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.callback import UserCallback
from ray.train.v2.api.config import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError
from rich.console import Console

from launchers.actor_pool import nodes_of_ray
from launchers.pools import Node
from launchers.ray_cluster import check_nodes, checked_address, joined
from launchers.restart import RestartPolicy
from pipeline.base.errors import ConfigError, CorpusError, PipelineError
from pipeline.config.run_config import RunConfig as Config
from pipeline.config.train import TrainSettings
from pipeline.storage.retry import filesystem
from pipeline.storage.store import Store
from pipeline.training.status import TrainingStatus, training_status

LOG_WIDTH = 160  # of what workers print
LOST = (  # errors of Ray that mean that the head, or this machine's part of the cluster, is gone
    "ActorUnavailableError", "LocalRayletDiedError", "NodeDiedError", "OwnerDiedError", "RaySystemError", "RpcError",
)  # fmt: skip


def spread(
    config: Config, console: Console, url: str, run: str, processes: int | None, begin: Callable[[int], None]
) -> bool:
    """Train on the cluster of a configuration until the model is done.

    Args:
        config: the configuration; `CorpusError` is raised if a node of its cluster cannot take part.
        console: where progress is shown.
        url: the corpus.
        run: the folder of the training.
        processes: how many processes train; None for one per GPU.
        begin: is told their number before they start; it may refuse.

    Returns:
        False: a request to stop this process is raised at once.
    """
    assert config.train
    before = signal.getsignal(signal.SIGINT)
    try:
        with joined(checked_address(config), show=True):
            check_nodes(config, run, ())
            wanted = scaling(nodes_of_ray(), processes)
            assert isinstance(wanted.num_workers, int)
            begin(wanted.num_workers)
            _fit(
                partial(_work, url, run, config.launcher.storage_patience),
                Store(url),
                config.train,
                wanted,
                partial(training_status, Store(url), run),
            )
    finally:
        signal.signal(signal.SIGINT, before)  # Ray takes it
    return False


def _work(url: str, run: str, patience: float) -> None:
    """Train in a worker."""
    from pipeline.training.worker import work

    work(Console(width=LOG_WIDTH), url, run, patience)


def _fit(
    work: Callable[[], None], store: Store, settings: TrainSettings, wanted: ScalingConfig,
    look: Callable[[], TrainingStatus],
) -> None:  # fmt: skip
    """Run `work` in the workers of the Ray that this process has joined, until it returns in all of them.

    `work` must be importable on all nodes. If it raises a `PipelineError`, that is raised here.
    """
    fs, root = filesystem(store.url)
    own = f"{settings.folder}/ray-{secrets.token_hex(3)}"
    backend = "cpu:gloo,cuda:nccl" if wanted.use_gpu else "gloo"
    config: Any = RunConfig(
        name=own.rpartition("/")[2],
        storage_path=f"{root}/{settings.folder}",
        storage_filesystem=pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs)),
        failure_config=FailureConfig(max_failures=-1),  # `_Judge` decides
        logging_config=LoggingConfig("ERROR"),
        callbacks=[_RestartJudge(RestartPolicy(look))],
    )
    trainer = TorchTrainer(
        work,
        scaling_config=wanted,
        torch_config=TorchConfig(backend, timeout_s=settings.timeout_seconds),
        run_config=config,
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        cause = error.controller_failure if isinstance(error, ControllerError) else error
        if isinstance(cause, PipelineError):
            raise cause from None
        raise CorpusError(f"training with Ray failed: {cause}") from error
    except RayTaskError:  # a fault of the code
        raise
    except RayError as error:
        said = str(error).strip()
        if type(error).__name__ not in LOST:
            raise CorpusError(f"training with Ray failed: {said} ({type(error).__name__})") from error
        said = said.split("\n")[0]
        raise CorpusError(
            f"the Ray cluster was lost ({said}); checkpoints are kept: once it is up again, run the same command again"
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            fs.rm(f"{root}/{own}", recursive=True)


def scaling(nodes: Sequence[Node], processes: int | None) -> ScalingConfig:
    """Return one worker per GPU, or as many processes as asked for. Raises `ConfigError` if there are fewer GPUs."""
    gpus = sum(node.gpus for node in nodes)
    if gpus and processes and processes > gpus:
        raise ConfigError(
            f"train.processes is {processes}, but the Ray cluster has {gpus} GPUs; leave it out for one per GPU"
        )
    workers = processes or gpus or 1
    if gpus:
        share = min(node.cpus / node.gpus for node in nodes if node.gpus)
    else:
        share = sum(node.cpus for node in nodes) / workers
    cpus = min(1.0, math.floor(share * 1000) / 1000)
    return ScalingConfig(
        num_workers=workers, use_gpu=gpus > 0, resources_per_worker={"CPU": cpus} | ({"GPU": 1.0} if gpus else {})
    )


class _RestartJudge(UserCallback):
    """Runs in Ray's controller: ends a training that cannot go on, instead of restarting its workers for ever."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy

    def after_exception(self, run_context: object, worker_exceptions: dict[int, Exception]) -> None:
        for one in worker_exceptions.values():
            if isinstance(one, PipelineError):
                raise one
        rank, first = next(iter(worker_exceptions.items()))
        self._policy.lost(f"worker {rank}: {first}")
