"""The record of runs: `runs/<time>-<id>/` with the configuration, the view that readers open, events, summary."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import yaml

from pipeline import layout
from pipeline.config import RunConfig
from pipeline.errors import CorpusError
from pipeline.state import View, save_recipes
from pipeline.store import Store


class RunRecord:
    """One run's folder."""

    def __init__(self, store: Store, config: RunConfig, view: View) -> None:
        self.store = store
        self.folder = f"{layout.RUNS}/{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        header = {"layout": layout.LAYOUT_VERSION, "name": config.name}
        store.create(layout.CORPUS_FILE, json.dumps(header, indent=1).encode())
        check_corpus(store)
        save_recipes(store, view)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        store.write(f"{self.folder}/corpus.yaml", text.encode())
        store.write(f"{self.folder}/view.json", view.to_json().encode())
        self._events: list[str] = []

    def log(self, event: str) -> None:
        """Remember an event (one line of JSON)."""
        self._events.append(event)

    def close(self, summary: dict[str, Any]) -> None:
        """Write the events and the summary."""
        self.store.write(f"{self.folder}/events.jsonl", ("\n".join(self._events) + "\n").encode())
        self.store.write(f"{self.folder}/summary.json", json.dumps(summary, ensure_ascii=False, indent=1).encode())


def check_corpus(store: Store) -> None:
    """Raises `CorpusError` unless the folder is a corpus of this layout."""
    if not store.exists(layout.CORPUS_FILE):
        raise CorpusError(f"{store.url} is no corpus ({layout.CORPUS_FILE} is missing); give the `output` of a run")
    version = json.loads(store.read(layout.CORPUS_FILE)).get("layout")
    if version != layout.LAYOUT_VERSION:
        raise CorpusError(
            f"{store.url} has layout {version}; this version reads layout {layout.LAYOUT_VERSION}: use another output"
        )


def newest_view(store: Store) -> View:
    """The view of the newest run. Raises `CorpusError` if there was none."""
    check_corpus(store)
    views = [path for path in store.find(layout.RUNS) if path.endswith("/view.json")]
    if not views:
        raise CorpusError(f"{store.url} has no run yet; start one with: pipeline run corpus.yaml")
    return View.from_json(store.read(views[-1]))


def newest_is(store: Store, view: View) -> bool:
    """Whether readers already see this view."""
    if not store.exists(layout.CORPUS_FILE):
        return False
    views = [path for path in store.find(layout.RUNS) if path.endswith("/view.json")]
    return bool(views) and store.read(views[-1]) == view.to_json().encode()
