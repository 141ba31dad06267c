"""`pipeline report`: one self-contained HTML file that lets people judge a corpus by its pictures, tables and books.

The file works offline: no script, no font, no image from elsewhere, and a Content-Security-Policy that forbids them.
The same corpus gives the same bytes. Cost: every receipt once, the small columns of about the first 2 million rows, the
vectors of about the first 262 144.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.corpus.reader import Corpus
from pipeline.quality.report.fits import Drift, FitSummary
from pipeline.quality.report.gather import gather
from pipeline.quality.report.html import render
from pipeline.quality.report.rows import MAX_ROWS
from pipeline.storage.replacing import replacing_file

__all__ = ["Drift", "FitSummary", "write_report"]

PLACE = "report/index.html"


def write_report(
    corpus: Corpus,
    to: str | None = None,
    fits: Sequence[FitSummary] = (),
    drift: Sequence[Drift] = (),
    removed: Sequence[tuple[str, int]] = (),
    max_rows: int = MAX_ROWS,
) -> str:
    """Write the report; returns its path or URL (`to`, or `report/index.html` in the corpus).

    `fits`: the artifacts that the run depends on. `drift`: how later data differs from what they were fitted on.
    `removed`: under `select`, each reason for which sentences are left out, and what is kept. About `max_rows` rows
    are read.
    Raises `PipelineError` if the corpus is damaged, or the file cannot be written; an older one then stays as it was.
    """
    page = render(gather(corpus, max_rows), fits, drift, removed)
    place = to or f"{corpus.url.rstrip('/')}/{PLACE}"
    with replacing_file(place) as file:
        file.write(page.encode())
    return place
