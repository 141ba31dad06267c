"""Layers against loops and against PyTorch's own modules."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.lcm.attention import Cache, CrossAttention, Rotations, SelfAttention
from stages.lcm.layers import (
    Block,
    FeedForward,
    Lookup,
    RMSNorm,
    Scaling,
    SwiGLU,
    TimestepEmbedding,
)
from stages.lcm.packing import pack
from stages.scaler.robust import RobustScaler

DIM, HEADS = 8, 2
LENGTHS = torch.tensor([4, 1, 9, 6])


def rotated(x: Tensor, position: int) -> Tensor:
    """RoPE of one head's vector, plane by plane."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * 10_000.0 ** (-i / half)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i] * math.sin(angle) + x[i + half] * math.cos(angle)
    return out


def attention_by_loops(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], rope: bool) -> Tensor:
    """(positions, dim) of each; causal within documents."""
    head, out, start = DIM // HEADS, torch.zeros_like(q), 0
    for length in lengths:
        for n in range(length):
            for h in range(HEADS):
                part = slice(h * head, (h + 1) * head)
                turn = rotated if rope else lambda x, _: x
                query = turn(q[start + n, part], n)
                keys = torch.stack([turn(k[start + m, part], m) for m in range(n + 1)])
                weights = torch.softmax(keys @ query / math.sqrt(head), 0)
                out[start + n, part] = weights @ v[start : start + n + 1, part]
        start += length
    return out


@pytest.mark.parametrize("rope", [False, True])
def test_self_attention_is_that_of_each_document_by_loops(rope: bool) -> None:
    torch.manual_seed(0)
    attention = SelfAttention(DIM, HEADS).double()
    x = torch.randn(int(LENGTHS.sum()), DIM, dtype=torch.float64)
    packing = pack(LENGTHS, "cpu")
    rotations = Rotations.of(packing, DIM // HEADS) if rope else None
    q, k, v = attention.qkv(x).chunk(3, dim=1)
    expected = attention.out(attention_by_loops(q, k, v, LENGTHS.tolist(), rope))
    torch.testing.assert_close(attention(x, packing, rotations), expected, atol=1e-6, rtol=1e-6)


def test_attention_to_itself_alone_is_out_of_value() -> None:
    torch.manual_seed(0)
    attention = SelfAttention(DIM, HEADS)
    x = torch.randn(5, DIM)
    alone = attention(x, pack(torch.ones(5, dtype=torch.int64), "cpu"))
    torch.testing.assert_close(attention(x, None), alone)
    _, _, v = attention.qkv(x).chunk(3, dim=1)
    torch.testing.assert_close(attention(x, None), attention.out(v))


def test_positions_that_are_not_packed_see_only_themselves() -> None:
    torch.manual_seed(0)
    attention = SelfAttention(DIM, HEADS)
    packing = pack(LENGTHS, "cpu")
    x, more = torch.randn(int(LENGTHS.sum()), DIM), torch.randn(3, DIM)
    both = attention(torch.cat([x, more]), packing)
    torch.testing.assert_close(both, torch.cat([attention(x, packing), attention(more, None)]))


def test_cross_attention_is_that_of_each_document_by_loops() -> None:
    torch.manual_seed(0)
    attention = CrossAttention(DIM, HEADS).double()
    x, context = torch.randn(2, int(LENGTHS.sum()), DIM, dtype=torch.float64)
    packing = pack(LENGTHS, "cpu")
    k, v = attention.kv(context).chunk(2, dim=1)
    expected = attention.out(attention_by_loops(attention.q(x), k, v, LENGTHS.tolist(), rope=False))
    cache = Cache()
    first = attention(x, packing, context, packing, cache)
    torch.testing.assert_close(first, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(attention(x, packing, torch.full_like(context, torch.nan), packing, cache), first)


def test_a_block_is_that_of_pytorch() -> None:
    """nn.TransformerEncoderLayer, pre-norm, GELU, without biases, with LayerNorms replaced."""
    torch.manual_seed(0)
    ours = Block(DIM, HEADS, FeedForward(DIM, 24), dropout=0.0)
    theirs = nn.TransformerEncoderLayer(
        DIM, HEADS, 24, 0.0, activation="gelu", batch_first=True, norm_first=True, bias=False
    )
    for norm in ("norm1", "norm2"):
        theirs.register_module(norm, nn.RMSNorm(DIM, eps=1e-6))
    feed_forward = ours.feed_forward
    assert isinstance(feed_forward, FeedForward)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(ours.attention.qkv.weight)
        theirs.self_attn.out_proj.weight.copy_(ours.attention.out.weight)
        theirs.linear1.weight.copy_(feed_forward.up.weight)
        theirs.linear2.weight.copy_(feed_forward.out.weight)
    x = torch.randn(1, 7, DIM)
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    expected = theirs(x, src_mask=mask, is_causal=True)[0]
    torch.testing.assert_close(ours(x[0], pack(torch.tensor([7]), "cpu")), expected)


def test_rms_norm_is_that_of_pytorch_and_float32_inside() -> None:
    ours, theirs = RMSNorm(DIM), nn.RMSNorm(DIM, eps=1e-6)
    x = torch.randn(4, DIM)
    torch.testing.assert_close(ours(x), theirs(x))
    small = x.bfloat16()
    assert torch.equal(ours(small), theirs(small.float()).bfloat16())


def test_swiglu_is_its_formula() -> None:
    layer = SwiGLU(DIM, 5)
    x = torch.randn(4, DIM)
    w1, w2 = layer.gate_up.weight[:5], layer.gate_up.weight[5:]
    torch.testing.assert_close(layer(x), (F.silu(x @ w1.T) * (x @ w2.T)) @ layer.out.weight.T)


def test_timesteps_have_256_frequencies_and_differ() -> None:
    embedding = TimestepEmbedding(DIM)
    assert embedding.first.in_features == 256
    embedded = embedding(torch.arange(101))
    assert torch.cdist(embedded, embedded)[~torch.eye(101, dtype=torch.bool)].min() > 1e-3


def test_looking_up_a_table_is_projecting_every_position() -> None:
    """AdaLN computed per timestep, and per position as eq. 21 has it: the same values and gradients."""
    torch.manual_seed(0)
    embedding, modulation = TimestepEmbedding(DIM), nn.Linear(DIM, 9 * DIM)
    t = torch.randint(1, 11, (50,))
    weights = torch.randn(50, 9 * DIM)
    direct = modulation(F.silu(embedding(t)))
    lookup = Lookup.over(t, 11)
    assert len(lookup.entries) == 16
    table = lookup(modulation(F.silu(embedding(lookup.entries))))
    torch.testing.assert_close(table, direct)
    torch.testing.assert_close(Lookup.same(t[:1].expand(4))(modulation(F.silu(embedding(t[:1])))), direct[:1])
    parameters = [*embedding.parameters(), *modulation.parameters()]
    ours = torch.autograd.grad((table * weights).sum(), parameters)
    expected = torch.autograd.grad((direct * weights).sum(), parameters)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_scaling_is_the_scaler_and_moves_with_the_model() -> None:
    scaler = RobustScaler(torch.randn(DIM), torch.rand(DIM) + 0.5, clip=1.0)
    scaling = Scaling(scaler)
    x = torch.randn(4, DIM).half()
    assert torch.equal(scaling.normalize(x), scaler.normalize(x))
    assert torch.equal(scaling.denormalize(x), scaler.denormalize(x))
    assert set(scaling.state_dict()) == {"median", "iqr"}
