"""A bad S3: a proxy on loopback that delays requests, refuses some, loses some answers, and may go away for a while.

    with S3Proxy(endpoint, refused=0.01, lost=0.01) as proxy:   # its address: proxy.url
        ...
    assert proxy.faults["lost"]

    python -m tests.faults.s3_proxy http://127.0.0.1:5000 --latency 0.05 --refused 0.01    (prints its address)

`refused`: the share of requests answered by 503 SlowDown and not carried out. `lost`: carried out, but the connection
ends before the answer. `broken`: the answer's body ends in the middle. `short`: so does it, but its length says so.
`slow`: nothing comes for `SLOW` seconds.
The draws are seeded; which request gets which depends on their order. Cost: a thread a connection, and a copy of what
goes through.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
EXPIRED = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)
FULL = {  # how stores say that nothing more can be written: status, code, message
    "full": (507, "InsufficientStorage", "There is not enough space to complete the request."),  # OpenStack Swift
    "backend": (507, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold."),  # MinIO
    "quota": (403, "QuotaExceeded", "The quota of the bucket is used up."),  # Ceph
    "denied": (403, "AccessDenied", "Access Denied"),
}
BETWEEN_TWO_HOPS = {"connection", "keep-alive", "transfer-encoding", "expect"}


SLOW = 3.0  # seconds


class S3Proxy:
    """Serves from `with` to its end. `faults`: how often each kind happened; `requests`: how many came."""

    def __init__(
        self,
        target: str,
        *,
        latency: float = 0.0,
        refused: float = 0.0,
        lost: float = 0.0,
        broken: float = 0.0,
        short: float = 0.0,
        slow: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.target = urlsplit(target)
        self.latency = latency
        self.shares = {"refused": refused, "lost": lost, "broken": broken, "short": short, "slow": slow}
        self.faults: Counter[str] = Counter()
        self.requests = 0
        self._random = random.Random(f"bad S3 {seed}")
        self._drawing = threading.Lock()
        self.outages: list[tuple[re.Pattern[str], float]] = []  # "METHOD /path" that begins the next one, its seconds
        self.unstored: list[re.Pattern[str]] = []  # the same, of PUTs that are answered as if carried out, each once
        self.filled_by: re.Pattern[str] | None = None  # from a PUT to such a path on, the store is full
        self.full = ""  # a key of `FULL`: what writes are answered then
        self._is_full = False
        self.expired = False  # from when this is true, the credentials of every request have run out
        self._gone_until = 0.0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self

    @property
    def url(self) -> str:
        """Its address, for AWS_ENDPOINT_URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> S3Proxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def go_away(self, seconds: float) -> None:
        """From now on every connection ends without an answer, and nothing is carried out."""
        self._gone_until = time.monotonic() + seconds

    def come_back(self) -> None:
        """End an outage."""
        self._gone_until = 0.0

    def make_room(self) -> None:
        """From now on writes are carried out again."""
        self.filled_by, self._is_full = None, False

    def _no_room(self, command: str, path: str) -> bool:
        writes = command == "PUT" or (command == "POST" and "uploads" in path)
        self._is_full |= bool(writes and self.filled_by and self.filled_by.match(path))
        return writes and self._is_full

    def draw(self, command: str, path: str = "") -> str:
        """What becomes of the next request: the name of a fault, or nothing."""
        with self._drawing:
            self.requests += 1
            if self.outages and self.outages[0][0].match(f"{command} {path}") and time.monotonic() >= self._gone_until:
                self.go_away(self.outages.pop(0)[1])
            place = self._random.random()
            if time.monotonic() < self._gone_until:
                fault = "gone"
            elif self.expired:
                fault = "expired"
            elif self._no_room(command, path):
                fault = "full"
            else:
                fault = ""
                for name, share in self.shares.items():
                    if place < share:
                        fault = name
                        break
                    place -= share
            if fault == "broken" and command != "GET":
                fault = "lost"  # the other answers have no body
            if fault == "short" and command != "GET":
                fault = ""
            lost = next((one for one in self.unstored if one.match(f"{command} {path}")), None)
            if lost and not fault:
                self.unstored.remove(lost)
                fault = "unstored"
            if fault:
                self.faults[fault] += 1
            return fault


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: S3Proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed end their connections: nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    upstream: http.client.HTTPConnection | None = None

    def _pass_on(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(proxy.latency)
        fault = proxy.draw(self.command, self.path)
        if fault == "gone":
            self._hang_up()
            return
        if fault == "refused":
            self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
            return
        if fault == "expired":
            self._answer(403, [("Content-Type", "application/xml")], EXPIRED)
            return
        if fault == "full":
            status, code, message = FULL[proxy.full]
            said = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
            self._answer(status, [("Content-Type", "application/xml")], said.encode())
            return
        if fault == "unstored":
            digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
            self._answer(200, [("ETag", f'"{digest}"')], b"")
            return
        if fault == "slow":
            time.sleep(SLOW)
        if not self.upstream:
            self.upstream = http.client.HTTPConnection(str(proxy.target.hostname), proxy.target.port, timeout=600)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in BETWEEN_TWO_HOPS}
        self.upstream.request(self.command, self.path, body or None, headers)
        answer = self.upstream.getresponse()
        content = answer.read()
        if fault == "lost":
            self._hang_up()
        else:
            if fault == "short":
                content = content[: len(content) // 2]
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in BETWEEN_TWO_HOPS]
            self._answer(answer.status, kept, content, broken=fault == "broken")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, broken: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if broken else content)
        if broken:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """The connection is over, and that to the store with it."""
        if self.upstream:
            self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def elsewhere(*arguments: str) -> Iterator[str]:
    """The address of such a proxy in a process of its own, which takes no time from this one."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "tests.faults.s3_proxy", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.s3_proxy", description="A bad S3 on loopback.")
    parser.add_argument("target", help="address of the S3 behind it")
    for name in ("latency", "refused", "lost", "broken", "short", "slow"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    with S3Proxy(**vars(parser.parse_args())) as proxy:
        print(proxy.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
