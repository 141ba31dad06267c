"""Implements `pipeline select`: the selection of a corpus.yaml, a corpus or the command line, and where sentences went.

The rules come from the section `select` of the YAML file, or of the newest run of the corpus (`runs/…/corpus.yaml`);
options of the command line take precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted, number, plain
from pipeline.base.messages import print_plain
from pipeline.config.load import load_config
from pipeline.config.select import SelectSettings
from pipeline.console.progress import RowProgress
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.select.selection import Counts, Selection
from pipeline.storage import layout
from pipeline.storage.records import Record
from pipeline.storage.share_notes import Share, ShareNotes, to_be_written


@dataclass(frozen=True)
class SelectOptions:
    """Options of the command line that replace single settings of the section."""

    where: str | None = None
    broken: str | None = None
    min_sentences: int | None = None


def selection_of(place: str, corpus: Corpus, rules: SelectOptions) -> Selection:
    """Return the selection of a corpus: the given rules, and the section `select` for everything that they leave open.

    Args:
        place: what the user named: a YAML file, whose section is used, or the corpus.
        corpus: the corpus.
        rules: the options of the command.

    Returns:
        The selection; `ConfigError` is raised also for a condition that the corpus cannot answer.

    Raises:
        CorpusError: if no part is finished.
        ConfigError: for a value that is not allowed.
    """
    corpus.check_has_parts()
    config: dict[str, Any]
    if place.endswith((".yaml", ".yml")):
        config = load_config(Path(place)).model_dump(mode="json")
    else:
        config = newest_config(corpus.store)
    options = {"where": rules.where, "broken": rules.broken, "min_sentences": rules.min_sentences}
    given = {key: value for key, value in options.items() if value is not None}
    try:
        settings = SelectSettings.model_validate({**(config.get("select") or {}), **given})
    except ValidationError as error:
        wrong = error.errors()[0]
        option = str(wrong["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{option} {wrong['input']}: {wrong['msg']}") from None
    return Selection(corpus, settings, "--where" if rules.where is not None else "select.where")


KEPT = "kept"


def removed_by(corpus: Corpus, max_rows: int) -> list[tuple[str, int]]:
    """Return where the sentences of about the first `max_rows` rows go under the newest run's `select`; empty without
    one.

    Raises `ConfigError` if the corpus lacks columns of the condition.
    """
    settings = newest_config(corpus.store).get("select")
    if not settings or not corpus.parts:
        return []
    selection = Selection(corpus, SelectSettings.model_validate(settings))
    counts = Counts(removed=dict.fromkeys(selection.reasons, 0))
    for part in selection:
        counts.add(part.counts)
        if counts.sentences >= max_rows:
            break
    return [*counts.removed.items(), (KEPT, counts.kept)]


_VERSION = 1  # of what a note says: shares of another one are not added up


class _ShareNote(Record):
    """What a share of the parts keeps and removes."""

    counts: Counts


def select_corpus(
    console: Console, place: str, corpus: Corpus, rules: SelectOptions, share: Share | None = None
) -> None:
    """Show what each clause of a selection removes, and what remains.

    Args:
        console: where the table is printed.
        place: what the user named: a YAML file, or the corpus.
        corpus: the corpus.
        rules: the options of the command.
        share: visit only a share of the parts; the last share shows the sums. None for all parts.

    Raises:
        CorpusError: for a corpus that cannot be read.
        ConfigError: for what the corpus cannot answer, and for too many shares.
    """
    selection = selection_of(place, corpus, rules)
    counts = _by_shares(console, selection, share) if share else _count(console, selection)
    if counts is None:
        return
    show_selection(console, selection, counts)
    waiting = unfinished(corpus)
    if waiting:
        console.print(f"not segmented yet, and not counted: {counted(waiting, 'chunk')}")


def _count(console: Console, selection: Selection, shares: int = 1) -> Counts:
    with RowProgress(console, selection.corpus.rows // shares) as progress:
        return selection.count(progress)


def _by_shares(console: Console, selection: Selection, share: Share) -> Counts | None:
    """Count a share of the parts unless that was done; return the sums if all shares were counted.

    The notes stay beside the indexes, and `gc` deletes them after a week.
    """
    prefix = layout.select_share_prefix(selection.digest, _VERSION)
    notes = ShareNotes(selection.corpus.store, prefix, share, _ShareNote)
    name = f"share {share[0]} of {share[1]}"
    if notes.is_written():
        print_plain(console, f"{name} is written already")
    else:
        counts = _count(console, selection.share(*share), share[1])
        notes.write(_ShareNote(counts=counts))
        print_plain(console, f"{name}: {number(counts.kept)} of {counted(counts.sentences, 'sentence')} kept")
    if missing := notes.missing():
        print_plain(console, to_be_written(missing, "the table"))
        return None
    total = Counts()
    for note in notes.every():
        total.add(note.counts)
    total.check(selection.corpus.url)
    return total


def unfinished(corpus: Corpus) -> int:
    """Return the number of chunks of the newest run that are not segmented yet."""
    return int(corpus.chunks.total.get("segment/left", 0))


def show_selection(console: Console, selection: Selection, counts: Counts) -> None:
    """Show where every sentence and document of the selection went.

    Args:
        console: where the table is printed.
        selection: the selection.
        counts: what it keeps and removes.
    """
    settings = selection.settings
    least = f", at least {counted(settings.min_sentences, 'sentence')}" if settings.min_sentences > 1 else ""
    title = f"{selection.corpus.view.name}: {settings.where or 'every sentence'}; {settings.broken}{least}"
    console.print(Text(plain(title, 1000), style="bold"), soft_wrap=True)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row("sentences in", number(counts.sentences), "")
    for reason, count in counts.removed.items():
        table.add_row(Text(f"– {plain(reason, 200)}"), number(count), _share(count, counts.sentences))
    table.add_row("sentences kept", number(counts.kept), _share(counts.kept, counts.sentences), style="bold")
    console.print(table)
    for line in (
        f"documents  {number(counts.documents)} in = {number(counts.whole)} whole + {number(counts.shortened)} with "
        f"sentences missing + {number(counts.dropped)} left out; {counted(counts.pieces, 'sequence')} to train on",
        f"selection  {selection.digest}",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else "–"
