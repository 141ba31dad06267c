"""A real cluster of two nodes on this machine, one CPU each, with a token: killed, unequal, and sent a job."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import MINUTES, ROOT, MakeConfig, data_digests
from tests.pipeline.test_cli import PIPELINE

RAY = str(Path(PIPELINE).parent / "ray")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Node:
    """One node: a process group."""

    options: tuple[str, ...]
    variables: dict[str, str]
    process: subprocess.Popen[bytes]
    killed: bool = False


class Cluster:
    """Nodes as process groups of their own, so that a whole node can be killed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.port, self.dashboard = free_port(), free_port()
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{Path(PIPELINE).parent}:{os.environ['PATH']}"
        self.environment = clean | self.token | {"PYTHONPATH": str(ROOT), "PATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
        self.nodes: list[Node] = []
        self.start("--head", f"--port={self.port}", f"--temp-dir={folder}", "--dashboard-host=127.0.0.1",
                   f"--dashboard-port={self.dashboard}")  # fmt: skip
        self.address = f"{socket.gethostbyname(socket.gethostname())}:{self.port}"
        self.wait_for(1)

    def start(self, *options: str, **variables: str) -> Node:
        node = Node(options, variables, self._process(options, variables))
        self.nodes.append(node)
        return node

    def _process(self, options: tuple[str, ...], variables: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [RAY, "start", "--block", "--num-cpus=1", "--object-store-memory=100000000", *options,
                   f"--dashboard-agent-listen-port={free_port()}"]  # fmt: skip
        return subprocess.Popen(
            command, env=self.environment | variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def join(self, **variables: str) -> Node:
        return self.start(f"--address={self.address}", **variables)

    def kill(self, node: Node) -> None:
        node.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.process.pid, signal.SIGKILL)
        node.process.wait()

    def wait_for(self, nodes: int) -> None:
        """Until so many nodes are alive. One that has not started within 30 s gives up, and is started again."""
        code = "import ray, sys; ray.init(address=sys.argv[1], logging_level=50, log_to_driver=False); import time\n"
        code += "while sum(one['Alive'] for one in ray.nodes()) != int(sys.argv[2]): time.sleep(0.2)"
        command = [sys.executable, "-c", code, self.address, str(nodes)]
        waiting = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 400
        while waiting.poll() is None and time.monotonic() < deadline:
            for node in self.nodes:
                if node.process.poll() is not None and not node.killed:
                    self.kill(node)  # what is left of its group
                    node.killed, node.process = False, self._process(node.options, node.variables)
            time.sleep(0.2)
        waiting.kill()
        assert waiting.wait() == 0, f"{nodes} nodes are not there"

    def python(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments], env=self.environment, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(folder)
        try:
            yield cluster
        finally:
            for node in cluster.nodes:
                cluster.kill(node)


def run(cluster: Cluster, path: Path, *options: str) -> tuple[int, str]:
    done = cluster.python("-m", "pipeline.cli", "run", str(path), "--launcher", "ray", *options)
    shown, _ = done.communicate(timeout=600)
    return done.returncode, shown


def test_a_node_is_killed_and_the_corpus_is_the_same(cluster: Cluster, make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(segment={"method": "spacy-capped", "max_chars": 30})
    assert subprocess.run([PIPELINE, "run", path, "--set", f"output={tmp_path / 'whole'}"], check=False).returncode == 0
    second = cluster.join()
    cluster.wait_for(2)
    process = cluster.python("-m", "pipeline.cli", "run", str(path), "--launcher", "ray", "--address", cluster.address)
    deadline = time.monotonic() + 200
    while not list((tmp_path / "out/receipts/encode").rglob("*.json")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    cluster.kill(second)
    shown, _ = process.communicate(timeout=600)
    assert process.returncode == 0, shown
    assert data_digests(tmp_path / "out") == data_digests(tmp_path / "whole")


@MINUTES
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
        if len(set(done)) == 2 or len(done) == 1000:
            break
    process.kill()
    shown, _ = process.communicate()
    assert late and len(set(done)) == 2, (len(done), shown)
    cluster.kill(late)
    print(f"{len(done)} parts of 2000 were done before the node that joined did its first")


@MINUTES
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


@MINUTES
def test_a_job_is_submitted_and_followed(cluster: Cluster, make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(autobleu=None)
    code, shown = run(cluster, path, "--address", f"http://127.0.0.1:{cluster.dashboard}", "--until", "encode")
    assert code == 0 and "SUCCEEDED" in shown and "Done in" in shown, shown
    assert any(name.startswith("embeddings/") for name in data_digests(tmp_path / "out"))
    code, shown = run(cluster, path, "--address", f"http://127.0.0.1:{cluster.dashboard}", "--only", "rvq")
    assert code == 2 and "--only rvq" in shown, shown


def test_an_address_is_needed(make_config: MakeConfig) -> None:
    done = subprocess.run([PIPELINE, "run", make_config(), "--launcher", "ray"], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no address: give --address" in done.stderr, done
