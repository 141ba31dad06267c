"""Commands that follow a run: status and logs."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.options import CorpusPlace, follow_run, open_corpus, out


def status(
    where: CorpusPlace,
    watch: Annotated[
        bool, typer.Option("--watch", help="follow the run under way to its end; its outcome is the exit code")
    ] = False,
) -> None:
    """Show the run under way and the accounting: what is done, dropped, quarantined and left, by the receipts.

    Of a run: its phases; claims and workers, where many work on it; parts,
    sentences a second, time left; stragglers, what failed last, what was set
    aside. After it: what it set aside and what failed. Of training: how far each
    model is, and its SLURM job.

    --watch refreshes in place, or prints a line every few seconds where the
    output is no terminal. Ctrl-C stops watching and nothing else.

    Exit code 1 if the accounting does not balance, the newest run failed, or a training gave up.

    Examples:

      pipeline status runs/sample

      pipeline status s3://mine/corpus --watch
    """
    from launchers.dispatch import slurm_cluster
    from pipeline.console.tables import show_accounting, show_unfinished
    from pipeline.corpus.accounting import compute_accounting
    from pipeline.maintenance.purge import show_unpurged
    from pipeline.monitor.follow import show_run
    from pipeline.monitor.trainings import show_trainings

    corpus = open_corpus(where)
    if watch:
        follow_run(corpus.url, slurm_cluster())
        return
    fine = show_run(out, corpus.store, slurm_cluster())
    accounting = compute_accounting(corpus.store, corpus.chunks)
    show_accounting(out, accounting, f"{corpus.view.name} in {corpus.url}")
    show_unpurged(out, corpus)
    show_unfinished(out, accounting)
    trained = show_trainings(out, corpus.store, slurm_cluster())
    if accounting.problems or not fine or not trained:
        raise typer.Exit(1)


def logs(
    where: CorpusPlace,
    stage: Annotated[str | None, typer.Option(metavar="STAGE", help="what this stage did, e.g. encode")] = None,
    part: Annotated[
        str | None, typer.Option(metavar="PART", help="one part or input file, with its receipts and their warnings")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="WORKER", help="one worker, with the end of its SLURM log, e.g. 123_4")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="what failed, with tracebacks")] = False,
    tail: Annotated[int, typer.Option(min=1, metavar="N", help="the newest N lines")] = 100,
    run_name: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="another run than the newest, by how its name begins")
    ] = None,
    training: Annotated[
        str | None, typer.Option(metavar="NAME", help="instead, a run of training: its losses, and the end of its log")
    ] = None,
) -> None:
    """Show what happened in a run, whoever did it: parts, chunks, failures, and the logs of SLURM jobs.

    Times are UTC. Workers write what happened at each heartbeat; a run that one
    process drives (local, inline, ray) writes it about every 30 seconds.

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
