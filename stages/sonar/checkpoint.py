"""Loads weights into networks from the published checkpoints, their Hugging Face ports and our own safetensors.

Networks are created without memory and filled tensor by tensor from a memory-mapped file, so loading never holds a
model twice: a 24-layer encoder in 16 bits needs its 1.5 GB and no more. Nothing in a file is executed: safetensors, or
torch files with `weights_only`.

Files name things as fairseq2's published checkpoints do, as Hugging Face's M2M100 ports, or as we do. Hugging Face kept
fairseq's names and its order of the control symbols (begin, pad, end, unknown; ours and fairseq2's is pad, unknown,
begin, end), so one table serves the ports and checkpoints that were never converted to fairseq2: the official package
reads those too.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stages.cards import CardError
from stages.device import take_memory, without_memory
from stages.fetch import sha256_of
from stages.rows import cancelling
from stages.sonar.card import FileRole, Layout, ModelCard
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder, linear, sinusoids

_Network = TypeVar("_Network", SonarTextEncoder, SonarTextDecoder)
ROW_COUNTS = (*range(1, 17), 33, 37, 64, 100, 129, 200, 255, 300)  # that tell whether rows are independent

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


def load_encoder(
    card: ModelCard, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> SonarTextEncoder:
    """Return the encoder of a card, ready for inference.

    Args:
        card: the model; `CardError` is raised if its file does not fit the card.
        dtype: the type of the weights.
        device: where they are.

    Returns:
        The network.
    """
    weights = _Weights.open(card, "encoder")
    with without_memory():
        network = SonarTextEncoder(layers=card.encoder_layers, **_numbers(card))
    return _fill(network, card, weights, dtype, device)


def load_decoder(
    card: ModelCard, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> SonarTextDecoder:
    """Return the decoder of a card, ready for inference.

    Args:
        card: the model; `CardError` is raised if its file does not fit the card.
        dtype: the type of the weights.
        device: where they are.

    Returns:
        The network.
    """
    weights = _Weights.open(card, "decoder")
    with without_memory():
        network = SonarTextDecoder(layers=card.decoder_layers, tied=weights.tie(), **_numbers(card))
    return _fill(network, card, weights, dtype, device)


def save(network: nn.Module, path: Path) -> str:
    """Write the weights as fp16 safetensors ("native" layout); return the file's sha256."""
    save_file(as_stored(network, str(path)), path)
    return sha256_of(path)


def as_stored(network: nn.Module, what: str) -> dict[str, Tensor]:
    """Return the weights in fp16 on the host. Raises ValueError, which speaks of `what`, if some are not finite."""
    tensors = {name: value.detach().to("cpu", torch.float16) for name, value in network.state_dict().items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise ValueError(f"{what} was not written: {broken} hold values that are not finite in fp16; train again")
    return tensors


def rows_are_independent(dtype: torch.dtype) -> bool:
    """Return whether `linear` gives a row the same bits in a batch of any size on this process's CPU; takes some
    milliseconds.
    """
    rows, weight = cancelling(512, 1024, 256, dtype, seed=1)
    with torch.no_grad():
        whole = linear(rows, weight)
        return all(torch.equal(linear(rows[:count], weight), whole[:count]) for count in ROW_COUNTS)


def _numbers(card: ModelCard) -> dict[str, int]:
    return {
        "dim": card.dim,
        "heads": card.heads,
        "ffn_dim": card.ffn_dim,
        "vocab_size": card.vocab_size,
        "max_tokens": card.max_tokens,
    }


def _fill(
    network: _Network, card: ModelCard, weights: _Weights, dtype: torch.dtype, device: str | torch.device
) -> _Network:
    if torch.device(device).type == "cpu" and not rows_are_independent(dtype):
        warnings.warn(
            f"matmul in {dtype} on this CPU depends on the number of rows: results can differ in their last bits with "
            f"the batch; import stages.sonar before anything computes, set MKL_CBWR=AUTO,STRICT, or use float32",
            stacklevel=3,
        )
    _check_shapes(network, card, weights)  # before memory is taken for what the card says
    take_memory(network.to(dtype), device)
    network.embedding.positions.copy_(sinusoids(card.max_tokens, card.dim))
    wanted = {name: parameter.data for name, parameter in network.named_parameters()}
    not_finite = []
    for source, target in weights.targets.items():
        place, value = wanted[target.name], weights.read(source)
        if target.third is not None:
            place = place.chunk(3)[target.third]
        place.copy_(value)
        if target.control_rows:
            place[: len(CONTROL_ROWS)] = value[list(CONTROL_ROWS)].to(place)
        if not place.isfinite().all():
            not_finite.append(source)
    if not_finite:
        raise CardError(
            f"{weights.path}, a file of card {card.name}, holds values that are not numbers, or too large for {dtype}, "
            f"in {', '.join(not_finite[:3])}{' and others' if len(not_finite) > 3 else ''}: no sentence would get an "
            "embedding; give a file that is whole, or another precision"
        )
    return network.eval().requires_grad_(False)


def _check_shapes(network: nn.Module, card: ModelCard, weights: _Weights) -> None:
    """Raise `CardError` if the file's tensors are not those of the network, whose own have no memory yet."""
    wanted = dict(network.named_parameters())
    missing, unexpected, misshapen = set(wanted), [], []
    filled: set[TensorTarget] = set()
    for source, target in weights.targets.items():
        if target.name not in wanted:
            unexpected.append(source)
            continue
        place, shape = wanted[target.name].data, weights.shape(source)
        if target.third is not None:
            place = place.chunk(3)[target.third]
        if tuple(place.shape) != shape:
            misshapen.append(f"{source} is {shape}, the card wants {tuple(place.shape)}")
            continue
        filled.add(target)
        if target.third is None or all(TensorTarget(target.name, third) in filled for third in range(3)):
            missing.discard(target.name)
    problems = [
        f"{what}: {', '.join(sorted(names))}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if problems:
        raise CardError(
            f"{weights.path} does not fit card {card.name} (layout {card.layout}); {'; '.join(problems)}; "
            f"correct the card's numbers or layout, or give the right file"
        )


@dataclass
class _Weights:
    """An open weight file: where each of its tensors goes, and how to read one (a view of the mapped file) and its
    shape.
    """

    path: Path
    targets: dict[str, TensorTarget]
    read: Callable[[str], Tensor]
    shape: Callable[[str], tuple[int, ...]]

    @classmethod
    def open(cls, card: ModelCard, role: FileRole) -> _Weights:
        """Fetch and check the file without reading its tensors."""
        path = card.verify(role)
        names, read, shape = _open(path)
        return cls(path, targets(card.file(role).layout or card.layout, role, names), read, shape)

    def tie(self) -> bool:
        """Return whether the decoder's output projection is its embedding table; then only the table is read."""
        place = {target.name: source for source, target in self.targets.items()}
        if OUTPUT not in place:
            return True
        if TABLE in place and not torch.equal(self.read(place[TABLE]), self.read(place[OUTPUT])):
            return False
        del self.targets[place[OUTPUT]]
        return True


def _open(path: Path) -> tuple[list[str], Callable[[str], Tensor], Callable[[str], tuple[int, ...]]]:
    """Return names of the tensors in a torch or safetensors file, and readers of a tensor and of its shape.

    Raises CardError if it is neither.
    """
    with path.open("rb") as stream:
        is_torch = stream.read(2) == b"PK"  # torch saves zip archives
    try:
        if not is_torch:
            file = safe_open(path, framework="pt")
            return list(map(str, file.keys())), file.get_tensor, lambda name: tuple(file.get_slice(name).get_shape())
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (SafetensorError, RuntimeError, pickle.UnpicklingError) as error:
        raise CardError(
            f"{path} cannot be read as safetensors or as a torch file of tensors: {str(error).splitlines()[0]}; other "
            "pickles are refused, because reading them runs what is in them: save its tensors as safetensors"
        ) from error
    for wrapper in ("model", "state_dict"):
        content = content.get(wrapper, content) if isinstance(content, dict) else {}
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    return list(tensors), tensors.__getitem__, lambda name: tuple(tensors[name].shape)


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
