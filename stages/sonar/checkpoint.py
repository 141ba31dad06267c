"""Weights on disk ↔ networks, for the published fairseq2 checkpoints and for our own safetensors ("native").

Networks are made without memory and filled tensor by tensor from a memory-mapped file, so loading never holds a model
twice: a 24-layer encoder in 16 bits needs its 1.5 GB and no more.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stages.sonar.card import CardError, FileRole, ModelCard
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder, sinusoids

_Network = TypeVar("_Network", SonarTextEncoder, SonarTextDecoder)

# fairseq2's names of a layer's modules → ours
_FAIRSEQ2_MODULES = {
    "self_attn_layer_norm": "attention_norm",
    "self_attn.output_proj": "attention.out_proj",
    "encoder_decoder_attn.v_proj": "cross.v_proj",
    "encoder_decoder_attn.output_proj": "cross.out_proj",
    "ffn_layer_norm": "ffn_norm",
    "ffn.inner_proj": "ffn.inner_proj",
    "ffn.output_proj": "ffn.out_proj",
}
# With one vector to attend to, what shapes the query or the key of the cross-attention cannot reach the output.
_FAIRSEQ2_WITHOUT_EFFECT = (
    "encoder_decoder_attn.q_proj",
    "encoder_decoder_attn.k_proj",
    "encoder_decoder_attn_layer_norm",
)


def load_encoder(
    card: ModelCard, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> SonarTextEncoder:
    """The card's encoder, ready for inference. Raises CardError if the file does not fit the card."""
    with torch.device("meta"):
        network = SonarTextEncoder(layers=card.encoder_layers, **_numbers(card))
    return _fill(network, card, "encoder", dtype, device)


def load_decoder(
    card: ModelCard, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> SonarTextDecoder:
    """The card's decoder, ready for inference. Raises CardError if the file does not fit the card."""
    with torch.device("meta"):
        network = SonarTextDecoder(layers=card.decoder_layers, **_numbers(card))
    return _fill(network, card, "decoder", dtype, device)


def save(network: nn.Module, path: Path) -> str:
    """Writes the weights as fp16 safetensors ("native" layout); returns the file's sha256."""
    tensors = {name: value.detach().to(torch.float16).contiguous() for name, value in network.state_dict().items()}
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise ValueError(f"{path} was not written: {broken} hold values that are not finite in fp16; train again")
    save_file(tensors, path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def rows_are_independent(dtype: torch.dtype) -> bool:
    """Whether this process's CPU matmul gives a row the same bits in a batch of any size; a probe of a millisecond."""
    rows = torch.linspace(-1, 1, 512 * 1024).sin().view(512, 1024).to(dtype)
    weight = torch.linspace(-1, 1, 256 * 1024).cos().view(256, 1024).to(dtype)
    whole = rows @ weight.T
    return all(torch.equal(rows[:count] @ weight.T, whole[:count]) for count in (1, 7, 64))


def _numbers(card: ModelCard) -> dict[str, int]:
    return {
        "dim": card.dim,
        "heads": card.heads,
        "ffn_dim": card.ffn_dim,
        "vocab_size": card.vocab_size,
        "max_tokens": card.max_tokens,
    }


def _fill(
    network: _Network, card: ModelCard, role: FileRole, dtype: torch.dtype, device: str | torch.device
) -> _Network:
    path = card.verify(role)
    if torch.device(device).type == "cpu" and not rows_are_independent(dtype):
        warnings.warn(
            f"matmul in {dtype} on this CPU depends on the number of rows: results can differ in their last bits with "
            f"the batch; import stages.sonar before anything computes, set MKL_CBWR=AUTO,STRICT, or use float32",
            stacklevel=3,
        )
    network = network.to(dtype).to_empty(device=device)
    network.embedding.positions.copy_(sinusoids(card.max_tokens, card.dim))
    wanted = {name: parameter.data for name, parameter in network.named_parameters()}
    missing, unexpected, misshapen = set(wanted), [], []
    filled: set[str] = set()
    for source, target, value in _read(card, role, path):
        name, rows = target
        if name not in wanted:
            unexpected.append(source)
            continue
        place = wanted[name]
        if rows is not None:  # a third of a fused projection
            place = place[rows * place.shape[0] // 3 : (rows + 1) * place.shape[0] // 3]
        if place.shape != value.shape:
            misshapen.append(f"{source} is {tuple(value.shape)}, the card wants {tuple(place.shape)}")
            continue
        place.copy_(value)
        filled.add(f"{name}[{rows}]" if rows is not None else name)
        if rows is None or all(f"{name}[{third}]" in filled for third in range(3)):
            missing.discard(name)
    problems = [
        f"{what}: {', '.join(sorted(names))}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if problems:
        raise CardError(
            f"{path} does not fit card {card.name} (layout {card.layout}); {'; '.join(problems)}; "
            f"correct the card's numbers or layout, or give the right file"
        )
    return network.eval().requires_grad_(False)


def _read(card: ModelCard, role: FileRole, path: Path) -> Iterator[tuple[str, tuple[str, int | None], Tensor]]:
    """(name in the file, (our parameter, third of it or None), value), one tensor in memory at a time."""
    if card.layout == "native":
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, (name, None), file.get_tensor(name)
        return
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    tensors: dict[str, Tensor] = content.get("model", content)
    for name, value in tensors.items():
        if name == "final_proj.weight":
            # The networks tie the output projection to the embedding; a checkpoint that does not cannot be loaded.
            if not torch.equal(value, tensors["decoder_frontend.embed.weight"]):
                raise CardError(
                    f"{path}: final_proj.weight differs from the embedding; only tied weights can be loaded"
                )
            continue
        if not any(part in name for part in _FAIRSEQ2_WITHOUT_EFFECT):
            yield name, _fairseq2_target(name, role), value


def _fairseq2_target(name: str, role: FileRole) -> tuple[str, int | None]:
    if name == f"{role}_frontend.embed.weight":
        return "embedding.weight", None
    module, _, kind = name.rpartition(".")
    if module in ("layer_norm", f"{role}.layer_norm"):
        return f"norm.{kind}", None
    prefix, _, inner = module.removeprefix(f"{role}.layers.").partition(".")
    if inner in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        return f"layers.{prefix}.attention.qkv_proj.{kind}", "qkv".index(inner[-6])
    return f"layers.{prefix}.{_FAIRSEQ2_MODULES.get(inner, inner)}.{kind}", None
