"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from pipeline.errors import ConfigError, CorpusError, PipelineError
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
MaxRows = Annotated[int, typer.Option(min=1, help="read about so many rows of a large corpus")]


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
    worst: Annotated[int, typer.Option(min=0, help="show so many of the worst rows with their decoded text")] = 5,
    lang: Annotated[str | None, typer.Option(help="worst rows of this language only, e.g. deu_Latn")] = None,
    max_rows: MaxRows = 2_000_000,
) -> None:
    """Look at quality before training: AutoBLEU by language and by length, and the worst sentences.

    Example: pipeline inspect runs/sample --worst 10 --lang deu_Latn
    """
    from pipeline.books import keep_books
    from pipeline.quality import measure, worst_rows
    from pipeline.show import show_quality, show_rows

    corpus = _open(where)
    if not corpus.parts:
        raise CorpusError(f"{corpus.url} has no finished part yet; see: pipeline status {where}")
    quality = measure(corpus, max_rows)
    langs = [group.name for group in quality.by_lang]
    if lang and lang not in langs:
        raise ConfigError(f"--lang {lang}: the corpus has {', '.join(langs)}")
    show_quality(out, quality, _corpus_bleu(keep_books(corpus.store, corpus.chunks)))
    if worst and quality.everything.scored:
        show_rows(out, f"Worst {worst} rows", worst_rows(corpus, worst, lang=lang, max_rows=max_rows))


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
    from pipeline.quality import measure, worst_rows
    from pipeline.show import show_books, show_quality, show_rows

    corpus = Corpus(plan.config.output, plan.view)
    swept = sweep(corpus.store, corpus.chunks)
    books = keep_books(corpus.store, corpus.chunks)
    show_books(out, books, f"{plan.config.name} in {plan.config.output}")
    if swept:
        out.print(f"removed {swept} files that an interrupted attempt left")
    if "autobleu" in corpus.columns:
        quality = measure(corpus, 500_000)
        show_quality(out, quality, _corpus_bleu(books), lengths=False)
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


def _corpus_bleu(books: Books) -> dict[str, float]:
    from stages.autobleu.bleu import STATISTICS, corpus_bleu

    counts: dict[str, float] = books.counts.get("autobleu", {})
    langs = sorted({key.split(".")[1] for key in counts if key.startswith("bleu.")})
    return {lang: corpus_bleu([counts[f"bleu.{lang}.{k}"] for k in range(STATISTICS)]) for lang in langs}


def main() -> None:
    """Entry point: errors become words and exit codes."""
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
