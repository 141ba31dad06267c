"""Commands in processes of their own that cost no imports: forks of one process that has imported all they need.

    process = start("worker", url, folder)
    process.send_signal(signal.SIGKILL)
    shown, _ = process.communicate()

A fork has the environment and the folder of its caller, standard output and errors in files, and ends as a command
does that a person types. `die_before`: it is killed when it is about to make that change below a folder or an `s3://`
URL; a change is a file that gets its name or loses one. Cost: some seconds of a CPU for the first one of each test
process, then none.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.link", "os.remove"}
REQUESTS = {"PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject", "DeleteObjects"}  # the changes on S3
PACKAGES = ("pipeline", "stages", "launchers")
# modules of packages that tests do without
OF_EXTRAS = tuple(f"pipeline.training.trackers.{name}" for name in ("mlflow_store", "weights_and_biases"))


class Process:
    """A command that runs; the part of `subprocess.Popen` that tests need."""

    def __init__(self, pid: int, out: Path, err: Path | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._out, self._err = out, err

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        _server().poll()
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("pipeline", timeout)
            _server().poll(0.05)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """What it wrote, once it has ended: output (with the errors, unless they were kept apart), errors."""
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text() if self._err else ""

    def send_signal(self, sign: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sign)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    *arguments: object,
    apart: bool = False,
    session: bool = False,
    die_before: tuple[int, Path | str] | None = None,
    terminal: str | None = None,
    module: str | None = None,
    **environment: str,
) -> Process:
    """`pipeline` with these arguments. apart: errors are kept apart; session: it leads a process group of its own;
    terminal: a person sits at this one, and sees what it says; module: `python -m` this one instead of `pipeline`.
    """
    folder = Path(tempfile.mkdtemp(dir=_outputs().name))
    out, err = folder / "out.txt", folder / "err.txt" if apart else None
    request = {
        "arguments": [module or "pipeline", *map(str, arguments)],
        "module": module,
        "environment": dict(os.environ) | environment,
        "folder": str(Path.cwd()),
        "out": str(out),
        "err": str(err or out),
        "session": session,
        "die_before": [die_before[0], str(die_before[1])] if die_before else None,
        "terminal": terminal,
    }
    return _server().start(request, out, err)


class _Server:
    """The process that forks, as its one client sees it. It ends when the client does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._buffer = b""
        self._running: dict[int, Process] = {}
        self._started: list[int] = []

    def start(self, request: dict[str, Any], out: Path, err: Path | None) -> Process:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while not self._started:
            self.poll(1)
        process = Process(self._started.pop(), out, err)
        self._running[process.pid] = process
        return process

    def poll(self, seconds: float = 0) -> None:
        """Take note of what it says, for so long at most."""
        assert self._process.stdout
        while select.select([self._process.stdout], [], [], seconds)[0]:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            assert data, "the process that forks has ended"
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                pid, code = json.loads(line)
                if code is None:
                    self._started.append(pid)
                else:
                    self._running.pop(pid).returncode = code
            seconds = 0


@functools.cache
def _outputs() -> tempfile.TemporaryDirectory[str]:
    """The folder of what commands of this process write, which is deleted when it ends."""
    return tempfile.TemporaryDirectory(prefix="commands-")


_servers: list[_Server] = []


def _server() -> _Server:
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


def _serve() -> dict[str, Any]:
    """Fork for each request that comes, and tell of each end. Returns in the forks only."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if "ray" not in module.name and module.name not in OF_EXTRAS:  # Ray starts threads
                importlib.import_module(module.name)
    _do_what_each_would_do_first()
    gc.collect()
    gc.freeze()
    buffer, running = b"", set[int]()
    answers = os.dup(1)
    while True:
        if select.select([0], [], [], 0.02 if running else None)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if not pid:
                    os.close(answers)
                    return dict(json.loads(line))
                running.add(pid)
                os.write(answers, json.dumps([pid, None]).encode() + b"\n")
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                os.write(answers, json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode() + b"\n")


def _do_what_each_would_do_first() -> None:
    """Load the rules of the languages of most tests, and what a first sentence and a first batch bring along."""
    import torch

    from stages.segment.rules.spacy_rules import SpacyRules
    from stages.segment.text import Text

    for module in ("sacrebleu.metrics", "lxml.etree"):  # the second is imported by the first, but later
        importlib.import_module(module)
    for code in ("en", "de"):
        SpacyRules(code)
    Text(["a \U0001f600"])
    torch.set_num_threads(1)
    torch.nn.functional.layer_norm(torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)), (2,))


def _become(request: dict[str, Any]) -> None:
    """Make this fork what a command is that was typed with this request."""
    if request["session"]:
        os.setsid()
    places = [os.devnull, request["out"], request["err"]]
    modes = [os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_APPEND] * 2]
    if request["terminal"]:
        places, modes = [request["terminal"]] * 3, [os.O_RDWR | os.O_NOCTTY] * 3
    for number, (place, mode) in enumerate(zip(places, modes, strict=True)):
        os.dup2(os.open(place, mode), number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["arguments"]
    if request["die_before"]:
        _die_before(*request["die_before"])


def _die_before(change: int, folder: str) -> None:
    left = change

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if (event not in CHANGES and event != "open") or not str(arguments[0]).startswith(folder):
            return
        named = os.path.lexists(arguments[0])
        creates = event == "open" and (arguments[2] or 0) & os.O_CREAT and not str(arguments[0]).endswith(".tmp")
        if (event in CHANGES and named) or (creates and not named):
            count()

    if not folder.startswith("s3://"):
        sys.addaudithook(heard)
        return

    from aiobotocore.client import AioBaseClient

    request = AioBaseClient._make_api_call

    async def counted(client: AioBaseClient, operation: str, parameters: dict[str, Any]) -> Any:
        several = parameters.get("Delete", {}).get("Objects", [{}])
        key = parameters.get("Key") or several[0].get("Key")
        if operation in REQUESTS and f"s3://{parameters['Bucket']}/{key}".startswith(folder):
            count()
        return await request(client, operation, parameters)

    AioBaseClient._make_api_call = counted


if __name__ == "__main__":
    request = _serve()
    _become(request)
    if request["module"]:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    else:
        from pipeline.cli import main

        main()
