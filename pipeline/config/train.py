"""The `train` section of corpus.yaml: a model, and how it is trained. This module imports nothing heavy.

Meaning settings decide the losses: a training continues only with those that it began with.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from pipeline.base.errors import ConfigError
from pipeline.config.select import SelectSettings
from stages.cards import CardError
from stages.lcm.card import (
    ContrastiveSettings,
    DiffusionSettings,
    LcmCard,
    NgramSettings,
    Objective,
    SonarLlmSettings,
    TokenLmSettings,
    load_lcm_card,
    options_of,
    unread,
    with_objective,
)
from stages.stage import Settings, execution, meaning

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MICRO_CONCEPTS = 2048
LANES = 8
Plans = Literal["none", "headline", "column"]
TAKEN = "index"  # a folder of train/
OF_GENERATION = ("end_cosine", "previous_cosine", "reencode")  # of `SamplingSettings`
# settings that say which card it is
OF_CARD = ("model", "objective", "contrastive", "sonar_llm", "token_lm", "ngram", "diffusion")


class OtherCorpus(Settings):
    """Another corpus with the same encoder that is trained on as well."""

    path: str = meaning(min_length=1, description="folder of the corpus: any fsspec URL, or relative to the file")
    weight: float = meaning(
        1.0, gt=0, le=1e30, description="how often its sentences are drawn, relative to their number"
    )
    select: SelectSettings | None = meaning(None, description="which sentences of that corpus are used")


class SamplingSettings(Settings):
    """How sentences are drawn from a trained model (LCM 2.4.2), and when a generated text ends.

    Settings that are left out have the paper's value for the kind of model. Each kind of model reads only some of them:
    the others are refused.
    """

    steps: int | None = execution(None, ge=1, description="diffusion: denoising steps of a sentence (40)")
    guidance: float | None = execution(
        None, ge=0, description="diffusion, Quant-LCM: scale of classifier-free guidance, 1: none (3 for diffusion)"
    )
    rescale: float | None = execution(
        None, ge=0, le=1, description="diffusion: g_rescale, how much of a guided prediction is rescaled (0.7)"
    )
    initial_noise: float | None = execution(
        None, ge=0, description="diffusion: σ_init, the standard deviation of the initial noise (0.6)"
    )
    epsilon_scaling: float | None = execution(
        None, gt=0, description="diffusion: λ_eps, the divisor of predicted noise (1.00045)"
    )
    eta: float | None = execution(
        None, ge=0, le=1, description="diffusion: noise that each step adds, up to 1 as in DDPM (0)"
    )
    clip: float | None = execution(
        None, gt=0, description="diffusion: the largest normalised value of a prediction (no limit)"
    )
    temperature: float | None = execution(
        None, gt=0, description="Quant-LCM: 1/β of eq. 23; token models: the divisor of logits"
    )
    top_k: int | None = execution(
        None, ge=1, description="Quant-LCM, token models: how many units or tokens to draw from; 1: the likeliest"
    )
    top_p: float | None = execution(
        None,
        gt=0,
        le=1,
        description="Quant-LCM, token models: draw from the likeliest that together have this probability",
    )
    ensemble: float | None = execution(
        None, ge=0, le=1, description="models with n-gram heads: λ of their ensemble, 0: only the first head predicts"
    )
    end_cosine: float | None = execution(
        None,
        ge=-1,
        le=1,
        description='generation ends with a sentence whose cosine with "End of text." exceeds this (0.9; 0.98 for the '
        "objective sonar-llm); 1: never",
    )
    previous_cosine: float | None = execution(
        None,
        ge=-1,
        le=1,
        description="generation ends with a sentence whose cosine with the one before exceeds this (0.9; 1 for the "
        "objective sonar-llm); 1: never",
    )

    reencode: bool | None = execution(
        None,
        description="generation goes on from the decoded and encoded text of each sentence, not from its prediction "
        "(true for the objective sonar-llm, else false)",
    )

    def given(self) -> dict[str, Any]:
        """Return the settings that are set."""
        return self.model_dump(exclude_none=True)


class TrainSettings(Settings):
    """One training. Defaults are the LCM paper's where it states them (2.4.1 and 3.1), except for its size."""

    model: str = meaning(
        "lcm-two-tower-tiny", description="card of the model: a name that ships, or the path of a card's YAML file"
    )
    objective: Objective | None = meaning(
        None,
        description="what models of the kind base learn: mse: the next embedding, by squared error; contrastive: to "
        "tell the next sentence from the others of a micro-batch; sonar-llm: the words of the next sentence, through "
        "the frozen decoder (default: that of the card)",
    )
    contrastive: ContrastiveSettings | None = meaning(
        None, description="settings of the objective contrastive (default: those of the card)"
    )
    sonar_llm: SonarLlmSettings | None = meaning(
        None, description="settings of the objective sonar-llm (default: those of the card)"
    )
    token_lm: TokenLmSettings | None = meaning(
        None, description="how a token language model learns (default: as the card says)"
    )
    ngram: NgramSettings | None = meaning(
        None,
        description="heads that predict further tokens or sentences after the next one, for token language models and "
        "for models of the kind base with objective mse (default: those of the card)",
    )
    diffusion: DiffusionSettings | None = meaning(
        None, description="noise schedule and loss weights of a diffusion model (default: those of the card)"
    )
    name: str | None = execution(
        None,
        pattern=NAME,
        max_length=100,
        description="name of the training: its folder in train/ (default: that of the model)",
    )
    steps: int = meaning(1000, ge=1, description="optimizer steps (250_000 in the LCM paper's 2.4)")
    epochs: float | None = meaning(
        None,
        gt=0,
        le=1e6,
        description="how many times the sentences of the split train are read, in place of steps (the LCM paper's "
        "fine-tuning in 3.1: 7); the number of steps is decided when the training begins",
    )
    batch_concepts: int = meaning(
        4096,
        ge=1,
        le=10_000_000,
        description="sentences per step, over all processes (229_000 in the LCM paper's 2.4, 1M for 7B)",
    )
    micro_concepts: int = meaning(
        MICRO_CONCEPTS,
        ge=1,
        le=10_000_000,
        description="the most sentences that a process computes at once (default: 2048, or batch_concepts if that is "
        "less). It must divide batch_concepts, and must not be less than the model's context. It decides "
        "the order of the data",
    )
    lanes: int | None = meaning(
        None,
        ge=1,
        description="the most streams that read the data (small corpora have fewer). With a multiple of the number of "
        "processes, each process reads files of its own. It decides the order of the data (default: when the training "
        "begins, the least multiple of launcher.train_nodes · processes that is 8 or more)",
    )
    lr: float = meaning(3e-4, gt=0, le=1e30, description="the highest learning rate")
    warmup_steps: int | None = meaning(
        None,
        ge=0,
        description="steps of the warm-up to lr (default: a tenth of steps, at most 10_000, as in the LCM paper)",
    )
    min_lr: float | None = meaning(
        None, ge=0, le=1e30, description="the learning rate at the end of the cosine schedule (default: a tenth of lr)"
    )
    betas: tuple[float, float] = meaning((0.9, 0.95), description="decay rates of AdamW")
    eps: float = meaning(1e-5, gt=0, le=1000, description="epsilon of AdamW")
    weight_decay: float = meaning(0.1, ge=0, le=1000, description="weight decay of AdamW, on matrices only")
    clip_norm: float = meaning(
        10.0, gt=0, le=1e30, description="the largest norm of a gradient; longer ones are scaled down"
    )
    weights: Literal["none", "fragility"] = meaning(
        "none",
        description="how much a sentence counts in the loss: none: all the same; fragility: fragile sentences less (by "
        "the column `weight` of the section predictor)",
    )
    weight: float = meaning(
        1.0, gt=0, le=1e30, description="how often sentences of this corpus are drawn, compared with those of `corpora`"
    )
    corpora: tuple[OtherCorpus, ...] = meaning((), description="other corpora to train on as well")
    answers: str | None = meaning(
        None,
        min_length=1,
        description="fine-tuning: a column that the input kept, with the code point where a document's answer begins; "
        "only sentences of answers count in the loss",
    )
    plans: Plans = meaning(
        "none",
        description="the model also learns plans, as a Large Planning Concept Model (LCM 4.3): every paragraph of a "
        "document begins with its plan, and ends with `End of paragraph.`. headline: the plan is the sentence that is "
        "nearest to the paragraph's mean embedding; column: that of the section plans, and a paragraph may have none; "
        "not for token language models, and column not for models of codes",
    )
    init_from: str | None = meaning(
        None,
        min_length=1,
        description="a trained model to start from: its folder …/train/NAME, any fsspec URL, or one that ships",
    )
    seed: int = meaning(0, ge=0, description="seed of weights, noise and the order of the data")
    validate_every: int = execution(
        500, ge=0, description="steps between measurements of the validation loss; 0: only at the end"
    )
    validation_concepts: int = execution(
        20_000, ge=0, description="sentences of the validation split that are evaluated; 0: none"
    )
    evaluate_sentences: int = execution(
        1000, ge=0, description="sentences of held-out documents predicted at the end of the training; 0: none"
    )
    sampling: SamplingSettings | None = execution(
        None, description="how evaluate and generate draw from this model (default: as the LCM paper does)"
    )
    checkpoint_every: int = execution(500, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = execution(2, ge=1, description="how many of the newest checkpoints are kept")
    log_every: int = execution(10, ge=1, description="steps between lines of the log")
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = execution(
        ("tensorboard",),
        description="what gets the numbers of a training besides metrics.jsonl: tensorboard, wandb (Weights & Biases), "
        "mlflow; the last two need the extra of that name; []: nothing does",
    )
    precision: Literal["auto", "float32", "bfloat16"] = meaning(
        "auto", description="format of matrix products; auto: bfloat16 on GPUs, float32 on CPUs; weights are float32"
    )
    parallel: Literal["auto", "ddp", "fsdp"] = execution(
        "auto",
        description="how several processes share the work: ddp: each has the whole model; fsdp: each has a share of "
        "it; auto: fsdp from 2 billion parameters on",
    )
    compile: Literal["auto", "always", "never"] = execution(
        "auto",
        description="whether torch.compile compiles the blocks; auto: on GPUs, from 100 million parameters on, since "
        "compiling takes most of a minute",
    )
    activation_checkpointing: bool = execution(
        False, description="compute activations of blocks again in the backward pass instead of keeping them"
    )
    processes: int | None = execution(
        None, ge=1, description="processes on this machine, per SLURM node, or on Ray (default: one per GPU, or one)"
    )
    oversubscribe: bool = execution(
        False, description="start more processes than this machine has CPUs (from five on, and without GPUs)"
    )
    timeout_seconds: int = execution(
        600,
        ge=10,
        le=1_000_000_000,
        description="a process that waits this long for another one takes it for lost, and fails",
    )

    @field_validator("trackers")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({one for one in value if value.count(one) > 1})
        if twice:
            raise ValueError(f"{' and '.join(twice)} {'is' if len(twice) == 1 else 'are'} named twice; name each once")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> TrainSettings:
        if self.epochs is not None and self.corpora:
            raise ValueError("epochs is for one corpus, and a mix (corpora) is drawn by weights; give steps instead")
        if self.batch_concepts % self.micro_concepts:
            near = max(1, round(self.batch_concepts / self.micro_concepts)) * self.micro_concepts
            raise ValueError(
                f"batch_concepts {self.batch_concepts} is not a multiple of micro_concepts {self.micro_concepts}; "
                f"give for instance {near}"
            )
        if self.epochs is None and self.warmup > self.steps:
            raise ValueError(f"warmup_steps {self.warmup} is more than steps {self.steps}; give fewer")
        if self.last_lr > self.lr:
            raise ValueError(f"min_lr {self.last_lr} is more than lr {self.lr}; give less")
        if self.name == TAKEN:
            raise ValueError(f"name is {TAKEN}, where the indexes lie; give another")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {list(self.betas)}; both are at least 0 and below 1")
        return self

    @property
    def warmup(self) -> int:
        """Steps of the warm-up."""
        return min(10_000, self.steps // 10) if self.warmup_steps is None else self.warmup_steps

    @property
    def last_lr(self) -> float:
        """The learning rate that the cosine ends with."""
        return self.lr / 10 if self.min_lr is None else self.min_lr

    @property
    def per_step(self) -> int:
        """Micro-batches of a step, over all processes."""
        return self.batch_concepts // self.micro_concepts

    def check_shared(self, processes: int) -> None:
        """Raise `ConfigError` if so many processes cannot share the micro-batches of a step, or the model."""
        if self.parallel == "fsdp" and processes == 1:
            raise ConfigError("train.parallel is fsdp, but there is one process; give train.processes, or ddp")
        if self.per_step % processes:
            raise ConfigError(
                f"a step has {self.per_step} micro-batches (batch_concepts / micro_concepts), which {processes} "
                f"processes cannot share; give a batch_concepts of a multiple of {processes * self.micro_concepts}, or "
                "fewer micro_concepts"
            )

    @property
    def folder(self) -> str:
        """The folder of the training, in the corpus."""
        stem = self.model.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
        return f"train/{self.name or stem}"

    @property
    def card(self) -> LcmCard:
        """Return the card of the model to train, with the objective that is set.

        Raises CardError if there is no such card, or if its model does not read something that `sampling` or `plans`
        sets.
        """
        card = with_objective(
            load_lcm_card(self.model),
            self.objective,
            self.contrastive,
            self.sonar_llm,
            self.token_lm,
            self.ngram,
            self.diffusion,
        )
        for name in self.sampling.given() if self.sampling else ():
            if name not in (*options_of(card), *(() if card.kind == "token-lm" else OF_GENERATION)):
                raise CardError(f"train.sampling.{name}: {unread(name, [card.kind])}")
        if self.plans != "none" and card.kind == "token-lm":
            raise CardError(f"train.plans: {card.name} models tokens, and plans are concepts; leave it out")
        if self.plans == "column" and card.quantised:
            raise CardError(
                f"train.plans: {card.name} models codes, and plans of a column have none; give headline, or a model of "
                "another kind"
            )
        return card

    @property
    def streams(self) -> int:
        """The most streams that read the data."""
        return self.lanes or LANES

    def with_steps_of(self, sentences: int, each: float) -> TrainSettings:
        """Return the settings with as many steps as `epochs` of this many sentences take, if that is set.

        `each`: how many sentences a micro-batch really holds on average, at most `micro_concepts`.
        """
        if self.epochs is None:
            return self
        steps = max(1, round(self.epochs * sentences / (self.per_step * each)))
        if self.warmup_steps is not None and self.warmup_steps > steps:
            raise ConfigError(
                f"train.warmup_steps: {self.warmup_steps} is more than the {steps} steps of {self.epochs:g} epochs; "
                "give fewer"
            )
        return self.model_copy(update={"steps": steps})

    def with_lanes(self, processes: int) -> TrainSettings:
        """Return the settings of a training that begins with this number of processes, each of which reads its own
        files.
        """
        return self if self.lanes else self.model_copy(update={"lanes": -(-LANES // processes) * processes})

    def pinned(self) -> dict[str, Any]:
        """Return the meaning settings, without those that say which card it is."""
        found = {key: value for key, value in self.meaningful().items() if key not in OF_CARD}
        for name, default in (("plans", "none"), ("epochs", None)):  # as before there were any
            if found[name] == default:
                del found[name]
        return found | {"lanes": self.streams}
