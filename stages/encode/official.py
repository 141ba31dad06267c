"""The encoder of the official package, sonar-space on fairseq2, instead of our own: the same weights, the same stage.

Tokens, batches, statuses and counts stay ours (the tokens are the official ones, except for texts over the longest
length, which keep their `</s>`); the network is the package's. It is meant for comparisons: expect the same embeddings
up to rounding, at a lower speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stages.cards import CardError
from stages.sonar.card import ModelCard

INSTALL = (
    "install it, with the PyTorch that its compiled part was built for, in a virtual environment of its own (pip "
    "install torch==2.9.1 'sonar-pipeline[sonar-space]'), or leave encode.backend at native, which needs nothing more"
)


class BackendError(RuntimeError):
    """The official package is not installed, or does not work here."""


class OfficialEncoder(nn.Module):
    """Token ids → one embedding per sentence, like `SonarTextEncoder`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (rows, length), every row of `length` tokens → (rows, dim)."""
        from fairseq2.nn import BatchLayout

        embeddings: Tensor = self.model(ids, BatchLayout.of(ids)).sentence_embeddings
        return embeddings


def load_official_encoder(card: ModelCard, dtype: torch.dtype, device: str) -> OfficialEncoder:
    """Return the card's encoder in the official package, ready for inference.

    Raises BackendError if the package cannot be imported, CardError if it cannot read the card's layout.
    """
    if card.layout != "fairseq2":
        raise CardError(
            f"encode.backend is sonar-space, which reads the layout fairseq2; card {card.name} is {card.layout}: use "
            "the card sonar, or encode.backend: native"
        )
    try:
        import sonar.models.sonar_text  # noqa: F401  (registers the models; there is another package named sonar)
        from fairseq2.assets import AssetCard
        from fairseq2.models import load_model
    except Exception as error:  # a compiled part that does not fit its PyTorch fails in many ways
        raise BackendError(
            f"encode.backend is sonar-space, and that package cannot be imported ({type(error).__name__}: {error}); "
            f"{INSTALL}"
        ) from error
    numbers = {
        "model_dim": card.dim,
        "max_seq_len": card.max_tokens - 2,  # to which the package adds the two positions that it does not use
        "num_encoder_layers": card.encoder_layers,
        "num_encoder_attn_heads": card.heads,
        "ffn_inner_dim": card.ffn_dim,
        # pad 1 here, though the tokenizer's is 0: positions start behind it
        "vocab_info": {"size": card.vocab_size, "unk_idx": 1, "bos_idx": 2, "eos_idx": 3, "pad_idx": 1},
    }
    described = AssetCard(
        card.name,
        {
            "model_family": "transformer_encoder",
            "model_arch": "basic",
            "model_config": {"_set_": numbers},
            "checkpoint": card.verify("encoder").absolute().as_uri(),
        },
    )
    model = load_model(described, device=torch.device(device), dtype=dtype, mmap=True, progress=False)
    return OfficialEncoder(model.eval())
