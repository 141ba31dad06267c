"""How long a process waits for a store that is away, by a clock that only waiting moves."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import fsspec
import pytest

from pipeline.base.interrupts import install_sigterm_handler
from pipeline.base.parallel import prefetch
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import list_files
from pipeline.run.tasks import failed_event
from pipeline.storage import retry
from pipeline.storage.remote import AwayError, CorpusStoreError, translate_errors
from pipeline.storage.store import Store
from tests.support.inputs import entry

OUTAGE = 600.0  # seconds


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(retry, "current", retry.RetryPolicy())
    return clock


def away_until(clock: Clock, end: float) -> Callable[[], str]:
    def ask() -> str:
        if clock.now < end:
            raise ConnectionError("no answer")
        return "an answer"

    return ask


def test_an_outage_of_ten_minutes_ends_a_process_of_two_minutes_and_none_of_thirty(clock: Clock) -> None:
    with pytest.raises(ConnectionError):
        retry.with_retries("read", away_until(clock, OUTAGE))
    assert retry.RETRY_SECONDS <= clock.now < retry.RETRY_SECONDS + retry.LONGEST_PAUSE
    retry.current = retry.RetryPolicy()
    began = clock.now
    with pytest.raises(ConnectionError):  # one that starts in the outage
        retry.with_retries("read", away_until(clock, OUTAGE), "s3 of others")
    assert clock.now - began < 2 * retry.FIRST_RETRY_SECONDS

    retry.current = retry.RetryPolicy()
    retry.be_patient(1800.0, from_start=True)
    clock.now = 0.0
    retry.take_retry_counts()
    assert retry.with_retries("read", away_until(clock, OUTAGE), "s3 of others") == "an answer"
    assert OUTAGE <= clock.now <= OUTAGE + retry.LONGEST_PAUSE
    assert retry.seconds_waited() == pytest.approx(clock.now)
    assert OUTAGE / retry.LONGEST_PAUSE <= retry.take_retry_counts()["read"] <= 80


def test_a_service_that_listed_the_inputs_is_waited_for_by_a_new_corpus(clock: Clock) -> None:
    retry.be_patient(1800.0)
    with pytest.raises(ConnectionError):
        Store("memory://new")._patiently("read", away_until(clock, OUTAGE))
    fsspec.filesystem("memory").pipe_file("in/a.jsonl", b"{}")
    assert list_files(entry("memory://in/*.jsonl"))
    clock.now = 0.0
    assert Store("memory://new")._patiently("read", away_until(clock, OUTAGE)) == "an answer"


def test_services_are_told_apart(bucket: str) -> None:
    urls = ["s3://a/b", "s3://c", "https://one.org/a", "https://one.org/b", "https://two.org/a", "memory://a"]
    services = [retry.service_of(retry.filesystem(url)[0], url) for url in urls]
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    assert services == [*[f"s3 {endpoint}"] * 2, *["https one.org"] * 2, "https two.org", "memory "]


def test_who_gave_up_cleans_up_without_waiting_as_long_again(clock: Clock) -> None:
    retry.be_patient(1800.0)
    with pytest.raises(ConnectionError):
        retry.with_retries("read", away_until(clock, 9e9))
    assert 1800 <= clock.now <= 1800 + retry.LONGEST_PAUSE
    for _ in range(3):
        began = clock.now
        with pytest.raises(ConnectionError):
            retry.with_retries("delete", away_until(clock, 9e9))
        assert clock.now - began < 2 * retry.FIRST_RETRY_SECONDS
    assert retry.with_retries("read", away_until(clock, 0.0)) == "an answer"
    assert retry.patience() == 1800, "a store that answered again is waited for again"


def test_who_is_asked_to_stop_no_longer_waits(clock: Clock) -> None:
    retry.be_patient(1800.0)

    def ask() -> str:
        if clock.now > 60:
            retry.give_up_soon()
        raise ConnectionError

    with pytest.raises(ConnectionError):
        retry.with_retries("read", ask)
    assert clock.now < 60 + 2 * retry.LONGEST_PAUSE


def test_a_store_that_is_away_is_told_from_one_that_refuses() -> None:
    for error, away in ((ConnectionError("no answer"), True), (PermissionError("expired"), False)):
        with pytest.raises(CorpusStoreError) as caught, translate_errors("s3://bucket/corpus", CorpusStoreError):
            raise error
        assert isinstance(caught.value, AwayError) == away
        event = failed_event(PartRef(part="a", fingerprint="b").part, caught.value)
        assert event.fatal and event.away == away


def test_tasks_that_nobody_waits_for_do_not_tell_of_broken_connections(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def leave() -> None:
        tasks = [asyncio.create_task(fail(error)) for error in (ConnectionResetError("closing"), KeyError("a bug"))]
        await asyncio.wait(tasks)

    retry.filesystem("memory://corpus")
    with caplog.at_level(logging.DEBUG, "pipeline"):
        asyncio.run(leave())
        gc.collect()
    told = [(one.name, one.levelname) for one in caplog.records if "never retrieved" in one.message]
    assert told == [("asyncio", "ERROR")] and "KeyError" in caplog.text
    kept = [one.message for one in caplog.records if one.name == "pipeline.storage.retry"]
    assert kept == ["a connection broke: ConnectionResetError('closing')"]


def test_ctrl_c_is_not_kept_waiting_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_RETRY_SECONDS", 0.1)
    retry.be_patient(60, from_start=True)

    def ask(number: int) -> int:
        def fail() -> int:
            raise ConnectionError("the store is away")

        return retry.with_retries("read", fail)

    signs = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {sign: signal.getsignal(sign) for sign in signs}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background of a script
    install_sigterm_handler()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(5.0, os.kill, (os.getpid(), signal.SIGINT)).start()  # by then they pause for seconds
            next(prefetch(ask, range(4)))
    finally:
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
    assert time.monotonic() - began < 50, "as long as the store is waited for"
