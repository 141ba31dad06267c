"""Implements `pipeline cancel`: asks everyone who works on a corpus to stop, waits for that, and frees the corpus.

Workers notice at their next heartbeat, wherever they are: a file in the run's folder tells them, so nothing has to
reach them. Jobs of a cluster are cancelled as well; first the one that decides what comes next, so that it queues
nothing more.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import PipelineError
from pipeline.base.formats import duration, plain
from pipeline.base.messages import print_plain
from pipeline.coordination.leases import Lease, Leases
from pipeline.coordination.lock import FOLDER, HOLDER_SHOWN, NAME, ask_to_stop, named_jobs, not_its_own
from pipeline.corpus.runs import close_run
from pipeline.monitor.run_status import Cluster, RunState, RunWatcher
from pipeline.storage.store import Store

GRACE_SECONDS = 30.0  # seconds beyond a lease for Ray or SLURM to end their processes


def cancel(console: Console, store: Store, cluster: Cluster) -> bool:
    """Stop the run under way, and wait until the corpus is free.

    Args:
        console: where is shown what happens.
        store: the corpus.
        cluster: answers whether SLURM or Ray still has the run's jobs, and cancels them.

    Returns:
        False if the corpus is not free yet, although every process was asked to stop, or if a command that is not a
            run holds it, or jobs that work on another corpus.
    """
    watcher = RunWatcher(store, cluster, phases=False)  # a damaged file of a phase keeps nobody from stopping
    state = watcher.poll()
    if not state or not state.holder:
        console.print(f"Nothing to cancel: no run is under way in {store.url}.", markup=False, highlight=False)
        return True
    jobs = [] if state.lost else state.holder.get("jobs", [])
    if jobs and (told := not_its_own(store, jobs, state.holder.get("place", ""), state.holder.get("mark", ""))):
        again = "to work on this corpus: pipeline run corpus.yaml --take-over"
        console.print(Text(f"{state.name}: {told}; {again}", "yellow"), soft_wrap=True)
        return False
    alone = state.lost and not state.holder.get("jobs")
    if alone:
        console.print(Text(f"{state.name}: {state.lost}"), soft_wrap=True)
    elif state.command:
        told = f"{state.name}: {_process(state)} holds the corpus, and only runs can be cancelled"
        console.print(Text(f"{told}; wait for it, press Ctrl-C there, or send it SIGTERM", "yellow"), soft_wrap=True)
        return False
    else:
        print_plain(console, f"{state.name}: asking {_who(state)} to stop")
    seen = _stop(console, store, cluster, watcher, state)
    if not seen.over:
        console.print(
            Text(
                f"{seen.name} has been asked, but {_who(seen)} still holds the corpus; it stops at its next "
                f"heartbeat. See: pipeline status {store.url} --watch",
                "yellow",
            ),
            soft_wrap=True,
        )
        return False
    _free(store, seen)
    if seen.done:
        console.print("The run had ended before it noticed the request.")
    elif state.command:
        console.print("The corpus is free: run the same command again to finish it.")
    else:
        console.print("Cancelled. Finished work is kept: pipeline run goes on from there.")
    return True


def _stop(console: Console, store: Store, cluster: Cluster, watcher: RunWatcher, state: RunState) -> RunState:
    """Ask until nobody holds the corpus, or the time is over. Returns the last state."""
    deadline = time.monotonic() + state.lease_seconds + GRACE_SECONDS
    cancelled: list[str] = []
    while True:
        if state.run:  # a run that is still being planned notices once it has begun
            ask_to_stop(store, state.run)
        jobs = state.holder.get("jobs", [])
        if jobs and jobs != cancelled and not state.over:
            cancelled = jobs
            try:
                cluster.cancel(jobs[-1:])
                cluster.cancel(jobs[:-1])
            except PipelineError as error:
                console.print(Text(f"cannot cancel its jobs from here: {error}", "yellow"), soft_wrap=True)
        if state.over or time.monotonic() >= deadline:
            return state
        time.sleep(1.0)
        now = watcher.poll()
        if not now or (now.run != state.run and state.run):  # the run ended, and another one has begun
            state.holder = {}
            return state
        state = now


def _free(store: Store, state: RunState) -> None:
    """Close the run and its lock, if it has not done so itself."""
    if state.run and state.summary is None:
        close_run(store, state.run, {"done": False, "interrupted": True})
    leases = Leases(store, FOLDER, 0.0)
    leases.see(store.listing(FOLDER), 0.0)
    held = leases.held.get(NAME)
    if held and not held.released and leases.holder(NAME).get("run", "") == state.run:
        Lease(store, FOLDER, NAME, held.generation).release()


def _who(state: RunState) -> str:
    holder = state.holder
    if holder.get("jobs"):
        return f"{named_jobs(holder['jobs'])} and their workers"
    return f"{_process(state)} (it notices within {duration(state.lease_seconds)})"


def _process(state: RunState) -> str:
    holder = state.holder
    user, host = (plain(str(holder.get(one)), HOLDER_SHOWN) for one in ("user", "host"))
    return f"process {holder.get('pid')} of {user} on {host}"
