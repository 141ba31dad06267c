"""Commands that keep a corpus in order: verify, gc, purge, quarantine."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.base.errors import ConfigError
from pipeline.commands.options import AsJson, CorpusPlace, load, open_corpus, out, share_of


def verify(
    where: CorpusPlace,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="make damaged records again, and have the next run make damaged files again"),
    ] = False,
    compare: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="instead, say whether that corpus equals this one")
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="read only a random share of the chunks, for instance 0.01"),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="read only the I-th of N shares of the chunks, so that N processes read all"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every file of a corpus again and compare it with its receipt: bytes, rows, schema, contents, finite values.

    Every record that a command reads is checked too: settings and views of runs,
    receipts, ledgers, fits, indexes and trainings. --repair makes damaged records
    again where other files say what was in them; other damaged files lose their
    receipts, and the next run or training makes them again. Files that cannot be
    restored are named. --repair is refused while a run is under way.

    --compare reads receipts, and embeddings only where the receipts differ. Two
    corpora are equal if documents, texts, order and bytes are; where GPUs
    computed, vectors may differ by a cosine of 1e-5.

    --sample reads the files, receipts and ledger rows of some chunks, other ones
    each time, and no other record. If a hundredth of all chunks is damaged, 300
    chunks find that 19 times in 20.

    --share reads the files, receipts and ledger rows of an N-th of the chunks; share 1
    also checks what belongs to no chunk. All shares read what the newest run needs,
    and no receipts of older runs.

    Exit code 1 if anything is wrong.

    Examples:

      pipeline verify runs/sample --repair

      pipeline verify s3://mine/large --sample 0.01

      pipeline verify s3://mine/large --share 3/100

      pipeline verify runs/sample --compare s3://mine/sample
    """
    from rich.console import Console

    from launchers.dispatch import jobs_alive
    from pipeline.commands import as_json as shapes
    from pipeline.coordination.lock import locked
    from pipeline.maintenance.records import check_is_corpus
    from pipeline.maintenance.verify_command import (
        compare_corpora,
        compare_with,
        verify_corpus,
        verify_sample,
        verify_share,
    )
    from pipeline.storage.store import Store

    if sample is not None and not 0 < sample <= 1:
        raise ConfigError(f"--sample {sample}: give a share of the chunks above 0 and up to 1, for instance 0.01")
    if (sample is not None or share is not None) and (repair or compare):
        option = "--sample" if share is None else "--share"
        raise ConfigError(f"{option} only reads: leave out --repair and --compare, which read everything")
    if sample is not None and share is not None:
        raise ConfigError("--sample and --share exclude each other; give one of them")
    one_share = share_of(share)
    if compare:
        one, other = open_corpus(where), open_corpus(compare)
        if as_json:
            result = compare_corpora(one, other)
            shapes.print_json("verify", shapes.comparison(one, other, result))
            fine = not result.wrong
        else:
            fine = compare_with(out, one, other)
    else:
        config = load(Path(where)) if where.endswith((".yaml", ".yml")) else None
        store = Store(config.output if config else where)
        check_is_corpus(store)
        quiet = Console(quiet=True) if as_json else out
        with locked(store, "repair", jobs_alive) if repair else contextlib.nullcontext():
            if sample:
                wrong = verify_sample(quiet, store, sample)
            elif one_share:
                wrong = verify_share(quiet, store, one_share)
            else:
                wrong = verify_corpus(quiet, store, repair, config)
        if as_json:
            shapes.print_json("verify", shapes.verify(store, wrong, repair))
        fine = not wrong
    if not fine:
        raise typer.Exit(1)


def gc(
    where: CorpusPlace,
    delete: Annotated[bool, typer.Option("--delete", help="delete them, instead of only counting them")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="delete without asking, as scripts must")] = False,
    older_views: Annotated[
        bool,
        typer.Option(
            "--older-views", help="also delete what exports and runs of the last 30 days with other settings need"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count or delete files that the newest run does not need: how many, how many bytes, and why.

    A corpus keeps results of older settings, so that going back to them costs
    nothing, and a killed fit may leave its file: these can be deleted. Files that a
    model was trained on stay. So do files that an export was made from, that an
    interrupted fine-tuning of a decoder resumes from, or that another run of the
    last 30 days needs, such as the whole corpus after a trial with fewer documents;
    --older-views deletes these as well. --delete asks first; without a terminal,
    give --yes. Refused while a run is under way.

    Examples:

      pipeline gc runs/sample

      pipeline gc runs/sample --delete --yes
    """
    from rich.console import Console

    from launchers.dispatch import jobs_alive
    from pipeline.coordination.lock import locked
    from pipeline.corpus.reader import Corpus
    from pipeline.maintenance.gc import delete_garbage, find_garbage, show_garbage

    corpus = open_corpus(where)
    if delete and not yes and not sys.stdin.isatty():
        raise ConfigError("--delete asks before it deletes, and there is no terminal to answer on: give --yes as well")
    with locked(corpus.store, "gc", jobs_alive) if delete else contextlib.nullcontext() as lease:
        corpus = Corpus(corpus.url)  # as it is now that no run changes it
        found = find_garbage(corpus, older_views)
        if as_json:
            from pipeline.commands import as_json as shapes

            if delete and not yes:
                raise ConfigError("--json asks nothing: give --yes with --delete, or leave out --delete")
            if lease:
                delete_garbage(Console(quiet=True), corpus, found, lease)
            shapes.print_json("gc", shapes.gc(corpus, found, delete))
            return
        show_garbage(out, found)
        if not found.why:
            return
        if not lease:
            out.print(f"pipeline gc {'--older-views ' if older_views else ''}--delete deletes them")
        elif yes or typer.confirm("Delete them?"):
            delete_garbage(out, corpus, found, lease)


def purge(
    where: CorpusPlace,
    ids: Annotated[
        str, typer.Option(metavar="FILE", help="doc_ids, one per line, or Parquet with a column doc_id; a path or URL")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count what would be removed")] = False,
    in_advance: Annotated[
        bool, typer.Option("--in-advance", help="also if no document has any of these ids yet")
    ] = False,
) -> None:
    """Remove documents permanently, by their doc_id.

    No reader shows the documents from now on: inspect, select, export, report and
    fits leave them out. The next `pipeline run` rewrites the parts that held them
    and deletes every older file with their text, also results of older settings
    and the quarantine of those chunks; the accounting counts them as dropped:
    purged. Documents that arrive later under such an id are left out too.

    Input files, exports, copies, older versions that a bucket may keep, and
    models that were trained on those documents are not touched; models and
    exports that the corpus knows are named, to be made again. Ids that no
    document has are named; if none has any of them, nothing is done unless
    --in-advance is given. To list ids, use
    pipeline inspect --columns doc_id,text --to FILE.

    Examples:

      pipeline purge runs/sample --ids ids.txt --dry-run

      pipeline purge s3://mine/corpus --ids s3://mine/to-purge.parquet
    """
    from launchers.dispatch import jobs_alive
    from pipeline.maintenance.purge import purge as purge_documents

    purge_documents(out, open_corpus(where), ids, dry_run, jobs_alive, in_advance)


def quarantine(
    where: CorpusPlace,
    reason: Annotated[
        str | None, typer.Option(metavar="REASON", help="only records quarantined for this reason")
    ] = None,
    most: Annotated[int, typer.Option(min=1, metavar="N", help="records to show for each reason")] = 3,
    as_json: AsJson = False,
) -> None:
    """Show the records that could not be used: where they are, why, and how they begin.

    Example: pipeline quarantine runs/sample --reason "not UTF-8" --most 20
    """
    from pipeline.maintenance.quarantine import show_quarantine

    if as_json:
        from pipeline.commands import as_json as shapes

        shapes.print_json("quarantine", shapes.quarantine(open_corpus(where), reason, most))
        return
    show_quarantine(out, open_corpus(where), reason, most)
