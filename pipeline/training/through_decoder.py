"""What a training needs that learns through a decoder: the frozen network, pinned by a digest."""

from __future__ import annotations

import torch

from pipeline.base.errors import ConfigError
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.training.data.index import Index
from pipeline.training.record import Pinned, PinnedDecoder
from stages.cards import CardError
from stages.lcm.card import LcmCard
from stages.sonar.card import ModelCard, load_card
from stages.sonar.checkpoint import load_decoder
from stages.sonar.networks import SonarTextDecoder

HERE = "train.sonar_llm.decoder"


def pinned_decoder(corpus: Corpus, card: LcmCard, index: Index) -> PinnedDecoder | None:
    """Return the decoder through which a model learns.

    Args:
        corpus: the corpus.
        card: the card of the model.
        index: the index of the corpus.

    Returns:
        The decoder's name and digest; None if the objective needs none.

    Raises:
        ConfigError: for a decoder that does not go with the corpus's encoder.
    """
    if card.objective != "sonar-llm":
        return None
    config = newest_config(corpus.store)
    name = card.through.decoder or (config.get("autobleu") or config["encode"])["model"]
    decoder, encoder = load_card(name), load_card(config["encode"]["model"])
    if decoder.dim != index.dim:
        raise ConfigError(
            f"{HERE}: {decoder.name} takes embeddings of {decoder.dim} dimensions, those of {index.url} have "
            f"{index.dim}; name the decoder that goes with {encoder.name}"
        )
    try:
        decoder.check_encoder(encoder, "the decoder of")
    except CardError as error:
        raise ConfigError(f"{HERE}: {error}") from error
    if decoder.files.tokenizer.identity != encoder.files.tokenizer.identity:
        raise ConfigError(
            f"{HERE}: the tokenizer of {decoder.name} differs from that of {encoder.name}, which encoded "
            f"{index.url}; name a decoder with the same tokenizer"
        )
    return PinnedDecoder(model=name, digest=decoder.decoder_digest)


def card_of(pinned: Pinned) -> ModelCard:
    """Return the card of a training's decoder. Raises `ConfigError` if it has changed."""
    assert pinned.decoder is not None
    try:
        card = load_card(pinned.decoder.model)
    except CardError as error:
        raise ConfigError(f"{HERE}: {error}") from error
    if card.decoder_digest != pinned.decoder.digest:
        raise ConfigError(
            f"{HERE}: {pinned.decoder.model} is not the decoder that the training began "
            f"with ({card.decoder_digest[:8]}, not {pinned.decoder.digest[:8]}): restore its files, or start "
            "over: --fresh"
        )
    return card


def decoder_of(pinned: Pinned) -> SonarTextDecoder:
    """Return the decoder that a training is pinned to, in float32, on the host. Raises `ConfigError` if it is
    missing.
    """
    card = card_of(pinned)
    try:
        return load_decoder(card, torch.float32)
    except CardError as error:
        raise ConfigError(f"{HERE}: {error}") from error
