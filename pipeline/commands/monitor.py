"""Commands that follow a run: status and logs."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.base.errors import ConfigError
from pipeline.commands.options import AsJson, CorpusPlace, follow_run, open_corpus, out


def status(
    where: CorpusPlace,
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="follow the run under way to its end; the exit code is its outcome")
    ] = False,
) -> None:
    """Show the run under way and the accounting: what is done, dropped, quarantined and left to do.

    While a run is under way: its phases; shards and workers, where several work on
    it; parts, sentences per second and time left; stragglers, recent failures, and
    what was set aside. Afterwards: what failed or was set aside. For training: how
    far each model is, and its SLURM job. For exports: which are older than the
    corpus, or hold documents that were purged since.

    --watch refreshes in place, or prints a line every few seconds if the output
    is not a terminal. Ctrl-C only stops the watching.

    Exit code 1 if the accounting does not balance, the newest run failed, or a training gave up.

    Examples:

      pipeline status runs/sample

      pipeline status s3://mine/corpus --watch
    """
    from launchers.dispatch import slurm_cluster
    from pipeline.console.tables import show_accounting, show_unfinished
    from pipeline.corpus.accounting import compute_accounting
    from pipeline.maintenance.purge import show_unpurged
    from pipeline.monitor.exports import show_exports
    from pipeline.monitor.follow import show_run
    from pipeline.monitor.trainings import show_trainings

    corpus = open_corpus(where)
    if as_json:
        from pipeline.commands import as_json as shapes

        if watch:
            raise ConfigError("--json prints the state once; leave out --watch")
        found, fine = shapes.status(corpus, slurm_cluster())
        shapes.print_json("status", found)
        raise typer.Exit(0 if fine else 1)
    if watch:
        follow_run(corpus.url, slurm_cluster())
        return
    fine = show_run(out, corpus.store, slurm_cluster())
    accounting = compute_accounting(corpus.store, corpus.chunks)
    show_accounting(out, accounting, f"{corpus.view.name} in {corpus.url}")
    show_unpurged(out, corpus)
    show_unfinished(out, accounting)
    trained = show_trainings(out, corpus.store, slurm_cluster())
    exported = show_exports(out, corpus)
    if accounting.problems or not fine or not trained or not exported:
        raise typer.Exit(1)


def logs(
    where: CorpusPlace,
    stage: Annotated[str | None, typer.Option(metavar="STAGE", help="only what this stage did, e.g. encode")] = None,
    part: Annotated[
        str | None, typer.Option(metavar="PART", help="only this part or input file, with its receipts and warnings")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="WORKER", help="only this worker, with the end of its SLURM log, e.g. 123_4")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="only failures, with tracebacks")] = False,
    tail: Annotated[
        int, typer.Option(min=1, metavar="N", help="number of lines to show, counted from the newest")
    ] = 100,
    run_name: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="a run other than the newest: its name or the beginning of it"),
    ] = None,
    training: Annotated[
        str | None, typer.Option(metavar="NAME", help="instead, show a training: its losses, and the end of its log")
    ] = None,
) -> None:
    """Show what happened in a run on all its workers: parts, chunks, failures, and the logs of SLURM jobs.

    Times are UTC. SLURM workers write their events at each heartbeat; a run that
    one process drives (local, inline, ray) writes them about every 30 seconds.

    Examples:

      pipeline logs runs/sample --failed

      pipeline logs runs/sample --stage encode --part 3815eaca644c-00002

      pipeline logs runs/sample --worker 123_4 --tail 30

      pipeline logs runs/sample --training lcm-two-tower-tiny
    """
    from launchers.dispatch import slurm_cluster
    from pipeline.monitor.logs import Wanted, show_logs
    from pipeline.monitor.trainings import show_training

    store, wanted = open_corpus(where).store, Wanted(stage, part, worker, failed, tail, run_name)
    if training is None:
        show_logs(out, store, slurm_cluster(), wanted)
    else:
        show_training(out, store, slurm_cluster(), training, tail)
