"""A real Ray cluster of two nodes on this machine: unequal, growing, and sent a job."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers import ray_cluster
from launchers.ray_cluster import RAY_TRIES, checked_address, joined
from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from tests.conftest import ROOT, MakeConfig, data_digests
from tests.launchers.ray_cluster import Cluster, Node, free_port, processes_of, running_cluster
from tests.support.cli import PIPELINE


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


def run(cluster: Cluster, path: Path, *options: str) -> tuple[int, str]:
    done = cluster.python("-m", "pipeline.cli", "run", str(path), "--launcher", "ray", *options)
    shown, _ = done.communicate(timeout=600)
    return done.returncode, shown


@pytest.mark.cluster
def test_a_node_that_joins_gets_parts_at_once(cluster: Cluster) -> None:
    cluster.wait_for(1)
    process = cluster.python("-m", "tests.launchers.on_nodes", cluster.address, "2000")
    assert process.stdout
    late: Node | None = None
    done: list[str] = []
    for line in process.stdout:
        if line.startswith("done on"):
            done.append(line.split()[-1])
            late = late or cluster.join()
            cluster.start_again()
        if len(set(done)) == 2 or len(done) == 1000:
            break
    process.kill()
    shown, _ = process.communicate()
    assert late and len(set(done)) == 2, (len(done), shown)
    cluster.kill(late)
    print(f"{len(done)} parts of 2000 were done before the node that joined did its first")


@pytest.mark.cluster
def test_a_cluster_that_adds_nodes_by_itself_adds_one_while_parts_wait() -> None:
    """Ray's own autoscaler. Before, it was asked for no more than the cluster had, and added none."""
    with running_cluster(more=1) as cluster:
        process = cluster.python("-m", "tests.launchers.on_nodes", cluster.address, "2000")
        assert process.stdout
        done: list[str] = []
        for line in process.stdout:
            done += [line.split()[-1]] if line.startswith("done on") else []
            if len(set(done)) == 2 or len(done) == 1000:
                break
        process.kill()
        shown, _ = process.communicate()
        assert len(set(done)) == 2, (len(done), shown)
    assert not processes_of(cluster.folder, "raylet")
    print(f"{len(done)} parts of 2000 were done before the node that was added did its first")


@pytest.mark.cluster
def test_a_node_with_other_code_is_refused(cluster: Cluster, make_config: MakeConfig, tmp_path: Path) -> None:
    for package in ("pipeline", "stages", "launchers", "conf"):
        shutil.copytree(ROOT / package, tmp_path / "old" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "old/stages/device.py").open("a") as file:
        file.write("# of yesterday\n")
    cluster.wait_for(1)
    other = cluster.join(PYTHONPATH=str(tmp_path / "old"))
    cluster.wait_for(2)
    code, shown = run(cluster, make_config(), "--address", cluster.address)
    cluster.kill(other)
    assert code == 1 and "cannot take part" in shown and "code is " in shown and socket.gethostname() in shown, shown
    assert not list((tmp_path / "out").glob("documents/*")), "work was done"


def sentences_measured(cluster: Cluster, wanted: dict[str, int]) -> bool:
    """Whether Prometheus would read these sentences by stage from the head, which exports them a moment later."""
    pattern = re.compile(r'^ray_pipeline_sentences_total\{.*corpus="test".*stage="(\w+)".*\} (\S+)$', re.MULTILINE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.metrics}/metrics", timeout=60) as answer:
            if {stage: float(count) for stage, count in pattern.findall(answer.read().decode())} == wanted:
                return True
        time.sleep(0.5)
    return False


@pytest.mark.cluster
def test_a_job_is_submitted_and_followed(cluster: Cluster, make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(autobleu=None)
    code, shown = run(cluster, path, "--address", f"http://127.0.0.1:{cluster.dashboard}", "--until", "encode")
    assert code == 0 and "SUCCEEDED" in shown and "done in" in shown, shown
    assert "WebSocket" not in shown, shown
    assert any(name.startswith("embeddings/") for name in data_digests(tmp_path / "out"))
    rows = Corpus(str(tmp_path / "out")).rows
    assert sentences_measured(cluster, {"segment": rows, "encode": rows}), "Ray does not export what the run has done"
    code, shown = run(cluster, path, "--address", f"http://127.0.0.1:{cluster.dashboard}", "--only", "rvq")
    assert code == 2 and "--only rvq" in shown, shown


def test_an_address_is_needed(make_config: MakeConfig) -> None:
    done = subprocess.run([PIPELINE, "run", make_config(), "--launcher", "ray"], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no address: give --address" in done.stderr, done


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://127.0.0.1:10001", "ray:// is Ray Client, which cannot drive a run; give HOST:6379"),
        ("local", "'local' is no address of a Ray cluster; give --address HOST:6379 or auto"),
        ("head", "is no address"),
        ("head:70000", "is no address"),
        ("fe80::1:6379", "is no address"),
        ("ftp://head:21", "is no address"),
    ],
)
def test_other_addresses_are_refused(make_config: MakeConfig, address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        checked_address(load_config(make_config(launcher={"kind": "ray", "address": address})))


@pytest.mark.parametrize(
    "address", ["auto", "head:6379", "10.0.0.1:1", "[fe80::1]:6379", "http://head:8265", "https://h"]
)
def test_addresses_of_clusters(make_config: MakeConfig, address: str) -> None:
    assert checked_address(load_config(make_config(launcher={"kind": "ray", "address": address}))) == address


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_address_where_nobody_listens_is_told_at_once(host: str) -> None:
    started = time.monotonic()
    message = f"cannot join a Ray cluster at {host}:.*finished work is kept"
    with pytest.raises(ConfigError, match=message), joined(f"{host}:{free_port()}"):
        raise AssertionError("joined nothing")
    assert time.monotonic() - started < 200, "as long as Ray would try"


def test_a_head_that_goes_away_and_comes_back_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ray_cluster, "GONE_SECONDS", math.inf)
    head, over, told = socket.create_server(("127.0.0.1", 0)), threading.Event(), ""
    place = head.getsockname()
    watching = threading.Thread(target=ray_cluster._watch_head, args=(f"127.0.0.1:{place[1]}", over))
    watching.start()

    def heard(words: str) -> None:
        nonlocal told
        until = time.monotonic() + 60
        while words not in told and time.monotonic() < until:
            time.sleep(0.02)
            told += capfd.readouterr().err
        assert words in told

    try:
        time.sleep(0.2)
        assert not capfd.readouterr().err
        head.close()
        heard(f"The head of the Ray cluster, 127.0.0.1:{place[1]}, takes no connections: it has ended, or")
        head = socket.create_server(place)
        heard("The head of the Ray cluster takes connections again.")
    finally:
        over.set()
        watching.join()
        head.close()
    assert told.count("takes no connections") == 1


def test_a_process_whose_head_stays_away_is_asked_to_stop_once_it_has_been_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ray_cluster, "GONE_SECONDS", 0.1)
    sent: list[tuple[int, int, str]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number, capfd.readouterr().err)))
    ray_cluster._watch_head(f"127.0.0.1:{free_port()}", threading.Event())
    ((pid, number, told),) = sent
    assert (pid, number) == (os.getpid(), signal.SIGTERM) and "takes no connections" in told


def test_ray_tries_once_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**_: object) -> None:
        seen.append(os.environ[RAY_TRIES])
        raise ConnectionError("no cluster")

    seen: list[str] = []
    monkeypatch.setattr(ray, "init", init)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match="no cluster"), joined(address):
            raise AssertionError("joined nothing")
    assert seen == ["1"] and RAY_TRIES not in os.environ
