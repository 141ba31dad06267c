"""The server of the page: a Starlette application behind `Guard`.

Every answer except the page's own files consists of lines of JSON: `{"read": …, "found": …}` a few times a second while
work goes on, then `{"done": …}` or `{"error": …}`. The work runs in a thread; when the browser disconnects, because it
asks for another page or its window is closed, the work ends at its next row group.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pipeline.base.errors import ConfigError, PipelineError, visible
from pipeline.conditions.expression import ExpressionError
from pipeline.corpus.reader import Corpus
from pipeline.quality.browse.find import Finder, Question
from pipeline.quality.browse.guard import Guard
from pipeline.quality.browse.neighbours import neighbours
from pipeline.quality.browse.shown import around, described, looked_at, shown_columns, shown_rows
from pipeline.quality.browse.use import use_of
from pipeline.quality.browse.watch import GivenUpError, Watch
from pipeline.quality.extract import stream

if TYPE_CHECKING:
    from starlette.requests import Request

    from pipeline.corpus.nearest_index import NearestIndex

PAGES = (25, 50, 100, 200)  # rows of a page
AT_ONCE = 4  # pieces of work; more wait
SECONDS = 0.2  # between two lines that tell how far work is
KINDS = {".jsonl": "application/x-ndjson", ".csv": "text/csv; charset=utf-8", ".parquet": "application/octet-stream"}
FILES = {
    "/": ("browse", "page.html", "text/html; charset=utf-8"),
    "/base.css": ("report", "base.css", "text/css; charset=utf-8"),
    "/browse.css": ("browse", "browse.css", "text/css; charset=utf-8"),
    "/browse.js": ("browse", "browse.js", "text/javascript; charset=utf-8"),
}


def application(corpus: Corpus, token: str, index: NearestIndex | None = None) -> Guard:
    """Return the web application for one corpus.

    Args:
        corpus: the corpus.
        token: the secret in the address, without which nothing is served.
        index: makes the search for neighbours faster; None to compare all rows.

    Returns:
        An ASGI application.
    """
    served = _Served(corpus, index)
    routes = [
        *(Route(path, _file(*place), methods=["GET"]) for path, place in FILES.items()),
        *(Route(f"/{one.__name__}", one, methods=["GET"])
          for one in (served.corpus, served.rows, served.row, served.document, served.nearest, served.use,
                      served.download)),
    ]  # fmt: skip
    return Guard(Starlette(routes=routes), token)


def _file(folder: str, name: str, kind: str) -> Callable[[Request], Response]:
    content = files(f"pipeline.quality.{folder}").joinpath(name).read_bytes()
    return lambda _: Response(content, headers={"content-type": kind})


class _Served:
    """The endpoints. Their names are those of the paths."""

    def __init__(self, corpus: Corpus, index: NearestIndex | None) -> None:
        self._corpus, self._index, self._finder = corpus, index, Finder(corpus)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="browse")

    async def corpus(self, request: Request) -> Response:
        """What the page has to know first."""
        return self._worked(lambda _: described(self._corpus) | {"pages": PAGES, "index": self._index is not None})

    async def rows(self, request: Request) -> Response:
        """One page of rows."""
        asked = request.query_params
        question = Question(asked.get("where") or None, asked.get("sort") or None, asked.get("down") == "1")

        def work(watch: Watch) -> dict[str, Any]:
            start, count = _whole(asked, "start", 0), min(max(_whole(asked, "count", PAGES[0]), 1), PAGES[-1])
            found = self._finder.find(question, start, count, watch, all_rows=asked.get("all") == "1")
            names = shown_columns(self._corpus, _names(asked.get("columns")))
            rows = shown_rows(self._corpus, found.places, names)
            return {"rows": rows, "start": start, "read": found.read, "found": found.found, "whole": found.whole}

        return self._worked(work)

    async def row(self, request: Request) -> Response:
        """All of one row, and what stands around it."""
        asked = request.query_params
        return self._worked(lambda _: looked_at(self._corpus, asked.get("part", ""), _whole(asked, "row", 0)))

    async def document(self, request: Request) -> Response:
        """More of what stands around a row."""
        asked = request.query_params

        def work(_: Watch) -> dict[str, Any]:
            before, after = _whole(asked, "before", 0), _whole(asked, "after", 0)
            return around(self._corpus, asked.get("part", ""), _whole(asked, "row", 0), before, after)

        return self._worked(work)

    async def nearest(self, request: Request) -> Response:
        """The rows with the nearest embeddings."""
        asked = request.query_params

        def work(watch: Watch) -> dict[str, Any]:
            where = self._finder.condition(asked.get("where"))
            place = asked.get("part", ""), _whole(asked, "row", 0)
            return {"rows": neighbours(self._corpus, *place, where, self._index, watch)}

        return self._worked(work)

    async def use(self, request: Request) -> Response:
        """How the rows of the filter are used elsewhere."""
        asked = request.query_params
        return self._worked(lambda _: vars(use_of(self._corpus, self._finder.condition(asked.get("where")))))

    async def download(self, request: Request) -> Response:
        """The rows of the filter, as a file."""
        asked = request.query_params
        ending = f".{asked.get('format')}"
        try:
            if ending not in KINDS:
                raise ConfigError(f"format is {asked.get('format')}; allowed: {', '.join(one[1:] for one in KINDS)}")
            where = self._finder.condition(asked.get("where"))
            pieces = stream(self._corpus, f"rows{ending}", where=where, columns=_names(asked.get("columns")))
        except (PipelineError, OSError) as error:
            return JSONResponse({"error": visible(str(error))}, status_code=400)
        name = "".join(
            sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in self._corpus.view.name
        )
        disposition = f'attachment; filename="{name[:80]}{ending}"'
        return StreamingResponse(pieces, media_type=KINDS[ending], headers={"content-disposition": disposition})

    def _worked(self, work: Callable[[Watch], dict[str, Any]]) -> Response:
        return StreamingResponse(self._lines(work), media_type="application/x-ndjson")

    async def _lines(self, work: Callable[[Watch], dict[str, Any]]) -> AsyncIterator[str]:
        """Yield lines of JSON until the work is done. Whoever stops reading ends the work."""
        watch = Watch()
        future = asyncio.get_running_loop().run_in_executor(self._pool, _answer, work, watch)
        try:
            while not (await asyncio.wait({future}, timeout=SECONDS))[0]:
                yield json.dumps({"read": watch.read, "found": watch.found}) + "\n"
            yield future.result()
        finally:
            watch.give_up()
            future.cancel()


def _answer(work: Callable[[Watch], dict[str, Any]], watch: Watch) -> str:
    """Return the last line of an answer."""
    try:
        watch.check()
        answer: dict[str, Any] = {"done": work(watch)}
    except ExpressionError as error:
        answer = {"error": str(error), "where": True}
    except (PipelineError, OSError) as error:
        answer = {"error": "\n".join(visible(line) for line in str(error).split("\n"))}
    except GivenUpError:
        answer = {"error": "nobody waits"}
    return json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n"


def _whole(asked: Any, name: str, default: int) -> int:
    """Return a parameter that is a whole number. Raises `ConfigError` for anything else."""
    text = asked.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise ConfigError(f"{name} is {text[:50]!r}; give a whole number, 0 or more")
    return int(text)


def _names(text: str | None) -> list[str]:
    """Return the names of columns; they are separated by tabs, which no name has."""
    return [name for name in (text or "").split("\t") if name]
