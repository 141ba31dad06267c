"""A running `pipeline browse`, and what asks it for pages."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlencode

from pipeline import Corpus
from pipeline.quality.browse import listening, server_of
from tests.support.cli import PIPELINE

SECONDS = 60.0  # until the server listens, on a machine that does much else


class Served:
    """A running `pipeline browse`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout
        self.about, self.address = process.stdout.readline(), process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/(\?.*)?", self.address)
        assert found, (self.about, self.address)
        self.port, self.token = int(found[1]), found[2]

    def get(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, **asked: object
    ) -> http.client.HTTPResponse:
        """Ask for a path below the token, or from the root if it begins with /."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        query = f"?{urlencode(asked)}" if asked else ""
        place = path if path.startswith("/") else f"/{self.token}/{path}"
        connection.request(method, place + query, headers=headers or {})
        return connection.getresponse()

    def ask(self, path: str, **asked: object) -> dict[str, Any]:
        return answer_of(self.get(path, **asked))


def answer_of(response: http.client.HTTPResponse) -> dict[str, Any]:
    """The last line of a response; those before it say how far the search is."""
    found: dict[str, Any] = json.loads(response.read().splitlines()[-1])
    return found


@contextmanager
def browsed(*arguments: object) -> Iterator[Served]:
    command = [PIPELINE, "browse", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Served(process)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, "")


@contextmanager
def in_a_thread(corpus: Corpus) -> Iterator[Callable[[str], http.client.HTTPResponse]]:
    """A server in this process, and what asks it for a path."""
    with closing(listening(0)) as listener:
        server = server_of(corpus, "token", None)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()

        def get(path: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=SECONDS)
            connection.request("GET", f"/token/{path}")
            return connection.getresponse()

        try:
            yield get
        finally:
            server.should_exit = True
            thread.join()
