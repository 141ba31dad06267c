"""A private Ray on this machine, for one run: all its CPUs and GPUs.

It listens on loopback only and answers no one who lacks its token, which is made anew each time and lives in the
environment of its processes alone. Its sockets and logs lie in a directory of its own that no one else may enter, and
that is gone afterwards (not after kill -9). So any number of runs, of any users, work side by side on one node.
Cost: about 6 seconds to start.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launchers import ray_data
from launchers.devices import allowed_cpus, devices
from pipeline.base.errors import PipelineError
from pipeline.base.interrupts import install_sigterm_handler
from pipeline.corpus.events import Event
from pipeline.planning.plan import Plan

LONGEST_BASE = 28  # characters: a socket's path has at most 107, of which our folders' names take 15, Ray's own 64
STARTS, TOO_SLOW = 3, "timed out during startup"
OBJECT_STORE = 256 << 20  # bytes, for descriptors of 100 bytes; Ray's default is a third of the machine's memory
ENVIRONMENT = {  # of this process and, through it, of Ray's
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
NO_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # at 0, on any system: Ray takes 127.0.0.1 for the node's address


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Start Ray unless it is up, do what the plan says, yield events as they come back; a fatal event is the last."""
    with ray_on_this_machine():
        yield from ray_data.run(plan, folder)


@contextlib.contextmanager
def ray_on_this_machine() -> Iterator[None]:
    """Keep one Ray up over several calls of `run`. Where one is up already, that one serves."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir=_short_base()))  # 0700, which Ray would undo
    try:
        with _privacy():
            try:
                _start(folder)
                install_sigterm_handler()
                yield
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path) -> None:
    """Raises `PipelineError` if Ray, which gives itself 30 s for it, is too slow each time."""
    import ray

    for attempt in range(STARTS):
        try:
            with without_native_log():
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
        except Exception as error:  # Ray's own are no more special
            if TOO_SLOW not in str(error):
                raise
            ray.shutdown()
        else:
            return
    raise PipelineError(
        f"Ray did not start within 30 s, {STARTS} times in a row: this machine is too busy; end other programs, or "
        "use --launcher inline"
    )


@contextlib.contextmanager
def _privacy() -> Iterator[None]:
    """A token of its own and loopback, for a Ray that is started meanwhile; afterwards all is as before.

    Ray reads the variables when it is loaded, which may have been long ago: hence what else is set here.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    constants: Any = importlib.import_module("ray._private.ray_constants")
    private = {NO_CLUSTER: "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in private}
    clusters = constants.ENABLE_RAY_CLUSTER

    def read_again() -> None:
        raylet.Config.initialize("")  # first, or threads that still send look for a token that is gone
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
    """Where temporary folders go, unless that makes the paths of sockets too long."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_BASE else "/tmp"


def _fewer_cpus() -> int | None:
    """The CPUs that this process may use, where they are fewer than the machine has."""
    allowed = allowed_cpus()
    return allowed if allowed < (os.cpu_count() or 1) else None  # None: as Ray counts them, by quotas of containers


@contextlib.contextmanager
def without_native_log() -> Iterator[None]:
    """Ray's C++ part announces its log level on stderr, whatever that level is; its errors are raised in Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
