"""Repeats requests to object stores until they are answered, and counts each repetition.

On S3, s3fs and botocore would each repeat a request up to five times, and aiohttp once, without telling anyone. So s3fs
and aiohttp are told to send a request once; botocore is told to try four times with its `standard` backoff
(exponential, random, with a budget that an outage uses up), and an event of botocore counts. Repeating at that level
matters: a listing of millions of files takes thousands of requests, and one refused page must not restart it. Above
botocore, `with_retries` repeats a whole operation of a store: for bodies that break off while they are read, for
outages longer than botocore's retries, and for other stores. gcsfs repeats each request up to six times, and Azure's
client three times, on their own and uncounted; when they give up, the operation is repeated and counted here.

How long a store that is away is waited for is the patience of the process (`be_patient`): two minutes, and in a run or
a training `launcher.storage_patience`. After an operation has given up, or a signal has asked this process to stop, the
others give up soon, so that a process that cleans up does not wait once more for each of its files.

Cost: nothing while a store answers.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import fsspec

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.base.interrupts import has_interrupted

_log = logging.getLogger(__name__)
R = TypeVar("R")

RETRY_SECONDS = 120.0  # seconds from the first failure of an operation to its last try, unless a run says otherwise
FIRST_RETRY_SECONDS = 10.0  # until a store has answered once: its address is probably wrong
TOLD_SECONDS = 30.0  # of waiting, after which it is said once
SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 20.0  # seconds between two tries: doubled each time, and half of it random
_SLICE = 0.5  # seconds of a pause after which it is looked whether to give up soon
S3_ATTEMPTS = 4  # of each request by botocore, the first one included

_STATUSES = {408, 429, 500, 502, 503, 504}
_CODES = {  # of S3, with other statuses: damaged in transit, or in conflict with each other
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "XAmzContentSHA256Mismatch",
}
_KINDS = {  # kinds of errors of the clients, none of which need be installed
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "FlexibleChecksumError",  # botocore: a body that is not what the store's checksum says
    "HTTPClientError",  # botocore: connections, timeouts
    "IncompleteReadError",
    "ResponseParserError",
    "ChunkedEncodingError",  # requests, for gcsfs
    "ConnectionError",
    "ProxyError",
    "Timeout",
    "TransportError",  # google.auth
    "ServiceRequestError",  # azure
    "ServiceResponseError",
    "TimeoutError",
}

_counting = threading.Lock()
_repeated: Counter[str] = Counter()


@dataclass
class RetryPolicy:
    """How long this process waits for stores. `None`: the constants above. `gave_up`: no store has answered since."""

    seconds: float | None = None
    first: float | None = None
    gave_up: bool = False
    waited: float = 0.0  # seconds, by any operation
    answered: set[str] = field(default_factory=set)  # the services that have answered


current = RetryPolicy()


def be_patient(seconds: float, *, from_start: bool = False) -> None:
    """Wait this many seconds for a store that is away, in this process from now on.

    `from_start`: also for the first answer of a store, whose address is known to be right.
    """
    current.seconds = seconds
    if from_start:
        current.first = seconds


def patience(answered: bool = True) -> float:
    """Return how many seconds to wait for a store. `answered`: it has answered before."""
    if answered:
        found = RETRY_SECONDS if current.seconds is None else current.seconds
    else:
        found = FIRST_RETRY_SECONDS if current.first is None else current.first
    return min(found, FIRST_RETRY_SECONDS) if current.gave_up or has_interrupted() else found


def give_up_soon() -> None:
    """Have operations that fail from now on wait for `FIRST_RETRY_SECONDS` at most, until a store answers again."""
    current.gave_up = True


def seconds_waited() -> float:
    """Return how many seconds operations of this process have waited for stores so far."""
    return current.waited


def count_retry(operation: str) -> None:
    """Count one repetition of an operation."""
    with _counting:
        _repeated[operation] += 1


def take_retry_counts() -> Counter[str]:
    """Return how often this process repeated each operation since the last call; each repetition is reported once."""
    with _counting:
        taken = _repeated.copy()
        _repeated.clear()
    return taken


def with_retries(operation: str, ask: Callable[[], R], service: str = "") -> R:
    """Call `ask` until it succeeds, or this process has waited as long as its retry policy allows.

    Args:
        operation: the name under which repetitions are counted.
        ask: the call.
        service: what is asked, as `service_of` names it; until it has answered once in this process, it is given up
            sooner. Empty if its address is known to be right.

    Returns:
        The result of `ask`.

    Raises:
        Exception: the last error of `ask`.
    """
    waited, pause, started, told = 0.0, SHORTEST_PAUSE, time.monotonic(), False
    while True:
        try:
            result = ask()
        except Exception as error:
            if not is_transient(error):
                raise
            answered = not service or service in current.answered
            if waited >= patience(answered):
                current.gave_up = True
                raise
            level = logging.INFO if told or waited < TOLD_SECONDS else logging.WARNING
            told = told or level == logging.WARNING
            _log.log(level, "%s has failed for %.0f s and is tried again: %s", operation, waited, error)
        else:
            current.gave_up = False
            current.answered.add(service)
            return result
        seconds = min(pause, max(patience(answered) - waited, SHORTEST_PAUSE)) * random.uniform(0.5, 1.0)
        began = time.monotonic()
        _sleep(seconds)
        with _counting:
            current.waited += time.monotonic() - began
        waited, pause = time.monotonic() - started, min(2 * pause, LONGEST_PAUSE)
        count_retry(operation)


def _sleep(seconds: float) -> None:
    """Sleep, but no longer than until this process is to give up soon: Ctrl-C interrupts the main thread only, which
    waits for the others.
    """
    hurried = current.gave_up or has_interrupted()
    while seconds > 0 and (current.gave_up or has_interrupted()) == hurried:
        time.sleep(min(seconds, _SLICE))
        seconds -= min(seconds, _SLICE)


def service_of(fs: Any, url: str) -> str:
    """Return the service that a filesystem asks for a URL: its protocol, and its address or account if there are
    several.
    """
    if url.startswith(("s3://", "s3a://")):
        return f"s3 {fs.s3.meta.endpoint_url}"
    protocol, _, rest = url.partition("://")
    where = rest.partition("/")[0] if protocol in ("http", "https") else getattr(fs, "account_name", "")
    return f"{protocol} {where}"


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later: the store was busy, or the connection broke."""
    if isinstance(error, PipelineError) or is_redirected(error):  # our own errors are raised after all retries
        return False
    for one in (error, error.__cause__):  # s3fs turns many errors into OSError and keeps the cause
        if one is None:
            continue
        response = getattr(one, "response", None)
        if isinstance(response, dict):  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status in _STATUSES or response.get("Error", {}).get("Code") in _CODES:
                return True
        if any(str(getattr(one, name, "")) in map(str, _STATUSES) for name in ("status", "status_code", "code")):
            return True  # aiohttp, azure, gcsfs
        if any(kind.__name__ in _KINDS for kind in type(one).__mro__):
            return True
    return False


def check_length(path: str, start: int, end: int, data: bytes, size: Callable[[], int | None]) -> None:
    """Check that as many bytes came as the store has between two offsets.

    Of a range, the client has no checksum: a body that was cut short on its way, with a length that fits it, would be
    taken for all of it.

    Args:
        path: the file.
        start: the offset of the first byte.
        end: the offset after the last byte that was asked for; it may lie after the end of the file.
        data: what came.
        size: returns the bytes of the file, or None where the store does not tell; it is asked for fewer bytes only.

    Raises:
        ConnectionError: if fewer came, which is transient.
    """
    if len(data) < end - start and start + len(data) < min(end, size() or 0):
        raise ConnectionError(f"only {len(data)} of the bytes {start} to {end} of {path} arrived")


def is_redirected(error: BaseException) -> bool:
    """Return whether the store redirected every request, which its client follows to itself again and again."""
    found = (error, error.__cause__, error.__context__ if type(error).__name__ == "HTTPClientError" else None)
    return any(isinstance(one, RecursionError) or type(one).__name__ == "TooManyRedirects" for one in found)


def filesystem(url: str) -> tuple[Any, str]:
    """Return the filesystem of a URL and the path in it, without a cache of listings; on S3, repetitions are
    counted. Raises `ConfigError` for chained URLs.
    """
    check_not_chained(url)
    if "://" in url:
        logging.getLogger("asyncio").addFilter(_not_of_broken_connections)
    if url.startswith(("gs://", "gcs://", "az://", "abfs://", "abfss://")):
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    elif url.startswith(("s3://", "s3a://")):
        retries = {"mode": "standard", "total_max_attempts": S3_ATTEMPTS}
        config = {"retries": retries, "http_session_cls": _asking_once()}
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False, config_kwargs=config)
        fs.retries = 1
        # fsspec shares clients with equal options, so the handler may be registered already
        fs.s3.meta.events.register("needs-retry.s3", _count_repeated, unique_id="counted")
    else:
        fs, path = fsspec.core.url_to_fs(url)
    return fs, str(path)


def check_not_chained(url: str) -> None:
    """Raise `ConfigError` for a place with `::`, of which fsspec would take a part for the place."""
    if "::" in url:
        raise ConfigError(f"{url} holds ::, which makes a chained URL; give a folder, or a plain URL, without ::")


def _not_of_broken_connections(record: logging.LogRecord) -> bool:
    """Keep from the log of asyncio, as details of ours, that a task of aiohttp nobody waits for lost its connection:
    the request itself fails too, and is tried again.
    """
    error = record.exc_info[1] if record.exc_info else None
    if error is None or "exception was never retrieved" not in record.getMessage() or not is_transient(error):
        return True
    _log.debug("a connection broke: %r", error)
    return False


@functools.cache  # one class, so that fsspec recognises clients with equal options
def _asking_once() -> type:
    """Return a class of S3 connections that leave it to botocore to repeat a request whose connection broke."""
    from aiobotocore.httpsession import AIOHTTPSession

    class AskingOnce(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False
            return session

    return AskingOnce


def _count_repeated(attempts: int, operation: Any, **_: Any) -> None:
    """Count a repetition: botocore calls this after each attempt; returning None leaves the decision to it."""
    if attempts > 1:
        count_retry(operation.name)
