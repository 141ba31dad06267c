"""The record of runs: `runs/<time>-<id>/` with the configuration, the view that readers open, events, summary."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from datetime import UTC, datetime
from typing import Any

import yaml

from pipeline.base.errors import CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.corpus.view import VIEW_FILE, View, save_recipes
from pipeline.storage import layout
from pipeline.storage.retry import take_retry_counts
from pipeline.storage.store import Store
from stages.stage import Settings

PACKING = "packed"  # in the header of corpora whose small text files share chunks
SUMMARY = "summary.json"  # how a run ended, in its folder
PROGRESS = "progress.json"  # how far a run is whose work this process drives
STARTS = "starts"  # marks of tasks that were begun, below a run's folder
EVENTS = "events"  # of the process that drives a run, below its folder
EVENT_SECONDS, MOST_EVENTS = 30.0, 10_000  # after which a file of events is written


class RunRecord:
    """One run's folder. `reopened`: that of a run under way, on another machine, instead of a new one."""

    def __init__(self, store: Store, config: RunConfig, view: View, reopened: str | None = None) -> None:
        self.store = store
        self._events: list[str] = []
        self._event_files, self._written = 0, time.monotonic()
        self._worker = f"{socket.gethostname()}-{os.getpid()}"
        if reopened:
            self.folder = reopened
            return
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        self.folder = f"{layout.RUNS}/{now}-{secrets.token_hex(3)}"
        header = {"layout": layout.LAYOUT_VERSION, "name": config.name, PACKING: True}
        store.create(layout.CORPUS_FILE, json.dumps(header, indent=1).encode())
        check_corpus(store)
        store.write(f"{self.folder}/corpus.yaml", config.as_yaml().encode())
        view.write_chunks(store, self.folder)
        self.see(view)

    def see(self, view: View) -> None:
        """Readers open this view, of the same chunks, from now on: more has been decided."""
        save_recipes(self.store, view)
        view.write_header(self.store, self.folder)

    def log(self, event: dict[str, Any]) -> None:
        """Remember an event, with who saw it and when; a file of them is written about every 30 seconds."""
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "worker": self._worker} | event
        self._events.append(json.dumps(line, ensure_ascii=False))
        if len(self._events) >= MOST_EVENTS or time.monotonic() - self._written > EVENT_SECONDS:
            self.write_events()

    def write_events(self) -> None:
        """Write what happened since the last time: nobody else knows of it yet."""
        if self._events:
            path = f"{self.folder}/{EVENTS}/{self._worker}-{self._event_files:06d}.jsonl"
            self.store.write(path, ("\n".join(self._events) + "\n").encode())
        self._events, self._event_files, self._written = [], self._event_files + 1, time.monotonic()

    def close(self, summary: dict[str, Any]) -> None:
        """Write the events and the summary."""
        self.write_events()
        close_run(self.store, self.folder, summary)


def close_run(store: Store, folder: str, summary: dict[str, Any]) -> None:
    """Say how a run ended; the marks of started tasks have served."""
    for path in store.find(f"{folder}/{STARTS}"):
        store.delete(path)
    repeated = take_retry_counts()  # by this process, and in no receipt
    summary = summary | ({"storage_retries": repeated} if repeated else {})
    store.write(f"{folder}/{SUMMARY}", json.dumps(summary, ensure_ascii=False, indent=1).encode())


def check_corpus(store: Store) -> None:
    """Raises `CorpusError` unless the folder is a corpus of this layout."""
    if not store.exists(layout.CORPUS_FILE):
        raise CorpusError(
            f"{store.url} is no corpus ({layout.CORPUS_FILE} is missing); give the `output` of a run, or the "
            "corpus.yaml that pipeline run has begun with"
        )
    try:
        version = json.loads(store.read(layout.CORPUS_FILE))["layout"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"{store.url}/{layout.CORPUS_FILE} is damaged ({type(error).__name__}: {error}); if this folder is a "
            f"corpus of layout {layout.LAYOUT_VERSION}, delete that file and run its corpus.yaml again: what is "
            "finished is kept"
        ) from error
    if version != layout.LAYOUT_VERSION:
        newer = isinstance(version, int) and version > layout.LAYOUT_VERSION
        todo = "install the version that made it, or use another output" if newer else "use another output"
        raise CorpusError(
            f"{store.url} has layout {version}; this version reads layout {layout.LAYOUT_VERSION}: {todo}"
        )


def packs(store: Store) -> bool:
    """Whether small text files share chunks here: in new corpora, and those that began so."""
    if not store.exists(layout.CORPUS_FILE):
        return True
    check_corpus(store)
    return bool(json.loads(store.read(layout.CORPUS_FILE)).get(PACKING))


def newest_view(store: Store) -> View:
    """The view of the newest run. Raises `CorpusError` if there was none."""
    return View.read(store, _newest(store))


def newest_config(store: Store) -> dict[str, Any]:
    """The resolved corpus.yaml of the newest run, as plain values. Raises `CorpusError` if there was none."""
    return dict(yaml.safe_load(store.read(f"{_newest(store)}/corpus.yaml")))


def changed_settings(store: Store, config: RunConfig) -> list[str]:
    """Settings that would make another corpus than the newest run's, e.g. `segment.max_chars`.

    Not those of `train` and `select`: they are for those who read a corpus, and no meaning of it.
    """
    then, changed = newest_config(store), []
    for name, now in config.meaningful().items():
        section = getattr(config, name)
        before = then.get(name)
        if isinstance(section, Settings) and isinstance(before, dict):
            changed += [f"{name}.{key}" for key, value in section.meaningful().items() if before.get(key) != value]
        elif before != now:
            changed.append(name)
    return changed


def newest_is(store: Store, view: View, config: RunConfig) -> bool:
    """Whether readers already see this view, and the selection of this configuration, by a run that came to its end."""
    runs = [f"{layout.RUNS}/{name}" for name in store.folders(layout.RUNS)]
    if not store.exists(layout.CORPUS_FILE) or not any(store.exists(f"{run}/{VIEW_FILE}") for run in reversed(runs)):
        return False
    if store.read(f"{_newest(store)}/{VIEW_FILE}") != view.header().encode():
        return False
    if not store.exists(f"{runs[-1]}/summary.json"):
        return False
    select = config.select.model_dump(mode="json") if config.select else None
    return newest_config(store).get("select") == select


def _newest(store: Store) -> str:
    """Folder of the newest run; one that was killed before it wrote its view does not count."""
    check_corpus(store)
    for name in reversed(store.folders(layout.RUNS)):
        if store.exists(f"{layout.RUNS}/{name}/{VIEW_FILE}"):
            return f"{layout.RUNS}/{name}"
    raise CorpusError(f"{store.url} has no run yet; start one with: pipeline run corpus.yaml")
