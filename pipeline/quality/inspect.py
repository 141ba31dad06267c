"""Implements `pipeline inspect`: shows the quality of the rows asked for, or writes them to a file."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted, number, plain, size
from pipeline.base.messages import print_plain
from pipeline.conditions.condition import Condition
from pipeline.console.progress import RowProgress
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.quality.curation import language_differences
from pipeline.quality.extract import extract
from pipeline.quality.measures import corpus_bleu_of, measure, measure_scores, worst_rows
from pipeline.quality.tables import show_quality, show_rows, show_scores

SHOWN_ROWS = 2_000_000
SHOWN_WORST = 5


@dataclass(frozen=True)
class InspectOptions:
    """The options of the command, as `pipeline/cli.py` explains them."""

    where: str | None = None
    lang: str | None = None
    to: str | None = None
    columns: str | None = None
    worst: int | None = None
    max_rows: int | None = None


def inspect_corpus(console: Console, corpus: Corpus, options: InspectOptions) -> None:
    """Show rows, or write them to a file.

    Args:
        console: where rows are shown.
        corpus: the corpus.
        options: the options of the command; `ConfigError` is raised if they do not fit each other or the corpus.

    Raises:
        CorpusError: if no part is finished.
    """
    corpus.check_has_parts()
    condition = condition_of(corpus, options.where, options.lang)
    if options.to is None:
        _show(console, corpus, condition, options)
    else:
        _write(console, corpus, condition, options, options.to)


def _show(console: Console, corpus: Corpus, condition: Condition | None, options: InspectOptions) -> None:
    if options.columns is not None:
        raise ConfigError(f"--columns {options.columns} needs --to FILE, to which the columns are written")
    max_rows = options.max_rows or SHOWN_ROWS
    quality = measure(corpus, max_rows, condition)
    found, read = quality.everything.sentences, quality.rows_read
    if not found and options.lang is not None:
        langs = [group.name for group in measure(corpus, max_rows).by_lang]
        if options.lang not in langs:
            raise ConfigError(f"--lang {options.lang}: the corpus has {', '.join(langs)}")
    if condition is not None:
        console.print(f"{number(found)} of {number(read)} rows satisfy the condition")
    if not found:
        return
    # corpus BLEU adds up statistics of all rows, so there is none for a selection
    bleu = corpus_bleu_of(corpus, compute_accounting(corpus.store, corpus.chunks)) if condition is None else None
    show_quality(console, quality, bleu)
    show_scores(console, measure_scores(corpus, max_rows, condition))
    if corpus.hides_documents and bleu is not None:
        what = "Corpus BLEU is not shown: it would still count purged documents until the next pipeline run."
        console.print(what, style="yellow", markup=False, soft_wrap=True)
    for one in language_differences(corpus, max_rows) if condition is None else ():
        if one.is_much:
            console.print(f"{plain(one.said(), 300)}: see lang_differs", style="yellow", markup=False, soft_wrap=True)
    worst = SHOWN_WORST if options.worst is None else options.worst
    if worst and quality.everything.scored:
        show_rows(
            console, f"Worst {counted(worst, 'row')}", worst_rows(corpus, worst, max_rows=max_rows, where=condition)
        )


def condition_of(corpus: Corpus, where: str | None, lang: str | None) -> Condition | None:
    """Combine `--where` and `--lang` in one condition.

    Args:
        corpus: the corpus.
        where: the condition, if one is given.
        lang: the language, if one is given.

    Returns:
        None if neither is given.
    """
    condition = corpus.condition(where) if where is not None else None
    if lang is None:
        return condition
    quoted = lang.replace("\\", "\\\\").replace("'", "\\'")
    both = f"lang == '{quoted}'" + (f" and ({condition.text})" if condition else "")
    return corpus.condition(both, "--lang")


def _write(console: Console, corpus: Corpus, condition: Condition | None, options: InspectOptions, to: str) -> None:
    if options.worst is not None:
        raise ConfigError("--worst is for the screen; with --to, choose rows by --where, e.g. 'autobleu < 10'")
    names = [name.strip() for name in options.columns.split(",")] if options.columns is not None else []
    with RowProgress(console, min(corpus.rows, options.max_rows or corpus.rows)) as progress:
        done = extract(corpus, to, progress, where=condition, columns=names, max_rows=options.max_rows)
    if done.quoted:
        console.print(
            f"{number(done.quoted)} texts begin like a formula (= + - @) and got ' in front, so that no spreadsheet "
            "evaluates them; .jsonl and .parquet have every text as it is",
            highlight=False,
            soft_wrap=True,
        )
    if done.read < corpus.rows:
        console.print(f"read {number(done.read)} of {number(corpus.rows)} rows; without --max-rows all are read")
    wrote = f"{number(done.written)} of {number(done.read)} rows written to {to} ({size(done.bytes)})"
    print_plain(console, wrote)
