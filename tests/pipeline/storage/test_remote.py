"""What object stores answer becomes words: real clients against real endpoints, none of which has what is asked for."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.storage.remote import RemoteError, translate_errors
from pipeline.storage.store import Store

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"


class _Answers(http.server.BaseHTTPRequestHandler):
    status, body = 403, ERROR.format(code="AccessDenied").encode()
    protocol_version = "HTTP/1.1"  # clients wait for "100 Continue" before they send what is to be stored

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(self.body if self.command != "HEAD" else b"")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A client that knows nothing but what a test tells it, and asks once."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pipeline.storage.retry.S3_ATTEMPTS", 1)
    monkeypatch.setattr("pipeline.storage.retry.FIRST_RETRY_SECONDS", 0.0)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "EndpointConnectionError); check the network"),
        ("AWS_ENDPOINT_URL", "localhost:9", "Invalid endpoint: localhost:9 (ValueError); correct the address"),
        ("AWS_PROFILE", "nobody", "ProfileNotFound); set AWS_PROFILE"),
        ("AWS_ACCESS_KEY_ID", None, "NoCredentialsError); give credentials"),
    ],
)
def test_a_store_that_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None, words: str
) -> None:
    if value is None:
        monkeypatch.delenv(variable)
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    else:
        monkeypatch.setenv(variable, value)
    with pytest.raises(RemoteError) as caught:
        Store("s3://bucket/corpus").exists("corpus.json")
    assert str(caught.value).startswith("s3://bucket/corpus: ") and words in str(caught.value)


READ = "read"
CREATE = "create"
WRITE = "write"
LOOK = "exists"
FIND = "find"


@pytest.mark.parametrize(
    ("status", "code", "asked", "words"),
    [
        (403, "AccessDenied", (READ, CREATE, LOOK), "(PermissionError); let these credentials list, read, write and"),
        (400, "ExpiredToken", (FIND,), "or give others (these may have expired)"),
        (400, "ExpiredToken", (LOOK,), "the credentials may have expired: give others"),
        (507, "InsufficientStorage", (CREATE,), "make space there, or have the quota raised, then run the same"),
        (507, "XMinioStorageFull", (CREATE, WRITE), "make space there, or have the quota raised"),
        (403, "QuotaExceeded", (WRITE,), "make space there, or have the quota raised"),
        (501, "NotImplemented", (CREATE,), "files only where there are none (If-None-Match)"),
        (301, "Moved", (LOOK,), "the store redirects every request; correct its address (https://?) and the region"),
    ],
)
def test_a_store_that_refuses(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, asked: tuple[str, ...], words: str
) -> None:
    handler = type("Handler", (_Answers,), {"status": status, "body": ERROR.format(code=code).encode()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        store = Store("s3://bucket/corpus")
        try:
            for one in asked:
                with pytest.raises(RemoteError) as caught:
                    getattr(store, one)(*("x", b"1")[: 1 + (one in (CREATE, WRITE))])
                assert words in str(caught.value), one
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("foo://bucket/corpus", "Protocol not known: foo; give a folder, or a URL"),
        ("gs://bucket/corpus", "pip install 'sonar-pipeline[gcs]'"),
    ],
)
def test_a_url_that_nothing_here_opens(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)  # not installed
    with pytest.raises(ConfigError) as caught:
        Store(url)
    assert words in str(caught.value)


def test_passwords_and_signatures_are_not_repeated() -> None:
    url = "https://me:secret@host/in/a.jsonl?X-Amz-Signature=abc"
    with pytest.raises(RemoteError) as caught, translate_errors(url):
        raise OSError(f"cannot open {url!r}")
    assert str(caught.value).startswith("https://host/in/a.jsonl?…: cannot open 'https://host/in/a.jsonl?…'")


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(FileNotFoundError), translate_errors("/nowhere"):
        Path("/nowhere/at/all").read_bytes()
    with pytest.raises(ZeroDivisionError), translate_errors("s3://bucket"):
        _ = 1 / 0
    ours = PipelineError("in words already")
    with pytest.raises(PipelineError) as caught, translate_errors("s3://bucket"):
        raise ours
    assert caught.value is ours
