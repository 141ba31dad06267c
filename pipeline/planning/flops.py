"""Computes the figures of `pipeline flops`: operations of training and of writing text, for LCMs and LLMs.

They follow LCM 2.5.1 and Fig. 13. A text of n tokens has n / (tokens per sentence) sentences, of which a share is the
prompt. An LCM encodes the prompt, reads it, predicts each sentence and decodes it; SONAR-LLM also encodes each sentence
that it has written. An LLM reads and predicts token by token, and keeps keys and values, as the LCM does. SONAR and an
LLM are assumed to cut a text into the same number of tokens. Every assumption is printed with the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.base.errors import ConfigError
from stages.lcm.card import LcmCard
from stages.lcm.inference_flops import CODEBOOKS, UNITS, writing_flops
from stages.lcm.model import Sampling, paper_sampling
from stages.sonar.card import ModelCard
from stages.sonar.flops import decoder_flops, encoder_flops

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


def writing_cost(
    cards: list[LcmCard], sonar: ModelCard, tokens: list[int], sentence_tokens: list[float], assumed: Assumptions
) -> list[Writing]:
    """Return the FLOPs of texts of each length, by each model and each length of sentences, and by the LLMs.

    Args:
        cards: the Large Concept Models.
        sonar: the model that encodes the prompt and decodes what is written.
        tokens: the lengths of texts, prompt included.
        sentence_tokens: the lengths of sentences, in tokens.
        assumed: the assumptions, such as the share of a text that is generated.

    Returns:
        One entry for each model, each length of a text, and for LCMs each length of a sentence.
    """
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


def as_json(found: list[Writing], training: dict[str, float], assumed: Assumptions) -> dict[str, Any]:
    """Return the figures as an object for `--json`.

    Args:
        found: the cost of writing.
        training: model → FLOPs per sentence or token.
        assumed: the assumptions.

    Returns:
        `assumptions`, `writing` (a list), and `training`.
    """
    return {
        "assumptions": assumed.__dict__,
        "writing": [one.__dict__ | {"device_seconds": assumed.hours(one.flops) * 3600} for one in found],
        "training": training,
    }
