"""Files of fitted artifacts (robust scaler, predictor, codebooks): safetensors, with the same bytes for the same fit.

All metadata is sorted JSON under one key, "about", because safetensors writes several keys in random order. Reading a
file executes nothing of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

VERSION = 1
CHECKPOINT = "decoder-checkpoint"  # the kind of these files


def to_bytes(kind: str, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> bytes:
    """Return the bytes of an artifact's file.

    Args:
        kind: what it is, such as `scaler`.
        tensors: name → tensor, on any device.
        about: settings, numbers and provenance, as JSON can hold them.

    Returns:
        A file in safetensors format.
    """
    head = json.dumps({**about, "kind": kind, "version": VERSION}, sort_keys=True, allow_nan=False, ensure_ascii=False)
    data: bytes = save({name: one.contiguous().cpu() for name, one in tensors.items()}, {"about": head})
    return data


def checkpoint_bytes(tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> bytes:
    """Return the bytes of a checkpoint of a fit: a file that holds a digest of itself, as no record vouches for it."""
    return to_bytes(CHECKPOINT, tensors, {**about, "digest": _digest(tensors, about)})


def from_checkpoint(data: bytes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return what `from_bytes` does, for a checkpoint. Raises ValueError if anything in it has changed."""
    tensors, about = from_bytes(CHECKPOINT, data)
    said = {key: value for key, value in about.items() if key not in ("kind", "version", "digest")}
    if about.get("digest") != _digest(tensors, said):
        raise ValueError("it does not hold what its digest was made of")
    return tensors, said


def content_of(kind: str, data: bytes) -> str:
    """Return 32 hex digits of what results depend on: the tensors and `clip`, without the provenance."""
    tensors, about = from_bytes(kind, data)
    return _digest(tensors, [kind, about.get("settings", {}).get("clip")])


def _digest(tensors: Mapping[str, torch.Tensor], about: Any) -> str:
    """Return 32 hex digits of tensors and of a JSON value."""
    found = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]


def from_bytes(kind: str, data: bytes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return tensors and `about` of a file. Raises ValueError if it is not an artifact, or of another kind or
    version.
    """
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["about"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"these {len(data)} bytes are not a {kind} fitted here ({error!r}); fit it again, or restore the file"
        ) from error
    found = (about.get("kind"), about.get("version")) if isinstance(about, dict) else (None, None)
    if found != (kind, VERSION):
        raise ValueError(
            f"a file of kind {found[0]!r}, version {found[1]!r}, where {kind!r}, version {VERSION}, is needed; "
            "give the right file, or fit it again"
        )
    return tensors, about
