"""Implements `pipeline export`: the selected sentences of a corpus in layouts that other programs load.

Sequences are written part by part, each file as a whole, and `export.json` last: an export without it is unfinished.
Until then the folder is claimed, so that two exports at a time do not mix (`pipeline/storage/export_target.py`).
Just before it, the corpus records the export (`pipeline/corpus/exports.py`), so it knows all that are complete. The
number of sentences written must equal the number selected. Cost: one pass over the small columns to count, and one over
the selected text and embeddings.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError, MissingError, StorageError
from pipeline.base.extras import missing_extras
from pipeline.base.formats import counted, size
from pipeline.base.messages import print_plain
from pipeline.console.progress import RowProgress
from pipeline.corpus.exports import FINISHED, ExportRecord, is_recorded, record_export, view_digest
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.part_reader import no_column
from pipeline.corpus.reader import Corpus
from pipeline.corpus.receipts import CHECKED_BYTES, UNCOMPARED, compare_content
from pipeline.corpus.runs import newest_view
from pipeline.corpus.tombstones import tombstone_paths
from pipeline.export.hub import Draw, write_hub
from pipeline.export.hub.header import LICENCES
from pipeline.export.hub.push import Push, compare_files
from pipeline.export.lance_dataset import check_names, write_lance
from pipeline.export.lcm import write_lcm, write_lcm_cards
from pipeline.export.numpy_files import write_numpy
from pipeline.export.pieces import ROW_GROUP_ROWS, SHARD_MB, ExportTask, Written
from pipeline.export.shares import Shares, is_finished, shared_files
from pipeline.export.webdataset import write_webdataset
from pipeline.export.wide import query, write_wide
from pipeline.select.command import SelectOptions, selection_of, show_selection, unfinished
from pipeline.select.selection import Counts, Selection
from pipeline.storage import layout
from pipeline.storage.export_target import ExportTarget
from pipeline.storage.records import parse_json, sealed
from pipeline.storage.remote import is_remote
from pipeline.storage.share_notes import Share, to_be_written

if TYPE_CHECKING:
    from stages.scaler.robust import RobustScaler

FORMATS = ("parquet", "numpy", "webdataset", "lance", "hub", "lcm", "sonar-llm")
VECTORS = {  # types of vectors that a format can have, the usual one first; formats that are missing have one type
    "parquet": ("float32", "float16", "none"),
    "numpy": ("float16", "float32"),
    "webdataset": ("float16", "float32"),
    "lance": ("float16", "float32", "none"),
    "hub": ("float32", "float16", "none"),
}


@dataclass(frozen=True)
class ExportOptions:
    """The options of the command, as `pipeline/cli.py` explains them."""

    format: str
    to: str
    rules: SelectOptions = field(default_factory=SelectOptions)
    vectors: str | None = None  # one of `VECTORS`
    row_group_rows: int | None = None  # of the formats parquet and hub
    shard_mb: int | None = None  # of the format webdataset
    licence: str | None = None  # of the texts, for the format hub; one of `LICENCES`
    push: str | None = None  # the dataset repository to upload to, for the format hub
    private: bool = False  # whether it is made private
    replace: bool = False  # whether its other files go
    share: Share | None = None  # None: this process writes all


def export_corpus(
    console: Console,
    place: str,
    corpus: Corpus,
    options: ExportOptions,
    scaler: RobustScaler | None = None,
    draw: Draw | None = None,
) -> None:
    """Write the selection of a corpus.

    Args:
        console: where the result is shown.
        place: what the user named: a corpus, or its YAML file.
        corpus: the corpus.
        options: the options of the command.
        scaler: for the format lcm, whose release calls it a normalizer.
        draw: draws the plots of the format hub; only that format needs it.

    Raises:
        ConfigError: for a format, a place, a condition or a repository that is not possible, or if another export
            writes to that place.
        CorpusError: for a corpus that is not finished, of which nothing is selected, with a column that the format
            cannot have, or from which documents were purged meanwhile, if something else writes into the folder of the
            export, or if a finished export that is to be uploaded has changed.
        HubError: if an upload fails.
        ValueError: if the format is hub and `draw` is missing.
    """
    if options.format not in FORMATS:
        raise ConfigError(f"--format {options.format}: allowed are {', '.join(FORMATS)}")
    vectors = _vectors(options)
    _only(options.format, "--row-group-rows", options.row_group_rows, ("parquet", "hub"))
    _only(options.format, "--shard-mb", options.shard_mb, ("webdataset",))
    if scaler is not None and options.format != "lcm":
        raise ConfigError(f"--format {options.format} has no place for a scaler; the format lcm has")
    shared = shared_files(options.share, options.format) if options.share else None
    needed = {"hub": ("report", *(("hub",) if options.push else ())), "lance": ("lance",)}.get(options.format, ())
    if lacking := missing_extras(needed):
        raise ConfigError(lacking)
    if options.format == "lance" and is_remote(options.to):
        raise ConfigError(
            f"--to {options.to}: --format lance writes to a folder of this machine; give one, and copy it"
        )
    if options.format == "lance":
        check_names(corpus)
    push = _push(options)
    selection = selection_of(place, corpus, options.rules)
    if push:
        push.check()
        if there := _written_before(options, selection):
            place = os.path.realpath(options.to)
            compare_files(console, options.to, there)
            if not is_recorded(corpus.store, corpus.view, place, selection.digest):
                _record(console, options.format, selection, place, there["written"])
            console.print(f"{options.to} is complete; it is uploaded as it is", markup=False, highlight=False)
            push.upload(console)
            return
    target = ExportTarget(options.to, corpus.url, shared)
    purged = corpus.tombstones.paths
    if options.share:
        _export_share(console, selection, target, options, vectors, scaler)
        return
    with target.claimed(), _not_purged(corpus, purged, target):
        counts, written = _written(console, selection, target, options, vectors, draw)
        _write_cards(corpus, target, options, written, scaler)
    with target.completed_by(FINISHED):
        _complete(console, selection, target, options, counts, written)
    if push:
        push.upload(console)


def _export_share(
    console: Console,
    selection: Selection,
    target: ExportTarget,
    options: ExportOptions,
    vectors: str,
    scaler: RobustScaler | None,
) -> None:
    """Write a share of an export unless it is there, and complete the export if all others are."""
    corpus, purged, share = selection.corpus, selection.corpus.tombstones.paths, options.share or (1, 1)
    identity = _identity(options, selection)
    shares = Shares(target, share, identity | {"purged": fingerprint(sorted(purged))})
    name = f"share {share[0]} of {share[1]}"
    if not target.holds(FINISHED):
        if shares.is_written():
            print_plain(console, f"{name} is written already")
        else:
            with _not_purged(corpus, purged, target):
                counts, written = _written(console, selection.share(*share), target, options, vectors, None)
            try:
                shares.note(counts, written)
            except StorageError:  # as its folder is deleted by a process that had the same share, and completed it
                if not target.holds(FINISHED):
                    raise
            print_plain(console, f"{name}: {_amount(written, target)}")
        missing = shares.missing()
        if not missing:
            try:
                counts, written = shares.together(options.format)
            except MissingError:  # the notes were deleted by another process, which completed it
                if not target.holds(FINISHED):
                    raise
            else:
                _write_cards(corpus, target, options, written, scaler)
                _complete(console, selection, target, options, counts, written)
        elif not target.holds(FINISHED):
            print_plain(console, to_be_written(missing, "the export"))
            return
    if not is_finished(target, identity):
        raise ConfigError(f"--to {options.to} holds another export, which is finished; give a new folder")
    print_plain(console, f"{target.url} is complete")
    shares.forget()


def _complete(
    console: Console,
    selection: Selection,
    target: ExportTarget,
    options: ExportOptions,
    counts: Counts,
    written: Written,
) -> None:
    """Record an export in its corpus, write its `export.json`, and say what it holds."""
    corpus = selection.corpus
    about = _about(counts, written) | {"files": dict(sorted(target.written.items()))}
    record = None
    try:
        with _not_purged(corpus, corpus.tombstones.paths, target):  # a later purge finds the record
            record = _record(console, options.format, selection, target.url, about["written"])
        whole = json.dumps(_identity(options, selection) | about, ensure_ascii=False, indent=1)
        target.write_text(FINISHED, sealed(whole).decode() + "\n")
    except Exception:  # a kill may come when the export is complete
        if record:
            with contextlib.suppress(Exception):  # the first error is the one to report
                corpus.store.delete(record.path)
        raise
    print_plain(console, _amount(written, target))
    print_plain(console, written.next_step)


def _write_cards(
    corpus: Corpus, target: ExportTarget, options: ExportOptions, written: Written, scaler: RobustScaler | None
) -> None:
    """Write what follows the data of all parts, and say what to do next with the formats that have shares."""
    if options.format == "lcm":
        write_lcm_cards(corpus.view.name, target, written, scaler)
    elif options.format == "parquet":
        written.next_step = query(target)


def _amount(written: Written, target: ExportTarget) -> str:
    rows = f"{counted(written.pieces, 'sequence')} of {counted(written.sentences, 'sentence')}"
    return f"{rows} written to {target.url} ({counted(written.files, 'file')}, {size(written.bytes)})"


def _written(
    console: Console,
    selection: Selection,
    target: ExportTarget,
    options: ExportOptions,
    vectors: str,
    draw: Draw | None,
) -> tuple[Counts, Written]:
    """Write all files of a selection but its cards and `export.json`. Raises `CorpusError` if it keeps no sentence,
    unless it is a share.
    """
    _whole(console, selection)
    rows = selection.corpus.rows * len(selection.parts) // max(1, len(selection.corpus.parts))
    with RowProgress(console, rows) as progress:
        counts = selection.count(progress)
    show_selection(console, selection, counts)
    if not counts.kept and not options.share:
        raise CorpusError("the selection keeps no sentence; the table above says what removes them; nothing is written")
    with RowProgress(console, counts.kept, "sentences", "written") as progress:
        sizes = options.row_group_rows or ROW_GROUP_ROWS, options.shard_mb or SHARD_MB
        written = _write(ExportTask(selection, target, progress, vectors, *sizes), options, counts, draw)
    _balance(counts, written)
    return counts, written


@contextlib.contextmanager
def _not_purged(corpus: Corpus, purged: Collection[str], target: ExportTarget) -> Iterator[None]:
    """Raise `CorpusError` at the end if documents were purged, also instead of an error that follows from that.

    `purged`: the tombstones when the export began. The error is also raised if a file is missing because a run has
    changed the corpus.
    """
    failed: CorpusError | None = None
    try:
        yield
    except CorpusError as error:
        failed = error
    if tombstone_paths(corpus.store) - set(purged):
        what, may = "documents were purged from", ", which may hold them"
    elif isinstance(failed, MissingError) and newest_view(corpus.store).header() != corpus.view.header():
        what, may = "another run has changed", ""
    elif failed:
        raise failed
    else:
        return
    raise CorpusError(
        f"{what} {corpus.url} during this export{may}: export again (if {target.url} is still there, delete it first)"
    ) from failed


def _write(task: ExportTask, options: ExportOptions, counts: Counts, draw: Draw | None) -> Written:
    """Write all files but cards of the format lcm and `export.json`. Raises `ValueError` if the format is hub and
    `draw` is missing.
    """
    if options.format == "lcm":
        return write_lcm(task)
    if options.format == "parquet":
        return write_wide(task)
    if options.format == "hub":
        if draw is None:
            raise ValueError("the format hub needs `draw`")
        return write_hub(task, counts, options.licence, draw)
    if options.format == "numpy":
        return write_numpy(task)
    if options.format == "webdataset":
        return write_webdataset(task)
    if options.format == "lance":
        return write_lance(task)
    from pipeline.export.sonar_llm import write_sonar_llm  # torch

    return write_sonar_llm(task)


def _vectors(options: ExportOptions) -> str:
    """Return the type of vectors. Raises `ConfigError` for a type that the format does not have."""
    _only(options.format, "--vectors", options.vectors, tuple(VECTORS))
    allowed = VECTORS.get(options.format, ("float16",))
    if options.vectors and options.vectors not in allowed:
        raise ConfigError(
            f"--vectors {options.vectors}: allowed are {', '.join(allowed)} with --format {options.format}"
        )
    return options.vectors or allowed[0]


def _only(format: str, option: str, value: object, formats: Sequence[str]) -> None:
    """Raise `ConfigError` if an option is given for a format that has no use for it."""
    if value is not None and format not in formats:
        raise ConfigError(
            f"{option} is an option of --format {', '.join(formats)}; --format {format} does without it: leave it out"
        )


def _whole(console: Console, selection: Selection) -> None:
    """Raise `CorpusError` for a corpus that is unfinished, or whose selected parts are damaged."""
    corpus = selection.corpus
    waiting = unfinished(corpus)
    if waiting:
        raise CorpusError(
            f"{corpus.url}: {counted(waiting, 'chunk')} not segmented yet; finish it: pipeline run corpus.yaml"
        )
    if "embedding" not in corpus.catalogue:
        raise CorpusError(f"{corpus.url}: {no_column('embedding', corpus.catalogue)}")
    if corpus.chunks.total.get("encode/bytes/embeddings", 0.0) <= CHECKED_BYTES:
        compare_content(corpus.store, corpus.files_of(selection.parts, (*layout.ROW_FAMILIES, "documents")))
    else:
        print_plain(console, UNCOMPARED.format(corpus.url), style="dim")


def _balance(counts: Counts, written: Written) -> None:
    if (written.sentences, written.pieces) != (counts.kept, counts.pieces):
        raise CorpusError(
            f"the export does not balance: {counts.kept} sentences in {counts.pieces} sequences were selected, but "
            f"{written.sentences} in {written.pieces} written; "
            "the corpus changed during the export: export again, to another folder"
        )


def _record(
    console: Console, kind: str, selection: Selection, place: str, written: dict[str, Any]
) -> ExportRecord | None:
    """Record the export in its corpus; say so, and return None, if the corpus cannot be written to."""
    corpus = selection.corpus
    try:
        return record_export(
            corpus.store, corpus.view, place, corpus.rows, selection.settings.model_dump(mode="json"),
            selection.digest, format=kind, sentences=written["sentences"], sequences=written["sequences"],
        )  # fmt: skip
    except StorageError as error:
        cause = error.__cause__
        why = (isinstance(cause, OSError) and cause.strerror) or error  # the export is done: nothing is to be repeated
        print_plain(
            console, f"The corpus does not record this export, so purge and gc do not know it: {why}", style="yellow"
        )
        return None


def _identity(options: ExportOptions, selection: Selection) -> dict[str, object]:
    """Return what decides an export's bytes."""
    given = {"vectors": options.vectors, "row_group_rows": options.row_group_rows, "licence": options.licence}
    return {
        "format": options.format,
        "corpus": selection.corpus.view.name,
        "view": view_digest(selection.corpus.view),
        "select": selection.settings.model_dump(mode="json"),
        "selection": selection.digest,
        "options": {name: value for name, value in given.items() if value is not None},
    }


def _about(counts: Counts, written: Written) -> dict[str, Any]:
    return {
        "sentences": counts.sentences,
        "removed": counts.removed,
        "written": {"sentences": written.sentences, "sequences": written.pieces, "by_split": written.by_split},
        "dim": written.dim,
    }


def _push(options: ExportOptions) -> Push | None:
    """Return the upload that is asked for. Raises `ConfigError` for options that do not go together."""
    for name, value in (("--push", options.push), ("--licence", options.licence)):
        _only(options.format, name, value, ("hub",))
    if options.licence and options.licence not in LICENCES:
        near = difflib.get_close_matches(options.licence.lower().replace(" ", "-"), LICENCES, n=3, cutoff=0.3)
        raise ConfigError(
            f"--licence {options.licence} is not the name of a licence on the Hub; "
            + (f"did you mean {' or '.join(near)}? " if near else "")
            + f"Allowed are {', '.join(LICENCES)}"
        )
    if not options.push:
        for name, asked in (("--private", options.private), ("--replace", options.replace)):
            if asked:
                raise ConfigError(f"{name} says how to upload, and --push is missing; give --push USER/NAME")
        return None
    return Push(options.push, options.to, private=options.private, replace=options.replace)


def _written_before(options: ExportOptions, selection: Selection) -> dict[str, Any] | None:
    """Return the `export.json` of the local folder if that already holds this very export, complete.

    Raises `DamagedError` if it is damaged.
    """
    path = Path(options.to, FINISHED)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    found = parse_json(
        data,
        dict[str, Any],
        str(path),
        "delete the folder if it is an export, and export again; otherwise give another one",
    )
    return found if found | _identity(options, selection) == found else None
