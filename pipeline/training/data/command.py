"""Implements `pipeline index`: makes the index of a corpus, or finds it, and describes it."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from pipeline.base.formats import Figures, counted, duration, number
from pipeline.base.messages import print_plain
from pipeline.config.train import Plans
from pipeline.console.progress import RowProgress
from pipeline.corpus.reader import Corpus
from pipeline.inputs.splits import SPLITS
from pipeline.select.command import SelectOptions, selection_of, show_selection, unfinished
from pipeline.storage.share_notes import Share, to_be_written
from pipeline.training.data.index import Index, index_of_shares, index_of_snapshot, is_present, make_index
from pipeline.training.data.index_shares import IndexShares
from pipeline.training.data.snapshot import Snapshot, checked, snapshot_of


def index_corpus(
    console: Console,
    place: str,
    corpus: Corpus,
    rules: SelectOptions,
    answers: str | None,
    plans: Plans = "none",
    share: Share | None = None,
) -> Index | None:
    """Show the selection and the index, which is made if the corpus does not have it yet.

    Args:
        console: where the tables are printed.
        place: what the user named: a YAML file, or the corpus.
        corpus: the corpus.
        rules: the options of the command.
        answers: the kept column with the code point at which a document's answer begins; None if there is none.
        plans: whether paragraphs begin with plans, as `train.plans` says.
        share: visit only a share of the parts; the last share completes the index. None for all parts.

    Returns:
        The index; None while other shares are to be written.

    Raises:
        CorpusError: for a corpus that cannot be read, or of which nothing is selected.
        ConfigError: for what the corpus cannot answer, and for too many shares.
    """
    started = time.monotonic()
    settings = selection_of(place, corpus, rules).settings
    selection = checked(corpus, settings, "--where" if rules.where is not None else "select.where")
    snapshot = snapshot_of(selection, answers, plans)
    found, index = is_present(corpus, snapshot.digest), None
    if share:
        index = _by_shares(console, snapshot, share)
    else:
        with RowProgress(console, corpus.rows) as progress:
            index = index_of_snapshot(snapshot, progress.add)
    if index is None:
        return None
    show_selection(console, selection, index.counts)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("split", "documents", "sequences", "sentences"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split in SPLITS:
        table.add_row(split, *map(Figures, map(number, index.about.splits[split])))
    console.print(table)
    for line in _notes(corpus, index):
        print_plain(console, line)
    how = "existed already" if found else f"made in {duration(time.monotonic() - started)}"
    console.print(f"index      {index.digest}  ({how})", highlight=False, soft_wrap=True)
    return index


def _by_shares(console: Console, snapshot: Snapshot, share: Share) -> Index | None:
    """Write a share of an index unless it is there; return the index if all shares are."""
    shares, corpus = IndexShares(snapshot, share), snapshot.selection.corpus
    if not is_present(corpus, snapshot.digest):
        name = f"share {share[0]} of {share[1]}"
        if shares.notes.is_written():
            print_plain(console, f"{name} is written already")
        else:
            with RowProgress(console, corpus.rows // share[1]) as progress:
                counts = shares.write(progress.add)
            print_plain(console, f"{name}: {number(counts.kept)} of {counted(counts.sentences, 'sentence')} kept")
        missing = shares.notes.missing()
        if missing and not is_present(corpus, snapshot.digest):
            print_plain(console, to_be_written(missing, "the index"))
            return None
    return index_of_shares(snapshot, shares)


def index_of(place: str, corpus: Corpus) -> Index:
    """Return the index of what the section `select` selects; `place` is as for `selection_of`."""
    return make_index(corpus, selection_of(place, corpus, SelectOptions()).settings)


def _notes(corpus: Corpus, index: Index) -> list[str]:
    notes = []
    waiting = unfinished(corpus)
    if waiting:
        notes.append(f"not segmented yet, and not in the index: {counted(waiting, 'chunk')}")
    if index.about.unanswered:
        count = counted(index.about.unanswered, "document")
        notes.append(f"{count} without a value of {index.about.answers}: every sentence counts in the loss")
    return [*notes, *said_of_plans(index)]


def said_of_plans(index: Index) -> list[str]:
    """Return how many paragraphs have a plan, if plans are those of a column."""
    if index.about.planned is None:
        return []
    have, paragraphs = index.about.planned
    return [f"{number(have)} of {counted(paragraphs, 'paragraph')} {'have' if have != 1 else 'has'} a plan"]
