"""A judge of coherence that learns from the documents of a corpus: which sentence comes next, and which one does not.

It sees the embeddings of two sentences and tells whether the second follows the first, or is another one of the same
document, as the local discriminator of Xu et al. (2019) does. Sentences of the same document share its subject, so what
is left to learn is order. Negatives are also, more rarely, the first sentence itself, since models that repeat
themselves are to be found out, and sentences of other documents. Cost: some seconds of a CPU for 100 000 sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.device import prepare_cuda
from stages.lcm.metrics import documents_of

HIDDEN, DROPOUT = 256, 0.2
STEPS, PAIRS, LEARNING_RATE, WEIGHT_DECAY = 600, 1024, 1e-3, 0.01
PASSES = 12  # over all pairs, at most: of few ones it would learn each by heart, and call all others wrong
BATCHES = 16  # of a pass, at least, so that few pairs make as many steps
REPEATED, ELSEWHERE = 0.1, 0.1  # shares of negatives that are the sentence itself, or one of another document
HELD_OUT = 10  # every so many documents tell how good the judge is
LEAST_PAIRS = 500  # of neighbours, to learn from
SHORTEST = 3  # sentences of a document in which another sentence than the next one is to be found


class PairNetwork(nn.Module):
    """(pairs, dim) and (pairs, dim) of float32, normalised → (pairs,) the logit of: the second follows the first."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4 * dim, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, 1))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the logits."""
        found: Tensor = self.layers(torch.cat([first, second, first * second, (first - second).abs()], dim=1))
        return found[:, 0]


@dataclass(frozen=True, eq=False)
class CoherenceJudge:
    """A judge that has learned. accuracy: how often the real next sentence of documents that it has not seen was more
    likely than another sentence of the document (one half: it cannot tell); pairs: how many it learned from.
    """

    network: PairNetwork
    mean: Tensor
    std: Tensor
    accuracy: float
    pairs: int

    @torch.inference_mode()
    def scores(self, embeddings: Tensor) -> Tensor:
        """Return how probably each sentence follows the one before it, against another of its document.

        (sentences, dim) of a text → (sentences − 1,) float64 in [0, 1]. Real documents have about what `accuracy` says,
        shuffled ones one half.
        """
        x = (embeddings.to(self.mean.device).float() - self.mean) / self.std
        return torch.sigmoid(self.network(x[:-1], x[1:])).double().cpu()


def fit_judge(
    embeddings: Tensor, lengths: Tensor, device: str = "cpu", seed: int = 0, origins: Sequence[str] | None = None
) -> CoherenceJudge:
    """Train a judge on documents.

    Args:
        embeddings: (sentences, dim), documents one after the other.
        lengths: (documents,) int64, how many sentences each has; documents of less than three are left out.
        device: where the network is trained, and judges.
        seed: of weights and of the choice of pairs.
        origins: (documents,) what copies of a document, and pieces of one, have in common, such as a hash of its text:
            all of them are learned from, or none. None: every document is another one.

    Returns:
        The judge.

    Raises:
        ValueError: if there are too few sentences to learn from.
    """
    prepare_cuda(device)
    ends = lengths.cumsum(0)
    document = documents_of(lengths)
    long = (lengths >= SHORTEST)[document]
    follows = torch.ones(len(document), dtype=torch.bool)
    follows[ends - 1] = False  # the last sentence of a document has none after it
    number = torch.arange(len(lengths))
    if origins is not None:
        first_seen = {one: at for at, one in enumerate(dict.fromkeys(origins))}
        number = torch.tensor([first_seen[one] for one in origins])
    held_out = (number % HELD_OUT == HELD_OUT - 1)[document]
    learning, judging = ((follows & long & side).nonzero()[:, 0] for side in (~held_out, held_out))
    if len(learning) < LEAST_PAIRS or not len(judging):
        raise ValueError(
            f"{len(learning)} pairs of neighbours in documents of {SHORTEST} sentences and more; {LEAST_PAIRS} are the "
            f"least to learn from, in at least {HELD_OUT} documents"
        )
    x = embeddings.float()
    mean, std = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    x = ((x - mean) / std).to(device)
    generator = torch.Generator().manual_seed(seed)
    starts = ends - lengths

    def others(of: Tensor) -> Tensor:
        """Return another sentence of the document of each, neither itself nor the next one."""
        size, place = lengths[document[of]], of - starts[document[of]]
        drawn = (torch.rand(len(of), generator=generator) * (size - 2)).long()
        return starts[document[of]] + torch.where(drawn >= place, drawn + 2, drawn)

    with torch.random.fork_rng([device] if device.startswith("cuda") else []):
        torch.manual_seed(seed)
        network = PairNetwork(x.shape[1]).to(device)
        optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        pairs = min(PAIRS, -(-len(learning) // BATCHES))
        steps = min(STEPS, -(-PASSES * len(learning) // pairs))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            first = learning[torch.randint(len(learning), (pairs,), generator=generator)]
            kind = torch.rand(pairs, generator=generator)
            wrong = torch.where(kind < REPEATED, first, others(first))
            elsewhere = learning[torch.randint(len(learning), (pairs,), generator=generator)]
            wrong = torch.where(kind > 1 - ELSEWHERE, elsewhere, wrong)
            rows = torch.cat([first, first, first + 1, wrong]).to(device)
            logits = network(*x.index_select(0, rows).split(2 * pairs))
            labels = (torch.arange(2 * pairs, device=logits.device) < pairs).float()
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logits, labels).backward()
            optimizer.step()
            schedule.step()
    network.eval().requires_grad_(False)
    wrong = others(judging)
    rows = torch.cat([judging, judging, judging + 1, wrong]).to(device)
    real, other = network(*x.index_select(0, rows).split(2 * len(judging))).split(len(judging))
    same = (embeddings[judging + 1] == embeddings[wrong]).all(dim=1)  # sentence: nothing is to be told apart
    accuracy = float(torch.where(same, 0.5, (real > other).double().cpu()).mean())
    return CoherenceJudge(network, mean.to(device), std.to(device), accuracy, len(learning))
