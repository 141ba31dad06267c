"""The first scheduler job fetches models for all nodes."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from launchers.weights import fetch_weights
from pipeline.base.errors import StartError
from pipeline.config.load import load_config
from stages.sonar.card import load_card
from tests.conftest import TINY_CARD, MakeConfig

NODES = 20


@pytest.fixture
def publisher() -> Iterator[tuple[str, list[str]]]:
    """An HTTP server of the small model's files: its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(TINY_CARD.parent))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def published(folder: Path, url: str) -> Path:
    """The card of the small model whose files are at a URL."""
    card = yaml.safe_load(TINY_CARD.read_text())
    card["files"] = {
        role: {**{key: value for key, value in file.items() if key != "path"}, "url": f"{url}/{file['path']}"}
        for role, file in card["files"].items()
    }
    path = folder / "published.yaml"
    path.write_text(yaml.safe_dump(card))
    return path


def test_a_model_is_fetched_once_for_all_nodes(
    make_config: MakeConfig, tmp_path: Path, publisher: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = publisher
    path = published(tmp_path, url)
    config = load_config(make_config(encode={"model": str(path)}))
    for node in range(NODES):  # as before: each fetches for itself
        monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / f"node-{node}"))
        load_card(str(path)).verify("encoder")
    assert len(asked) == NODES
    asked.clear()
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "shared"))
    fetch_weights(Console(quiet=True), config)
    assert len(asked) == len(set(asked)) == 3  # encoder, decoder of autobleu, tokenizer
    for _ in range(NODES):
        for role in ("encoder", "decoder", "tokenizer"):
            load_card(str(path)).verify(role)
    assert len(asked) == 3


def test_a_model_that_cannot_be_had_ends_the_run_before_anything_is_queued(
    make_config: MakeConfig, tmp_path: Path, publisher: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "shared"))
    config = load_config(make_config(encode={"model": str(published(tmp_path, f"{publisher[0]}/nowhere"))}))
    with pytest.raises(StartError, match=r"models of this run cannot be loaded here: .*404.* Put the file"):
        fetch_weights(Console(quiet=True), config)
