"""Makes the sections on what is in a corpus: contents, accounting, lengths, embeddings, AutoBLEU, examples, selection;
on fragility (LCM 2.5.2), its prediction and sample weights (2.4.4), and codes (2.3.5); and on what was expected of it.

Each function returns a section, or None if the corpus has nothing to show in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.base import formats
from pipeline.config.report import MEASURES, measure_of
from pipeline.quality.drift import AUTOBLEU, AUTOBLEU_EXACT, RELATIVE_ERROR, FitSummary
from pipeline.quality.expectations import FEW, Expectation
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
from pipeline.quality.report.rows import (
    NON_FINITE,
    TRUNCATED,
    Array,
    Bin,
    ReportRows,
    by_length,
    finite,
    pearson,
    summarise,
)
from pipeline.quality.report.text_kinds import KINDS

DRAWN = 25  # languages in a plot
DIGITS = {"autobleu": 1, "fragility_cosine": 3, "fragility_bleu": 3}
HEADS = {"autobleu": "AutoBLEU", "fragility_cosine": "fragility, cosine", "fragility_bleu": "fragility, BLEU"}
MOST_SOURCES = 12  # in a table
QUARTILES = ("Q1", "median", "Q3")
POOR = 20  # AutoBLEU below which hardly anything was recovered
BROKEN = 5  # in the notes on the first screen
BLEU, COSINE = "AutoBLEU", "external cosine"
NAMES = {"bleu": BLEU, "cosine": COSINE}
FRAGILE = 0.05  # share of the measured sentences (LCM 2.5.2)


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
        blocks.append(Table(("reason", "place", "error", "how it begins"), rows, "Examples of the quarantine", text=4))
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
            _length_table("By length", bins),
        ],
    )


def _length_table(title: str, bins: list[Bin], digits: int = 1) -> Table:
    """Return the numbers behind a plot by length."""
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


def broken_expectations(found: Sequence[Expectation]) -> list[Note]:
    """Say which expectations do not hold, or that all do."""
    failing = [one for one in found if not one.holds]
    if found and not failing:
        return [Note(f"All {counted(len(found), 'expectation')} hold.", "good")]
    more = len(failing) - BROKEN
    rest = [Note(f"{counted(more, 'more expectation')} not met: see below.", "bad")] if more > 0 else []
    return [*(Note(f"{one.said()}.", "bad") for one in failing[:BROKEN]), *rest]


def expectations(found: Sequence[Expectation]) -> Section | None:
    """Show each expectation with its value and limit."""
    if not found:
        return None
    rows: list[list[Cell]] = [
        [
            f"{'✓' if one.holds else '✗'} {one.measure}",
            MEASURES[measure_of(one.measure)[0]].about,
            Said(one.group or one.why),
            one.shown,
            one.limit,
        ]
        for one in found
    ]
    blocks: list[Block] = [Table(("measure", "what it is", "where", "value", "expected"), rows, text=3)]
    lead = (
        "What `report.expect` of the corpus.yaml says. Of measures by language and by source, each with at least "
        f"{FEW} measured sentences must satisfy the limit, and the worst one is shown."
    )
    return Section("expectations", "Expectations", lead, blocks)


def fragility(found: Gathered) -> Section | None:
    """Show scores of decoded noisy embeddings by length and by noise (Figure 14), and their distributions
    (Figure 15).
    """
    rows = found.rows
    series: dict[str, Array] = {
        NAMES[score]: -rows.scores[f"fragility_{score}"] for score in NAMES if rows.has(f"fragility_{score}")
    }
    if not series:
        return None
    bins: dict[str, list[Bin]] = {name: by_length(rows.chars, values) for name, values in series.items()}
    blocks: list[Block] = [
        Figure(
            plots.by_length("fragility-length", bins, "mean score over α", top=1),
            "Score by sentence length",
            "Mean over the noise levels; band: 10th to 90th percentile (LCM paper, Figure 14, left).",
        )
    ]
    noisy: dict[str, Array] = {
        NAMES[score]: rows.by_noise[f"{score}_by_noise"] for score in NAMES if f"{score}_by_noise" in rows.by_noise
    }
    if noisy and found.noise_levels:
        blocks.append(
            Figure(
                plots.by_noise("noise", found.noise_levels, noisy),
                "Score by noise variance",
                "Mean and 10th to 90th percentile (Figure 14, right).",
            )
        )
    blocks.append(
        Figure(
            plots.histogram("fragility", series, "mean score over α", limits=(0, 1)),
            "Distribution",
            "Fragility is minus this score: what lies left is fragile (Figure 15).",
        )
    )
    blocks += [_length_table(f"{name} by length", one, digits=3) for name, one in bins.items()]
    measured = max(len(finite(values)) for values in series.values())
    blocks += _kinds_of_the_fragile(rows)
    lead = (
        "Noise of variance α is mixed into the normalised embedding, which is then decoded and compared with the "
        f"sentence. Measured on {number(measured)} of {number(rows.read)} sentences."
    )
    return Section("fragility", "Fragility", lead, blocks)


def _kinds_of_the_fragile(rows: ReportRows) -> list[Block]:
    """Return a table of what the most fragile sentences are, compared with all whose fragility was measured."""
    name = next(one for one in ("fragility_cosine", "fragility_bleu") if rows.has(one))
    scored = np.flatnonzero(np.isfinite(rows.scores[name]))
    most = scored[np.argsort(-rows.scores[name][scored], kind="stable")[: max(1, round(FRAGILE * len(scored)))]]
    cells: list[list[str]] = []
    for place, kind in enumerate(KINDS):
        bit = 1 << place
        everywhere, fragile = (int((rows.kinds[one] & bit > 0).sum()) for one in (scored, most))
        lift = fragile / len(most) / (everywhere / len(scored)) if everywhere else math.nan
        cells.append([kind, share(everywhere, len(scored)), share(fragile, len(most)), number(fragile), decimal(lift)])
    none_everywhere, none_fragile = (int((rows.kinds[one] == 0).sum()) for one in (scored, most))
    lift = none_fragile / len(most) / (none_everywhere / len(scored)) if none_everywhere else math.nan
    shares = (share(none_everywhere, len(scored)), share(none_fragile, len(most)))
    cells.append(["none of these", *shares, number(none_fragile), decimal(lift)])
    head = ("kind of text", "of all", "of the most fragile", "sentences of these", "times as often")
    told = f"What the most fragile {FRAGILE:.0%} are: {number(len(most))} of {number(len(scored))}, by patterns"
    return [Table(head, cells, told)]


def prediction(found: Gathered, fits: Sequence[FitSummary]) -> Section | None:
    """Show predicted against measured fragility, and the sample weights (Figure 12)."""
    rows = found.rows
    blocks: list[Block] = []
    for score, name in NAMES.items():
        of_fits = [one for fit in fits if fit.name == "predictor" and (one := fit.held_out(score))]
        blocks += _against(rows, score, name, of_fits[0] if of_fits else None)
    if rows.has("weight"):
        weights = finite(rows.scores["weight"])
        low = int((weights < 0.5).sum())
        blocks.append(
            Figure(
                plots.histogram("weight", {"weight": weights}, "sample weight ω", limits=(0, 1)),
                "Sample weights",
                f"ω = sigmoid(a·F + b) of the predicted fragility F, standardised (Figure 12). Mean "
                f"{decimal(float(weights.mean()), 3)}; {share(low, len(weights))} of the sentences are below one half.",
            )
        )
    lead = "A small network predicts fragility from the embedding, so that every sentence has a weight in training."
    return Section("prediction", "Predicted fragility and weights", lead, blocks) if blocks else None


def _against(rows: ReportRows, score: str, name: str, held_out: tuple[float, int] | None) -> list[Block]:
    measured, predicted = f"fragility_{score}", f"fragility_predicted_{score}"
    if not (rows.has(measured) and rows.has(predicted)):
        return []
    first, second = rows.scores[measured], rows.scores[predicted]
    correlation, pairs = pearson(first, second)
    if math.isnan(correlation):
        return [Note(f"{name}: {number(pairs)} sentences are measured and predicted; no correlation can be computed.")]
    return [
        Figure(
            plots.density(f"against-{score}", first, second),
            f"Predicted against measured, {name}",
            f"Pearson correlation {correlation:.3f} over {number(pairs)} sentences, with those that the predictor was "
            f"trained on{f'; {held_out[0]:.3f} on the {number(held_out[1])} held out' if held_out else ''}.",
        )
    ]


def codes(fits: Sequence[FitSummary]) -> Section | None:
    """Show relative error, and AutoBLEU if it was measured, by number of codebooks (Figure 9)."""
    blocks: list[Block] = []
    for fit in fits:
        for key, y, top in ((RELATIVE_ERROR, "relative error", 1.0), (AUTOBLEU, "AutoBLEU", 100.0)):
            points = fit.curve(key) if fit.name == "rvq" else None
            if not points:
                continue
            end = top if key == AUTOBLEU else max(top, float(np.max(points[1])))
            exact = fit.numbers.get(AUTOBLEU_EXACT)
            level = ("not quantised", exact) if key == AUTOBLEU and isinstance(exact, float) else None
            svg = plots.curve(f"rvq-{key}", points, "codebooks", y, top=end, level=level)
            caption = (
                "Lower is better." if key == RELATIVE_ERROR else "Of dequantised embeddings (LCM paper, Figure 9)."
            )
            blocks.append(Figure(svg, f"{y[0].upper()}{y[1:]} by number of codebooks", caption))
            cells = [[f"{place:g}", f"{value:.4g}"] for place, value in zip(*points, strict=True)]
            blocks.append(Table(("codebooks", y), cells, f"{y[0].upper()}{y[1:]}, as numbers", folded=True))
    blocks.sort(key=lambda block: block.kind != "figure")
    lead = "Each codebook quantises what the previous ones left of the embedding."
    return Section("codes", "Codes", lead, blocks) if blocks else None
