"""How weight files name things: fairseq2's published checkpoints, Hugging Face's M2M100 ports, and our own files.

Hugging Face kept fairseq's names and its order of the control symbols (begin, pad, end, unknown; ours and fairseq2's is
pad, unknown, begin, end), so one table serves the ports and checkpoints that were never converted to fairseq2: the
official package reads those too. Only names are looked at here, no tensor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stages.sonar.card import FileRole, Layout

TABLE, OUTPUT = "embedding.weight", "output.weight"  # of our networks
CONTROL_ROWS = (1, 3, 0, 2)  # pad, unknown, begin, end among fairseq's rows begin, pad, end, unknown

# theirs → ours, within a layer (`benchmarks/random_model.py` goes the other way)
FAIRSEQ2_MODULES = {
    "self_attn_layer_norm": "attention_norm",
    "self_attn.output_proj": "attention.out_proj",
    "encoder_decoder_attn.v_proj": "cross.v_proj",
    "encoder_decoder_attn.output_proj": "cross.out_proj",
    "ffn_layer_norm": "ffn_norm",
    "ffn.inner_proj": "ffn.inner_proj",
    "ffn.output_proj": "ffn.out_proj",
}
M2M100_MODULES = {
    "self_attn_layer_norm": "attention_norm",
    "self_attn.out_proj": "attention.out_proj",
    "encoder_attn.v_proj": "cross.v_proj",
    "encoder_attn.out_proj": "cross.out_proj",
    "final_layer_norm": "ffn_norm",
    "fc1": "ffn.inner_proj",
    "fc2": "ffn.out_proj",
}
# With one vector to attend to, what shapes the query or the key of the cross-attention cannot reach the output.
_WITHOUT_EFFECT = (
    "encoder_decoder_attn.q_proj",
    "encoder_decoder_attn.k_proj",
    "encoder_decoder_attn_layer_norm",
    "encoder_attn.q_proj",
    "encoder_attn.k_proj",
    "encoder_attn_layer_norm",
)


@dataclass(frozen=True)
class TensorTarget:
    """Where a tensor of a file goes: a parameter of ours, or the `third` of a fused projection, its rows reordered."""

    name: str
    third: int | None = None
    control_rows: bool = False  # the first four rows are in fairseq's order


def targets(layout: Layout, role: FileRole, names: Collection[str]) -> dict[str, TensorTarget]:
    """Map each name in a checkpoint to where its tensor goes.

    Names without effect are left out; unknown ones get a name that is not ours.

    Args:
        layout: the layout of the file: `native`, `fairseq2` or that of M2M-100.
        role: `encoder` or `decoder`.
        names: the names in the file.

    Returns:
        Name in the file → target.
    """
    if layout == "native":
        return {name: TensorTarget(name) for name in names}
    if layout == "fairseq2" and f"{role}_frontend.embed.weight" in names:
        found = {name: _fairseq2(name, role) for name in names}
    else:
        found = {name: _m2m100(name, role) for name in names}
    wanted = {name: target for name, target in found.items() if target is not None}
    return _one_table(wanted)


def _one_table(found: dict[str, TensorTarget]) -> dict[str, TensorTarget]:
    """Keep one of several shared tables: the network's own, else the shared one, else the output projection."""
    tables = sorted((name for name, target in found.items() if target.name == TABLE), key=lambda name: "shared" in name)
    for name in tables[1:]:
        del found[name]
    if not tables:
        for name, target in found.items():
            if target.name == OUTPUT:
                found[name] = TensorTarget(TABLE, control_rows=target.control_rows)
    return found


def _fairseq2(name: str, role: FileRole) -> TensorTarget | None:
    if any(part in name for part in _WITHOUT_EFFECT):
        return None
    if name == f"{role}_frontend.embed.weight":
        return TensorTarget(TABLE)
    if name == "final_proj.weight":
        return TensorTarget(OUTPUT)
    module, _, kind = name.rpartition(".")
    if module in ("layer_norm", f"{role}.layer_norm"):
        return TensorTarget(f"norm.{kind}")
    return _in_layer(name, name.removeprefix(f"{role}."), FAIRSEQ2_MODULES)


def _m2m100(name: str, role: FileRole) -> TensorTarget | None:
    inner = name.removeprefix("model.")
    other = "decoder." if role == "encoder" else "encoder."
    if inner.startswith(other):  # of a whole translation model
        return None
    inner = inner.removeprefix(f"{role}.")
    module, _, kind = inner.rpartition(".")
    if any(part in name for part in _WITHOUT_EFFECT) or module == "embed_positions" or inner == "version":
        return None
    if module in ("embed_tokens", "shared"):
        return TensorTarget(TABLE, control_rows=True)
    if module in ("lm_head", "output_projection"):
        return None if role == "encoder" else TensorTarget(OUTPUT, control_rows=True)
    if module == "layer_norm":
        return TensorTarget(f"norm.{kind}")
    return _in_layer(name, inner, M2M100_MODULES)


def _in_layer(name: str, inner: str, modules: dict[str, str]) -> TensorTarget:
    """Return the target of a tensor in a layer; `inner` is layers.N.MODULE.KIND."""
    module, _, kind = inner.rpartition(".")
    number, _, module = module.removeprefix("layers.").partition(".")
    if module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        return TensorTarget(f"layers.{number}.attention.qkv_proj.{kind}", third="qkv".index(module[-6]))
    if module not in modules:
        return TensorTarget(f"? {name}")
    return TensorTarget(f"layers.{number}.{modules[module]}.{kind}")
