"""A scheduler job runs between two phases: it closes the previous one, decides what is next from receipts, and queues
it.

It may be restarted at any moment: a phase whose jobs are recorded is not queued again, and one that was queued twice
costs only idle tasks, because shards are claimed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from launchers.slurm import jobs
from launchers.slurm.site import SlurmAwayError, SlurmError
from launchers.slurm.submit import patience_of, pipeline_command, read_options, submit_scheduler
from launchers.slurm.training import submit as submit_training
from launchers.weights import fetch_weights
from pipeline.base.errors import CorpusError, PipelineError
from pipeline.config.run_config import RunConfig
from pipeline.coordination.leases import Lease
from pipeline.coordination.lock import CANCEL
from pipeline.corpus.runs import SUMMARY, RunRecord, newest_config, newest_view
from pipeline.monitor.run_status import ADVICE, OVER
from pipeline.run.expected import raise_if_unexpected
from pipeline.run.finish import finish
from pipeline.run.lineage import tell
from pipeline.run.options import ends_with_training
from pipeline.run.phases import SPEC_FILE, failures_of, last_errors, phase_folder, read_phase, read_results, write_phase
from pipeline.run.run import plan_run
from pipeline.run.steps import Step, next_step
from pipeline.run.tasks import MAX_STARTS
from pipeline.storage.records import read_json
from pipeline.storage.remote import AwayError
from pipeline.storage.store import Store

JOBS = "jobs.json"
RECORDED_WITHIN = 60.0  # seconds after the array of a phase has ended
DEATHS = MAX_STARTS + 1  # phases in a row whose workers may die silently: in the last one, a part is set aside


class _Jobs(BaseModel):
    array: tuple[str, ...]
    gate: tuple[str, ...]


def schedule_phase(console: Console, url: str, run: str, number: int, folder: Path, held: str) -> None:
    """Decide what the next phase of a run is, and queue it.

    Args:
        console: where is shown what was decided.
        url: the corpus; `AwayError` is raised, with the run as it was, if its store does not answer.
        run: the folder of the run.
        number: the number of the phase.
        folder: the folder of scripts and logs.
        held: the file of the run's lock.

    Raises:
        CorpusError: if the run ends here in failure.
    """
    store = Store(url)
    lock = Lease.of(store, held)
    if not store.exists(f"{run}/corpus.yaml"):
        raise CorpusError(f"this node does not see {run} of {url}: the output must be where all nodes see it")
    config = RunConfig.model_validate_json(json.dumps(newest_config(store)))
    record = RunRecord(store, config, newest_view(store), reopened=run)
    here = phase_folder(run, number)
    if store.exists(f"{run}/{SUMMARY}") or _queued(store, here, phase_folder(run, number + 1)):
        return  # this job was restarted after it had done its work
    if number > 1 and not _is_expected(store, phase_folder(run, number - 1)):
        console.print("the job that queued this one was lost before it recorded this: another job goes on")
        return
    try:
        _decide(console, config, record, number, folder, lock)
    except (AwayError, SlurmAwayError):
        raise  # this job is queued again
    except BaseException as error:
        if isinstance(error, PipelineError) and not store.exists(f"{run}/{SUMMARY}"):
            record.close({"done": False, "failures": [str(error)]})
            lock.release()
        tell(console, config, store, run, ended=True)
        raise
    tell(console, config, store, run, ended=True)


def _queued(store: Store, here: str, following: str) -> bool:
    """Return whether this phase is queued: its jobs are recorded, and not lost while the store was away."""
    if not store.exists(f"{here}/{JOBS}"):
        return False
    queued = read_json(store, f"{here}/{JOBS}", _Jobs, "delete it: the phase is then queued again")
    return store.exists(f"{following}/{SPEC_FILE}") or jobs.alive([*queued.array, *queued.gate])


def _is_expected(store: Store, before: str) -> bool:
    """Return whether the phase before has recorded this job as the one that follows it.

    A scheduler job that is lost while it queues jobs queues them again when it is restarted; of the first ones, nobody
    knows. This job may start before it is recorded, so that is waited for.
    """
    answered = None
    while not store.exists(f"{before}/{JOBS}"):  # the store may have been away until now
        answered = answered or time.monotonic()
        if time.monotonic() - answered >= RECORDED_WITHIN:
            return False
        time.sleep(1.0)
    job = os.environ.get("SLURM_JOB_ID")
    return job is None or job in read_json(store, f"{before}/{JOBS}", _Jobs, "delete it").gate


def _decide(console: Console, config: RunConfig, record: RunRecord, number: int, folder: Path, lock: Lease) -> None:
    store, run = record.store, record.folder
    if store.exists(f"{run}/{CANCEL}"):
        record.close({"done": False, "interrupted": True})
        lock.release()
        return
    options = read_options(store, run, config)
    last, refit, failures = _phases_before(store, run, number, set(options.refit))
    chunks = newest_view(store).listed.chunks
    plan, _ = plan_run(config, options, refit, chunks)
    if not refit:
        record.see(plan.view)
    try:
        step = next_step(plan, last)
    except AwayError:
        raise
    except CorpusError as error:
        failures.append(str(error))
        step = Step("finish", plan)
    if step.kind == "finish":
        started = store.modified(f"{run}/corpus.yaml")
        try:
            finish(console, plan, record, failures if plan.launches else [], time.time() - started, lock)
        except AwayError:
            raise  # this job comes back, and ends the run then
        except BaseException:
            lock.release()
            raise
        lock.release()
        if ends_with_training(config, options):
            if options.strict:
                raise_if_unexpected(store)
            submit_training(console, config)
        return
    if number == 1:
        fetch_weights(console, config)
    here = phase_folder(run, number)
    if store.exists(f"{here}/{SPEC_FILE}"):  # this job was stopped before it wrote `JOBS`; workers may have begun
        spec = read_phase(store, here)
    else:
        spec = write_phase(store, here, step.plan, step.kind, refit)
    console.print(f"phase {number}, {spec.kind}: {spec.chunks} chunks in {spec.ranges} shards", highlight=False)
    tasks = min(config.launcher.tasks, spec.ranges)
    array = jobs.submit(
        pipeline_command(config.launcher.container, "worker", store.url, here, *patience_of(config)),
        config.launcher,
        folder,
        f"{spec.kind}-{number}",
        tasks=tasks,
    )
    after: tuple[str, ...] = ()
    try:
        after = submit_scheduler(config, store, run, number + 1, folder, array, lock)
        store.write(f"{here}/{JOBS}", json.dumps({"array": array, "gate": after}).encode())
    except BaseException:
        with contextlib.suppress(SlurmError):  # the first error is the one to report
            jobs.cancel([*after, *array])  # nobody would close the phase, or two would
        raise


def _ends(store: Store, folder: str) -> str:
    """Say in SLURM's words how the tasks of a phase ended, and what to do, if that is known."""
    with contextlib.suppress(PipelineError):
        found = jobs.states(read_json(store, f"{folder}/{JOBS}", _Jobs, "").array).values()
        words = sorted({word.split(" ")[0] for word in found} & set(OVER) - {"COMPLETED"})
        advice = "; ".join(ADVICE[word] for word in words if word in ADVICE)
        return f" (SLURM: {', '.join(words)})" * bool(words) + f"; {advice}" * bool(advice)
    return ""


def _phases_before(store: Store, run: str, number: int, refit: set[str]) -> tuple[str, set[str], list[str]]:
    """Return the work of the last phase (empty if it may be launched again), the fits still to be made, and its
    failures.

    Raises `CorpusError` if a fit or a comparison failed.
    """
    if number == 1:
        return "", refit, []
    folders = [phase_folder(run, one) for one in range(1, number)]
    specs = [read_phase(store, folder) for folder in folders]
    for spec, folder in zip(specs, folders, strict=True):
        if spec.kind == "fit":
            refit = refit - {name for done in read_results(store, folder) for name in done.fitted}
    done = list(read_results(store, folders[-1]))
    failures = failures_of(done)
    lost = specs[-1].ranges - len(done)
    errors = sorted(set(last_errors(store, folders[-1])))
    if lost:
        ends = _ends(store, folders[-1])
        failures += [*errors, f"{lost} of {specs[-1].ranges} shards of phase {number - 1} were not finished{ends}"]
    if lost and errors and specs[-1].is_alone:  # it would fail again
        raise CorpusError("; ".join(errors))
    last = specs[-1].todo
    again = [(spec.kind, spec.todo) for spec in specs[-DEATHS:]] == [(specs[-1].kind, last)] * DEATHS
    died = lost and not errors and not again
    if lost and specs[-1].is_alone and not died:
        raise CorpusError(f"{specs[-1].kind}: its task was lost {DEATHS} times in a row, and said nothing{ends}")
    return "" if specs[-1].is_alone or died else last, refit, failures
