"""Leases expire by the store's clock, and one worker at a time has one; one run at a time holds a corpus."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.errors import CorpusError, DamagedError, PipelineError, StorageError
from pipeline.coordination.heartbeat import Heartbeat
from pipeline.coordination.leases import Lease, Leases
from pipeline.coordination.lock import CANCEL, check_held, holder_info, locked, set_holder, take_lock
from pipeline.run import run as run_module
from pipeline.storage.store import Store
from tests.conftest import MakeConfig
from tests.support.cli import pipeline
from tests.support.clocks import following, set_clock
from tests.support.processes import start

SECONDS = 2.0


def look(store: Store) -> Leases:
    leases = Leases(store, "claims", SECONDS)
    leases.poll()
    return leases


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_one_has_it_until_it_is_silent(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = Store(str(tmp_path) if kind == "local" else request.getfixturevalue("bucket"))
    first = look(store).first_free(["a", "b"], {"worker": "one"})
    assert first and (first.name, first.generation) == ("a", 0)
    second = look(store).first_free(["a", "b"], {"worker": "two"})
    assert second and second.name == "b"
    assert look(store).first_free(["a", "b"], {}) is None
    assert look(store).holder("a") == {"worker": "one"}
    deadline = time.monotonic() + SECONDS + 1.5
    while time.monotonic() < deadline:
        assert first.beat()
        time.sleep(SECONDS / 4)
    third = look(store).first_free(["a", "b"], {"worker": "three"})  # b was silent, a was not
    assert third and (third.name, third.generation) == ("b", 1)
    assert not second.beat() and third.beat()
    third.release()
    fourth = look(store).first_free(["b"], {})
    assert fourth and fourth.generation == 2


def test_a_task_that_starts_again_has_its_own(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    mine = look(store).first_free(["a"], {})
    assert look(store).first_free(["a"], {}) is None
    again = look(store).first_free(["a"], {}, mine)
    assert again and again.generation == 1
    assert Lease.of(store, again.path) == again


def test_a_wrong_clock_changes_nothing(tmp_path: Path) -> None:
    """A worker whose clock is an hour ahead takes over nothing that is alive."""
    assert look(Store(str(tmp_path))).first_free(["a"], {"worker": "one"})
    code = (
        "import sys, time; from pipeline.coordination.leases import Leases; from pipeline.storage.store import Store;"
        "leases = Leases(Store(sys.argv[1]), 'claims', 60.0); leases.poll();"
        "print(round((time.time() - float(sys.argv[2])) / 3600), leases.first_free(['a'], {}))"
    )
    for hours in (1, -1):
        set_clock(tmp_path / "offset", 3600 * hours)
        command = [sys.executable, "-c", code, str(tmp_path), str(time.time())]
        environment = following(tmp_path / "offset")
        skewed = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        assert skewed.stdout.split() == [str(hours), "None"], skewed


def away(jobs: Sequence[str]) -> bool:
    raise PipelineError("squeue: away")


def test_the_lock_says_who_holds_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    lease = take_lock(store, SECONDS, holder_info())
    with pytest.raises(CorpusError, match=rf"since .* by .* on .* \(process {os.getpid()}.*pipeline cancel"):
        take_lock(store, SECONDS, holder_info())
    lease.release()
    again = take_lock(store, SECONDS, holder_info())
    set_holder(again, holder_info(run="runs/one"))
    third = take_lock(store, SECONDS, holder_info(), take_over=True)
    assert store.exists(f"runs/one/{CANCEL}"), "the one before was not asked to stop"
    assert not again.beat()
    set_holder(third, holder_info(jobs=["7", "8"]))
    with pytest.raises(CorpusError, match="SLURM jobs 7, 8"):
        take_lock(store, SECONDS, holder_info(), jobs_alive=lambda jobs: jobs == ["7", "8"])
    with pytest.raises(CorpusError, match=r"jobs 7, 8\), .*: squeue: away\. Try again where .*--take-over"):
        take_lock(store, SECONDS, holder_info(), jobs_alive=away)
    assert take_lock(store, SECONDS, holder_info(), jobs_alive=lambda jobs: False)
    assert len(store.listing("lock")) == 1, "older generations stay"


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_a_command_that_deletes_files_is_not_taken_over(host: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    lease = take_lock(store, SECONDS, holder_info(launcher="gc") | {"host": host})
    os.utime(tmp_path / lease.path, (time.time() - 60,) * 2)  # its heartbeats are rarer than those of this run
    with pytest.raises(CorpusError, match=r"by pipeline gc --delete since .* or stop that process") as caught:
        take_lock(store, SECONDS, holder_info(), take_over=True)
    assert "take-over" not in str(caught.value) and "cancel" not in str(caught.value) and lease.beat()
    set_holder(lease, holder_info(launcher="gc", host=host) | {"born": "another"})
    os.utime(tmp_path / lease.path, (time.time() - 121,) * 2)
    assert take_lock(store, SECONDS, holder_info()), "it is dead"


def test_who_loses_the_lock_is_told_so(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(CorpusError, match="another process has taken over the lock"), locked(store, "gc") as lease:
        check_held(lease)
        store.create(replace(lease, generation=1).path, b"{}")
        check_held(lease)


def test_a_lock_that_cannot_be_released_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(lease: Lease) -> None:
        raise StorageError("cannot write lock/run-000.released")

    monkeypatch.setattr(Lease, "release", full)
    with pytest.raises(StorageError, match="cannot write tombstones"), locked(Store(str(tmp_path / "a")), "purge"):
        raise StorageError("cannot write tombstones")
    assert not caplog.records
    with locked(Store(str(tmp_path / "b")), "purge"):
        pass
    assert "the lock is not released (cannot write lock/run-000.released)" in caplog.text


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    code = "import sys; from pipeline.coordination.lock import holder_info, take_lock;"
    code += "from pipeline.storage.store import Store; take_lock(Store(sys.argv[1]), 1000, holder_info())"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert take_lock(Store(str(tmp_path)), 1000, holder_info())


def test_a_heart_hears_who_asks_to_stop() -> None:
    asked: list[str | None] = [None, None, "enough"]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Heartbeat(lambda: asked.pop(0), 0.05) as heart:
            time.sleep(10)
        assert heart.stopped == "enough"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_heart_asks_again_until_somebody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.coordination.heartbeat.AGAIN_SECONDS", 0.1)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Heartbeat(lambda: "enough", 0.05) as heart:
            for _ in range(2):  # the first one is swallowed, as by a library
                with pytest.raises(KeyboardInterrupt):
                    time.sleep(10)
            heart.noticed()
            time.sleep(0.3)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_second_run_is_refused_and_may_take_over(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(segment={"method": "spacy-capped", "max_chars": 12})
    first = start("run", path, "--set", "launcher.lease_seconds=2")
    deadline = time.monotonic() + 600  # of a busy machine
    while not list((tmp_path / "out/receipts").rglob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)  # however long it takes, the process is there
    second = pipeline("run", path)
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 1, second
    assert f"(process {first.pid}" in second.stderr and "--take-over" in second.stderr
    third = pipeline("run", path, "--take-over")
    shown, _ = first.communicate(timeout=600)
    assert third.returncode == 0, third
    assert first.returncode == 1 and re.search("stopped: taken over by ", shown), shown


def test_a_heartbeat_of_another_clock_does_not_hold_for_ever(tmp_path: Path) -> None:
    """A lease of another host, two hours ahead of the clock of the store."""
    store = Store(str(tmp_path))
    lease = take_lock(store, SECONDS, {**holder_info(), "host": "elsewhere"})
    os.utime(tmp_path / lease.path, (time.time() + 7200,) * 2)
    assert take_lock(store, SECONDS, holder_info()).generation == lease.generation + 1


@pytest.mark.parametrize("content", ["", "[]", "{", '{"jobs": "1; rm -rf", "pid": "x", "run": "../.."}', "\x00"])
def test_a_damaged_lease_holds_by_its_heartbeats(content: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    lease = take_lock(store, SECONDS, holder_info())
    (tmp_path / lease.path).write_text(content)
    with pytest.raises(CorpusError, match=r"by somebody whose lease lock/run-000.lease is damaged"):
        take_lock(store, SECONDS, holder_info())
    os.utime(tmp_path / lease.path, (time.time() - 60,) * 2)
    assert take_lock(store, SECONDS, holder_info()).generation == 1


def test_what_is_no_lease_in_the_place_of_the_next_one_is_told(tmp_path: Path) -> None:
    """A folder was taken for a process that is faster, for ever."""
    store = Store(str(tmp_path))
    take_lock(store, SECONDS, holder_info()).release()
    place = tmp_path / "lock/run-001.lease"
    place.mkdir()
    with pytest.raises(DamagedError, match=r"run-001\.lease is damaged \(it is a folder, not a file\); move it away"):
        take_lock(store, SECONDS, holder_info())
    place.rmdir()
    place.symlink_to("nowhere")
    with pytest.raises(DamagedError, match="it is a link to nothing, or in a circle, not a file"):
        take_lock(store, SECONDS, holder_info())


def test_a_holder_cannot_control_a_terminal(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    take_lock(store, SECONDS, {"user": "ada\x1b[2J\nsafe", "host": "h" * 10_000, "pid": 1})
    with pytest.raises(CorpusError, match="by ada") as told:
        take_lock(store, SECONDS, holder_info())
    assert not set(str(told.value)) & {"\x1b", "\n"} and len(str(told.value)) < 1000


@pytest.mark.parametrize("moment", ["_with_launcher", "set_holder"])
def test_a_run_that_lost_the_corpus_before_its_lease_named_it_leaves_no_record(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As if it were suspended just then: who takes over knows no run that it could ask to stop."""
    path, store, before = make_config(), Store(str(tmp_path / "out")), getattr(run_module, moment)

    def taken_over(*given: Any) -> Any:
        take_lock(store, SECONDS, holder_info(host="elsewhere"), take_over=True)
        return before(*given)

    monkeypatch.setattr(run_module, moment, taken_over)
    refused = pipeline("run", path)
    assert refused.returncode == 1 and "another process has taken over the lock" in refused.stderr, refused
    assert not store.find("runs") and not store.find("receipts")
