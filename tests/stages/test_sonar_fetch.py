"""Fetching model files from a real HTTP server: whole, wrong, refused, broken off and resumed, by two at once."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stages import fetch as module
from stages.cards import CardError
from stages.fetch import FetchError, Lines, UnavailableError, cache_path, checked_sha256, fetch, public
from stages.sonar.card import load_card

CONTENT = bytes(range(256)) * 12_000  # 3 MB: several blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ROOT = Path(__file__).parents[2]


class Server(http.server.ThreadingHTTPServer):
    """Serves one file; what it shall do wrong, and what it was asked."""

    content = CONTENT
    ranges = True  # answers requests for a part of the file
    tag = '"one"'
    break_off: list[int]  # bytes after which the next connections end
    status = 200
    asked: list[str | None]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.break_off, self.asked = [], []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/models/weights.pt"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        owner, asked = self.server, self.headers.get("Range")
        owner.asked.append(asked)
        if owner.status != 200:
            self.send_error(owner.status)
            return
        same = self.headers.get("If-Range") in (None, owner.tag)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and owner.ranges and same else 0
        if start >= len(owner.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(owner.content) - 1}/{len(owner.content)}")
        self.send_header("Content-Length", str(len(owner.content) - start))
        self.send_header("ETag", owner.tag)
        self.end_headers()
        length = owner.break_off.pop(0) if owner.break_off else len(owner.content)
        self.wfile.write(owner.content[start : start + length])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "RETRY_PAUSES", (0.01, 0.02))
    return tmp_path / "cache"


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file() and not path.name.endswith(".lock")}


def test_a_file_is_fetched_once_and_checked_ever_after(server: Server, cache: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    path = fetch(server.url, sha256=SHA256, size=len(CONTENT), report=lambda *now: reports.append(now))
    assert path == cache / f"127.0.0.1_{server.server_port}" / "models/weights.pt"
    assert path.read_bytes() == CONTENT
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    assert left_in(cache) == {"weights.pt"}
    assert fetch(server.url, sha256=SHA256, size=None) == path
    assert server.asked == [None]
    path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(FetchError, match=rf"the card says {SHA256}; delete {path} and fetch it again"):
        fetch(server.url, sha256=SHA256, size=None)


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, cache: Path) -> None:
    with pytest.raises(FetchError, match=f"has sha256 {SHA256} .*the card says 0000.*thrown away"):
        fetch(server.url, sha256="0" * 64, size=None)
    assert left_in(cache) == set()


def test_without_a_checksum_the_first_digest_is_held_to(
    server: Server, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fetch(server.url, sha256=None, size=None)
    record = path.with_name("weights.pt.sha256")
    assert record.read_text() == f"{SHA256}  weights.pt\n"
    assert f"sha256 {SHA256}; its card states none" in capsys.readouterr().err
    assert fetch(server.url, sha256=None, size=None) == path
    assert capsys.readouterr().err == ""
    path.unlink()
    server.content = CONTENT[::-1]  # another file is published at the same URL
    with pytest.raises(FetchError, match=rf"{re.escape(str(record))} says {SHA256}"):
        fetch(server.url, sha256=None, size=None)
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"", b"\n", b"{", SHA256[:40].encode(), b"\xff" * 80])
def test_a_damaged_record_of_the_first_digest_is_named(server: Server, damage: bytes) -> None:
    path = fetch(server.url, sha256=None, size=None)
    record = path.with_name("weights.pt.sha256")
    whole = record.read_bytes()
    record.write_bytes(damage)
    with pytest.raises(FetchError, match=rf"{record} is damaged: it holds no sha256.*or delete this record"):
        fetch(server.url, sha256=None, size=None)
    record.write_bytes(b"0" * 64 + whole[64:])
    with pytest.raises(FetchError, match=rf"another file is published now, or {record} is damaged"):
        fetch(server.url, sha256=None, size=None)
    for written in (SHA256, f" {SHA256.upper()}\n", f"{SHA256} *weights.pt"):  # by a person, or another tool
        record.write_text(written)
        assert fetch(server.url, sha256=None, size=None) == path
    record.unlink()
    assert fetch(server.url, sha256=None, size=None) == path and record.read_bytes() == whole


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_download_goes_on_where_it_broke_off(server: Server, sha256: str | None) -> None:
    server.break_off = [1_500_000, 1_000_000]
    assert fetch(server.url, sha256=sha256, size=None).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1500000-", "bytes=2500000-"]


def test_it_goes_on_in_the_next_run_if_the_checksum_is_known(server: Server) -> None:
    server.break_off = [1_000_000, 0, 0, 0]
    with pytest.raises(UnavailableError, match="ended after 1000000 of 3072000 bytes"):
        fetch(server.url, sha256=SHA256, size=None)
    server.break_off = []
    server.asked.clear()
    assert fetch(server.url, sha256=SHA256, size=None).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000000-"]


def test_a_part_that_is_whole_already_is_not_fetched_again(server: Server, cache: Path) -> None:
    part = cache_path(server.url).with_name("weights.pt.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert fetch(server.url, sha256=SHA256, size=len(CONTENT)).read_bytes() == CONTENT
    assert server.asked == []


@pytest.mark.parametrize("change", ["no ranges", "another file", "part too long"])
def test_what_cannot_go_on_starts_anew(server: Server, change: str) -> None:
    if change == "part too long":
        part = cache_path(server.url).with_name("weights.pt.part")
        part.parent.mkdir(parents=True)
        part.write_bytes(CONTENT + b"more")
    else:
        server.ranges = change != "no ranges"
        server.break_off = [1_500_000]

    def report(done: int, total: int | None) -> None:
        if change == "another file":  # published meanwhile: its end must not be added to the first half
            server.tag, server.content = '"two"', CONTENT[::-1]

    sha256 = None if change == "another file" else SHA256
    assert fetch(server.url, sha256=sha256, size=None, report=report).read_bytes() == server.content


def test_a_server_that_always_breaks_off_is_given_up(server: Server) -> None:
    server.ranges = False
    server.break_off = [1_500_000] * 20
    with pytest.raises(UnavailableError, match="ended after 1500000"):
        fetch(server.url, sha256=SHA256, size=None)
    assert len(server.asked) == 3


def test_a_file_of_another_size_is_not_even_begun(server: Server, cache: Path) -> None:
    with pytest.raises(UnavailableError, match="the server has 3072000 bytes, the card says 5"):
        fetch(server.url, sha256=SHA256, size=5)
    assert left_in(cache) == set()


def test_passing_troubles_of_a_server_are_waited_for_and_others_are_not(server: Server) -> None:
    server.status = 503
    with pytest.raises(UnavailableError, match="503"):
        fetch(server.url, sha256=SHA256, size=None)
    assert len(server.asked) == 3
    server.status = 404
    with pytest.raises(UnavailableError, match="404 Not Found"):
        fetch(server.url, sha256=SHA256, size=None)
    assert len(server.asked) == 4


def card(folder: Path, url: str, **facts: object) -> str:
    base = Path(__file__).parent / "fixtures/sonar-space-tiny/card.yaml"
    content = {"base": str(base), "name": "remote", "files": {"encoder": {"url": url} | facts}}
    path = folder / "remote.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_without_a_network_the_error_says_what_to_put_where(tmp_path: Path, cache: Path) -> None:
    with Server() as gone:
        url = gone.url
    asked = card(tmp_path, url, sha256=SHA256, bytes=len(CONTENT))
    with pytest.raises(CardError) as error:
        load_card(asked).verify("encoder")
    message = str(error.value)
    assert "\n" not in message  # events hold the first line only
    for word in (
        "card remote: ",
        "Connection refused",
        f"Put the file (weights.pt, 3072000 bytes, sha256 {SHA256}) at {cache_path(url)}",
        f"{{base: {asked}, name: mine, files: {{encoder: {{path: …, sha256: {SHA256}}}}}}}",
    ):
        assert word in message
    cache_path(url).write_bytes(CONTENT)  # by hand
    assert load_card(asked).verify("encoder") == cache_path(url)


def test_planning_and_reading_a_card_fetch_nothing(tmp_path: Path, server: Server, cache: Path) -> None:
    remote = load_card(card(tmp_path, server.url))
    assert remote.encoder_digest == load_card(card(tmp_path, server.url)).encoder_digest
    before = remote.encoder_digest
    assert remote.verify("encoder").read_bytes() == CONTENT
    assert remote.encoder_digest == before  # what is found at the URL does not change what is planned
    assert len(server.asked) == 1


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_any_fsspec_url(scheme: str, tmp_path: Path) -> None:
    import fsspec

    url = f"file://{tmp_path}/weights.pt" if scheme == "file" else "memory://models/weights.pt"
    with pytest.raises(UnavailableError, match="FileNotFoundError"):
        fetch(url, sha256=SHA256, size=None)
    with fsspec.open(url, "wb") as file:
        file.write(CONTENT)
    assert fetch(url, sha256=SHA256, size=None).read_bytes() == CONTENT


def test_two_processes_at_once_fetch_it_once(server: Server, cache: Path) -> None:
    code = "import sys; from stages.fetch import fetch; fetch(sys.argv[1], sha256=sys.argv[2], size=None)"
    environment = os.environ | {"PIPELINE_CACHE": str(cache)}
    command = [sys.executable, "-c", code, server.url, SHA256]
    running = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert cache_path(server.url).read_bytes() == CONTENT
    assert server.asked == [None]


def test_no_room_on_the_disk(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: types.SimpleNamespace(free=10))
    with pytest.raises(UnavailableError, match=f"needs 3072000 bytes more on the disk of {cache}.*10 are free"):
        fetch(server.url, sha256=SHA256, size=None)


def test_a_cache_that_cannot_be_written(server: Server, cache: Path) -> None:
    cache.write_text("a file, not a folder")
    with pytest.raises(FetchError, match=r"cannot be stored at .*PIPELINE_CACHE"):
        fetch(server.url, sha256=SHA256, size=None)


def test_names_in_the_cache_depend_on_the_url_and_hold_no_secrets(cache: Path) -> None:
    assert cache_path("https://me:secret@host:8443/a/b.pt") == cache / "host_8443/a/b.pt"
    assert cache_path("https://host/../../etc/passwd") == cache / "host/etc/passwd"
    assert cache_path("https://host/%2e%2e/%2e%2e/x") == cache / "host/x"
    assert cache_path("https://host/x?a=1") != cache_path("https://host/x?a=2")
    assert cache_path("file:///srv/x.pt") == cache / "file/srv/x.pt"
    assert public("https://me:secret@host/a?token=1") == "https://host/a"
    with pytest.raises(FetchError, match="names no file"):
        cache_path("https://host/")


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPELINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert module.cache_folder() == Path("/var/cache/me/sonar-pipeline")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert module.cache_folder() == Path.home() / ".cache/sonar-pipeline"


def test_a_long_download_reports_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Lines("weights.pt")
    for second in range(0, 21, 5):
        now = 100.0 + second
        lines(1_000_000_000 + second * 50_000_000, 3_000_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "fetching weights.pt: 1.50 of 3.00 GB, 50.0 MB/s, 30 s left",
        "fetching weights.pt: 2.00 of 3.00 GB, 50.0 MB/s, 20 s left",
    ]


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files whose digests were computed, on a machine that has no record yet."""
    found: list[Path] = []

    def counted(path: Path) -> str:
        found.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(module, "sha256_of", counted)
    monkeypatch.setattr(module, "RECORDED_BYTES", 1000)
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    return found


def test_all_processes_of_a_machine_read_weights_once_to_check_them(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(checked_sha256(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [SHA256] * 8 and len(reads) == 1


def test_a_changed_file_is_read_again_though_its_size_and_time_are_the_same(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    before = path.stat()
    assert checked_sha256(path) == SHA256
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert checked_sha256(path) == hashlib.sha256(CONTENT[::-1]).hexdigest()
    assert len(reads) == 2


def test_records_end_after_a_day_and_those_of_others_do_not_count(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    checked_sha256(path)
    (record,) = tmp_path.glob(f"sonar-pipeline-checked-*/{'?' * 64}")
    assert checked_sha256(path) == SHA256 and len(reads) == 1, "the record counts"
    os.utime(record, (0, 0))
    assert checked_sha256(path) == SHA256 and len(reads) == 2
    record.parent.chmod(0o777)
    assert checked_sha256(path) == SHA256 and len(reads) == 3
    small = tmp_path / "small"
    small.write_bytes(b"few")
    record.parent.chmod(0o700)
    assert checked_sha256(small) == checked_sha256(small) and len(reads) == 5


@pytest.mark.parametrize("damage", [b"", b"0" * 64, b"\xff" * 64, SHA256.encode() + b"0" * 64])
def test_a_damaged_record_of_a_digest_is_made_again(tmp_path: Path, reads: list[Path], damage: bytes) -> None:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    checked_sha256(path)
    (record,) = tmp_path.glob(f"sonar-pipeline-checked-*/{'?' * 64}")
    whole = record.read_bytes()
    record.write_bytes(damage)
    assert checked_sha256(path) == SHA256 and len(reads) == 2
    assert record.read_bytes() == whole
