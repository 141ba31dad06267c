"""Draws the plots of a dataset card: of the sentences that were written, not of the whole corpus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.quality.report import plots
from pipeline.quality.report.rows import by_length, finite, summarise
from pipeline.quality.report.sections import DRAWN


def dataset_plots(
    langs: Sequence[str], lang: npt.NDArray[np.int32], chars: npt.NDArray[np.int32], autobleu: npt.NDArray[np.float32]
) -> dict[str, tuple[str, bytes]]:
    """Draw lengths, languages and AutoBLEU for a dataset card.

    Args:
        langs: names of languages, those with most sentences first.
        lang: (rows,) int32, each row's place in `langs`.
        chars: (rows,) int32, lengths in characters.
        autobleu: (rows,) float32, scores, NaN where a row has none.

    Returns:
        File name → (caption, SVG file).
    """
    lengths = plots.histogram("chars", {"sentences": chars}, "sentence length (characters)")
    drawn = {"length.svg": ("Sentence length", lengths)}
    scored = finite(autobleu)
    if len(scored):
        bins = by_length(chars, autobleu)
        groups = [(name, summarise(autobleu[lang == place])) for place, name in enumerate(langs[:DRAWN])]
        drawn |= {
            "autobleu.svg": (
                "AutoBLEU of the sentences that were scored",
                plots.histogram("autobleu", {"AutoBLEU": scored}, "AutoBLEU", limits=(0, 100)),
            ),
            "autobleu-by-length.svg": (
                "AutoBLEU by sentence length: mean, with the 10th to 90th percentile",
                plots.by_length("autobleu-length", {"AutoBLEU": bins}, "AutoBLEU", top=100),
            ),
            "autobleu-by-language.svg": (
                "AutoBLEU by language: mean, with the 10th to 90th percentile",
                plots.by_language(
                    "autobleu-lang", [one for one in groups if one[1].count], "AutoBLEU", limits=(0, 100)
                ),
            ),
        }
    return {name: (caption, plots.standalone(svg)) for name, (caption, svg) in drawn.items()}
