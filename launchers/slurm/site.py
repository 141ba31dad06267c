"""Describes this site's SLURM: its partitions and limits, and whether it keeps accounts. Cost: two commands."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import time
from dataclasses import dataclass

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.base.formats import plain
from pipeline.config.launcher import seconds_of

PAUSE = 10.0  # seconds between two tries while SLURM is away
TIMEOUT = 120.0  # seconds; the commands themselves wait for a busy controller
PASSING = (  # in what SLURM's commands say while the controller is away, restarts or is too busy
    "Unable to contact", "Socket timed out", "Connection refused", "Connection timed out", "temporarily",
    "Zero Bytes were transmitted", "Message receive failure", "standby mode", "not responding",
)  # fmt: skip
OF_A_JOB = ("SLURM_", "SLURMD_", "SUBMITIT_", "SQUEUE_", "SINFO_", "SACCT_")


class SlurmError(PipelineError):
    """SLURM refused a request or did not answer; its own words are in the message."""


class SlurmAwayError(SlurmError):
    """SLURM does not answer, or takes no jobs at present: it may do so later."""


@dataclass(frozen=True)
class Site:
    """A SLURM that answers.

    `partitions`: name → the longest time limit in seconds. `max_array_size`: 0 where arrays are switched off.
    """

    version: str
    cluster: str
    partitions: dict[str, float]
    default_partition: str | None
    max_array_size: int
    accounting: bool

    def asked(self, partition: str | None) -> list[str]:
        """Return the names in a setting: one, several with commas, or the default."""
        return (partition or self.default_partition or "").split(",")

    def limit(self, partition: str | None) -> float:
        """Return the longest time limit that all these partitions allow, in seconds."""
        return min(self.partitions.get(name, math.inf) for name in self.asked(partition))


def inherited() -> list[str]:
    """Return names of environment variables that say which job this process is in, or how SLURM's commands should
    print.

    A job that submits others must hide its own: they would inherit its memory, CPUs and ids.
    """
    return [name for name in os.environ if name.startswith(OF_A_JOB) and name != "SLURM_CONF"]


def ask(*command: str) -> str:
    """Return the output of a SLURM command.

    Raises SlurmError with its message when it fails, SlurmAwayError if it may work later.
    """
    hidden = inherited()
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if command[0] != "sbatch":  # whose environment is that of the job
        environment["LC_ALL"] = "C"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, env=environment
        )
    except FileNotFoundError as error:
        inside = "; with launcher.container, its image must hold it" if "SLURM_JOB_ID" in os.environ else ""
        raise SlurmError(f"{command[0]}: no such command on this machine{inside}") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmAwayError(f"{command[0]}: no answer in {TIMEOUT:.0f} s") from error
    if done.returncode:
        said = words(done.stderr)
        kind = SlurmAwayError if any(one in said for one in PASSING) else SlurmError
        raise kind(f"{command[0]}: {said or f'it ended with code {done.returncode}'}")
    return done.stdout


def words(errors: str) -> str:
    """Return what SLURM's commands say on stderr, in one line."""
    lines = (line.partition(": ")[2].removeprefix("error: ") or line for line in errors.splitlines())
    return "; ".join(line.strip() for line in lines if line.strip() and not line.startswith("Try "))


def printed(said: str) -> str:
    """Return a phrase that tells what a command printed that was not understood."""
    return f"it printed {plain(said.strip(), 100)!r}" if said.strip() else "it printed nothing"


def site(patience: float = 0.0) -> Site:
    """Ask SLURM. Raises ConfigError, with what to do, if there is none or it does not answer.

    With `patience`, it is asked again for so many seconds, and then `SlurmAwayError` is raised.
    """
    if not shutil.which("sbatch"):
        raise ConfigError(
            "launcher is slurm, but there is no SLURM on this machine (no sbatch on PATH); "
            "run it on a login node of the cluster, or with --launcher local"
        )
    until = time.monotonic() + patience
    while True:
        try:
            said = ask("sinfo", "-a", "-h", "-o", "%R|%P|%l")
            lines = [line.partition("=") for line in ask("scontrol", "show", "config").splitlines()]
            break
        except SlurmError as error:
            if time.monotonic() >= until:
                kind = SlurmAwayError if patience else ConfigError
                raise kind(f"SLURM does not answer: {error}. Try again when it does (sinfo)") from error
            time.sleep(PAUSE)
    partitions, default = {}, None
    for line in said.splitlines():
        with contextlib.suppress(ValueError):  # a notice of the site
            name, shown, limit = line.split("|")
            partitions[name] = seconds_of(limit)
            default = default or (name if shown.endswith("*") else None)
    if not partitions:
        raise ConfigError(f"SLURM does not answer: sinfo names no partition; {printed(said)}")
    config = {key.strip(): value.strip() for key, _, value in lines}
    return Site(
        version=config.get("SLURM_VERSION", "?"),
        cluster=config.get("ClusterName", "?"),
        partitions=partitions,
        default_partition=default,
        max_array_size=int(config.get("MaxArraySize", "1001")),
        accounting=config.get("AccountingStorageType", "").endswith("slurmdbd"),
    )
