"""Makes the first screen (headlines, and verdicts in words) and the sections on where a corpus comes from.

The latter show fits and drift, throughput, settings, models and versions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from pipeline.base import formats
from pipeline.corpus.recipes import SEGMENT
from pipeline.quality.drift import Drift, FitSummary
from pipeline.quality.report.curated import warnings
from pipeline.quality.report.gather import Gathered
from pipeline.quality.report.page import (
    Block,
    Cell,
    Headline,
    Listing,
    Note,
    Section,
    Table,
    counted,
    decimal,
    listed,
    number,
    share,
)
from pipeline.quality.report.rows import finite
from pipeline.quality.report.sections import POOR, languages
from stages.segment.token_cap import OF_ONE, cut_by_tokens

TRUSTED = 0.6  # the smallest useful correlation of predictions


def headlines(found: Gathered) -> list[Headline]:
    """Return the numbers for the top of the page."""
    accounting, rows = found.accounting, found.rows
    tokens = accounting.counts.get("segment", {}).get("tokens", 0)
    mean = tokens / accounting.sentences if accounting.sentences else math.nan
    seen = f", in {number(rows.read)} sentences" if rows.read < rows.total else ""  # what is not counted over all
    order = languages(rows)
    commonest = f"{'mostly ' * (len(order) > 1)}{rows.langs[order[0]]}" if order else ""
    shown = [
        Headline(number(accounting.kept), "documents", f"of {number(accounting.documents_in)}"),
        Headline(number(accounting.sentences), "sentences", f"in {counted(accounting.parts, 'part')}"),
        Headline(number(tokens), "tokens", f"{decimal(mean)} per sentence"),
        Headline(number(len(rows.langs)), "language" + "s" * (len(rows.langs) != 1), commonest + seen),
        Headline(formats.size(sum(accounting.data_bytes.values())), "stored"),
    ]
    score = accounting.counts.get("autobleu", {})
    if score.get("scored"):
        bleu = decimal(score["score_sum"] / score["scored"])
        shown.append(Headline(bleu, "AutoBLEU, mean", f"{number(score['scored'])} scored"))
    if rows.has("fragility_cosine"):
        fragility = finite(rows.scores["fragility_cosine"])
        more = f"cosine, {number(len(fragility))} measured{seen}"
        shown.append(Headline(decimal(float(fragility.mean()), 3), "fragility, mean", more))
    return shown


def verdicts(found: Gathered, fits: Sequence[FitSummary], drift: Sequence[Drift]) -> list[Note]:
    """Say in words what is right and what needs attention.

    Args:
        found: what was read from the corpus.
        fits: the artifacts that the run depends on.
        drift: how later data differs from what they were fitted on.

    Returns:
        Remarks, each good, plain, to be looked at, or bad.
    """
    accounting, rows = found.accounting, found.rows
    dropped, quarantined = sum(accounting.dropped.values()), sum(accounting.quarantined.values())
    equation = (
        f"{number(accounting.documents_in)} documents in = {number(accounting.kept)} kept + "
        f"{number(dropped)} dropped + {number(quarantined)} quarantined"
    )
    balanced = not accounting.problems and accounting.documents_in == accounting.kept + dropped + quarantined
    notes = [Note(f"The accounting balances: {equation}.", "good")]
    if not balanced:
        what = (
            f"{counted(len(accounting.problems), 'problem')} below"
            if accounting.problems
            else equation.replace("=", "≠")
        )
        notes = [Note(f"The accounting does not balance: {what}.", "bad")]
    notes.append(_complete(found))
    if found.hides_documents:
        what = "Documents were purged since the last run. The accounting and what follows from it still count them"
        notes.append(
            Note(f"{what}; languages, scores and examples are without them. pipeline run takes them out.", "look")
        )
    if rows.read < rows.total:
        of = f"the first {number(rows.read)} of {number(rows.total)} sentences"
        notes.append(Note(f"Figures of languages, scores, weights and noise are from {of}, in random order.", "plain"))
    if quarantined:
        reasons = [f"{reason} {number(count)}" for reason, count in accounting.quarantined.most_common()]
        notes.append(Note(f"{counted(quarantined, 'document')} in quarantine: {listed(reasons, 4)}."))
    encode = accounting.counts.get("encode")
    if encode:
        truncated, broken = encode["truncated"], encode["non_finite"]
        made = accounting.rows["encode"]
        so_far = f" of the {number(made)} so far" if made < accounting.sentences else ""
        what = f"{counted(truncated, 'sentence')} truncated and {counted(broken, 'embedding')} not finite{so_far}."
        whole = Note(f"Every embedding{so_far} is finite and of a whole sentence.", "good")
        notes.append(Note(what) if truncated or broken else whole)
    notes += [Note(text, "look") for text in _cut_by_tokens(found)]
    notes += warnings(found.curation)
    if accounting.duplicates:
        notes.append(Note(f"{accounting.duplicates[0].upper()}{accounting.duplicates[1:]}.", "plain"))
    if rows.has("autobleu"):
        values = finite(rows.scores["autobleu"])
        poor = f"{share(int((values < POOR).sum()), len(values))} of the scored sentences are below {POOR}"
        notes.append(Note(f"The median of AutoBLEU is {decimal(float(np.median(values)))}; {poor}.", "plain"))
    if rows.has("weight"):
        weights = finite(rows.scores["weight"])
        light = share(int((weights < 0.5).sum()), len(weights))
        notes.append(Note(f"{light} of the sentences have a sample weight below one half.", "plain"))
    for one in fits:
        held_out = one.held_out()
        if held_out and one.name == "predictor":
            what = f"Predicted fragility correlates with measured fragility by {held_out[0]:.2f} (Pearson, held out)."
            notes.append(Note(what, "good" if held_out[0] >= TRUSTED else "look"))
    changed = max(fits, key=lambda one: one.changed, default=None)
    if changed and changed.changed:
        what = f"{changed.changed} of the {counted(changed.chunks, 'chunk')} that {changed.name} was fitted on"
        notes.append(Note(f"{what} have changed since: what is new in them is not compared with the fits.", "look"))
    moved = [f"{one.fit} ({one.measure})" for one in drift if one.drifted]
    if drift:
        text = f"Later data has drifted from the fits: {listed(moved)}; --refit makes new ones." if moved else ""
        notes.append(Note(text or "Later data is like the data of the fits.", "look" if moved else "good"))
    if accounting.warnings:
        notes.append(Note(f"{counted(len(accounting.warnings), 'warning')}: see the accounting.", "look"))
    return notes


def _complete(found: Gathered) -> Note:
    accounting = found.accounting
    if accounting.complete:
        have = "The part has" if accounting.parts == 1 else f"All {counted(accounting.parts, 'part')} have"
        return Note(f"{have} every stage: {', '.join(accounting.rows)}.", "good")
    open_parts = [f"{stage} on {counted(count, 'part')}" for stage, count in accounting.open_parts.items()]
    chunks = [f"segment on {counted(accounting.open_chunks, 'chunk')}"] if accounting.open_chunks else []
    return Note(f"Not done yet: {', '.join(chunks + open_parts)}.", "look")


_HEADS = {"stage", "version"}


def fits_section(fits: Sequence[FitSummary], drift: Sequence[Drift]) -> Section | None:
    """Show what each artifact was fitted on, its numbers, and whether later data is still similar."""
    if not fits:
        return None
    cells: list[list[Cell]] = [[fit.name, fit.fingerprint, number(fit.rows), number(fit.chunks)] for fit in fits]
    blocks: list[Block] = [Table(("fit", "fingerprint", "sentences", "chunks"), cells, text=2)]
    numbers: list[list[Cell]] = [
        [fit.name, key.replace("_", " "), number(value) if value == round(value) else f"{value:.4g}"]
        for fit in fits
        for key, value in fit.numbers.items()
        if isinstance(value, int | float)
    ]
    if numbers:
        blocks.append(Table(("fit", "number", "value"), numbers, "Numbers", text=2))
    for fit in fits:
        levels, before, after = (fit.numbers.get(name) for name in ("noise_levels", "nats_before", "nats"))
        if isinstance(levels, Sequence) and isinstance(before, Sequence) and isinstance(after, Sequence):
            lines = [[f"{one:g}" for one in levels], *([decimal(x, 3) for x in of] for of in (before, after))]
            told = f"{fit.name}: nats per token on held-out sentences, by variance of the noise"
            by_noise: list[list[Cell]] = [list(row) for row in zip(*lines, strict=True)]
            blocks.append(Table(("noise", "first decoder", "fine-tuned"), by_noise, told, text=0))
    if drift:
        rows: list[list[Cell]] = [
            [one.fit, one.measure, "drifted" if one.drifted else "as before", f"{one.fitted:.4g}", f"{one.now:.4g}"]
            for one in drift
        ]
        head = ("fit", "measure", "verdict", "when fitted", "later data")
        blocks.append(Table(head, rows, "Drift", text=3))
    lead = "Fits are made once, on a sample, and then frozen: everything downstream depends on their fingerprints."
    return Section("fits", "Fits", lead, blocks)


def throughput(found: Gathered) -> Section | None:
    """Show sentences per second of work and where the time went, by stage."""
    cells: list[list[Cell]] = []
    for one in found.work:
        times = sorted(((value, step) for step, value in one.seconds.items() if step != "wait"), reverse=True)
        steps = ", ".join(f"{step} {share(value, one.busy)}" for value, step in times if value >= 0.01 * one.busy)
        rate = one.rows / one.busy if one.busy else float("nan")
        cells.append(
            [
                one.stage,
                steps,
                listed(sorted(one.devices)),
                number(one.rows),
                formats.duration(one.busy),
                f"{number(rate) if rate >= 10 else decimal(rate)}/s",
            ]
        )
    head = ("stage", "where the time went", "device", "sentences", "seconds of work", "rate")
    lead = "Seconds of work are added up over parts, without waiting; simultaneous parts each count."
    return Section("throughput", "Throughput", lead, [Table(head, cells, text=3)]) if cells else None


def provenance(found: Gathered) -> Section:
    """Show stages with versions, models and digests; times; the configuration."""
    work = {one.stage: one for one in found.work}
    cells: list[list[Cell]] = []
    for recipe in found.recipes:
        stage = str(recipe["stage"])
        done = work.get(stage)
        times = f"{_time(done.first)} – {_time(done.last)}" if done else "–"
        settings = recipe.get(stage, {})
        models = [f"{key} {settings[key]}" for key in ("model", "sat", "external") if settings.get(key)]
        cells.append([stage, str(recipe["version"]), ", ".join(models) or "–", times])
    lines = json.dumps(found.recipes, ensure_ascii=False, indent=1, sort_keys=True).splitlines()
    digests = [[name, digest] for name, digest in sorted(_digests(found.recipes).items())]
    blocks: list[Block] = [
        Table(("stage", "version", "models", "receipts from – to (UTC)"), cells, text=4),
        Table(("what results depend on", "digest"), digests, "Digests", text=2),
        Listing("Recipes: every setting that decides what comes out", lines),
    ]
    if found.configuration:
        blocks.append(Listing(f"corpus.yaml of run {found.run}", found.configuration.splitlines()))
    return Section("provenance", "Provenance", "", blocks)


def _digests(recipes: Sequence[dict[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for recipe in recipes:
        stage = recipe["stage"]
        named = recipe.get("artifacts", {}) | recipe.get("fits", {})
        plain = {key: value for key, value in recipe.items() if isinstance(value, str) and key not in _HEADS}
        found |= {f"{stage}: {key}": str(value) for key, value in (named | plain).items()}
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _cut_by_tokens(found: Gathered) -> list[str]:
    """Return warnings of languages that the tokenizer hardly knows.

    The beginning of each document counts, as in a plan. Several inputs may have recipes of their own, with the same
    caps.
    """
    rows = found.rows
    before = np.cumsum(rows.chars, dtype=np.int64) - rows.chars
    opens = rows.starts.copy()
    opens[:1] = True  # of a document whose first sentence was not read
    beginning = before - before[opens][np.cumsum(opens) - 1] < OF_ONE
    counts = {}
    for place in languages(rows):
        inside = (rows.lang == place) & beginning
        sentences, tokens = int(inside.sum()), int(rows.tokens[inside].sum(dtype=np.int64))
        counts[rows.langs[place]] = (int(rows.chars[inside].sum(dtype=np.int64)), tokens - 2 * sentences)
    segment = next(one["segment"] for one in found.recipes if one["stage"] == SEGMENT)
    return cut_by_tokens(counts, segment.get("max_tokens"), segment["model"])
