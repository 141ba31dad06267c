"""Makes the sections on scores and fits: fragility (LCM 2.5.2), its prediction and sample weights (2.4.4), codes
(2.3.5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.quality.drift import AUTOBLEU, AUTOBLEU_EXACT, RELATIVE_ERROR, FitSummary
from pipeline.quality.report import plots
from pipeline.quality.report.gather import Gathered
from pipeline.quality.report.page import Block, Figure, Note, Section, Table, decimal, number, share
from pipeline.quality.report.rows import Array, Bin, ReportRows, by_length, finite, pearson
from pipeline.quality.report.sections import length_table
from pipeline.quality.report.text_kinds import KINDS

BLEU, COSINE = "AutoBLEU", "external cosine"
NAMES = {"bleu": BLEU, "cosine": COSINE}
FRAGILE = 0.05  # share of the measured sentences (LCM 2.5.2)


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
    blocks += [length_table(f"{name} by length", one, digits=3) for name, one in bins.items()]
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
            plots.density(f"against-{score}", first, second, "measured fragility", "predicted"),
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
