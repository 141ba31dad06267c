"""Runs as a Ray job: the cluster's head gets the resolved corpus.yaml and a command line, and is followed from here.

The driver runs on the cluster, so this machine may be switched off. Nothing is pickled, and no credentials are sent: a
token of the dashboard comes from the environment (RAY_AUTH_MODE, RAY_AUTH_TOKEN), those of object stores from the
cluster's.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launchers.ray_cluster import TOKEN_HINT, checked_address
from pipeline.base.errors import ConfigError
from pipeline.config.run_config import RunConfig
from pipeline.run.options import RunOptions

INTERRUPTED = 130
_PIPELINE = ("python", "-m", "pipeline.cli")
_ON_CLUSTER = ("corpus.yaml", "--launcher", "ray", "--address", "auto")


def run_as_job(console: Console, config: RunConfig, command: list[str]) -> int:
    """Submit a command over this corpus.yaml to a Ray cluster, and follow it.

    Ctrl-C ends only the following; the run goes on.

    Args:
        console: where the job's output is shown.
        config: the configuration, which travels with the job.
        command: the command line.

    Returns:
        The exit code of the command.

    Raises:
        ConfigError: if no dashboard answers at the address, or it refuses.
    """
    from ray.job_submission import JobSubmissionClient

    logging.getLogger(JobSubmissionClient.__module__).setLevel(logging.WARNING)  # its lines would stand in the output
    address = checked_address(config)
    try:
        client = JobSubmissionClient(address)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "corpus.yaml").write_text(config.as_yaml(), "utf-8")
            job = client.submit_job(entrypoint=shlex.join(command), runtime_env={"working_dir": folder})
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"launcher.address: cannot submit a job at {address} ({said}); give the address of the cluster's "
            f"dashboard, and its token: {TOKEN_HINT}"
        ) from error
    console.print(f"submitted as {job} to {address}", highlight=False)

    async def follow() -> None:
        async for lines in client.tail_job_logs(job):
            console.print(Text.from_ansi(lines), end="")

    try:
        asyncio.run(follow())
        info = client.get_job_info(job)
    except KeyboardInterrupt:
        console.print(
            f"No longer followed; the run goes on.\n  ray job logs --address {address} --follow {job}   follow it\n"
            f"  ray job stop --address {address} {job}            stop it; finished work is kept",
            highlight=False,
        )
        return INTERRUPTED
    console.print(f"{job}: {info.status}", highlight=False)
    return 0 if str(info.status) == "SUCCEEDED" else info.driver_exit_code or 1


def run_command(options: RunOptions) -> list[str]:
    """Return the `pipeline run` command for the cluster's head."""
    flags = ["--only", options.only] if options.only else []
    flags += ["--until", options.until] if options.until else []
    flags += [word for name in options.refit for word in ("--refit", name)]
    flags += ["--take-over"] if options.take_over else []
    flags += ["--accept-removal"] if options.accept_removal else []
    flags += ["--strict"] if options.strict else []
    return [*_PIPELINE, "run", *_ON_CLUSTER, *flags]


def train_command(fresh: bool) -> list[str]:
    """Return the `pipeline train` command for the cluster's head."""
    return [*_PIPELINE, "train", *_ON_CLUSTER, *(["--fresh"] if fresh else [])]
