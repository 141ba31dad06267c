"""Implements `pipeline gc`: finds what the newest run does not need: results of older settings, leftovers of killed
attempts.

A corpus keeps the results of older settings, so that going back costs nothing; this command deletes them. Files are
kept if the view of the newest run names them (its receipts, their files, its fits, training indexes that name no
others), if a view of the last 30 days or of an export does, if they are the index of a model, or if an interrupted
fine-tuning of a decoder resumes from them, with the settings of the newest run or in the last 30 days. Files that
people put beside them are not touched. What a killed process had written of any other file is deleted a day later,
since another process may be writing it now; the shares of an index that was not completed, a week after the last one.
Cost: one listing per folder (by pieces, if there are many parts), and every receipt of the view.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from rich.console import Console
from rich.text import Text

from pipeline.base.errors import CorpusError, MissingError
from pipeline.base.formats import counted, size
from pipeline.coordination.leases import Lease
from pipeline.coordination.lock import check_held
from pipeline.corpus.counters import CHUNK
from pipeline.corpus.exports import FOLDER as EXPORTS
from pipeline.corpus.exports import exports_of, view_digest, view_of
from pipeline.corpus.fits import is_checkpoint, read_record, record_of
from pipeline.corpus.leftovers import ATTEMPT, live_files, prefixes
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.corpus.states import SharedReading, States
from pipeline.corpus.view import View
from pipeline.maintenance.made_with import models_of
from pipeline.storage import layout
from pipeline.storage.store import Store, is_unfinished
from pipeline.training.data.index import read_index, unusable
from pipeline.training.data.snapshot import families_of
from pipeline.training.status import RECORD

VIEW_DAYS = 30  # days for which the results of other settings are kept
_RECEIPT = re.compile(r"(receipts/[a-z]+|chunks)/[0-9a-f]{2}/[0-9a-f-]+\.[0-9a-f]{8}\.json")
_UNFINISHED_SECONDS = 24 * 3600.0
_FILES_PER_CHECK = 100  # deletions after which gc asks whether it still holds the corpus
_RECORDS = (EXPORTS, "ids", "ledger", "lock", "recipes", "report", layout.RUNS, "tombstones", "train")
_FIT = re.compile(
    rf"{layout.FITS}/[a-z]+\.[0-9a-f]{{8}}-([0-9]{{3}}\.json|[0-9a-f]{{6}}\.(safetensors|yaml)|checkpoint\.safetensors)"
)
_RECENT = f"a run of the last {VIEW_DAYS} days, with other settings or inputs, needs them"
_EXPORTED = "an export was made from them"
_OF_MODEL = "a model was trained with that index"
_OF_OTHERS = "all that the index names is here, and another corpus may have a model that was trained with it"
_GOES_ON = "an interrupted fine-tuning of a decoder resumes from it"
_WENT_ON = "an interrupted fine-tuning of a decoder would resume from it"
_KILLED = "left by a killed write"
_OLD = "made with settings or inputs that the newest run does not have, or left by a killed attempt"
_LEFT_BEHIND = "a fine-tuning of a decoder with other settings was interrupted, over 30 days ago"


@dataclass(frozen=True)
class Garbage:
    """What may be deleted. `why`: the reason by file; `kept`: the reason why other files stay → number of files."""

    bytes: Mapping[str, int]
    why: Mapping[str, str]
    kept: Mapping[str, int]

    @property
    def by_folder(self) -> dict[str, list[str]]:
        """Return the files by folder."""
        found: dict[str, list[str]] = {}
        for path in self.why:
            index = path.startswith(layout.INDEXES) and not is_unfinished(path)
            found.setdefault(layout.INDEXES if index else path.partition("/")[0], []).append(path)
        return found


def find_garbage(corpus: Corpus, older_views: bool = False, now: float | None = None) -> Garbage:
    """Find the files that are not needed.

    The newest run needs files, and so do views of the last 30 days, views of exports, trained models and interrupted
    fits.

    Args:
        corpus: the corpus.
        older_views: whether files that only older views, exports or interrupted fits need are garbage too.
        now: seconds since 1970; None for the present.

    Returns:
        The files with sizes and reasons, and how many stay for which reason. `CorpusError` is raised if the newest run
            is under way or was interrupted, or if it is not known what an export needs.
    """
    now = time.time() if now is None else now
    paths, unfinished = garbage(corpus), set(_unfinished(corpus.store, now))
    for path in sorted(unfinished.difference(*paths.values())):
        paths.setdefault(path.partition("/")[0], {})[path] = _KILLED
    shared = SharedReading(corpus.store)
    others = [] if older_views else [*_recent(corpus, now, shared), *_exported(corpus, shared)]
    named: dict[str, str] = {}
    seen: set[object] = set()  # results of chunks, which most views share
    for reason, other in others:
        for path in _named(other, seen):
            named.setdefault(path, reason)
    needed = set(_indexes_of_models(corpus.store))
    learned = {path for digest in needed for path in _files_of(corpus, digest)}
    why: dict[str, str] = {}
    kept: Counter[str] = Counter()
    for files in paths.values():
        for path, reason in files.items():
            if path in named:
                kept[named[path]] += 1
            elif path in learned:
                kept["a model was trained on them"] += 1
            elif not is_checkpoint(path):
                why[path] = _KILLED if path in unfinished else reason
            elif _is_done(corpus.store, path):
                why[path] = "the fine-tuning of a decoder that resumed from it is done"
            elif not _may_resume(corpus, path, now):
                why[path] = _LEFT_BEHIND
            elif older_views:
                why[path] = _WENT_ON
            else:
                kept[_GOES_ON] += 1
    indexes = (path for path in why if path.startswith(f"{layout.INDEXES}/") and not layout.is_of_share(path))
    of_indexes = {path: path.rpartition("/")[2].split(".")[0] for path in indexes}
    in_doubt = set() if older_views else {*of_indexes.values()} - needed
    whole = {digest for digest in in_doubt if _is_whole(corpus, digest, why)}
    for path, digest in of_indexes.items():
        if digest in needed | whole:
            del why[path]
            kept[_OF_MODEL if digest in needed else _OF_OTHERS] += 1
    return Garbage({path: corpus.store.size(path) for path in why}, why, kept)


def show_garbage(console: Console, found: Garbage) -> None:
    """Show how many files of each folder may be deleted, their bytes, and why; and which files stay, and why."""
    for folder, paths in found.by_folder.items():
        for why in dict.fromkeys(found.why[path] for path in paths):
            some = [path for path in paths if found.why[path] == why]
            total = size(sum(found.bytes[path] for path in some))
            console.print(Text(f"{folder}: {counted(len(some), 'file')}, {total}: {why}"), soft_wrap=True)
    for why, files in found.kept.items():
        console.print(Text(f"kept: {counted(files, 'file')}: {why}"), soft_wrap=True)
    if not found.why:
        kept = ", another run, an export or a model" if found.kept else ""
        console.print(f"The newest run{kept} needs every file.")


def delete_garbage(console: Console, corpus: Corpus, found: Garbage, lease: Lease) -> None:
    """Delete the files, and print how many files and bytes that were.

    Indexes are looked at again first: those that were begun and not completed may have been completed meanwhile, while
    somebody was asked, since that needs no lock.

    Args:
        console: where the line is printed.
        corpus: the corpus.
        found: what `find_garbage` returned while the lock was held.
        lease: the lock of the corpus.

    Raises:
        CorpusError: if another process has taken over the lock; nothing more is deleted then.
    """
    paths = found.by_folder
    if layout.INDEXES in paths:
        paths[layout.INDEXES] = sorted(unusable(corpus).keys() & paths[layout.INDEXES])
    total = size(sum(found.bytes[path] for some in paths.values() for path in some))
    gone = delete(corpus, paths, lambda: check_held(lease))
    console.print(f"{counted(sum(gone.values()), 'file')} deleted, {total}", highlight=False)


def _files_of(corpus: Corpus, digest: str) -> Iterator[str]:
    """Yield the files that training reads through an index; none if the index is gone."""
    with contextlib.suppress(CorpusError):
        parts = read_index(corpus, digest).parts
        for family in families_of(parts):
            yield from (path for path in parts[family].to_pylist() if path)


def _indexes_of_models(store: Store) -> Iterator[str]:
    """Yield the indexes of trainings. Raises `CorpusError` if it is not known what one was trained on."""
    for run, digests in models_of(store):
        if digests is None:
            raise CorpusError(
                f"it is not known what {run} was trained on, since its record {store.url}/{run}/{RECORD} is damaged or "
                f"gone; restore that file, or delete the folder {store.url}/{run} if the model is not needed any more"
            )
        yield from digests


def _is_whole(corpus: Corpus, digest: str, garbage: Collection[str]) -> bool:
    """Return whether an index can be read, and no file that it names is gone or garbage. Memory: a family's files."""
    try:
        parts = read_index(corpus, digest).parts
    except CorpusError:
        return False
    named = ({path for path in parts[family].to_pylist() if path} for family in families_of(parts))
    if not all(files.isdisjoint(garbage) for files in named):
        return False
    present = ((parts[family].to_pylist(), set(corpus.store.find(family))) for family in families_of(parts))
    return all(path in there for files, there in present for path in files if path)


def _unfinished(store: Store, now: float) -> Iterator[str]:
    """Yield what killed writes left of any file but data files, of which `garbage` knows.

    Object stores have such files only if a corpus was copied there; beside corpus.json they are not looked for there.
    """
    receipts = (f"{folder}/{xx}" for folder in _receipt_folders(store) for xx in store.folders(folder))
    flat = itertools.chain([""] if store.local else [], (layout.FITS, f"{layout.FITS}/rates"), receipts)
    listings = itertools.chain((store.find_any(folder, ["."]) for folder in flat), map(store.find, _RECORDS))
    for path in filter(is_unfinished, itertools.chain.from_iterable(listings)):
        with contextlib.suppress(MissingError):  # it got its name meanwhile
            if now - store.modified(path) > _UNFINISHED_SECONDS:
                yield path


def _may_resume(corpus: Corpus, checkpoint: str, now: float) -> bool:
    """Return whether a checkpoint is of the last 30 days or of the decoder of the newest run.

    If that run lacks its decoder, the checkpoint may be of it.
    """
    if now - corpus.store.modified(checkpoint) < VIEW_DAYS * 24 * 3600:
        return True
    fitted = corpus.view.fits.get("decoder")
    if fitted is None:
        return newest_config(corpus.store).get("decoder") is not None
    return fitted.startswith(checkpoint.removesuffix("checkpoint.safetensors"))


def _is_done(store: Store, checkpoint: str) -> bool:
    """Return whether a fit from this checkpoint was recorded after it was written, and only its deletion is missing."""
    records = store.find(layout.FITS, checkpoint.removeprefix(f"{layout.FITS}/").removesuffix("checkpoint.safetensors"))
    written = store.modified(checkpoint)
    return any(store.modified(path) > written for path in records if path.endswith(".json"))


def _exported(corpus: Corpus, shared: SharedReading) -> Iterator[tuple[str, Corpus]]:
    """Yield the corpus as seen by each export, with the reason to keep it. Raises `CorpusError` for damaged records."""
    exports = exports_of(corpus.store)
    for error in exports.damaged.values():
        raise CorpusError(f"it is not known what an export was made from: {error}") from error
    seen = {view_digest(corpus.view)}
    for record in exports.records:
        if record.lost:
            continue
        view = view_of(corpus.store, record)
        if (digest := view_digest(view)) not in seen:
            seen.add(digest)
            yield _EXPORTED, Corpus(corpus.url, view, corpus.store, shared)


def _recent(corpus: Corpus, now: float, shared: SharedReading) -> Iterator[tuple[str, Corpus]]:
    """Yield the corpus as seen by each other run that began in the last 30 days, with the reason to keep it."""
    oldest = datetime.fromtimestamp(now, UTC) - timedelta(days=VIEW_DAYS)
    seen = {corpus.view.header()}
    for name in corpus.store.folders(layout.RUNS)[:-1]:
        if name >= oldest.strftime("%Y%m%dT%H%M%S"):
            with contextlib.suppress(CorpusError):  # a run that was interrupted before it had a view, or is damaged
                view = View.read(corpus.store, f"{layout.RUNS}/{name}")
                if view.header() not in seen:
                    seen.add(view.header())
                    yield _RECENT, Corpus(corpus.url, view, corpus.store, shared)


def _named(corpus: Corpus, seen: set[object]) -> Iterator[str]:
    """Yield what an older view names, except for the results of chunks that were seen in another view. Its fits may
    have been deleted, by `gc --older-views`.
    """
    yield from _of_fits(corpus, [path for path in corpus.view.fits.values() if corpus.store.exists(path)])
    for number, chunk in enumerate(corpus.chunks):
        result = corpus.chunks.result_of(number)
        if result is None or result not in seen:
            seen.add(result)
            yield from live_files(chunk)


def garbage(corpus: Corpus) -> dict[str, dict[str, str]]:
    """Return paths that the newest run does not need, by folder, and why. Raises `CorpusError` if it is under way or
    interrupted, or if a fit is not the one that it used.
    """
    newest = corpus.store.folders(layout.RUNS)[-1]
    if not corpus.store.exists(f"{layout.RUNS}/{newest}/summary.json"):
        raise CorpusError(
            f"run {newest} of {corpus.url} is not finished; wait for it, or run the same configuration again: only "
            "then is it known what it needs"
        )
    for name in corpus.view.fits:
        record_of(corpus.store, corpus.view, name)
    found: dict[str, dict[str, str]] = {}
    pieces = prefixes(len(corpus.parts))
    for piece in pieces:
        live = _live(corpus, piece)
        for folder in ("documents", *layout.ROW_FAMILIES, "quarantine", *_receipt_folders(corpus.store), layout.FITS):
            if folder == layout.FITS and piece != pieces[0]:
                continue
            for path in corpus.store.find(folder, "" if folder == layout.FITS else piece):
                ours = ATTEMPT.fullmatch(path.rpartition("/")[2]) or _RECEIPT.fullmatch(path) or _FIT.fullmatch(path)
                if ours and path not in live:
                    found.setdefault(folder.partition("/")[0], {})[path] = _OLD
    indexes = unusable(corpus)
    return found | ({layout.INDEXES: indexes} if indexes else {})


def _receipt_folders(store: Store) -> list[str]:
    return [*(f"receipts/{stage}" for stage in store.folders("receipts")), "chunks"]


def delete(
    corpus: Corpus, paths: Mapping[str, Collection[str]], check: Callable[[], None] = lambda: None
) -> Counter[str]:
    """Delete the paths: ledgers that name them first, then receipts, so that nothing names a missing file.

    Args:
        corpus: the corpus.
        paths: the files by folder.
        check: is called first, for each folder and after every 100 files; what it raises ends the deletion.

    Returns:
        How many files were deleted, by folder.
    """
    gone: Counter[str] = Counter()
    check()
    if paths.keys() & {"receipts", "chunks"}:
        _forget(corpus.chunks)
    for folder in sorted(paths, key=lambda folder: folder not in ("receipts", "chunks")):
        records_first = sorted(paths[folder], key=lambda path: not path.endswith(".json"))
        for number, path in enumerate(records_first):
            if number % _FILES_PER_CHECK == 0:
                check()
            corpus.store.delete(path)
            gone[folder] += 1
    return gone


def _forget(states: States) -> None:
    """Remove rows from the ledgers that describe anything else than what the newest run needs."""
    rows = states.rows[states.rows >= 0]
    whole = [all(stage in (CHUNK, *one.done) for stage in one.recipes) for one in states.matches]
    keep = np.zeros(len(states.ledgers), np.bool_)
    keep[rows] = np.asarray(whole, np.bool_)[states.ledgers.recipe[rows]] if len(rows) else False
    states.ledgers.keep(keep)


def _live(corpus: Corpus, piece: str) -> set[str]:
    """Return what the view names, for chunks whose names begin with `piece`."""
    live = set(_of_fits(corpus, corpus.view.fits.values()))
    for chunk in corpus.chunks:
        if chunk.chunk.id.startswith(piece):
            live.update(live_files(chunk))
    return live


def _of_fits(corpus: Corpus, records: Iterable[str]) -> Iterator[str]:
    for path in records:
        yield from (path, *read_record(corpus.store, path).files)
