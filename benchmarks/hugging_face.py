"""The tuned baseline: the encoder of Hugging Face's M2M100, which SONAR's ports use, with our weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.export import m2m100_names
from stages.batching import Indices, Tokens
from stages.sonar.networks import SonarTextEncoder

PAD = 1  # as in the ports; our random ids start above it


class Baseline:
    """Ids and mask of padded sentences → (rows, dim), on the device and in the format of the encoder it copies."""

    def __init__(self, encoder: SonarTextEncoder, *, heads: int) -> None:
        transformers = import_module("transformers")
        m2m100 = import_module("transformers.models.m2m_100.modeling_m2m_100")
        weight = encoder.embedding.weight
        config = transformers.M2M100Config(
            vocab_size=weight.shape[0],
            d_model=weight.shape[1],
            encoder_layers=len(encoder.layers),
            encoder_attention_heads=heads,
            encoder_ffn_dim=encoder.get_parameter("layers.0.ffn.inner_proj.weight").shape[0],
            max_position_embeddings=encoder.embedding.positions.shape[0],
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            attn_implementation="sdpa",
        )
        self.device = weight.device
        with torch.device(weight.device):
            self.network: Any = m2m100.M2M100Encoder(config)
        self.network = self.network.to(weight.dtype).eval().requires_grad_(False)
        self.network.load_state_dict(m2m100_names(encoder.state_dict()))

    def padded(self, tokens: Tokens, rows: Indices) -> tuple[Tensor, Tensor]:
        """Ids and mask of some sentences, padded to the longest, on the device."""
        longest = int(tokens.lengths[rows].max())
        ids: npt.NDArray[np.int64] = np.full((len(rows), longest), PAD, dtype=np.int64)
        for place, row in enumerate(rows):
            sentence = tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]]
            ids[place, : len(sentence)] = sentence
        on_device = torch.from_numpy(ids).to(self.device)
        return on_device, (on_device != PAD).long()

    def all(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The embeddings of many batches; they stay on the device."""
        return [self(ids, mask) for ids, mask in batches]

    @torch.inference_mode()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The mean over the tokens of each sentence."""
        hidden = self.network(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask.unsqueeze(2).to(hidden.dtype)
        mean: Tensor = (hidden * kept).sum(dim=1) / kept.sum(dim=1)
        return mean
