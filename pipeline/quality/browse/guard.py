"""Lets only those in who know the address: the token in its path, from a browser that asked this machine by its name.

The server listens on the loopback device, which every user and every page in a browser of this machine can reach. So

- the first word of the path must be the token, 192 random bits that nobody can guess; other pages never learn it, for
  the page has no links, and its browser is told to send no referrer. There is no cookie: two servers do not disturb
  each other, and no foreign page can act in this one's name;
- the header Host must name this machine (`localhost`, `127.0.0.1` or `[::1]`, with any port, so that tunnels work): a
  page whose own name was turned to 127.0.0.1 (DNS rebinding) has another one;
- only GET is answered, and nothing can be changed by it;
- every answer, errors too, says that no script but ours runs, that no text becomes markup, and that nobody may frame,
  embed or keep it.
"""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

from pipeline.base.errors import PipelineError, visible

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_RAW = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class Guard:
    """Passes requests with the token on to an application, without the token; refuses all others."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_RAW]}
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await _say(closed, *refused)
            return
        _, _, rest = scope["path"][1:].partition("/")
        inner = f"/{rest}"
        try:
            await self._app({**scope, "path": inner, "raw_path": inner.encode(), "root_path": ""}, receive, closed)
        except PipelineError as error:  # a download that ended early: its browser sees that it is not complete
            print(visible(str(error)), file=sys.stderr, flush=True)

    def _refused(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        """Return status, text and headers of a refusal; None for a request that may pass."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or _without_port(hosts[0]) not in HOSTS:
            return 421, "This page is only for the machine on which pipeline browse runs.", {}
        if scope["method"] != "GET":
            return 405, "Only GET is answered here.", {"allow": "GET"}
        word, slash, _ = scope["path"][1:].partition("/")
        if not secrets.compare_digest(word.encode(), self._token):
            return 403, "Open the whole address that pipeline browse has printed.", {}
        if not slash:
            return 307, "", {"location": f"/{word}/"}
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


async def _say(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    body = text.encode()
    told = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body))} | headers
    raw = [(name.encode(), value.encode()) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
