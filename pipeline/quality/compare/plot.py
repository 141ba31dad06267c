"""Draws Figure 3 of the LCM paper: average AutoBLEU by sentence length, uncapped methods left, capped ones right.

Below, it shows how many sentences each point stands for; the point at the right edge covers all longer ones. The same
scores give the same bytes. The file holds the corpus's name and numbers, but no text of a document.
"""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING

from pipeline.base.formats import counted
from pipeline.quality.compare.scores import Length, Scored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "png", "pdf")
STYLES = {"spacy": ("#0072B2", "o"), "sat": ("#D55E00", "s")}  # blue and vermilion of Okabe and Ito
FEW = 10  # sentences; a point with fewer is hollow
GREY = "#666666"


def draw(file: IO[bytes], form: str, scored: list[Scored], max_chars: int, title: str, about: str) -> None:
    """Write the plot of AutoBLEU by sentence length.

    Args:
        file: the open file.
        form: the format, one of `FORMATS`.
        scored: the methods with their scores.
        max_chars: the longest sentence that is allowed, in characters; a line marks it.
        title: the title of the plot.
        about: the line below it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    sides = {
        "uncapped": [one for one in scored if not one.method.endswith("-capped")],
        "capped": [one for one in scored if one.method.endswith("-capped")],
    }
    sides = {name: members for name, members in sides.items() if members}
    with matplotlib.rc_context(
        {
            "axes.spines.right": False,
            "axes.spines.top": False,
            "svg.fonttype": "none",  # text stays text: it can be searched, and names in any script show
            "svg.hashsalt": "compare-segmenters",
            "text.parse_math": False,  # a $ in a name stays a $
        }
    ):
        figure = Figure(figsize=(1.5 + 5 * len(sides), 6), layout="constrained")
        figure.suptitle(f"{title}\n\n", fontweight="bold")  # two lines kept free
        legend = f"bands: ± 2 standard errors, over documents; hollow: fewer than {FEW} sentences"
        figure.text(0.5, 0.95, f"{about}\n{legend}", ha="center", va="top", color=GREY, fontsize=9)
        axes = figure.subplots(2, len(sides), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1))
        for (name, members), (upper, lower) in zip(sides.items(), axes.T, strict=True):
            _draw_side(upper, lower, members, max_chars)
            upper.set_title(name)
            lower.set_xlabel("sentence length (characters)")
        axes[0, 0].set_ylabel("average AutoBLEU")
        axes[0, 0].set_ylim(0, 100)
        axes[1, 0].set_ylabel("sentences")
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        figure.savefig(file, format=form, dpi=160, metadata=dates[form])


def _draw_side(upper: Axes, lower: Axes, members: list[Scored], max_chars: int) -> None:
    for index, one in enumerate(members):
        lengths = one.by_length(max_chars)
        color, marker = STYLES[one.method.removesuffix("-capped")]
        width = lengths[1].first - lengths[0].first
        places = [length.first - 0.5 + width / 2 for length in lengths]
        places[-1] += 1.25 * width  # apart: those sentences are of many lengths
        _draw_line(upper, places, lengths, color, marker, f"{one.method} ({counted(len(one.chars), 'sentence')})")
        bar = 0.8 * width / len(members)
        lefts = [place - 0.4 * width + index * bar for place in places]
        lower.bar(lefts, [length.sentences for length in lengths], bar, align="edge", color=color)
    ticks = range(0, lengths[-1].first, 5 * width // 2)
    lower.set_xticks([*ticks, places[-1]], [*map(str, ticks), f">{lengths[-1].first - 1}"])
    for axes in (upper, lower):
        axes.axvline(max_chars + 0.5, color=GREY, linestyle=":", linewidth=1)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
    upper.annotate(f"cap {max_chars}", (max_chars, 100), (4, -2), textcoords="offset points", color=GREY, va="top")
    upper.legend(frameon=False, loc="lower left")


def _draw_line(axes: Axes, places: list[float], lengths: list[Length], color: str, marker: str, label: str) -> None:
    means = [length.mean for length in lengths]
    lows = [length.mean - 2 * length.error for length in lengths]
    highs = [length.mean + 2 * length.error for length in lengths]
    axes.plot(places[:-1], means[:-1], color=color, marker=marker, markersize=5, label=label)
    axes.fill_between(places[:-1], lows[:-1], highs[:-1], color=color, alpha=0.15, linewidth=0)
    axes.plot(places[-1:], means[-1:], color=color, marker=marker, markersize=5)
    if not math.isnan(lows[-1]):
        axes.plot([places[-1]] * 2, [lows[-1], highs[-1]], color=color, alpha=0.3, linewidth=4)
    few = [(place, length.mean) for place, length in zip(places, lengths, strict=True) if 0 < length.sentences < FEW]
    for place, mean in few:
        axes.plot(place, mean, color=color, marker=marker, markersize=5, markerfacecolor="white")
