"""Turns sections of the static report into what the script of the interactive one shows, and counts sentences of
documents. Text stays text: the script puts it into text nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.base.errors import visible
from pipeline.corpus.reader import Corpus
from pipeline.quality.report.models import TrainedModels, drawn, models
from pipeline.quality.report.page import Cell, Note, Section, Table

LONGEST = 600  # characters of a text


def as_data(section: Section | None) -> dict[str, Any] | None:
    """Return the title, the lead, and the notes and tables of a section; plots are left out."""
    if section is None:
        return None
    blocks = [one for one in section.blocks if isinstance(one, Note | Table)]
    return {
        "title": section.title,
        "lead": _shown(section.lead),
        "blocks": [_note(one) if isinstance(one, Note) else _table(one) for one in blocks],
    }


def models_data(found: TrainedModels) -> dict[str, Any] | None:
    """Return the section on models, with the curves of the losses as numbers; None where there are no models."""
    data = as_data(models(found, plotted=False))
    if data is None:
        return None
    curves = [
        {
            "name": _shown(one.name),
            "series": [
                {"name": name, "steps": list(curve.steps), "losses": list(curve.losses)}
                for name, curve in (("training", one.training), ("validation", one.validation))
                if curve.steps
            ],
        }
        for one in drawn(found)
    ]
    return data | {"curves": curves}


def documents_data(corpus: Corpus, max_rows: int) -> dict[str, Any]:
    """Count the sentences of documents.

    Args:
        corpus: the corpus.
        max_rows: read only about the first rows, this many; the document at their end is left out.

    Returns:
        How many documents there are, the quartiles and the largest number of sentences, and (first, last, documents)
        of ranges up to powers of two, from the first that has one.
    """
    starts, read = [np.zeros(0, np.bool_)], 0
    for batch in corpus.batches("position", "subdocument", max_rows=max_rows):
        table = batch.table
        starts.append((table["position"].to_numpy() == 0) & (table["subdocument"].to_numpy() == 0))
        read += batch.rows
    whole = read >= corpus.rows
    counts = np.diff(np.append(np.flatnonzero(np.concatenate(starts)), read))[: None if whole else -1]
    if not len(counts):
        return {"count": 0, "whole": whole, "quartiles": [], "most": 0, "bins": []}
    most = int(counts.max())
    ends = [0, *(2**power for power in range(most.bit_length() + 1) if 2 ** (power - 1) < most)]
    bins = [[low + 1, min(high, most), int(((counts > low) & (counts <= high)).sum())] for low, high in pairwise(ends)]
    first = next(place for place, (_, _, found) in enumerate(bins) if found)
    quartiles = [float(one) for one in np.quantile(counts, (0.25, 0.5, 0.75))]
    return {"count": len(counts), "whole": whole, "quartiles": quartiles, "most": most, "bins": bins[first:]}


def _note(one: Note) -> dict[str, Any]:
    return {"kind": "note", "level": one.level, "text": _shown(one.text)}


def _table(one: Table) -> dict[str, Any]:
    rows: Sequence[Sequence[Cell]] = one.rows
    return {
        "kind": "table",
        "title": _shown(one.title),
        "head": [_shown(name) for name in one.head],
        "text": one.text,
        "rows": [[_shown(cell if isinstance(cell, str) else cell.text) for cell in row] for row in rows],
    }


def _shown(text: str) -> str:
    """Cut a text, and make control and direction characters visible."""
    return visible(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")
