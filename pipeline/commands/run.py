"""Commands that work on a corpus: run, plan, retry, cancel, and what SLURM jobs call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipeline.base.errors import ConfigError
from pipeline.commands.options import (
    AsJson,
    ConfigPath,
    CorpusPlace,
    Only,
    Overrides,
    Strict,
    Until,
    asker,
    follow_run,
    load,
    load_checked,
    notes,
    open_corpus,
    out,
    submits_ray_job,
    with_options,
    without_pandas,
)
from pipeline.config.stages import FITS


def run(
    config: ConfigPath,
    only: Only = None,
    until: Until = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="auto, inline (this process), local (Ray on this machine), ray (a cluster), slurm"
        ),
    ] = None,
    refit: Annotated[
        list[str] | None,
        typer.Option(
            "--refit",
            metavar="NAME",
            help=f"fit this again on the current pilot: {', '.join(FITS)}; may be repeated",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="for --launcher ray: auto or HOST:6379 joins a cluster, http://HOST:8265 submits a job",
        ),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="if another run holds the corpus, ask it to stop and take its place")
    ] = False,
    accept_removal: Annotated[
        bool,
        typer.Option(
            "--accept-removal",
            help="agree that documents leave the corpus with their inputs, or that `name` is not that of the corpus",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="for --launcher slurm: follow the run to its end")] = False,
    strict: Strict = False,
    overrides: Overrides = None,
) -> None:
    """Bring a corpus up to date: segment, encode, fit, score whatever is missing or stale.

    A run first says what enters and what leaves the corpus. If documents leave,
    because an input, a file or a limit did, or if `name` is not the name of the
    corpus, it asks. Without a terminal it ends with exit code 2, unless
    --accept-removal is given.

    A run can be stopped and started again at any moment. It ends with the
    accounting: documents in = kept + dropped + quarantined.

    The scaler, the predictor, the codebooks and the decoder are fitted on the pilot
    (the first chunks that hold fit.rows sentences) and then frozen: documents that
    are added later do not change what is already there.

    What report.expect says of the corpus is checked at the end and shown. With
    --strict, a training does not begin if something does not hold, and the exit
    code is 1 (with --launcher slurm: if --wait is given as well).

    Examples:

      pipeline run corpus.yaml

      pipeline run corpus.yaml --until encode --set input.0.limit=1000

      pipeline run corpus.yaml --refit scaler --refit rvq
    """
    from launchers.dispatch import backend_of, slurm_cluster
    from pipeline.run.expected import raise_if_unexpected
    from pipeline.run.options import RunOptions
    from pipeline.run.run import run as run_corpus
    from pipeline.storage.store import Store

    settings = with_options(overrides, {"launcher.address": address, "launcher.kind": launcher})
    options = RunOptions(only, until, refit or (), take_over, accept_removal, asker(), strict)
    if submits_ray_job(config, settings):
        from launchers.ray_job import run_as_job, run_command

        raise typer.Exit(run_as_job(out, load(config, settings), run_command(options)))
    checked = load_checked(config, settings)
    resolved, options = checked.config, replace(options, chunks=checked.chunks)
    submitted = run_corpus(out, resolved, options, backend_of(resolved, options))
    if submitted and wait:
        follow_run(resolved.output, slurm_cluster(), submitted)
        if strict:
            raise_if_unexpected(Store(resolved.output))


def plan(
    config: ConfigPath,
    only: Only = None,
    until: Until = None,
    simulated: Annotated[
        bool, typer.Option("--simulate", help="instead, calculate the work, storage and time at another size")
    ] = False,
    documents: Annotated[
        float | None,
        typer.Option(metavar="N", help="with --simulate: number of documents (default: 4e9, as in the LCM paper)"),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N,…", help="with --simulate: numbers of GPUs to give times for")
    ] = None,
    calibrating: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="first measure in a few seconds how fast this machine is; later plans use that too"
        ),
    ] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Show what `run` would do and why, how much is left, and how long it takes at the measured rates.

    Rates are those measured in this corpus, or else on this machine (by earlier
    runs of any corpus, or by --calibrate), or else what the sizes of the models
    imply, or a rough assumption, which may be far off. The plan says which.

    --simulate starts no work and needs no finished corpus. It calculates work,
    files, storage, time and requests at another size, from the rates and bytes
    measured in this corpus, or else from the schema and the LCM paper. What
    nobody has measured is left out, not guessed.

    Examples:

      pipeline plan corpus.yaml --set encode.model=sonar

      pipeline plan corpus.yaml --calibrate

      pipeline plan corpus.yaml --simulate --documents 4e9 --gpus 8,64,1000
    """
    from pipeline.monitor.further import further_work, show_further
    from pipeline.planning.plan import make_plan
    from pipeline.planning.removal import show_change, view_change
    from pipeline.planning.tables import show_plan
    from pipeline.run.options import RunOptions
    from pipeline.storage.store import Store

    for option, value in (("--documents", documents), ("--gpus", gpus)):
        if value is not None and not simulated:
            raise ConfigError(f"{option} {value} belongs to --simulate; give that as well")
    if simulated:
        from pipeline.planning.simulation import simulate
        from pipeline.planning.simulation_tables import gpus_of, show_simulation

        chosen = gpus_of(gpus)
    without_pandas()
    checked = load_checked(config, overrides)
    if calibrating:
        from launchers.devices import devices
        from pipeline.console.activity import announced
        from pipeline.run.calibrate import calibrate

        with announced(notes, "measuring how fast this machine is"):
            calibrate(checked.config, checked.chunks, devices()[0], lambda text: notes.print(text, highlight=False))
    made = make_plan(checked.config, only, until, chunks=checked.chunks)
    if as_json:
        from pipeline.commands import as_json as shapes

        if simulated:
            raise ConfigError("--json is for the plan; leave out --simulate")
        moved = view_change(Store(made.config.output), made.view)
        shapes.print_json(
            "plan", shapes.plan(made, moved, further_work(made, RunOptions(only, until)), checked.notices)
        )
    elif simulated:
        show_simulation(out, simulate(made, documents), chosen)
    else:
        show_plan(out, made)
        change = view_change(Store(made.config.output), made.view)
        show_change(out, change)
        if change and change.needs_consent:
            out.print("A run asks first; --accept-removal agrees in advance.", highlight=False)
        show_further(out, made, further_work(made, RunOptions(only, until)))


def retry(
    config: ConfigPath,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="segment every chunk with quarantined records again")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON", help="only chunks with records quarantined for this reason (implies --quarantined)"
        ),
    ] = None,
    launcher: Annotated[str | None, typer.Option(metavar="KIND", help="auto, inline, local, ray or slurm")] = None,
    overrides: Overrides = None,
) -> None:
    """Try quarantined records again, after you have removed the cause: a library, a limit, a file.

    Their chunks are segmented again, and the corpus is brought up to date as
    `pipeline run` does it; parts that come out the same keep their embeddings and
    scores. The command shows the quarantine before and after, by reason. Parts
    that an earlier run set aside are tried again too, as in every run.

    If only the input files have changed, `pipeline run` is enough: it notices.

    Examples:

      pipeline retry corpus.yaml --quarantined

      pipeline retry corpus.yaml --reason "segmentation failed"
    """
    from launchers.dispatch import backend_of
    from pipeline.run.options import RunOptions
    from pipeline.run.retry import retry as retry_chunks

    if not quarantined and reason is None:
        raise ConfigError(
            "say what to retry: --quarantined, or --reason REASON; pipeline run itself tries again what an earlier run "
            "set aside or failed at"
        )
    resolved, options = load(config, with_options(overrides, {"launcher.kind": launcher})), RunOptions()
    retry_chunks(out, resolved, reason, options, backend_of(resolved, options))


def cancel(
    where: CorpusPlace,
) -> None:
    """Stop the run under way, wherever it works, and free the corpus; `pipeline run` goes on from there.

    The workers stop at their next heartbeat and release what they hold. SLURM
    jobs of the run and of its trainings are cancelled. A process on another
    machine is asked to stop: the command waits until it has stopped, or has sent
    no heartbeat for launcher.lease_seconds. Exit code 1 if it still runs then.
    Another command that holds the corpus (gc, purge, verify --repair, retry) is
    only named.

    Example: pipeline cancel runs/sample
    """
    from launchers.dispatch import slurm_cluster
    from pipeline.monitor.cancel import cancel as cancel_run
    from pipeline.monitor.trainings import cancel_trainings

    corpus = open_corpus(where)
    free = cancel_run(out, corpus.store, slurm_cluster())
    if not (cancel_trainings(out, corpus.store, slurm_cluster()) and free):
        raise typer.Exit(1)


def gate(
    corpus: str,
    run: str,
    number: int,
    folder: Annotated[Path, typer.Option()],
    lock: Annotated[str, typer.Option()],
    patience: Annotated[float | None, typer.Option()] = None,
) -> None:
    """Decide what phase NUMBER of a run on SLURM is, and queue it. Jobs call this."""
    from launchers.slurm.jobs import keep_to_given_cpus
    from launchers.slurm.outage import queued_again_when_away
    from launchers.slurm.scheduler import schedule_phase as pass_gate

    without_pandas()
    keep_to_given_cpus()
    with queued_again_when_away(out, patience):
        pass_gate(out, corpus, run, number, folder, lock)


def worker(corpus: str, phase: str, patience: Annotated[float | None, typer.Option()] = None) -> None:
    """Work on a phase of a run until nothing is left to claim. Jobs call this; more may be started by hand."""
    from launchers.slurm.jobs import keep_to_given_cpus
    from launchers.slurm.outage import queued_again_when_away
    from launchers.slurm.task import Task

    without_pandas()
    keep_to_given_cpus()
    with queued_again_when_away(out, patience):
        Task(out, corpus, phase).work()


def training(
    corpus: str,
    run: str,
    patience: Annotated[float | None, typer.Option()] = None,
    container: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Train RUN on the nodes of the SLURM job that this process is the first of. Jobs call this."""
    from launchers.slurm.outage import queued_again_when_away
    from launchers.slurm.training import train_in_job

    with queued_again_when_away(out, patience):
        train_in_job(out, corpus, run, container)
