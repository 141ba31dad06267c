"""What commands share: consoles, common arguments, and how they are evaluated."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from pipeline.base.errors import ConfigError, is_utf8, visible
from pipeline.base.messages import FORMATS, LEVELS, JsonLines, end_without_reader, print_plain, set_log

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig
    from pipeline.corpus.reader import Corpus
    from pipeline.monitor.run_status import Cluster
    from pipeline.planning.checks import Checked
    from pipeline.storage.store import Store

LOG_WIDTH = 160  # where the output is not a terminal


class _Output(Console):
    """Standard output. working: whether the command does more than print, and is unfinished if its reader leaves."""

    working = False

    def on_broken_pipe(self) -> None:
        """Write nothing more, and end the command."""
        if self.working:
            print_plain(err, "nothing reads standard output any more; what the command does may be unfinished", "red")
        end_without_reader()


out = _Output(width=None if sys.stdout.isatty() else LOG_WIDTH)
err = Console(stderr=True, soft_wrap=True)
notes = Console(stderr=True, soft_wrap=True)  # what is being done; silent with -q

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
MESSAGES = "Messages"
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="log on standard error what is done, and how long it takes; -vv: every chunk and part, too",
        rich_help_panel=MESSAGES,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="no progress, no notices and no summary: only what was asked for, warnings and errors",
        rich_help_panel=MESSAGES,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        envvar="PIPELINE_LOG_LEVEL",
        help=f"log messages of this level and above on standard error: {', '.join(LEVELS)}",
        show_envvar=False,
        rich_help_panel=MESSAGES,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        envvar="PIPELINE_LOG_FORMAT",
        help="form of what is written on standard error: text, or json: an object on each line",
        show_envvar=False,
        rich_help_panel=MESSAGES,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for scripts; its keys do not change")]
Only = Annotated[str | None, typer.Option(metavar="STAGE", help="run only this stage, e.g. encode")]
Until = Annotated[str | None, typer.Option(metavar="STAGE", help="stop after this stage")]
WhereOption = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help="condition that sentences must satisfy, instead of select.where"),
]
BrokenOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="documents that lose sentences, instead of select.broken: split-documents, drop-sentences or "
        "drop-documents",
    ),
]
MinSentencesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="leave out documents, or pieces of documents, with fewer sentences, instead of select.min_sentences",
    ),
]
NewFolder = Annotated[str, typer.Option(metavar="URL", help="the folder to create: a path or any fsspec URL")]
Steps = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="diffusion models: denoising steps per sentence (default: 40)")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="exit code 1 if something that report.expect says does not hold")
]


class _NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def without_pandas() -> None:
    """Let pyarrow find no pandas, which it imports at its first conversion for 0.2 s of CPU if there is one.

    It looks for pandas again where it needs it, in `to_pandas`.
    """
    import pyarrow as pa

    nowhere = _NoPandas()
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, nowhere)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(nowhere)


def _set_form(form: str) -> None:
    """Let consoles of standard error write text, or lines of JSON."""
    if form == "json":
        err.file, notes.file = JsonLines("warning"), JsonLines("info")
    else:
        for console in (err, notes):
            console.file = None  # type: ignore[assignment]  # what sys.stderr is at that moment


def _asked_form(arguments: Sequence[str]) -> str:
    """Return the value of --log-format before the command line is parsed, or if it cannot be."""
    form = os.environ.get("PIPELINE_LOG_FORMAT", "text")
    for number, one in enumerate(arguments):
        name, equals, value = one.partition("=")
        if name == "--log-format":
            form = value if equals else next(iter(arguments[number + 1 :]), form)
    return form.lower()


def _set_messages(verbose: int, quiet: bool, level: str | None, form: str | None, summary: bool) -> None:
    """Apply -v, -q, --log-level and --log-format.

    `summary`: what the command prints is no more than a summary of what it does.
    """
    form = (form or "text").lower()
    if form not in FORMATS:
        raise ConfigError(f"--log-format {form}: give one of {', '.join(FORMATS)}")
    _set_form(form)
    if quiet and verbose:
        raise ConfigError("-q asks for less and -v for more; leave out one of them")
    if level is not None and level.lower() not in LEVELS:
        raise ConfigError(f"--log-level {level}: give one of {', '.join(LEVELS)}")
    set_log((level or ("error" if quiet else ("warning", "info", "debug")[min(verbose, 2)])).lower(), form)
    notes.quiet = quiet
    out.quiet, out.working = quiet and summary, summary


def with_messages(command: Callable[..., None], summary: bool, kept: str = "") -> Callable[..., None]:
    """Return a command with the options of messages, which stand before or after its name, that says it was
    interrupted.

    Args:
        command: the command.
        summary: whether what it prints is no more than a summary of what it does.
        kept: what an interruption leaves, and how to go on; empty if nothing is left.

    Returns:
        The command for the command line.
    """

    @functools.wraps(command)
    def called(
        *values: Any,
        context: typer.Context,
        verbose: int,
        quiet: bool,
        log_level: str | None,
        log_format: str | None,
        **named: Any,
    ) -> None:
        above = context.obj or (0, False, None, None)
        _set_messages(verbose or above[0], quiet or above[1], log_level or above[2], log_format or above[3], summary)
        try:
            command(*values, **named)
        except KeyboardInterrupt:
            print_plain(err, f"Interrupted. {kept}".rstrip())
            raise typer.Exit(130) from None

    own = (("context", typer.Context, inspect.Parameter.empty), ("verbose", Verbose, 0), ("quiet", Quiet, False),
           ("log_level", LogLevel, None), ("log_format", LogFormat, None))  # fmt: skip
    signature = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in own
    ]
    both = signature.replace(parameters=[*signature.parameters.values(), *options])
    setattr(called, "__signature__", both)  # noqa: B010  # typer makes the options of this and of the annotations
    called.__annotations__ = {one.name: one.annotation for one in both.parameters.values()}
    return called


_LINE_END = re.compile(r"(?<=\S)\n(?=\S)")  # inside a paragraph; examples are indented


@contextlib.contextmanager
def _replaced(module: Any, **names: Any) -> Iterator[None]:
    """Give a module other objects for some of its names, for a while."""
    before = {name: getattr(module, name) for name in names}
    module.__dict__.update(names)
    try:
        yield
    finally:
        module.__dict__.update(before)


@contextlib.contextmanager
def _unabridged() -> Iterator[None]:
    """Have help that is written inside the `with` block break a word that is wider than its column, not cut it off, and
    end as other commands do if its reader leaves.
    """
    from rich.columns import Columns
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class Unabridged(Table):
        def add_row(self, *cells: Any, **style: Any) -> None:
            super().add_row(*cells, **style)
            for column in self.columns:
                column.overflow = "fold"

    def columns(items: list[Any]) -> Any:
        for one in items:
            if isinstance(one, Text):
                one.overflow = "fold"
        return Columns(items)

    # Typer has no setting for this; a version without these names cuts words off.
    mine = {name: one for name, one in (("Table", Unabridged), ("Columns", columns)) if hasattr(rich_utils, name)}
    with _replaced(rich_utils, **mine):
        try:
            yield
        except SystemExit:  # of Rich, whose reader has left
            end_without_reader()


def say_error(text: str) -> None:
    """Write an error on standard error, in the form that is asked for."""
    if isinstance(err.file, JsonLines):
        err.file.level = "error"
    err.print(text, style="red", markup=False, highlight=False)


def _say_wrong_usage(error: Any) -> None:
    """Say why a command line means nothing. `error`: Click's, without a message where the help was shown instead."""
    context = getattr(error, "ctx", None)
    if message := error.format_message():
        say_error(f"{message}\nTry '{context.command_path if context else 'pipeline'} --help' for help.")


class Group(TyperGroup):
    """The program itself, whose help cuts no word off, and which tells wrong usage in the form that is asked for."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the program with the arguments of this process."""
        form = _asked_form(sys.argv[1:])
        _set_form(form)
        if form != "json":
            return super().main(*arguments, **options)
        from typer import rich_utils

        with _replaced(rich_utils, rich_format_error=_say_wrong_usage):
            return super().main(*arguments, **options)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        with _unabridged():
            super().format_help(ctx, formatter)


class Command(TyperCommand):
    """A command that refuses empty arguments, which it would take for this folder, or for none, and names that are not
    UTF-8, which no file of a corpus can hold.

    A variable of a script that is not set gives an empty one. The paragraphs of its help are as wide as the terminal.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"help": _LINE_END.sub(" ", options["help"] or "")})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        with _unabridged():
            super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as always. Raises `ConfigError` for an empty text, and for names that are not UTF-8."""
        written = list(args)
        _check_encoding(written)
        rest = super().parse_args(ctx, args)
        if any(not one.strip() for one in written):
            values, _, parameters = self.make_parser(ctx).parse_args(args=written)
            for one in parameters:
                value = values.get(one.name or "")
                given = value if isinstance(value, list | tuple) else [value]
                if any(isinstance(text, str) and not text.strip() for text in given):
                    raise ConfigError(f"{_empty(one)} (a variable that is not set makes an empty argument)")
        return rest


def _check_encoding(arguments: Sequence[str]) -> None:
    for one in arguments:
        if not is_utf8(one):
            raise ConfigError(f"{one}: this is not UTF-8, as files of a corpus must be; rename what has this name")
    with contextlib.suppress(OSError):  # it was deleted, which matters to relative paths only
        if not is_utf8(folder := str(Path.cwd())):
            raise ConfigError(f"the name of the working directory, {folder}, is not UTF-8; rename it")


def _empty(parameter: Any) -> str:
    told = (parameter.help or "a value").rstrip(".")
    if parameter.param_type_name == "argument":
        return f"{(parameter.metavar or parameter.name).rstrip('…')} is empty; give {told}"
    return f"{parameter.opts[0]} is empty; give a value ({told}), or leave it out"


def with_options(overrides: list[str] | None, options: Mapping[str, object]) -> list[str]:
    """Return what the command line overrides: by --set, and by those of `options` (setting → value) that are given."""
    return [*(overrides or []), *(f"{setting}={value}" for setting, value in options.items() if value)]


def load(config: Path, overrides: list[str] | None = None) -> RunConfig:
    """Load and check the configuration of a file, with what the command line overrides, as `section.key=value`."""
    from pipeline.config.load import load_config

    return load_config(config, overrides or [])


def load_checked(config: Path, overrides: list[str] | None = None) -> Checked:
    """Load a configuration, check everything that can be checked before work begins, print warnings, and list the
    chunks of its inputs.
    """
    from launchers.dispatch import check_launcher
    from pipeline.console.activity import announced
    from pipeline.planning.checks import load_checked as load_all

    without_pandas()
    with announced(notes, "checking the inputs"):
        checked = load_all(config, overrides or [], [check_launcher])
    for text in checked.notices:
        err.print(f"Warning: {visible(text)}", style="yellow", markup=False, highlight=False)
    return checked


def submits_ray_job(config: Path, overrides: list[str]) -> bool:
    """Return whether a run is submitted to a cluster, which may see inputs that this machine does not see.

    False also for a file that cannot be read: whatever loads it says why.
    """
    from launchers.dispatch import is_ray_job
    from pipeline.config.load import read_config

    found, _ = read_config(config, overrides)
    return found is not None and is_ray_job(found)


def asker() -> Callable[[str], bool] | None:
    """Return a function that asks the person at the terminal, with no as the default; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or out.quiet:
        return None
    return lambda question: typer.confirm(question, default=False)


def open_corpus(where: str) -> Corpus:
    """Open the corpus in a folder, or that of a YAML file; says so if that has been edited since the newest run."""
    without_pandas()
    from pipeline.corpus.reader import Corpus

    if not where.endswith((".yaml", ".yml")):
        return Corpus(where)
    config = load(Path(where))
    corpus = Corpus(config.output)
    tell_changes(where, corpus.store, config)
    return corpus


def tell_changes(where: str, store: Store, config: RunConfig) -> None:
    """Say which settings of a YAML file were edited since the newest run, so that the corpus is not of these.

    Args:
        where: the file, as it was named.
        store: the corpus.
        config: the file's configuration.

    Raises:
        NoRunError: if nothing has run yet.
    """
    from pipeline.corpus.runs import changed_settings

    if changed := changed_settings(store, config):
        told = f"{where} has changed since the newest run ({', '.join(changed)}); this is what that run made"
        err.print(told, markup=False, highlight=False, style="yellow")


def follow_run(url: str, cluster: Cluster, run: str | None = None) -> None:
    """Watch a run until it ends, and end the command with an exit code.

    Args:
        url: the corpus.
        cluster: answers whether SLURM or Ray still has the run's jobs.
        run: the folder of the run; None for the newest.

    Raises:
        Exit: with code 1 if the run failed, or 130 if the user stopped watching; none is raised after a good end.
    """
    from pipeline.monitor.follow import follow
    from pipeline.storage.store import Store

    with watching("run", url):
        done = follow(out, Store(url), cluster, run)
    if not done:
        raise typer.Exit(1)


@contextlib.contextmanager
def watching(what: str, url: str) -> Iterator[None]:
    """Let Ctrl-C end only the watching of what works elsewhere, a run or a training of this corpus."""
    try:
        yield
    except KeyboardInterrupt:
        print_plain(err, f"No longer watching; the {what} goes on. Stop it: pipeline cancel {url}")
        raise typer.Exit(130) from None


ShareOption = Annotated[
    str | None,
    typer.Option("--share", metavar="I/N", help="read only the I-th of N shares of the parts; the last completes it"),
]


def share_of(text: str | None) -> tuple[int, int] | None:
    """Parse `3/100`; None if no share is given. Raises `ConfigError` for anything else."""
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", text)
    if not found or int(found[1]) > int(found[2]):
        raise ConfigError(f"--share {text}: give which of how many shares, for instance 3/100; the first is 1")
    return int(found[1]), int(found[2])
