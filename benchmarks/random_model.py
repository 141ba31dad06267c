"""A SONAR encoder of random weights on disk: for us (a native card) and in the layout that fairseq2 reads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.flops import Shape
from stages.sonar.card import ModelCard, ModelFile, load_card
from stages.sonar.checkpoint import FAIRSEQ2_MODULES, M2M100_MODULES, save
from stages.sonar.networks import SonarTextEncoder


def make_model(
    folder: Path, shape: Shape, *, tokenizer_of: str, seed: int, fairseq2: bool = True, device: str = "cpu"
) -> ModelCard:
    """Write random weights, drawn on `device`, with the tokenizer and languages of a card.

    `folder` then holds card.yaml, encoder.safetensors in fp16, tokenizer.model and, with the same values in fp32,
    fairseq2-encoder.pt.
    """
    base = load_card(tokenizer_of)
    torch.manual_seed(seed)
    with torch.device(device):
        network = SonarTextEncoder(**asdict(shape), vocab_size=base.vocab_size, max_tokens=base.max_tokens)
    encoder, tokenizer = folder / "encoder.safetensors", folder / "tokenizer.model"
    save(network, encoder)
    shutil.copyfile(base.path("tokenizer"), tokenizer)
    if fairseq2:
        weights = {name: value.float() for name, value in fairseq2_names(load_file(encoder)).items()}
        torch.save({"model": weights}, folder / "fairseq2-encoder.pt")
    described = ModelFile.of(encoder, folder).model_dump()
    content = {
        "name": "benchmark",
        "kind": "sonar-text",
        "layout": "native",
        "description": f"random weights of seed {seed}",
        "licence": "none",
        "dim": shape.dim,
        "encoder_layers": shape.layers,
        "decoder_layers": shape.layers,
        "heads": shape.heads,
        "ffn_dim": shape.ffn_dim,
        "vocab_size": base.vocab_size,
        "max_tokens": base.max_tokens,
        "languages": list(base.languages),
        # the encode stage opens no decoder; the card needs one
        "files": {
            "encoder": described,
            "decoder": described,
            "tokenizer": ModelFile.of(tokenizer, folder).model_dump(),
        },
    }
    card = folder / "card.yaml"
    card.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_card(str(card))


def fairseq2_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name weights as in fairseq2's checkpoints of the encoder."""
    return _named(weights, "encoder_frontend.embed.weight", "encoder.layers", FAIRSEQ2_MODULES)


def m2m100_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name weights as in the state of Hugging Face's `M2M100Encoder`."""
    return _named(weights, "embed_tokens.weight", "layers", M2M100_MODULES)


def _named(weights: Mapping[str, Tensor], table: str, layers: str, modules: dict[str, str]) -> dict[str, Tensor]:
    """Name weights, with q, k and v apart; tensors are views."""
    theirs = {ours: name for name, ours in modules.items()}
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        module, _, kind = name.rpartition(".")
        if module == "embedding":
            found[table] = value
        elif module == "norm":
            found[f"layer_norm.{kind}"] = value
        else:
            _, number, inner = module.split(".", 2)
            if inner == "attention.qkv_proj":
                for letter, third in zip("qkv", value.chunk(3), strict=True):
                    found[f"{layers}.{number}.self_attn.{letter}_proj.{kind}"] = third
            else:
                found[f"{layers}.{number}.{theirs[inner]}.{kind}"] = value
    return found
