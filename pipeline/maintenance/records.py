"""Checks whether the records of a corpus can be read: each file that any command opens, except the rows themselves.

A damaged record is made again from others if that is possible, or deleted, so that the next run or training makes it
again; if neither helps, a message says what to do. Cost: one small read per receipt, sixteen at a time, and all of the
ledgers.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from pipeline.base.errors import CorpusError, DamagedError, MissingError, PipelineError
from pipeline.base.parallel import in_parallel
from pipeline.config.run_config import RunConfig
from pipeline.coordination.lock import FOLDER as LOCK
from pipeline.corpus.document_ids import FOLDER as IDS
from pipeline.corpus.document_ids import check_ids
from pipeline.corpus.events import read_events
from pipeline.corpus.exports import exports_of, note_loss, read_export, record_paths, view_of
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.fits import Rate, check_checkpoint, is_checkpoint, read_record
from pipeline.corpus.ledger import FOLDER as LEDGERS
from pipeline.corpus.ledger import LedgerGoneError, check_file, forget
from pipeline.corpus.receipts import read_chunk_receipt, read_receipt
from pipeline.corpus.runs import (
    EVENTS,
    PROGRESS,
    SUMMARY,
    RunRecord,
    check_corpus,
    newest_folder,
    read_config,
    read_progress,
    read_summary,
    write_header,
)  # fmt: skip
from pipeline.corpus.tombstones import ERASED, check_tombstone, read_erased
from pipeline.corpus.tombstones import FOLDER as TOMBSTONES
from pipeline.corpus.view import View
from pipeline.inputs import ChunkTable
from pipeline.inputs.chunk import PACKED, TO_THE_END
from pipeline.inputs.chunks import CHUNK_BYTES
from pipeline.inputs.packing import COMPRESSED, MEMBERS, PACKABLE, RANGES, RECORDS, SMALL, formats_of
from pipeline.planning.plan import make_plan
from pipeline.storage import layout
from pipeline.storage.records import Values, read_json
from pipeline.storage.store import Store, is_unfinished

RECEIPT = re.compile(r"(receipts/[a-z-]+|chunks)/[0-9a-f]{2}/[0-9a-f-]+\.[0-9a-f]{8}\.json")
_FIT = re.compile(rf"{layout.FITS}/[a-z]+\.[0-9a-f]{{8}}-[0-9]{{3}}\.json")
_EVENTS = re.compile(rf"{layout.RUNS}/[^/]+/(phase-[0-9]+/)?{EVENTS}/[^/]+")
_OF_PHASE = re.compile(rf"{layout.RUNS}/[^/]+/phase-[0-9]+/(order\.json|claims/[^/]+\.done|workers/[^/]+\.json)")
_LEASE = re.compile(rf"{LOCK}/.+-[0-9]{{3,}}\.lease")


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a file.

    `receipt`: a file to delete, after which the next run or training makes the thing again. `mend`: a function that
    makes it again at once. `blocks`: until it is repaired, the content of the corpus is not known. `rerun`: the next
    run makes it again, and there is nothing to delete.
    """

    path: str
    what: str
    receipt: str | None
    mend: Callable[[], object] | None = None
    blocks: bool = False
    rerun: bool = False


class Without(Store):
    """A corpus as it would be without some files that cannot be read."""

    def __init__(self, url: str, hidden: Collection[str]) -> None:
        super().__init__(url)
        self._hidden = frozenset(hidden)

    def read(self, path: str) -> bytes:
        """Return the bytes of a file that is not hidden."""
        if path in self._hidden:
            raise MissingError(f"{self.url}: the file {path} is missing")
        return super().read(path)

    def exists(self, path: str) -> bool:
        """Return whether a file exists and is not hidden."""
        return path not in self._hidden and super().exists(path)

    def find(self, folder: str, prefix: str = "") -> list[str]:
        """Return the files that are not hidden."""
        return [path for path in super().find(folder, prefix) if path not in self._hidden]


def check_records(store: Store, config: RunConfig | None = None, receipts: bool = True) -> list[Finding]:
    """Return findings for records that cannot be read, except those of trainings.

    Args:
        store: the corpus.
        config: the configuration of the corpus, if it is given.
        receipts: whether receipts are read too, of which a large corpus has millions.

    Returns:
        The findings; empty if all is well.

    Raises:
        CorpusError: for a folder that is not a corpus.
    """
    newest = [*_header(store, config), *_newest(store, config)]
    of_parts = _receipts(store) if receipts else ()
    return [
        *newest,
        *_ends_of_runs(store),
        *_recipes(store),
        *_tables(store, LEDGERS, check_file),
        *_leases(store),
        *of_parts,
        *_fits(store),
        *_tombstones(store),
        *_tables(store, IDS, check_ids),
        *_exports(store, views=not newest),
    ]


def check_is_corpus(store: Store) -> None:
    """Raise `CorpusError` for a folder that is not a corpus, or has another layout; damage is not an error here."""
    for _ in _header(store, None):
        pass


def repair(store: Store, wrong: Collection[Finding]) -> tuple[int, int, list[str]]:
    """Delete what the next run makes again, and make again at once what is possible.

    Returns how many records were deleted, how many were made again, and what could not be repaired.
    """
    paths = sorted({one.receipt for one in wrong if one.receipt}, key=lambda path: (not path.startswith(LEDGERS), path))
    for path in paths:
        if path.startswith(f"{LEDGERS}/"):
            store.delete(path)
    forget(store, {layout.part_owner(layout.data_owner(path)[0]) for path in paths if RECEIPT.fullmatch(path)})
    for path in paths:
        store.delete(path)
    done, left = 0, []
    for one in wrong:
        if one.mend:
            try:
                one.mend()
                done += 1
            except (PipelineError, ValueError) as error:
                left.append(f"{one.path} cannot be made again here: {error}")
        elif not (one.receipt or one.rerun):
            left.append(f"{one.path} cannot be made again")
    return len(paths), done, left


def _header(store: Store, config: RunConfig | None) -> Iterator[Finding]:
    name = config.name if config else ""

    def again() -> None:
        store.delete(layout.CORPUS_FILE)
        write_header(store, name or store.url.rstrip("/").rpartition("/")[2], packed=_packs(store))

    try:
        check_corpus(store)
    except DamagedError as error:
        yield Finding(layout.CORPUS_FILE, error.what, None, again, blocks=True)


def _packs(store: Store) -> Collection[str]:
    """Return the formats whose small files share chunks, by the newest list of chunks that can be read."""
    for name in reversed(store.folders(layout.RUNS)):
        with contextlib.suppress(CorpusError):
            folder = f"{layout.RUNS}/{name}"
            chunks = View.read(store, folder).listed.chunks
            small = read_config(store, folder).get("chunk_bytes", CHUNK_BYTES) // SMALL
            return _packed_in(chunks, small)
    return PACKABLE


def _packed_in(chunks: ChunkTable, small: int) -> set[str]:
    """Return the formats that share chunks, and those of which no small file has a chunk of its own; and `MEMBERS`
    and `RANGES` if no large compressed file is one chunk, or some are several of this kind.

    small: bytes, below which a text file shares a chunk, or would.
    """
    packed, neighbours = set[str](), Counter[str]()
    for chunk in chunks:
        if chunk.format == PACKED:
            packed |= formats_of(chunk)
        elif chunk.format == "text":
            neighbours["text"] += 2 * (chunk.bytes < small)
        elif chunk.start == 0 and chunk.bytes * RECORDS * COMPRESSED < small:
            neighbours[chunk.format] += 1  # one alone has a chunk of its own in every corpus
        if chunk.by_text:
            packed |= {MEMBERS, RANGES}
        elif chunk.compression and chunk.end != TO_THE_END:
            packed.add(MEMBERS)
        elif chunk.compression and chunk.bytes > small * SMALL:
            neighbours.update({MEMBERS: 2, RANGES: 2})  # which would perhaps be cut
    alone = {kind for kind, files in neighbours.items() if files > 1}
    return packed | (set(PACKABLE) - alone)


def _newest(store: Store, config: RunConfig | None) -> Iterator[Finding]:
    """Check the settings and the view of the run that readers open; those of older runs are never opened."""
    try:
        folder = newest_folder(store)
        settings = read_config(store, folder)
    except (DamagedError, MissingError) as error:
        yield _of_newest(store, error, config)
        return
    except CorpusError:  # no run wrote its view yet
        return
    try:
        View.read(store, folder)
    except (DamagedError, MissingError) as error:
        yield _of_newest(store, error, _config_of(settings) or config)


def _of_newest(store: Store, error: CorpusError, config: RunConfig | None) -> Finding:
    path, what = layout.RUNS, str(error)
    if isinstance(error, DamagedError):
        path, what = error.where.removeprefix(f"{store.url}/"), error.what
    return Finding(path, what, None, partial(_write_record, store, config), blocks=True)


def _config_of(settings: dict[str, Any]) -> RunConfig | None:
    try:
        return RunConfig.model_validate_json(json.dumps(settings, default=str))
    except ValidationError:
        return None


def _write_record(store: Store, config: RunConfig | None) -> None:
    """Record the newest run once more, with the inputs as they are now. Raises `CorpusError` or `ConfigError`."""
    if config is None:
        raise CorpusError("its settings are lost with it; run the corpus.yaml of this corpus, which restores it")
    plan = make_plan(config.model_copy(update={"output": store.url}))
    RunRecord(store, plan.config, plan.view).close({"done": plan.nothing_to_do, "failures": []})


def _tried(path: str, read: Callable[[], object], receipt: str | None) -> Iterator[Finding]:
    """Read a file and say what is wrong with it; a file that is deleted meanwhile is not wrong."""
    try:
        read()
    except (MissingError, LedgerGoneError):
        return
    except DamagedError as error:
        yield Finding(path, error.what, receipt)
    except CorpusError as error:
        yield Finding(path, str(error), receipt)


def _ends_of_runs(store: Store) -> Iterator[Finding]:
    for name in store.folders(layout.RUNS):
        folder = f"{layout.RUNS}/{name}"
        yield from _tried(f"{folder}/{SUMMARY}", partial(read_summary, store, folder), f"{folder}/{SUMMARY}")
        yield from _tried(f"{folder}/{PROGRESS}", partial(read_progress, store, folder), f"{folder}/{PROGRESS}")
        paths = [path for path in store.find(folder) if not is_unfinished(path)]
        found = in_parallel(lambda path: list(_of_workers(store, path)), paths)
        yield from (one for each in found for one in each)


def _of_workers(store: Store, path: str) -> Iterator[Finding]:
    """Check events of a run, or what a phase, its shards and its workers left; other files have checks of their own."""
    if _EVENTS.fullmatch(path):
        yield from _tried(path, partial(read_events, store, path), path)
    elif _OF_PHASE.fullmatch(path):
        yield from _tried(path, partial(read_json, store, path, Values, ""), path)


def _recipes(store: Store) -> Iterator[Finding]:
    def read(path: str) -> None:
        name = path.rpartition("/")[2]
        recipe = read_json(store, path, Values, "")
        if name != f"{recipe.get('stage')}.{fingerprint(recipe)}.json":
            raise DamagedError(path, "it is not the recipe that its name says", "")

    for path in store.find("recipes"):
        if not is_unfinished(path):
            yield from _tried(path, partial(read, path), path)


def _tables(store: Store, folder: str, check: Callable[[Store, str], object]) -> Iterator[Finding]:
    for path in store.find(folder):
        if path.endswith(".parquet"):
            yield from _tried(path, partial(check, store, path), path)


def _leases(store: Store) -> Iterator[Finding]:
    for path in store.find(LOCK):
        if _LEASE.fullmatch(path):
            yield from _tried(path, partial(read_json, store, path, Values, ""), path)


def _receipts(store: Store) -> Iterator[Finding]:
    def read(path: str) -> list[Finding]:
        reader = read_chunk_receipt if path.startswith("chunks/") else read_receipt
        return list(_tried(path, partial(reader, store, path), path))

    for folder in ("receipts", "chunks"):
        paths = [path for path in store.find(folder) if RECEIPT.fullmatch(path)]
        yield from (one for found in in_parallel(read, paths) for one in found)


def _fits(store: Store) -> Iterator[Finding]:
    for path in store.find(layout.FITS):
        if _FIT.fullmatch(path):
            yield from _tried(path, partial(read_record, store, path), path)
        elif is_checkpoint(path):
            yield from _tried(path, partial(check_checkpoint, store, path), path)
        elif path.startswith(f"{layout.FITS}/rates/") and path.endswith(".json"):
            yield from _tried(path, partial(read_json, store, path, Rate, ""), path)


def _exports(store: Store, views: bool) -> Iterator[Finding]:
    """Check the records of exports, and the views that they name unless the newest one has to be repaired first."""
    for path in record_paths(store):
        yield from _tried(path, partial(read_export, store, path), path)
    for record in exports_of(store).records if views else ():
        if not record.lost:
            for found in _tried(record.path, partial(view_of, store, record), None):
                yield replace(found, mend=partial(note_loss, store, record))


def _tombstones(store: Store) -> Iterator[Finding]:
    present = store.find(TOMBSTONES)
    for path in present:
        if path.endswith(".parquet"):
            yield from _tried(path, partial(check_tombstone, store, path), None)
        elif path.endswith(ERASED):
            yield from _tried(path, partial(read_erased, store, path), path)
            if (lost := path.removesuffix(ERASED)) not in present:
                yield Finding(lost, "is missing, and says which documents were purged: restore it from a copy", None)
