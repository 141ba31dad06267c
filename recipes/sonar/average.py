"""The weighted mean of models that were trained further from one another: between what each of them is good at.

    python -m recipes.sonar.average sonar-tiny@0.3 runs/further/sonar-tiny.yaml@0.7 --out runs/mean --name sonar-mean

All must have the same sizes, languages and tokenizer. Takes a second.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from recipes.sonar.export import export, loaded
from recipes.sonar.recipe import SonarRecipe, continued
from stages.sonar.card import ModelCard, load_card
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder


def average(cards: Sequence[ModelCard], shares: Sequence[float]) -> tuple[SonarTextEncoder, SonarTextDecoder]:
    """Return networks with the mean of the cards' weights; shares need not add up to 1.

    Raises ValueError if the cards differ in tokenizer, sizes or languages.
    """
    for card in cards[1:]:
        for what in ("tokenizer_digest", "dim", "encoder_layers", "decoder_layers", "heads", "ffn_dim", "languages"):
            if getattr(card, what) != getattr(cards[0], what):
                raise ValueError(
                    f"{card.name} has {what} {getattr(card, what)}, {cards[0].name} has {getattr(cards[0], what)}; "
                    "only models that were trained further from one another have a mean"
                )
    found = [loaded(card) for card in cards]
    weights = [share / sum(shares) for share in shares]
    encoder, decoder = found[0]
    _fill(encoder, [network.state_dict() for network, _ in found], weights)
    _fill(decoder, [network.state_dict() for _, network in found], weights)
    return encoder.eval().requires_grad_(False), decoder.eval().requires_grad_(False)


def _fill(network: nn.Module, states: Sequence[dict[str, Tensor]], weights: Sequence[float]) -> None:
    means = {}
    for name in states[0]:
        means[name] = torch.stack([weight * state[name] for weight, state in zip(weights, states, strict=True)]).sum(0)
    network.load_state_dict(means)


def main(
    models: Annotated[list[str], typer.Argument(help="CARD@SHARE, each the name or the path of a card")],
    out: Annotated[Path, typer.Option(help="folder for the weights and the card")],
    name: Annotated[str, typer.Option(help="name of the model and its card")] = SonarRecipe.name,
) -> None:
    """Write the weighted mean of models."""
    parsed = [_parse(text) for text in models]
    cards = [load_card(card) for card, _ in parsed]
    encoder, decoder = average(cards, [share for _, share in parsed])
    (out / name).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(cards[0].verify("tokenizer"), out / name / "tokenizer.model")
    recipe = continued(SonarRecipe(corpora=(), name=name), cards[0])
    export(recipe, encoder, decoder, out, f"The weighted mean of {', '.join(models)}.", {})


def _parse(text: str) -> tuple[str, float]:
    card, _, share = text.rpartition("@")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if not card or not 0 < number < float("inf"):
        raise ValueError(f"{text}: give CARD@SHARE with SHARE > 0")
    return card, number


if __name__ == "__main__":
    try:
        typer.run(main)
    except ValueError as error:
        sys.exit(f"error: {error}")
