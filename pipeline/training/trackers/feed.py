"""Hands the lines of the log to trackers, each from a thread of its own; the training only appends to a list.

A slow tracker gets more lines at a time, so nothing is dropped and no queue grows. A tracker that raises, or leaves a
message unanswered for `PATIENCE` seconds, is given up, which is said once; metrics.jsonl has everything that it lacks.
Cost: a process of 100 to 200 MB for each tracker, whose library takes about 3 s of CPU time to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.base.formats import counted
from pipeline.training.status import Numbers
from pipeline.training.trackers.about import About, Attachment

PATIENCE = 120.0  # seconds that a tracker may take for one answer while the training goes on
PROGRAM = (sys.executable, "-m", "pipeline.training.trackers.process")  # and the name of the tracker
END_PATIENCE = 120.0  # … after it has ended: MLflow takes 5 s of CPU time to make an SQLite file
STOP_PATIENCE = 10.0  # … after it was stopped: SLURM gives little time, and the next start sends what is missing
SOON = 5.0  # seconds of waiting at the end that need no explanation
AT_ONCE = 500  # lines of a message
KILL_SECONDS = 5.0
TITLES = {"wandb": "Weights & Biases", "mlflow": "MLflow"}


class Feed:
    """Feeds the trackers of a training, from its first process.

    Args:
        names: the trackers, as `train.trackers` names them.
        about: the description of the training.
        lines: what is logged already.
        say: shows a sentence to the user.
    """

    def __init__(
        self, names: Sequence[str], about: About, lines: Sequence[Numbers], say: Callable[[str], None]
    ) -> None:
        self._lines, self._say = list(lines), say
        self._feeders = [_Feeder(name, about, self._lines, say) for name in names]

    def see(self, line: Numbers) -> None:
        """Log a line, later."""
        self._lines.append(line)
        for one in self._feeders:
            one.wake.set()

    def end(self, how: str, attachment: Attachment | None = None) -> None:
        """Wait until all trackers have everything, or no longer answer. `how`: as `Tracker.end` takes it."""
        for one in self._feeders:
            one.end(how, attachment)
        for one in self._feeders:
            if not one.join(SOON):
                self._say(f"waiting for {one.title}, which still gets numbers")
                one.join()


class _Feeder:
    """The thread of one tracker, and the process that it talks to."""

    def __init__(self, name: str, about: About, lines: list[Numbers], say: Callable[[str], None]) -> None:
        self._name, self._about, self._lines, self._say = name, about, lines, say
        self.title = TITLES[name]
        self.wake = threading.Event()
        self._how = ""
        self._attachment: Attachment | None = None
        self._ending = float("inf")  # when the end began
        self._sent = 0
        self._thread = threading.Thread(target=self._feed, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def end(self, how: str, attachment: Attachment | None) -> None:
        self._attachment, self._ending, self._how = attachment, time.monotonic(), how
        self.wake.set()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until it has ended; returns whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _feed(self) -> None:
        try:
            self._process = subprocess.Popen(
                [*PROGRAM, self._name],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                bufsize=0, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._lost(f"its process cannot start: {error}")
            return
        try:
            self._talk()
        except BrokenPipeError:
            self._lost("its process has ended")
        except (_LostError, OSError) as error:
            self._lost(str(error))
        finally:
            self._close()

    def _talk(self) -> None:
        self._ask({"about": self._about.model_dump()})
        while True:
            self.wake.wait()
            self.wake.clear()
            how = self._how  # before the lines are read: no line comes after it
            while self._sent < len(self._lines):
                some = self._lines[self._sent : self._sent + AT_ONCE]
                self._ask({"lines": some})
                self._sent += len(some)
            if how:
                self._ask(({"attachment": self._attachment.model_dump()} if self._attachment else {}) | {"end": how})
                return

    def _ask(self, message: dict[str, Any]) -> None:
        """Send a message and wait for its answer. Raises `_LostError` or `OSError`."""
        since = time.monotonic()
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe and answers
        left = memoryview((json.dumps(message) + "\n").encode())
        os.set_blocking(pipe.fileno(), False)
        while left:
            self._wait_for([], [pipe], since)
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(pipe.fileno(), left) :]
        answer = b""
        while not answer.endswith(b"\n"):
            self._wait_for([answers], [], since)
            some = os.read(answers.fileno(), 65536)
            if not some:
                raise _LostError("its process has ended")
            answer += some
        if lost := json.loads(answer).get("lost"):
            raise _LostError(str(lost))

    def _wait_for(self, readable: list[Any], writable: list[Any], since: float) -> None:
        """Wait until a pipe is ready. Raises `_LostError` if it takes too long."""
        while not any(select.select(readable, writable, [], 1.0)):
            now = time.monotonic()
            waited = now - since
            if waited > PATIENCE or now - max(since, self._ending) > (
                END_PATIENCE if self._how == "done" else STOP_PATIENCE
            ):
                raise _LostError(f"no answer for {waited:.0f} s")

    def _lost(self, why: str) -> None:
        missing = [f"{counted(count, 'line')} of metrics.jsonl"] if (count := len(self._lines) - self._sent) else []
        missing += ["what follows"] if not self._how else ["the evaluation"] if self._attachment else []
        self._say(
            f"{self.title} is given up: {why.rstrip('.')}. The training is not affected; missing there: "
            f"{', '.join(missing) or 'how it ended'}"
        )

    def _close(self) -> None:
        """End the process and all that it has started."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class _LostError(Exception):
    """A tracker cannot be used any more."""
