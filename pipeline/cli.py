"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from pipeline.errors import ConfigError, PipelineError
from pipeline.interrupts import heed_sigterm
from stages.sonar.card import CardError

if TYPE_CHECKING:
    from pipeline.books import Books
    from pipeline.config import RunConfig
    from pipeline.corpus import Corpus
    from pipeline.plan import Plan

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Documents → sentences → SONAR embeddings with quality scores, in FP16 Parquet.\n\n"
    "Start with [bold]pipeline run corpus.yaml[/]; run it again after anything went wrong: what is finished is never "
    "done twice.",
)
LOG_WIDTH = 160  # where the output is no terminal
out = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
err = Console(stderr=True, soft_wrap=True)


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


ConfigPath = Annotated[Path, typer.Argument(metavar="CORPUS.YAML", help="a corpus.yaml, or `sample`, which ships")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override a setting, e.g. --set encode.batch_tokens=4096"),
]
Only = Annotated[str | None, typer.Option(help="do this stage only: segment, encode or autobleu")]
Until = Annotated[str | None, typer.Option(help="stop after this stage")]


@app.command()
def run(
    config: ConfigPath,
    only: Only = None,
    until: Until = None,
    launcher: Annotated[str | None, typer.Option(help="local (Ray on this machine) or inline (this process)")] = None,
    overrides: Overrides = None,
) -> None:
    """Bring a corpus up to date: segment, encode, score whatever is missing or stale.

    Safe to stop and start again at any moment. Ends with the books: documents in = kept + dropped + quarantined.

    Examples:

      pipeline run corpus.yaml

      pipeline run corpus.yaml --until encode --set input.0.limit=1000
    """
    from pipeline.plan import make_plan

    settings = _load(config, overrides, launcher)
    plan = make_plan(settings, only, until)
    if plan.nothing_to_do:
        _remember_view(plan)
        out.print("Nothing to do.")
        if not _finish(plan):
            raise typer.Exit(1)
        return
    _work(plan)


@app.command()
def plan(
    config: ConfigPath,
    only: Only = None,
    until: Until = None,
    overrides: Overrides = None,
) -> None:
    """Show what `run` would do and why, how much is left, and how long it takes at the measured rates.

    Example: pipeline plan corpus.yaml --set encode.model=sonar
    """
    from pipeline.plan import make_plan
    from pipeline.show import show_plan

    show_plan(out, make_plan(_load(config, overrides, None), only, until))


@app.command()
def status(
    where: Annotated[str, typer.Argument(metavar="CORPUS", help="folder of a corpus, or its YAML file")],
) -> None:
    """Show the books of a corpus: what is done, dropped, quarantined, left, as its receipts say.

    Exit code 1 if the books do not balance.

    Example: pipeline status runs/sample
    """
    from pipeline.books import keep_books
    from pipeline.show import show_books

    corpus = _open(where)
    books = keep_books(corpus.store, corpus.chunks)
    show_books(out, books, f"{corpus.view.name} in {corpus.url}")
    _show_open(books)
    if books.problems:
        raise typer.Exit(1)


@app.command()
def inspect(
    where: Annotated[str, typer.Argument(metavar="CORPUS", help="folder of a corpus, or its YAML file")],
    worst: Annotated[
        int | None, typer.Option(min=0, help="show so many of the worst rows with what they decode to (default: 5)")
    ] = None,
    lang: Annotated[str | None, typer.Option(help="rows of this language only, e.g. deu_Latn")] = None,
    condition: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="rows that satisfy this only")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="write the rows to .parquet, .csv or .jsonl (any URL) instead of showing them"
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="what --to writes (default: all but vectors)")
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="read about so many rows (default: 2 million; with --to: all)")
    ] = None,
) -> None:
    """Look at quality before training: AutoBLEU by language and by length, and the worst sentences.

    Conditions compare columns by == != >= > <= and <, by in \\[…], is null and
    is not null, texts also by contains, startswith, endswith and matches; they
    join with and, or, not, ( ). A row that was not scored satisfies no
    comparison of its score. A column that is not there is answered with all
    that are.

    --to replaces an older file once the new one is whole. It writes texts as
    they are: import CSV as text, or a spreadsheet takes what begins with
    = + - @ for a formula. Vectors (embedding) fit into .parquet only.

    Examples:

      pipeline inspect runs/sample --worst 10 --lang deu_Latn

      pipeline inspect runs/sample --to s3://mine/best.parquet
        --where "autobleu >= 90 and lang in \\['deu_Latn', 'fra_Latn']"
        --columns text,autobleu,embedding

      pipeline inspect runs/sample --to odd.csv
        --where "status != 0 or matches(text, 'https?://')"

      pipeline inspect runs/sample --where "autobleu < 20 and chars == tokens"
    """
    from pipeline.inspecting import Wishes, inspect_corpus

    wishes = Wishes(condition, lang, to, columns, worst, max_rows)
    inspect_corpus(out, _open(where), wishes)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="a model that ships, or a card's file")] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="download its files now, and check them")] = False,
) -> None:
    """List the models: size, languages, licence, and what is on this machine; or show one in full.

    Example: pipeline models sonar --fetch
    """
    from pipeline.models import fetch_model, show_model, show_models
    from stages.sonar.card import load_card

    if name is None and fetch:
        raise ConfigError("--fetch needs the name of a model: pipeline models NAME --fetch")
    if name is None:
        show_models(out)
    elif fetch:
        fetch_model(out, load_card(name))
    else:
        show_model(out, load_card(name), name)


@app.command()
def schema(
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="write it to a file instead of printing it")] = None,
) -> None:
    """Print the JSON schema of corpus.yaml, with which editors complete and check it while you type.

    Examples:

      pipeline schema --to corpus.schema.json

      pipeline schema | jq '.properties | keys'

    With this as the first line of a corpus.yaml beside it, VS Code (YAML
    extension), Neovim, Emacs and others use it:

      # yaml-language-server: $schema=corpus.schema.json
    """
    import json

    from pipeline.schema import corpus_schema

    text = json.dumps(corpus_schema(), ensure_ascii=False, indent=2) + "\n"
    if to is None:
        sys.stdout.write(text)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text, "utf-8")
    out.print(f"{to} written; first line for a corpus.yaml beside it:", markup=False, soft_wrap=True)
    out.print(f"# yaml-language-server: $schema={to.name}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CORPUS.YAML]", help="a corpus.yaml to check against this machine")
    ] = None,
    ray: Annotated[bool, typer.Option(help="start Ray once, which takes some seconds")] = True,
) -> None:
    """Check whether this machine can run the pipeline, and say what to do where it cannot.

    Python and libraries, CPU and GPUs, memory, limits, disk, Ray, SLURM, models,
    credentials of object stores (found or not, never what they are). With a
    corpus.yaml also its inputs (the first records of each), its models and
    whether its output can be written.

    ✓ as it should be, – not there and not needed, ! works but look at it, ✗ stops
    a run. Exit code 1 if anything is ✗.

    Examples:

      pipeline doctor

      pipeline doctor corpus.yaml --no-ray
    """
    from launchers.trial import start_ray
    from pipeline.doctor import examine, show

    if not show(out, examine(config, start_ray if ray else None)):
        raise typer.Exit(1)


def _load(config: Path, overrides: list[str] | None, launcher: str | None) -> RunConfig:
    from pipeline.config import load_config

    chosen = [f"launcher.kind={launcher}"] if launcher else []
    return load_config(config, [*(overrides or []), *chosen])


def _open(where: str) -> Corpus:
    from pipeline.corpus import Corpus

    return Corpus(_load(Path(where), None, None).output if where.endswith((".yaml", ".yml")) else where)


def _remember_view(plan: Plan) -> None:
    """Make the plan's view the one that readers see (an older configuration may have been run last)."""
    from pipeline.runs import RunRecord, newest_is
    from pipeline.store import Store

    store = Store(plan.config.output)
    if not newest_is(store, plan.view):
        RunRecord(store, plan.config, plan.view).close({"done": True})


def _work(plan: Plan) -> None:
    """Launch, follow, close the books, show them. Exits with 1 if anything failed."""
    from launchers import launch
    from pipeline.progress import RunProgress
    from pipeline.runs import RunRecord
    from pipeline.store import Store

    started = time.monotonic()
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    out.print(
        f"[bold]{escape(plan.config.name)}[/] → {escape(plan.config.output)}: {', '.join(plan.stages)} "
        f"({len(plan.chunks_to_segment())} chunks to segment, {len(plan.parts_to_visit())} parts waiting)"
    )
    failures: list[str] = []
    try:
        with RunProgress(out, plan) as progress:
            for event in launch(plan, record.folder):
                record.log(event.model_dump_json())
                progress.see(event)
                if event.kind == "failed":
                    failures.append(f"{event.where}: {event.error}")
    except KeyboardInterrupt:
        record.close({"done": False, "interrupted": True})
        err.print("Interrupted. What is finished is kept: run the same command again to go on.")
        raise typer.Exit(130) from None
    complete = _finish(plan, failures)
    record.close({"done": complete, "failures": failures, "seconds": round(time.monotonic() - started, 1)})
    if not complete:
        err.print(f"Failed. Details: {plan.config.output}/{record.folder}/events.jsonl", markup=False)
        raise typer.Exit(1)
    out.print(f"Done in {time.monotonic() - started:.0f} s.", highlight=False)


def _finish(plan: Plan, failures: list[str] | None = None) -> bool:
    """Close the books from what is on disk, show them. True if everything that the plan may do is done and balances."""
    from pipeline.books import keep_books, sweep
    from pipeline.corpus import Corpus
    from pipeline.quality import corpus_bleu_of, measure, worst_rows
    from pipeline.show import show_books, show_quality, show_rows

    corpus = Corpus(plan.config.output, plan.view)
    swept = sweep(corpus.store, corpus.chunks)
    books = keep_books(corpus.store, corpus.chunks)
    show_books(out, books, f"{plan.config.name} in {plan.config.output}")
    if swept:
        out.print(f"removed {swept} files that an interrupted attempt left")
    if "autobleu" in corpus.columns:
        quality = measure(corpus, 500_000)
        show_quality(out, quality, corpus_bleu_of(books), lengths=False)
        if failures is not None and quality.everything.scored:
            show_rows(out, "Worst 3 rows (pipeline inspect shows more)", worst_rows(corpus, 3, max_rows=500_000))
    _show_open(books)
    left = [stage for stage in plan.stages if books.open_parts.get(stage)]
    done = not left and not (books.open_chunks and "segment" in plan.stages)
    return done and not failures and not books.problems


def _show_open(books: Books) -> None:
    if books.open_chunks:
        out.print(f"{books.open_chunks} chunks are not segmented yet")
    for stage, count in books.open_parts.items():
        out.print(f"{count} parts have no {stage} yet")


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
