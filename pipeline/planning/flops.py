"""`pipeline flops`: operations of training and of writing text, for LCMs and LLMs, computed, printed and drawn.

They follow LCM 2.5.1 and Fig. 13. A text of n tokens has n / (tokens per sentence) sentences, of which a share is the
prompt. An LCM encodes the prompt, reads it, predicts each sentence and decodes it; SONAR-LLM also encodes each sentence
that it has written. An LLM reads and predicts token by token, and keeps keys and values, as the LCM does. SONAR and an
LLM are assumed to cut a text into the same number of tokens. Every assumption is printed with the figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import IO, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.base.errors import ConfigError
from pipeline.base.formats import Figures, duration, number
from pipeline.base.messages import print_plain
from pipeline.storage.replacing import replacing_file
from stages.lcm.card import LcmCard, load_lcm_card
from stages.lcm.inference_flops import CODEBOOKS, UNITS, writing_flops
from stages.lcm.model import Sampling, paper_sampling
from stages.sonar.card import ModelCard, load_card
from stages.sonar.flops import decoder_flops, encoder_flops

PLOTS = ("svg", "png", "pdf")
ADDED_TOKENS = 2  # tokens added to a sentence: its language and </s>


@dataclass(frozen=True)
class TokenModel:
    """A Transformer over tokens with SwiGLU, like Llama, to compare an LCM with."""

    name: str
    layers: int
    dim: int
    inner: int
    vocab: int = 32_000

    @property
    def parameters(self) -> int:
        """Return the number of weights, with both embedding tables."""
        return self._body + 2 * self.vocab * self.dim

    @property
    def _body(self) -> int:
        return self.layers * (4 * self.dim**2 + 3 * self.dim * self.inner)

    def writing_flops(self, prompt: float, tokens: float) -> float:
        """Return the FLOPs of reading `prompt` tokens and writing `tokens`, each once; logits only where a token is
        written.
        """
        total = prompt + tokens
        attention = 4 * self.layers * self.dim * total * (total + 1) / 2
        return 2 * self._body * total + attention + 2 * self.dim * self.vocab * tokens

    def training_flops(self, context: int) -> float:
        """Return the FLOPs of one token of training, forward and backward, in texts of `context` tokens."""
        attention = 12 * self.layers * self.dim * (context + 1) / 2
        return 6 * (self._body + self.vocab * self.dim) + attention


LLMS = (
    TokenModel("Llama-2 7B", layers=32, dim=4096, inner=11008),
    TokenModel("smaLlama 1.4B", layers=24, dim=2048, inner=5504),  # LCM, Table 4
)


@dataclass(frozen=True)
class Assumptions:
    """What the cards do not state.

    `generated`: the share of a text that is written; the rest is its prompt. `steps`, `guidance`: of diffusion; None
    means the paper's values. `mfu`: the share of the peak that the device reaches. `peak`: TFLOP/s. `price`: of an hour
    of the device, if known.
    """

    generated: float = 0.5
    steps: int | None = None
    guidance: float | None = None
    mfu: float = 0.4
    peak: float = 989.4
    price: float | None = None

    def sampling(self, card: LcmCard) -> Sampling:
        """Return how sentences are drawn."""
        paper = paper_sampling(card.kind, generating=True)
        guidance = paper.guidance if self.guidance is None else self.guidance
        return Sampling(steps=self.steps or paper.steps, guidance=guidance)

    def hours(self, flops: float) -> float:
        """Return the hours of one device."""
        return flops / (self.peak * 1e12 * self.mfu) / 3600


@dataclass(frozen=True)
class Writing:
    """FLOPs of one text. `sentence_tokens` is None for an LLM."""

    model: str
    tokens: int
    sentence_tokens: float | None
    flops: float


def _writing_cost(
    cards: list[LcmCard], sonar: ModelCard, tokens: list[int], sentence_tokens: list[float], assumed: Assumptions
) -> list[Writing]:
    """Return the FLOPs of texts of each length, by each model and each length of sentences, and by the LLMs."""
    found = []
    for total in tokens:
        written = total * assumed.generated
        for llm in LLMS:
            found.append(Writing(llm.name, total, None, llm.writing_flops(total - written, written)))
        for card in cards:
            for length in sentence_tokens:
                flops = lcm_writing_flops(card, sonar, total / length, length, assumed)
                found.append(Writing(card.name, total, length, flops))
    return found


def lcm_writing_flops(card: LcmCard, sonar: ModelCard, sentences: float, length: float, assumed: Assumptions) -> float:
    """Return the FLOPs of writing a text with an LCM, with SONAR's encoder and decoder.

    Args:
        card: the LCM.
        sonar: the model that encodes the prompt and decodes what is written.
        sentences: how many sentences the text has, prompt included.
        length: how many tokens a sentence has.
        assumed: the assumptions, such as the share of the text that is generated.

    Returns:
        FLOPs of the whole text.
    """
    written = max(sentences * assumed.generated, 1)
    prompt = max(sentences - written, 0)
    encoding = encoder_flops([length + ADDED_TOKENS], dim=sonar.dim, layers=sonar.encoder_layers, ffn_dim=sonar.ffn_dim)
    decoding = decoder_flops(
        [length], dim=sonar.dim, layers=sonar.decoder_layers, ffn_dim=sonar.ffn_dim, vocab_size=sonar.vocab_size
    )
    model = writing_flops(card, sonar.dim, prompt, written, assumed.sampling(card))
    encoded = max(prompt, sentences - 1) if card.objective == "sonar-llm" else prompt  # it reads what it has written
    return encoded * encoding + model + written * decoding


def training_flops(card: LcmCard, dim: int, sentences: int) -> float:
    """Return the FLOPs of training on one sentence, as the MFU counts them.

    Args:
        card: the LCM.
        dim: the width of embeddings.
        sentences: the length of documents; longer ones than the model's context are cut.

    Returns:
        FLOPs per sentence, forward and backward.
    """
    import torch

    from stages.device import without_memory
    from stages.lcm.batch import of_documents
    from stages.lcm.build import build
    from stages.rvq.codebooks import Codebooks
    from stages.scaler.robust import RobustScaler

    length = min(sentences, card.context)
    with without_memory():
        scaler = RobustScaler(median=torch.zeros(dim), iqr=torch.ones(dim))
        books = Codebooks(torch.zeros(CODEBOOKS, UNITS, dim)) if card.quantised else None
        model = build(card, scaler, books)
        embeddings = torch.zeros(length, dim)
    return model.flops(of_documents([embeddings])) / length


def checked_numbers(text: str, option: str) -> list[float]:
    """Parse a list of numbers such as `500,2e3`. Raises ConfigError, which names the option, for what is not a number,
    or not between 1 and 10⁹.
    """
    found = []
    for one in text.split(","):
        try:
            value = float(one)
        except ValueError:
            raise ConfigError(
                f"{option} {text}: {one!r} is not a number; give numbers with commas, e.g. 500,2000"
            ) from None
        if not 1 <= value <= 1e9:
            raise ConfigError(f"{option} {text}: {one} is not between 1 and 1e9")
        found.append(value)
    return found


def _as_json(found: list[Writing], training: dict[str, float], assumed: Assumptions) -> dict[str, Any]:
    """Return the figures as an object for `--json`."""
    return {
        "assumptions": assumed.__dict__,
        "writing": [one.__dict__ | {"device_seconds": assumed.hours(one.flops) * 3600} for one in found],
        "training": training,
    }


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
    found = _writing_cost(cards, sonar, tokens, lengths, options.assumed)
    training = {card.name: training_flops(card, sonar.dim, options.sentences) for card in cards}
    training |= {llm.name: llm.training_flops(2048) for llm in LLMS}
    if options.plot is not None:
        with replacing_file(options.plot) as file:
            _draw(file, options.plot.rpartition(".")[2], found)
    if options.json:
        console.file.write(json.dumps(_as_json(found, training, options.assumed), indent=1) + "\n")
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
        for (model, length), cells in _columns(found).items():
            style = "--" if length is None else "-"
            label = model if length is None else f"{model}, {length:g} tokens per sentence"
            axes.plot(list(cells), list(cells.values()), style, marker="o", markersize=3, label=label)
        axes.set(xscale="log", yscale="log", xlabel="tokens of prompt and output", ylabel="FLOP")
        axes.set_title("Operations to read and write one text")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        figure.savefig(file, format=form, dpi=160, metadata=dates[form])
