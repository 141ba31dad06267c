"""Our encoder's weights under the names that others give them, for the packages that are compared with ours."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from stages.sonar.layouts import FAIRSEQ2_MODULES, M2M100_MODULES


def fairseq2_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As in fairseq2's checkpoints of the encoder."""
    return _named(weights, "encoder_frontend.embed.weight", "encoder.layers", FAIRSEQ2_MODULES)


def m2m100_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As in the state of Hugging Face's `M2M100Encoder`."""
    return _named(weights, "embed_tokens.weight", "layers", M2M100_MODULES)


def _named(weights: Mapping[str, Tensor], table: str, layers: str, modules: dict[str, str]) -> dict[str, Tensor]:
    """q, k and v apart; tensors are views."""
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
