"""A fresh small language model with a card, for tests of mutual information."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml
from tokenizers import ByteLevelBPETokenizer


def write_language_model(folder: Path, texts: Sequence[str]) -> Path:
    """Write a network of two layers, and a tokenizer of these texts; return the path of the card beside them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=320)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    names = ("config.json", "tokenizer.json", "model.safetensors")
    card = {
        "name": "tiny", "kind": "causal-lm", "description": "a test", "licence": "none", "model": "./",
        "max_tokens": 80,
        "sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names},
    }  # fmt: skip
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(card), "utf-8")
    return path
