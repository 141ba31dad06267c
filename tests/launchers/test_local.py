"""The Ray of a run is its own: loopback, a token, a private folder that is gone afterwards."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers import devices, local
from launchers.local import LOCK, LONGEST_BASE, NO_CLUSTER, _check_room, _delete_abandoned, _held
from pipeline.base.errors import PipelineError

HOLD = """
import json, os, sys
from pathlib import Path
from launchers.local import ray_on_this_machine

with ray_on_this_machine():
    import ray
    address = ray.get_runtime_context().gcs_address
    with ray_on_this_machine():  # the same again
        assert ray.get_runtime_context().gcs_address == address
    print(json.dumps({"address": address, "token": os.environ["RAY_AUTH_TOKEN"]}), flush=True)
    sys.stdin.readline()
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
assert "RAY_AUTH_TOKEN" not in os.environ
"""
INTERRUPTED = """
import ray._private.node as node
from launchers.local import ray_on_this_machine

def interrupted(*_, **__):
    raise KeyboardInterrupt

node.Node.start_raylet = interrupted  # as by a signal, when the head's processes have started
try:
    with ray_on_this_machine():
        raise AssertionError
except KeyboardInterrupt:
    import psutil
    print([process.name() for process in psutil.Process().children(recursive=True)])
"""
ENDED = """
import sys, time
import psutil
from launchers import local

local.ENDS = 2.0
with local.ray_on_this_machine(), local.end_of_ray_is_told():
    import ray
    seconds = 100 if sys.argv[1:] else 0
    waits = ray.remote(lambda: time.sleep(seconds)).remote()
    killed = False
    while sys.argv[1:] and not killed:
        for process in psutil.Process().children(recursive=True):
            if process.name() == sys.argv[1]:
                process.kill()
                killed = True
    ray.get(waits)
"""
ENDED_EARLY = """
import threading, time
import psutil
from launchers import local

def kill():
    while not (found := [one for one in psutil.Process().children(recursive=True) if one.name() == "gcs_server"]):
        time.sleep(0.05)
    time.sleep(1)
    found[0].kill()

threading.Thread(target=kill, daemon=True).start()
with local.ray_on_this_machine():
    print("Ray is up")
    time.sleep(100)
"""
STUCK = """
import threading
import ray
from launchers import local
from pipeline.base.errors import PipelineError

def never(*_, **__):
    raise RuntimeError("timed out during startup")

local.ENDS, ray.init, ray.shutdown = 0.2, never, threading.Event().wait
try:
    with local.ray_on_this_machine():
        raise AssertionError
except PipelineError as error:
    print(error)
"""
FILLED = """
import contextlib, pathlib, sys, threading, time
from launchers.local import ray_on_this_machine
from pipeline.base.errors import PipelineError

base = pathlib.Path(sys.argv[1])

def fill():
    while not list(base.glob("ray-*/0")):
        time.sleep(0.01)
    with contextlib.suppress(OSError), (base / "others").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            pass

threading.Thread(target=fill, daemon=True).start()
try:
    with ray_on_this_machine():
        print("Ray is up")
except PipelineError as error:
    print(error)
"""
SUSPENDED = """
import ray  # brings psutil
import psutil
from launchers import local

local.ANSWERS = 3.0
with local.ray_on_this_machine():
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
    for process in psutil.Process().children(recursive=True):
        if process.name() == "gcs_server":
            process.suspend()
print(psutil.Process().children(recursive=True), flush=True)
"""
ASKED_TWICE = """
import os, signal, threading, time
from launchers.local import ray_on_this_machine
from pipeline.base.interrupts import install_sigterm_handler

def ask():
    os.kill(os.getpid(), signal.SIGTERM)

install_sigterm_handler()
try:
    with ray_on_this_machine():
        for tenth in range(20):
            threading.Timer(tenth / 10, ask).start()
        time.sleep(60)
except KeyboardInterrupt:
    print("asked", flush=True)
try:
    time.sleep(3)  # for those that came later
except KeyboardInterrupt:
    time.sleep(3)
try:
    ask()
    time.sleep(60)
except KeyboardInterrupt:
    print("heard", flush=True)
"""
JOIN = "import sys, ray; ray.init(address=sys.argv[1], logging_level=50); print(ray.cluster_resources()['CPU'])"


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:
        assert len(folder) <= LONGEST_BASE
        yield Path(folder)


def start(base: Path) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A process that keeps a Ray of its own up until it reads a line, and what it says about it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=clean | {"TMPDIR": str(base), "HOME": str(base / "home")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    return process, json.loads(process.stdout.readline())


def join(address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    fast = {"RAY_NUM_REDIS_GET_RETRIES": "1", NO_CLUSTER: "0"}  # or it would look beyond loopback
    command = [sys.executable, "-c", JOIN, address]
    return subprocess.run(command, env=clean | fast | variables, capture_output=True, text=True, timeout=600)


def listening(root: int) -> set[str]:
    """Addresses at which a process and all below it listen."""
    import ray  # which brings psutil

    assert ray
    import psutil

    processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    found = [one for process in processes for one in process.net_connections("inet") if one.status == "LISTEN"]
    return {one.laddr.ip.removeprefix("::ffff:") for one in found}


def test_folders_of_killed_processes_are_deleted_by_the_next_start(tmp_path: Path) -> None:
    killed, used, others = (tmp_path / f"ray-{name}" for name in ("killed", "used", "others"))
    for folder in (killed, used, others):
        folder.mkdir()
    hold = "import sys, pathlib, time; from launchers.local import _held\nwith _held(pathlib.Path(sys.argv[1])): "
    subprocess.run([sys.executable, "-c", f"{hold}import os; os._exit(9)", killed])
    (others / "0").mkdir()  # of a program that knows nothing of the lock
    with _held(used):
        _delete_abandoned(str(tmp_path))
        assert sorted(tmp_path.iterdir()) == [others, used]
    (used / LOCK).write_text("another machine")
    _delete_abandoned(str(tmp_path))
    assert used.exists()


def test_what_is_left_of_a_folder_is_found_by_its_lock(tmp_path: Path) -> None:
    """Before, who was killed while it deleted its folder might have deleted the lock first."""
    folder = tmp_path / "ray-left"
    for number in range(9):
        (folder / str(number) / "logs").mkdir(parents=True)
    (folder / LOCK).touch()
    program = (
        "import os, shutil, sys, pathlib; from launchers.local import _delete_once\n"
        "sys.addaudithook(lambda event, found: os._exit(9) if event == 'os.rmdir' and seen.append(1) is None "
        "and len(seen) > 17 else None)\n"
        "seen = []\n"
        "_delete_once(pathlib.Path(sys.argv[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", program, folder], check=False).returncode == 9
    assert (folder / LOCK).exists() and len(list(folder.iterdir())) > 1


@pytest.mark.slow
def test_an_interrupted_start_leaves_no_process_and_no_folder(base: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    shown = subprocess.run(command, env=os.environ | {"TMPDIR": str(base)}, capture_output=True, text=True, timeout=600)
    assert (shown.returncode, shown.stdout) == (0, "[]\n"), shown
    assert not list(base.iterdir())


def test_a_start_that_cannot_be_undone_ends_the_process(base: Path) -> None:
    command = [sys.executable, "-c", STUCK]
    shown = subprocess.run(command, env=os.environ | {"TMPDIR": str(base)}, capture_output=True, text=True, timeout=400)
    assert shown.returncode == 1 and "Ray did not start within 30 s: this machine is too busy, or" in shown.stdout, (
        shown
    )
    assert not list(base.iterdir())


@pytest.mark.parametrize(("line", "group"), [("0::/job", "job"), ("8:pids:/job", "pids/job"), ("0::/job/step", "job")])
def test_too_few_threads_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, group: str) -> None:
    monkeypatch.setattr(devices, "CGROUPS", tmp_path)
    monkeypatch.setattr(devices, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(local, "ROOM", 0)
    (tmp_path / "own").write_text(f"9:cpu:/\n{line}\n")
    (tmp_path / group).mkdir(parents=True)
    for name, value in (("max", "100"), ("current", "39")):
        (tmp_path / group / f"pids.{name}").write_text(f"{value}\n")
    with pytest.raises(PipelineError, match=r"may start 61 more processes and threads .* Ray needs at least 300"):
        _check_room(str(tmp_path))
    (tmp_path / group / "pids.max").write_text("max\n")
    _check_room(str(tmp_path))


def test_threads_of_a_user_are_limited_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import ray  # brings psutil

    assert ray
    monkeypatch.setattr(devices, "OWN_CGROUPS", tmp_path / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (1 << 20, 1 << 20))
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert devices.threads_left() == math.inf, "root is not bound"
    monkeypatch.setattr(os, "getuid", lambda: user or 65534)
    assert (1 << 20) - 100_000 < devices.threads_left() <= 1 << 20


def test_a_full_folder_for_temporary_files_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local, "threads_left", lambda: math.inf)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 4096, 4096))
    with pytest.raises(PipelineError, match=r"has 4\.1 kB free, and Ray needs 52\.4 MB there: make room, set TMPDIR"):
        _check_room(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent", None])
def test_who_needs_a_ray_that_was_killed_is_told_and_does_not_wait(base: Path, killed: str | None) -> None:
    command = [sys.executable, "-c", ENDED, *([killed] if killed else [])]
    shown = subprocess.run(command, env=os.environ | {"TMPDIR": str(base)}, capture_output=True, text=True, timeout=400)
    assert bool(shown.returncode) == bool(killed), shown
    said = f"Ray has ended while it was needed: its process {str(killed).removeprefix('ray::')} was killed or failed"
    assert (said in shown.stderr) == bool(killed), shown


@pytest.mark.slow
def test_a_ray_that_is_killed_while_it_starts_is_told(base: Path) -> None:
    """A minute later, its end was that of this process, without a word."""
    command = [sys.executable, "-c", ENDED_EARLY]
    shown = subprocess.run(command, env=os.environ | {"TMPDIR": str(base)}, capture_output=True, text=True, timeout=400)
    if "Ray is up" not in shown.stdout:  # it was killed in time
        assert shown.returncode and "its process gcs_server was killed or failed" in shown.stderr, shown


@pytest.mark.slow
def test_a_process_of_ray_that_does_not_answer_is_killed_at_the_end(base: Path) -> None:
    """Before, a run that was done waited for it, and held the lock of its corpus."""
    command = [sys.executable, "-c", SUSPENDED]
    shown = subprocess.run(command, env=os.environ | {"TMPDIR": str(base)}, capture_output=True, text=True, timeout=400)
    assert (shown.returncode, shown.stdout) == (0, "[]\n"), shown
    assert not list(base.iterdir())


@pytest.fixture
def small_base(base: Path) -> Iterator[Path]:
    """A file system in memory that has little more room than Ray needs."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={local.ROOM + (8 << 20)}", "tmpfs", str(base)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield base
    finally:
        subprocess.run(["umount", "--lazy", str(base)], check=True)


@pytest.mark.slow
def test_a_disk_that_others_fill_while_ray_starts_is_told(small_base: Path) -> None:
    """Before, a traceback of Ray's ended with the name of a file for which it had waited."""
    command = [sys.executable, "-c", FILLED, str(small_base)]
    shown = subprocess.run(
        command, env=os.environ | {"TMPDIR": str(small_base)}, capture_output=True, text=True, timeout=400
    )
    assert shown.returncode == 0 and f"{small_base} has " in shown.stdout, shown
    assert "free, and Ray needs 52.4 MB there: make room" in shown.stdout, shown
    assert [one.name for one in small_base.iterdir()] == ["others"]


@pytest.mark.slow
def test_who_is_asked_twice_ends_ray_properly_and_hears_signals_afterwards(base: Path) -> None:
    """Before, the second SIGTERM ended the process without a word, and one after Ray's end did, as in a training."""
    command = [sys.executable, "-c", ASKED_TWICE]
    shown = subprocess.run(command, env=os.environ | {"TMPDIR": str(base)}, capture_output=True, text=True, timeout=400)
    assert (shown.returncode, shown.stdout.split()) == (0, ["asked", "heard"]), shown
    assert not list(base.iterdir())


@pytest.mark.slow
def test_two_private_rays_side_by_side(base: Path) -> None:
    ours, said = start(base)
    theirs, other = start(base)
    try:
        assert said["address"] != other["address"] and said["token"] != other["token"]
        assert listening(ours.pid) == {"127.0.0.1"}
        folders = list(base.glob("ray-*"))
        assert len(folders) == 2 and {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
        for variables in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": other["token"]}):
            refused = join(said["address"], **variables)
            assert refused.returncode and "CPU" not in refused.stdout, variables
        accepted = join(said["address"], RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=said["token"])
        assert accepted.returncode == 0, accepted.stderr
    finally:
        for process in (ours, theirs):
            process.communicate("\n", timeout=600)
    assert (ours.returncode, theirs.returncode) == (0, 0)
    assert not list(base.glob("ray-*"))
    assert not (base / "home").exists(), "something was written to the home folder"
