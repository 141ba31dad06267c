"""Implements `pipeline inspect`: shows the quality of the rows asked for, or writes them to a file; and the tables of
quality that the end of a run shows as well. Text of documents is data, never markup.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Console, Group
from rich.text import Text

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted, number, plain, size
from pipeline.base.messages import print_plain
from pipeline.conditions.condition import Condition
from pipeline.console.progress import RowProgress
from pipeline.console.tables import print_columns
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.quality.curation import language_differences
from pipeline.quality.extract import extract
from pipeline.quality.measures import (
    QUANTILES,
    Quality,
    ScoredRow,
    ScoreSummary,
    corpus_bleu_of,
    measure,
    measure_scores,
    worst_rows,
)
from pipeline.quality.measures import Group as QualityGroup

SHOWN_ROWS = 2_000_000
SHOWN_WORST = 5

COUNTS = ("sentences", "tokens", "scored")  # columns that are shown even if nothing is scored


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


def show_quality(console: Console, quality: Quality, bleu: dict[str, float] | None, *, lengths: bool = True) -> None:
    """Show AutoBLEU by language and by length.

    Args:
        console: where the tables are printed.
        quality: the quantiles.
        bleu: language → corpus BLEU; None if it is not that of these rows.
        lengths: whether the table by length is shown.
    """
    narrow = console.width < 100
    tables = [("language", quality.by_lang, bleu), ("characters", quality.by_length, None)]
    for title, groups, of_lang in tables if lengths else tables[:1]:
        rows = [_quality_cells(group, of_lang) for group in groups]
        if not quality.everything.scored:
            rows = [{name: one[name] for name in COUNTS} for one in rows]
        titles = [name.replace(" ", "\n") if narrow else name for name in rows[0]] if rows else []
        lines = [([group.name], list(cells.values()), False) for group, cells in zip(groups, rows, strict=True)]
        console.print()
        print_columns(console, [title], titles, lines, padding=1 if narrow else 2)
    if not quality.everything.scored:
        console.print(_unscored(quality), highlight=False, soft_wrap=True)
    if quality.rows_read < quality.rows:
        console.print(f"(from {number(quality.rows_read)} of {number(quality.rows)} rows; --max-rows reads more)")


def _unscored(quality: Quality) -> str:
    """Say why no AutoBLEU is shown."""
    if quality.unscored_parts:
        have = "has" if quality.unscored_parts == 1 else "have"
        return (
            f"AutoBLEU is shown once every part has it; {counted(quality.unscored_parts, 'part')} {have} none yet: run "
            "again."
        )
    if quality.least_sample is None:
        return "No sentence has an AutoBLEU yet: add a section `autobleu` if there is none, and run again."
    of = counted(quality.everything.sentences, "sentence")
    return (
        f"No sentence has an AutoBLEU: the sample of autobleu drew none of the {of} here. Of these, "
        f"`autobleu: {{sample: {quality.least_sample}}}` draws at least one, `sample: 1.0` all."
    )


def _quality_cells(group: QualityGroup, bleu: dict[str, float] | None) -> dict[str, str]:
    """Return column → cell."""

    def shown(value: float, form: str = ".1f") -> str:
        return "–" if math.isnan(value) else f"{value:{form}}"

    counts = (number(group.sentences), shown(group.tokens), number(group.scored))
    cells = dict(zip(COUNTS, counts, strict=True))
    if bleu is not None:
        cells["corpus BLEU"] = shown(bleu.get(group.name, float("nan")))
    cells["mean"] = shown(group.mean)
    cells |= {f"p{share:.0%}"[:-1]: shown(value) for share, value in zip(QUANTILES, group.quantiles, strict=True)}
    return cells | {"below 20": shown(group.poor, ".0%")}


def show_scores(console: Console, scores: list[ScoreSummary]) -> None:
    """Show every column of scores, if there are more than AutoBLEU's."""
    titles = ["scored", "mean", *(f"p{share:.0%}"[:-1] for share in QUANTILES)]
    lines = []
    for one in scores:
        form = ".1f" if one.name == "autobleu" else ".3f"
        figures = [number(one.scored), *(f"{value:{form}}" for value in (one.mean, *one.quantiles))]
        lines.append(([one.name], figures, False))
    if any(one.name != "autobleu" for one in scores):
        console.print()
        print_columns(console, ["score"], titles, lines, padding=2)


def show_rows(console: Console, title: str, rows: list[ScoredRow]) -> None:
    """Show sentences with what their embeddings decode to.

    Args:
        console: where they are shown.
        title: the line above them.
        rows: the sentences.
    """
    console.print(Group("", Text(title, style="bold")))
    width = max(40, console.width - 12)
    for row in rows:
        console.print(Text(f"{row.autobleu:6.1f}  ", style="bold") + Text(plain(row.text, width)))
        console.print(Text(f"     →  {plain(row.decoded, width)}", style="dim"))
        console.print(Text(f"        {row.lang}, part {row.part}, row {row.row}", style="dim italic"))
