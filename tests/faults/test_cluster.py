"""kill -9 at seeded moments of the driver, a worker and a whole node of a Ray cluster; resumed: the same corpus."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.launchers.ray_cluster import Cluster, Node, processes_of, running_cluster
from tests.support.cli import pipeline
from tests.support.kills import KILLS, check_resumed, files

pytestmark = [pytest.mark.faults, pytest.mark.cluster]

PAGE = 3000  # characters


def test_killed_and_resumed_on_a_cluster(make_config: MakeConfig, tmp_path: Path) -> None:
    for number, one in enumerate(sample_documents("austen-eng", 24)):
        pages = range(0, len(one["text"]), PAGE)
        documents = [one | {"id": f"{number}-{page}", "text": one["text"][page : page + PAGE]} for page in pages]
        write_jsonl(tmp_path / f"in/{number}.jsonl", documents)
    path = make_config(segment={"method": "spacy-capped", "max_chars": 24}, autobleu=None)  # a part is a page
    whole = pipeline("run", path, "--launcher", "inline", "--set", f"output={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole
    expected = data_digests(tmp_path / "whole")
    moments = random.Random("Ray cluster")
    kinds = ["node", "worker", "driver"] * (KILLS // 3 + 1)
    rounds = _rounds(path)
    current, output = next(rounds)
    with running_cluster() as cluster:
        second: Node | None = None
        driver: subprocess.Popen[str] | None = None
        for kind in moments.sample(kinds, KILLS):
            if second is None:
                second = cluster.join()
                cluster.wait_for(2)
            driver = driver or _start(cluster, current)
            while not _more(driver, output, moments.randint(1, 6)):  # it is done: once more, elsewhere
                check_resumed(current, output, expected, "inline")
                current, output = next(rounds)
                driver = _start(cluster, current)
            time.sleep(moments.uniform(0, 0.3))
            if kind == "node":
                cluster.kill(second)
                second = None
            elif kind == "worker":
                _kill_worker(cluster, moments)
            else:
                driver.kill()
                driver.communicate()
                driver = None
        if driver:
            shown, _ = driver.communicate(timeout=600)
            assert driver.returncode == 0, shown
    check_resumed(current, output, expected, "inline")


def _rounds(path: Path) -> Iterator[tuple[Path, Path]]:
    """Configurations of the same corpus in another place each time, and that place."""
    text = path.read_text()
    for number in itertools.count():
        current = path.with_name(f"round-{number}.yaml")
        current.write_text(text.replace("output: out", f"output: out-{number}"))
        yield current, path.with_name(f"out-{number}")


def _start(cluster: Cluster, path: Path) -> subprocess.Popen[str]:
    return cluster.python("-m", "pipeline.cli", "run", str(path), "--launcher", "ray", "--address", cluster.address)


def _more(driver: subprocess.Popen[str], output: Path, more: int) -> bool:
    """Waits until so many more receipts are there. False if the run came to its end before."""
    before, deadline = files(output / "receipts"), time.monotonic() + 600  # of a busy machine
    while files(output / "receipts") < before + more:
        if driver.poll() is not None:
            assert driver.returncode == 0, driver.communicate()[0]
            return False
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return True


def _kill_worker(cluster: Cluster, moments: random.Random) -> None:
    """One of the processes that compute."""
    deadline = time.monotonic() + 600  # of a busy machine
    while time.monotonic() < deadline:
        token = cluster.token["RAY_AUTH_TOKEN"]
        if there := [one for kind in ("Segment", "Visit") for one in processes_of(token, f"ray::{kind}Actor")]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(moments.choice(there), signal.SIGKILL)
                return
        time.sleep(0.1)
    raise AssertionError("there is no worker")
