"""The network of SaT: XLM-R's encoder and one output for "a sentence ends with this token" (Frohmann et al., 2024).

Parameters carry the names of the published checkpoints (`xlm-token`), so a state dict is read and written as it is.
Cost: 2 · parameters without the table FLOP per token, and the attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.packed import Runs, blocks, joined
from stages.sonar.networks import Linear, linear

FIRST_POSITION = 2  # RoBERTa counts positions from its padding id on
BEGIN, END = 0, 2  # <s>, </s>
COLUMNS = 16  # of the last product, all but the first of them zeros


class _Embeddings(nn.Module):
    """Token, position and segment embeddings, added and normalised."""

    def __init__(self, vocab_size: int, dim: int, max_positions: int, eps: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, dim)
        self.position_embeddings = nn.Embedding(max_positions, dim)
        self.token_type_embeddings = nn.Embedding(1, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)

    def forward(self, ids: Tensor, runs: Runs) -> Tensor:
        positions = self.position_embeddings.weight[FIRST_POSITION:]
        x = joined([one + positions[: one.shape[1]] for one in blocks(self.word_embeddings(ids), runs)])
        found: Tensor = self.LayerNorm(x + self.token_type_embeddings.weight[0])
        return found


class SatSelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, runs: Runs) -> Tensor:
        heads = (project(x).unflatten(1, (self.heads, -1)) for project in (self.query, self.key, self.value))
        found = []
        for three in zip(*(blocks(one, runs) for one in heads), strict=True):
            query, key, value = (one.transpose(1, 2) for one in three)
            found.append(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return joined(found)


class _Sublayer(nn.Module):
    """What XLM-R calls an output: a projection, the residual, and the norm after it."""

    def __init__(self, inner: int, dim: int, eps: float) -> None:
        super().__init__()
        self.dense = Linear(inner, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        found: Tensor = self.LayerNorm(self.dense(x) + residual)
        return found


class Layer(nn.Module):
    """A layer of XLM-R: self-attention and a feed-forward network, each followed by its norm.

    Args:
        dim: the width of the model.
        heads: the number of heads.
        ffn_dim: the inner width of the feed-forward network.
        eps: ε of layer normalisation.
    """

    def __init__(self, dim: int, heads: int, ffn_dim: int, eps: float) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SatSelfAttention(dim, heads), "output": _Sublayer(dim, dim, eps)})
        self.intermediate = nn.ModuleDict({"dense": Linear(dim, ffn_dim)})
        self.output = _Sublayer(ffn_dim, dim, eps)

    def forward(self, x: Tensor, runs: Runs) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, runs), x)
        inner = self.intermediate["dense"](x)
        # in place without gradients: the widest tensor exists once
        inner = F.gelu(inner) if torch.is_grad_enabled() else torch.ops.aten.gelu_(inner)
        found: Tensor = self.output(inner, x)
        return found


class _Encoder(nn.Module):
    """The layers of XLM-R, one after the other."""

    def __init__(self, layers: int, dim: int, heads: int, ffn_dim: int, eps: float) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(dim, heads, ffn_dim, eps) for _ in range(layers))


class _Roberta(nn.Module):
    """The body of the network, with the names of its official checkpoint."""

    def __init__(
        self, vocab_size: int, dim: int, layers: int, heads: int, ffn_dim: int, max_positions: int, eps: float
    ) -> None:
        super().__init__()
        self.embeddings = _Embeddings(vocab_size, dim, max_positions, eps)
        self.encoder = _Encoder(layers, dim, heads, ffn_dim, eps)

    def forward(self, ids: Tensor, runs: Runs) -> Tensor:
        x: Tensor = self.embeddings(ids, runs)
        for layer in self.encoder.layer:
            x = layer(x, runs)
        return x


class SatNetwork(nn.Module):
    """Token ids `<s> … </s>`, (rows, length), → a logit for each token, (rows, length) float32.

    All within it has rows of several lengths end to end, (tokens, …), see `stages/packed.py`.

    Args:
        vocab_size: the size of the vocabulary.
        dim: the width of the model.
        layers: the number of layers.
        heads: the number of heads.
        ffn_dim: the inner width of the feed-forward network.
        max_positions: how many positions there are, XLM-R's two reserved ones included.
        eps: ε of layer normalisation.
    """

    def __init__(
        self, *, vocab_size: int, dim: int, layers: int, heads: int, ffn_dim: int, max_positions: int, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.roberta = _Roberta(vocab_size, dim, layers, heads, ffn_dim, max_positions, eps)
        self.classifier = nn.Linear(dim, 1)
        self.width = ffn_dim  # numbers of a token in the widest tensor
        self.block = max_positions - FIRST_POSITION - 2  # tokens of the longest row, without <s> and </s>

    def forward(self, ids: Tensor) -> Tensor:
        rows, length = ids.shape
        return self.packed(ids.flatten(), [(rows, length)]).view_as(ids)

    def packed(self, ids: Tensor, runs: Runs) -> Tensor:
        """Map ids (tokens,), rows end to end, each `<s> … </s>`, to logits (tokens,) float32."""
        # A product with a single column sums in an order that depends on how many rows there are and where they lie.
        columns = F.pad(self.classifier.weight, (0, 0, 0, COLUMNS - 1)), F.pad(self.classifier.bias, (0, COLUMNS - 1))
        return linear(self.roberta(ids, runs), *columns)[:, 0].float()
