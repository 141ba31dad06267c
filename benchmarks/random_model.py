"""A SONAR encoder of random weights on disk: for us (a native card) and in the layout that fairseq2 reads."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file

from benchmarks.export import fairseq2_names
from stages.sonar.card import ModelCard, ModelFile, load_card
from stages.sonar.checkpoint import save
from stages.sonar.networks import SonarTextEncoder


@dataclass(frozen=True)
class Size:
    """Architecture numbers of the encoder; the vocabulary is the tokenizer's."""

    dim: int
    layers: int
    heads: int
    ffn_dim: int


def make_model(
    folder: Path, size: Size, *, tokenizer_of: str, seed: int, fairseq2: bool = True, device: str = "cpu"
) -> ModelCard:
    """Write random weights, drawn on `device`, with the tokenizer and languages of a card.

    `folder` then holds card.yaml, encoder.safetensors in fp16, tokenizer.model and, with the same values in fp32,
    fairseq2-encoder.pt.
    """
    base = load_card(tokenizer_of)
    torch.manual_seed(seed)
    with torch.device(device):
        network = SonarTextEncoder(
            dim=size.dim,
            layers=size.layers,
            heads=size.heads,
            ffn_dim=size.ffn_dim,
            vocab_size=base.vocab_size,
            max_tokens=base.max_tokens,
        )
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
        "dim": size.dim,
        "encoder_layers": size.layers,
        "decoder_layers": size.layers,
        "heads": size.heads,
        "ffn_dim": size.ffn_dim,
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
