"""SLURM jobs: submits a command line, alone or as arrays; asks about jobs and cancels them; and describes the job of
this process.

Preemption, `scontrol requeue` and `scancel` send SIGTERM to all processes of a job, and SIGKILL after the site's
KillWait (30 s by default); about two minutes before the time limit only the worker gets `sbatch.WARNING`. SLURM
restarts a preempted task by itself; at the time limit a task asks for it (`requeue`).

A job gets the environment of the user who submits it (SLURM carries it; it is not in the script), so credentials must
be there. Job states are for people to look at: progress is judged by receipts and leases.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from launchers.slurm.sbatch import SbatchScript, check_options, options
from launchers.slurm.site import Site, SlurmError, ask, printed, site
from pipeline.base.errors import ConfigError
from pipeline.config.launcher import LauncherSettings, seconds_of
from pipeline.monitor.run_status import OVER
from pipeline.storage import retry

JOBS_AT_ONCE = 1000  # that are named on one command line
_end: float | None = None  # end of this job's time by the monotonic clock; None: not asked yet


def check(settings: LauncherSettings, nodes: int | None = None) -> None:
    """Check whether this site would accept the jobs of these settings. Submits nothing.

    `nodes`: those of a job whose command runs srun on them, in place of array tasks.

    Raises ConfigError, with SLURM's own words, if there is no SLURM here, or it refuses partition, time limit, account,
    qos, constraint, resources or options.
    """
    found = site()
    check_options(settings)
    _check_partition(found, "partition", settings.partition)
    _check_partition(found, "gate_partition", settings.gate_partition or settings.partition)
    limit = found.limit(settings.partition)
    if seconds_of(settings.time) > limit:
        raise ConfigError(
            f"launcher.time {settings.time} is above the limit of partition "
            f"{', '.join(found.asked(settings.partition))}, {limit / 60:.0f} minutes; "
            "give a shorter one (a task that reaches it is queued again and goes on)"
        )
    for small in (False, True):
        asked = options(settings, found, small) | ({} if small else _spread(nodes))
        tasks = None if small or nodes or not found.max_array_size else min(settings.tasks, found.max_array_size)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "check.sh"
            script.write_text(SbatchScript(["true"], Path(folder), "check", asked, tasks=tasks).text())
            try:
                ask("sbatch", "--test-only", str(script))
            except SlurmError as error:
                what = "the small jobs between phases" if small else "the jobs"
                shown = " ".join(f"--{key}={value}" for key, value in asked.items())
                raise ConfigError(
                    f"SLURM refuses {what} that the section launcher describes. {error}. Asked for: {shown}. "
                    "See what there is: sinfo -o '%R %T %l %c %m %G %f' (nodes that are down count as none)"
                ) from error


def _check_partition(found: Site, key: str, partition: str | None) -> None:
    for name in found.asked(partition):
        if name not in found.partitions:
            what = f"launcher.{key} {name!r} does not exist" if name else "there is no default partition"
            raise ConfigError(f"{what} on cluster {found.cluster}; its partitions: {', '.join(found.partitions)}")


def describe(settings: LauncherSettings | None) -> str:
    """Describe this SLURM in one line; with settings, after `check`. Raises ConfigError as that does."""
    if settings:
        check(settings)
    found = site()
    limits = [f"{name} ({_time(limit)})" for name, limit in found.partitions.items()]
    facts = [
        f"{found.version}, cluster {found.cluster}",
        f"partitions {', '.join(limits)}, by default {found.default_partition or 'none'}",
        f"arrays of up to {found.max_array_size} tasks" if found.max_array_size else "no arrays: a job for each task",
        "keeps accounts" if found.accounting else "keeps no accounts, so the end of old jobs is not known",
    ]
    return "; ".join([*facts, "takes the jobs of this file"] if settings else facts)


def _time(seconds: float) -> str:
    if seconds == math.inf:
        return "no limit"
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"


def submit(
    command: Sequence[str],
    settings: LauncherSettings,
    folder: Path,
    name: str,
    *,
    tasks: int | None = None,
    after: Sequence[str] = (),
    small: bool = False,
    nodes: int | None = None,
    hold: bool = False,
) -> tuple[str, ...]:
    """Queue a command: one job, or `tasks` array tasks, in as many arrays as the site's MaxArraySize requires.

    Where arrays are switched off, each task is a job, and `array_parallelism` says how many there are. A job that
    queues others waits while SLURM takes none, as long as it waits for a store.

    Args:
        command: the command line.
        settings: the section `launcher`.
        folder: gets scripts and logs, and is made private (0700); all nodes must see it.
        name: the name of the job.
        tasks: the number of array tasks; None for one job.
        after: job ids; the job starts when all of them are over, however they ended.
        small: whether to ask for one CPU, 2 GB, no GPU, and an hour at most.
        nodes: the nodes of a job whose command runs srun on them; the time limit's warning goes to what srun runs.
        hold: whether it waits for `held` to let it start.

    Returns:
        The job ids.

    Raises:
        SlurmError: with SLURM's words, a `SlurmAwayError` if it may take the job later; then nothing stays queued.
        ConfigError: for a folder whose name SLURM would misread.
    """
    folder = folder.absolute()
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    patience = retry.patience() if _this_job() else 0.0
    found = site(patience)
    asked = options(settings, found, small) | _spread(nodes) | ({"hold": True} if hold else {})
    jobs: list[str] = []
    if tasks and not found.max_array_size:
        tasks = min(tasks, settings.array_parallelism or tasks)
    for size in _arrays(tasks, found.max_array_size):
        at_once = settings.array_parallelism
        if size and tasks and at_once:  # the limit of all arrays together
            at_once = max(1, at_once * size // tasks)
        script = SbatchScript(command, folder, name, asked, setup=settings.setup, tasks=size, at_once=at_once,
                        after=after, to_steps=bool(nodes))  # fmt: skip
        try:
            jobs.append(script.send(patience))
        except BaseException:
            with contextlib.suppress(SlurmError):  # the first error is the one to report
                cancel(jobs)
            raise
    return tuple(jobs)


@contextlib.contextmanager
def held(job: str, settings: LauncherSettings) -> Iterator[None]:
    """Let a job that was queued with `hold` start after the `with` block; cancel it if the block fails.

    It stays held if `settings` say so. Raises `SlurmError` if SLURM does not let it start.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(SlurmError):  # the first error is the one to report
            cancel([job])
        raise
    if settings.sbatch.get("hold"):
        return
    try:
        ask("scontrol", "release", job)
    except SlurmError as error:
        raise SlurmError(
            f"job {job} is queued and held: {error}; `scontrol release {job}` lets it start, `scancel {job}` ends it"
        ) from error


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` for a folder whose name SLURM would misread in the path of a log."""
    if "%" in str(folder.absolute()):
        raise ConfigError(f"{folder}: SLURM reads % in the path of a log as a pattern; give another launcher.folder")


def _spread(nodes: int | None) -> dict[str, int]:
    """Return what a job asks for whose command runs srun on so many nodes."""
    return {"nodes": nodes, "ntasks-per-node": 1} if nodes else {}


def _arrays(tasks: int | None, most: int) -> Iterator[int | None]:
    """Yield sizes of arrays of about equal size; None: a job that is no array. `most`: 0 if there are no arrays."""
    if tasks is None or not most:
        yield from [None] * (tasks or 1)
        return
    count = -(-tasks // most)
    for index in range(count):
        yield tasks // count + (index < tasks % count)


def states(jobs: Sequence[str]) -> dict[str, str]:
    """Return job or task id ("123", "123_4") → SLURM's word for its state, and why it waits: "PENDING (Resources)".

    One call of squeue. Jobs that it does not list are looked up in SLURM's accounting if the site keeps it, and left
    out if SLURM has forgotten them. Raises SlurmError if SLURM does not answer, or does not say how a job is.
    """
    found, gone, said = _squeue(jobs)
    if gone:
        with contextlib.suppress(SlurmError):  # no accounting here
            for some in _at_once(gone):
                past = _states_in(ask("sacct", "-n", "-P", "-X", "-j", ",".join(some), "-o", "JobID,State"), some)
                found |= past
            gone = _without(gone, found)
    _check_forgotten(gone, said)
    return found


def alive(jobs: Sequence[str]) -> bool:
    """Return whether any of these jobs still runs or waits. Raises SlurmError if SLURM does not say so of all."""
    found, gone, said = _squeue(jobs)
    if any(state.split(" ")[0] not in OVER for state in found.values()):
        return True
    _check_forgotten(gone, said)
    return False


def _squeue(jobs: Sequence[str]) -> tuple[dict[str, str], list[str], str]:
    """Return the states of the jobs that squeue lists, the jobs that it does not list, and what it printed."""
    said = ""
    for some in _at_once(jobs):
        try:
            said += ask("squeue", "--noheader", "--all", "--array", "--states=all", "--format=%i|%T|%r",
                        "--jobs", ",".join(some))  # fmt: skip
        except SlurmError as error:
            if "Invalid job id" not in str(error):  # the only job asked for, which SLURM has forgotten
                raise
    found = _states_in(said, jobs)
    return found, _without(jobs, found), said


def _states_in(said: str, jobs: Sequence[str]) -> dict[str, str]:
    """Return the states in lines `id|state` and `id|state|reason`; others, such as a site's notices, are ignored."""
    found, asked = {}, set(jobs)
    for line in said.splitlines():
        task, _, rest = line.partition("|")
        state, _, reason = rest.partition("|")
        if _job_of(task) in asked and state:
            word = state.split(" ")[0]  # of "CANCELLED by 1000"
            found[task] = f"{word} ({reason})" if word == "PENDING" and reason not in ("", "None") else word
    return found


def _without(jobs: Sequence[str], found: Iterable[str]) -> list[str]:
    known = {_job_of(task) for task in found}
    return [job for job in jobs if job not in known]


def _job_of(task: str) -> str:
    """Return the job of "123", "123_4", "123_[4-9]" and "123+0"."""
    return re.split(r"[_+]", task, maxsplit=1)[0]


def _check_forgotten(jobs: Sequence[str], said: str) -> None:
    """Raise SlurmError unless SLURM says that it does not know these jobs: that a list lacks them proves nothing.

    `said`: what squeue printed.
    """
    for job in jobs:
        try:
            ask("scontrol", "--all", "show", "job", job)
        except SlurmError as error:
            if "Invalid job id" in str(error):
                continue
            raise
        raise SlurmError(f"squeue does not list job {job}, which SLURM has; {printed(said)}")


def cancel(jobs: Sequence[str]) -> None:
    """Cancel these jobs, waiting or running; finished ones stay as they are."""
    for some in _at_once(jobs):
        ask("scancel", *some)


def _at_once(jobs: Sequence[str]) -> list[Sequence[str]]:
    """Split jobs into as many as one command line takes."""
    return [jobs[start : start + JOBS_AT_ONCE] for start in range(0, len(jobs), JOBS_AT_ONCE)]


def log_files(folder: Path, job: str) -> list[Path]:
    """Return the logs of a task ("123_4", or as `this_task` names it), or of all tasks of a job ("123")."""
    job = job.removeprefix("slurm-")
    return sorted([*folder.glob(f"{job}.log"), *folder.glob(f"{job}_*.log")])


def _this_job() -> str | None:
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    # SLURM_JOB_ID of an array's last task is the id of the whole array
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def keep_to_given_cpus() -> None:
    """Use as many threads as SLURM gave this job CPUs, because not every site binds jobs. Call it before torch is
    loaded.

    Two tasks of one CPU that both started threads for two did less together than one of them alone.
    """
    given = os.environ.get("SLURM_CPUS_ON_NODE")
    if given:
        os.environ.setdefault("OMP_NUM_THREADS", given)


def this_task() -> str | None:
    """Return the array task or job of this process: "slurm-123_4", "slurm-123"; None outside of SLURM."""
    job = _this_job()
    return f"slurm-{job}" if job else None


def restarts() -> int:
    """Return how many times this task has been started before."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def seconds_left() -> float | None:
    """Return the seconds until the time limit of this process's job; SLURM is asked once.

    None outside of SLURM, without a limit, and as long as SLURM does not answer (the next call asks again).
    """
    global _end
    job = _this_job()
    if _end is None and job:
        try:
            _end = time.monotonic() + seconds_of(ask("squeue", "-h", "-j", job, "-o", "%L").strip())
        except (
            SlurmError,
            ValueError,
        ):  # a restart of the controller must not end a worker; `WARNING` comes anyway
            return None
    return None if _end in (None, float("inf")) else _end - time.monotonic()


def requeue(delay: float = 0.0) -> None:
    """Queue this task again, with its id and its log; SLURM then ends this process.

    `delay`: seconds before it may start. SLURM takes the time only of a job that waits, so this process, which it has
    just told to end, gives it before it ends. Raises SlurmError if the job cannot be queued again.
    """
    job = _this_job()
    if job is None:
        raise SlurmError("this process is not in a SLURM job, so there is nothing to queue again")
    if not delay:
        ask("scontrol", "requeue", job)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ask("scontrol", "requeue", job)
    ask("scontrol", "update", f"JobId={job}", f"StartTime=now+{math.ceil(delay)}")
    sys.exit(0)
