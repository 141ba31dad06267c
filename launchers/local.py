"""Starts a private Ray on this machine for one run: all its CPUs and GPUs.

It listens on loopback only and refuses anyone without its token, which is new each time and lives in the environment of
its processes alone. Its sockets and logs are in a directory of its own that no other user may enter, and that is
deleted afterwards (after kill -9, by the user's next start). So any number of runs, of any users, can work side by side
on one node. Cost: about 6 seconds to start.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib
import json
import logging
import math
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from launchers import actor_pool
from launchers.devices import allowed_cpus, devices, threads_left
from pipeline.base.errors import PipelineError
from pipeline.base.formats import size
from pipeline.base.interrupts import hear_again, is_asked_to_stop, stopped_afterwards, stopped_by_exit
from pipeline.corpus.events import Event
from pipeline.planning.plan import Plan

LONGEST_BASE = 28  # characters: a socket's path has at most 107, of which our folders' names take 15, Ray's own 64
LOCK = "sonar-pipeline.lock"  # in such a folder, which says whose it is
ENDS = 10.0  # seconds that processes of Ray may take to end once they are killed, and this one once Ray has ended
ANSWERS = 20.0  # seconds that Ray's processes may take to answer when they are to end; one that is suspended never does
UNDISTURBED = 30.0  # seconds that Ray's end takes at most, before a second Ctrl-C cuts it short
HEARD_WITHIN = 0.1  # seconds in which this process hears a signal that Ray's processes got as well
ENDED = (
    "\nRay has ended while it was needed: its process {name} was killed or failed, most likely because memory ran out. "
    "Finished work is kept: run the same command again, or with --launcher inline, which needs less memory.\n"
)
VITAL = {  # the processes without which a Ray ends: name → what the command line of one begins with, at first or later
    "gcs_server": ("/gcs/gcs_server",),
    "raylet": ("/raylet/raylet",),
    "DashboardAgent": ("dashboard/agent.py", "::DashboardAgent"),
    "RuntimeEnvAgent": ("runtime_env/agent/main.py", "::RuntimeEnvAgent"),
}
FIRST = frozenset(("gcs_server", "raylet"))  # those that start first, and are not started again
LOOKS = 0.25  # seconds between looks at them while Ray starts
FAILS_WITHIN = 3.0  # seconds in which Ray, whose start failed, says so once it has ended them
STARTS, TOO_SLOW = 3, ("timed out during startup", "Timed out waiting for file")
NOT_STARTED = (
    "this machine is too busy, or allows too few processes and threads (ulimit -u, or pids.max of a container); end "
    "other programs, raise the limit, or use --launcher inline"
)
ROOM = 50 << 20  # bytes that Ray's logs and sockets need, roughly
THREADS = 300  # that Ray needs at least, with its processes; 330 were counted on two cores
OBJECT_STORE = 256 << 20  # bytes, for descriptors of 100 bytes; Ray's default is a third of the machine's memory
ENVIRONMENT = {  # environment of this process and, through it, of Ray's processes
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
NO_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # at 0, on any system: Ray takes 127.0.0.1 for the node's address

_TRIAL = """
import json, logging, ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
@ray.remote
def one(): return 1
assert ray.get(one.remote()) == 1
print(json.dumps(ray.cluster_resources()))
ray.shutdown()
"""


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Start Ray unless it is up, carry out the plan, yield events as they come back; a fatal event is the last."""
    with ray_on_this_machine():
        yield from actor_pool.run(plan, folder)


@contextlib.contextmanager
def ray_on_this_machine() -> Iterator[None]:
    """Keep one Ray up over several calls of `run`. If one is up already, it is used."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield
        return
    _delete_abandoned(_short_base())
    _check_room(_short_base())
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir=_short_base()))  # 0700, which Ray would undo
    try:
        with _privacy(), _held(folder):
            try:
                with stopped_by_exit():
                    _start(folder)
                yield
            finally:
                with stopped_afterwards(UNDISTURBED):
                    if not _stuck:
                        shut_down(partial(_end_processes, folder))
                    _end_processes(folder)
    finally:
        with stopped_afterwards(UNDISTURBED):
            _delete(folder)


def shut_down(kill: Callable[[], None] = lambda: None) -> None:
    """Shut Ray down. Meanwhile its C++ part has the system end this process at SIGTERM, unless handlers are installed
    again at once; Ray itself would leave it so. `kill`: ends Ray's processes, if it waits for them for long.
    """
    import ray

    ended: Future[None] = Future()

    def end() -> None:
        try:
            ended.set_result(ray.shutdown())
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=end, daemon=True).start()
    until = time.monotonic() + ANSWERS
    while wait([ended], HEARD_WITHIN / 2).not_done:
        hear_again()
        if time.monotonic() > until:
            kill()
            until = math.inf
    hear_again()
    ended.result()


@contextlib.contextmanager
def end_of_ray_is_told() -> Iterator[None]:
    """Tell at once, on stderr, if the Ray that this process has started ends within the `with` block: Ray then ends
    this process without a word about that, or waits for ever, in which case this process is asked to stop.
    """
    over = threading.Event()
    if found := _vital():
        threading.Thread(target=_tell_the_end, args=(found, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _vital() -> dict[int, str]:
    """Return the processes without which our Ray ends: an open file, which can be read once it has ended → its name."""
    found: dict[int, str] = {}
    if hasattr(os, "pidfd_open"):
        for pid, name in _vital_processes():
            with contextlib.suppress(OSError):  # it has just ended, or the system has no such files
                found[os.pidfd_open(pid)] = name
    return found


def _vital_processes() -> Iterator[tuple[int, str]]:
    psutil: Any = importlib.import_module("psutil")  # which Ray brings
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            words = " ".join(one.cmdline()[:4]).split(" ")  # a title is one argument
            yield from ((one.pid, name) for name, ends in VITAL.items() if any(word.endswith(ends) for word in words))


@contextlib.contextmanager
def _end_of_start_is_told() -> Iterator[None]:
    """Tell, on what is stderr now, if a process of Ray ends within the `with` block, in which Ray starts.

    A minute later Ray ends this process without a word.
    """
    over, stderr = threading.Event(), os.dup(2)

    def watch() -> None:
        def there() -> set[str]:
            return {name for _, name in _vital_processes() if name in FIRST}

        before: set[str] = set()
        while not over.wait(LOOKS):
            now = there()
            if before - now and not over.wait(FAILS_WITHIN) and not is_asked_to_stop():
                now |= there()  # a busy machine may not have shown one of them for a moment
                if ended := before - now:
                    os.write(stderr, ENDED.format(name=min(ended)).encode())
                    return
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.close(stderr)


def _tell_the_end(found: dict[int, str], over: threading.Event) -> None:
    """Wait until one of the processes has ended, and tell of it, unless this process ends them or is asked to stop."""
    poll = select.poll()
    for file in found:
        poll.register(file, select.POLLIN)
    (ended, _), *_ = poll.poll()
    if not over.wait(HEARD_WITHIN) and not is_asked_to_stop():
        os.write(2, ENDED.format(name=found[ended]).encode())
        if not over.wait(ENDS):
            os.kill(os.getpid(), signal.SIGTERM)
    for file in found:
        os.close(file)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a file in a folder until the block ends or this process dies, however it dies."""
    with (folder / "new").open("w") as file:
        file.write(socket.gethostname())
        file.flush()
        with contextlib.suppress(OSError):  # a file system without locks: then nobody deletes it
            fcntl.flock(file, fcntl.LOCK_EX)
            Path(file.name).rename(folder / LOCK)  # only once it is locked
        yield


def _end_processes(folder: Path) -> None:
    """End Ray's processes of a start that was interrupted, which Ray leaves alone until this process ends."""
    psutil: Any = importlib.import_module("psutil")  # which Ray brings
    left = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if str(folder) in " ".join(process.cmdline()):
                left += [process, *process.children(recursive=True)]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=ENDS)


def _delete(folder: Path) -> None:
    """Delete the folder; a worker that has lost its Ray may still write into it for a moment."""
    until = time.monotonic() + ENDS
    while folder.exists():
        _delete_once(folder)
        if time.monotonic() > until:
            return
        time.sleep(0.05)


def _delete_abandoned(base: str) -> None:
    """Delete the folders of this user whose processes were killed on this machine: others may share the disk."""
    for lock in Path(base).glob(f"ray-*/{LOCK}"):
        with contextlib.suppress(OSError):
            if lock.parent.lstat().st_uid == os.getuid():
                with lock.open("r+") as file:
                    if file.read() != socket.gethostname():
                        continue
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError while it is used
                    _delete_once(lock.parent)


def _delete_once(folder: Path) -> None:
    """Delete what can be deleted now, the lock last: the next start finds the rest by it if this process is killed."""
    with contextlib.suppress(OSError):  # another process has just deleted it
        for one in folder.iterdir():
            if one.is_dir():
                shutil.rmtree(one, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path) -> None:
    """Start Ray. Raises `PipelineError` if Ray fails, or is too slow each time: its own limit is 30 s."""
    import ray

    for attempt in range(STARTS):
        try:
            with _end_of_start_is_told(), without_native_log():
                ray.init(
                    address="local",
                    num_cpus=_fewer_cpus(),
                    num_gpus=devices().count("cuda"),  # those that torch can use
                    object_store_memory=OBJECT_STORE,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(folder / str(attempt)),
                )
        except Exception as error:  # Ray raises no more specific class
            _check_disk(_short_base())
            if not any(words in str(error) for words in TOO_SLOW):
                said = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise PipelineError(f"Ray did not start ({said}); run again, or use --launcher inline") from error
            if not _is_shut_down():
                raise PipelineError(f"Ray did not start within 30 s: {NOT_STARTED}") from error
        else:
            return
    raise PipelineError(f"Ray did not start within 30 s, {STARTS} times in a row: {NOT_STARTED}")


_stuck: list[threading.Thread] = []  # that wait for Ray's end in vain


def _is_shut_down() -> bool:
    """Shut Ray down, and return whether that came to an end: it waits for ever for threads that could not start."""
    import ray

    thread = threading.Thread(target=ray.shutdown, daemon=True)
    thread.start()
    thread.join(ENDS)
    if thread.is_alive():
        _stuck.append(thread)
        atexit.register(_leave)
    return not _stuck


def _leave() -> None:
    """End this process without what Ray does at its end, which would not come to an end either."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _check_room(base: str) -> None:
    """Raise `PipelineError` if the folder for temporary files is nearly full, or too few threads are allowed: Ray would
    start its workers for ever, or abort this process.
    """
    if (threads := threads_left()) < THREADS:
        raise PipelineError(
            f"this process may start {threads:.0f} more processes and threads (pids.max of its container or job, or "
            f"ulimit -u), and Ray needs at least {THREADS}: raise the limit, or use --launcher inline"
        )
    _check_disk(base)


def _check_disk(base: str) -> None:
    """Raise `PipelineError` if the folder for temporary files is nearly full."""
    free = shutil.disk_usage(base).free
    if free < ROOM:
        raise PipelineError(
            f"{base} has {size(free)} free, and Ray needs {size(ROOM)} there: make room, set TMPDIR to another folder "
            f"(of at most {LONGEST_BASE} characters), or use --launcher inline"
        )


@contextlib.contextmanager
def _privacy() -> Iterator[None]:
    """Set a token and loopback for a Ray that is started inside the `with` block, and restore everything afterwards.

    Ray reads the variables when it is loaded, which may have been long ago, so its copies are set here too.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    constants: Any = importlib.import_module("ray._private.ray_constants")
    private = {NO_CLUSTER: "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in private}
    clusters = constants.ENABLE_RAY_CLUSTER

    def read_again() -> None:
        raylet.Config.initialize("")  # first, or threads that still send would look for a token that is gone
        raylet.AuthenticationTokenLoader.instance().reset_cache()

    os.environ |= private
    constants.ENABLE_RAY_CLUSTER = False
    read_again()
    try:
        yield
    finally:
        for name, old in before.items():
            os.environ.pop(name, None)
            if old is not None:
                os.environ[name] = old
        constants.ENABLE_RAY_CLUSTER = clusters
        read_again()


def _short_base() -> str:
    """Return the folder for temporary folders, or a shorter one if the paths of sockets would become too long."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_BASE else "/tmp"


def _fewer_cpus() -> int | None:
    """Return the CPUs that this process may use, if they are fewer than the machine has."""
    allowed = allowed_cpus()
    return allowed if allowed < (os.cpu_count() or 1) else None  # None: as Ray counts them, by quotas of containers


@contextlib.contextmanager
def without_native_log() -> Iterator[None]:
    """Silence Ray's C++ part, which announces its log level on stderr at any level; its errors are raised in Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def start_ray(timeout: float = 90.0) -> tuple[float, dict[str, float]]:
    """Return the seconds until a first task was done and Ray was stopped again, and the resources that Ray found.

    It is in a process of its own, so that a Ray that hangs or dies does no harm. As in a run, a Ray that is too slow is
    started again. Raises RuntimeError with Ray's last words if it fails, or does not answer in time.
    """
    started = time.monotonic()
    for _ in range(STARTS):
        try:
            output, errors, code = _started(started + timeout - time.monotonic())
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no answer in {timeout:.0f} s") from error
        if not code or not any(words in errors for words in TOO_SLOW):
            break
    if code:
        words = [line for line in errors.splitlines() if line.strip()] or [f"it ended with code {code}"]
        raise RuntimeError(words[-1][:300])
    resources: dict[str, float] = json.loads(output.splitlines()[-1])
    return time.monotonic() - started, resources


def _started(timeout: float) -> tuple[str, str, int]:
    """Return what the process printed, and how it ended. Raises `TimeoutExpired`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TRIAL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **os.environ},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):  # whatever is left of it, Ray's own processes too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return output, errors, process.returncode
