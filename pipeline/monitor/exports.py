"""Exports of a corpus, for `status`: what each holds, and whether it is as new as the corpus."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import CorpusError
from pipeline.base.formats import counted, last_few, plain
from pipeline.corpus.exports import FINISHED, changed_files, exports_of, is_gone, view_digest
from pipeline.corpus.reader import Corpus
from pipeline.corpus.tombstones import FOLDER as TOMBSTONES
from pipeline.corpus.tombstones import purged_from
from pipeline.storage.export_target import first_of


@dataclass(frozen=True)
class ExportState:
    """The state of an export. `older`: the corpus has changed since; `purged`: it holds documents that were purged
    since; `gone`: it is not where it was written, on a local disk; `changed`: its files there that are missing or have
    another size; `damaged`: what is wrong with its record; then nothing else is known.
    """

    place: str
    format: str
    made: str
    sentences: int
    older: bool
    purged: bool
    gone: bool
    damaged: str | None = None
    changed: tuple[str, ...] = ()


def export_states(corpus: Corpus) -> list[ExportState]:
    """Return the state of all exports, oldest first; a damaged record, or list of purged documents, says so and hides
    nothing else.
    """
    exports = exports_of(corpus.store)
    if not exports.records and not exports.damaged:
        return []
    damaged, purged = dict(exports.damaged), frozenset[str]()
    try:
        purged = purged_from(corpus.store)
    except CorpusError as error:
        damaged[TOMBSTONES] = error
    now = view_digest(corpus.view), corpus.rows
    found = [
        ExportState(
            one.place, one.format, one.made, one.sentences, older=(one.view, one.rows) != now,
            purged=one.name in purged, gone=is_gone(corpus.store, one), changed=tuple(changed_files(corpus.store, one)),
        )
        for one in exports.records
    ]  # fmt: skip
    return found + [ExportState(path, "", "", 0, True, False, False, str(error)) for path, error in damaged.items()]


def show_exports(console: Console, corpus: Corpus) -> bool:
    """Print a line for each of the newest exports; if there are many, rather for those that hold purged documents, and
    for damaged records. Returns False if a record is damaged.
    """
    states = sorted(export_states(corpus), key=lambda one: (bool(one.damaged), one.purged and not one.gone))
    shown, more = last_few(states, "pipeline status --json lists all exports")
    for one in shown:
        if one.damaged:
            console.print(Text(one.damaged, style="red"), soft_wrap=True)
            continue
        line = f"export {one.place} ({one.format}, {one.made[:10]}): {counted(one.sentences, 'sentence')}, {_said(one)}"
        style = "yellow" if not one.gone and (one.older or one.purged or one.changed) else ""
        console.print(Text(plain(line, 500), style=style), soft_wrap=True)
    if more:
        console.print(more, markup=False, highlight=False)
    return not any(one.damaged for one in states)


def _said(one: ExportState) -> str:
    if one.gone:
        copies = "; copies of it hold documents that were purged since" if one.purged else ""
        return f"gone: this machine finds no {FINISHED} there{copies}"
    if one.purged:
        return "holds documents that were purged since: delete it, and export again"
    if one.changed:
        files = f"{counted(len(one.changed), 'file')} of it changed or went away ({first_of([*one.changed])})"
        return f"{files}: delete it, and export again"
    return "the corpus has changed since: pipeline export makes another" if one.older else "up to date"
