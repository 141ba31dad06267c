"""SaT models from their cards: the network with its weights, and the tokenizer.

A folder that holds `config.json`, `model.safetensors` and `tokenizer.json` is read directly, in a fraction of a second.
Everything else (names on Hugging Face, tokenizers apart, LoRA adapters) goes through wtpsplit, which knows where things
are and how adapters are merged, offline where the files are in the cache; from its model the weights are then taken.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer

from stages.cards import CardError
from stages.device import without_memory
from stages.segment.sat.card import XLM_R, SatCard, hub_name
from stages.segment.sat.networks import SatNetwork


def load(card: SatCard, dtype: torch.dtype, device: str) -> tuple[SatNetwork, Tokenizer]:
    """Load a SaT model and its tokenizer.

    Args:
        card: the model.
        dtype: the type of its weights.
        device: where it computes: `cpu`, `cuda:0`, `mps`.

    Returns:
        (network, tokenizer).

    Raises:
        CardError: if files are missing or do not fit the architecture.
    """
    card.verify()
    folder = card.folder(card.model)
    if folder and (missing := card.missing()):
        without_tokenizer = missing == [str(folder / "tokenizer.json")]
        hint = f", or name a tokenizer in the card (tokenizer: {XLM_R})" if without_tokenizer else ""
        raise CardError(f"card {card.name}: missing {', '.join(missing)}; put what is missing there{hint}")
    if folder and not card.lora and not card.tokenizer:
        try:
            weights = load_file(folder / "model.safetensors")
        except SafetensorError as error:
            raise CardError(f"card {card.name}: {folder} has no readable model.safetensors: {error}") from error
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        sat = through_wtpsplit(card)
        weights, config = dict(sat.model.model.state_dict()), sat.model.model.config.to_dict()
        tokenizer = sat.tokenizer.backend_tokenizer
    return _network(card, config, weights).to(device, dtype), tokenizer


def through_wtpsplit(card: SatCard) -> Any:
    """Return wtpsplit's `SaT` with the model, tokenizer and adapter of a card. Raises CardError if it does not load."""
    from wtpsplit import SaT

    folder = card.folder(card.model)
    model = str(folder or hub_name(card.model))
    tokenizer = str(card.folder(card.tokenizer) or card.tokenizer) if card.tokenizer else (model if folder else XLM_R)
    adapter = str(card.folder(card.lora) or card.lora) if card.lora else None
    try:
        return SaT(model, tokenizer_name_or_path=tokenizer, lora_path=adapter, hub_prefix=None)
    except (OSError, RuntimeError, ValueError) as error:
        raise CardError(
            f"card {card.name}: wtpsplit cannot load {model} with the tokenizer {tokenizer}"
            f"{f' and the adapter {adapter}' if adapter else ''}: {str(error).splitlines()[0]}; "
            f"`pipeline models {card.name} --fetch` fetches it where there is a network; copy the cache of Hugging "
            "Face (HF_HOME) to machines that have none, or name a folder in a card of your own"
        ) from error


def _network(card: SatCard, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> SatNetwork:
    try:
        if config.get("num_hidden_layers", 0) > len(weights):
            raise KeyError(f"{config['num_hidden_layers']} layers in config.json, {len(weights)} tensors")
        with without_memory():
            network = SatNetwork(
                vocab_size=config["vocab_size"],
                dim=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                ffn_dim=config["intermediate_size"],
                max_positions=config["max_position_embeddings"],
                eps=config["layer_norm_eps"],
            )
        outputs = weights["classifier.weight"]  # the first of them is a line's or sentence's end
        weights |= {"classifier.weight": outputs[:1], "classifier.bias": weights["classifier.bias"][:1]}
        wanted = network.state_dict()
        network.load_state_dict({name: weights[name] for name in wanted}, assign=True)
    except (KeyError, RuntimeError) as error:
        raise CardError(
            f"card {card.name}: {card.model} is not a SaT model with XLM-R's architecture "
            f"({type(error).__name__}: {error})"
        ) from error
    return network.eval().requires_grad_(False)
