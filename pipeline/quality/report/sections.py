"""Makes the sections on what is in a corpus: contents, accounting, lengths, embeddings, AutoBLEU, examples, selection.

Each function returns a section, or None if the corpus has nothing to show in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.base import formats
from pipeline.quality.report import plots
from pipeline.quality.report.gather import Gathered
from pipeline.quality.report.page import (
    Block,
    Cell,
    Figure,
    Note,
    Said,
    Section,
    Table,
    counted,
    decimal,
    number,
    share,
)
from pipeline.quality.report.rows import NON_FINITE, TRUNCATED, Bin, ReportRows, by_length, finite, summarise

DRAWN = 25  # languages in a plot
DIGITS = {"autobleu": 1, "fragility_cosine": 3, "fragility_bleu": 3}
HEADS = {"autobleu": "AutoBLEU", "fragility_cosine": "fragility, cosine", "fragility_bleu": "fragility, BLEU"}
MOST_SOURCES = 12  # in a table
QUARTILES = ("Q1", "median", "Q3")
POOR = 20  # AutoBLEU below which hardly anything was recovered


def languages(rows: ReportRows) -> list[int]:
    """Return the indices of the languages, those with most sentences first."""
    counts = np.bincount(rows.lang, minlength=len(rows.langs))
    return sorted(range(len(rows.langs)), key=lambda place: (-counts[place], rows.langs[place]))


def contents(found: Gathered) -> Section:
    """Show languages, splits and bytes."""
    rows, accounting = found.rows, found.accounting
    table: list[list[Cell]] = []
    for place in languages(rows):
        inside = rows.lang == place
        sentences = int(inside.sum())
        table.append(
            [
                rows.langs[place],
                number(int((inside & rows.starts).sum())),
                number(sentences),
                share(sentences, rows.read),
                number(int(rows.tokens[inside].sum(dtype=np.int64))),
                decimal(float(rows.tokens[inside].mean())),
                decimal(float(rows.chars[inside].mean())),
            ]
        )
    head = ("language", "documents", "sentences", "share", "tokens", "tokens per sentence", "characters per sentence")
    splits = [[name, number(count), share(count, rows.read)] for name, count in rows.splits.most_common()]
    of = accounting.data_sentences
    each = {one: size / of[one] for one, size in accounting.data_bytes.items() if of[one]}
    stored = [
        [family, formats.size(size), decimal(each.get(family, math.nan))]
        for family, size in accounting.data_bytes.most_common()
    ]
    total = formats.size(sum(accounting.data_bytes.values()))
    stored.append(["all", total, decimal(sum(each.values()) if each else math.nan)])
    return Section(
        "contents",
        "What is in it",
        f"{counted(accounting.kept, 'document')} in {counted(accounting.parts, 'part')}, "
        f"from {formats.size(accounting.bytes_read)} of "
        "input.",
        [
            Table(head, table, "Languages"),
            Table(("split", "sentences", "share"), splits, "Splits"),
            _documents(rows),
            Table(("family", "stored", "bytes per sentence"), stored, "Files"),
        ],
    )


def _documents(rows: ReportRows) -> Table:
    """Show quartiles of sentences and tokens per document, by split and by source (LCM Tables 2 and 9)."""
    documents = rows.documents
    groups = [("all", np.ones(len(documents.sentences), np.bool_))]
    for kind, codes, names in (
        ("split", documents.split, documents.splits), ("source", documents.source, documents.sources),
    ):  # fmt: skip
        order = sorted(range(len(names)), key=lambda place: -int((codes == place).sum()))
        groups += [(f"{kind} {names[place]}", codes == place) for place in order[:MOST_SOURCES]]
    cells: list[list[Cell]] = []
    for name, chosen in groups:
        quartiles = (
            number(value) if value.is_integer() else decimal(value)
            for counts in (documents.sentences[chosen], documents.tokens[chosen])
            for value in map(float, np.quantile(counts, (0.25, 0.5, 0.75)) if len(counts) else (math.nan,) * 3)
        )
        total = int(documents.tokens[chosen].sum())
        cells.append([name, number(int(chosen.sum())), *quartiles, number(total)])
    head = ("", "documents", *(f"{unit} {quartile}" for unit in ("sentences", "tokens") for quartile in QUARTILES))
    return Table((*head, "tokens, sum"), cells, "Documents: quartiles of sentences and tokens (LCM Tables 2 and 9)")


def records(found: Gathered) -> Section:
    """Show the accounting: where every document went, with examples from quarantine."""
    accounting = found.accounting
    table: list[list[Cell]] = [
        ["documents in", "", number(accounting.documents_in)],
        ["kept", "", number(accounting.kept)],
    ]
    for what, reasons in (("dropped", accounting.dropped), ("quarantined", accounting.quarantined)):
        table += [[what, reason, number(count)] for reason, count in reasons.most_common()] or [[what, "", "0"]]
    blocks: list[Block] = [Table(("", "reason", "documents"), table, text=2)]
    blocks += [Note(problem, "bad") for problem in accounting.problems]
    if accounting.bytes_unreadable:
        blocks.append(Note(f"{formats.size(accounting.bytes_unreadable)} of the input could not be decoded.", "look"))
    for path, count in accounting.misfits.items():
        blocks.append(Note(f"{path}: {counted(count, 'value')} did not fit its type and became null.", "look"))
    blocks += [Note(f"{text} ({counted(parts, 'part')})") for text, parts in accounting.warnings.most_common()]
    rows = [
        (reason, Said(one.place), Said(one.error), Said(one.payload.decode("utf-8", "replace").strip()))
        for reason, ones in found.quarantine.items()
        for one in ones
    ]
    if rows:
        blocks.append(
            Table(("reason", "place", "error", "how it begins"), rows, "Examples of the quarantine", text=4),
        )
    lead = "Documents in = kept + dropped by reason + quarantined by reason, counted independently at both ends."
    return Section("accounting", "Accounting", lead, blocks)


def lengths(found: Gathered) -> Section | None:
    """Show how long sentences are."""
    rows = found.rows
    if not rows.read:
        return None
    counts = found.accounting.counts.get("segment", {})
    split, hard = counts.get("cap_splits", 0), counts.get("hard_cuts", 0)
    cut = f"The cap split {counted(split, 'sentence')}{f', {number(hard)} without a boundary' if hard else ''}."
    return Section(
        "lengths",
        "Lengths",
        f"{cut} Longer sentences count in the last bar.",
        [
            Figure(plots.histogram("chars", {"characters": rows.chars}, "characters"), "Characters per sentence"),
            Figure(plots.histogram("tokens", {"tokens": rows.tokens}, "tokens"), "Tokens per sentence"),
        ],
    )


def embeddings(found: Gathered) -> Section | None:
    """Show norms, truncation and values that are not finite, by language."""
    rows = found.rows
    if rows.status is None:
        return None
    table: list[list[Cell]] = []
    drawn: list[tuple[str, Bin]] = []
    for place in languages(rows):
        status = rows.status[rows.lang == place]
        norm = summarise(rows.norms[rows.norm_lang == place])
        if norm.count:
            drawn.append((rows.langs[place], norm))
        marked = [int((status == one).sum()) for one in (TRUNCATED, NON_FINITE)]
        parts = [f"{number(one)} ({share(one, len(status))})" if one else "0" for one in marked]
        norms = [decimal(value, 3) for value in (norm.mean, norm.low, norm.median, norm.high)]
        table.append([rows.langs[place], *norms, *parts])
    head = ("language", "mean norm", "p10", "p50", "p90", "truncated", "not finite")
    blocks: list[Block] = []
    if drawn:
        spread = {"norm": rows.norms}
        blocks += [
            Figure(
                plots.by_language("norms", drawn[:DRAWN], "norm"),
                "Norm by language",
                "Point: mean; line: 10th to 90th percentile. "
                "A language whose norms differ from the others' is encoded differently.",
            ),
            Figure(plots.histogram("norm", spread, "norm"), "Norms of all languages"),
        ]
    blocks.append(Table(head, table))
    of_vectors = f" Norms are of the first {number(len(rows.norms))}." if len(rows.norms) < rows.read else ""
    saved = found.accounting.counts.get("encode", {}).get("duplicates_saved", 0)
    lead = f"{number(saved)} sentences are copies of another of their part, and were not computed again.{of_vectors}"
    return Section("embeddings", "Embeddings", lead, blocks)


def scores(found: Gathered) -> Section | None:
    """Show AutoBLEU by length and language (LCM 2.2, Figure 3), and its distribution."""
    rows = found.rows
    if not rows.has("autobleu"):
        return None
    values = rows.scores["autobleu"]
    everything = finite(values)
    groups = [(rows.langs[place], summarise(values[rows.lang == place])) for place in languages(rows)]
    groups = [(name, one) for name, one in groups if one.count]
    table: list[list[Cell]] = []
    for name, one in groups:
        poor = finite(values[rows.lang == rows.langs.index(name)]) < POOR
        spread = [decimal(value) for value in (one.mean, one.low, one.median, one.high)]
        bleu = decimal(found.bleu.get(name, float("nan")))
        table.append([name, number(one.count), bleu, *spread, share(int(poor.sum()), one.count)])
    bins = by_length(rows.chars, values)
    head = ("language", "scored", "corpus BLEU", "mean", "p10", "p50", "p90", f"below {POOR}")
    stopped = found.accounting.counts.get("autobleu", {}).get("stopped_at_length", 0)
    return Section(
        "autobleu",
        "AutoBLEU",
        "Each embedding is decoded again and compared with its sentence: a model of embeddings cannot learn what "
        f"is lost there. {number(stopped)} decoded sentences reached the maximum length.",
        [
            Figure(
                plots.by_length("autobleu-length", {"AutoBLEU": bins}, "AutoBLEU", top=100),
                "By sentence length",
                "Mean, with the 10th to 90th percentile; hollow: fewer than 10 sentences; the last point is of all "
                "that are longer (LCM paper, Figure 3).",
            ),
            Figure(
                plots.histogram("autobleu", {"AutoBLEU": everything}, "AutoBLEU", limits=(0, 100)),
                "Distribution",
                f"Of {number(len(everything))} sentences {share(int((everything < POOR).sum()), len(everything))} are "
                f"below {POOR}.",
            ),
            Figure(
                plots.by_language("autobleu-lang", groups[:DRAWN], "AutoBLEU", extra=found.bleu, limits=(0, 100)),
                "By language",
                "Point: mean; line: 10th to 90th percentile; diamond: corpus BLEU, of all scored sentences together.",
            ),
            Table(head, table, "By language"),
            length_table("By length", bins),
        ],
    )


def length_table(title: str, bins: list[Bin], digits: int = 1) -> Table:
    """Return the numbers behind a plot by length.

    Args:
        title: the title of the table.
        bins: quantiles by sentence length.
        digits: how many digits follow the decimal point.

    Returns:
        A table that is folded at first.
    """
    cells: list[list[Cell]] = [
        [
            f"from {one.first}",
            number(one.count),
            *(decimal(value, digits) for value in (one.mean, one.low, one.median, one.high)),
        ]
        for one in bins
    ]
    return Table(("characters", "sentences", "mean", "p10", "p50", "p90"), cells, title, folded=True)


def examples(found: Gathered) -> Section | None:
    """Show the worst sentences by AutoBLEU, and the most fragile ones, with their decodings."""
    blocks: list[Block] = []
    for title, rows, columns in (
        ("Lowest AutoBLEU", found.rows.worst, ("autobleu",)),
        ("Most fragile", found.rows.fragile, ("fragility_cosine", "fragility_bleu", "autobleu")),
    ):
        there = [name for name in columns if any(row.get(name) is not None for row in rows)]
        cells: list[list[Cell]] = [
            [
                Said(row["text"], f"{row['lang']}, part {row['part']}, row {row['row']}"),
                Said(row.get("decoded") or "–"),
                *("–" if row[name] is None else decimal(row[name], DIGITS[name]) for name in there),
            ]
            for row in rows
        ]
        if cells:
            head = ("sentence", "what its embedding decodes to", *(HEADS[name] for name in there))
            blocks.append(Table(head, cells, title, text=2))
    lead = "Each text is shown once. Often these are addresses, numbers, tables, or text in an unexpected language."
    return Section("examples", "Examples", lead, blocks) if blocks else None


def selection(removed: Sequence[tuple[str, int]]) -> Section | None:
    """Show where sentences go under `select`. `removed`: each clause or other reason, and what is kept, with
    its count.
    """
    if not removed:
        return None
    total = sum(count for _, count in removed)
    table: list[list[Cell]] = [[Said(label), number(count), share(count, total)] for label, count in removed]
    lead = f"Of {counted(total, 'sentence')}, each is counted once, under the first reason that removed it."
    return Section("select", "Selection", lead, [Table(("clause", "sentences", "share"), table)])
