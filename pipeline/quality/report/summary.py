"""The first screen: the numbers that matter, and verdicts in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.base import formats
from pipeline.quality.report.fits import Drift, FitSummary
from pipeline.quality.report.gather import Gathered
from pipeline.quality.report.page import Headline, Note, counted, decimal, listed, number, share
from pipeline.quality.report.rows import ReportRows
from pipeline.quality.report.sections import POOR, languages
from pipeline.quality.report.statistics import finite

TRUSTED = 0.6  # correlation from which on predictions are of use


def headlines(found: Gathered) -> list[Headline]:
    """Numbers for the top of the page."""
    accounting, rows = found.accounting, found.rows
    tokens = accounting.counts.get("segment", {}).get("tokens", 0)
    mean = tokens / accounting.sentences if accounting.sentences else math.nan
    shown = [
        Headline(number(accounting.kept), "documents", f"of {number(accounting.documents_in)}"),
        Headline(number(accounting.sentences), "sentences", f"in {counted(accounting.parts, 'part')}"),
        Headline(number(tokens), "tokens", f"{decimal(mean)} a sentence"),
        Headline(number(len(rows.langs)), "language" + "s" * (len(rows.langs) != 1), _commonest(rows)),
        Headline(formats.size(sum(accounting.data_bytes.values())), "stored"),
    ]
    score = accounting.counts.get("autobleu", {})
    if score.get("scored"):
        bleu = decimal(score["score_sum"] / score["scored"])
        shown.append(Headline(bleu, "AutoBLEU, mean", f"{number(score['scored'])} scored"))
    if rows.has("fragility_cosine"):
        fragility = finite(rows.scores["fragility_cosine"])
        more = f"cosine, {number(len(fragility))} measured"
        shown.append(Headline(decimal(float(fragility.mean()), 3), "fragility, mean", more))
    return shown


def _commonest(rows: ReportRows) -> str:
    order = languages(rows)
    return f"{'mostly ' * (len(order) > 1)}{rows.langs[order[0]]}" if order else ""


def verdicts(found: Gathered, fits: Sequence[FitSummary], drift: Sequence[Drift]) -> list[Note]:
    """What is right and what to look at, in words."""
    accounting, rows = found.accounting, found.rows
    dropped, quarantined = sum(accounting.dropped.values()), sum(accounting.quarantined.values())
    equation = (
        f"{number(accounting.documents_in)} documents in = {number(accounting.kept)} kept + "
        f"{number(dropped)} dropped + {number(quarantined)} quarantined"
    )
    balanced = not accounting.problems and accounting.documents_in == accounting.kept + dropped + quarantined
    notes = [Note(f"The books balance: {equation}.", "good")]
    if not balanced:
        what = (
            f"{counted(len(accounting.problems), 'problem')} below"
            if accounting.problems
            else equation.replace("=", "≠")
        )
        notes = [Note(f"The books do not balance: {what}.", "bad")]
    notes.append(_complete(found))
    if quarantined:
        reasons = [f"{reason} {number(count)}" for reason, count in accounting.quarantined.most_common()]
        notes.append(Note(f"{counted(quarantined, 'document')} in quarantine: {listed(reasons, 4)}."))
    encode = accounting.counts.get("encode")
    if encode:
        truncated, broken = encode["truncated"], encode["non_finite"]
        what = f"{counted(truncated, 'sentence')} truncated, {counted(broken, 'embedding')} not finite."
        whole = Note("Every embedding is finite and of a whole sentence.", "good")
        notes.append(Note(what) if truncated or broken else whole)
    if rows.has("autobleu"):
        values = finite(rows.scores["autobleu"])
        poor = f"{share(int((values < POOR).sum()), len(values))} of the scored sentences are below {POOR}"
        notes.append(Note(f"AutoBLEU is {decimal(float(np.median(values)))} in the median; {poor}.", "plain"))
    if rows.has("weight"):
        weights = finite(rows.scores["weight"])
        light = share(int((weights < 0.5).sum()), len(weights))
        notes.append(Note(f"{light} of the sentences have a sample weight below one half.", "plain"))
    for one in fits:
        held_out = one.held_out("cosine") or one.held_out("bleu")
        if held_out and one.name == "predictor":
            what = f"Predicted fragility correlates with the measured by {held_out[0]:.2f} (Pearson, held out)."
            notes.append(Note(what, "good" if held_out[0] >= TRUSTED else "look"))
    moved = [f"{one.fit} ({one.measure})" for one in drift if one.drifted]
    if drift:
        text = f"Later data has drifted from the fits: {listed(moved)}; --refit makes new ones." if moved else ""
        notes.append(Note(text or "Later data is like what the fits were made on.", "look" if moved else "good"))
    if accounting.warnings:
        notes.append(Note(f"{counted(len(accounting.warnings), 'warning')}: see the books.", "look"))
    return notes


def _complete(found: Gathered) -> Note:
    accounting = found.accounting
    if accounting.complete:
        return Note(f"All {number(accounting.parts)} parts have every stage: {', '.join(accounting.rows)}.", "good")
    open_parts = [f"{stage} on {counted(count, 'part')}" for stage, count in accounting.open_parts.items()]
    chunks = [f"segment on {counted(accounting.open_chunks, 'chunk')}"] if accounting.open_chunks else []
    return Note(f"Not done yet: {', '.join(chunks + open_parts)}.", "look")
