"""Implements `pipeline report --interactive`: one HTML file to explore a sample of a corpus, offline.

The page is drawn by `explore.js`, a few hundred lines on canvases without a library: Vega-Lite and Plotly weigh 0.8 to
4 MB and build functions from text, which the page's Content-Security-Policy forbids. That policy allows one script and
one style by their SHA-256, nothing from elsewhere, and no string to become markup or code
(`require-trusted-types-for`). What the page shows is JSON in a script element that is not executed, with `<` escaped;
the script puts it into text nodes only.

Cost: one pass over the small columns of about `report.max_rows` rows, of which those of the sample are read whole; the
vectors of about the first 262 144 rows; two more passes, for the table of sources and for the lengths of documents; for
the map by PaCMAP of 12 000 embeddings 6 s of CPU, and 20 s the first time, when Numba compiles it.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.base.errors import CorpusError, visible
from pipeline.corpus.reader import Corpus
from pipeline.quality.expectations import Expectation, format_measure, measure_rows
from pipeline.quality.explore.sample import Sample, read_sample
from pipeline.quality.explore.sections import as_data, documents_data, models_data
from pipeline.quality.report.models import NO_MODELS, TrainedModels
from pipeline.quality.report.page import Section, write_page

PLACE = "report/interactive.html"
MOST_BYTES = 4_600_000  # of the data; the whole file is below 5 MB
MOST_SOURCES = 500
OF_SOURCES = (
    "tokens_mean", "autobleu_mean", "autobleu_below_20", "language_mismatch", "duplicate_sentences",
    "near_duplicate_documents", "semantic_duplicates", "removed_by_gopher_quality", "removed_by_fineweb",
)  # fmt: skip


def write_explorer(
    corpus: Corpus,
    to: str | None,
    max_rows: int,
    expected: Sequence[Expectation] = (),
    compared: Section | None = None,
    trained: TrainedModels = NO_MODELS,
    most_bytes: int = MOST_BYTES,
) -> str:
    """Write the page, and return its path or URL.

    Args:
        corpus: the corpus.
        to: the file; by default `report/interactive.html` in the corpus.
        max_rows: about how many rows are read, in the random order of the parts.
        expected: what was expected of the corpus, and whether it holds.
        compared: a comparison with another corpus.
        trained: the models that were trained on the corpus.
        most_bytes: the sample is made smaller until its data are no larger than this.

    Returns:
        The path or URL of the page.

    Raises:
        CorpusError: if no part is finished, the corpus is damaged, or documents were purged from it meanwhile.
    """
    if not corpus.parts or not corpus.rows:
        raise CorpusError(f"{corpus.url} has no sentence yet; see: pipeline status {corpus.url}")
    sample = read_sample(corpus, max_rows)
    shared = {
        "name": visible(corpus.view.name),
        "total": corpus.rows,
        "read": sample.read,
        "sources": _sources(corpus, max_rows),
        "expected": [{"holds": one.holds, "said": one.said()} for one in expected],
        "compared": as_data(compared),
        "documents": documents_data(corpus, max_rows),
        "models": models_data(trained),
    }
    rows = sample.rows
    data = _as_json(shared | sample.columns(rows))
    while len(data) > most_bytes and rows:
        rows = int(rows * min(0.95, most_bytes / len(data)))
        data = _as_json(shared | sample.columns(rows))
    page = render(corpus.view.name, data)
    place = to or f"{corpus.url.rstrip('/')}/{PLACE}"
    write_page(corpus, place, page)
    return place


def render(name: str, data: bytes) -> bytes:
    """Return the page. `data`: JSON without `<`."""
    environment = Environment(
        loader=PackageLoader("pipeline.quality.explore", "."), autoescape=True, undefined=StrictUndefined
    )
    script = _file("explore", "explore.js")
    style = _file("report", "base.css") + _file("explore", "explore.css")
    text = environment.get_template("page.html").render(
        name=visible(name),
        script=Markup(script),  # noqa: S704  # ours
        style=Markup(style),  # noqa: S704  # ours
        policy=policy(script, style),
        data=Markup(data.decode()),  # noqa: S704  # JSON without `<`, in an element that is not executed
    )
    return text.encode()


def policy(script: str, style: str) -> str:
    """Return the Content-Security-Policy that allows this script, this style, and nothing else."""
    hashes = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _file(folder: str, name: str) -> str:
    return files(f"pipeline.quality.{folder}").joinpath(name).read_text("utf-8")


def _as_json(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").encode()


def _sources(corpus: Corpus, max_rows: int) -> dict[str, Any]:
    """Return a table of the sources, those with most sentences first: head, and rows of texts."""
    found = measure_rows(corpus, [(name, "source") for name in OF_SOURCES], max_rows)
    shown = {name: one for (name, _), one in found.items() if not isinstance(one, str) and one}
    sentences = {source: rows for source, (_, rows) in shown["tokens_mean"].items()}
    order = sorted(sentences, key=lambda source: (-sentences[source], source))[:MOST_SOURCES]
    rows = [
        [
            source,
            sentences[source],
            *(format_measure(name, one.get(source, (None, 0))[0]) for name, one in shown.items()),
        ]
        for source in order
    ]
    return {"head": [name.replace("_", " ") for name in shown], "rows": rows, "more": len(sentences) - len(order)}


__all__ = ["Sample", "render", "write_explorer"]
