"""Implements `pipeline compare-segmenters`: which way of segmenting suits a corpus, by Figure 3 of the LCM paper.

The same documents are cut by every method; every sentence is encoded and decoded by the models of corpus.yaml and
scored. Of the corpus only the inputs are read, and nothing is written. Cost: encoding and decoding the sample once per
method (by default 200 000 characters: about 2 700 sentences of the corpus that ships), and segmenting it twice or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline.base.captured import capture_warnings
from pipeline.base.errors import ConfigError, visible
from pipeline.base.formats import counted, number
from pipeline.base.messages import print_plain
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import RowProgress
from pipeline.planning.plan import check_languages
from pipeline.quality.compare.sample import TextSample, take_sample
from pipeline.quality.compare.scores import METHODS, Length, Scored, Scorer, cut
from pipeline.storage.replacing import check_replaceable, replacing_file
from stages.cards import CardError
from stages.segment.sat.card import load_sat_card
from stages.segment.settings import SegmentSettings
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
FORMATS = ("svg", "png", "pdf")
STYLES = {"spacy": ("#0072B2", "o"), "sat": ("#D55E00", "s")}  # blue and vermilion of Okabe and Ito
FEW = 10  # sentences; a point with fewer is hollow
GREY = "#666666"


@dataclass(frozen=True)
class CompareOptions:
    """The options of the command, as `pipeline/cli.py` explains them."""

    methods: str
    characters: int
    plot: str


def compare(console: Console, config: RunConfig, options: CompareOptions, find_device: Callable[[], str]) -> None:
    """Print the tables and write the plot.

    Impossible options are found before anything long begins.

    Args:
        console: where the tables are printed.
        config: the configuration of the corpus.
        options: the options of the command; `ConfigError` is raised if they do not fit.
        find_device: says where networks compute; it is called once everything else is checked.
    """
    methods = _methods(config.segment, options.methods)
    check_languages(config)
    form = _checked_plot(options.plot)
    sample = take_sample(config, options.characters)
    _show_sample(console, visible(config.name), sample)
    tokenizer = SonarTokenizer(load_card(config.segment.model))
    device = find_device()
    cuts = []
    for method in methods:
        with console.status(f"segmenting: {method}"):
            cuts.append(cut(config.segment, method, sample, tokenizer.count, device))
    with console.status("loading models"):
        scorer = Scorer(config, device)
    with RowProgress(console, sum(one.sentences for one in cuts), "sentences", "scored") as progress:
        scored = [scorer.score(one, sample, progress) for one in cuts]
    _show_methods(console, scored, config.segment.max_chars, scorer.describe())
    _show_lengths(console, scored, config.segment.max_chars)
    title = f"AutoBLEU by sentence length: {config.name}"
    about = f"{sample.describe()}; {scorer.describe()}"
    with replacing_file(options.plot) as file, capture_warnings() as warned:
        _draw(file, form, scored, config.segment.max_chars, title, about)
    print_plain(console, f"\n{options.plot} written")
    if form != "svg" and any("missing from font" in one for one in warned):
        console.print("The plot's font lacks characters of the corpus's name; in an .svg all are shown.")


def _methods(settings: SegmentSettings, asked: str) -> list[str]:
    """Return the methods asked for, each once, and check that a SaT model that they need is there."""
    methods = list(dict.fromkeys(name.strip() for name in asked.split(",") if name.strip()))
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not methods:
        also = " (paragraphs has the sentences of sat-capped)" if "paragraphs" in unknown else ""
        what = f"{', '.join(unknown)} cannot be compared{also}" if unknown else "no method is named"
        raise ConfigError(f"--methods {asked}: {what}; allowed: {', '.join(METHODS)}")
    if any(name.startswith("sat") for name in methods):
        try:
            load_sat_card(settings.sat)
        except CardError as error:
            raise ConfigError(f"segment.sat: {error}; or compare without: --methods spacy,spacy-capped") from error
    return methods


def _checked_plot(url: str) -> str:
    """Return the plot's format, by its name. Raises the errors of `replacing_file` if it cannot be written."""
    form = url.rpartition(".")[2].lower()
    if form not in FORMATS:
        raise ConfigError(f"--plot {url}: the ending of the name decides the format; allowed: .{', .'.join(FORMATS)}")
    check_replaceable(url)
    return form


def _show_sample(console: Console, name: str, sample: TextSample) -> None:
    """Show what is compared, and what could not be used."""
    console.print(f"Sample of [bold]{escape(name)}[/]: {sample.describe()}", highlight=False)
    if sample.skipped:
        reasons = ", ".join(f"{reason} {number(count)}" for reason, count in sample.skipped.most_common())
        console.print(Text(f"skipped {counted(sample.skipped.total(), 'record')}: {reasons}", style="yellow"))


def _show_methods(console: Console, scored: list[Scored], max_chars: int, models: str) -> None:
    """Show a table with a column for each method and a row for each figure."""

    def length(share: float) -> Callable[[Scored], str]:
        return lambda one: number(float(np.quantile(one.chars, share)))

    rows: dict[str, Callable[[Scored], str]] = {
        "sentences": lambda one: number(len(one.chars)),
        "characters: median": length(0.5),
        "  95 % have at most": length(0.95),
        "  longest": length(1.0),
        f"over {max_chars} characters": lambda one: f"{100 * float((one.chars > max_chars).mean()):.1f} %",
        "broken by the cap": lambda one: number(one.cut.segmented.cap_splits),
        "cut without a boundary": lambda one: number(one.cut.segmented.hard_cuts),
        "truncated by the encoder": lambda one: number(one.truncated),
        "AutoBLEU, mean of sentences": lambda one: _score(one.mean()),
        "  weighted by characters": lambda one: _score(one.mean(by_characters=True)),
        "segmenting, MB/s": lambda one: f"{one.cut.speed:.3g}",
        "encoding + decoding, s": lambda one: f"{one.seconds:.1f}",
    }
    if any(one.unscored for one in scored):
        rows["embedding not finite, no score"] = lambda one: number(one.unscored)
    table = _table("", scored)
    for label, cell in rows.items():
        table.add_row(label, *map(cell, scored))
    console.print(Group("", table))
    console.print(Text(f"AutoBLEU by {models}", style="dim"))


def _show_lengths(console: Console, scored: list[Scored], max_chars: int) -> None:
    """Show average AutoBLEU by sentence length, with the number of sentences behind it (Figure 3 of the paper)."""
    columns = [one.by_length(max_chars) for one in scored]
    widest = max(len(number(length.sentences)) for column in columns for length in column)
    table = _table("characters", scored)
    for row in zip(*columns, strict=True):
        name = f"{row[0].first}–{row[0].last}" if row[0].last else f"{row[0].first}+"
        cells = (Text(_score(one.mean)).append(f" {number(one.sentences):>{widest + 2}}", "dim") for one in row)
        table.add_row(name, *cells)
    console.print(Group("", Text("Average AutoBLEU by length, and number of sentences", style="bold"), table))


def _table(first: str, scored: list[Scored]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for one in scored:
        table.add_column(one.method, justify="right", no_wrap=True)
    return table


def _score(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"


def _draw(file: IO[bytes], form: str, scored: list[Scored], max_chars: int, title: str, about: str) -> None:
    """Draw average AutoBLEU by sentence length, uncapped methods left, capped ones right.

    Below, it shows how many sentences each point stands for; the point at the right edge covers all longer ones. The
    same scores give the same bytes. The file holds the corpus's name and numbers, but no text of a document.
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
