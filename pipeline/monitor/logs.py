"""Implements `pipeline logs`: what happened in a run, whoever did it, and the logs of its jobs, in one place.

Events are in one file per shard (or one per half minute, for a run that one process drives); the newest files are read
first, and only as many as it takes to fill the screen, unless a filter has to check all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import ConfigError, CorpusError, visible
from pipeline.base.formats import counted, duration
from pipeline.base.parallel import in_parallel
from pipeline.config.stages import STAGES
from pipeline.coordination.leases import BEATS
from pipeline.corpus.events import read_events
from pipeline.corpus.receipts import read_chunk_receipt, read_receipt
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.runs import EVENT_SECONDS, read_summary
from pipeline.monitor.run_status import Cluster, last_lines, launcher_of
from pipeline.run.phases import read_worker
from pipeline.storage import layout
from pipeline.storage.store import Store

PART = re.compile(r"(?P<chunk>[0-9a-f]{12})-[0-9]{5}")
BATCH = 64  # files read at a time
Event = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """The options of the command. `run`: its name; `tail`: how many of the newest lines."""

    stage: str | None = None
    part: str | None = None
    worker: str | None = None
    failed: bool = False
    tail: int = 100
    run: str | None = None


def show_logs(console: Console, store: Store, cluster: Cluster, wanted: Wanted) -> None:
    """Show the log of a run, a part or a worker.

    Args:
        console: where it is shown.
        store: the corpus.
        cluster: knows the folder of the jobs' logs.
        wanted: which run, part, stage and worker, and how many lines.

    Raises:
        ConfigError: for an unknown stage; `CorpusError` for a run, part or worker without a trace.
    """
    if wanted.stage and wanted.stage not in STAGES:
        raise ConfigError(f"--stage {wanted.stage}: there is no such stage; stages are: {', '.join(STAGES)}")
    run = _run(store, wanted.run)
    console.print(Text(f"run {run.removeprefix('runs/')}", "bold"))
    found, more = _newest(store, run, _filter(store, wanted), wanted.tail)
    if more:
        console.print(Text("… earlier ones: --tail N shows more", "dim"))
    for event in found:
        _show(console, event, detail=wanted.failed or wanted.part is not None)
    traces = len(found)
    if not (wanted.part or wanted.stage or wanted.worker):
        traces += _show_end(console, store, run, {event.get("error", "") for event in found} - {""})
    if wanted.part:
        traces += _show_receipts(console, store, wanted.part, wanted.stage)
    launcher = launcher_of(store, run)
    folder = cluster.folder(launcher.folder, store.url, run) if launcher.kind == "slurm" else None
    if wanted.worker:
        traces += _show_worker(console, store, run, wanted, folder, cluster)
    elif folder:
        console.print(Text(f"logs of jobs: {folder}; --worker shows one", "dim"), soft_wrap=True)
    if not traces:
        _nothing(console, store, run, wanted)


def _run(store: Store, name: str | None) -> str:
    names = store.folders(layout.RUNS)
    if not names:
        raise CorpusError(f"{store.url} has no run yet; start one with: pipeline run corpus.yaml")
    fits = [one for one in names if one.startswith(name.removeprefix("runs/"))] if name else names[-1:]
    if len(fits) != 1:
        raise CorpusError(f"--run {name}: {'no' if not fits else 'more than one'} run; the newest: {_some(names[-5:])}")
    return f"{layout.RUNS}/{fits[0]}"


def _filter(store: Store, wanted: Wanted) -> Callable[[Event], bool]:
    sources = _sources(store, wanted.part) if wanted.part else set()
    workers = {wanted.worker, f"slurm-{wanted.worker}"}

    def wants(event: Event) -> bool:
        if wanted.failed and event["kind"] != "failed":
            return False
        if (
            wanted.part
            and event["where"] != wanted.part
            and not (event["where"] in sources and event["kind"] != "segmented")
        ):
            return False
        if wanted.worker and event.get("worker") not in workers:
            return False
        return not wanted.stage or _is_of(event, wanted.stage)

    return wants


def _is_of(event: Event, stage: str) -> bool:
    """Return whether a stage was involved; a failure of a part may be of any stage except the first."""
    if event["kind"] == "part":
        return stage in event.get("computed", ())
    if event["kind"] == "failed" and PART.fullmatch(event["where"]):
        return stage != SEGMENT
    return stage == SEGMENT


def _sources(store: Store, part: str) -> set[str]:
    """Return the input files of a part, under which its chunk is in the log."""
    found = PART.fullmatch(part)
    paths = store.find("chunks", f"{part[:2]}/{found['chunk']}.") if found else []
    return {read_chunk_receipt(store, path).source for path in paths}


def _newest(store: Store, run: str, wants: Callable[[Event], bool], most: int) -> tuple[list[Event], bool]:
    """Return the newest events that are wanted, in order, and whether there may be more."""
    times = {path: when for path, when in store.listing(run).items() if path.endswith(".jsonl")}
    paths = sorted(times, key=lambda path: -times[path])
    found: list[Event] = []
    read = 0
    while read < len(paths) and len(found) <= most:
        for events in in_parallel(lambda path: read_events(store, path), paths[read : read + BATCH]):
            found += [event for event in events if wants(event)]
        read += BATCH
    found.sort(key=lambda event: event.get("time", ""))
    return found[len(found) - min(most, len(found)) :], len(found) > most


def _show(console: Console, event: Event, detail: bool) -> None:
    kind = event["kind"]
    when = event.get("time", "")[:19].replace("T", " ")
    line = Text(visible(f"{when} {event.get('worker', '')} "), "dim")
    line.append(f"{kind:<9} ", "bold red" if kind == "failed" else "default not dim")
    line.append(visible(f"{event['where']}  {_what(event)}"), "default not dim")
    console.print(line, soft_wrap=True)
    if detail:
        for one in event.get("detail", "").splitlines():
            console.print(Text(f"    {visible(one)}", "dim"), soft_wrap=True)


def _show_end(console: Console, store: Store, run: str, told: set[str]) -> int:
    """Show how a run ended if not well, except for failures that are shown already. Returns the number of lines."""
    summary = read_summary(store, run)
    said = [why for why in (summary.failures if summary else ()) if not any(one in why for one in told)]
    said += ["interrupted; finished work was kept"] if summary and summary.interrupted else []
    for why in said:
        console.print(Text(f"the run ended: {visible(why)}", "red"), soft_wrap=True)
    return len(said)


def _what(event: Event) -> str:
    sentences = counted(event.get("rows", 0), "sentence")
    if event["kind"] == "failed":
        return str(event.get("error", ""))
    if event["kind"] == "chunk":
        return f"{counted(event.get('documents', 0), 'document')}, {sentences}"
    if event["kind"] == "part":
        return f"{sentences}: {', '.join(event.get('computed', ())) or 'was up to date'}"
    return sentences


def _show_receipts(console: Console, store: Store, part: str, stage: str | None) -> int:
    """Show the receipts of a part, with their warnings. Returns the number of receipts."""
    shown = 0
    for name in [stage] if stage else store.folders("receipts"):
        for path in store.find(f"receipts/{name}", f"{part[:2]}/{part}."):
            receipt = read_receipt(store, path)
            took = duration(sum(seconds for key, seconds in receipt.seconds.items() if key != "wait"))
            line = f"receipt {name}: {counted(receipt.rows, 'sentence')}, {took} on {receipt.device}"
            console.print(Text(visible(line)), soft_wrap=True)
            for warning in receipt.warnings:
                console.print(Text(f"    warning: {visible(warning)}", "yellow"), soft_wrap=True)
            shown += 1
    return shown


def _show_worker(
    console: Console, store: Store, run: str, wanted: Wanted, folder: Path | None, cluster: Cluster
) -> int:
    """Show what a worker last reported, and the end of its logs. Returns how many traces it has left."""
    shown = 0
    worker = wanted.worker or ""
    for path in _workers(store, run):
        if path.rpartition("/")[2] in (f"{worker}.json", f"slurm-{worker}.json"):
            said = read_worker(store, path)
            error = f"; last error: {said.last_error}" if said.last_error else ""
            beat = said.beat.isoformat(timespec="seconds")
            line = f"{said.worker} on {said.host}, process {said.pid}, last heartbeat {beat}{error}"
            console.print(Text(visible(line)), soft_wrap=True)
            shown += 1
    for log in cluster.logs(folder, worker) if folder else []:
        console.print(Text(f"{log}:", "bold"), soft_wrap=True)
        for one in last_lines(log, wanted.tail):
            console.print(Text(f"  {visible(one)}"), soft_wrap=True)
        shown += 1
    return shown


def _workers(store: Store, run: str) -> Iterator[str]:
    return (path for path in store.find(run, "phase-") if "/workers/" in path)


def _nothing(console: Console, store: Store, run: str, wanted: Wanted) -> None:
    """Say that there is nothing; raises `CorpusError` if what was asked for is unknown."""
    if wanted.worker:
        names = [path.rpartition("/")[2].removesuffix(".json") for path in _workers(store, run)]
        raise CorpusError(f"--worker {wanted.worker}: nothing is known of it in this run; it had: {_some(names)}")
    if wanted.part:
        raise CorpusError(
            f"--part {wanted.part}: nothing is known of it; a part is named as in the corpus, <chunk>-00000"
        )
    if wanted.failed:
        console.print("nothing failed")
    elif wanted.stage:
        console.print(f"{wanted.stage} did nothing in this run")
    else:
        console.print(f"no event is written yet; {_when_written(store, run)}", markup=False, highlight=False)


def _when_written(store: Store, run: str) -> str:
    """Say when events of a run are written, and who works on it."""
    launcher = launcher_of(store, run)
    if launcher.kind != "slurm":
        return f"a run that one process drives writes them about every {duration(EVENT_SECONDS)}"
    when = f"workers write theirs at every heartbeat, {duration(launcher.lease_seconds / BEATS)} apart"
    names = [path.rpartition("/")[2].removesuffix(".json") for path in _workers(store, run)]
    return f"{when}; {f'{len(names)} began: {_some(names)}' if names else 'none has begun'}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") if names else "none"
