"""A small decoder with random weights, and the plainest way to generate with it: no batch, no cache."""

from __future__ import annotations

import functools

import torch
from hypothesis import strategies as st

from stages.sonar.ids import END, PAD
from stages.sonar.networks import SonarTextDecoder

DIM, VOCAB = 16, 24


PREFIX = (END, 5)


rows = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1, max_size=9)  # embedding, limit


@functools.cache
def decoder(seed: int, *, tied: bool = False, device: str = "cpu") -> SonarTextDecoder:
    """Random weights, sharp enough that sentences end at different lengths. Tied: pairs of tokens that are the same."""
    torch.manual_seed(seed)
    network = SonarTextDecoder(dim=DIM, layers=2, heads=2, ffn_dim=32, vocab_size=VOCAB, max_tokens=32).eval()
    with torch.no_grad():
        for layer in network._layers:  # so that what was said before, and the embedding, count for more than the last
            for module in (layer.attention.out_proj, layer.cross.out_proj, layer.ffn.out_proj):
                module.weight.mul_(5)
        network.norm.weight.normal_()
        network.norm.bias.copy_(0.6 * network.embedding.weight[END])
        if tied:
            network.embedding.weight[7::2] = network.embedding.weight[6:-1:2]
    return network.requires_grad_(False).to(device)


def embedding(number: int) -> torch.Tensor:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(number))


def batch(chosen: list[tuple[int, int]], device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    embeddings = torch.stack([embedding(number) for number, _ in chosen]).to(device)
    prefixes = torch.tensor([PREFIX] * len(chosen), device=device)
    return embeddings, prefixes, torch.tensor([limit for _, limit in chosen])


def log_probabilities(network: SonarTextDecoder, ids: list[int], number: int) -> torch.Tensor:
    """(length, vocabulary), without a cache."""
    device = network.embedding.weight.device
    with torch.inference_mode():
        logits: torch.Tensor = network(torch.tensor([ids], device=device), embedding(number)[None].to(device))
    return logits[0].float().log_softmax(dim=1).cpu()


def plain_greedy(network: SonarTextDecoder, number: int, limit: int) -> list[int]:
    ids = list(PREFIX)
    while len(ids) < len(PREFIX) + limit:
        likely = log_probabilities(network, ids, number)[-1]
        likely[PAD] = -torch.inf
        ids.append(int(likely.argmax()))
        if ids[-1] == END:
            break
    return ids[len(PREFIX) :]
