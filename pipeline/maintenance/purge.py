"""Implements `pipeline purge`: removes documents for good, by their ids.

First a tombstone is written (`tombstones.py`), and from then on no reader shows the documents. The next run writes the
chunks that held them again, without them: from the rows that are there (`pipeline/run/rewriting.py`), and the results
of their stages too (`pipeline/run/copying.py`), so nothing is segmented or encoded. Then `erase` deletes whatever older
settings, older receipts and interrupted attempts left of those chunks. Cost: the column `doc_id` of every documents
file and every quarantine list, 16 at a time; for the run, reading the documents of those chunks, and reading and
writing all files of the parts that held one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from pipeline.base.errors import ConfigError, CorpusError, StorageError, visible
from pipeline.base.formats import counted, last_few, plain
from pipeline.base.messages import print_plain
from pipeline.base.parallel import in_parallel
from pipeline.coordination.lock import locked
from pipeline.corpus.exports import ExportRecord, exports_of
from pipeline.corpus.fits import record_of
from pipeline.corpus.leftovers import ATTEMPT, REPORT, delete_reports
from pipeline.corpus.reader import Corpus
from pipeline.corpus.tombstones import create_tombstone, read_tombstones
from pipeline.maintenance.made_with import exports_made_with, indexes_made_with, models_made_with
from pipeline.storage import layout
from pipeline.storage.remote import translate_errors
from pipeline.storage.store import Store, is_unfinished

NAMED = 20  # ids that are in no document
SHOWN = 80  # characters of an id
FIRST = 5  # ids that are shown, so that a person can check them


@dataclass
class PurgeMatches:
    """Where purged ids occur. `hits`: chunk → ids. `documents`, `sentences` and `parts` count what readers see now."""

    hits: dict[str, set[str]] = field(default_factory=dict)
    documents: int = 0
    sentences: int = 0
    parts: int = 0
    quarantined: int = 0
    files: set[str] = field(default_factory=set)  # lists of documents that hold one

    @property
    def ids(self) -> set[str]:
        """Return the ids that were found in at least one document or quarantine list."""
        return set().union(*self.hits.values())


def purge(
    console: Console,
    corpus: Corpus,
    file: str,
    dry_run: bool,
    jobs_alive: Callable[[Sequence[str]], bool],
    in_advance: bool = False,
) -> None:
    """Purge the documents whose ids a file lists.

    Args:
        console: where is shown what was purged.
        corpus: the corpus.
        file: a path or URL: a text file with one id per line, or .jsonl or .parquet with `doc_id`; `ConfigError` is
            raised if it holds no id.
        dry_run: whether to say only what would be purged.
        jobs_alive: a function that says whether SLURM has any of these jobs.
        in_advance: whether ids are purged of which none is found, so that no document comes under one later.

    Raises:
        ConfigError: if the file cannot be read or none of its ids is found, which `in_advance` allows.
    """
    ids = read_ids(file)
    with contextlib.nullcontext() if dry_run else locked(corpus.store, "purge", jobs_alive):
        _purge(console, corpus, file, ids, dry_run, in_advance)


def _purge(console: Console, corpus: Corpus, file: str, ids: set[str], dry_run: bool, in_advance: bool) -> None:
    found = find(corpus, ids)
    missing = sorted(ids - found.ids)
    refused = not found.hits and not in_advance
    if refused and ids <= read_tombstones(corpus.store).ids:
        gone = 0 if dry_run else _delete_reports(corpus.store, "the documents are purged already")
        done = f"the reports are deleted, which may quote them ({counted(gone, 'file')})" if gone else ""
        console.print(f"All of these ids are purged already; {done or 'nothing was changed'}.", highlight=False)
        return
    if refused and not dry_run:
        raise ConfigError(_none_found(corpus, file, ids))
    indexes = sorted(indexes_made_with(corpus, found.files)) if found.files else []
    exports = list(exports_made_with(corpus, found.hits, found.files)) if found.files else []
    path = None if dry_run else _record(corpus, file, ids, found, indexes, exports)  # before anything can fail to print
    if path and found.files:  # an export may have been recorded meanwhile that did not see the tombstone
        exports = list(exports_made_with(corpus, found.hits, found.files))
    console.print(
        f"{counted(len(ids), 'id')}: {counted(found.documents, 'document')} of {counted(found.sentences, 'sentence')} "
        f"in {counted(found.parts, 'part')}, {counted(found.quarantined, 'record')} in quarantine; "
        f"{counted(len(found.hits), 'chunk')} to write again",
        highlight=False,
    )
    console.print(
        Text(f"{len(ids) - len(missing)} found, {len(missing)} not found; the first ids of the file: {_first(ids)}"),
        soft_wrap=True,
    )
    for doc_id in missing[:NAMED]:
        console.print(Text(f"in no document: {_shown(doc_id)}", style="yellow"), soft_wrap=True)
    if len(missing) > NAMED:
        console.print(f"and {counted(len(missing) - NAMED, 'id')} more that are in no document")
    _say_made_with(console, corpus, indexes)
    _say_decoder(console, corpus, found.hits)
    _say_exports(console, corpus, exports)
    if path is None:
        then = (
            "purge refuses ids of which none is found, unless --in-advance is given" if refused else "they are purged"
        )
        console.print(f"Nothing was changed; without --dry-run {then}.", soft_wrap=True)
        return
    print_plain(console, f"{path} written: no reader shows them any more.")
    if found.hits:
        console.print(
            "Now run: pipeline run corpus.yaml (it writes those chunks again and deletes their old files). Input "
            "files, exports, copies elsewhere, and older versions that a bucket may keep, are not touched: they are "
            "yours.",
            soft_wrap=True,
        )


def _none_found(corpus: Corpus, file: str, ids: set[str]) -> str:
    which = f"the id {_first(ids)}" if len(ids) == 1 else f"any of the {len(ids)} ids ({_first(ids)})"
    return (
        f"--ids {file}: no document or quarantined record of {corpus.url} has {which}, so nothing was changed; give "
        "ids as this corpus has them (pipeline inspect --columns doc_id,text --to FILE lists them), or --in-advance to "
        "leave out documents that come under such an id later"
    )


def _first(ids: Collection[str]) -> str:
    return ", ".join(repr(_shown(one)) for one in sorted(ids)[:FIRST]) + (", …" if len(ids) > FIRST else "")


def _shown(doc_id: str) -> str:
    return plain(visible(doc_id), SHOWN)


def _record(
    corpus: Corpus,
    file: str,
    ids: set[str],
    found: PurgeMatches,
    indexes: Sequence[str],
    exports: Sequence[ExportRecord],
) -> str:
    """Write the tombstone, from which no reader shows the documents any more, and return its path."""
    path = create_tombstone(corpus.store, ids, found.hits, file, indexes, [one.name for one in exports])
    _delete_reports(corpus.store, f"{path} is written, so the documents are purged")
    for one in filter(is_unfinished, corpus.store.find("documents")):  # of killed writes
        corpus.store.delete(one)
    return path


def _delete_reports(store: Store, done: str) -> int:
    """Delete the reports, which quote sentences; the next run, or `pipeline report`, writes new ones."""
    try:
        return delete_reports(store)
    except (OSError, StorageError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise StorageError(
            f"{done}, but the folder {store.url}/{REPORT} cannot be deleted, and may still quote them ({why}); fix "
            "that, and purge the same ids again, or delete that folder by hand"
        ) from error


def _say_made_with(console: Console, corpus: Corpus, indexes: Sequence[str]) -> None:
    """Say which indexes and models were made with purged documents; they are not changed."""
    models = models_made_with(corpus.store, indexes) if indexes else []
    for what, names in (("index", indexes), ("model", models)):
        if names:
            several = what if len(names) == 1 else {"index": "indexes", "model": "models"}[what]
            console.print(
                Text(f"made with them, and not changed: {several} {', '.join(names)}", style="yellow"), soft_wrap=True
            )
    if models:
        console.print(
            Text(
                "A model learned from them: pipeline train corpus.yaml --fresh trains it again without them.", "yellow"
            ),
            soft_wrap=True,
        )


def _say_decoder(console: Console, corpus: Corpus, chunks: Collection[str]) -> None:
    """Say that the decoder was fine-tuned on chunks that hold purged documents; it is not changed."""
    try:
        record = record_of(corpus.store, corpus.view, "decoder")
    except CorpusError as error:  # the documents are purged all the same
        console.print(Text(f"the decoder may have been made with them: {error}", style="red"), soft_wrap=True)
        return
    if record and not set(record.chunks).isdisjoint(chunks):
        again = "pipeline run --refit decoder makes it again without them"
        told = f"made with them, and not changed: {record.path}; {again}"
        console.print(Text(told, style="yellow"), soft_wrap=True)


def _say_exports(console: Console, corpus: Corpus, exports: Sequence[ExportRecord]) -> None:
    """Say which exports hold purged documents, and which records of exports cannot be read."""
    shown, more = last_few(exports, "after the purge, pipeline status --json lists all")
    for one in (*(f"made with them, and not changed: export {one}" for one in shown), *filter(None, [more])):
        console.print(Text(one, style="yellow"), soft_wrap=True)
    if exports:
        console.print(
            Text("Delete these exports, and make them again after the next run: pipeline export", "yellow"),
            soft_wrap=True,
        )
    for error in exports_of(corpus.store).damaged.values():
        console.print(Text(f"an export may hold them: {error}", style="red"), soft_wrap=True)


def show_unpurged(console: Console, corpus: Corpus) -> None:
    """Show what is purged but still in files, if anything."""
    hits = corpus.tombstones.by_chunk
    if hits:
        ids = counted(len(frozenset().union(*hits.values())), "purged id")
        console.print(f"{ids} to take out of {counted(len(hits), 'chunk')}; no reader shows them: pipeline run does it")


def read_ids(file: str) -> set[str]:
    """Read ids: one per line of a text file; a string or an object with `doc_id` per line of .jsonl; or doc_id of
    .parquet.

    Takes any fsspec URL, and a pipe of text such as `<(…)`. Only a line feed ends a line, whatever else Unicode calls a
    line end, so an id that contains a line feed has to be given as .jsonl or .parquet.
    """
    try:
        opener = Path(file).open if Path(file).is_fifo() else partial(fsspec.open, file)  # which seeks
        with translate_errors(file), opener("rb") as opened:
            if file.endswith(".parquet"):
                ids = pq.read_table(opened, columns=["doc_id"])["doc_id"].cast(pa.string()).to_pylist()
            else:
                ids = [line.removesuffix("\r") for line in opened.read().decode("utf-8-sig").split("\n")]
                if file.endswith((".jsonl", ".ndjson")):
                    ids = [_id_of(file, number, line) for number, line in enumerate(ids, 1) if line.strip()]
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ConfigError(f"--ids {file}: there is no such file; give a text file with one id per line") from error
    except (UnicodeDecodeError, pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"--ids {file} cannot be read ({error}); give a file of UTF-8 text with one id per line, or Parquet with a "
            "column doc_id"
        ) from error
    if None in ids:
        raise ConfigError(f"--ids {file}: doc_id of row {ids.index(None)} is null; leave that row out")
    found = {doc_id for doc_id in ids if doc_id}
    if not found:
        raise ConfigError(f"--ids {file} lists no id; give UTF-8 text with one id per line")
    return found


def _id_of(file: str, number: int, line: str) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(line)
        doc_id = value.get("doc_id") if isinstance(value, dict) else value
        if isinstance(doc_id, str) and doc_id:
            return doc_id
    raise ConfigError(f'--ids {file}: line {number} is not an id; write "ID" or {{"doc_id": "ID"}} on each line')


def find(corpus: Corpus, ids: Collection[str]) -> PurgeMatches:
    """Search every documents file and quarantine list, also those of older settings and of interrupted attempts."""
    wanted = pa.array(sorted(ids), pa.string())
    shown = set[str]()
    for chunk in corpus.chunks:
        shown.update(file.path for part in chunk.parts for file in part.receipts["segment"].files)
        if chunk.receipt and chunk.receipt.quarantine:
            shown.add(chunk.receipt.quarantine.path)
    paths = [
        path
        for folder in ("documents", "quarantine")
        for path in corpus.store.find(folder)
        if ATTEMPT.fullmatch(path.rpartition("/")[2]) and path.endswith(".parquet")
    ]
    found = PurgeMatches()
    for path, table in zip(paths, in_parallel(lambda path: _hits(corpus.store, path, wanted), paths), strict=True):
        if not table.num_rows:
            continue
        found.hits.setdefault(_chunk_of(path), set()).update(table["doc_id"].to_pylist())
        found.files.add(path)
        if path in shown and path.startswith("documents/"):
            already = corpus.tombstones.of(_chunk_of(path))
            table = table.filter(pc.invert(pc.is_in(table["doc_id"], value_set=pa.array(sorted(already), pa.string()))))
            found.documents += int((table["subdocument"].to_numpy() == 0).sum())
            found.sentences += int(pc.sum(table["rows"]).as_py() or 0)
            found.parts += bool(table.num_rows)
        elif path in shown:
            found.quarantined += int(pc.sum(table["records"]).as_py())
    return found


def _hits(store: Store, path: str, wanted: pa.Array) -> pa.Table:
    columns = ["doc_id", *(("subdocument", "rows") if path.startswith("documents/") else ("records",))]
    try:
        with store.open(path) as file:
            table = pq.read_table(file, columns=columns, page_checksum_verification=True)
            return table.filter(pc.is_in(table["doc_id"], value_set=wanted))  # statistics have no checksum
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorpusError(
            f"{store.url}/{path} cannot be read ({error}), so nobody knows whether it holds one of these documents: "
            "pipeline verify --repair, pipeline run, then purge again"
        ) from error


def _chunk_of(path: str) -> str:
    return layout.part_owner(layout.data_owner(path)[0])
