"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.base.interrupts import install_sigterm_handler
from pipeline.commands import inspect, maintain, monitor, run, setup, train
from pipeline.commands.options import err, out

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Documents → sentences → SONAR embeddings with quality scores, in FP16 Parquet.\n\n"
    "Start with [bold]pipeline run corpus.yaml[/]; run it again after anything went wrong: what is finished is never "
    "done twice.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out.print(version("sonar-pipeline"), highlight=False)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None:
    """Handle options of the program itself; its help text is given to `app`."""


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {  # as the help shows them
    "Work on a corpus": (run.run, run.plan, monitor.status, monitor.logs, run.cancel, run.retry),
    "Look at it, and hand it over": (
        inspect.inspect,
        inspect.select,
        inspect.report,
        inspect.export,
        inspect.files,
        inspect.sql,
        inspect.compare_segmenters,
    ),
    "Train and evaluate": (train.index, train.train, train.evaluate, train.generate, train.compare_objectives),
    "Keep it in order": (maintain.verify, maintain.gc, maintain.quarantine, maintain.purge),
    "Set up": (setup.init, setup.models, setup.doctor, setup.schema, setup.flops),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for command in (run.gate, run.worker, run.training):  # SLURM jobs call these
    app.command(hidden=True)(command)


def main() -> None:
    """Run the command line: errors become messages and exit codes; SIGTERM works like Ctrl-C."""
    install_sigterm_handler()
    try:
        result: Any = app(standalone_mode=True)
    except (PipelineError, OSError, ValueError) as error:  # OSError: no permission, no space, a store without an answer
        from stages.cards import CardError  # imports pydantic, which the help should not wait for

        if isinstance(error, ValueError) and not isinstance(error, CardError):
            raise
        err.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(2 if isinstance(error, ConfigError | CardError) else 1)
    sys.exit(result or 0)


if __name__ == "__main__":
    main()
