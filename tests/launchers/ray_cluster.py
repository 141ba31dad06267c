"""A real Ray cluster on this machine, one CPU a node, with a token, whose nodes and workers can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT
from tests.support.cli import PIPELINE

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
    """Nodes as process groups of their own, so that a whole node can be killed.

    `more`: how many nodes Ray's autoscaler may add, which belong to the process group of the first.
    """

    def __init__(self, folder: str, more: int = 0) -> None:
        self.folder = folder
        self.port, self.dashboard, self.metrics = free_port(), free_port(), free_port()
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{Path(PIPELINE).parent}:{os.environ['PATH']}"
        self.environment = (
            clean
            | self.token
            | {"PYTHONPATH": str(ROOT), "PATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
            | {"RAY_metrics_report_interval_ms": "100"}
        )
        self.nodes: list[Node] = []
        self.address = f"{socket.gethostbyname(socket.gethostname())}:{self.port}"
        options, variables = self._autoscaler(more) if more else ((), {})
        self.start(*options, "--head", f"--port={self.port}", f"--temp-dir={folder}", "--dashboard-host=127.0.0.1",
                   f"--dashboard-port={self.dashboard}", f"--metrics-export-port={self.metrics}",
                   **variables)  # fmt: skip
        self.wait_for(1)

    def _autoscaler(self, more: int) -> tuple[tuple[str, ...], dict[str, str]]:
        """Options and variables of a head whose autoscaler starts nodes on this machine."""
        provider = {"type": "fake_multinode", "gcs_address": self.address}
        types = {
            "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "more": {"resources": {"CPU": 1, "object_store_memory": 10**8}, "node_config": {}, "max_workers": more},
        }
        config: dict[str, object] = {"cluster_name": "test", "max_workers": more, "idle_timeout_minutes": 10}
        config |= {"available_node_types": types, "head_node_type": "ray.head.default", "upscaling_speed": 1.0}
        config["provider"] = provider | dict.fromkeys(
            ("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check"), True
        )
        commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
        config |= {f"{name}_commands": [] for name in commands} | {"auth": {}, "file_mounts": {}}
        config |= {"cluster_synced_files": [], "file_mounts_sync_continuously": False}
        config |= {"rsync_exclude": [], "rsync_filter": []}
        file = Path(self.folder, "autoscaler.json")
        file.write_text(json.dumps(config))
        head = {"RAY_FAKE_CLUSTER": "1", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": "f" * 51 + "0" * 5}
        return (f"--autoscaling-config={file}",), head | {"AUTOSCALER_UPDATE_INTERVAL_S": "1"}

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

    def start_again(self) -> None:
        """Starts the nodes that gave up: `ray start` does after 30 s, which are too few on a busy machine."""
        for node in self.nodes:
            if node.process.poll() is not None and not node.killed:
                self.kill(node)  # what is left of its group
                node.killed, node.process = False, self._process(node.options, node.variables)

    def wait_for(self, nodes: int) -> None:
        """Until so many nodes are alive."""
        code = "import ray, sys; ray.init(address=sys.argv[1], logging_level=50, log_to_driver=False); import time\n"
        code += "while sum(one['Alive'] for one in ray.nodes()) != int(sys.argv[2]): time.sleep(0.2)"
        command = [sys.executable, "-c", code, self.address, str(nodes)]
        deadline = time.monotonic() + 600  # of a busy machine
        while time.monotonic() < deadline:  # Ray gives up asking a head that takes long to start
            asking = subprocess.Popen(
                command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while asking.poll() is None and time.monotonic() < deadline:
                self.start_again()
                time.sleep(0.2)
            asking.kill()
            if asking.wait() == 0:
                return
        raise AssertionError(f"{nodes} nodes are not there")

    def python(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments], env=self.environment, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@contextlib.contextmanager
def running_cluster(more: int = 0) -> Iterator[Cluster]:
    """A cluster of one node, which may add `more` by itself; all that joined it are killed at the end."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(folder, more)
        try:
            yield cluster
        finally:
            for node in cluster.nodes:
                cluster.kill(node)


def processes_of(mark: str, command: str) -> list[int]:
    """Processes whose command line holds this, and whose environment or command line holds that mark, ascending."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if command.encode() in line and mark.encode() in environment + line:
            found.append(int(folder.name))
    return sorted(found)
