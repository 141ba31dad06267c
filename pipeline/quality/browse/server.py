"""The server of the page: a Starlette application behind `Guard`.

Every answer except the page's own files consists of lines of JSON: `{"read": …, "found": …}` a few times a second while
work goes on, then `{"done": …}` or `{"error": …}`. The work runs in a thread; when the browser disconnects, because it
asks for another page or its window is closed, the work ends at its next row group.

Before each answer the folders of runs and the tombstones are listed. If another run has ended, the corpus is served as
that left it; if documents were purged or erased, as the newest run sees it.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pipeline.base.errors import ConfigError, CorpusError, MissingError, PipelineError, visible
from pipeline.conditions.expression import ExpressionError
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import SUMMARY
from pipeline.corpus.tombstones import FOLDER as TOMBSTONES
from pipeline.corpus.tombstones import read_tombstones, tombstone_paths
from pipeline.corpus.view import View
from pipeline.quality.browse.find import Finder, GivenUpError, Question, Watch
from pipeline.quality.browse.guard import Guard
from pipeline.quality.browse.shown import around, described, looked_at, neighbours, shown_columns, shown_rows, use_of
from pipeline.quality.extract import stream
from pipeline.storage import layout
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from pipeline.corpus.nearest_index import NearestIndex

    _Work = Callable[["_Opened", QueryParams, Watch], dict[str, Any]]

PAGES = (25, 50, 100, 200)  # rows of a page
AT_ONCE = 4  # pieces of work; more wait
LOOKED_SECONDS = 1.0  # between two looks for what was purged, during a download
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
        *(Route(f"/{one.__name__}", served.endpoint(one), methods=["GET"])
          for one in (served.corpus, served.rows, served.row, served.document, served.nearest, served.use)),
        Route("/download", served.download, methods=["GET"]),
    ]  # fmt: skip
    return Guard(Starlette(routes=routes), token)


def _file(folder: str, name: str, kind: str) -> Callable[[Request], Response]:
    content = files(f"pipeline.quality.{folder}").joinpath(name).read_bytes()
    return lambda _: Response(content, headers={"content-type": kind})


@dataclass(frozen=True)
class _Moment:
    """What names a state of a corpus: the newest run that has ended, if any has, and the files of tombstones."""

    run: str | None
    tombstones: tuple[str, ...]


@dataclass(frozen=True)
class _Opened:
    """The corpus as it was at a moment; `number`: how often it was opened before."""

    moment: _Moment
    number: int
    corpus: Corpus
    finder: Finder
    index: NearestIndex | None


def _moment(store: Store) -> _Moment:
    ended = (name for name in reversed(store.folders(layout.RUNS)) if store.exists(f"{layout.RUNS}/{name}/{SUMMARY}"))
    return _Moment(next(ended, None), tuple(store.find(TOMBSTONES)))


def _opened_again(before: _Opened, moment: _Moment, run: str | None = None) -> _Opened:
    """Open the corpus of this moment, as a run sees it. An index of another state is not used any more.

    `run`: None for the newest run, even if it has not ended: it deletes files of earlier views before it ends.
    """
    store = before.corpus.store
    corpus = Corpus(before.corpus.url, View.read(store, f"{layout.RUNS}/{run}") if run else None, store)
    return _Opened(moment, before.number + 1, corpus, Finder(corpus), corpus.fitting(before.index))


def _of_page(now: _Opened, asked: QueryParams) -> Corpus:
    """Return the corpus. Raises `ConfigError` if the place that is asked for is one of an earlier state of it."""
    if asked.get("opened", str(now.number)) != str(now.number):
        raise ConfigError("the corpus has changed since this page was made; reload the page")
    return now.corpus


class _Served:
    """The endpoints, by the names of their paths. All but the download return a value, and are called in a thread."""

    def __init__(self, corpus: Corpus, index: NearestIndex | None) -> None:
        self._one_at_a_time = threading.Lock()
        self._opened = _Opened(_moment(corpus.store), 0, corpus, Finder(corpus), index)
        if read_tombstones(corpus.store, waiting=True) != corpus.tombstones:  # purged or erased since it was opened
            self._opened = _opened_again(self._opened, self._opened.moment)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="browse")

    def _now(self) -> _Opened:
        """Return the corpus as it is now."""
        moment = _moment(self._opened.corpus.store)  # of a slow store others need not wait for that
        with self._one_at_a_time:
            if moment != (before := self._opened.moment):
                run = moment.run if moment.tombstones == before.tombstones else None
                self._opened = _opened_again(self._opened, moment, run)
            return self._opened

    def corpus(self, now: _Opened, asked: QueryParams, watch: Watch) -> dict[str, Any]:
        """The facts that the page asks for first."""
        return described(now.corpus) | {"pages": PAGES, "index": now.index is not None, "opened": now.number}

    def rows(self, now: _Opened, asked: QueryParams, watch: Watch) -> dict[str, Any]:
        """One page of rows."""
        question = Question(asked.get("where") or None, asked.get("sort") or None, asked.get("down") == "1")
        start, count = _whole(asked, "start", 0), min(max(_whole(asked, "count", PAGES[0]), 1), PAGES[-1])
        found = now.finder.find(question, start, count, watch, all_rows=asked.get("all") == "1")
        names = shown_columns(now.corpus, _names(asked.get("columns")))
        page = {"rows": shown_rows(now.corpus, found.places, names), "start": start, "opened": now.number}
        return page | {"read": found.read, "found": found.found, "whole": found.whole}

    def row(self, now: _Opened, asked: QueryParams, watch: Watch) -> dict[str, Any]:
        """Every column of one row, and the rows around it."""
        found = looked_at(_of_page(now, asked), asked.get("part", ""), _whole(asked, "row", 0))
        return found | {"opened": now.number}

    def document(self, now: _Opened, asked: QueryParams, watch: Watch) -> dict[str, Any]:
        """More of the rows around a row."""
        before, after = _whole(asked, "before", 0), _whole(asked, "after", 0)
        return around(_of_page(now, asked), asked.get("part", ""), _whole(asked, "row", 0), before, after)

    def nearest(self, now: _Opened, asked: QueryParams, watch: Watch) -> dict[str, Any]:
        """The rows with the nearest embeddings."""
        where = now.finder.condition(asked.get("where"))
        place = asked.get("part", ""), _whole(asked, "row", 0)
        return {"rows": neighbours(_of_page(now, asked), *place, where, now.index, watch)}

    def use(self, now: _Opened, asked: QueryParams, watch: Watch) -> dict[str, Any]:
        """How the rows of the filter are used elsewhere."""
        return use_of(now.corpus, now.finder.condition(asked.get("where")))

    async def download(self, request: Request) -> Response:
        """The rows of the filter, as a file."""
        asked = request.query_params
        ending = f".{asked.get('format')}"
        try:
            if ending not in KINDS:
                raise ConfigError(f"format is {asked.get('format')}; allowed: {', '.join(one[1:] for one in KINDS)}")
            now, pieces = await run_in_threadpool(self._stream, asked, ending)
        except (PipelineError, OSError) as error:
            return JSONResponse({"error": visible(str(error))}, status_code=400)
        name = "".join(
            sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in now.corpus.view.name
        )
        disposition = f'attachment; filename="{name[:80]}{ending}"'
        return StreamingResponse(
            self._unchanged(now, pieces), media_type=KINDS[ending], headers={"content-disposition": disposition}
        )

    def _stream(self, asked: QueryParams, ending: str) -> tuple[_Opened, Iterator[bytes]]:
        now = self._now()
        where = now.finder.condition(asked.get("where"))
        return now, stream(now.corpus, f"rows{ending}", where=where, columns=_names(asked.get("columns")))

    def _unchanged(self, now: _Opened, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces of a download as long as nothing is purged. Raises `CorpusError` if something is, or if a
        run has removed files meanwhile.
        """
        again = "a download broke off, since {} meanwhile; download it again"
        looked = -math.inf
        try:
            for piece in pieces:
                if time.monotonic() - looked > LOOKED_SECONDS:
                    if not tombstone_paths(now.corpus.store).issubset(now.moment.tombstones):
                        raise CorpusError(again.format("documents were purged"))
                    looked = time.monotonic()
                yield piece
        except MissingError as error:
            if self._now() is now:
                raise
            raise CorpusError(again.format("the corpus has changed")) from error

    def endpoint(self, work: _Work) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that answers with what `work` returns, as lines of JSON."""

        async def answer(request: Request) -> Response:
            asked = request.query_params

            def once_more(watch: Watch) -> dict[str, Any]:
                opened = self._now()
                try:
                    return work(opened, asked, watch)
                except MissingError:
                    now = self._now()
                if now is opened:  # a run is removing files, and says so when it is done
                    now = _opened_again(opened, opened.moment)
                return work(now, asked, watch)

            return StreamingResponse(self._lines(once_more), media_type="application/x-ndjson")

        return answer

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
