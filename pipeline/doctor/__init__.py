"""Implements `pipeline doctor [CORPUS.YAML]`: whether this machine can run the pipeline, check by check, with
remedies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import ConfigError, visible
from pipeline.config.launcher import LauncherSettings
from pipeline.config.load import read_config
from pipeline.config.run_config import RunConfig
from pipeline.doctor import corpus, machine
from pipeline.doctor.checks import Check, Level, credentials, room
from pipeline.planning.checks import problems_of, sorted_mistakes
from stages.cards import CardError
from stages.fetch import cache_folder

MARKS: dict[Level, tuple[str, str]] = {
    "good": ("✓", "green"),
    "note": ("–", "dim"),
    "warn": ("!", "yellow"),
    "bad": ("✗", "bold red"),
}
StartRay = Callable[[], tuple[float, dict[str, float]]]
AskSlurm = Callable[[LauncherSettings | None], str]


def examine(path: Path | None, start_ray: StartRay | None, ask_slurm: AskSlurm | None = None) -> Iterator[Check]:
    """Yield all checks, each as soon as it is made.

    Args:
        path: a corpus.yaml, whose inputs, models and output are checked too; None to check the machine only.
        start_ray: starts Ray for a moment; None to check only whether it is installed.
        ask_slurm: asks SLURM for its partitions; None if there is no SLURM.

    Yields:
        A check with its verdict and what to do.
    """
    config: RunConfig | None = None
    config_check: Check | None = None
    if path is not None:
        config_check, config = _config(path)
    yield machine.python()
    yield from machine.libraries()
    if machine.loads("torch"):
        yield from machine.devices()
    yield machine.memory()
    yield machine.open_files()
    local = config is None or config.launcher.kind != "inline"
    yield machine.ray(start_ray if local else None, needed=local)
    yield machine.slurm(ask_slurm, config.launcher if config and config.launcher.kind == "slurm" else None)
    yield room("cache", cache_folder())
    urls = [config.output, *(one.path for one in config.input)] if config else []
    yield from credentials(urls)
    if config_check:
        yield config_check
    if config:
        yield from corpus.of_config(config)
    elif path is None:
        yield from corpus.models()
        yield from corpus.output(str(Path.cwd() / "runs"), dim=1024)


def _config(path: Path) -> tuple[Check, RunConfig | None]:
    notices: tuple[str, ...] = ()
    try:
        config, mistakes = read_config(path)
        found: list[str] = []
        if config is not None:
            found, _, notices = problems_of(config)
        if config is None or mistakes or found:  # the rest of a wrong file is not checked any further
            every = sorted_mistakes(mistakes, found)
            return Check("bad", "config", "\n".join(every)), None if mistakes else config
    except (ConfigError, CardError) as error:
        return Check("bad", "config", str(error)), None
    after = [name for name in ("scaler", "decoder", "train", "report") if getattr(config, name) is not None]
    stages = ", ".join(["segment", *(stage.name for stage in config.asked_stages()), *after])
    told = f"{path}: {visible(config.name)}, {stages}; launcher {config.launcher.kind}"
    return Check("warn" if notices else "good", "config", "\n".join([told, *notices])), config


def show(console: Console, checks: Iterator[Check]) -> bool:
    """Print each check as it comes. Returns True if nothing stops a run."""
    worst: list[Level] = []
    for check in checks:
        worst.append(check.level)
        mark, style = MARKS[check.level]
        line = Table.grid(padding=(0, 1))
        line.add_column(width=1)
        line.add_column(width=13)
        line.add_column(overflow="fold", ratio=1)
        line.add_row(Text(mark, style), Text(check.name, "bold" if check.level != "note" else "dim"), Text(check.found))
        if check.todo:
            line.add_row("", "", Text(f"→ {check.todo}", "" if check.level == "note" else style))
        console.print(line)
    bad, warned = worst.count("bad"), worst.count("warn")
    if bad:
        console.print(f"\n{bad} of {len(worst)} checks (✗) stop a run on this machine.", highlight=False)
    else:
        look = f"; {warned} to look at (!)" if warned else ""
        console.print(f"\nA run can work on this machine{look}.", highlight=False)
    return not bad
