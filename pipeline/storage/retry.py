"""Requests to object stores are repeated until they are answered, and each repetition is counted.

Who repeats what. On S3, s3fs and botocore would each repeat a request up to five times, aiohttp once, and tell no one.
s3fs and aiohttp are told to ask once, botocore to ask four times with its `standard` backoff (exponential, random, with
a budget that an outage uses up), and an event of botocore counts. That is the level where it must happen: a listing of
millions of files is thousands of requests, and one refused page must not begin it anew. Above that, `with_retries`
repeats a whole operation of a store: bodies that break off while they are read, outages longer than botocore's retries,
and other stores. gcsfs repeats each request up to six times, and Azure's client three times, on their own and not
counted; what they give up is repeated and counted here.

Cost: nothing while a store answers; a store that is down is waited for two minutes, then it is an error.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import fsspec

from pipeline.base.errors import PipelineError

R = TypeVar("R")

RETRY_SECONDS = 120.0  # seconds from the first failure of an operation to its last try
FIRST_RETRY_SECONDS = 10.0  # until a store has answered once: more likely its address is wrong
SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 20.0  # seconds between two tries: doubled each time, half of it random
S3_ATTEMPTS = 4  # of each request by botocore, the first one included

_STATUSES = {408, 429, 500, 502, 503, 504}
_CODES = {  # of S3, with other statuses: damaged on the way, or in each other's way
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


def count_retry(operation: str) -> None:
    """Note one repetition."""
    with _counting:
        _repeated[operation] += 1


def take_retry_counts() -> Counter[str]:
    """What this process repeated since it was last asked, by operation: each repetition is told once."""
    with _counting:
        taken = _repeated.copy()
        _repeated.clear()
    return taken


def with_retries(operation: str, ask: Callable[[], R], seconds: float) -> R:
    """What `ask` returns, asked again while the store fails in a way that may pass. Raises its last error."""
    waited, pause, started = 0.0, SHORTEST_PAUSE, time.monotonic()
    while True:
        try:
            return ask()
        except Exception as error:
            if not is_transient(error) or waited >= seconds:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))
        waited, pause = time.monotonic() - started, min(2 * pause, LONGEST_PAUSE)
        count_retry(operation)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: the store was busy, or the connection broke."""
    if isinstance(error, PipelineError):  # a judgement of ours already, after all patience
        return False
    for one in (error, error.__cause__):  # s3fs makes OSError of many, and keeps what it was
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


def filesystem(url: str) -> tuple[Any, str]:
    """The filesystem of a store and the path in it: it remembers no listings, and counts what it repeats on S3."""
    if url.startswith(("gs://", "gcs://", "az://", "abfs://", "abfss://")):
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    elif url.startswith(("s3://", "s3a://")):
        retries = {"mode": "standard", "total_max_attempts": S3_ATTEMPTS}
        config = {"retries": retries, "http_session_cls": _asking_once()}
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False, config_kwargs=config)
        fs.retries = 1
        # fsspec shares clients that are made alike, so it may be there already
        fs.s3.meta.events.register("needs-retry.s3", _count_repeated, unique_id="counted")
    else:
        fs, path = fsspec.core.url_to_fs(url)
    return fs, str(path)


@functools.cache  # one class, by which fsspec knows clients that are made alike
def _asking_once() -> type:
    """Connections of the S3 client that leave it to botocore to repeat a request when they break."""
    from aiobotocore.httpsession import AIOHTTPSession

    class AskingOnce(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no types
        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False
            return session

    return AskingOnce


def _count_repeated(attempts: int, operation: Any, **_: Any) -> None:
    """Called by botocore after each answer, and each failure; answers nothing, so that botocore decides."""
    if attempts > 1:
        count_retry(operation.name)
