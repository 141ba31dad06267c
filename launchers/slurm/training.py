"""Trains on SLURM: one job over all its nodes, which is queued again until the model is trained.

The job is recorded beside the checkpoints (`job.json`), so that those who watch or cancel find it. It takes no lock:
training reads files of the corpus that never change.

In the job, srun starts torchrun on each node, which starts one process per GPU; only command lines go from node to
node. The outcome is judged by the steps that are on disk: after a failure the processes are started again in the same
job, as long as that leads to new steps; near the time limit, and at it, the job is queued again. Preemption, `scontrol
requeue` and a lost node do that by themselves. A program must save its work and end with code 0 when it gets `WARNING`,
which may be repeated, or SIGTERM; for the latter it has the site's KillWait (30 s by default).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console

from launchers.restart import RestartPolicy
from launchers.slurm import jobs
from launchers.slurm.sbatch import WARNING, WARNING_SECONDS
from launchers.slurm.site import SlurmError, ask
from launchers.slurm.submit import jobs_root, patience_of, pipeline_command, python
from pipeline.base.errors import CorpusError, PipelineError, StartError
from pipeline.base.messages import print_plain
from pipeline.config.run_config import RunConfig
from pipeline.coordination.identity import code_digest
from pipeline.corpus.reader import Corpus
from pipeline.monitor.trainings import how_it_ended, is_over
from pipeline.storage import retry
from pipeline.storage.remote import AwayError
from pipeline.storage.store import Store
from pipeline.training.status import (
    Job,
    TrainingStatus,
    clear_failure,
    read_job,
    record_failure,
    training_status,
    write_job,
)

POLL_SECONDS = 3.0
WARN_EVERY = 5.0  # seconds between warnings before the time limit
ENDS_WITHIN = 30.0  # seconds in which SLURM ends a job that it queues again, once it has ended srun
_SUBMITTED = """submitted as job {job}; the model is trained when {run}/model.json is there
  pipeline status {url}   how far it is
  pipeline cancel {url}   stop it; checkpoints are kept
  tail -f {log}"""


def submit(console: Console, config: RunConfig, fresh: bool = False) -> str | None:
    """Check a training, pin it, and queue its job.

    Args:
        console: where is shown what was queued.
        config: the configuration; `ConfigError` is raised if SLURM refuses its settings.
        fresh: whether what was trained under that name is deleted first.

    Returns:
        The folder of the training; None if the model is trained already.
    """
    from pipeline.training.run import alone, check, known_processes, say_trained, settings_of

    settings, store = settings_of(config), Corpus(config.output).store
    root = jobs_root(config.launcher.folder, config.output)
    folder = root / settings.folder.replace("/", "-")
    jobs.check(config.launcher, config.launcher.train_nodes)
    jobs.check_folder(folder)
    check_free(store, settings.folder)
    with alone(store, settings):
        checked = check(console, config, fresh)
        run, processes = checked.run, known_processes(config)
        if checked.is_trained:
            checked.begin(processes)
            say_trained(console, store, run)
            return None
        inside = ("--container", config.launcher.container) if config.launcher.container else ()
        command = pipeline_command(config.launcher.container, "training", store.url, run, *patience_of(config), *inside)
        (job,) = jobs.submit(
            command, config.launcher, folder,
            run.rpartition("/")[2], nodes=config.launcher.train_nodes, hold=True,
        )  # fmt: skip
        with jobs.held(job, config.launcher):  # SLURM took it: only now is deleted what was trained before
            checked.begin(processes)
            queued = Job(id=job, folder=str(folder), code=code_digest(), place=store.place, mark=store.mark)
            write_job(store, run, queued)
    said = _SUBMITTED.format(job=job, run=run, url=store.url, log=folder / f"{job}.log")
    print_plain(console, said)
    return run


def check_free(store: Store, run: str) -> None:
    """Raise `CorpusError` if a job trains it already."""
    found = read_job(store, run)
    if found and jobs.alive([found.id]):
        raise CorpusError(
            f"{store.url}/{run} is being trained by SLURM job {found.id}; wait for it (pipeline status {store.url}), "
            f"stop it (pipeline cancel {store.url}), or give train.name another name"
        )


def train_in_job(console: Console, url: str, run: str, container: str | None = None) -> None:
    """Do the work of the job of a training.

    Args:
        console: where progress is shown.
        url: the corpus.
        run: the folder of the training, where a failure is recorded.
        container: the command that runs another in a container, for what srun starts on the nodes.

    Raises:
        StartError: if the code differs from that with which the job was queued.
        AwayError: if the store was away for longer than this process waits; nothing is recorded then.
    """
    from launchers.devices import devices
    from pipeline.training.evaluation.end_of_training import evaluate_trained
    from pipeline.training.record import read_started

    store = Store(url)
    found = read_job(store, run)
    try:
        if found and found.code != code_digest():
            raise StartError(f"code is {code_digest()} here, {found.code} where this was submitted: install the same")
        clear_failure(store, run)  # of an earlier start of this job
        program = ["-m", "pipeline.training.worker", url, run, str(retry.patience())]
        command = srun(program, read_started(store, run).settings.processes, container)
        _run_in_job(console, command, partial(training_status, store, run))
    except AwayError:
        raise
    except PipelineError as error:
        record_failure(store, run, str(error))
        raise
    if training_status(store, run).finished:
        evaluate_trained(console, url, run, lambda: devices()[0])


def follow(console: Console, url: str, run: str) -> bool:
    """Follow a training until its job is over.

    Args:
        console: where progress is shown.
        url: the corpus.
        run: the folder of the training.

    Returns:
        Whether the model is trained.
    """
    store, shown, silent = Store(url), -1, ""
    while True:
        found = read_job(store, run)
        try:
            state, unknown = jobs.states([found.id]).get(found.id, "") if found else "", ""
        except SlurmError as error:  # the training goes on without it
            state, unknown = "", str(error)
        if unknown not in ("", silent):
            print_plain(console, f"SLURM does not report on its job: {unknown}")
        silent = unknown
        now = training_status(store, run)
        if now.steps != shown:
            shown = now.steps
            console.print(f"{run}: step {now.steps} of {now.of} is saved", markup=False, highlight=False)
        if is_over(state) and not unknown:
            if said := now.failed or how_it_ended(now, state):
                print_plain(console, said, style="red")
            return now.finished
        time.sleep(POLL_SECONDS)


SHUTDOWN_SECONDS = 300  # seconds that torchrun gives its processes after SIGTERM; SLURM gives less
# the warning would kill torchrun and its processes; it stays ignored until a process handles it
_DEAF = f"trap '' {WARNING.name.removeprefix('SIG')}; exec \"$@\""


def _run_in_job(console: Console, command: Sequence[str], look: Callable[[], TrainingStatus]) -> None:
    """Run a command, as `srun` gives it, until `look` says that the training is finished.

    Returns early if SLURM ends this job; at its time limit it is queued again, if that brought new steps. Raises
    `CorpusError` if repeated starts lead to no new step.
    """
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))  # the processes get it too
    policy, begun, left = RestartPolicy(look), look().steps, jobs.seconds_left()
    warning = min(WARNING_SECONDS, WARNING_SECONDS if left is None else left / 4)
    while True:
        before = look()
        code = _call(command, warning)
        now = look()
        if ended and now.steps > begun and not now.finished and _is_at_the_limit():
            try:
                jobs.requeue()
                console.print(f"launcher.time is over, at step {now.steps}: queued again", highlight=False)
            except SlurmError as error:
                print_plain(
                    console, f"launcher.time is over, at step {now.steps}; it could not be queued again: {error}"
                )
        if now.finished or ended:
            return
        if code:
            now = policy.lost(f"srun ended with code {code}")
            console.print(f"a process was lost; starting again from step {now.steps}", highlight=False)
        elif now.steps == before.steps:
            raise CorpusError(f"launcher.time is too short for a step and its checkpoint, at step {now.steps}")
        else:
            console.print(f"asked to stop, at step {now.steps}: queued again", highlight=False)
            _queue_again(ended)
            return


def _call(command: Sequence[str], warning: float) -> int:
    """Run srun, and return its code. From so many seconds before the time limit on, repeat SLURM's warning to what it
    runs, until it ends: a process that is still starting does not hear it.
    """
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait(WARN_EVERY)
            except subprocess.TimeoutExpired:
                left = jobs.seconds_left()
            if left is not None and left < warning:
                with contextlib.suppress(SlurmError):  # the next one may come through
                    ask("scancel", f"--signal={WARNING.name.removeprefix('SIG')}", os.environ["SLURM_JOB_ID"])


def _is_at_the_limit() -> bool:
    """Return whether SLURM says that it ends this job for its time limit, and not because somebody cancels it."""
    try:
        said = ask("squeue", "--noheader", "--format=%r", "--jobs", os.environ["SLURM_JOB_ID"])
    except SlurmError:
        return False
    return said.strip() == "TimeLimit"


def _queue_again(ended: Sequence[int]) -> None:
    """Queue this job again, unless SLURM does so itself, because a node was lost: then it ends this process as well.

    `ended`: gets an entry when this process is asked to end. Raises SlurmError if the job cannot be queued again.
    """
    try:
        jobs.requeue()
    except SlurmError:
        until = time.monotonic() + ENDS_WITHIN
        while not ended:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def srun(program: Sequence[str], processes: int | None, container: str | None = None) -> list[str]:
    """Return the command line that runs a program on the nodes of this process's job.

    Args:
        program: `-m module arguments …`.
        processes: the processes of a node; None for one per GPU.
        container: the command that runs another in a container on each node.

    Returns:
        The words of the command. Port 0 in it: any free port, on a single node.
    """
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
        *python(container), "-m", "torch.distributed.run", "--nnodes", str(len(nodes)), "--nproc-per-node", str(each),
        "--rdzv-backend", "c10d", "--rdzv-id", f"{job}-{jobs.restarts()}", *address,
        "--max-restarts", "0", "--shutdown-timeout", str(SHUTDOWN_SECONDS), *program,
    ]  # fmt: skip
