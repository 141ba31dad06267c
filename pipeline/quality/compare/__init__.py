"""Implements `pipeline compare-segmenters`: which way of segmenting suits a corpus, by Figure 3 of the LCM paper.

The same documents are cut by every method; every sentence is encoded and decoded by the models of corpus.yaml and
scored. Of the corpus only the inputs are read, and nothing is written. Cost: encoding and decoding the sample once per
method (by default 200 000 characters: about 2 700 sentences of the corpus that ships), and segmenting it twice or more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from pipeline.base.captured import capture_warnings
from pipeline.base.errors import ConfigError, visible
from pipeline.base.messages import print_plain
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import RowProgress
from pipeline.planning.plan import check_languages
from pipeline.quality.compare.plot import FORMATS, draw
from pipeline.quality.compare.sample import take_sample
from pipeline.quality.compare.scores import METHODS, Scorer, cut
from pipeline.quality.compare.tables import show_lengths, show_methods, show_sample
from pipeline.storage.replacing import check_replaceable, replacing_file
from stages.cards import CardError
from stages.segment.sat.card import load_sat_card
from stages.segment.settings import SegmentSettings
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer


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
    show_sample(console, visible(config.name), sample)
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
    show_methods(console, scored, config.segment.max_chars, scorer.describe())
    show_lengths(console, scored, config.segment.max_chars)
    title = f"AutoBLEU by sentence length: {config.name}"
    about = f"{sample.describe()}; {scorer.describe()}"
    with replacing_file(options.plot) as file, capture_warnings() as warned:
        draw(file, form, scored, config.segment.max_chars, title, about)
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
