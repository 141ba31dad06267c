"""Writes the script for sbatch: options from the section `launcher`, set-up lines, and one command line.

submitit writes it, without a pickle. The command replaces the script's shell, without srun. So SLURM's warning before
the time limit (`WARNING`) reaches only the worker itself; under srun its children would get it too, and die of it. A
job of several nodes starts srun itself, and has the warning sent to what that runs (`to_steps`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from launchers.slurm.site import PAUSE, Site, SlurmAwayError, SlurmError, ask, printed
from pipeline.base.errors import ConfigError
from pipeline.config.launcher import LauncherSettings, seconds_of

WARNING = signal.SIGUSR2  # the time limit is near: release leases, `requeue`, end
WARNING_SECONDS = 120.0  # seconds before the time limit; SLURM may be up to a minute early
SMALL = {"cpus-per-task": 1, "mem": "2G", "gpus-per-node": None, "gres": None, "constraint": None}
SMALL_SECONDS = 3600.0
KEYS = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "gres": "gres",
    "gpus-per-node": "gpus_per_node", "cpus-per-task": "cpus_per_task", "mem": "memory", "time": "time",
}  # option of sbatch → key of the section  # fmt: skip
OURS = ("array", "chdir", "dependency", "error", "job-name", "no-requeue", "open-mode", "output", "parsable", "requeue",
        "signal", "test-only", "wait", "wrap")  # fmt: skip
_ENDS_A_LINE = r"\x00-\x1f\x7f\u0085\u2028\u2029"
_STRAY, _QUOTES = re.compile(f"[{_ENDS_A_LINE}]"), re.compile(f"[{_ENDS_A_LINE}\"'`]")
REFUSED = "Batch job submission failed"  # and the reason
FULL = "MaxSubmitJob"  # in the name of a limit that leaves room again when other jobs of the user are over
LATE_SECONDS = 3.0  # in which a job that SLURM took appears in its queue
RESOURCES = ("cores", "cpus", "exclusive", "gpu", "gres", "mem", "nodes", "ntasks", "sockets", "threads", "tres")


def check_options(settings: LauncherSettings) -> None:
    """Raise ConfigError if `launcher.sbatch` holds an option that has a setting of its own, or that users must
    not set.
    """
    values = settings.model_dump()
    named = (*KEYS.values(), "gate_partition", "folder")
    check_words({f"launcher.{key}": values[key] for key in named})
    check_words({f"launcher.sbatch.{key}": f"{key} {value}" for key, value in settings.sbatch.items()}, quoted=True)
    for key in settings.sbatch:
        option = key.replace("_", "-")
        if option in OURS:
            raise ConfigError(f"launcher.sbatch.{key}: the pipeline sets --{option} itself; leave it out")
        if option in KEYS:
            raise ConfigError(f"launcher.sbatch.{key}: give it as launcher.{KEYS[option]}")


def check_words(values: Mapping[str, object], quoted: bool = False) -> None:
    """Raise ConfigError for a value that would not stay on its line of the script.

    `values`: description → value. `quoted`: they may hold quotes.
    """
    for name, value in values.items():
        if found := (_STRAY if quoted else _QUOTES).search(str(value)):
            quotes = "" if quoted else "quotes, "
            raise ConfigError(
                f"{name} is {str(value)[:100]!r}, which holds {found[0]!r}; leave out {quotes}line ends and other "
                "control characters, which the script of a job cannot hold there"
            )


def options(settings: LauncherSettings, found: Site, small: bool = False) -> dict[str, Any]:
    """Return the options of sbatch that the user asks for.

    Args:
        settings: the section `launcher`.
        found: what the site allows.
        small: whether the job only decides what is next.

    Returns:
        Long name of an option → value.
    """
    asked: dict[str, Any] = {option: getattr(settings, key) for option, key in KEYS.items()}
    passed = {key.replace("_", "-"): value for key, value in settings.sbatch.items() if value is not False}
    if small:
        partition = settings.gate_partition or settings.partition
        seconds = min(seconds_of(settings.time), SMALL_SECONDS, found.limit(partition))
        asked |= {**SMALL, "partition": partition, "time": max(1, int(seconds // 60))}
        passed = {key: value for key, value in passed.items() if not key.startswith(RESOURCES)}
    return {key: value for key, value in asked.items() if value is not None} | passed


class SbatchScript(submitit.SlurmExecutor):
    """submitit's script for sbatch, for a command line instead of a pickle.

    Args:
        command: the command line.
        folder: the folder of scripts and logs.
        name: the name of the job.
        asked: long name of an option → value.
        setup: lines of shell that come before the command.
        tasks: the number of array tasks; None for one job.
        at_once: how many array tasks may run at the same time; None for all.
        after: job ids; the job starts when all of them are over.
        to_steps: whether the warning before the time limit goes to what srun runs, instead of to the script.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        name: str,
        asked: dict[str, Any],
        *,
        setup: Sequence[str] = (),
        tasks: int | None = None,
        at_once: int | None = None,
        after: Sequence[str] = (),
        to_steps: bool = False,
    ) -> None:
        check_words({"the name of the job": name, "the folder of the job": folder})
        check_words({f"--{key}": value for key, value in asked.items()}, quoted=True)
        super().__init__(folder)
        warning = min(WARNING_SECONDS, seconds_of(str(asked["time"])) / 4)
        more = {
            "output": folder / ("%j.log" if tasks is None else "%A_%a.log"),
            "requeue": True,
            "signal": f"{'' if to_steps else 'B:'}{WARNING.name.removeprefix('SIG')}@{warning:.0f}",
        }
        self.update_parameters(
            job_name=name,
            setup=list(setup),
            dependency=f"afterany:{':'.join(after)}" if after else None,
            array_parallelism=at_once or tasks or 1,
            additional_parameters={**asked, **more},
            stderr_to_stdout=True,
            use_srun=False,
            wckey=None,
        )
        if tasks is not None:
            self.parameters["map_count"] = tasks
        # PYTHONPATH is written out for sites that do not export the environment to jobs
        path = os.environ.get("PYTHONPATH")
        self.line = (f"export PYTHONPATH={shlex.quote(path)}\n" if path else "") + "exec " + shlex.join(command)

    def text(self) -> str:
        """Return the script."""
        return str(self._make_submission_file_text(self.line, ""))

    def send(self, patience: float = 0.0) -> str:
        """Submit the script, and return the job's id.

        SLURM may have taken a job although sbatch did not say so, because its answer was lost or it was interrupted.
        Such a job is found by its script: it is the one that was asked for, or it is cancelled.

        `patience`: for how many seconds to try again while SLURM does not take jobs, or a limit of queued jobs is full.

        Raises `SlurmAwayError` if it takes none for longer, or does not say whether it took this one; `SlurmError` with
        SLURM's words if it refuses it.
        """
        script = Path(self.folder).absolute() / f".submission_{uuid.uuid4().hex}.sh"
        script.write_text(self.text())
        with _cancelled_if_interrupted(script):
            job = self._send(script, time.monotonic() + patience)
            script.rename(script.with_name(f"{job}_submission.sh"))
        return job

    def _send(self, script: Path, until: float) -> str:
        name, again = self.parameters["job_name"], False
        while True:
            try:
                job = _number_in(ask("sbatch", str(script)))
            except SlurmError as error:
                problem, is_away, again = str(error), isinstance(error, SlurmAwayError), True
            else:
                if again:
                    _cancel_others(script, job)
                return job
            try:
                if found := _found(script, until, LATE_SECONDS if is_away or REFUSED not in problem else 0):
                    return found[0]
            except SlurmError as error:
                raise SlurmAwayError(
                    f"whether SLURM took job {name} is not known: {problem}, and {error}. Look for it: squeue --me"
                ) from error
            if time.monotonic() > until or not (is_away or FULL in problem):
                if is_away:
                    raise SlurmAwayError(f"SLURM does not take job {name} at present: {problem}")
                raise SlurmError(f"SLURM refuses job {name}: {problem}")
            time.sleep(PAUSE)


def jobs_of_script(script: Path) -> list[str]:
    """Return the ids of this user's jobs that were submitted as this very file, also of those that are just over."""
    said = ask("squeue", "--noheader", "--all", "--states=all", "--user", str(os.getuid()), "--format=%F|%o")
    lines = (line.strip().partition("|") for line in said.splitlines())
    return list(dict.fromkeys(job for job, _, command in lines if command == str(script)))


def _cancel_others(script: Path, job: str) -> None:
    """Cancel jobs of an earlier try, which SLURM took after all."""
    with contextlib.suppress(SlurmError):
        if others := [one for one in jobs_of_script(script) if one != job]:
            ask("scancel", *others)


def _number_in(said: str) -> str:
    """Return the id of the job that sbatch says it submitted, after whatever else a site prints."""
    found = re.findall(r"Submitted batch job ([0-9]+)", said)
    if not found:
        raise SlurmError(f"sbatch does not name the job, {printed(said)}")
    return str(found[-1])


def _found(script: Path, until: float, late: float) -> list[str]:
    """Return the jobs of a script, also those that SLURM shows up to `late` seconds later.

    Raises SlurmError if SLURM does not answer until `until`, by the monotonic clock.
    """
    answered = None
    while True:
        now = time.monotonic()
        try:
            found = jobs_of_script(script)
        except SlurmError:
            if now > until:
                raise
            time.sleep(PAUSE)
            continue
        answered = answered or now
        if found or now - answered >= late:
            return found
        time.sleep(0.5)


@contextlib.contextmanager
def _cancelled_if_interrupted(script: Path) -> Iterator[None]:
    """Cancel the job of a script if the `with` block is interrupted, as nobody else would know of it."""
    try:
        yield
    except SlurmError:
        raise
    except BaseException:
        with contextlib.suppress(SlurmError):
            if found := _found(script, time.monotonic(), LATE_SECONDS):
                ask("scancel", *found)
        raise
