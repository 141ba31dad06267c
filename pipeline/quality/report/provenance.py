"""Sections on where a corpus comes from: fits and drift, throughput, settings, models, versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pipeline.base import formats
from pipeline.quality.report.fits import Drift, FitSummary
from pipeline.quality.report.gather import Gathered
from pipeline.quality.report.page import Block, Cell, Listing, Section, Table, decimal, listed, number, share

_HEADS = {"stage", "version"}


def fits_section(fits: Sequence[FitSummary], drift: Sequence[Drift]) -> Section | None:
    """What each artifact was fitted on, its numbers, and whether later data still is like that."""
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
    """Sentences per second of work and where the time went, by stage."""
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
    lead = "Seconds of work are added up over parts, without waiting; parts that are worked on at once count each."
    return Section("throughput", "Throughput", lead, [Table(head, cells, text=3)]) if cells else None


def provenance(found: Gathered) -> Section:
    """Stages with versions, models and digests; times; the configuration."""
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
