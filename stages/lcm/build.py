"""Builds the model that a card describes: the one module that knows every kind of model."""

from __future__ import annotations

from stages.lcm.card import LcmCard
from stages.lcm.model import Lcm
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler


def build(
    card: LcmCard, scaler: RobustScaler, codebooks: Codebooks | None = None, vocabulary: int | None = None
) -> Lcm:
    """Build a model with fresh weights, from PyTorch's global generator.

    Args:
        card: the architecture.
        scaler: the scaler of embeddings.
        codebooks: the codebooks of a quantised model.
        vocabulary: the size of the vocabulary of a token language model.

    Returns:
        The model, on the default device.

    Raises:
        ValueError: if the card needs codebooks or a vocabulary, and none is given.
    """
    if card.kind == "token-lm":
        from stages.lcm.token_lm import TokenLm

        if vocabulary is None:
            raise ValueError(f"{card.name} models tokens: give the size of their vocabulary")
        return TokenLm(card, scaler, vocabulary)
    if card.quantised and codebooks is None:
        raise ValueError(f"{card.name} models codes: give the codebooks (corpus.yaml: a section rvq)")
    if card.objective == "contrastive":
        from stages.lcm.contrastive import ContrastiveLcm

        return ContrastiveLcm(card, scaler)
    if card.objective == "sonar-llm":
        from stages.lcm.sonar_llm import SonarLlm

        return SonarLlm(card, scaler)
    if card.kind == "base":
        from stages.lcm.base import BaseLcm

        return BaseLcm(card, scaler)
    if card.kind == "two-tower":
        from stages.lcm.two_tower import TwoTowerLcm

        return TwoTowerLcm(card, scaler)
    if card.kind == "one-tower":
        from stages.lcm.one_tower import OneTowerLcm

        return OneTowerLcm(card, scaler)
    from stages.lcm.quant import QuantLcmC, QuantLcmD

    assert codebooks is not None
    return (QuantLcmC if card.kind == "quant-c" else QuantLcmD)(card, scaler, codebooks)
