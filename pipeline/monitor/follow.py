"""Shows `pipeline status --watch` and `run --wait`: a view that refreshes in place, or a line every few seconds."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import CorpusError
from pipeline.base.formats import Figures, counted, duration, first_few, number, plain
from pipeline.base.messages import print_plain
from pipeline.console.progress import LINE_SECONDS
from pipeline.coordination.lock import HOLDER_SHOWN, JOBS_SHOWN
from pipeline.corpus.runs import EXPECTATIONS
from pipeline.monitor.phase_status import PhaseState
from pipeline.monitor.run_status import OVER, Cluster, RunState, RunWatcher
from pipeline.storage.store import Store

REFRESH_SECONDS = 2.0
LONGEST_PAUSE = 30.0  # seconds between polls, however slow they are
SHARE = 0.2  # largest share of time for polling, up to that pause: a slow store is polled less often
PACE_SECONDS = 60.0  # seconds over which the present rate is measured
SHOWN = 5  # the most failures and stragglers that are shown
WORKERS = 20


def follow(console: Console, store: Store, cluster: Cluster, run: str | None = None) -> bool:
    """Show a run until it is over.

    Ctrl-C ends only the view.

    Args:
        console: a terminal, or what writes to a log: then a line is printed now and then.
        store: the corpus.
        cluster: answers whether SLURM or Ray still has the run's jobs.
        run: the folder of the run; None for the one under way or else the newest.

    Returns:
        Whether the run ended well.

    Raises:
        CorpusError: if there is no run.
    """
    watcher, pace = RunWatcher(store, cluster, run), Pace()
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    last_line = 0.0
    try:
        while True:
            started = time.monotonic()
            state = watcher.poll()
            if not state:
                raise CorpusError(f"{store.url} has no run yet; start one with: pipeline run corpus.yaml")
            if state.over:
                break
            pace.see(state)
            if live:
                live.start()
                live.update(_view_of(state, pace, console.height - 1), refresh=True)
            elif time.monotonic() - last_line >= LINE_SECONDS:
                last_line = time.monotonic()
                print_plain(console, _line(state, pace))
            time.sleep(pause_after(time.monotonic() - started))
    finally:
        if live:
            live.stop()
    _show_end(console, store, state)
    return state.done


def pause_after(polling: float) -> float:
    """Return the seconds until the next poll, after one that took `polling` seconds."""
    return min(LONGEST_PAUSE, max(REFRESH_SECONDS, polling / SHARE))


def show_run(console: Console, store: Store, cluster: Cluster) -> bool:
    """Show the run under way once, or how the newest one ended if it failed.

    Args:
        console: where it is shown.
        store: the corpus.
        cluster: answers whether SLURM or Ray still has the run's jobs.

    Returns:
        False if the newest run failed.
    """
    state = RunWatcher(store, cluster).poll()
    if state and not state.over:
        console.print(_view_of(state, Pace()))
    elif state and not state.done:
        _show_end(console, store, state)
        return not state.failures and not state.lost
    elif state and state.summary:
        _show_expectations(console, state.summary)
    return True


def _show_expectations(console: Console, summary: dict[str, Any]) -> None:
    if kept := summary.get(EXPECTATIONS):
        from pipeline.quality.expectations import of_summary, show_expectations  # imports much

        show_expectations(console, of_summary(kept))


class Pace:
    """Sentences per second of the present phase, over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float, int]] = deque()  # phase, time, sentences

    def see(self, state: RunState) -> None:
        """Record a state."""
        for phase in state.phases[-1:]:
            self._seen.append((phase.number, state.now, phase.sentences))
            while self._seen[0][0] != phase.number or state.now - self._seen[0][1] > PACE_SECONDS:
                self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Return the rate; None before there are enough states."""
        if not self._seen or self._seen[-1][1] - self._seen[0][1] < PACE_SECONDS / 4:
            return None
        (_, since, before), (_, now, after) = self._seen[0], self._seen[-1]
        return max(0, after - before) / (now - since)


def _view_of(state: RunState, pace: Pace, height: int = 1000) -> RenderableType:
    """Return the whole view of a run that is under way, in at most about `height` lines."""
    lines: list[RenderableType] = [Text(_title(state), "bold")]
    phases = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    phases.add_column(no_wrap=True)
    phases.add_column(overflow="fold")
    for phase in state.phases:
        name = f"phase {phase.number}, {phase.kind}"
        for label, text in _phase(phase, None if phase.over else pace.rate, _next(state)):
            phases.add_row(Text(label or name, "" if phase.over else "bold"), Figures(text))
    if state.phases:
        lines.append(phases)
    else:
        lines.append(Text(_before(state)))
    troubles = _troubles(state)
    if state.phases:
        room = height - len(state.phases) * 2 - len(troubles) - 8
        lines += _workers(state.phases[-1], min(WORKERS, max(3, room)))
    jobs = _jobs(state)
    return Group(*lines, *troubles, *([Text(jobs, "dim")] if jobs else []))


def _title(state: RunState) -> str:
    holder = state.holder
    where = f"jobs {first_few(holder['jobs'], JOBS_SHOWN)}" if holder.get("jobs") else f"process {holder.get('pid')}"
    beat = f", last heartbeat {state.beat:.0f} s ago" if state.beat is not None else ""
    launcher = "" if state.command else f"{plain(state.launcher, HOLDER_SHOWN)}, "
    user, host = (plain(str(holder.get(one)), HOLDER_SHOWN) for one in ("user", "host"))
    lasted = duration(state.now - state.started)
    return f"{state.name}: {launcher}{user} on {host} ({where}), for {lasted}{beat}"


def _before(state: RunState) -> str:
    if state.command:
        return "no run is under way"
    if state.holder.get("jobs"):
        return "the first job, which decides what there is to do, has not answered yet"
    return "nothing has been launched yet"


def _next(state: RunState) -> str:
    """Say what the job that follows the last array does: it decides, or waits for a reason that is not the array.

    Empty if it ended early, which is told by itself.
    """
    job = (state.holder.get("jobs") or [""])[-1]
    word, _, why = state.jobs.get(job, "").partition(" ")
    if word == "PENDING" and why not in ("", "(Dependency)"):
        return f"job {job}, which decides what comes next, waits {why}"
    return "" if _ended_early(state) else "what comes next is being decided"


def _ended_early(state: RunState) -> str:
    """Say that the job that follows the last array was cancelled or failed while the array works; empty if not."""
    jobs = state.holder.get("jobs") or [""]
    word = state.jobs.get(jobs[-1], "").partition(" ")[0]
    if len(jobs) == 1 or word not in OVER or word == "COMPLETED":
        return ""
    if state.stopped:
        return f"it was {state.stopped}: its jobs are ending"
    return (
        f"job {jobs[-1]}, which decides what comes next, is {word}: once the other jobs have ended, run the same "
        "command again"
    )


def _phase(phase: PhaseState, pace: float | None, coming: str) -> list[tuple[str, str]]:
    """Return rows of (label, text); an empty label stands for the phase's name. `coming`: what `_next` says."""
    took = f"{duration(phase.seconds)}" if phase.seconds is not None else "not begun"
    if phase.kind == "fit":
        fitted = ", ".join(phase.fitted)
        return [("", f"{'fitted ' + fitted if fitted else 'done' if phase.over else 'fitting'}, {took}")]
    if phase.kind == "compare":
        return [("", f"{'compared' if phase.over else 'comparing'} the whole corpus, {took}")]
    done = f"{counted(phase.parts, 'part')}, {counted(phase.sentences, 'sentence')}"
    if phase.over:
        failed = f", {phase.failed} failed" if phase.failed else ""
        return [("", f"{counted(phase.chunks, 'chunk')}, {done}, {number(phase.rate)}/s{failed}, {took}")]
    rows = []
    if phase.claims:
        rows.append(
            (
                "",
                f"shards: {phase.done} of {phase.claims} done, {phase.held} held, {phase.lost} lost, {phase.free} free",
            )
        )
    about = "about " * (phase.chunks_done < phase.chunks)
    of_parts = f" of {about}{number(phase.parts_in_all)}" if phase.parts_in_all else ""
    of_sentences = f" of {about}{number(phase.sentences_in_all)}" if phase.sentences_in_all else ""
    rows.append(
        (
            " " if rows else "",
            f"{number(phase.chunks_done)} of {counted(phase.chunks, 'chunk')}, {number(phase.parts)}{of_parts} parts, "
            f"{number(phase.sentences)}{of_sentences} sentences",
        )
    )
    now = f"{number(pace)}/s now, " if pace is not None else ""
    left = f", {duration(phase.left)} left" if phase.left else ""
    if phase.left is None and phase.seconds is not None and phase.chunks_done < phase.chunks:
        left = ", time left not known yet"
    left += f"; {coming}" if coming and phase.claims and phase.done == phase.claims else ""
    rows.append((" ", f"{now}{number(phase.rate)} sentences/s over the phase, {took}{left}"))
    return rows


def _workers(phase: PhaseState, most: int) -> list[RenderableType]:
    if not phase.workers:
        return [Text(f"{counted(phase.resting, 'worker')} without a shard")] if phase.resting else []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("worker", "host", "shard", "for", "parts", "sentences", "/s", "heartbeat"):
        table.add_column(column, justify="left" if column in ("worker", "host") else "right", no_wrap=True)
    for one in phase.workers[:most]:
        style = "red" if one.lost else "yellow" if one.quiet or one.slow else ""
        cells = (
            one.name, one.host, str(int(one.claim)), duration(one.seconds), number(one.parts), number(one.sentences),
            number(one.rate), f"{duration(one.silent)} ago",
        )  # fmt: skip
        table.add_row(*(Text(plain(cell, 60), style) for cell in cells))
    more = [f"{len(phase.workers) - most} more workers"] * (len(phase.workers) > most)
    more += [f"{counted(phase.resting, 'worker')} without a shard"] * bool(phase.resting)
    return [table, *([Text(f"… and {', '.join(more)}", "dim")] if more else [])]


def _troubles(state: RunState) -> list[Text]:
    found: list[Text] = [Text(early, "red")] if (early := _ended_early(state)) else []
    workers = state.phases[-1].workers if state.phases else []
    for one in [one for one in workers if one.lost][:SHOWN]:
        found.append(Text(f"lost: shard {int(one.claim)}, {one.name} is dead or cut off; another one takes it", "red"))
    for one in [one for one in workers if one.quiet and not one.lost][:SHOWN]:
        found.append(Text(f"silent: {one.name} sent no heartbeat for {duration(one.silent)}", "yellow"))
    for one in [one for one in workers if one.slow and not one.quiet][:SHOWN]:
        what = f"straggler: shard {int(one.claim)} of {one.name} takes {one.slow:.1f} times as long as usual"
        found.append(Text(what, "yellow"))
    if state.failures:
        failed = sum(phase.failed for phase in state.phases)
        found.append(Text(f"{failed} failed; last: {plain(state.failures[-1], 500)}", "red"))
    if state.set_aside:
        found.append(_set_aside(state))
    return found


def _set_aside(state: RunState) -> Text:
    return Text(f"set aside: {first_few([plain(name, 250) for name in state.set_aside], SHOWN)}", "red")


def _jobs(state: RunState) -> str:
    if state.no_jobs:
        return f"SLURM does not report on its jobs: {plain(state.no_jobs, 200)}"
    by_job: dict[str, Counter[str]] = {}
    for task, word in state.jobs.items():
        by_job.setdefault(task.partition("_")[0], Counter())[word] += 1
    shown = [
        f"{job} " + ", ".join(f"{count} {word}" if count > 1 else word for word, count in words.items())
        for job, words in by_job.items()
    ]
    return f"SLURM: {first_few(shown, JOBS_SHOWN, '; ')}" if by_job else ""


def _line(state: RunState, pace: Pace) -> str:
    since = f"{duration(state.now - state.started)}:"
    if not state.phases:
        return f"{since} {_before(state)}" + (f" ({jobs})" if (jobs := _jobs(state)) else "")
    phase = state.phases[-1]
    rows = _phase(phase, pace.rate, _next(state))
    quiet = sum(one.quiet for one in phase.workers)
    slow = sum(one.slow is not None for one in phase.workers)
    notes = [f"{quiet} silent"] * bool(quiet) + [f"{slow} slow"] * bool(slow)
    notes += [f"{phase.failed} failed"] * bool(phase.failed)
    notes += filter(None, [_ended_early(state)])
    return f"{since} {phase.kind}: {'; '.join([*(text for _, text in rows), *notes])}"


def _show_end(console: Console, store: Store, state: RunState) -> None:
    """Show how a run ended: what it set aside, what failed, and whether nobody closed it."""
    name = state.name
    if state.summary is None:
        console.print(Text(f"{name} was not closed: {state.lost or 'it was killed'}", "red"), soft_wrap=True)
        console.print("Finished work is kept: run the same command again to go on.")
        return
    if state.done:
        console.print(f"{name} is done", markup=False, highlight=False)
        _show_expectations(console, state.summary)
        return
    stopped = f"was {state.stopped}" if state.stopped else "was stopped"
    how = f"{stopped} before its end; run the same command again to go on"
    console.print(Text(f"{name} {how if state.summary.get('interrupted') else 'failed'}", "red"))
    if state.set_aside:
        console.print(_set_aside(state), soft_wrap=True)
    failures = [one for one in state.failures if one.partition(": ")[0] not in state.set_aside]
    for one in failures[:SHOWN]:
        console.print(Text(f"failed: {plain(one, 1000)}", "red"), soft_wrap=True)
    if len(failures) > SHOWN:
        console.print(f"… and {len(failures) - SHOWN} more failures")
    console.print(Text(f"details: pipeline logs {store.url}", "dim"), soft_wrap=True)
