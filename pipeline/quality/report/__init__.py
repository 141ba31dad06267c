"""Implements `pipeline report`: one self-contained HTML file to judge a corpus by its plots, tables and accounting.

The file works offline: no script, no font, no image from elsewhere, and a Content-Security-Policy that forbids them. It
is made from a template that escapes all text. It includes all that the newest run decided: fits, drift, what `select`
removes. The same corpus gives the same bytes. Cost: every receipt once, the small columns of about the first 2 million
rows, the vectors of about the first 262 144.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import groupby

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.base.errors import ConfigError, visible
from pipeline.corpus.reader import Corpus
from pipeline.quality.drift import Drift, FitSummary, drift, fit_summary, records_of
from pipeline.quality.expectations import Expectation
from pipeline.quality.report import curated, plots
from pipeline.quality.report.gather import Gathered, gather
from pipeline.quality.report.models import NO_MODELS, TrainedModels, models
from pipeline.quality.report.page import Block, Headline, Note, Section, number, write_page
from pipeline.quality.report.rows import MAX_ROWS, by_length, finite, summarise
from pipeline.quality.report.sections import (
    DRAWN,
    broken_expectations,
    codes,
    contents,
    embeddings,
    examples,
    expectations,
    fragility,
    lengths,
    prediction,
    records,
    scores,
    selection,
)
from pipeline.quality.report.summary import fits_section, headlines, provenance, throughput, verdicts
from pipeline.select.command import removed_by

_CODE = re.compile("`([^`]+)`")
LONGEST = 600  # characters shown of one text


def render(
    found: Gathered,
    fits: Sequence[FitSummary],
    drift: Sequence[Drift],
    removed: Sequence[tuple[str, int]],
    expected: Sequence[Expectation] = (),
    compared: Section | None = None,
    trained: TrainedModels = NO_MODELS,
) -> str:
    """Return the whole report.

    Args:
        found: what `gather` read from the corpus.
        fits: the artifacts that the run depends on.
        drift: how later data differs from what they were fitted on.
        removed: under `select`, the reasons for which sentences are left out, and what is kept.
        expected: what was expected of the corpus, and whether it holds.
        compared: a comparison with another corpus.
        trained: the models that were trained on the corpus.

    Returns:
        The HTML file.
    """
    sections: list[Section | None] = [
        expectations(expected),
        compared,
        contents(found),
        records(found),
        lengths(found),
        embeddings(found),
        scores(found),
        fragility(found),
        prediction(found, fits),
        codes(fits),
        examples(found),
        curated.languages(found.curation),
        curated.noise(found.curation),
        curated.duplicates(found.curation),
        selection(removed),
        models(trained),
        fits_section(fits, drift),
        throughput(found),
        provenance(found),
    ]
    read, total = found.rows.read, found.rows.total
    if read < total:
        of = (
            f"Distributions, tables by language and examples are from the first {number(read)} of {number(total)} "
            "sentences, in the random order of the parts; counts of the accounting are of all."
        )
    else:
        of = f"Distributions, tables and examples are of all {number(total)} sentences."
    shown_sections = [one for one in sections if one]
    notes = [*broken_expectations(expected), *verdicts(found, fits, drift)]
    return page_of("Corpus report", found.name, headlines(found), notes, shown_sections, of, trained.stamp)


def page_of(
    kind: str,
    name: str,
    figures: Sequence[Headline],
    notes: Sequence[Note],
    sections: Sequence[Section],
    footer: str,
    stamp: str = "",
) -> str:
    """Return a page in the form of the report.

    Args:
        kind: what the page is, such as `Corpus report`.
        name: the name of the corpus.
        figures: the large numbers at the top.
        notes: the remarks below them.
        sections: the sections of the page.
        footer: says which sentences the numbers are of.
        stamp: digest of the finished models that the page shows.

    Returns:
        The HTML file.
    """
    environment = Environment(
        loader=PackageLoader("pipeline.quality.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "coded": coded, "drawn": Markup, "groups": _groups, "spaced": number}
    return environment.get_template("template.html").render(
        kind=kind,
        name=name,
        figures=figures,
        verdicts=notes,
        sections=sections,
        footer=footer,
        stamp=stamp,
        version=version("sonar-pipeline"),
    )


def shown(text: str) -> str:
    """Show a text on one line: characters that control or reverse their surroundings are escaped; long texts
    are cut.
    """
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return visible(cut)


def coded(text: str) -> Markup:
    """Show what is between backticks as code; everything is escaped first."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield neighbouring figures together, because they are displayed side by side."""
    for _, group in groupby(blocks, lambda block: block.kind == "figure"):
        yield list(group)


__all__ = ["Drift", "FitSummary", "TrainedModels", "write_report"]

PLACE = "report/index.html"


def write_report(
    corpus: Corpus,
    to: str | None = None,
    say: Callable[[str], None] = print,
    max_rows: int = MAX_ROWS,
    expected: Sequence[Expectation] = (),
    compared: Section | None = None,
    trained: TrainedModels = NO_MODELS,
) -> str:
    """Write the report of a corpus with everything that its records say, and return its path or URL.

    Args:
        corpus: the corpus.
        to: the file; None for `report/index.html` in the corpus.
        say: is told why a section had to be left out.
        max_rows: read only about this many rows.
        expected: what was expected of the corpus, and whether it holds.
        compared: a comparison with another corpus.
        trained: the models that were trained on the corpus.

    Returns:
        The path or URL of the report.

    Raises:
        PipelineError: if the corpus is damaged, documents were purged from it meanwhile, or the file cannot be written;
            an older file then stays as it was, unless it may quote what was purged.
    """
    records = records_of(corpus)
    try:
        removed = removed_by(corpus, max_rows)
    except ConfigError as error:  # a run that stopped before it made the columns of the condition
        say(f"the report leaves out the selection: {error}")
        removed = []
    fits, moved = [fit_summary(corpus, one) for one in records], drift(corpus, records)
    page = render(gather(corpus, max_rows), fits, moved, removed, expected, compared, trained)
    place = to or f"{corpus.url.rstrip('/')}/{PLACE}"
    write_page(corpus, place, page.encode())
    return place


def dataset_plots(
    langs: Sequence[str], lang: npt.NDArray[np.int32], chars: npt.NDArray[np.int32], autobleu: npt.NDArray[np.float32]
) -> dict[str, tuple[str, bytes]]:
    """Draw lengths, languages and AutoBLEU for a dataset card: of the sentences that were written, not of all.

    Args:
        langs: names of languages, those with most sentences first.
        lang: (rows,) int32, each row's place in `langs`.
        chars: (rows,) int32, lengths in characters.
        autobleu: (rows,) float32, scores, NaN where a row has none.

    Returns:
        File name → (caption, SVG file).
    """
    lengths = plots.histogram("chars", {"sentences": chars}, "sentence length (characters)")
    drawn = {"length.svg": ("Sentence length", lengths)}
    scored = finite(autobleu)
    if len(scored):
        bins = by_length(chars, autobleu)
        groups = [(name, summarise(autobleu[lang == place])) for place, name in enumerate(langs[:DRAWN])]
        drawn |= {
            "autobleu.svg": (
                "AutoBLEU of the sentences that were scored",
                plots.histogram("autobleu", {"AutoBLEU": scored}, "AutoBLEU", limits=(0, 100)),
            ),
            "autobleu-by-length.svg": (
                "AutoBLEU by sentence length: mean, with the 10th to 90th percentile",
                plots.by_length("autobleu-length", {"AutoBLEU": bins}, "AutoBLEU", top=100),
            ),
            "autobleu-by-language.svg": (
                "AutoBLEU by language: mean, with the 10th to 90th percentile",
                plots.by_language(
                    "autobleu-lang", [one for one in groups if one[1].count], "AutoBLEU", limits=(0, 100)
                ),
            ),
        }
    return {name: (caption, plots.standalone(svg)) for name, (caption, svg) in drawn.items()}
