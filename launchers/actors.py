"""The two kinds of actors of a Ray: one segments chunks, one visits parts. Both live as long as the pool of a phase or
of a SLURM task, so networks and segmenters are loaded once.

Only descriptors and events go through Ray, as JSON; sentences and embeddings go through storage. An actor is told for
each call which folder has the marks of attempts: that of the run, or of a shard.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk
from pipeline.run.tasks import failed_event

FLUSH_SECONDS = 0.5  # after which a segmenter passes on what it has
SWITCH_SECONDS = 50e-6  # after which a thread yields the interpreter, so that the computing thread need not wait
SHARED_NICE = 10  # of segmenters, if networks compute on the same cores: one late thread delays all others


class Segmenting(Protocol):
    """What segments: `SegmentTask`."""

    def under(self, folder: str) -> None:
        """Leave marks in this folder from now on."""

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        """Segment a chunk."""


class Visiting(Protocol):
    """What visits parts, in several threads: `PartTask`."""

    def under(self, folder: str) -> None:
        """Leave marks in this folder from now on, and read those that are there."""

    def __call__(self, ref: PartRef) -> Event:
        """Bring a part up to date."""


def set_threads(device: str, threads: int, nice: int = 0) -> None:
    """Let this process use so many threads for networks, if they compute on CPUs.

    Args:
        device: where networks compute: `cpu`, `cuda`.
        threads: how many threads PyTorch uses.
        nice: by how much the process's priority is lowered.
    """
    if device == "cpu":
        import torch

        os.nice(nice)
        torch.set_num_threads(threads)


class SegmentActor:
    """Segments one chunk at a time.

    Args:
        make: makes the task for a device.
        device: where networks compute: `cpu`, `cuda`.
    """

    def __init__(self, make: Callable[[str], Segmenting], device: str) -> None:
        set_threads(device, 1, SHARED_NICE)  # one process per core segments already
        self._task, self._folder, self._chunk = make(device), "", ""
        self._events: Iterator[Event] = iter(())

    def segment(self, chunk: str, folder: str, begins: bool) -> tuple[list[str], bool]:
        """Begin a chunk, or go on with it.

        Args:
            chunk: the chunk as JSON.
            folder: the folder for marks of attempts.
            begins: whether to begin it, also if it is under way here: what came of it may have been lost. An actor
                that was started again begins it in any case.

        Returns:
            The events of the next half second as JSON, and whether the chunk is over.
        """
        if begins or chunk != self._chunk:
            self._chunk, self._events = chunk, self._begun(Chunk.from_json(chunk), folder)
        until, found = time.monotonic() + FLUSH_SECONDS, []
        for event in self._events:
            found.append(_with_place(event).model_dump_json())
            if time.monotonic() >= until:
                return found, False
        self._chunk = ""
        return found, True

    def _begun(self, chunk: Chunk, folder: str) -> Iterator[Event]:
        try:
            if folder != self._folder:
                self._task.under(folder)
                self._folder = folder
        except Exception as error:
            return iter([failed_event(chunk.path, error)])
        return self._task(chunk)

    def process(self) -> int:
        """Return the number of its process, once it is there."""
        return os.getpid()


class VisitActor:
    """Visits parts, several at a time.

    Args:
        make: makes the task for a device.
        device: where networks compute: `cpu`, `cuda`.
        threads: how many threads PyTorch uses on CPUs.
    """

    def __init__(self, make: Callable[[str], Visiting], device: str, threads: int) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        set_threads(device, threads)
        self._task, self._folder, self._switching = make(device), "", threading.Lock()

    def visit(self, ref: str, folder: str, again: bool) -> str:
        """Bring a part up to date.

        Args:
            ref: the part as JSON.
            folder: the folder for marks of attempts.
            again: whether a worker died while visiting the part, so that marks are read again.

        Returns:
            The event as JSON.
        """
        part = PartRef.model_validate_json(ref)
        try:
            with self._switching:
                if again or folder != self._folder:
                    self._task.under(folder)
                    self._folder = folder
        except Exception as error:
            return _with_place(failed_event(part.part, error)).model_dump_json()
        return _with_place(self._task(part)).model_dump_json()

    def process(self) -> int:
        """Return the number of its process, once it is there."""
        return os.getpid()


def _with_place(event: Event) -> Event:
    """Name this machine in an event that ends the run."""
    return event.model_copy(update={"error": f"{event.error} (on {platform.node()})"}) if event.fatal else event
