"""The SONAR text encoder and decoder in plain PyTorch: pre-norm Transformers around one vector per sentence.

Encoder: embeddings times √dim plus sinusoidal positions, layers, a final norm, the mean over all tokens (language tag
and `</s>` included). Batches of equal token count need no padding and no mask, which is the path that inference takes:
no work is wasted and a row's result does not depend on its neighbours. Padded batches, for training, pass a mask.

Decoder: attends to one vector, so the softmax of its cross-attention is 1 whatever the query: the cross-attention is
`out_proj(v_proj(x))`, a constant per sentence and layer. Its query, key and norm do not exist here, and decoding adds
the constant instead of attending at every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.packed import Runs, blocks, joined
from stages.rows import FEW, fewest_rows
from stages.sonar import single_query

FIRST_POSITION = 2  # positions are counted from 2, as in the published models
LANES = 64  # numbers that rows of logits are filled up to multiples of
ALIGNED = 8  # columns: a GPU's fast products want multiples of it


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute F.linear with the same bits for a row in any batch: on CPUs, few rows are padded (`stages/rows.py`).

    While gradients are computed, which are sums over a batch in any case, only the fewest rows are.

    Args:
        x: (…, in).
        weight: (out, in).
        bias: (out,); None for none.

    Returns:
        (…, out).
    """
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    *shape, dim = x.shape
    rows = math.prod(shape)
    fewest = FEW if torch.is_grad_enabled() else fewest_rows(dim, len(weight), weight.dtype)
    if not 0 < rows < fewest:
        return F.linear(x, weight, bias)
    filled = F.pad(x.reshape(rows, dim), (0, 0, 0, fewest - rows))
    return F.linear(filled, weight, bias)[:rows].view(*shape, -1)


def sinusoids(positions: int, dim: int) -> Tensor:
    """Return (positions, dim) float32: sines in the first half of the columns, cosines in the second."""
    half = dim // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10000.0) / (half - 1)))
    angles = torch.outer(torch.arange(FIRST_POSITION, FIRST_POSITION + positions, dtype=torch.float32), rates)
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class Embedding(nn.Module):
    """Token embeddings times √dim plus sinusoidal positions.

    Args:
        vocab_size: the size of the vocabulary.
        dim: the width of the model.
        max_tokens: how many positions there are.
    """

    positions: Tensor

    def __init__(self, vocab_size: int, dim: int, max_tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        self.register_buffer("positions", torch.empty(max_tokens, dim), persistent=False)
        self.scale = math.sqrt(dim)
        if not self.weight.is_meta:  # where torch would load its compiler, for seconds
            nn.init.normal_(self.weight, std=dim**-0.5)
            self.positions.copy_(sinusoids(max_tokens, dim))

    def check(self, length: int) -> None:
        """Raise ValueError if a sequence has more tokens than the model has positions."""
        if length > self.positions.shape[0]:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the model's {self.positions.shape[0]}; cut it"
            )

    def forward(self, ids: Tensor, position: Tensor | None = None) -> Tensor:
        """Embed ids (rows, length) int32 or int64 → (rows, length, dim). position: (1,) int64, for ids of length 1."""
        if position is not None:
            return F.embedding(ids, self.weight).mul_(self.scale).add_(self.positions.index_select(0, position))
        length = ids.shape[1]
        self.check(length)
        return F.embedding(ids, self.weight).mul_(self.scale).add_(self.positions[:length])

    def packed(self, ids: Tensor, runs: Runs) -> Tensor:
        """Embed ids (tokens,), rows end to end → (tokens, dim)."""
        self.check(max(length for _, length in runs))
        x = F.embedding(ids, self.weight).mul_(self.scale)
        for block in blocks(x, runs):
            block.add_(self.positions[: block.shape[1]])
        return x


class Linear(nn.Linear):
    """An nn.Linear that computes with `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class SonarSelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; one matmul makes queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv_proj = Linear(dim, 3 * dim)
        self.out_proj = Linear(dim, dim)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project (rows, length, dim) to queries, keys and values, each (rows, heads, length, dim / heads)."""
        rows, length, dim = x.shape
        qkv = self.qkv_proj(x).view(rows, length, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def merge(self, attended: Tensor) -> Tensor:
        """Join heads and project: (rows, heads, length, dim / heads) → (rows, length, dim)."""
        joined: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return joined

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attend within each row.

        Args:
            x: (rows, length, dim).
            mask: bool, true where a token is seen, or numbers that are added to scores; None for none.
            causal: whether a token sees only itself and those before it.

        Returns:
            (rows, length, dim).
        """
        query, key, value = self.split(x)
        return self.merge(F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal))

    def step(self, x: Tensor, cache: Tensor, position: Tensor, seen: int, mask: Tensor | None) -> Tensor:
        """Attend from the next token of each row to all before it and to itself.

        Args:
            x: (rows, 1, dim).
            cache: (2, rows, heads, capacity, dim / heads), keys and values, each contiguous; the token's are added.
            position: (1,) int64, where the token stands.
            seen: how many places of the cache are attended to, from the first.
            mask: (1, seen) bool, true where a place is filled; None if all are.

        Returns:
            (rows, 1, dim).
        """
        kernel = None if torch.is_grad_enabled() else single_query.kernel_for(self.qkv_proj.weight, cache.shape[4])
        if kernel:  # it writes into the cache, too, and sees the filled places alone
            attended = single_query.by_kernel(kernel, self.qkv_proj(x), cache, position)
            return cast("Tensor", self.out_proj(attended))
        query, key, value = self.split(x)
        keys, values = cache.unbind(0)
        keys.index_copy_(2, position, key)
        values.index_copy_(2, position, value)
        return self.merge(F.scaled_dot_product_attention(query, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask))

    def packed(self, x: Tensor, runs: Runs) -> Tensor:
        """Map (tokens, dim), rows end to end, to (tokens, dim): every row attends to itself alone."""
        dim, found = x.shape[1], []
        for qkv in blocks(self.qkv_proj(x), runs):
            query, key, value = qkv.unflatten(2, (3, self.heads, dim // self.heads)).permute(2, 0, 3, 1, 4).unbind(0)
            found.append(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        attended: Tensor = self.out_proj(joined(found))
        return attended


class SonarFeedForward(nn.Module):
    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.inner_proj = Linear(dim, ffn_dim)
        self.out_proj = Linear(ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out_proj(self._inner(x))
        return y

    def _inner(self, x: Tensor) -> Tensor:
        """Map (…, dim) to (…, ffn_dim); on GPUs without gradients, bias and activation are part of the matmul."""
        if x.is_cuda and not torch.is_grad_enabled():
            weight, bias = self.inner_proj.weight, self.inner_proj.bias
            return torch._addmm_activation(bias, x.flatten(0, -2), weight.t()).view(*x.shape[:-1], -1)
        # in place: the widest tensor of the network exists once, and no gradient needs what was there
        return F.relu_(self.inner_proj(x))


class EncoderLayer(nn.Module):
    """A pre-norm layer: self-attention, then a feed-forward network.

    Args:
        dim: the width of the model.
        heads: the number of heads.
        ffn_dim: the inner width of the feed-forward network.
    """

    def __init__(self, dim: int, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SonarSelfAttention(dim, heads)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = SonarFeedForward(dim, ffn_dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        x = x + self.ffn(self.ffn_norm(x))
        return x

    def packed(self, x: Tensor, runs: Runs) -> Tensor:
        """Map (tokens, dim), rows end to end, to (tokens, dim)."""
        x = x + self.attention.packed(self.attention_norm(x), runs)
        x = x + self.ffn(self.ffn_norm(x))
        return x


class SonarTextEncoder(nn.Module):
    """Token ids → one embedding per sentence.

    Args:
        dim: the width of the model and of embeddings.
        layers: the number of layers.
        heads: the number of heads.
        ffn_dim: the inner width of the feed-forward network.
        vocab_size: the size of the vocabulary.
        max_tokens: the most tokens of a sentence.
    """

    def __init__(self, *, dim: int, layers: int, heads: int, ffn_dim: int, vocab_size: int, max_tokens: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocab_size, dim, max_tokens)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads, ffn_dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode ids (rows, length) int32 or int64 → (rows, dim).

        Without a mask every row has `length` tokens. mask: (rows, length) bool, true where a token is, for padded rows.
        """
        x = self.embedding(ids)
        attended = None if mask is None else mask[:, None, None, :]
        for layer in self.layers:
            x = layer(x, attended)
        tokens: Tensor = self.norm(x)
        if mask is None:
            return tokens.mean(dim=1)
        kept = mask.unsqueeze(2).to(tokens.dtype)
        return (tokens * kept).sum(dim=1) / kept.sum(dim=1)

    def packed(self, ids: Tensor, runs: Runs) -> Tensor:
        """Encode ids (tokens,) int32 or int64, rows end to end → (rows, dim), equal to what `forward` returns."""
        x = self.embedding.packed(ids, runs)
        for layer in cast("list[EncoderLayer]", self.layers):
            x = layer.packed(x, runs)
        return torch.cat([block.mean(dim=1) for block in blocks(self.norm(x), runs)])


class CrossConstant(nn.Module):
    """Attention to a single vector: what its value and output projections make of it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.v_proj = Linear(dim, dim)
        self.out_proj = Linear(dim, dim)

    def forward(self, embeddings: Tensor) -> Tensor:
        constant: Tensor = self.out_proj(self.v_proj(embeddings))
        return constant


class DecoderLayer(nn.Module):
    """A pre-norm layer: self-attention, attention to the embedding, then a feed-forward network.

    Args:
        dim: the width of the model.
        heads: the number of heads.
        ffn_dim: the inner width of the feed-forward network.
    """

    def __init__(self, dim: int, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SonarSelfAttention(dim, heads)
        self.cross = CrossConstant(dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = SonarFeedForward(dim, ffn_dim)

    def forward(self, x: Tensor, constant: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), causal=True) + constant
        x = x + self.ffn(self.ffn_norm(x))
        return x

    def step(
        self, x: Tensor, constant: Tensor, cache: Tensor, position: Tensor, seen: int, mask: Tensor | None
    ) -> Tensor:
        """Map one token per row to the layer's output.

        Args:
            x: (rows, 1, dim).
            constant: (rows, 1, dim), the cross-attention to the embedding, which is the same for all tokens.
            cache: (2, rows, heads, capacity, dim / heads), keys and values, filled in place.
            position: (1,) int64, where the token stands.
            seen: how many places of the cache are attended to, from the first.
            mask: (1, seen) bool, true where a place is filled; None if all are.

        Returns:
            (rows, 1, dim).
        """
        x = x + self.attention.step(self.attention_norm(x), cache, position, seen, mask) + constant
        x = x + self.ffn(self.ffn_norm(x))
        return x


@dataclass
class DecoderState:
    """What incremental decoding remembers of each row, in tensors that are made once and have room for `most` rows.

    constants: (layers, most, 1, dim); cache: (layers, 2, most, heads, capacity, dim / heads), keys and values. In use
    are the first `rows`, up to `length` tokens; position: (1,) int64, the same length where the device reads it.
    """

    constants: Tensor
    cache: Tensor
    position: Tensor
    rows: int = 0
    length: int = 0

    def keep(self, rows: Tensor) -> None:
        """Keep the given rows, in that order: rows may be dropped, swapped or repeated, as far as there is room.

        Layer after layer, so that at most half a layer exists twice.
        """
        count = len(rows)
        for constants, layer in zip(self.constants, self.cache, strict=True):
            constants[:count] = constants.index_select(0, rows)
            for cache in layer:
                used = cache[: self.rows, :, : self.length]
                cache[:count, :, : self.length] = used.index_select(0, rows)
        self.rows = count


def _aligned_logits(hidden: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Compute (rows, dim) → float32 logits in the first rows of `out`, on a GPU, and return these.

    cuBLAS has only slow kernels for 256 206 columns, which is not a multiple of 8: the last 6 are a product of their
    own. The columns of `out` after the vocabulary stay −inf.
    """
    found, vocab = out[: len(hidden)], len(weight)
    most = vocab // ALIGNED * ALIGNED
    options: dict[str, Any] = {} if hidden.dtype == torch.float32 else {"out_dtype": torch.float32}
    for start, stop in ((0, most), (most, vocab)):
        if start < stop:
            torch.mm(hidden, weight[start:stop].t(), out=found[:, start:stop], **options)
    return found


class SonarTextDecoder(nn.Module):
    """The decoder of SONAR: one embedding per sentence → logits of its tokens.

    Args:
        dim: the width of the model and of embeddings.
        layers: the number of layers.
        heads: the number of heads.
        ffn_dim: the inner width of the feed-forward network.
        vocab_size: the size of the vocabulary.
        max_tokens: the most tokens of a sentence.
        tied: whether the output projection is the embedding table.
    """

    def __init__(
        self, *, dim: int, layers: int, heads: int, ffn_dim: int, vocab_size: int, max_tokens: int, tied: bool = True
    ) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = Embedding(vocab_size, dim, max_tokens)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, ffn_dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.output = None if tied else Linear(dim, vocab_size, bias=False)

    @property
    def _layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", self.layers)

    def hidden(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Map ids (rows, length) int64 and embeddings (rows, dim) to (rows, length, dim), the input of `logits`."""
        x = self.embedding(ids)
        for layer in self._layers:
            x = layer(x, layer.cross(embeddings).unsqueeze(1))
        y: Tensor = self.norm(x)
        return y

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Map (…, dim) to (…, vocab_size); on GPUs without gradients in float32: bfloat16 makes close logits equal.

        out: of `room_for_logits`; its rows are then the result for (rows, dim), the same bits before the −inf.
        """
        weight = self.embedding.weight if self.output is None else self.output.weight
        if out is not None and out.is_cuda:
            return _aligned_logits(hidden, weight, out)
        if out is not None and len(hidden) >= fewest_rows(hidden.shape[1], len(weight), weight.dtype):
            torch.mm(hidden, weight.t(), out=out[: len(hidden), : len(weight)])
            return out[: len(hidden)]
        if not hidden.is_cuda or hidden.dtype == torch.float32 or torch.is_grad_enabled():
            return linear(hidden, weight)
        found = torch.mm(hidden.flatten(0, -2), weight.t(), out_dtype=torch.float32)
        return found.view(*hidden.shape[:-1], -1)

    def forward(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Map ids (rows, length) int64 and embeddings (rows, dim) to (rows, length, vocab_size), teacher-forced."""
        return self.logits(self.hidden(ids, embeddings))

    def attends_by_kernel(self) -> bool:
        """Return whether steps use the kernel of `single_query`, which sees the filled part of the cache alone."""
        weight = self.embedding.weight
        return single_query.kernel_for(weight, weight.shape[1] // self.heads) is not None

    def room_for_logits(self, most: int) -> Tensor | None:
        """Return memory for the float32 logits of `most` rows, −inf after the vocabulary; None in 16 bits on a CPU.

        With 8006 columns a product takes two thirds of the time on a CPU if its rows begin at multiples of 64 numbers,
        and the system need not find pages for it at every step. On GPUs fast kernels want rows aligned to 16 bytes.
        """
        weight = self.embedding.weight if self.output is None else self.output.weight
        if not weight.is_cuda and (weight.device.type != "cpu" or weight.dtype != torch.float32):
            return None
        width = -(-len(weight) // LANES) * LANES
        return weight.new_full((most, width), -torch.inf, dtype=torch.float32)

    def room(self, most: int, capacity: int) -> DecoderState:
        """Return a state without rows, with room for `most` rows of `capacity` tokens."""
        weight = self.embedding.weight
        layers, dim = len(self.layers), weight.shape[1]
        self.embedding.check(capacity)
        return DecoderState(
            constants=weight.new_zeros((layers, most, 1, dim)),
            cache=weight.new_empty((layers, 2, most, self.heads, capacity, dim // self.heads)),
            position=torch.zeros(1, dtype=torch.int64, device=weight.device),
        )

    def begin(self, embeddings: Tensor, state: DecoderState) -> None:
        """Start a state again with these embeddings, (rows, dim); it must have room for them."""
        state.rows, state.length = len(embeddings), 0
        state.position.zero_()
        for layer, constants in zip(self._layers, state.constants, strict=True):
            constants[: state.rows, 0] = layer.cross(embeddings)

    def start(self, embeddings: Tensor, capacity: int, most: int = 0) -> DecoderState:
        """Return the state of rows that have no token yet.

        Args:
            embeddings: (rows, dim).
            capacity: the most tokens of a row.
            most: the most rows that the state must hold later.

        Returns:
            The state.
        """
        state = self.room(max(most, len(embeddings)), capacity)
        self.begin(embeddings, state)
        return state

    def step(self, ids: Tensor, state: DecoderState, seen: int | None = None) -> Tensor:
        """Feed the next token of each row; the state grows by one token.

        Args:
            ids: (rows,) int64.
            state: the state of the rows.
            seen: how many places of the cache are attended to, with a mask over those that are not filled yet; None for
                exactly the filled ones, without a mask.

        Returns:
            (rows, dim), the input of `logits`.
        """
        rows, position = state.rows, state.position
        mask = None if seen is None else (torch.arange(seen, device=ids.device) <= position)[None]
        seen = seen or state.length + 1
        x = self.embedding(ids.unsqueeze(1), position)
        for layer, constants, cache in zip(self._layers, state.constants, state.cache, strict=True):
            x = layer.step(x, constants[:rows], cache[:, :rows], position, seen, mask)
        position.add_(1)
        state.length += 1
        y: Tensor = self.norm(x).squeeze(1)
        return y
