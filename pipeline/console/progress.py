"""Shows progress: bars with rates and remaining time on a terminal, a plain line every few seconds in a log."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from pipeline.base.formats import duration, number, plain
from pipeline.base.messages import warn
from pipeline.corpus.events import Event
from stages.computing import SEGMENTING, current, segmented

LINE_SECONDS = 5.0
FIRST_SECONDS = 3.0  # until the first line says that work has begun
SILENT_SECONDS = 15.0  # a log has a line at least this often
MEASUREMENT = "measurement"  # the unit of what follows a fit
ENOUGH_PARTS, ENOUGH = 8, 0.1  # that many parts, or that share of the sentences, say how long the rest takes
STAGE_SECONDS = 3.0  # a stage that computes a part for longer is named


class RunProgress:
    """Follows the events of a phase; the total is estimated from the segmented chunks until all of them are segmented.

    Args:
        console: where the progress is shown.
        chunks: how many chunks are to be segmented.
        sentences: how many sentences of segmented parts wait for a visit.
        visits: whether parts are visited at all, by a stage after segmenting.
        starting: what is done before the first event.
    """

    def __init__(
        self, console: Console, *, chunks: int, sentences: int, visits: bool, starting: str = "loading the models"
    ) -> None:
        self._console = console
        self._chunks = chunks
        self._visits = visits
        self._segmented = sentences
        self._before = self._segmented
        self._chunks_done = 0
        self._visited = 0
        self._parts = 0  # done by the last of the stages
        self._failed = 0
        self._starting = starting  # empty after the first event
        self._started = time.monotonic()
        self._working: float | None = (
            self._started if self._segmented else None
        )  # since the first part was ready for a visit
        self._last_line = self._started
        self._text_before = segmented()
        self._over = threading.Event()
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<9}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=console,
            )
            self._segment_bar = self._bars.add_task("chunks", total=self._chunks, note="", visible=self._chunks > 0)
            self._visit_bar = self._bars.add_task("sentences", total=None, note=starting, visible=self._visits)

    def __enter__(self) -> RunProgress:
        if self._bars:
            self._bars.start()
        threading.Thread(target=self._never_silent, daemon=True).start()
        return self

    def _never_silent(self) -> None:
        wait = FIRST_SECONDS
        while not self._over.wait(0.5):
            if self._bars:
                self._bars.update(self._visit_bar, note=self._note())
                self._bars.update(self._segment_bar, note=self._text())
            elif time.monotonic() - self._last_line >= wait:
                wait = SILENT_SECONDS
                self._last_line = time.monotonic()
                self._console.print(self._line())

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._bars:
            self._bars.stop()
        elif kind is None:
            self._console.print(self._line())

    def see(self, event: Event) -> None:
        """Count an event."""
        self._starting = ""
        self._parts += event.kind == ("part" if self._visits else "segmented")
        if event.kind == "segmented":
            self._segmented += event.rows
            self._working = self._working or time.monotonic()
        elif event.kind == "chunk":
            self._chunks_done += 1
        elif event.kind == "part":
            self._visited += event.rows
        else:
            self._failed += 1
            what = f" {plain(event.where, 200)}: {plain(event.error, 1000)}"
            warn(self._console, Text("failed", "bold red") + Text(what), soft_wrap=True)
        if self._bars:
            self._bars.update(self._segment_bar, completed=self._chunks_done)
            self._bars.update(self._visit_bar, completed=self._visited, total=self._total(), note=self._note())
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self._console.print(self._line())

    def numbers(self) -> dict[str, float | None]:
        """Return the progress in numbers, for those who watch from elsewhere."""
        done = self._visited if self._visits else self._segmented - self._before
        return {
            "chunks": self._chunks,
            "chunks_done": self._chunks_done,
            "parts": self._parts,
            "sentences": done,
            "sentences_in_all": self._total() if self._visits else 0,
            "seconds": round(time.monotonic() - self._started, 1),
            "left": self._left(),
            "failed": self._failed,
        }

    def _total(self) -> int:
        if self._chunks_done in (0, self._chunks):
            return self._segmented
        new = self._segmented - self._before
        return self._before + max(new, round(new * self._chunks / self._chunks_done))

    def _rate(self) -> float:
        return self._visited / max(1e-9, time.monotonic() - (self._working or self._started))

    def _left(self) -> float | None:
        """Return the seconds that are left; None as long as a few small parts or chunks would speak for all."""
        if not self._visits:
            done = self._chunks_done
            enough = done >= min(ENOUGH_PARTS, max(1.0, ENOUGH * self._chunks))
            return (time.monotonic() - self._started) * (self._chunks - done) / done if enough else None
        total = self._total()
        if not self._visited or (self._parts < ENOUGH_PARTS and self._visited < ENOUGH * total):
            return None
        return max(0, total - self._visited) / self._rate()

    def _note(self) -> str:
        stage, left = _stage(), self._left()
        if left is None:
            return stage or (not self._bars and self._text()) or self._starting or "computing"
        note = f"{number(self._rate())}/s, {duration(left)} left" if left else f"{number(self._rate())}/s"
        return f"{note}; {stage}" if stage else note

    def _text(self) -> str:
        """Return how much text has been segmented, while chunks are."""
        done = segmented() - self._text_before if self._chunks_done < self._chunks else 0
        rate = done / max(1e-9, time.monotonic() - self._started)
        left = None if self._visits else self._left()
        more = f", {duration(left)} left" if left else ""
        return f"{number(done)} characters segmented, {number(rate)}/s{more}" if done > 0 else ""

    def _line(self) -> str:
        parts = [f"{duration(time.monotonic() - self._started)}:"]
        if self._chunks:
            parts.append(f"{self._chunks_done}/{self._chunks} chunks segmented,")
        if self._visits:
            parts.append(f"{number(self._visited)} of {number(self._total())} sentences done, {self._note()}")
        else:
            what = self._text() or self._starting
            parts.append(f"{number(self._segmented)} sentences{', ' * bool(what)}{what}")
        return " ".join(parts) + (f", {self._failed} failed" if self._failed else "")


def _stage() -> str:
    """Return how far a stage of this process is with its part, if that takes long."""
    now = current()
    if now is None or now.stage == SEGMENTING or time.monotonic() - now.since < STAGE_SECONDS:
        return ""
    left = now.left()
    return f"{now.stage} of a part {now.share:.0%}" + (f", {duration(left)} left of it" if left else "")


class RowProgress:
    """Follows work on rows: a bar with rate and remaining time on a terminal, a line every few seconds in a log.

    `noun` and `verb` name the rows and what is done with them, such as "rows" and "read".

    Args:
        console: a terminal, or what writes to a log.
        total: how many rows there are; 0 if the first call of `of` says it.
        noun: what is counted, in the plural.
        verb: what happens to it, as a participle.
    """

    def __init__(self, console: Console, total: int, noun: str = "rows", verb: str = "read") -> None:
        self._console = console
        self._total = total
        self._done = self._before = 0
        self._words = f"{noun} {verb}"
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            self._task = self._bar.add_task(noun, total=total, note="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def of(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done. What the first call reports was done before, and says nothing of the
        rate.
        """
        if not self._total:
            self._before = done
            self._started = self._last_line = time.monotonic()
        self._total = total
        self._show(done, "")

    def add(self, rows: int) -> None:
        """Count `rows` more as done."""
        self._show(self._done + rows, "")

    def see(self, read: int, found: int) -> None:
        """Show that `read` rows were read, of which `found` match."""
        self._show(read, f"{number(found)} match, ")

    def _show(self, done: int, more: str) -> None:
        self._done = done
        rate = (done - self._before) / max(1e-9, time.monotonic() - self._started)
        left = duration(max(0, self._total - done) / rate) if rate else "?"
        note = f"{more}{number(rate) if rate >= 10 else f'{rate:.1f}'}/s, {left} left"
        if self._bar:
            self._bar.start()  # starts with the first rows, so that an early error shows no bar
            self._bar.update(self._task, completed=done, total=self._total, note=note)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self._console.print(f"{self._counted()}, {note}")

    def _counted(self) -> str:
        return f"{number(self._done)} of {number(self._total)} {self._words}"


class FitProgress(RowProgress):
    """Follows a fit, and then its measurement on held-out rows, which may take longer: `decoder: step 2 of 12`.

    Args:
        console: a terminal, or what writes to a log.
        name: what is fitted.
        unit: what the fit counts, in the singular.
    """

    def __init__(self, console: Console, name: str, unit: str) -> None:
        super().__init__(console, 0, f"{name}: {unit}s")
        self._name, self._unit = name, unit

    def measuring(self, done: int, total: int) -> None:
        """Show that `done` of `total` measurements are done; the fit itself is."""
        if self._unit != MEASUREMENT:
            self._unit, self._total = MEASUREMENT, 0
            if self._bar:
                self._bar.update(self._task, description=f"{self._name}: {MEASUREMENT}s")
        self.of(done, total)

    def _counted(self) -> str:
        return f"{self._name}: {self._unit} {number(self._done)} of {number(self._total)}"
