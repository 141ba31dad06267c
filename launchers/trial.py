"""Starts Ray once and stops it, in a process of its own, so that a Ray that hangs or dies does no harm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from launchers.local import ENVIRONMENT, STARTS, TOO_SLOW

_START = """
import json, logging, ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
@ray.remote
def one(): return 1
assert ray.get(one.remote()) == 1
print(json.dumps(ray.cluster_resources()))
ray.shutdown()
"""


def start_ray(timeout: float = 90.0) -> tuple[float, dict[str, float]]:
    """Return the seconds until a first task was done and Ray was stopped again, and the resources that Ray found.

    As in a run, a Ray that is too slow is started again. Raises RuntimeError with Ray's last words if it fails, or does
    not answer in time.
    """
    started = time.monotonic()
    for _ in range(STARTS):
        try:
            output, errors, code = _started(started + timeout - time.monotonic())
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no answer in {timeout:.0f} s") from error
        if not code or TOO_SLOW not in errors:
            break
    if code:
        words = [line for line in errors.splitlines() if line.strip()] or [f"it ended with code {code}"]
        raise RuntimeError(words[-1][:300])
    resources: dict[str, float] = json.loads(output.splitlines()[-1])
    return time.monotonic() - started, resources


def _started(timeout: float) -> tuple[str, str, int]:
    """Return what the process printed, and how it ended. Raises `TimeoutExpired`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _START],
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
