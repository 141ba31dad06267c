"""The page: sections through a template that escapes everything, with the styles inside and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.base.errors import visible
from pipeline.quality.report.fits import Drift, FitSummary
from pipeline.quality.report.fragility import codes, fragility, prediction
from pipeline.quality.report.gather import Gathered
from pipeline.quality.report.page import Block, Section, number
from pipeline.quality.report.provenance import fits_section, provenance, throughput
from pipeline.quality.report.sections import contents, embeddings, examples, lengths, records, scores, selection
from pipeline.quality.report.summary import headlines, verdicts

LONGEST = 600  # characters shown of one text


def render(
    found: Gathered, fits: Sequence[FitSummary], drift: Sequence[Drift], removed: Sequence[tuple[str, int]]
) -> str:
    """The whole HTML file."""
    sections: list[Section | None] = [
        contents(found),
        records(found),
        lengths(found),
        embeddings(found),
        scores(found),
        fragility(found),
        prediction(found, fits),
        codes(fits),
        examples(found),
        selection(removed),
        fits_section(fits, drift),
        throughput(found),
        provenance(found),
    ]
    environment = Environment(
        loader=PackageLoader("pipeline.quality.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "drawn": Markup, "groups": _groups, "spaced": number}
    return environment.get_template("template.html").render(
        name=found.name,
        figures=headlines(found),
        verdicts=verdicts(found, fits, drift),
        sections=[one for one in sections if one],
        read=found.rows.read,
        total=found.rows.total,
        version=version("sonar-pipeline"),
    )


def shown(text: str) -> str:
    """A text from anywhere on one line: what steers or turns its surroundings as an escape; what is too long is cut."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return visible(cut)


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Neighbouring figures together, for they stand side by side."""
    for _, group in groupby(blocks, lambda block: block.kind == "figure"):
        yield list(group)
