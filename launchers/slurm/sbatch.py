"""Writes the script for sbatch: options from the section `launcher`, set-up lines, and one command line.

submitit writes it and runs sbatch, without a pickle. The command replaces the script's shell, without srun. So SLURM's
warning before the time limit (`WARNING`) reaches only the worker itself; under srun its children would get it too, and
die of it. A job of several nodes starts srun itself, and has the warning sent to what that runs (`to_steps`).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from launchers.slurm.site import Site, SlurmError, inherited, words
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
    """submitit's way to sbatch, for a command line instead of a pickle.

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

    def send(self) -> str:
        """Submit the script, and return the job's id. Raises SlurmError with SLURM's words."""
        said = io.StringIO()  # submitit prints its errors as well
        try:
            with contextlib.redirect_stderr(said):
                return str(self._submit_command(self.line).job_id)
        except (FailedJobError, FailedSubmissionError) as error:
            raise SlurmError(f"SLURM refuses job {self.parameters['job_name']}: {words(str(error))}") from error

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["env", *(f"--unset={name}" for name in inherited()), "sbatch", str(submission_file_path)]
