"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pipeline.commands import following, keeping, looking, setting_up, training, working
from pipeline.commands.options import err, out
from pipeline.errors import ConfigError, PipelineError
from pipeline.interrupts import heed_sigterm
from stages.sonar.card import CardError

app = typer.Typer(
    add_completion=False,
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
    """Options of the program itself; its help text stands where `app` is made."""


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {  # as the help shows them
    "Work on a corpus": (working.run, working.plan, following.status, following.logs, working.cancel, working.retry),
    "Look at it, and hand it over": (
        looking.inspect,
        looking.select,
        looking.report,
        looking.export,
        looking.compare_segmenters,
    ),
    "Train and evaluate": (training.index, training.train, training.evaluate, training.generate),
    "Keep it in order": (keeping.verify, keeping.gc, keeping.quarantine, keeping.purge),
    "Set up": (setting_up.models, setting_up.doctor, setting_up.schema),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for command in (working.gate, working.worker, working.training):  # SLURM jobs call these
    app.command(hidden=True)(command)


def main() -> None:
    """Entry point: errors become words and exit codes; SIGTERM is heeded like Ctrl-C."""
    heed_sigterm()
    try:
        result: Any = app(standalone_mode=True)
    except (ConfigError, CardError) as error:
        err.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(2)
    except (PipelineError, OSError) as error:  # OSError: no permission, no space, a store that does not answer
        err.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(1)
    sys.exit(result or 0)


if __name__ == "__main__":
    main()
