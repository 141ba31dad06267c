"""Prints and draws the figures of `pipeline flops`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.base.errors import ConfigError
from pipeline.base.formats import Figures, duration, number
from pipeline.base.messages import print_plain
from pipeline.planning.flops import (
    LLMS,
    Assumptions,
    Writing,
    as_json,
    checked_numbers,
    training_flops,
    writing_cost,
)
from pipeline.storage.replacing import replacing_file
from stages.lcm.card import LcmCard, load_lcm_card
from stages.lcm.inference_flops import CODEBOOKS, UNITS
from stages.sonar.card import ModelCard, load_card

PLOTS = ("svg", "png", "pdf")


@dataclass(frozen=True)
class FlopsOptions:
    """The options of the command; `sentences` is the length of a document in training."""

    models: tuple[str, ...]
    sonar: str
    tokens: str
    sentence_tokens: str
    sentences: int
    assumed: Assumptions = field(default_factory=Assumptions)
    plot: str | None = None
    json: bool = False


def show_flops(console: Console, options: FlopsOptions) -> None:
    """Print the tables. Raises `ConfigError` or `CardError` for options that are not possible."""
    if options.plot is not None and not options.plot.endswith(tuple(f".{form}" for form in PLOTS)):
        raise ConfigError(f"--plot {options.plot}: the name must end in .svg, .png or .pdf")
    if not 0 < options.assumed.generated <= 1:
        raise ConfigError(f"--generated {options.assumed.generated}: give a share above 0 and at most 1")
    cards = [load_lcm_card(name) for name in options.models]
    words = [card.name for card in cards if card.kind == "token-lm"]
    if words:
        raise ConfigError(
            f"--model {words[0]}: a token language model takes as much as the LLMs that are shown anyway; name models "
            "of sentences"
        )
    for card in cards:
        steps = options.assumed.sampling(card).steps
        if card.diffusion is not None and steps > card.diffusion.steps:
            raise ConfigError(
                f"{card.name} has {card.diffusion.steps} timesteps, fewer than {steps} steps of sampling; give --steps "
                "with at most that many"
            )
    sonar = load_card(options.sonar)
    tokens = [round(value) for value in checked_numbers(options.tokens, "--tokens")]
    lengths = checked_numbers(options.sentence_tokens, "--sentence-tokens")
    found = writing_cost(cards, sonar, tokens, lengths, options.assumed)
    training = {card.name: training_flops(card, sonar.dim, options.sentences) for card in cards}
    training |= {llm.name: llm.training_flops(2048) for llm in LLMS}
    if options.plot is not None:
        with replacing_file(options.plot) as file:
            _draw(file, options.plot.rpartition(".")[2], found)
    if options.json:
        console.file.write(json.dumps(as_json(found, training, options.assumed), indent=1) + "\n")
        return
    _show_writing(console, found, options.assumed)
    _show_training(console, cards, sonar, training, options)
    for line in _assumptions(sonar, cards, options):
        console.print(f"- {line}", markup=False, highlight=False)
    if options.plot is not None:
        print_plain(console, f"{options.plot} written")


def _columns(found: list[Writing]) -> dict[tuple[str, float | None], dict[int, float]]:
    columns: dict[tuple[str, float | None], dict[int, float]] = {}
    for one in found:
        columns.setdefault((one.model, one.sentence_tokens), {})[one.tokens] = one.flops
    return columns


def _label(model: str, length: float | None) -> str:
    return model if length is None else f"{model}, {length:g} tokens per sentence"


def _show_writing(console: Console, found: list[Writing], assumed: Assumptions) -> None:
    longest = max(one.tokens for one in found)
    table = Table(title="TFLOP to read and write one text", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("model", overflow="fold")
    table.add_column("tokens per\nsentence", justify="right")
    for tokens in dict.fromkeys(one.tokens for one in found):
        table.add_column(f"{number(tokens)}\ntokens", justify="right", no_wrap=True)
    table.add_column(f"one device,\n{number(longest)} tokens", justify="right", no_wrap=True)
    for (model, length), cells in _columns(found).items():
        figures = [_rounded(flops / 1e12) for flops in cells.values()]
        seconds = assumed.hours(cells[longest]) * 3600
        table.add_row(escape(model), "" if length is None else f"{length:g}", *figures, f"{_rounded(seconds)} s")
    console.print(table)


def _rounded(value: float) -> str:
    """Write a figure with three digits, without an exponent where it is large."""
    rounded = float(f"{value:.3g}")
    return number(rounded) if rounded >= 1000 else f"{rounded:g}"


def _show_training(
    console: Console, cards: list[LcmCard], sonar: ModelCard, training: dict[str, float], options: FlopsOptions
) -> None:
    assumed = options.assumed
    table = Table(title="\nTraining", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("model", "parameters", "GFLOP", "of one", "device time for 1e9"):
        table.add_column(column, justify="left" if column in ("model", "of one") else "right")
    if assumed.price is not None:
        table.add_column("price", justify="right")
    sizes = {card.name: card.parameters(sonar.dim) for card in cards} | {llm.name: llm.parameters for llm in LLMS}
    names = {card.name for card in cards}
    for name, flops in training.items():
        hours = assumed.hours(flops * 1e9)
        row = [name, number(sizes[name]), f"{flops / 1e9:,.3g}", "sentence" if name in names else "token"]
        row.append(duration(hours * 3600))
        if assumed.price is not None:
            row.append(number(hours * assumed.price))
        table.add_row(*map(Figures, row))
    console.print(table)


def _assumptions(sonar: ModelCard, cards: list[LcmCard], options: FlopsOptions) -> list[str]:
    assumed = options.assumed
    drawn = {}
    for card in cards:
        sampling = assumed.sampling(card)
        guided = f"guidance {sampling.guidance:g} (2 passes)" if sampling.guidance != 1 else "without guidance"
        if card.diffusion is not None:
            drawn[card.name] = f"{sampling.steps} steps, {guided}"
        elif card.quantised:
            drawn[card.name] = f"a step for each of {CODEBOOKS} codebooks of {number(UNITS)} units, {guided}"
    longest = max(checked_numbers(options.tokens, "--tokens"))
    most = longest / min(checked_numbers(options.sentence_tokens, "--sentence-tokens"))
    return [
        f"{assumed.generated:.0%} of a text is written, the rest is its prompt; keys and values are kept",
        f"encoder and decoder: {sonar.name}, with the logits of its {number(sonar.vocab_size)} tokens, greedy",
        *(f"{name}: {how}" for name, how in drawn.items()),
        *(
            f"{card.name}: each sentence that it has written is encoded before the next"
            for card in cards
            if card.objective == "sonar-llm"
        ),
        *(
            f"{card.name}: a text of more than {card.context} sentences, its context, counts as if it had room for all"
            for card in cards
            if most > card.context
        ),
        "AdaLN's projections of a timestep are computed again for each sentence, as this package does",
        "an LCM and an LLM cut a text into the same number of tokens",
        f"training: documents of {options.sentences} sentences (or the model's context), texts of 2048 tokens",
        *(
            f"training of {card.name}: without the decoder's passes, a forward and a backward one for each target"
            for card in cards
            if card.objective == "sonar-llm"
        ),
        f"a device reaches {assumed.mfu:.0%} of {assumed.peak:g} TFLOP/s"
        + ("" if assumed.price is None else f" and costs {assumed.price:g} an hour"),
        "norms, activations, softmax, look-ups and the reading of weights from memory are not counted",
    ]


def _draw(file: IO[bytes], form: str, found: list[Writing]) -> None:
    """Plot FLOPs against the length of the text, both logarithmic, as Fig. 13 of the LCM paper."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flops"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        for key, cells in _columns(found).items():
            style = "--" if key[1] is None else "-"
            axes.plot(list(cells), list(cells.values()), style, marker="o", markersize=3, label=_label(*key))
        axes.set(xscale="log", yscale="log", xlabel="tokens of prompt and output", ylabel="FLOP")
        axes.set_title("Operations to read and write one text")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        figure.savefig(file, format=form, dpi=160, metadata=dates[form])
