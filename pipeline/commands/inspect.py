"""Commands that look at what came out, and hand it over: inspect, select, export, report, compare-segmenters."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.options import ConfigPath, CorpusPlace, Overrides, err, load, open_corpus, out


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
    from pipeline.quality.inspect import InspectOptions, inspect_corpus

    options = InspectOptions(condition, lang, to, columns, worst, max_rows)
    inspect_corpus(out, open_corpus(where), options)


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
    from pipeline.select.command import SelectOptions, select_corpus

    select_corpus(out, place, open_corpus(place), SelectOptions(where, broken, min_sentences))


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
    from pipeline.corpus.fits import fitted_scaler
    from pipeline.export import ExportOptions, export_corpus
    from pipeline.select.command import SelectOptions

    corpus = open_corpus(place)
    scaler = fitted_scaler(corpus.store, corpus.view.fits) if kind == "lcm" else None
    export_corpus(out, place, corpus, ExportOptions(kind, to, SelectOptions(where, broken, min_sentences)), scaler)


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
    from pipeline.quality.report import write_corpus_report

    place = write_corpus_report(open_corpus(where), to, lambda text: err.print(text, markup=False, highlight=False))
    out.print(f"{place} written", markup=False, highlight=False, soft_wrap=True)


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
    from pipeline.quality.compare import CompareOptions, compare

    compare(out, load(config, overrides), CompareOptions(methods, characters, plot), lambda: devices()[0])
