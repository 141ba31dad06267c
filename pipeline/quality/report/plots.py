"""The plots of a report: functions from numbers to `<svg>` elements, all of one size and one style.

Each function makes its own figure; only numbers and codes of languages are drawn, nothing of a document. The same
numbers give the same bytes. Text in the SVG stays text, and takes the page's font and colours. The tree of the SVG is
parsed and written again, so all text comes out escaped; ids get a prefix, because several plots share one page;
metadata, with the only addresses in it, is left out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from pipeline.base.errors import visible
from pipeline.quality.report.rows import Array, Bin, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

# colour of plots → the page's variable, which differs in dark mode
INK, GREY, RULE, PAPER = "#1b1b1f", "#6b6b75", "#e3e3e8", "#fdfdfe"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # by Okabe and Ito, distinguishable for colour-blind people
_VARIABLES = {
    INK: "var(--ink)",
    GREY: "var(--muted)",
    RULE: "var(--rule)",
    PAPER: "var(--paper)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
}
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",  # only measures the text; the page's font displays it
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "butt",
    "lines.markersize": 3.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.color": INK,
    "text.parse_math": False,  # a $ in a name stays a $
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0,
}


def _to_svg(figure: Figure, prefix: str, label: str) -> str:
    """Return the `<svg>` element. `prefix` makes its ids unique on the page; `label` says what the picture shows."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    root = ElementTree.fromstring(file.getvalue())
    for name in ("width", "height"):
        del root.attrib[name]
    root.set("class", "plot")
    root.set("role", "img")
    root.set("aria-label", label)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            element.set(name, _attribute(name, value, prefix))
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name == f"{{{_XLINK}}}href":
        return value.replace("#", f"#{prefix}-", 1) if value.startswith("#") else value
    if name == "clip-path":
        return value.replace("url(#", f"url(#{prefix}-")
    if name == "style":
        return re.sub("#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), value)
    return value


SIZE = (4.6, 2.8)  # inches: text is readable on a phone, and two plots fit side by side on a desktop
FEW = 10  # rows; a point with fewer is hollow
COLORS = (BLUE, ORANGE, GREEN)
BARS = 40  # of a histogram
CELLS = 40
LOG_FROM, MARKED = 30.0, 30  # of losses: the ratio from which their axis is logarithmic; points that are marked


class Plot:
    """A figure while it is drawn; `svg` is set at the end of the `with` statement."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.svg = ""


@contextmanager
def _plot(prefix: str, label: str, height: float = SIZE[1]) -> Iterator[Plot]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0], height), layout="constrained")
        plot = Plot(figure.subplots())
        yield plot
        plot.svg = _to_svg(figure, prefix, label)


def histogram(prefix: str, series: Mapping[str, Array], x: str, *, limits: tuple[float, float] | None = None) -> str:
    """Plot the distribution of one or more series, as shares.

    Values beyond the right end are counted in the last bar.

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        series: name → values; NaN is left out.
        x: the label of the axis.
        limits: the left and the right end; None for those of 99.5 % of the values.

    Returns:
        The SVG element.
    """
    series = {name: finite(values) for name, values in series.items()}
    values = np.concatenate(list(series.values()))
    low, high = limits or (float(values.min()), float(np.quantile(values, 0.995)))
    high, bins = high if high > low else low + 1, BARS
    if limits is None and all(np.array_equal(one, np.rint(one)) for one in series.values()):  # counts: whole bars
        step = max(1, int(np.ceil((high - low + 1) / bins)))
        low, high = low - 0.5, low - 0.5 + step * np.ceil((high - low + 1) / step)
        bins = round((high - low) / step)
    edges = np.linspace(low, high, bins + 1)
    label = f"Histogram: {', '.join(series)} by {x}"
    with _plot(prefix, label) as plot:
        for (name, one), color in zip(series.items(), COLORS, strict=False):
            counts, _ = np.histogram(np.clip(one, low, high), edges)
            alpha = 1.0 if len(series) == 1 else 0.3
            share = 100 * counts / max(1, len(one))
            plot.axes.stairs(share, edges, fill=True, color=color, alpha=alpha, linewidth=0)
            if len(series) > 1:
                plot.axes.stairs(share, edges, color=color, linewidth=1.5, label=name)
        plot.axes.set(xlim=(low, high), xlabel=x, ylabel="% of sentences")
        if len(series) > 1:
            plot.axes.legend()
    return plot.svg


def by_length(prefix: str, series: dict[str, list[Bin]], y: str, *, top: float) -> str:
    """Plot the mean by sentence length, with the band of quantiles (LCM paper, Figures 3 and 14).

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        series: name → bins of lengths.
        y: the label of the vertical axis.
        top: the upper end of that axis.

    Returns:
        The SVG element.
    """
    with _plot(prefix, f"{', '.join(series)} by sentence length") as plot:
        for (name, bins), color in zip(series.items(), COLORS, strict=False):
            width = bins[1].first - bins[0].first if len(bins) > 1 else 1
            filled = [one for one in bins if one.count]
            places = [one.first + (width - 1) / 2 for one in filled]
            plot.axes.fill_between(
                places, [one.low for one in filled], [one.high for one in filled], color=color, alpha=0.13, linewidth=0
            )
            plot.axes.plot(places, [one.mean for one in filled], color=color, label=name)
            for place, one in zip(places, filled, strict=True):
                full = color if one.count >= FEW else PAPER
                plot.axes.plot([place], [one.mean], marker="o", color=color, markerfacecolor=full)
        plot.axes.set_xlim(left=0)
        plot.axes.set(ylim=(0, top), xlabel="sentence length (characters)", ylabel=y)
        if len(series) > 1:
            plot.axes.legend()
    return plot.svg


def by_language(
    prefix: str,
    groups: Sequence[tuple[str, Bin]],
    x: str,
    *,
    extra: Mapping[str, float] | None = None,
    limits: tuple[float, float] | None = None,
) -> str:
    """Plot the mean with the band of quantiles, one line for each language.

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        groups: (language, quantiles), from top to bottom.
        x: the label of the axis.
        extra: language → another value, drawn as a diamond, such as corpus BLEU.
        limits: the ends of the axis; None to fit the values.

    Returns:
        The SVG element.
    """
    names = [visible(name) for name, _ in groups]
    with _plot(prefix, f"{x} by language", height=max(1.3, 0.6 + 0.23 * len(groups))) as plot:
        places = np.arange(len(groups))[::-1]
        for place, (name, one) in zip(places, groups, strict=True):
            plot.axes.plot([one.low, one.high], [place, place], color=BLUE, alpha=0.25, linewidth=5)
            plot.axes.plot([one.mean], [place], marker="o", markersize=5, color=BLUE)
            if extra and name in extra:
                plot.axes.plot([extra[name]], [place], marker="D", markersize=4, color=ORANGE)
        plot.axes.set_yticks(places, names)
        plot.axes.set_ylim(-0.6, len(groups) - 0.4)
        if limits:
            plot.axes.set_xlim(*limits)
        plot.axes.grid(axis="x")
        plot.axes.grid(axis="y", visible=False)
        plot.axes.set_xlabel(x)
    return plot.svg


def by_noise(prefix: str, levels: Sequence[float], series: Mapping[str, Array]) -> str:
    """Plot the mean score by variance of the noise, with the band of quantiles (Figure 14).

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        levels: the variances.
        series: name → (rows, levels) in [0, 1].

    Returns:
        The SVG element.
    """
    with _plot(prefix, f"{', '.join(series)} by noise variance") as plot:
        for (name, values), color in zip(series.items(), COLORS, strict=False):
            low, high = np.nanquantile(values, (0.1, 0.9), axis=0)
            plot.axes.fill_between(levels, low, high, color=color, alpha=0.13, linewidth=0)
            plot.axes.plot(levels, np.nanmean(values, axis=0), color=color, marker="o", label=name)
        plot.axes.set(ylim=(0, 1), xlabel="noise variance α", ylabel="score")
        plot.axes.legend()
    return plot.svg


@dataclass(frozen=True)
class Line:
    """Means at places, and their standard errors (NaN: there is none)."""

    places: Sequence[float]
    means: Sequence[float]
    errors: Sequence[float]


def lines(
    prefix: str, series: Mapping[str, Line], x: str, y: str, *, top: float, levels: Mapping[str, float] | None = None
) -> str:
    """Plot means with bands of two standard errors.

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        series: name → places, means and standard errors.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        top: the upper end of the vertical axis.
        levels: name → height of a dashed line, in the order of the series.

    Returns:
        The SVG element.
    """
    with _plot(prefix, f"{', '.join(series)}: {y} by {x}") as plot:
        for (name, one), color in zip(series.items(), COLORS, strict=False):
            mean, error = np.asarray(one.means), 2 * np.nan_to_num(np.asarray(one.errors))
            plot.axes.fill_between(one.places, mean - error, mean + error, color=color, alpha=0.13, linewidth=0)
            plot.axes.plot(one.places, mean, color=color, marker="o", label=name)
        for level, color in zip((levels or {}).values(), COLORS, strict=False):
            plot.axes.axhline(level, color=color, linewidth=0.9, linestyle="--")
        if all(float(place).is_integer() for one in series.values() for place in one.places):
            plot.axes.locator_params("x", integer=True)  # there are no 1.5 codebooks
        plot.axes.set(ylim=(0, top), xlabel=x, ylabel=y)
        plot.axes.legend()
    return plot.svg


def losses(prefix: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """Plot losses by step; on a logarithmic scale if they differ by more than a factor of `LOG_FROM`.

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        series: name → steps and losses, which are finite.

    Returns:
        The SVG element.
    """
    every = [one for _, values in series.values() for one in values]
    with _plot(prefix, f"loss by step: {' and '.join(series)}") as plot:
        for (name, (steps, values)), color in zip(series.items(), COLORS, strict=False):
            plot.axes.plot(steps, values, color=color, marker="o" if len(steps) <= MARKED else "", label=name)
        if min(every) > 0 and max(every) > LOG_FROM * min(every):
            plot.axes.set_yscale("log")
        plot.axes.locator_params("x", integer=True)
        plot.axes.set(xlabel="step", ylabel="loss")
        plot.axes.legend()
    return plot.svg


def standalone(svg: str) -> bytes:
    """Return the file of an `<svg>` element: with colours of its own, which the page would give it."""
    for color, variable in _VARIABLES.items():
        svg = svg.replace(variable, color)
    return svg.encode() + b"\n"


def density(prefix: str, measured: Array, predicted: Array) -> str:
    """Plot how many pairs of numbers fall into each cell; darker means more (on a log scale). The line is x = y.

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        measured: (rows,) the horizontal coordinates.
        predicted: (rows,) the vertical coordinates; pairs with NaN are left out.

    Returns:
        The SVG element.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LogNorm, to_rgba

    both = np.isfinite(measured) & np.isfinite(predicted)
    one, other = measured[both], predicted[both]
    low, high = float(min(one.min(), other.min())), float(max(one.max(), other.max()))
    edges = np.linspace(low, high if high > low else low + 1, CELLS + 1)
    counts, _, _ = np.histogram2d(one, other, bins=(edges, edges))
    norm = LogNorm(1, max(2.0, float(counts.max())))
    with _plot(prefix, "predicted against measured fragility", height=3.6) as plot:
        side = edges[1] - edges[0]
        cells = np.argwhere(counts)
        corners = edges[cells][:, None, :] + side * np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
        faces = [to_rgba(BLUE, 0.15 + 0.85 * float(norm(counts[i, j]))) for i, j in cells]
        plot.axes.add_collection(PolyCollection(corners, facecolors=faces, linewidths=0))
        plot.axes.set(xlim=(edges[0], edges[-1]), ylim=(edges[0], edges[-1]))
        plot.axes.plot(edges[[0, -1]], edges[[0, -1]], color=GREY, linewidth=0.8, linestyle="--")
        plot.axes.set_aspect("equal")
        plot.axes.grid(visible=False)
        plot.axes.set(xlabel="measured fragility", ylabel="predicted")
    return plot.svg


def curve(
    prefix: str,
    points: tuple[Sequence[float], Sequence[float]],
    x: str,
    y: str,
    *,
    top: float,
    level: tuple[str, float] | None = None,
) -> str:
    """Plot a value by number of codebooks (Figure 9), from 0 on.

    Args:
        prefix: begins the ids in the SVG, which must be unique on a page.
        points: the horizontal coordinates, and the vertical ones.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        top: the upper end of the vertical axis.
        level: name and height of a dashed line to compare with.

    Returns:
        The SVG element.
    """
    with _plot(prefix, f"{y} by {x}") as plot:
        plot.axes.plot(*points, color=BLUE, marker="o")
        if level:
            plot.axes.axhline(level[1], color=GREY, linewidth=0.9, linestyle="--")
            name = f"{level[0]} {level[1]:.3g}"
            plot.axes.annotate(name, (points[0][0], level[1]), (0, 4), textcoords="offset points", fontsize=8.5)
        if len(points[0]) <= 16:
            plot.axes.set_xticks(points[0], [f"{place:g}" for place in points[0]])
        plot.axes.annotate(
            f"{points[1][-1]:.3g}", (points[0][-1], points[1][-1]), (0, 6), textcoords="offset points", ha="center"
        ).set_color(INK)
        plot.axes.set(ylim=(0, top), xlabel=x, ylabel=y)
    return plot.svg
