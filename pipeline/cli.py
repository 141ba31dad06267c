"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.errors import ConfigError, PipelineError
from pipeline.interrupts import heed_sigterm
from pipeline.options import ConfigPath, CorpusPlace, Only, Overrides, Until, err, follow_run, load, open_corpus, out
from stages.sonar.card import CardError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Documents → sentences → SONAR embeddings with quality scores, in FP16 Parquet.\n\n"
    "Start with [bold]pipeline run corpus.yaml[/]; run it again after anything went wrong: what is finished is never "
    "done twice.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out.print(version("sonar-pipeline"), highlight=False)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None:
    """Options of the program itself; its help text stands where `app` is made."""


@app.command()
def run(
    config: ConfigPath,
    only: Only = None,
    until: Until = None,
    launcher: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="local (Ray on this machine), slurm, ray (a cluster), inline (this process)"),
    ] = None,
    refit: Annotated[
        list[str] | None,
        typer.Option("--refit", metavar="NAME", help="fit anew on the present pilot: scaler, predictor or rvq"),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="ray: auto or HOST:6379 joins that cluster, http://HOST:8265 submits a job"),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="though another run holds the corpus: ask that one to stop")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="slurm: follow the run to its end")] = False,
    overrides: Overrides = None,
) -> None:
    """Bring a corpus up to date: segment, encode, fit, score whatever is missing or stale.

    Safe to stop and start again at any moment. Ends with the books: documents in = kept + dropped + quarantined.

    What is fitted is fitted on the pilot (the first chunks that hold fit.rows
    sentences) and frozen: documents added later change nothing that is there.

    Examples:

      pipeline run corpus.yaml

      pipeline run corpus.yaml --until encode --set input.0.limit=1000

      pipeline run corpus.yaml --refit scaler --refit rvq
    """
    from launchers import cluster, is_ray_job, where
    from pipeline.running import Wishes
    from pipeline.running import run as run_corpus

    wishes = Wishes(only, until, refit or (), take_over)
    resolved = load(config, [*(overrides or []), *([f"launcher.address={address}"] if address else [])], launcher)
    if is_ray_job(resolved):
        from launchers.ray_job import run_as_job

        raise typer.Exit(run_as_job(out, resolved, wishes))
    try:
        submitted = run_corpus(out, resolved, wishes, where(resolved, wishes))
    except KeyboardInterrupt:
        err.print("Interrupted. What is finished is kept: run the same command again to go on.")
        raise typer.Exit(130) from None
    if submitted and wait:
        follow_run(resolved.output, cluster(), submitted)


@app.command()
def plan(
    config: ConfigPath,
    only: Only = None,
    until: Until = None,
    simulated: Annotated[
        bool, typer.Option("--simulate", help="instead: what it would be at another size, on paper")
    ] = False,
    documents: Annotated[
        float | None,
        typer.Option(metavar="N", help="with --simulate: so many documents (default: the 4e9 of the LCM paper)"),
    ] = None,
    gpus: Annotated[str | None, typer.Option(metavar="N,…", help="with --simulate: time on so many GPUs")] = None,
    overrides: Overrides = None,
) -> None:
    """Show what `run` would do and why, how much is left, and how long it takes at the measured rates.

    --simulate runs nothing and needs no finished corpus: work, files, storage,
    time and requests at another size, by the rates and bytes that this corpus
    measured, else by the schema and the LCM paper; what nobody measured is not
    guessed.

    Examples:

      pipeline plan corpus.yaml --set encode.model=sonar

      pipeline plan corpus.yaml --simulate --documents 4e9 --gpus 8,64,1000
    """
    from pipeline.plan import make_plan
    from pipeline.show import show_plan
    from pipeline.simulate import simulate
    from pipeline.simulated import gpus_of, show_simulation

    for option, value in (("--documents", documents), ("--gpus", gpus)):
        if value is not None and not simulated:
            raise ConfigError(f"{option} {value} is about --simulate; give that as well")
    chosen = gpus_of(gpus)
    made = make_plan(load(config, overrides), only, until)
    if simulated:
        show_simulation(out, simulate(made, documents), chosen)
    else:
        show_plan(out, made)


@app.command()
def status(
    where: CorpusPlace,
    watch: Annotated[
        bool, typer.Option("--watch", help="follow the run under way to its end; its outcome is the exit code")
    ] = False,
) -> None:
    """Show the run under way, and the books: what is done, dropped, quarantined, left, as receipts say.

    Of a run: its phases; claims and workers, where many work on it; parts,
    sentences a second, time left; stragglers, what failed last, what was set
    aside. After it: what it set aside and what failed.

    --watch refreshes in place, or prints a line every few seconds where the
    output is no terminal. Ctrl-C stops watching and nothing else.

    Exit code 1 if the books do not balance, or the newest run failed.

    Examples:

      pipeline status runs/sample

      pipeline status s3://mine/corpus --watch
    """
    from launchers import cluster
    from pipeline.books import keep_books
    from pipeline.purge import show_waiting
    from pipeline.show import show_books, show_open
    from pipeline.watching import show_run

    corpus = open_corpus(where)
    if watch:
        follow_run(corpus.url, cluster())
        return
    fine = show_run(out, corpus.store, cluster())
    books = keep_books(corpus.store, corpus.chunks)
    show_books(out, books, f"{corpus.view.name} in {corpus.url}")
    show_waiting(out, corpus)
    show_open(out, books)
    if books.problems or not fine:
        raise typer.Exit(1)


@app.command()
def cancel(
    where: CorpusPlace,
) -> None:
    """Stop the run under way, wherever it works, and free the corpus; `pipeline run` goes on from there.

    Its workers stop at their next sign of life and let go of what they hold;
    its SLURM jobs are cancelled. A process on another machine is asked as well:
    this waits until it has stopped, or given no sign of life for as long as
    launcher.lease_seconds (exit code 1 if it is still there then).

    Example: pipeline cancel runs/sample
    """
    from launchers import cluster
    from pipeline.cancel import cancel as cancel_run

    corpus = open_corpus(where)
    if not cancel_run(out, corpus.store, cluster()):
        raise typer.Exit(1)


@app.command()
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
) -> None:
    """Show what happened in a run, whoever did it: parts, chunks, failures, and the logs of SLURM jobs.

    Times are UTC. Workers write what happens at each heartbeat; a run in one
    process (local, inline) writes it when it ends.

    Examples:

      pipeline logs runs/sample --failed

      pipeline logs runs/sample --stage encode --part 3815eaca644c-00002

      pipeline logs runs/sample --worker 123_4 --tail 30
    """
    from launchers import cluster
    from pipeline.logs import Wanted, show_logs

    show_logs(out, open_corpus(where).store, cluster(), Wanted(stage, part, worker, failed, tail, run_name))


@app.command()
def verify(
    where: CorpusPlace,
    repair: Annotated[bool, typer.Option("--repair", help="delete the receipts of what is wrong")] = False,
    compare: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="instead: whether that corpus is the same as this one")
    ] = None,
) -> None:
    """Read every file of a corpus again and compare it with its receipt: bytes, rows, schema, contents, finite values.

    Also the books and the fits. With --repair, what is wrong loses its receipt,
    and the next run makes it anew; nothing else is touched.

    --compare reads receipts, and embeddings only where they differ: the same
    documents, text and order, and the same bytes; where GPUs computed, vectors
    within a cosine of 1 - 1e-5.

    Exit code 1 if anything is wrong.

    Examples:

      pipeline verify runs/sample --repair

      pipeline verify runs/sample --compare s3://mine/sample
    """
    from pipeline.verify.command import verify_corpus, verify_same

    corpus = open_corpus(where)
    fine = verify_same(out, corpus, open_corpus(compare)) if compare else verify_corpus(out, corpus, repair)
    if not fine:
        raise typer.Exit(1)


@app.command()
def gc(
    where: CorpusPlace,
    delete: Annotated[bool, typer.Option("--delete", help="delete them, instead of only counting them")] = False,
) -> None:
    """Count or delete files that the newest run does not stand on.

    Results of older settings are kept, so that going back to them costs
    nothing, and a killed fit may leave its file. Nothing else is touched. Do
    not delete while a run is under way.

    Examples:

      pipeline gc runs/sample

      pipeline gc runs/sample --delete
    """
    from pipeline.gc import delete as delete_files
    from pipeline.gc import garbage
    from pipeline.show import counted

    corpus = open_corpus(where)
    paths = garbage(corpus)
    for folder, files in paths.items():
        out.print(f"{folder}: {counted(len(files), 'file')}", highlight=False)
    if not paths:
        out.print("The newest run stands on every file.")
    elif delete:
        gone = delete_files(corpus, paths)
        out.print(f"{counted(sum(gone.values()), 'file')} deleted", highlight=False)
    else:
        out.print("pipeline gc --delete deletes them")


@app.command(hidden=True)
def gate(
    corpus: str,
    run: str,
    number: int,
    folder: Annotated[Path, typer.Option()],
    lock: Annotated[str, typer.Option()],
) -> None:
    """Decide what phase NUMBER of a run on SLURM is, and queue it. Jobs call this."""
    from launchers.slurm.gate import gate as pass_gate

    pass_gate(out, corpus, run, number, folder, lock)


@app.command(hidden=True)
def worker(corpus: str, phase: str) -> None:
    """Work on a phase of a run until nothing is left to claim. Jobs call this; more may be started by hand."""
    from launchers.slurm.task import Task

    Task(out, corpus, phase).work()


@app.command()
def purge(
    where: CorpusPlace,
    ids: Annotated[
        str, typer.Option(metavar="FILE", help="doc_ids, one a line, or Parquet with a column doc_id; any URL")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count what would go")] = False,
) -> None:
    """Remove documents for good, by their doc_id.

    From now on no reader shows them: inspect, select, export, report, fits.
    The next `pipeline run` writes the parts that held them anew and deletes
    every file that was, also results of older settings and the quarantine of
    those chunks; its books count them as dropped: purged. Documents that come
    later under such an id are left out too.

    Input files, exports, copies, and older versions that a bucket may keep, are
    not touched. Ids that are in no document are named. Ids are listed by
    pipeline inspect --columns doc_id,text --to FILE.

    Examples:

      pipeline purge runs/sample --ids ids.txt --dry-run

      pipeline purge s3://mine/corpus --ids s3://mine/to-purge.parquet
    """
    from launchers import jobs_alive
    from pipeline.purge import purge as purge_documents

    purge_documents(out, open_corpus(where), ids, dry_run, jobs_alive)


@app.command()
def retry(
    config: ConfigPath,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="segment chunks with records in quarantine again")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="only those with records of this reason (implies --quarantined)"),
    ] = None,
    launcher: Annotated[str | None, typer.Option(metavar="KIND", help="as for run")] = None,
    overrides: Overrides = None,
) -> None:
    """Try records in quarantine again, after you changed the cause: a library, a limit, a file.

    Their chunks are segmented again and the corpus is brought up to date, as by
    `pipeline run`; parts that come out the same keep their embeddings and scores.
    Shows the quarantine before and after, by reason. Parts that a run set aside
    are tried again, as in every run.

    Where only the input changed, `pipeline run` alone is enough: it sees that.

    Examples:

      pipeline retry corpus.yaml --quarantined

      pipeline retry corpus.yaml --reason "segmentation failed"
    """
    from launchers import where
    from pipeline.retry import retry as retry_chunks
    from pipeline.running import Wishes

    if not quarantined and reason is None:
        raise ConfigError(
            "say what to retry: --quarantined, or --reason REASON; what a run set aside or failed at is tried again by "
            "pipeline run"
        )
    resolved, wishes = load(config, overrides, launcher), Wishes()
    try:
        retry_chunks(out, resolved, reason, wishes, where(resolved, wishes))
    except KeyboardInterrupt:
        err.print("Interrupted. What is finished is kept: pipeline run goes on.")
        raise typer.Exit(130) from None


@app.command()
def quarantine(
    where: CorpusPlace,
    reason: Annotated[str | None, typer.Option(metavar="REASON", help="records of this reason only")] = None,
    most: Annotated[int, typer.Option(min=1, metavar="N", help="show so many records of each reason")] = 3,
) -> None:
    """Show the records that could not be used: where they are, why, and how they begin.

    Example: pipeline quarantine runs/sample --reason "not UTF-8" --most 20
    """
    from pipeline.quarantined import show_quarantine

    show_quarantine(out, open_corpus(where), reason, most)


@app.command()
def inspect(
    where: CorpusPlace,
    worst: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="show so many of the worst rows with what they decode to (default: 5)"),
    ] = None,
    lang: Annotated[str | None, typer.Option(metavar="CODE", help="rows of this language only, e.g. deu_Latn")] = None,
    condition: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="rows that satisfy this only")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="write the rows to .parquet, .csv or .jsonl (any URL) instead of showing them"
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="what --to writes (default: all but vectors)")
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="read about so many rows (default: 2 million; with --to: all)"),
    ] = None,
) -> None:
    """Look at quality before training: AutoBLEU by language and by length, and the worst sentences.

    Conditions compare columns by == != >= > <= and <, by in \\[…], is null and
    is not null, texts also by contains, startswith, endswith and matches; they
    join with and, or, not, ( ). A row that was not scored satisfies no
    comparison of its score. A column that is not there is answered with all
    that are.

    --to replaces an older file once the new one is whole. .parquet takes every
    column, vectors too; .csv is for spreadsheets: a text that begins with
    = + - @ gets ' in front, so that it is never evaluated. .csv and .jsonl may
    end in .gz or .zst.

    Examples:

      pipeline inspect runs/sample --worst 10 --lang deu_Latn

      pipeline inspect runs/sample --to s3://mine/best.parquet
        --where "autobleu >= 90 and lang in \\['deu_Latn', 'fra_Latn']"
        --columns text,autobleu,embedding

      pipeline inspect runs/sample --to odd.csv
        --where "autobleu < 20 or matches(text, 'https?://')"
    """
    from pipeline.inspecting import Wishes, inspect_corpus

    wishes = Wishes(condition, lang, to, columns, worst, max_rows)
    inspect_corpus(out, open_corpus(where), wishes)


@app.command()
def select(
    place: CorpusPlace,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="sentences must satisfy this, instead of select.where")
    ] = None,
    broken: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="documents that lost sentences: split-documents (default), drop-sentences or drop-documents",
        ),
    ] = None,
    min_sentences: Annotated[
        int | None, typer.Option(metavar="N", help="leave out documents, or pieces of them, that are shorter")
    ] = None,
) -> None:
    """Show which sentences a trainer and an export use, and what each clause removes.

    The rules are the section `select` of corpus.yaml, or of the newest run if a
    folder is given; options replace single settings. The condition is that of
    inspect --where; clauses count in their order, a sentence under the first
    that it fails. Sentences whose embedding is not finite are never used.

    A clause on a column that is null where it was not sampled says what becomes
    of those sentences, or is refused: autobleu is null or autobleu >= 30

    Examples:

      pipeline select corpus.yaml

      pipeline select runs/sample --broken drop-documents
        --where "(autobleu is null or autobleu >= 30) and chars >= 10"
    """
    from pipeline.select.command import Rules, select_corpus

    select_corpus(out, place, open_corpus(place), Rules(where, broken, min_sentences))


@app.command()
def export(
    place: CorpusPlace,
    kind: Annotated[str, typer.Option("--format", metavar="FORMAT", help="lcm or sonar-llm")],
    to: Annotated[str, typer.Option(metavar="URL", help="a new folder: any fsspec URL")],
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="instead of select.where")] = None,
    broken: Annotated[str | None, typer.Option(metavar="HOW", help="instead of select.broken")] = None,
    min_sentences: Annotated[int | None, typer.Option(metavar="N", help="instead of select.min_sentences")] = None,
) -> None:
    """Write the selected sentences in the layout of another project's trainer.

    lcm: Meta's large_concept_model. Parquet, one row a document: text_sentences
    and text_sentences_sonar_emb (FP16, bit for bit), a hive partition `split`,
    and the datacard to copy into lcm/datacards/.

    sonar-llm: the released SONAR-LLM trainer. 100 .pt buckets for training, one
    for validation, the embedding of "End of sequence.". It keeps numbers as
    Python lists: 10 kB a sentence on disk. Meant for corpora such as TinyStories.

    What is selected is what `pipeline select` shows. A document that lost
    sentences is written in pieces, unless select.broken says otherwise.

    Examples:

      pipeline export runs/sample --format lcm --to s3://mine/lcm

      pipeline export runs/sample --format sonar-llm --to sonar_embeddings
        --where "autobleu is not null and autobleu >= 30"
    """
    from pipeline.export import Wishes, export_corpus
    from pipeline.fits.records import fitted_scaler
    from pipeline.select.command import Rules

    corpus = open_corpus(place)
    scaler = fitted_scaler(corpus.store, corpus.view.fits) if kind == "lcm" else None
    export_corpus(out, place, corpus, Wishes(kind, to, Rules(where, broken, min_sentences)), scaler)


@app.command()
def report(
    where: CorpusPlace,
    to: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="where to put it, any URL (default: report/index.html in the corpus)"),
    ] = None,
) -> None:
    """Write a report: one HTML file with plots, tables and examples that needs nothing else, also offline.

    What is in the corpus, its books, AutoBLEU and fragility by length and
    language, embeddings, fits, speed, and where it all comes from. Of a large
    corpus it reads about the first 2 million sentences, in random order.

    Examples:

      pipeline report runs/sample

      pipeline report s3://mine/corpus --to report.html
    """
    from pipeline.report.of_run import report_of

    place = report_of(open_corpus(where), to, lambda text: err.print(text, markup=False, highlight=False))
    out.print(f"{place} written", markup=False, highlight=False, soft_wrap=True)


@app.command("compare-segmenters")
def compare_segmenters(
    config: ConfigPath,
    methods: Annotated[
        str, typer.Option(metavar="A,B,…", help="of spacy, spacy-capped, sat and sat-capped")
    ] = "spacy,spacy-capped,sat,sat-capped",
    characters: Annotated[
        int, typer.Option(min=1000, metavar="N", help="size of the sample: documents of about so many characters")
    ] = 200_000,
    plot: Annotated[
        str, typer.Option(metavar="FILE", help="where to put the plot: .svg, .png or .pdf, any URL")
    ] = "compare-segmenters.svg",
    overrides: Overrides = None,
) -> None:
    """See by numbers which way of segmenting suits a corpus, before anything is run.

    Cuts the same sample of documents by each method, encodes and decodes every
    sentence with the models of corpus.yaml, and shows average AutoBLEU by
    sentence length (Figure 3 of the LCM paper), number of sentences and speed,
    in the terminal and as a plot. No corpus is needed, and none is changed.

    Methods differ in how many sentences they make, and short ones score higher:
    compare at equal lengths, or AutoBLEU weighted by characters.

    Examples:

      pipeline compare-segmenters corpus.yaml --plot segmenters.png

      pipeline compare-segmenters corpus.yaml --methods sat,sat-capped
        --characters 2000000 --set seed=1
    """
    from launchers.devices import devices
    from pipeline.compare import Wishes, compare

    compare(out, load(config, overrides), Wishes(methods, characters, plot), lambda: devices()[0])


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="a model that ships, or a card's file")] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="download its files now, and check them")] = False,
) -> None:
    """List the models: size, languages, licence, and what is on this machine; or show one in full.

    Example: pipeline models sonar --fetch
    """
    from pipeline.models import answer

    answer(out, name, fetch)


@app.command()
def schema(
    to: Annotated[str | None, typer.Option(metavar="FILE", help="write it to a file instead of printing it")] = None,
) -> None:
    """Print the JSON schema of corpus.yaml, with which editors complete and check it while you type.

    Examples:

      pipeline schema --to corpus.schema.json

      pipeline schema | jq '.properties | keys'

    With this as the first line of a corpus.yaml beside it, VS Code (YAML
    extension), Neovim, Emacs and others use it:

      # yaml-language-server: $schema=corpus.schema.json
    """
    from pipeline.schema import print_schema, write_schema

    if to is None:
        print_schema()
    else:
        write_schema(out, to)


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="CORPUS.YAML", help="a corpus.yaml to check against this machine")
    ] = None,
    ray: Annotated[bool, typer.Option(help="start Ray once, which takes some seconds")] = True,
) -> None:
    """Check whether this machine can run the pipeline, and say what to do where it cannot.

    Python and libraries, CPU and GPUs, memory, limits, disk, Ray, SLURM, models,
    credentials of object stores (found or not, never what they are). With a
    corpus.yaml also its inputs (the first records of each), its models and
    whether its output can be written.

    ✓ as it should be, – not there and not needed, ! works but look at it, ✗ stops
    a run. Exit code 1 if anything is ✗.

    Examples:

      pipeline doctor

      pipeline doctor corpus.yaml --no-ray
    """
    from launchers.trial import start_ray
    from pipeline.doctor import examine, show

    if not show(out, examine(config, start_ray if ray else None)):
        raise typer.Exit(1)


def main() -> None:
    """Entry point: errors become words and exit codes; SIGTERM is heeded like Ctrl-C."""
    heed_sigterm()
    try:
        result: Any = app(standalone_mode=True)
    except (ConfigError, CardError) as error:
        err.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(2)
    except (PipelineError, OSError) as error:  # OSError: no permission, no space, a store that does not answer
        err.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(1)
    sys.exit(result or 0)


if __name__ == "__main__":
    main()
