"""A real S3 endpoint on this machine's loopback, served by moto."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit


@contextlib.contextmanager
def moto(log: Path) -> Iterator[str]:
    """The address of an endpoint, which ends with the block. Cost: 3 seconds of a CPU."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.support.moto_server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2])
        try:
            deadline = time.monotonic() + 600  # of a busy machine
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def forget_all(endpoint: str) -> None:
    """Make an endpoint as it was when it began: without buckets."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=600)
    connection.request("POST", "/moto-api/reset")
    assert connection.getresponse().status == 200
    connection.close()
