"""Allows one run at a time on a corpus, and one training per folder: who holds the lock, since when, and how to take
over.

Two runs would not harm each other, since receipts decide, but they would do the work twice and delete each other's
unfinished files. A run of this machine holds its lock by heartbeats and by its process; a run on SLURM by its jobs.
Other commands that hold the lock delete what they found unneeded, so none is taken over while it is alive.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.base.errors import CorpusError, PipelineError, visible
from pipeline.base.formats import first_few, plain
from pipeline.coordination.heartbeat import Heartbeat
from pipeline.coordination.leases import BEATS, Lease, Leases, beats
from pipeline.storage.store import Store

FOLDER = "lock"
NAME = "run"
LOCKED_SECONDS = 120.0  # how long a lock of a command other than run lasts without a heartbeat
CANCEL = "cancel"  # a file in the run's folder
JOBS_SHOWN = 10  # of the jobs that a lease names
PLACE_SHOWN = 300  # characters of where a corpus is
HOLDER_SHOWN = 80  # characters of what a lease says of its holder
COMMANDS = {"gc": "gc --delete", "purge": "purge", "repair": "verify --repair", "retry": "retry"}  # by what a lock says

_log = logging.getLogger(__name__)


def holder_info(**more: Any) -> dict[str, Any]:
    """Describe this process, for leases."""
    return {
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    } | more


def take_lock(
    store: Store,
    seconds: float,
    who: dict[str, Any],
    take_over: bool = False,
    jobs_alive: Callable[[Sequence[str]], bool] = lambda jobs: True,
    training: str = "",
) -> Lease:
    """Take the lock of a corpus, or of a training.

    Args:
        store: the corpus.
        seconds: how long the lock lasts without a heartbeat.
        who: the holder, as `holder_info` describes it.
        take_over: whether to take the lock even if another run holds it; a command of `COMMANDS` keeps it.
        jobs_alive: a function that says whether SLURM has any of these jobs.
        training: the folder of a training, `train/NAME`; empty for the lock of the corpus.

    Returns:
        The lock, which its holder has to renew within `seconds`.

    Raises:
        CorpusError: if another run or command holds the lock, SLURM does not say whether its jobs are over, or a folder
            of the corpus is a link that leaves it.
    """
    store.check_links()
    name = _name(training)
    leases = Leases(store, FOLDER, seconds)
    leases.poll()
    held = leases.held.get(name)
    if held and not held.released:
        holder, silent = leases.holder(name), leases.now - held.beat
        command = command_of(holder)
        beating = beats(silent, max(seconds, LOCKED_SECONDS) if command else seconds)
        try:
            is_alive = (command or not take_over) and is_held(holder, beating, jobs_alive)
        except PipelineError as error:
            raise CorpusError(_not_known(store, holder, str(error))) from error
        if is_alive:
            raise CorpusError(_held_by(store, training, holder, silent))
    lease = leases.take(name, who)
    if not lease:
        return take_lock(
            store, seconds, who, take_over, jobs_alive, training
        )  # another process was faster: find out which
    if held and not held.released and take_over:
        ask_to_stop(store, leases.holder(name).get("run", ""), "taken over")
    leases.forget_older(lease)
    return lease


@contextlib.contextmanager
def locked(
    store: Store, doing: str, jobs_alive: Callable[[Sequence[str]], bool] = lambda jobs: True, training: str = ""
) -> Iterator[Lease]:
    """Hold the lock for a command that is not a run of the corpus.

    Args:
        store: the corpus.
        doing: the command, one of `COMMANDS` or `training`, which others read if they want the lock.
        jobs_alive: a function that says whether SLURM has any of these jobs.
        training: the folder of a training, `train/NAME`; empty for the lock of the corpus.

    Yields:
        The lock, while it is held.

    Raises:
        CorpusError: if another process has the lock, or takes it meanwhile.
    """
    lease = take_lock(store, LOCKED_SECONDS, holder_info(launcher=doing), jobs_alive=jobs_alive, training=training)
    heart = Heartbeat(lambda: None if lease.beat() else "taken over", LOCKED_SECONDS / BEATS)
    try:
        with heart:
            yield lease
    except BaseException as error:  # KeyboardInterrupt, or what a prompt makes of it
        if heart.stopped:
            raise lost(lease) from error
        raise
    finally:
        release(lease)


def last_holder(store: Store) -> int | None:
    """Return the generation of the corpus's lock if its last holder has released it, and −1 if it never had one; None
    while somebody holds it, or if the last holder was killed.
    """
    leases = Leases(store, FOLDER, LOCKED_SECONDS)
    leases.see(store.listing(FOLDER), time.time())
    held = leases.held.get(NAME)
    return -1 if held is None else held.generation if held.released else None


def release(lease: Lease) -> None:
    """Release a lock at the end of a `finally` block.

    If the store cannot be written, an error that is on its way out is the one to report; otherwise that is a warning,
    since what was to be done is done.
    """
    failed = sys.exc_info()[0] is not None
    try:
        lease.release()
    except (PipelineError, OSError) as error:
        if not failed:
            why = error.__cause__ or error  # without advice to repeat what is done
            _log.warning("%s: the lock is not released (%s), and expires by itself", lease.store.url, why)


def check_held(lease: Lease) -> None:
    """Raise `CorpusError` if another process has taken over a lock, as after this one was suspended."""
    if not lease.beat():
        raise lost(lease)


def lost(lease: Lease) -> CorpusError:
    """Return the error of a process whose lock another one has taken over."""
    return CorpusError(
        f"{lease.store.url}: another process has taken over the lock, so this one has stopped and changes nothing "
        "more; when the other is done, run the same command again"
    )


def command_of(holder: dict[str, Any]) -> str:
    """Return the command that holds a lock, such as `pipeline purge`; empty if a run or a training does."""
    command = COMMANDS.get(holder.get("launcher", ""), "")
    return f"pipeline {command}" if command else ""


def training_holder(store: Store, training: str) -> dict[str, Any]:
    """Return who trains in the folder train/NAME, by the clock of this machine; {} if nobody does. This only reads."""
    name = _name(training)
    leases = Leases(store, FOLDER, LOCKED_SECONDS)
    leases.see(store.listing(FOLDER), time.time())
    held = leases.held.get(name)
    holder = leases.holder(name) if held and not held.released else {}
    return holder if holder and is_held(holder, leases.alive(name), lambda jobs: True) else {}


def set_holder(lease: Lease, who: dict[str, Any]) -> None:
    """Update what a lock says of its holder."""
    lease.store.write(lease.path, json.dumps(who, ensure_ascii=False).encode())


def is_held(holder: dict[str, Any], beating: bool, jobs_alive: Callable[[Sequence[str]], bool]) -> bool:
    """Return whether the holder of a lock is alive.

    Args:
        holder: the holder, as `holder_info` describes it.
        beating: whether its heartbeats arrive; decides where neither SLURM nor the process table of this machine knows
            better.
        jobs_alive: a function that says whether SLURM has any of these jobs.

    Returns:
        True if the lock must not be taken.
    """
    if holder.get("jobs"):
        return jobs_alive(holder["jobs"])
    if holder.get("host") == socket.gethostname() and holder.get("born"):
        return bool(_born(int(holder.get("pid", 0))) == holder["born"])
    return beating


def _name(training: str) -> str:
    return training.replace("/", "-", 1) or NAME


def _held_by(store: Store, training: str, holder: dict[str, Any], silent: float) -> str:
    ago = f"{silent:.0f} s ago" if silent >= 0 else f"{-silent:.0f} s ahead of the clock of the store"
    last = "" if holder.get("jobs") else f", last heartbeat {ago}"
    who = f"{described(holder)}{last}"
    wait = f"wait for it (pipeline status {store.url})"
    if training:
        return f"{store.url}/{training} is being trained {who}; {wait}, or give train.name another name"
    if command := command_of(holder):
        return f"{store.url} is being worked on by {command} {who}; {wait}, or stop that process"
    return (
        f"{store.url} is being worked on {who}; {wait}, stop it (pipeline cancel {store.url}), or take over: "
        "pipeline run … --take-over"
    )


def _not_known(store: Store, holder: dict[str, Any], why: str) -> str:
    return (
        f"{store.url} is held {described(holder)}, and SLURM does not say whether its jobs are over: {why}. Try "
        "again where and when it answers; if you know that none of them runs or waits, take over: pipeline run … "
        "--take-over"
    )


def described(holder: dict[str, Any]) -> str:
    """Say since when and by whom something is held, as far as its lease says so."""
    if not ("jobs" in holder or {"user", "host", "pid"} <= holder.keys()):
        lease = holder.get("lease")
        return f"by somebody whose lease {lease} is damaged" if lease else "by somebody whose lease does not name them"
    user, host = (
        plain(holder.get(one, other), HOLDER_SHOWN) for one, other in (("user", "somebody"), ("host", "a cluster"))
    )
    since = f"since {plain(holder['since'], HOLDER_SHOWN)} " if "since" in holder else ""
    where = named_jobs(holder["jobs"]) if holder.get("jobs") else f"process {holder.get('pid')}"
    return f"{since}by {user} on {host} ({where})"


def named_jobs(jobs: Sequence[str]) -> str:
    """Return `SLURM jobs 12, 13`, and only the first ones of many."""
    return f"SLURM job{'s' * (len(jobs) > 1)} {first_few(jobs, JOBS_SHOWN)}"


def not_its_own(store: Store, jobs: Sequence[str], place: str, mark: str) -> str:
    """Say that jobs do not work on a corpus, though one of its files names them; empty if they do.

    A copy of a corpus under way names the jobs of the original, and a corpus from elsewhere may name any.

    Args:
        store: the corpus.
        jobs: the ids of the jobs.
        place: where the corpus was for which they were queued, as the file says; empty if it does not.
        mark: `Store.mark` of that corpus; empty if the file does not say.

    Returns:
        The rest of a message, with what to do.
    """
    if place == store.place or (mark and mark == store.mark):  # nodes may reach it by other paths
        return ""
    there = plain(place, PLACE_SHOWN)
    of = f"queued for {there}, not for this copy of it" if place else "without saying for which corpus"
    todo = f": pipeline cancel {shlex.quote(there)}" if place else ", if they are yours: scancel with their ids"
    return f"it names {named_jobs(jobs)}, {of}, so nothing is cancelled; to end them{todo}"


def ask_to_stop(store: Store, run: str, why: str = "cancelled") -> None:
    """Ask every worker of a run to stop at its next heartbeat.

    Args:
        store: the corpus.
        run: the folder of the run; nothing happens if it is empty.
        why: one phrase, which is recorded with the host, the process and the user who asked.
    """
    if run:
        store.create(f"{run}/{CANCEL}", json.dumps({"why": why} | holder_info(), ensure_ascii=False).encode())


def who_stopped(store: Store, run: str) -> str:
    """Return `cancelled by ada on login1 at 12:34:56 UTC` for a run that was asked to stop; empty if it was not."""
    if not store.exists(f"{run}/{CANCEL}"):
        return ""
    try:
        found = json.loads(store.read(f"{run}/{CANCEL}"))
        when = datetime.fromisoformat(found["since"]).strftime("%H:%M:%S")
        return visible(f"{found['why']} by {found['user']} on {found['host']} at {when} UTC")
    except (ValueError, KeyError, TypeError, RecursionError):  # written by an earlier version, which did not record who
        return "cancelled"


def _born(pid: int) -> str:
    """Return when a process began, in ticks since boot, to recognise another process that got the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "" if not Path("/proc/self/stat").exists() else "gone"
