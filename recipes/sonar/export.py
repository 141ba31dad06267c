"""Networks of a recipe's size, and their weights as files with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import sentencepiece
import yaml
from torch import nn

from recipes.sonar.recipe import SonarRecipe
from stages.sonar import checkpoint
from stages.sonar.card import ModelCard, ModelFile, ModelFiles, load_card
from stages.sonar.networks import DecoderLayer, EncoderLayer, SonarTextDecoder, SonarTextEncoder

_Network = TypeVar("_Network", SonarTextEncoder, SonarTextDecoder)


def networks(recipe: SonarRecipe, vocab_size: int) -> tuple[SonarTextEncoder, SonarTextDecoder]:
    """Return an untrained encoder and decoder, which share one embedding table.

    Sharing it was seen to halve the tokens that copying takes to learn. The table starts small: the output projection
    is tied to it, and at full size an untrained decoder is sure that each token follows itself.
    """

    def made(kind: type[_Network], layers: int) -> _Network:
        return kind(
            dim=recipe.dim,
            layers=layers,
            heads=recipe.heads,
            ffn_dim=recipe.ffn_dim,
            vocab_size=vocab_size,
            max_tokens=514,
        )

    encoder = made(SonarTextEncoder, recipe.encoder_layers)
    decoder = made(SonarTextDecoder, recipe.decoder_layers)
    nn.init.normal_(decoder.embedding.weight, std=0.3 * recipe.dim**-0.5)
    encoder.embedding.weight = decoder.embedding.weight
    return encoder, decoder


def loaded(card: ModelCard, recipe: SonarRecipe | None = None) -> tuple[SonarTextEncoder, SonarTextDecoder]:
    """Return a card's networks, ready to be trained further; they share one embedding table, which is the decoder's.

    Where the recipe has more layers, new ones follow the card's. They add nothing yet, so that the networks compute
    what they computed before.
    """
    encoder, decoder = checkpoint.load_encoder(card), checkpoint.load_decoder(card)
    if recipe:
        _grow(encoder, EncoderLayer, recipe.encoder_layers, recipe)
        _grow(decoder, DecoderLayer, recipe.decoder_layers, recipe)
    encoder.embedding.weight = decoder.embedding.weight
    return encoder.requires_grad_(True).train(), decoder.requires_grad_(True).train()


def _grow(
    network: SonarTextEncoder | SonarTextDecoder,
    kind: type[EncoderLayer | DecoderLayer],
    layers: int,
    recipe: SonarRecipe,
) -> None:
    for _ in range(layers - len(network.layers)):
        layer = kind(recipe.dim, recipe.heads, recipe.ffn_dim)
        for name, parameter in layer.named_parameters():
            if ".out_proj." in name:
                nn.init.zeros_(parameter)
        network.layers.append(layer)


def export(
    recipe: SonarRecipe,
    encoder: nn.Module,
    decoder: nn.Module,
    out: Path,
    facts: str,
    scores: dict[str, dict[str, float]],
) -> ModelCard:
    """Write encoder and decoder to `<name>/`, beside the tokenizer, and the card `<name>.yaml`."""
    folder = out / recipe.name
    written = {"tokenizer": folder / "tokenizer.model"}
    for role, network in (("encoder", encoder), ("decoder", decoder)):
        written[role] = folder / f"{role}.safetensors"
        checkpoint.save(network, written[role].with_suffix(".half"))
        written[role].with_suffix(".half").replace(written[role])
    files = {role: ModelFile.of(path, out) for role, path in written.items()}
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(written["tokenizer"])).vocab_size()
    origin = f"further from {recipe.start}" if recipe.start else "from scratch"
    card = ModelCard(
        name=recipe.name,
        kind="sonar-text",
        layout="native",
        description=f"A small SONAR text encoder and decoder, trained {origin} with recipes/sonar/train.py. {facts}",
        licence="MIT (weights); the texts it was trained on keep their own licences",
        dim=recipe.dim,
        encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers,
        heads=recipe.heads,
        ffn_dim=recipe.ffn_dim,
        vocab_size=pieces + 1 + len(recipe.languages),
        languages=recipe.languages,
        files=ModelFiles(**files),
        scores=scores,
    )
    path = out / f"{recipe.name}.yaml"
    content = yaml.safe_dump(card.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    path.with_suffix(".half").write_text(content, encoding="utf-8")
    path.with_suffix(".half").replace(path)
    return load_card(str(path))
