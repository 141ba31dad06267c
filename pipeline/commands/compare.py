"""Commands that compare ways of making and of using a corpus: segmenters, decoders, objectives, selections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import ConfigPath, CorpusPlace, Overrides, load, open_corpus, out


def compare_segmenters(
    config: ConfigPath,
    methods: Annotated[
        str, typer.Option(metavar="A,B,…", help="methods to compare: spacy, spacy-capped, sat, sat-capped")
    ] = "spacy,spacy-capped,sat,sat-capped",
    characters: Annotated[
        int, typer.Option(min=1000, metavar="N", help="size of the sample in characters; whole documents are taken")
    ] = 200_000,
    plot: Annotated[
        str, typer.Option(metavar="FILE", help="file or URL of the plot: .svg, .png or .pdf")
    ] = "compare-segmenters.svg",
    overrides: Overrides = None,
) -> None:
    """Measure which way of segmenting suits a corpus, before anything is run.

    Each method segments the same sample of documents; every sentence is encoded
    and decoded with the models of corpus.yaml. The command shows mean AutoBLEU by
    sentence length (Figure 3 of the LCM paper), the number of sentences and the
    speed, in the terminal and as a plot. No corpus is needed, and none is changed.

    Methods differ in how many sentences they make, and short sentences score
    higher: compare at equal lengths, or AutoBLEU weighted by characters.

    Examples:

      pipeline compare-segmenters corpus.yaml --plot segmenters.png

      pipeline compare-segmenters corpus.yaml --methods sat,sat-capped
        --characters 2000000 --set seed=1
    """
    from launchers.devices import devices
    from pipeline.quality.compare import CompareOptions, compare

    compare(out, load(config, overrides), CompareOptions(methods, characters, plot), lambda: devices()[0])


def compare_decoders(
    where: CorpusPlace,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="decoder to compare with: a card's name or path")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="decoder that is compared with it")],
    split: Annotated[
        str, typer.Option(metavar="NAME", help="documents: validation, test, or held-out for both")
    ] = "held-out",
    sentences: Annotated[int, typer.Option(min=2, metavar="N", help="sentences to decode, at most")] = 1000,
    noise: Annotated[
        str, typer.Option(metavar="α,…", help="variances of the noise; each is a decoding of all sentences")
    ] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    external: Annotated[
        str | None,
        typer.Option(metavar="CARD", help="encoder for cosines, or none (default: that of fragility, if it is there)"),
    ] = None,
    to: Annotated[str, typer.Option(metavar="FOLDER", help="folder or URL of the results")] = "compare-decoders",
) -> None:
    """Compare two decoders on held-out sentences of a corpus: exact, with noise, and from the first codebooks.

    Both decode the same sentences with the same noise. The command shows BLEU by
    language, by noise and by number of codebooks, and the differences with two
    standard errors over documents (Table 7 and Figures 9, 14 and 15 of the LCM
    paper). It writes a page, its figures as SVG, and all numbers as JSON.

    Examples:

      pipeline compare-decoders runs/mine sonar-tiny my-decoder.yaml
    """
    from launchers.devices import devices
    from pipeline.quality.decoders import DecoderOptions, compare_decoders

    options = DecoderOptions((first, second), split, sentences, noise, external, to)
    compare_decoders(out, open_corpus(where), options, lambda: devices()[0])


def compare_objectives(
    science: Annotated[
        Path,
        typer.Argument(
            metavar="SCIENCE.YAML", help="which objectives to compare, on which corpus, like conf/science.yaml"
        ),
    ],
) -> None:
    """Train many objectives on one corpus, evaluate all on the same sentences, and say which claims hold.

    Every row of the file is trained with every seed, on this machine, and evaluated
    on the same held-out documents, wrapped in the same way. Run it again to
    continue: trainings resume from their checkpoints, and evaluations are kept.
    Results are written after each row and seed, as results.json, results.md (tables
    of figures and of claims) and results.svg, with two standard errors.

    The corpus must have been run. With `minutes`, all rows train equally long: a
    short training of each row measures its speed and so sets its number of steps.

    Examples:

      pipeline compare-objectives conf/science.yaml
    """
    from launchers.devices import devices
    from pipeline.config.science import load_science
    from pipeline.training.comparison.compare import compare

    compare(out, load_science(science), lambda: devices()[0])


def ablate(
    ablation: Annotated[
        Path,
        typer.Argument(metavar="ABLATION.YAML", help="selections to compare, and the corpus, like conf/ablation.yaml"),
    ],
) -> None:
    """Train the same small model on several selections of a corpus, and say which of them pay off.

    Every row of the file is a `select` of its own, another section `train` (such as
    weights by fragility), or another corpus of the same encoder (other segmenting).
    All are trained with every seed, for as many steps, on this machine, and
    evaluated on the same held-out documents. Run it again to continue. Results are
    written after each row and seed, as results.json, results.md and results.svg: the
    figures, and by how much each row is better or worse than the row of all
    sentences, with two standard errors.

    The corpus must have been run, with the columns that the selections name.

    Examples:

      pipeline ablate conf/ablation.yaml
    """
    from launchers.devices import devices
    from pipeline.config.science import load_ablation
    from pipeline.training.comparison.ablation import to_markdown, to_svg
    from pipeline.training.comparison.compare import compare

    compare(out, load_ablation(ablation), lambda: devices()[0], to_markdown, to_svg)
