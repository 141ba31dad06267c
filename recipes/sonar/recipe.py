"""What decides the weights of a small SONAR model, how long it is trained, and the course of its learning rate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch

from stages.sonar.card import ModelCard


class Precision(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"


@dataclass(frozen=True)
class SonarRecipe:
    """All that decides the weights, except the number of steps. Kept in the checkpoint; a resumed run must agree."""

    corpora: tuple[str, ...]
    name: str = "sonar-tiny"
    languages: tuple[str, ...] = ("eng_Latn", "deu_Latn", "fra_Latn", "rus_Cyrl", "zho_Hans")
    dim: int = 256
    encoder_layers: int = 2
    decoder_layers: int = 2
    heads: int = 4
    ffn_dim: int = 1024
    pieces: int = 8000
    learning_rate: float = 4e-3
    warmup: int = 100
    decay: float = 0.5  # share of the steps over which the learning rate falls to 0
    batch_tokens: int = 3072
    # (longest, steps): copying is learned on short sentences in small batches; then come the longer ones
    curriculum: tuple[tuple[int, int], ...] = ((16, 600), (24, 400), (32, 400), (48, 400))
    curriculum_rows: int = 64
    aligned_share: float = 0.25
    round_size: int = 60_000  # examples that are sorted by length together; more for large batches
    thinned: int = 0  # tokens: of shorter sentences only a part takes part, in proportion to their length
    start: str = ""  # the card whose weights are trained further, with its digest; empty: random weights
    precision: str = "fp32"  # or bf16, of the matmuls; weights, gradients and the loss are in float32 always
    seed: int = 1

    @property
    def dtype(self) -> torch.dtype:
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.precision]


def continued(recipe: SonarRecipe, card: ModelCard, encoder_layers: int = 0, decoder_layers: int = 0) -> SonarRecipe:
    """Return the recipe with the sizes and languages of a card whose weights are trained further, and without a
    curriculum.

    encoder_layers, decoder_layers: how many there are to be, if more than the card's.
    Raises ValueError if they are fewer.
    """
    for name, wanted, found in (
        ("--encoder-layers", encoder_layers, card.encoder_layers),
        ("--decoder-layers", decoder_layers, card.decoder_layers),
    ):
        if wanted and wanted < found:
            raise ValueError(f"{name} {wanted}: {card.name} has {found}; give at least as many, or leave it out")
    return replace(
        recipe,
        start=f"{card.name} (encoder {card.encoder_digest}, decoder {card.decoder_digest})",
        languages=tuple(card.languages),
        dim=card.dim,
        encoder_layers=encoder_layers or card.encoder_layers,
        decoder_layers=decoder_layers or card.decoder_layers,
        heads=card.heads,
        ffn_dim=card.ffn_dim,
        curriculum=(),
    )


@dataclass
class RecipeProgress:
    """Where a run is; with the networks and the optimizers, all that resuming needs."""

    step: int = 0
    round: int = 0
    in_round: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingBudget:
    """How long a training is: a number of steps, or minutes, whose last step depends on the machine's speed."""

    steps: int = 0
    minutes: float = 0.0

    def left(self, progress: RecipeProgress) -> float:
        """Return the share that is left, from 1 to 0."""
        if self.minutes:
            return max(0.0, 1 - progress.seconds / (60 * self.minutes))
        return max(0.0, 1 - progress.step / self.steps)


def schedule(step: int, left: float, warmup: int, decay: float) -> float:
    """Return warm-up, constant, and a linear decay over the last share: until that begins, a run may still be
    lengthened.

    left: the share of the training that is left at this step, from 1 to 0.
    """
    return min(1.0, (step + 1) / warmup, left / decay)


def lesson(recipe: SonarRecipe, step: int) -> tuple[int, int]:
    """Return the longest sentence and the size of a batch at a step, both in tokens."""
    for longest, steps in recipe.curriculum:
        if step < steps:
            return longest, min(recipe.batch_tokens, recipe.curriculum_rows * longest)
        step -= steps
    return 512, recipe.batch_tokens
