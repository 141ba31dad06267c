"""OpenLineage events of a run, as a service receives them by HTTP and as the client writes them to a file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.config.load import load_config
from pipeline.corpus.runs import close_run, newest_folder
from pipeline.run.lineage import dataset_name, tell
from pipeline.storage.store import Store
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import run

SECRET = "4f1c-key"


class Service(HTTPServer):
    """A service that keeps the events it is sent, with the headers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.events: list[tuple[str | None, dict[str, Any]]] = []


class Receiver(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.events.append((self.headers["Authorization"], json.loads(body)))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Takes away the variables that the library itself sets, for the tests that follow."""
    yield
    for name in [one for one in os.environ if one.startswith("OPENLINEAGE")]:
        del os.environ[name]


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 3))
    return write_config(tmp_path, encode=None, autobleu=None, launcher={"kind": "inline"})


def test_a_service_is_told_of_beginning_and_end(
    config: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{service.server_port}")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", SECRET)
    done = pipeline("run", config)
    assert done.returncode == 0 and SECRET not in done.stdout + done.stderr, said(done)
    (key, start), (_, end) = service.events
    assert key == f"Bearer {SECRET}" and (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"] and start["job"] == end["job"]
    assert [one["name"].rpartition("/")[2] for one in start["inputs"]] == ["*.jsonl"]
    corpus = Corpus(str(config.parent / "out"))
    (output,) = end["outputs"]
    assert (output["namespace"], output["name"]) == ("file", str(config.parent / "out"))
    counts = output["outputFacets"]["outputStatistics"]
    assert (counts["rowCount"], counts["fileCount"]) == (corpus.rows, len(corpus.parts)) and corpus.rows > 3
    assert {"text", "doc_id"} <= {one["name"] for one in output["facets"]["schema"]["fields"]}
    assert not [one for one in sample_documents("libreoffice-eng", 1) if str(one["text"]) in json.dumps(end)]


def test_each_run_has_an_id_and_its_end_is_told_with_the_reason(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "events.jsonl"))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    run(config)
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 4))
    run(config)
    store = Store(str(tmp_path / "out"))
    folder = newest_folder(store)
    for summary in ({"failures": ["in.jsonl: s3://key:word@bucket/a is away"]}, {"interrupted": True}):
        close_run(store, folder, {"done": False, **summary})
        tell(Console(), load_config(config), store, folder, ended=True)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [one["eventType"] for one in events] == ["START", "COMPLETE", "START", "COMPLETE", "FAIL", "ABORT"]
    first, second = events[0]["run"]["runId"], events[2]["run"]["runId"]
    assert [one["run"]["runId"] for one in events] == [first] * 2 + [second] * 4 and first != second
    told = events[4]["run"]["facets"]["errorMessage"]["message"]
    assert told == "in.jsonl: s3://bucket/a is away"


def test_a_service_that_is_away_costs_a_warning(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TYPE": "http", "URL": "http://user:word@127.0.0.1:9", "RETRY": '{"total": 0}'}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    done = pipeline("run", config)
    assert done.returncode == 0, said(done)
    told = done.stdout + done.stderr
    assert told.count("The OpenLineage event of this run was not taken") == 2 and "word@" not in told, said(done)


@pytest.mark.parametrize("kind", ["missing", "empty", "truncated", "changed", "another", "link", "circle", "folder"])
def test_a_damaged_file_of_events_or_settings_costs_no_more_than_a_warning(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    events, settings = tmp_path / "events.jsonl", tmp_path / "openlineage.yml"
    whole = f"transport:\n  type: file\n  log_file_path: {events}\n  append: true\n".encode()
    settings.write_bytes(whole)
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(settings))
    run(config)
    for file, another in ((events, b'{"valid": "json"}\n'), (settings, b"transport:\n  type: nonsense\n")):
        data = file.read_bytes()
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind in ("link", "circle"):
            file.symlink_to("nowhere" if kind == "link" else file.name)
        elif kind != "missing":
            changed = {"empty": b"", "truncated": data[:9], "changed": data[:9] + b"\n" + data[10:], "another": another}
            file.write_bytes(changed[kind])
        for command in ("run", "status", "verify"):
            done = pipeline(command, config)
            assert done.returncode == 0 and "Traceback" not in said(done), said(done)
        ran = pipeline("run", config, "--set", f"segment.max_chars={50 + (file == settings)}")
        is_told = "The OpenLineage event of this run was not taken" in said(ran)
        assert ran.returncode == 0 and "Traceback" not in said(ran), said(ran)
        assert is_told == (file == settings or kind in ("circle", "folder")), said(ran)
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)


def test_a_pipe_that_nobody_reads_does_not_hold_the_run(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run.lineage.EMITS", 0.5)
    os.mkfifo(tmp_path / "events")
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(tmp_path / "events"), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    done = pipeline("run", config)
    assert done.returncode == 0 and said(done).count("was not taken (nobody took it in ") == 2, said(done)
    with (tmp_path / "events").open("rb"):  # the waiting threads end
        pass


def test_nothing_is_sent_where_it_is_switched_off(
    config: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{service.server_port}")
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert pipeline("run", config).returncode == 0 and not service.events


def test_names_of_datasets() -> None:
    assert dataset_name("s3://key:word@bucket/a/b/*.jsonl") == ("s3://bucket", "a/b/*.jsonl")
    assert dataset_name("https://example.org/a.jsonl?sig=abc") == ("https://example.org", "a.jsonl")
    assert dataset_name("file:///data/mine") == dataset_name("/data/mine") == ("file", "/data/mine")
