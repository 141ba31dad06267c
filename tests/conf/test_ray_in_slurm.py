"""conf/ray-in-slurm.sbatch on a real SLURM: one Ray cluster in an allocation, private, and its command's exit code.

`ray symmetric-run` ends every Ray that it sees on its machine, so each task runs in a world of processes of its own;
the second task also has a network of its own, and so is a second node to Ray.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.slurm.site import ask
from tests.conftest import ROOT, MakeConfig, data_digests
from tests.support.cli import pipeline

pytestmark = [
    pytest.mark.usefixtures("slurm"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give processes a network of their own"),
]
NETWORK = f"ray{os.getpid() % 100000}"
ALONE = f"""#!/usr/bin/env bash
[ "$SLURM_PROCID" = 0 ] || other=--net=/run/netns/{NETWORK}
exec ${{other:+nsenter $other}} nice -n -10 unshare --pid --fork --kill-child --mount-proc \\
  bash -c '"$@"; exit $?' alone ray "$@"
"""
LOOK = """
import glob, json, os, subprocess, sys, time
import ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
listening = subprocess.run(["ss", "-tlnHp"], capture_output=True, text=True).stdout.splitlines()
folders = {folder: oct(os.stat(folder).st_mode & 0o777) for folder in glob.glob("/tmp/ray-*")}
print("FOUND", json.dumps(dict(
    job=os.environ["SLURM_JOB_ID"],
    argv=sys.argv[1:],
    nodes=sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]),
    listening=[line.split()[3] for line in listening if "users:" in line],
    dashboard=any(line.split()[3].endswith(":8265") for line in listening),
    folders=folders,
)), flush=True)
stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
code = "import os, ray; ray.init(address=os.environ['RAY_ADDRESS'])"
print("STRANGER", bool(subprocess.run([sys.executable, "-c", code], env=stranger, capture_output=True).returncode))
sys.exit(3)
"""


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """`ray` in a world of its own."""
    path = tmp_path / "alone"
    path.write_text(ALONE)
    path.chmod(0o755)
    return path


@pytest.fixture
def second_network() -> Iterator[None]:
    """A second host, as far as its network goes."""
    number = os.getpid() % 250
    here, there = f"10.77.{number}.1", f"10.77.{number}.2"
    subprocess.run(["ip", "netns", "add", NETWORK], check=True)
    try:
        for line in (
            f"link add {NETWORK} type veth peer name inner netns {NETWORK}",
            f"addr add {here}/30 dev {NETWORK}",
            f"link set {NETWORK} up",
            f"-n {NETWORK} addr add {there}/30 dev inner",
            f"-n {NETWORK} link set inner up",
            f"-n {NETWORK} link set lo up",
            f"-n {NETWORK} route add default via {here}",
        ):
            subprocess.run(["ip", *line.split()], check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NETWORK], check=True)


def run(folder: Path, options: list[str], arguments: list[str], **environment: str) -> tuple[str, str]:
    """The job's exit code and its log. The node stays shared: other jobs of the tests may be on it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shared = ["--oversubscribe", "--mem=2G", "--time=15", f"--chdir={folder}", "--output=%j.log"]
    job = subprocess.run(
        ["sbatch", "--parsable", *shared, *options, str(ROOT / "conf/ray-in-slurm.sbatch"), *arguments],
        env=os.environ | {"PATH": path} | environment,
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    try:
        deadline = time.monotonic() + 900  # of a busy machine
        while ask("squeue", "-h", "-j", job):
            assert time.monotonic() < deadline, (folder / f"{job}.log").read_text()
            time.sleep(0.5)
    finally:
        ask("scancel", job)
    facts = dict(word.partition("=")[::2] for word in ask("scontrol", "show", "job", job, "-o").split())
    return facts["ExitCode"].partition(":")[0], (folder / f"{job}.log").read_text()


def test_a_private_cluster_and_the_exit_code_of_its_command(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    before = set(map(str, Path("/tmp").glob("ray-*")))  # numbers of jobs begin with 1 wherever SLURM is new
    look = f"{sys.executable} {tmp_path / 'look.py'}"
    code, log = run(tmp_path, [], ["a b.yaml", "--only", "encode"], RAY=str(alone), PIPELINE=look)
    assert code == "3", log
    found = json.loads(log.partition("FOUND ")[2].partition("\n")[0])
    *words, address = found["argv"]
    assert words == ["run", "a b.yaml", "--only", "encode", "--launcher", "ray", "--set"]
    assert address.startswith("launcher.address=127.0.0.1:") and found["nodes"] == ["127.0.0.1"]
    assert {one.rpartition(":")[0] for one in found["listening"]} <= {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}
    mark = f"/tmp/ray-{found['job']}-"
    own = {
        folder: mode for folder, mode in found["folders"].items() if folder.startswith(mark) and folder not in before
    }
    assert not found["dashboard"] and list(own.values()) == ["0o700"]
    assert "STRANGER True" in log, "who has no token is not let in"
    assert not any(map(os.path.exists, own)), "nothing is left behind"


def test_a_run_on_two_nodes_gives_the_same_corpus(
    alone: Path, second_network: None, make_config: MakeConfig, tmp_path: Path
) -> None:
    # the head starts at its second try; then the second node, which knows that the head is there, at its second
    (tmp_path / "tries").mkdir()
    once = f'''[ "$SLURM_PROCID" = 0 ] || until (exec 3<>"/dev/tcp/${{RAY_ADDRESS/://}}") 2>/dev/null; do sleep 1; done
! mkdir "{tmp_path}/tries/$SLURM_PROCID" 2>/dev/null || exit 1'''
    alone.write_text(ALONE.replace("exec ", f"{once}\nexec "))
    path = make_config(autobleu=None)
    here = pipeline("run", path, "--set", f"output={tmp_path / 'here'}")
    assert here.returncode == 0, here
    code, log = run(tmp_path, ["--ntasks-per-node=2"], [str(path)], RAY=str(alone))
    assert code == "0" and "On worker node" in log and len(list((tmp_path / "tries").iterdir())) == 2, log
    assert data_digests(tmp_path / "out") == data_digests(tmp_path / "here")
    assert next((tmp_path / "out").glob("runs/*/summary.json"))
