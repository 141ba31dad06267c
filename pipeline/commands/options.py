"""What commands share: consoles, common arguments, and how they are evaluated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig
    from pipeline.corpus.reader import Corpus
    from pipeline.monitor.run_status import Cluster
    from pipeline.planning.checks import Checked

LOG_WIDTH = 160  # where the output is not a terminal
out = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
err = Console(stderr=True, soft_wrap=True)

ConfigPath = Annotated[
    Path,
    typer.Argument(
        metavar="CORPUS.YAML", help="the corpus.yaml to use, or `sample` for the one that ships with the package"
    ),
]
CorpusPlace = Annotated[str, typer.Argument(metavar="CORPUS", help="the folder or URL of a corpus, or its YAML file")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="override one setting, e.g. --set encode.batch_tokens=4096; --set train=null removes a section",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for scripts, with keys that stay")]
Only = Annotated[str | None, typer.Option(metavar="STAGE", help="run only this stage, e.g. encode")]
Until = Annotated[str | None, typer.Option(metavar="STAGE", help="stop after this stage")]


def load(config: Path, overrides: list[str] | None = None, launcher: str | None = None) -> RunConfig:
    """Load the configuration of a file, with what the command line overrides."""
    from pipeline.config.run_config import load_config

    chosen = [f"launcher.kind={launcher}"] if launcher else []
    return load_config(config, [*(overrides or []), *chosen])


def load_checked(config: Path, overrides: list[str] | None = None, launcher: str | None = None) -> Checked:
    """Load a configuration, check everything that can be checked before work begins, and list the chunks of
    its inputs.
    """
    from launchers.dispatch import check_launcher
    from pipeline.console.activity import announced
    from pipeline.planning.checks import load_checked as load_all

    chosen = [f"launcher.kind={launcher}"] if launcher else []
    with announced(err, "checking the inputs"):
        return load_all(config, [*(overrides or []), *chosen], [check_launcher])


def submits_ray_job(config: Path, overrides: list[str], launcher: str | None) -> bool:
    """Return whether a run is submitted to a cluster, which may see inputs that this machine does not see."""
    from launchers.dispatch import is_ray_job
    from pipeline.config.run_config import read_config

    found, _ = read_config(config, [*overrides, *([f"launcher.kind={launcher}"] if launcher else [])])
    return found is not None and is_ray_job(found)


def asker() -> Callable[[str], bool] | None:
    """Return a function that asks the person at the terminal, with no as the default; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return lambda question: typer.confirm(question, default=False)


def open_corpus(where: str) -> Corpus:
    """Open the corpus in a folder, or that of a YAML file; says so if that has been edited since the newest run."""
    from pipeline.corpus.reader import Corpus
    from pipeline.corpus.runs import changed_settings

    if not where.endswith((".yaml", ".yml")):
        return Corpus(where)
    config = load(Path(where))
    corpus = Corpus(config.output)
    if changed := changed_settings(corpus.store, config):
        told = f"{where} has changed since the newest run ({', '.join(changed)}); this is what that run made"
        err.print(told, markup=False, highlight=False, style="yellow")
    return corpus


def follow_run(url: str, cluster: Cluster, run: str | None = None) -> None:
    """Watch a run to its end: exit code 0 if that was good, 1 if not, 130 if somebody stopped watching."""
    from pipeline.monitor.follow import follow
    from pipeline.storage.store import Store

    try:
        done = follow(out, Store(url), cluster, run)
    except KeyboardInterrupt:
        err.print(f"No longer watching; the run goes on. Stop it: pipeline cancel {url}", markup=False, highlight=False)
        raise typer.Exit(130) from None
    if not done:
        raise typer.Exit(1)
