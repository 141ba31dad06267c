"""Cards of Large Concept Models: the architecture, LCM 2.3 and 2.4.1. The ones that ship: `conf/models/lcm-*.yaml`.

A card says what a model is, not how it is trained: that is the section `train` of corpus.yaml. The dimension of the
embeddings, the scaler and the codebooks come from the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from stages.cards import Card, CardError, read_card, shipped
from stages.shipped import FOLDER
from stages.stage import Settings, meaning

Kind = Literal["base", "one-tower", "two-tower", "quant-c", "quant-d", "token-lm"]
Count = Annotated[int, Field(ge=1)]
Layers = Annotated[int, Field(ge=1, le=1000)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Objective = Literal["mse", "contrastive", "sonar-llm"]
OwnAttentionKind = Literal["full", "value"]
ROPE_BASE = 10_000.0
LEFT_OUT: dict[str, Any] = {  # of what trainings are pinned to, where they have these values: cards of before had none
    "own_attention": "full",
    "objective": "mse",
    "head_dim": None,
    "rope_base": ROPE_BASE,
    "context_tokens": None,
    "ngram": None,
}
PREFIX = "lcm-"  # of their files, which lie among those of SONAR


class DiffusionSettings(Settings):
    """The noise schedule and the loss weights of a diffusion model, LCM 2.3.2."""

    schedule: Literal["cosine", "quadratic", "sigmoid"] = meaning(
        "cosine", description="the noise schedule, LCM eq. 12 to 14"
    )
    steps: int = meaning(100, ge=2, le=1_000_000, description="T, the number of timesteps")
    beta_first: float | None = meaning(None, gt=0, lt=1, description="quadratic: β0 of eq. 13")
    beta_last: float | None = meaning(None, gt=0, lt=1, description="quadratic: β1 of eq. 13")
    scale: float | None = meaning(None, gt=0, description="sigmoid: scale of the log-SNR, 1.5 in Table 5")
    shift: float | None = meaning(None, description="sigmoid: centre of the log-SNR, -1 in Table 5")
    snr_min: float | None = meaning(None, ge=0, description="clamped SNR weights: λmin of eq. 17")
    snr_max: float | None = meaning(None, gt=0, description="clamped SNR weights: λmax of eq. 17")

    @model_validator(mode="after")
    def _complete(self) -> DiffusionSettings:
        for schedule, names in (("quadratic", ("beta_first", "beta_last")), ("sigmoid", ("scale", "shift"))):
            given = [name for name in names if getattr(self, name) is not None]
            if self.schedule == schedule and len(given) < len(names):
                raise ValueError(f"schedule {schedule} needs {' and '.join(names)}")
            if self.schedule != schedule and given:
                raise ValueError(f"{given[0]} belongs to the schedule {schedule}, not to {self.schedule}: leave it out")
        if (self.snr_min is None) != (self.snr_max is None):
            raise ValueError("give both snr_min and snr_max, or neither (the weight is then 1 at every timestep)")
        if self.snr_min is not None and self.snr_max is not None and self.snr_min > self.snr_max:
            raise ValueError(f"snr_min is {self.snr_min}, more than snr_max, {self.snr_max}")
        return self


def last_steps(share: float, steps: int) -> int:
    """Return how many steps this share of all is, rounded up: of the share as written, as 0.07 * 100 is above 7."""
    return math.ceil(Fraction(str(share)) * steps)


def options_of(card: LcmCard) -> tuple[str, ...]:
    """Return the fields of `Sampling` that models of a card read."""
    ensemble = () if card.ngram is None else ("ensemble",)
    if card.kind in ("quant-c", "quant-d"):
        return "guidance", "temperature", "top_k", "top_p"
    if card.kind == "token-lm":
        return ("temperature", "top_k", "top_p", *ensemble)
    if card.kind == "base":
        return ensemble
    return "steps", "guidance", "rescale", "initial_noise", "epsilon_scaling", "eta", "clip"


def unread(option: str, kinds: Iterable[str]) -> str:
    """Say that models of these kinds do not read a field of `Sampling`."""
    if option == "ensemble":
        return "only models that are trained with n-gram heads (train.ngram) read it; leave it out"
    return f"models of the kind {', '.join(kinds)} do not read it; leave it out"


class ContrastiveSettings(Settings):
    """The contrastive objective: contrastive weight tying (Godey et al. 2024, headless language models) on concepts."""

    keys: Literal["frozen", "tied"] = meaning(
        "frozen",
        description="what a prediction is compared with: frozen: the normalised embeddings, so that predictions can be "
        "decoded; tied: PreNet's outputs for them, with PreNet trained as well",
    )
    temperature: float | None = meaning(
        None,
        gt=0,
        description="divisor of scores, besides the root of the keys' width (default: for frozen keys 0.5, which is "
        "then learned; for tied keys 1)",
    )
    head: float = meaning(
        0.02,
        ge=0,
        le=1,
        description="tied keys: the last share of the steps, which trains by squared error so that the model can "
        "predict embeddings; with 0 it cannot",
    )


class SonarLlmSettings(Settings):
    """The objective of SONAR-LLM (Dragunov et al. 2025): the words of the next sentence, through a frozen decoder."""

    decoder: str | None = meaning(
        None,
        min_length=1,
        description="card of the SONAR decoder (default: that of autobleu.model, else of encode.model); a training is "
        "pinned to its files",
    )
    targets_per_document: int | None = meaning(
        None,
        ge=1,
        description="how many sentences of a document go through the decoder, the most expensive part; drawn again at "
        "each step (default: all)",
    )


class TokenLmSettings(Settings):
    """How a token language model learns: by cross-entropy, or headless first (Godey et al. 2024)."""

    loss: Literal["cross-entropy", "cwt"] = meaning(
        "cross-entropy",
        description="cross-entropy over the vocabulary; cwt: contrastive weight tying, which tells each next token "
        "from those of the micro-batch, and needs no product with the vocabulary",
    )
    temperature: float = meaning(1.0, gt=0, description="cwt: divisor of scores")
    head: float = meaning(
        0.02, ge=0, le=1, description="cwt: the last share of the steps, which trains by cross-entropy"
    )
    tokenizer: str | None = meaning(
        None,
        min_length=1,
        description="card whose tokenizer is used (default: that of encode.model; no other tokenizer is allowed, so "
        "that likelihoods can be compared)",
    )


class NgramSettings(Settings):
    """Heads that also predict what follows the next token or sentence (Heo et al. 2025, word differences)."""

    n: int = meaning(2, ge=2, le=8, description="N: how many tokens or sentences are predicted; above 4 it hurts")
    wdr: bool = meaning(
        False, description="predict differences (word difference representations) instead of the tokens themselves"
    )
    alpha: float = meaning(1.0, gt=0, le=1, description="α of eq. 6: the weight of the other N − 1 losses together")


class LcmCard(Card):
    """One architecture. Frozen; made by `load_lcm_card`."""

    kind: Kind
    model_dim: Count
    heads: Count
    inner_dim: Count = Field(description="width of the feed-forward networks; with SwiGLU usually 2/3 · 4 · model_dim")
    head_dim: Count | None = Field(
        default=None, description="base, token-lm: dimensions of an attention head (default: model_dim / heads)"
    )
    rope_base: float = Field(default=ROPE_BASE, gt=1, description="base, token-lm: θ of rotary position embeddings")
    layers: Layers | None = Field(default=None, description="base, one-tower, quant, token-lm: blocks")
    contextualizer_layers: Layers | None = Field(default=None, description="two-tower: blocks that read the context")
    denoiser_layers: Layers | None = Field(default=None, description="two-tower: blocks that denoise")
    context: Count = Field(
        default=128, le=1_000_000, description="the most sentences that it reads; longer documents are wrapped"
    )
    context_tokens: Count | None = Field(
        default=None,
        le=10_000_000,
        description="token-lm: the most tokens that it reads; longer documents are cut between sentences",
    )
    dropout: Rate = 0.1
    unconditional: Rate = Field(default=0.15, description="share of targets trained without their context")
    diffusion: DiffusionSettings | None = Field(default=None, description="one-tower, two-tower")
    own_attention: OwnAttentionKind = Field(
        default="full",
        description="two-tower: the denoiser's attention to its own position: value: without queries and keys, which "
        "have no effect there; full: with them, as in models of earlier versions",
    )
    objective: Objective = Field(default="mse", description="base: the squared error, contrastive, or sonar-llm")
    sonar_llm: SonarLlmSettings | None = Field(default=None, description="settings of the objective sonar-llm")
    contrastive: ContrastiveSettings | None = Field(default=None, description="settings of the objective contrastive")
    token_lm: TokenLmSettings | None = Field(default=None, description="token-lm: how it learns")
    ngram: NgramSettings | None = Field(
        default=None, description="base with objective mse, token-lm: heads that predict further ahead"
    )

    @model_validator(mode="after")
    def _complete(self) -> LcmCard:
        towers = ("contextualizer_layers", "denoiser_layers")
        needs: tuple[str, ...] = towers if self.kind == "two-tower" else ("layers",)
        has_not: tuple[str, ...] = ("layers",) if self.kind == "two-tower" else towers
        diffusion = self.kind in ("one-tower", "two-tower")
        if diffusion:
            needs += ("diffusion",)
        else:
            has_not += ("diffusion",)
        if self.kind == "token-lm":
            needs += ("context_tokens",)
        else:
            has_not += ("context_tokens", "token_lm")
        if self.kind not in ("base", "token-lm"):
            has_not += ("head_dim", "ngram")
        lacking = [name for name in needs if getattr(self, name) is None]
        excess = [name for name in has_not if getattr(self, name) is not None]
        if lacking or excess:
            wrong = [f"needs {', '.join(lacking)}"] if lacking else []
            wrong += [f"has no {', '.join(excess)}"] if excess else []
            raise ValueError(f"kind {self.kind} {' and '.join(wrong)}")
        if self.own_attention != "full" and self.kind != "two-tower":
            raise ValueError(f"kind {self.kind} has no own_attention")
        if self.objective != "mse" and self.kind != "base":
            raise ValueError(f"objective {self.objective} belongs to the kind base, not to {self.kind}")
        for name, given in (("contrastive", self.contrastive), ("sonar-llm", self.sonar_llm)):
            if given is not None and self.objective != name:
                key = name.replace("-", "_")
                raise ValueError(f"{key} is given, but objective is not {name}: set that too, or leave it out")
        if self.rope_base != ROPE_BASE and self.kind not in ("base", "token-lm"):
            raise ValueError(f"kind {self.kind} has no rope_base")
        if self.ngram is not None and (self.objective != "mse" or self.learns.loss == "cwt"):
            other = "loss cwt" if self.kind == "token-lm" else f"objective {self.objective}"
            raise ValueError(f"ngram does not go with {other}: leave one of them out")
        if self.head_dim is not None and self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary position embeddings need an even number")
        if self.head_dim is None and (self.model_dim % self.heads or self.model_dim // self.heads % 2):
            raise ValueError(f"model_dim {self.model_dim} is not an even multiple of {self.heads} heads")
        return self

    @property
    def width_of_head(self) -> int:
        """Dimensions of each attention head."""
        return self.head_dim or self.model_dim // self.heads

    @property
    def reads_words(self) -> bool:
        """Whether it needs tokens of the sentences."""
        return self.kind == "token-lm" or self.objective == "sonar-llm"

    @property
    def learns(self) -> TokenLmSettings:
        """How a token language model learns."""
        return self.token_lm or TokenLmSettings()

    @property
    def last_share(self) -> float:
        """The share of all steps, the last ones, that train by another loss."""
        if self.objective == "contrastive" and self.contrast.keys == "tied":
            return self.contrast.head
        return self.learns.head if self.kind == "token-lm" and self.learns.loss == "cwt" else 0.0

    def with_first_loss(self, steps: int) -> int:
        """Return how many of all steps come before the last ones that train by another loss; all if none do."""
        return steps - last_steps(self.last_share, steps)

    @property
    def quantised(self) -> bool:
        """Whether it needs codebooks, and codes of the sentences."""
        return self.kind in ("quant-c", "quant-d")

    @property
    def contrast(self) -> ContrastiveSettings:
        """How a contrastive objective is computed."""
        return self.contrastive or ContrastiveSettings()

    @property
    def through(self) -> SonarLlmSettings:
        """How an objective through a decoder is computed."""
        return self.sonar_llm or SonarLlmSettings()

    def recorded(self) -> dict[str, Any]:
        """Return all fields, as trainings are pinned to them: fields that cards did not always have only if they are
        set.
        """
        left_out = {"contrastive", "sonar_llm", "token_lm"}
        left_out |= {name for name, usual in LEFT_OUT.items() if getattr(self, name) == usual}
        found = self.model_dump(mode="json", exclude=left_out)
        if self.objective == "contrastive":
            found["contrastive"] = self.contrast.model_dump(mode="json")
        if self.objective == "sonar-llm":
            found["sonar_llm"] = self.through.model_dump(mode="json")
        if self.kind == "token-lm":
            found["token_lm"] = self.learns.model_dump(mode="json")
        return found

    def parameters(self, dim: int = 1024, codebooks: int = 64, units: int = 8192, vocabulary: int = 256_206) -> int:
        """Count the parameters of a model.

        Args:
            dim: the width of embeddings.
            codebooks: how many codebooks a quantised model has; 64 in the paper.
            units: how many codes a codebook has; 8192 in the paper.
            vocabulary: the size of the vocabulary of a token language model, which needs no embeddings of sentences; by
                default that of SONAR.

        Returns:
            How many numbers its weights have.
        """
        width = self.model_dim
        attention, swiglu = 4 * width * self.heads * self.width_of_head, 3 * width * self.inner_dim
        pre, timestep = (dim + 1) * width, (256 + 1) * width + (width + 1) * width
        post = width + (width + 1) * (units if self.kind == "quant-d" else dim)
        if self.kind == "two-tower":
            assert self.contextualizer_layers is not None and self.denoiser_layers is not None
            contextualizer = self.contextualizer_layers * (attention + swiglu + 2 * width) + width
            own = attention if self.own_attention == "full" else attention // 2
            denoiser = self.denoiser_layers * (own + attention + swiglu + 9 * (width + 1) * width)
            return contextualizer + denoiser + 2 * pre + post + timestep
        assert self.layers is not None
        blocks = self.layers * (attention + swiglu + 2 * width)
        heads = 0 if self.ngram is None else (self.ngram.n - 1) * 2 * (width + 1) * width
        if self.kind == "token-lm":
            return blocks + vocabulary * width + width + heads
        if self.kind == "base":
            learned = self.objective == "contrastive" and self.contrast.keys == "frozen"  # the temperature
            return blocks + pre + post + learned + heads
        index = (codebooks + 1) * width if self.quantised else timestep
        inputs = dim * width + (width + 1) * width + self.context * width
        return self.layers * (attention + 2 * width * self.inner_dim + 2 * width) + inputs + index + post


def shipped_lcm_cards() -> list[str]:
    """Return the names of the cards that ship."""
    return [name for name in shipped("models") if name.startswith(PREFIX)]


def trained_lcms() -> dict[str, str]:
    """Return name → folder of the trained models that ship: `conf/lcm/NAME/`."""
    return {path.parent.name: str(path.parent) for path in sorted((FOLDER / "lcm").glob("*/text.json"))}


def load_lcm_card(name_or_path: str) -> LcmCard:
    """Return the card of a shipped model by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "models", LcmCard, "Large Concept Model", PREFIX)


def with_objective(
    card: LcmCard,
    objective: Objective | None,
    contrastive: ContrastiveSettings | None = None,
    sonar_llm: SonarLlmSettings | None = None,
    token_lm: TokenLmSettings | None = None,
    ngram: NgramSettings | None = None,
    diffusion: DiffusionSettings | None = None,
) -> LcmCard:
    """Return a card with another objective or other settings of it; None leaves them as the card says.

    Args:
        card: the architecture.
        objective: the objective.
        contrastive: settings of the contrastive objective.
        sonar_llm: settings of the objective through a decoder.
        token_lm: settings of a token language model.
        ngram: settings of the heads that also predict later sentences or tokens.
        diffusion: settings of the noise schedule.

    Returns:
        The changed card.

    Raises:
        CardError: if a model of this kind cannot learn so.
    """
    fields: dict[str, Any] = {}
    if objective is not None:
        others = {"contrastive": "contrastive", "sonar-llm": "sonar_llm"}
        fields = {"objective": objective, **{key: None for name, key in others.items() if name != objective}}
    sections = {
        "contrastive": contrastive,
        "sonar_llm": sonar_llm,
        "token_lm": token_lm,
        "ngram": ngram,
        "diffusion": diffusion,
    }
    fields |= {name: given.model_dump() for name, given in sections.items() if given is not None}
    if not fields:
        return card
    try:
        return LcmCard.model_validate(card.model_dump() | fields)
    except ValidationError as error:
        why = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors())
        raise CardError(f"{card.name}: {why}") from error
