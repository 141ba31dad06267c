"""sonar-space's way of encoding text, rebuilt in plain PyTorch for machines where the package is not installed.

It works as `TextToEmbeddingModelPipeline.predict` of sonar-space 0.5.0 does: one language a call; sentences in the
order of the file they are read from, or, when given as a list, sorted by their number of characters; tokenised one by
one; a fixed number of sentences per batch (5 unless told otherwise), padded to the longest; an additive mask of batch ×
length × length, built sentence by sentence; queries, keys and values projected one after the other; positions added in
fp32. Imports only torch and sentencepiece, and nothing of ours, so that no setting of ours speeds it up or down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from sentencepiece import SentencePieceProcessor
from torch import Tensor, nn

PAD, END = 0, 3
POSITION_OFFSET = 2
PRECISION = {torch.float32: "high", torch.bfloat16: "medium"}  # what predict() asks of torch for each format


class RebuiltLayer(nn.Module):
    def __init__(self, dim: int, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.inner, self.outer = nn.Linear(dim, ffn_dim), nn.Linear(ffn_dim, dim)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = self.attention_norm(x)
        query, key, value = (
            project(y).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for project in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.dropout(self.out(attended.transpose(-2, -3).flatten(-2, -1)))
        y = self.dropout(self.outer(self.dropout(F.relu(self.inner(self.ffn_norm(x))))))
        return x + y


class RebuiltEncoder(nn.Module):
    """The network, from weights in fairseq2's layout."""

    positions: Tensor

    def __init__(self, weights: dict[str, Tensor], heads: int, max_tokens: int) -> None:
        super().__init__()
        vocab_size, dim = weights["encoder_frontend.embed.weight"].shape
        ffn_dim = weights["encoder.layers.0.ffn.inner_proj.weight"].shape[0]
        count = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layers."))
        self.embed = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(RebuiltLayer(dim, heads, ffn_dim) for _ in range(count))
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(0.1)
        self.load_state_dict({_renamed(name): value for name, value in weights.items()})
        self.register_buffer("positions", _sinusoids(max_tokens, dim), persistent=False)

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Encode ids: (rows, width) int64, padded; lengths: tokens of each row → (rows, dim)."""
        rows, width = ids.shape
        padded = min(lengths) < width
        place = torch.arange(width).expand(rows, -1).contiguous()
        for row, length in enumerate(lengths):
            place[row, length:] = -1
        x = self.embed(ids) * math.sqrt(self.embed.embedding_dim)
        positions = self.positions[place + 1] if padded else self.positions[1 : width + 1].unsqueeze(0)
        x = self.dropout((x.float() + positions).type_as(x))
        bias = torch.stack([_mask(length, width, x.dtype) for length in lengths]) if padded else None
        for layer in self.layers:
            x = layer(x, bias)
        x = self.norm(x)
        if not padded:
            whole: Tensor = x.sum(dim=1) * (1.0 / (width + 1e-7))
            return whole
        kept = x.where((place >= 0).unsqueeze(-1), 0)
        weights = 1.0 / (torch.tensor(lengths).to(x.dtype) + 1e-7)
        pooled: Tensor = torch.einsum("ij,i->ij", kept.sum(dim=1), weights)
        return pooled


class RebuiltPipeline:
    """`predict` as sonar-space's `TextToEmbeddingModelPipeline` has it."""

    def __init__(
        self,
        weights: dict[str, Tensor],
        tokenizer: Path,
        *,
        languages: Sequence[str],
        heads: int,
        max_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        self.model = RebuiltEncoder(weights, heads, max_tokens).eval()
        positions = self.model.positions
        self.model.to(dtype).positions = positions  # the table of positions stays fp32
        self.dtype = dtype
        self.max_tokens = max_tokens
        self.pieces = SentencePieceProcessor(model_file=str(tokenizer))
        self.tags = {code: self.pieces.vocab_size() + 1 + number for number, code in enumerate(languages)}

    @torch.inference_mode()
    def predict(self, source: Path | Sequence[str], source_lang: str, batch_size: int = 5) -> Tensor:
        """Encode source: a file with a sentence per line, or sentences → (sentences, dim) in the order given."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(PRECISION[self.dtype])
        try:
            if isinstance(source, Path):
                with source.open(encoding="utf-8") as lines:
                    return self._encode([line.rstrip("\n") for line in lines], source_lang, batch_size)
            order = torch.argsort(torch.tensor([len(text) for text in source]))
            found = self._encode([source[place] for place in order.tolist()], source_lang, batch_size)
            return found[torch.argsort(order)]
        finally:
            torch.set_float32_matmul_precision(before)

    def _encode(self, texts: Sequence[str], lang: str, batch_size: int) -> Tensor:
        found = []
        for start in range(0, len(texts), batch_size):
            batch = [self._ids(text, lang) for text in texts[start : start + batch_size]]
            lengths = [len(ids) for ids in batch]
            padded = batch[0].new_full((len(batch), max(lengths)), PAD)
            for row, ids in enumerate(batch):
                padded[row, : len(ids)] = ids
            found.append(self.model(padded, lengths))
        return torch.cat(found)

    def _ids(self, text: str, lang: str) -> Tensor:
        ids = [self.tags[lang], *(piece + 1 for piece in self.pieces.encode(text)), END]
        return torch.tensor(ids, dtype=torch.int64)[: self.max_tokens]


def _mask(length: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return (1, width, width): tokens see tokens, padding sees padding."""
    if length == width:
        return torch.zeros((1, width, width), dtype=dtype)
    mask = torch.full((1, width, width), -torch.inf, dtype=dtype)
    mask[:, :length, :length] = 0
    mask[:, length:, length:] = 0
    return mask


def _sinusoids(positions: int, dim: int) -> Tensor:
    """Return (1 + positions, dim) float32: row 0 is for padding."""
    steps = torch.arange(POSITION_OFFSET, POSITION_OFFSET + positions, dtype=torch.float32)
    rates = torch.exp(torch.arange(dim // 2, dtype=torch.float32) * (-math.log(10000.0) / (dim // 2 - 1)))
    angles = torch.outer(steps, rates)
    return torch.cat((torch.zeros(1, dim), torch.cat((angles.sin(), angles.cos()), dim=1)))


def _renamed(name: str) -> str:
    for theirs, ours in (
        ("encoder_frontend.embed.", "embed."),
        ("encoder.layers.", "layers."),
        ("self_attn_layer_norm.", "attention_norm."),
        ("ffn_layer_norm.", "ffn_norm."),
        ("self_attn.output_proj.", "out."),
        ("_proj.", "."),
        ("self_attn.", ""),
        ("ffn.inner.", "inner."),
        ("ffn.output.", "outer."),
    ):
        name = name.replace(theirs, ours)
    return name.replace("layer_norm.", "norm.")
