"""Logs numbers of a training to the terminal, to metrics.jsonl and to the trackers that are asked for.

A training that resumes drops what was logged after its checkpoint, so that each step is logged once. Files are written
whole, at most every few seconds (object stores cannot append).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.base.errors import PipelineError, StorageError
from pipeline.base.formats import duration, number
from pipeline.storage.store import REMEDIES, Store
from pipeline.training.checkpoint import is_local
from pipeline.training.record import Started, read_started
from pipeline.training.status import BOARD, METRICS, Numbers, read_metrics
from pipeline.training.trackers.about import OTHERS, about
from pipeline.training.trackers.feed import Feed
from stages.lcm.card import LcmCard

WRITE_SECONDS = 10.0
LINE_SECONDS = 5.0
WIDE = 150  # columns that the numbers of a step need beside a bar


class Log:
    """The log of the first process; use it in a `with` statement.

    Args:
        console: where progress is shown.
        store: the corpus.
        run: the folder of the training.
        started: the record of the training.
        done: how many steps are done already; later lines of the log are dropped.
    """

    def __init__(self, console: Console, store: Store, run: str, started: Started, done: int) -> None:
        self._console, self._store, self._run, self._steps = console, store, run, started.settings.steps
        self._first_loss = LcmCard.model_validate(started.pinned.card).with_first_loss(self._steps)
        self._lines = [one for one in read_metrics(store, run) if one["step"] <= done]
        self._written, self._printed = 0.0, 0.0
        trackers = started.settings.trackers
        self._board = _Board(store, run, done) if "tensorboard" in trackers else None
        others = [one for one in OTHERS if one in trackers]
        self._feed = Feed(others, about(store, run, started), self._lines, self._say) if others else None
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=console)
            self._task = self._bar.add_task("", total=self._steps, completed=done, note="")

    def __enter__(self) -> Log:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *of_error: object) -> None:
        if self._bar:
            self._bar.stop()
        first: PipelineError | None = None  # all is closed, even if something cannot be written
        for close in (self.flush, self._close_board, self._end_feed):
            try:
                close()
            except PipelineError as error:
                first = first or error
        if first and not kind:  # otherwise the error that is under way is the one to report
            raise first

    def _close_board(self) -> None:
        if self._board:
            self._board.close()

    def _end_feed(self) -> None:
        if self._feed:
            self._feed.end("done" if self._lines and self._lines[-1]["step"] == self._steps else "stopped")

    def see(self, kind: str, step: int, numbers: Numbers) -> None:
        """Log the numbers of a step.

        Args:
            kind: `train` or `validation`.
            step: how many steps are done.
            numbers: name → value.
        """
        line: Numbers = {"kind": kind, "step": step}
        if self._lines and line.items() <= self._lines[-1].items():  # the process before this one was killed after it
            self._lines.pop()
        self._lines.append(line | numbers)
        if self._board:
            self._board.see(kind, step, numbers)
        if self._feed:
            self._feed.see(line | numbers)
        if kind == "validation":
            self._say(f"step {step}: validation loss {numbers['loss']:.4f}")
        elif self._bar:
            self._bar.update(self._task, completed=step, note=_note(numbers, self._console.width < WIDE))
        elif time.monotonic() - self._printed >= LINE_SECONDS or step in (self._steps, self._first_loss):
            self._printed = time.monotonic()
            self._say(f"step {step} of {self._steps}: {_note(numbers)}")
        if kind == "train" and step == self._first_loss < self._steps:
            self._say("from here on the head is trained, by a loss that cannot be compared with the one before")
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the files."""
        self._written = time.monotonic()
        text = "".join(json.dumps(line, allow_nan=True) + "\n" for line in self._lines)
        self._store.write(f"{self._run}/{METRICS}", text.encode())
        if self._board:
            self._board.flush()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


class _Board:
    """TensorBoard's files, in the folder of the training; stores get copies of them."""

    def __init__(self, store: Store, run: str, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # an extra, which is not needed without

        self._store, self._run = store, run
        self._here, self._folder = is_local(store.url), tempfile.TemporaryDirectory()
        place = str(fsspec.core.url_to_fs(f"{store.url}/{run}/{BOARD}")[1]) if self._here else self._folder.name
        with self._telling():
            self._writer = SummaryWriter(place, purge_step=done + 1)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Raise `StorageError` where TensorBoard cannot write."""
        try:
            yield
        except OSError as error:
            todo = REMEDIES.get(error.errno or 0, "fix that")
            where = f"{self._store.url}/{self._run}/{BOARD}" if self._here else self._folder.name
            raise StorageError(
                f"cannot write TensorBoard's files in {where}: {error.strerror or error}; {todo}, then run the same "
                "command again, or leave tensorboard out of train.trackers"
            ) from error

    def see(self, kind: str, step: int, numbers: Numbers) -> None:
        """Log numbers after `step` steps."""
        with self._telling():
            for name, value in numbers.items():
                if value is not None:
                    self._writer.add_scalar(f"{kind}/{name}", value, step)

    def flush(self) -> None:
        """Write the files."""
        with self._telling():
            self._writer.flush()
        if not self._here:
            for file in Path(self._folder.name).iterdir():
                self._store.write(f"{self._run}/{BOARD}/{file.name}", file.read_bytes())

    def close(self) -> None:
        """Close the files."""
        try:
            with self._telling():
                self._writer.close()
        finally:
            self._folder.cleanup()


def learned(store: Store, run: str) -> str:
    """Say how far the loss of a finished training fell, or one after the other both losses that it had."""
    lines, started = read_metrics(store, run), read_started(store, run)
    train, held_out = ([one for one in lines if one["kind"] == kind] for kind in ("train", "validation"))
    before = LcmCard.model_validate(started.pinned.card).with_first_loss(started.settings.steps)
    parts = [[one["loss"] for one in train if (one["step"] <= before) is first] for first in (True, False)]
    fell = ["loss " + " → ".join(f"{one:.4f}" for one in dict.fromkeys((part[0], part[-1]))) for part in parts if part]
    validation = f", {held_out[-1]['loss']:.4f} on validation documents" if held_out else ""
    return f"trained in {train[-1]['step']} steps: {', then of the head '.join(fell)}{validation}"


def _note(numbers: Numbers, short: bool = False) -> str:
    rate = number(round(numbers["concepts_per_second"]))
    if short:
        return f"loss {numbers['loss']:.4g}, {rate}/s, {duration(numbers['seconds_left'])} left"
    mfu = f" (MFU {numbers['mfu']:.1%})" if numbers.get("mfu") else ""
    return (
        f"loss {numbers['loss']:.4f}, gradient {numbers['norm']:.3g}, {rate} concepts/s, "
        f"{numbers['tflops']:.3g} TFLOP/s{mfu}, loader {numbers['loader_wait']:.1%}, "
        f"{duration(numbers['seconds_left'])} left"
    )
