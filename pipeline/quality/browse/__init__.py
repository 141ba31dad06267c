"""Implements `pipeline browse`: a local page over a corpus, to filter, sort, examine and download rows.

The server reads what a page needs and nothing in advance: the first rows of millions appear at once, and a filter or an
order says how far it is while it reads (`find.py`). The page is plain HTML, CSS and JavaScript of ours; its policy lets
no other script run and no text become markup, and all text of documents goes into text nodes (`guard.py`, `shown.py`).
What is shown is the corpus as it is at each request (`server.py`), and nothing is ever written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import socket
import webbrowser
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError, visible
from pipeline.base.extras import missing_extras
from pipeline.base.formats import counted
from pipeline.base.interrupts import calls_when_asked
from pipeline.base.messages import print_plain
from pipeline.corpus.reader import Corpus

if TYPE_CHECKING:
    import uvicorn

    from pipeline.corpus.nearest_index import NearestIndex

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 24
WAITING = 64  # connections that the system keeps for us
LAST_SECONDS = 2  # that answers have when the program ends


@dataclass(frozen=True)
class BrowseOptions:
    """The options of the command, as `pipeline/commands/inspect.py` explains them."""

    where: str | None = None
    port: int = 0
    index: str | None = None
    open_page: bool = False


def browse_corpus(console: Console, corpus: Corpus, options: BrowseOptions) -> None:
    """Serve the page until the program is interrupted.

    Args:
        console: where the address is printed.
        corpus: the corpus.
        options: the options of the command.

    Raises:
        ConfigError: if a package is missing, or for options that do not fit.
        CorpusError: if the corpus has no sentence yet.
    """
    if told := missing_extras(["browse"]):
        raise ConfigError(told)
    if not corpus.parts or not corpus.rows:
        raise CorpusError(f"{corpus.url} has no sentence yet; see: pipeline status {corpus.url}")
    if options.where is not None:
        corpus.condition(options.where)
    index = corpus.open_index(options.index) if options.index is not None else None
    if index:
        index.check(index.identity, "cosine")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    server = server_of(corpus, token, index)  # its imports take longer than a page

    def end() -> None:  # the server looks at this once it listens, and ten times a second
        server.should_exit = True

    with contextlib.closing(listening(options.port)) as listener, calls_when_asked(end):
        port = listener.getsockname()[1]
        asking = f"?{urlencode({'where': options.where})}" if options.where is not None else ""
        address = f"http://{LOOPBACK}:{port}/{token}/{asking}"
        about = (
            f"{visible(corpus.view.name)}: {counted(corpus.rows, 'sentence')} in {counted(len(corpus.parts), 'part')}"
        )
        for line in (
            about,
            address,
            f"Only this machine can open the page, and only by the whole address. From another one, begin with: "
            f"ssh -L {port}:{LOOPBACK}:{port} {socket.gethostname()}",
            "Ctrl-C ends it.",
        ):
            print_plain(console, line)
        if options.open_page and not webbrowser.open(address):
            console.print("No browser was found; open the address yourself.")
        server.run(sockets=[listener])


def listening(port: int) -> socket.socket:
    """Return a socket that listens on the loopback device; port 0 is any free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended do not hold the port
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(WAITING)
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is used by another program" if error.errno == errno.EADDRINUSE else "is for the system's programs only"
        raise ConfigError(f"--port {port} {why}; give another one, or leave it out for any that is free") from error
    return listener


def server_of(corpus: Corpus, token: str, index: NearestIndex | None) -> uvicorn.Server:
    """Return the server of one corpus.

    Args:
        corpus: the corpus.
        token: the secret in the address, without which nothing is served.
        index: makes the search for neighbours faster; None to compare all rows.

    Returns:
        A server that does not listen yet.
    """
    import uvicorn

    from pipeline.quality.browse.server import application

    config = uvicorn.Config(
        application(corpus, token, index), http="h11", ws="none", loop="asyncio", lifespan="off", log_level="error",
        access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=LAST_SECONDS,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Server(config)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a message of the server says more than that an answer broke off, of which `Guard` says why."""
    return "without completing response" not in record.getMessage()
