"""Visits parts in processes of their own, which leave only the networks to the present process.

Beside a GPU there is Python work for every sentence: token lists, BLEU, detokenising. Threads that do it hold the
interpreter, and the thread that feeds the device waits for them. So each part in flight has a host process that reads,
prepares, finishes and writes (a `PartWorker`), and asks the worker's process to compute. Arrays are sent over a socket
as they lie in memory. A host takes 350 MB besides its part, and no GPU.

A host that dies ends only the visit of its own part, which raises `HostDiedError`; the next part gets another host.
Hosts end when the worker's process does, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.base.captured import capture_warnings
from pipeline.base.errors import HostDiedError, starting
from pipeline.config.run_config import RunConfig
from pipeline.corpus.receipts import PartRef
from pipeline.run.networks import Computes, Networks, Ran, built
from pipeline.run.worker import PartVisit, PartWorker
from pipeline.storage.retry import be_patient
from pipeline.storage.store import Store
from stages.stage import Stage, StageSettings

END_SECONDS = 10.0  # seconds for hosts to end by themselves


class HostedWorker:
    """A `PartWorker` whose Python runs in host processes. Several threads may call it: each then has a host."""

    def __init__(
        self, config: RunConfig, device: str, stages: tuple[str, ...], module: str = "pipeline.run.hosts"
    ) -> None:
        """Prepare the networks; host processes are started when they are needed.

        Args:
            config: the configuration, with what is frozen.
            device: where networks compute: `cpu`, `cuda:0`, `mps`.
            stages: the stages that a visit may bring up to date.
            module: the program of a host process.
        """
        self._order, self._module = (config, device, stages), module
        self.networks = Networks(config, device)
        self._settings = {settings.name: settings for settings in config.row_stages()}
        self._idle: queue.LifoQueue[Host] = queue.LifoQueue()

    def visit(self, ref: PartRef) -> PartVisit:
        """Compute what is missing of a part. Raises the errors of the host, and `HostDiedError` if it dies."""
        try:
            host = self._idle.get_nowait()
        except queue.Empty:
            host = Host(self._order, self._module)
        try:
            visit = self._serve(host, ref)
        except (EOFError, ConnectionError) as error:
            raise HostDiedError(f"the process that visited part {ref.part} {host.end()}") from error
        except BaseException:
            self._idle.put(host)
            raise
        self._idle.put(host)
        return visit

    def _serve(self, host: Host, ref: PartRef) -> PartVisit:
        send(host.socket, ref)
        while True:
            kind, value = receive(host.socket)
            if kind == "visit":
                done: PartVisit = value
                return done
            if kind == "failed":
                raise value
            name, prepared = value
            answer: tuple[str, Ran | BaseException]
            try:
                ran = self.networks.compute(self._settings[name], prepared)
                if hasattr(ran.computed, "prepared"):  # the host has a copy
                    ran = replace(ran, computed=replace(ran.computed, prepared=None))
                answer = "ran", ran
            except Exception as error:
                answer = "failed", portable(error)
            del prepared
            send(host.socket, answer)

    def close(self) -> None:
        """End the idle hosts."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()


class Host:
    """A process that works for this one, seen from this side.

    Args:
        order: what the process is told first; it is pickled.
        module: the program that it runs.
        gpu: whether it may see the GPUs.
    """

    def __init__(self, order: object, module: str, *, gpu: bool = False) -> None:
        self.socket, theirs = socket.socketpair()
        ends, self._life = os.pipe()  # closed when this process ends, however it ends
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(ends)]
        path = os.pathsep.join(one or str(Path.cwd()) for one in sys.path)
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), ends),
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path} | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}),
        )
        theirs.close()
        os.close(ends)
        send(self.socket, order)

    def end(self) -> str:
        """Make sure that the host has ended, and say how it ended."""
        self.socket.close()
        os.close(self._life)
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}; out of memory?"
        return f"ended with exit code {code}; see what it printed"


class _Remote(Computes):
    """The networks, seen from a host."""

    def __init__(self, config: RunConfig, connection: socket.socket) -> None:
        self._config, self._socket = config, connection
        self._store = Store(config.output)
        self._stages: dict[str, tuple[Stage, list[str]]] = {}

    def stage(self, settings: StageSettings) -> tuple[Stage, list[str]]:
        """Return the stage without networks, which `prepare` and `finish` do not need."""
        if settings.name not in self._stages:
            with starting(settings.name), capture_warnings() as warned:
                self._stages[settings.name] = built(self._store, self._config, settings), warned
        return self._stages[settings.name]

    def compute(self, settings: StageSettings, prepared: Any) -> Ran:
        """Ask the other process to compute."""
        send(self._socket, ("compute", (settings.name, prepared)))
        kind, value = receive(self._socket)
        if kind == "failed":
            raise value
        ran: Ran = value
        if hasattr(ran.computed, "prepared"):
            ran = replace(ran, computed=replace(ran.computed, prepared=prepared))
        return ran


def portable(error: BaseException) -> BaseException:
    """Return an exception that can be sent, with the place where it was raised."""
    shown = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # anything that the exception's own code raises
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in process {os.getpid()}:\n{shown}")
    return error


def send(connection: socket.socket, value: object) -> None:
    """Send a pickle, with arrays as they lie in memory."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = [len(head), *(view.nbytes for view in views)]
    connection.sendall(struct.pack(f"!{len(sizes) + 1}Q", len(sizes), *sizes))
    connection.sendall(head)
    for view in views:
        connection.sendall(view)


def receive(connection: socket.socket) -> Any:
    """Return what the other side has sent. Raises `EOFError` if it has ended."""
    (count,) = struct.unpack("!Q", _read(connection, 8))
    sizes = struct.unpack(f"!{count}Q", _read(connection, 8 * count))
    head, *buffers = [_read(connection, size) for size in sizes]
    return pickle.loads(head, buffers=buffers)


def _read(connection: socket.socket, size: int) -> memoryview:
    data = np.empty(size, np.uint8).data  # not filled with zeros, unlike a bytearray
    done = 0
    while done < size:
        got = connection.recv_into(data[done:], 0, socket.MSG_WAITALL)
        if got == 0:
            raise EOFError
        done += got
    return data


def main(connection: int, life: int) -> None:
    """Run a host: visit one part after the other until the other side closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one is interrupted too, and ends it
    threading.Thread(target=_watch, args=(life,), daemon=True).start()
    asking = socket.socket(fileno=connection)
    with contextlib.suppress(EOFError, ConnectionError):
        config, device, stages = receive(asking)
        be_patient(config.launcher.storage_patience)
        worker = PartWorker(config, device, stages, _Remote(config, asking))
        while True:
            ref = receive(asking)
            try:
                answer: tuple[str, object] = "visit", worker.visit(ref)
            except (EOFError, ConnectionError):
                raise
            except Exception as error:
                answer = "failed", portable(error)
            send(asking, answer)


def _watch(life: int) -> None:
    os.read(life, 1)  # returns when the process with the other end has ended
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
