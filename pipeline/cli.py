"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted, 141 unread."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.base.extras import missing_package
from pipeline.base.interrupts import end_at_once_when_asked, install_sigterm_handler
from pipeline.commands import browse, compare, inspect, maintain, monitor, run, setup, train
from pipeline.commands.options import Command, Group, LogFormat, LogLevel, Quiet, Verbose, out, say_error, with_messages

app = typer.Typer(
    cls=Group,
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Turn documents into corpora of SONAR sentence embeddings with quality scores, and train Large Concept Models "
    "on them.\n\nStart with [bold]pipeline init DATA[/], then [bold]pipeline run corpus.yaml[/]. The same command "
    "continues after any interruption: finished work is kept.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out.print(version("sonar-pipeline"), highlight=False)
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Handle options of the program itself; its help text is given to `app`."""
    context.obj = (verbose, quiet, log_level, log_format)


GARBAGE = 20_000  # objects between collections: at Python's 700, imports alone take 0.1 s longer
COMPLETING = "_PIPELINE_COMPLETE"  # set by the scripts that complete commands in a shell
SPINS = 1000  # as libgomp itself takes when one process has more threads than there are cores
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {  # as the help shows them
    "Work on a corpus": (run.run, run.plan, monitor.status, monitor.logs, run.cancel, run.retry),
    "Inspect and export a corpus": (
        inspect.inspect,
        browse.browse,
        inspect.select,
        inspect.report,
        inspect.export,
        inspect.files,
        inspect.sql,
        compare.compare_segmenters,
        compare.compare_decoders,
    ),
    "Train and evaluate": (
        inspect.index,
        train.train,
        train.evaluate,
        train.generate,
        train.export_model,
        compare.compare_objectives,
        compare.ablate,
    ),
    "Maintain a corpus": (maintain.verify, maintain.gc, maintain.quarantine, maintain.purge),
    "Set up": (setup.init, setup.models, setup.doctor, setup.schema, setup.flops),
}
# What these print is a summary of what they do, which -q leaves out; the others are asked for what they print.
SUMMARISING = (
    run.run,
    run.retry,
    run.cancel,
    inspect.report,
    inspect.export,
    inspect.index,
    train.train,
    train.export_model,
)
_GOES_ON = "Finished work is kept: run the same command again to go on."
KEPT = {  # what is said of those that keep what they have done when they are interrupted
    run.run: _GOES_ON,
    run.retry: "Finished work is kept: pipeline run goes on.",
    train.train: _GOES_ON,
    compare.compare_objectives: _GOES_ON,
    compare.ablate: _GOES_ON,
}
for panel, commands in COMMANDS.items():
    for command in commands:
        called = with_messages(command, command in SUMMARISING, KEPT.get(command, ""))
        app.command(rich_help_panel=panel, cls=Command)(called)
for command in (run.gate, run.worker, run.training):  # SLURM jobs call these
    app.command(hidden=True)(with_messages(command, False))


def _shorten_waits() -> None:
    """Let OpenMP's threads sleep soon when they wait for each other, in this process and those that it starts.

    By itself libgomp spins for long before it sleeps. Where other processes have the cores, the thread that is waited
    for is not running, and spinning takes the time that it needs. Call this before torch is imported; values that the
    environment already sets are kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def main() -> None:
    """Run the command line: errors become messages and exit codes; until its end SIGTERM works like Ctrl-C."""
    _shorten_waits()
    install_sigterm_handler()
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)  # or Python looks through all modules for garbage before it ends
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # or it searches all installed packages for some
    if COMPLETING in os.environ:
        os.environ["COLUMNS"] = "1000"  # or descriptions are wrapped, and fish offers each line's first word
    code = 1  # of an error that nobody expected
    try:
        _call()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        end_at_once_when_asked(code)


def _call() -> NoReturn:
    """Run the command line, and end with its exit code."""
    try:
        result: Any = app(standalone_mode=True)
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        say_error(message)
        sys.exit(1)
    except (PipelineError, OSError, ValueError) as error:  # OSError: no permission, no space, a store without an answer
        from stages.cards import CardError  # imports pydantic, which the help should not wait for

        if isinstance(error, ValueError) and not isinstance(error, CardError):
            raise
        say_error(_said_of_output(error) or _said_of_working_directory(error) or str(error))
        sys.exit(2 if isinstance(error, ConfigError | CardError) else 1)
    except (MemoryError, RuntimeError) as error:
        lacks = _said_of_limits(error)
        if lacks is None:
            raise
        say_error(lacks)
        sys.exit(1)
    sys.exit(result or 0)


def _said_of_output(error: Exception) -> str | None:
    """Return what to say if it was printing that failed."""
    *_, frame = (one for one, _ in traceback.walk_tb(error.__traceback__))
    printing = frame.f_globals["__name__"].partition(".")[0] in ("rich", "click", "typer")
    if not printing or not isinstance(error, OSError):
        return None
    return f"standard output cannot be written: {error.strerror}; what the command does may be unfinished"


def _said_of_limits(error: Exception) -> str | None:
    """Return what to say if the system gave no more memory or threads."""
    if isinstance(error, MemoryError):
        return (
            f"memory ran out ({str(error) or 'MemoryError'}): this process may have too little (ulimit -v, or the "
            "limit of its container or job); finished work is kept"
        )
    if str(error) == "can't start new thread":
        return (
            "the system allows no more threads: raise the limit (ulimit -u, ulimit -v, or pids.max of a container); "
            "finished work is kept"
        )
    return None


def _said_of_working_directory(error: Exception) -> str | None:
    """Return what to say if a path is relative to a working directory that is no longer there."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return None
    try:
        Path.cwd()
    except FileNotFoundError:
        return (
            "the working directory was deleted, and a path is relative to it; change to another one, or give full paths"
        )
    return None


if __name__ == "__main__":
    main()
