"""Commands that show results and hand them over: inspect, select, index, export, files, sql, report."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.messages import print_plain
from pipeline.commands.options import (
    AsJson,
    BrokenOption,
    CorpusPlace,
    MinSentencesOption,
    NewFolder,
    ShareOption,
    Strict,
    WhereOption,
    err,
    load,
    open_corpus,
    out,
    share_of,
)

if TYPE_CHECKING:
    from pipeline.config.train import Plans


def inspect(
    where: CorpusPlace,
    worst: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="show the N worst rows and what they decode to (default: 5)"),
    ] = None,
    lang: Annotated[str | None, typer.Option(metavar="CODE", help="only rows of this language, e.g. deu_Latn")] = None,
    condition: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="only rows that satisfy this condition")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="write the rows to .parquet, .csv or .jsonl (any URL) instead of showing them"
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="columns that --to writes (default: all but vectors)")
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="read about N rows (default: 2 million; with --to: all)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at quality before training: AutoBLEU by language and by length, and the worst sentences.

    Conditions compare columns with == != >= > <= < and in \\[…], test them with
    is null and is not null, and test texts with contains, startswith, endswith
    and matches; and, or, not and ( ) join them. A row without a score satisfies
    no comparison of that score.

    --to replaces an existing file only once the new one is complete. .parquet
    takes every column, vectors too. In .csv, a text that begins with = + - @ gets
    a ' in front, so that no spreadsheet evaluates it. .csv and .jsonl may end in
    .gz or .zst.

    Examples:

      pipeline inspect runs/sample --worst 10 --lang deu_Latn

      pipeline inspect runs/sample --to s3://mine/best.parquet
        --where "autobleu >= 90 and lang in \\['deu_Latn', 'fra_Latn']"
        --columns text,autobleu,embedding

      pipeline inspect runs/sample --to odd.csv
        --where "autobleu < 20 or matches(text, 'https?://')"
    """
    from pipeline.quality.inspect import InspectOptions, inspect_corpus

    options = InspectOptions(condition, lang, to, columns, worst, max_rows)
    if as_json:
        from pipeline.commands import as_json as shapes

        shapes.print_json("inspect", shapes.inspect(open_corpus(where), options))
        return
    inspect_corpus(out, open_corpus(where), options)


def select(
    place: CorpusPlace,
    where: WhereOption = None,
    broken: BrokenOption = None,
    min_sentences: MinSentencesOption = None,
    share: ShareOption = None,
    as_json: AsJson = False,
) -> None:
    """Show which sentences a trainer and an export use, and what each clause removes.

    The rules are the section `select` of corpus.yaml, or of the newest run if a
    folder is given; options replace single settings. Conditions are written as
    for inspect --where. Clauses are applied in their order, and a sentence counts
    under the first one that it fails. Sentences whose embedding is not finite are
    never used.

    A score that was computed for a sample only is null elsewhere. A clause on
    such a column must say what happens to those sentences:
    autobleu is null or autobleu >= 30

    --share reads an N-th of the parts, so that N processes read all; the last of
    them shows the table. A week after the last of them, `gc` deletes what they counted.

    Examples:

      pipeline select corpus.yaml

      pipeline select runs/sample --broken drop-documents
        --where "(autobleu is null or autobleu >= 30) and chars >= 10"
    """
    from pipeline.select.command import SelectOptions, select_corpus

    rules, one_share = SelectOptions(where, broken, min_sentences), share_of(share)
    if as_json:
        from pipeline.commands import as_json as shapes

        if one_share:
            raise ConfigError("--share and --json exclude each other; give one of them")
        shapes.print_json("select", shapes.select(place, open_corpus(place), rules))
        return
    select_corpus(out, place, open_corpus(place), rules, one_share)


def index(
    place: CorpusPlace,
    where: WhereOption = None,
    broken: BrokenOption = None,
    min_sentences: MinSentencesOption = None,
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="kept column with the code point where the answer begins; only answers are learned"
        ),
    ] = None,
    plans: Annotated[
        bool, typer.Option("--plans", help="begin paragraphs with plans and separate them, as train.plans: headline")
    ] = False,
    given_plans: Annotated[
        bool, typer.Option("--given-plans", help="the same with the plans of the section plans, as train.plans: column")
    ] = False,
    share: ShareOption = None,
) -> None:
    """Write the index of a training: which rows of which files it reads, pinned by a digest.

    Training makes its index by itself; this command shows what it would read.
    `pipeline select` shows which sentences are selected. Files of a corpus never
    change, so an index stays valid while documents are added; `gc` and `purge` may
    delete files that it names. The same corpus and selection give the same index,
    which is then not made again.

    --share has N processes, for instance an array of SLURM jobs, make one index: each
    visits an N-th of the parts, and the last one completes it. A share that was
    killed is written again. `gc` deletes shares of an index that was not completed
    a week after the last of them.

    Examples:

      pipeline index corpus.yaml

      pipeline index s3://mine/corpus --share 3/100

      pipeline index runs/chats --answers answer_start --min-sentences 2
    """
    from pipeline.select.command import SelectOptions
    from pipeline.training.data.command import index_corpus

    if plans and given_plans:
        raise ConfigError("--plans and --given-plans are two kinds of plans; give one of them")
    rules = SelectOptions(where, broken, min_sentences)
    chosen: Plans = "column" if given_plans else "headline" if plans else "none"
    index_corpus(out, place, open_corpus(place), rules, answers, chosen, share_of(share))


def export(
    place: CorpusPlace,
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="the layout to write: parquet, numpy, webdataset, lance, hub, lcm or sonar-llm",
        ),
    ],
    to: NewFolder,
    where: WhereOption = None,
    broken: BrokenOption = None,
    min_sentences: MinSentencesOption = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="float32, float16, or none, which leaves them out of parquet, hub and lance \\[parquet, hub: float32; "
            "numpy, webdataset, lance: float16]",
        ),
    ] = None,
    row_group_rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="for parquet, hub: rows in a row group, at most [8192]")
    ] = None,
    shard_mb: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="for webdataset: size of a tar file, at most [256]")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(metavar="ID", help="for hub: licence of the texts, such as cc-by-4.0 \\[unknown]")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="USER/NAME", help="for hub: upload the folder to this dataset repository")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="for --push: a new repository is private")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="for --push: in place of what the repository holds")
    ] = False,
    share: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="for parquet, lcm: write only the I-th of N shares; the last completes it"),
    ] = None,
) -> None:
    """Write the selected sentences for other programs, or in the layout of another project's trainer.

    parquet: for DuckDB, Polars, pandas, Arrow, Spark and Hugging Face datasets. One
    row per sentence in data/SPLIT/: text, document, metadata, scores and embedding.

    numpy: data/SPLIT/embeddings.npy, which NumPy maps into memory, and rows.jsonl
    with text, document, metadata and scores of each of its rows.

    webdataset: tar files that the package webdataset streams. One sample per document,
    or piece of one: the matrix of its embeddings (.npy), and all else (.json).

    lance: one Lance dataset, sentences.lance, for random access and for search by
    vector, text and score. A row per sentence, with its split. In a folder of this machine.

    hub: plain Parquet as a dataset of the Hugging Face Hub, with a card
    (README.md): licences, languages, features, inputs, filters, models, quality and
    plots. With --push it is uploaded; if that is interrupted, the same command
    resumes it.

    lcm: for Meta's large_concept_model. Parquet with one row per document:
    text_sentences and text_sentences_sonar_emb (FP16, bit for bit), a hive
    partition `split`, and the datacard to copy into lcm/datacards/.

    sonar-llm: for the released SONAR-LLM trainer. 100 .pt buckets for training,
    one for validation, and the embedding of "End of sequence.". That format keeps
    numbers as Python lists, 10 kB per sentence on disk, so it suits small corpora
    such as TinyStories.

    --share has N processes, for instance an array of SLURM jobs, write an export to one
    folder. One that was killed or failed is repeated; whichever is last completes it.

    `pipeline select` shows which sentences are written. A document that lost
    sentences is written in pieces, unless select.broken says otherwise.

    Examples:

      pipeline export runs/sample --format parquet --to sample-parquet

      pipeline export runs/sample --format numpy --to sample-numpy
        --vectors float32

      pipeline export runs/sample --format hub --to sample-hub --licence cc-by-4.0
        --push me/sample

      pipeline export runs/sample --format lcm --to s3://mine/lcm

      pipeline export runs/sample --format lcm --to s3://mine/lcm --share 3/100

      pipeline export runs/sample --format sonar-llm --to sonar_embeddings
        --where "autobleu is not null and autobleu >= 30"
    """
    from pipeline.corpus.fits import fitted_scaler
    from pipeline.export import ExportOptions, export_corpus
    from pipeline.select.command import SelectOptions

    corpus = open_corpus(place)
    scaler = fitted_scaler(corpus.store, corpus.view) if kind == "lcm" else None
    rules = SelectOptions(where, broken, min_sentences)
    one_share = share_of(share)
    options = ExportOptions(
        kind, to, rules, vectors, row_group_rows, shard_mb, licence, push, private, replace, one_share
    )
    draw = None
    if kind == "hub":
        from pipeline.quality.report import dataset_plots

        draw = dataset_plots
    export_corpus(out, place, corpus, options, scaler, draw)


def files(
    place: CorpusPlace,
    family: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="only this family, e.g. sentences or embeddings")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: a list of {family, file}")] = False,
) -> None:
    """List the live Parquet files of a corpus, one per line.

    A folder of a corpus also holds files that were replaced; those that are listed
    are what the newest run uses. Rows of the same part have the same order in
    every family.

    Examples:

      pipeline files runs/sample --family sentences

      pipeline files s3://mine/corpus --json
    """
    from pipeline.base.messages import json_for_output, write_out
    from pipeline.export.sql import families_of, live_files

    corpus = open_corpus(place)
    families = [family] if family else families_of(corpus)
    found = [{"family": one, "file": file} for one in families for file in live_files(corpus, one)]
    if as_json:
        write_out(json_for_output(found) + "\n")
    else:
        for row in found:
            write_out(row["file"] + "\n")


def sql(
    place: CorpusPlace,
    open_shell: Annotated[
        bool, typer.Option("--open", help="start DuckDB's shell on the views, if duckdb is installed")
    ] = False,
) -> None:
    """Print SQL that shows a corpus to DuckDB: CREATE VIEW statements over exactly its live files.

    The views are documents, sentences, one for each kind of score, and corpus with
    all of their columns. Vectors are left out, because DuckDB does not read them as
    they are stored: pipeline export --format parquet writes them for it.

    Examples:

      pipeline sql runs/sample > views.sql

      pipeline sql runs/sample --open
    """
    from pipeline.base.messages import write_out
    from pipeline.export.sql import duckdb_views, open_duckdb

    views = duckdb_views(open_corpus(place))
    if open_shell:
        raise typer.Exit(open_duckdb(views))
    write_out(views)


def report(
    where: CorpusPlace,
    to: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="file or URL to write (default: report/index.html in the corpus)"),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="also show what differs from this corpus, or from this run (its name)"),
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", help="instead, a page to explore a sample in (report/interactive.html)"),
    ] = False,
    strict: Strict = False,
) -> None:
    """Write a report: one self-contained HTML file with plots, tables and examples that opens offline.

    The report shows what is in the corpus, the accounting, AutoBLEU and fragility
    by length and language, embeddings, fits, speed and provenance. Of a large
    corpus, about 2 million sentences are read, in random order.

    What report.expect says is checked again: that of the YAML file, if one is
    given, otherwise that of the newest run.

    Examples:

      pipeline report runs/sample

      pipeline report corpus.yaml --strict

      pipeline report runs/sample --interactive

      pipeline report runs/sample --compare runs/other --to compared.html

      pipeline report s3://mine/corpus --to report.html
    """
    from pipeline.quality.expectations import (
        check_expectations,
        failed_expectations,
        report_settings,
        show_expectations,
    )
    from pipeline.quality.explore import PLACE as INTERACTIVE
    from pipeline.quality.explore import write_explorer
    from pipeline.quality.report import PLACE, write_report
    from pipeline.quality.report.compared import compare_corpora
    from pipeline.run.trained_models import trained_models

    corpus = open_corpus(where)
    settings = report_settings(where, corpus)
    if strict and not settings.expect:
        raise ConfigError(f"--strict: {where} expects nothing (report.expect of its corpus.yaml), so nothing can fail")
    compared = None
    if compare:
        other = load(Path(compare)).output if compare.endswith((".yaml", ".yml")) else compare
        compared = compare_corpora(corpus, other, settings.max_rows)
    expected = check_expectations(corpus, settings)
    trained = trained_models(corpus.store)
    if interactive:
        place = write_explorer(corpus, to, settings.max_rows, expected, compared, trained)
    else:
        say = partial(err.print, markup=False, highlight=False)
        place = write_report(corpus, to, say, settings.max_rows, expected, compared, trained)
    show_expectations(out, expected)
    print_plain(out, f"{place} written")
    other, option = (PLACE, "") if interactive else (INTERACTIVE, " --interactive")
    if to is None and corpus.store.exists(other):
        again = f"pipeline report {shlex.quote(str(where))}{option}"
        print_plain(out, f"{corpus.url}/{other} is that of an earlier report: {again} writes it again", "dim")
    if strict and (failed := failed_expectations(expected)):
        raise CorpusError(failed)
