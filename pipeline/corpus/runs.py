"""The record of runs: `runs/<time>-<id>/` with the configuration, the view that readers open, events, and a summary."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from pipeline.base.errors import CorpusError, DamagedError, MissingError
from pipeline.corpus.readme import write_readme
from pipeline.corpus.view import AGAIN, VIEW_FILE, View, save_recipes
from pipeline.inputs.chunks import CHUNK_BYTES, Edges
from pipeline.inputs.packing import PACKABLE, TEXT
from pipeline.storage import layout
from pipeline.storage.records import needed, parse_json, read_json, read_yaml, sealed_yaml
from pipeline.storage.remote import is_remote
from pipeline.storage.retry import take_retry_counts
from pipeline.storage.store import Store
from stages.stage import Settings

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig

PACKING = "packed"  # in the header: the formats whose small files share chunks; true in earlier versions, for text
CONFIG = "corpus.yaml"  # the settings of a run, in its folder
SUMMARY = "summary.json"  # how a run ended, in its folder
EXPECTATIONS = "expectations"  # in that summary: what the report expects, and whether it holds
REPORT = "report/index.html"  # in the corpus
PROGRESS = "progress.json"  # the progress of a run that this process drives
STARTS = "starts"  # marks of tasks that were begun, below a run's folder
EVENTS = "events"  # the log of the process that drives a run, below its folder
_TIME = "%Y%m%dT%H%M%S.%f"  # begins the name of a run's folder
_RUN_NAME = re.compile(r"\d{8}T\d{6}\..+")
EVENT_SECONDS, MOST_EVENTS = 30.0, 10_000  # after which a file of events is written


class _RunHeader(BaseModel):
    layout: int
    packed: bool | list[str] = False


class _Phases(BaseModel):
    phases: list[dict[str, Any]]


class NoRunError(CorpusError):
    """A corpus has no run that wrote its view."""


class Summary(BaseModel):
    """How a run ended, as readers use it."""

    model_config = ConfigDict(extra="allow")

    done: bool
    interrupted: bool = False
    failures: list[str] = []


class RunRecord:
    """The folder of one run.

    Args:
        store: the corpus.
        config: the configuration of the run.
        view: what readers see once the run has ended.
        reopened: the folder of a run that continues on another machine; None to make a new folder.
    """

    def __init__(self, store: Store, config: RunConfig, view: View, reopened: str | None = None) -> None:
        self.store = store
        self._events: list[str] = []
        self._event_files, self._written = 0, time.monotonic()
        self._worker = f"{socket.gethostname()}-{os.getpid()}"
        if reopened:
            self.folder = reopened
            return
        self.folder = _next_folder(store)
        write_header(store, config.name)
        _renew_header(store)
        write_readme(store)
        store.write(f"{self.folder}/{CONFIG}", sealed_yaml(config.as_yaml()))
        view.write_chunks(store, self.folder)
        self.see(view)

    def see(self, view: View) -> None:
        """Publish a view of the same chunks to readers, after more has been decided."""
        save_recipes(self.store, view)
        view.write_header(self.store, self.folder)

    def log(self, event: dict[str, Any]) -> None:
        """Record an event with the worker that reported it and the time; events are written about every 30 seconds."""
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "worker": self._worker} | event
        self._events.append(json.dumps(line, ensure_ascii=False))
        if len(self._events) >= MOST_EVENTS or time.monotonic() - self._written > EVENT_SECONDS:
            self.write_events()

    def write_events(self) -> None:
        """Write the events since the last write; no other process knows them yet."""
        if self._events:
            path = f"{self.folder}/{EVENTS}/{self._worker}-{self._event_files:06d}.jsonl"
            self.store.write(path, ("\n".join(self._events) + "\n").encode())
        self._events, self._event_files, self._written = [], self._event_files + 1, time.monotonic()

    def close(self, summary: dict[str, Any]) -> None:
        """Write the events and the summary."""
        self.write_events()
        close_run(self.store, self.folder, summary)


def _next_folder(store: Store) -> str:
    """Return a new folder for a run, named after the time, that sorts after all others.

    Readers open the last one. So where the clock was put back, or another machine's was ahead, the time is a
    microsecond after that of the last run.
    """
    now = datetime.now(UTC)
    for name in reversed(store.folders(layout.RUNS)):
        with contextlib.suppress(ValueError, OverflowError):  # not a folder of ours
            last = datetime.strptime(name.partition("-")[0], _TIME).replace(tzinfo=UTC)
            now = max(now, last + timedelta(microseconds=1))
            break
    return f"{layout.RUNS}/{now:{_TIME}}-{secrets.token_hex(3)}"


def close_run(store: Store, folder: str, summary: dict[str, Any]) -> None:
    """Record how a run ended, and delete the marks of started tasks.

    Args:
        store: the corpus.
        folder: the folder of the run.
        summary: what `summary.json` says, for instance the exit state and the accounting.
    """
    for path in store.find(f"{folder}/{STARTS}"):
        store.delete(path)
    repeated = take_retry_counts()  # by this process, and in no receipt
    summary = summary | ({"storage_retries": repeated} if repeated else {})
    store.write(f"{folder}/{SUMMARY}", json.dumps(summary, ensure_ascii=False, indent=1).encode())


def write_header(store: Store, name: str, packed: Collection[str] = PACKABLE) -> None:
    """Make a folder a corpus, unless it is one already.

    Args:
        store: the folder.
        name: the name of the corpus.
        packed: the formats whose small files share chunks.
    """
    header = {"layout": layout.LAYOUT_VERSION, "name": name, PACKING: sorted(packed)}
    store.create(layout.CORPUS_FILE, json.dumps(header, indent=1).encode())


def _renew_header(store: Store) -> None:
    """Mark a corpus of an older layout as one of this layout, before anything is written as it demands.

    Versions that know only the older layout refuse the corpus from now on. Raises `CorpusError` as `check_corpus`.
    """
    if check_corpus(store).layout != layout.LAYOUT_VERSION:
        header = json.loads(store.read(layout.CORPUS_FILE)) | {"layout": layout.LAYOUT_VERSION}
        store.write(layout.CORPUS_FILE, json.dumps(header, indent=1).encode())


def check_corpus(store: Store) -> _RunHeader:
    """Read the header. Raises `CorpusError` unless the folder is a corpus of a layout that this version reads."""
    remedy = f"pipeline verify {store.url} --repair writes it again"
    try:
        header = read_json(store, layout.CORPUS_FILE, _RunHeader, remedy)
    except MissingError:
        if _has_runs(store):
            raise DamagedError(f"{store.url}/{layout.CORPUS_FILE}", "it is missing", remedy) from None
        raise CorpusError(
            f"{store.url} is not a corpus ({layout.CORPUS_FILE} is missing); give the `output` of a run, or the "
            "corpus.yaml that pipeline run has begun with (first of all: pipeline run corpus.yaml)"
        ) from None
    if header.layout not in layout.READABLE:
        newer = header.layout > layout.LAYOUT_VERSION
        todo = "install the version that made it, or use another output" if newer else "use another output"
        raise CorpusError(
            f"{store.url} has layout {header.layout}; this version reads the layouts "
            f"{' and '.join(map(str, layout.READABLE))}: {todo}"
        )
    return header


def packs(store: Store) -> Collection[str]:
    """Return the formats whose small files share chunks here: all in new corpora, in others those they began with."""
    if not is_begun(store):
        return PACKABLE
    stated = check_corpus(store).packed
    return stated if isinstance(stated, list) else TEXT if stated else ()


def known_edges(store: Store, chunk_bytes: int) -> Edges:
    """Return where the newest run cut compressed files, if it did so with these `chunk_bytes`; nothing if its view
    cannot be read.
    """
    try:
        if newest_config(store).get("chunk_bytes", CHUNK_BYTES) != chunk_bytes:
            return {}
        chunks = newest_view(store).listed.chunks
    except CorpusError:  # told by who opens it; the files are read again
        return {}
    ranges: dict[tuple[str, str, str], dict[int, int]] = {}
    names = ("input", "path", "stamp", "current", "start", "end", "compression")
    for lists in chunks.take(pc.not_equal(chunks.table["compression"].cast(pa.string()), "")).columns(*names):
        for name, path, stamp, current, start, end, _ in zip(*lists, strict=True):
            ranges.setdefault((name, path, current or stamp), {})[start] = end
    edges = {file: [0, *(end for _, end in sorted(some.items()))] for file, some in ranges.items()}
    return {file: some for file, some in edges.items() if some[:-1] == sorted(ranges[file])}


def is_begun(store: Store) -> bool:
    """Return whether a folder is a corpus, or was one before its header was lost."""
    return store.exists(layout.CORPUS_FILE) or _has_runs(store)


def _has_runs(store: Store) -> bool:
    """Return whether runs were recorded here; the folder `runs` of a project holds corpora instead."""
    return any(_RUN_NAME.fullmatch(name) for name in store.folders(layout.RUNS))


def newest_view(store: Store) -> View:
    """Return the view of the newest run. Raises `CorpusError` if there was none."""
    return View.read(store, newest_run(store))


def newest_config(store: Store) -> dict[str, Any]:
    """Return the resolved corpus.yaml of the newest run, as plain values. Raises `CorpusError` if there was none."""
    return read_config(store, newest_run(store))


def read_config(store: Store, folder: str) -> dict[str, Any]:
    """Return the settings of a run. Raises `CorpusError` if they are missing or damaged."""
    path = f"{folder}/{CONFIG}"
    with needed(store, path, AGAIN):
        settings = read_yaml(store, path, AGAIN)
    if not (isinstance(settings.get("input"), list) and isinstance(settings.get("launcher"), dict)):
        raise DamagedError(f"{store.url}/{path}", "it has no inputs, or no launcher", AGAIN)
    return settings


def read_summary(store: Store, folder: str) -> Summary | None:
    """Return how a run ended; None if it has not. Raises `CorpusError` if the summary is damaged."""
    path = f"{folder}/{SUMMARY}"
    try:
        data = store.read(path)
    except MissingError:
        return None
    return parse_json(data, Summary, f"{store.url}/{path}", AGAIN)


def read_progress(store: Store, folder: str) -> list[dict[str, Any]]:
    """Return the progress of the phases of a run that one process drives. Raises `CorpusError` if it is damaged."""
    path = f"{folder}/{PROGRESS}"
    try:
        data = store.read(path)
    except MissingError:
        return []
    return parse_json(data, _Phases, f"{store.url}/{path}", "delete it: only the progress of that run is lost").phases


def changed_settings(store: Store, config: RunConfig) -> list[str]:
    """Return the settings that would make another corpus than the newest run's, e.g. `segment.max_chars`.

    Those of `train` and `select` are left out: they concern readers of a corpus, not its content.
    """
    then, changed = newest_config(store), []
    for name, now in config.meaningful().items():
        section = getattr(config, name)
        before = then.get(name)
        if isinstance(section, Settings) and isinstance(before, dict):
            values = section.model_dump(mode="json")  # as configurations of runs have them; recipes name digests
            changed += [f"{name}.{key}" for key in section.meaningful() if before.get(key) != values.get(key)]
        elif before != now and not (name == "input" and _moved(then, before, config.output, now)):
            changed.append(name)
    return changed


def _moved(then: dict[str, Any], before: Any, output: str, now: Any) -> bool:
    """Return whether inputs differ only because they and the corpus were copied to another folder together."""
    old = str(then.get("output"))
    if is_remote(old) or is_remote(output) or not isinstance(before, list):
        return False

    def beside(inputs: list[Any], folder: str) -> list[Any]:
        """Return the inputs with local paths relative to the corpus."""
        return [
            one | {"path": os.path.relpath(one["path"], folder)}
            if isinstance(one, dict) and isinstance(one.get("path"), str) and not is_remote(one["path"])
            else one
            for one in inputs
        ]

    return beside(before, old) == beside(now, output)


def newest_is(store: Store, view: View, config: RunConfig) -> bool:
    """Return whether readers already see this view, and what this configuration selects and reports, by a run that
    ended well.

    If anything of that run's record is damaged, they do not, and another record has to be written.

    Args:
        store: the corpus.
        view: what readers should see.
        config: the configuration, with its selection and its section `report`.

    Returns:
        False if another record of a run has to be written.
    """
    if not store.exists(layout.CORPUS_FILE):
        return False
    try:
        folder = newest_run(store)
        if folder != f"{layout.RUNS}/{store.folders(layout.RUNS)[-1]}":  # a newer run has no view
            return False
        summary = read_summary(store, folder)
        if View.read(store, folder).header() != view.header() or not (summary and summary.done):
            return False  # its report, if there is one, may be an earlier one
        select = config.select.model_dump(mode="json") if config.select else None
        report = config.report.model_dump(mode="json") if config.report else None
        then = read_config(store, folder)
        return then.get("select") == select and then.get("report") == report
    except (DamagedError, MissingError, NoRunError):
        return False


def newest_run(store: Store) -> str:
    """Return the folder of the run that readers open: the newest one that has a view.

    A run that was killed before it wrote its view does not count; a run that lost its view is an error. Raises
    `CorpusError`.
    """
    check_corpus(store)
    return newest_folder(store)


def newest_folder(store: Store) -> str:
    """Return `newest_run` of a folder that is known to be a corpus."""
    for name in reversed(store.folders(layout.RUNS)):
        folder = f"{layout.RUNS}/{name}"
        if store.exists(f"{folder}/{VIEW_FILE}"):
            return folder
        if store.exists(f"{folder}/{SUMMARY}"):  # it has ended, so it had a view
            raise DamagedError(f"{store.url}/{folder}/{VIEW_FILE}", "it is missing", AGAIN)
    raise NoRunError(f"{store.url} has no run yet; start one with: pipeline run corpus.yaml")
