"""A batch in smaller batches: every field is that of the documents that each of them has."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from stages.batching import Tokens
from stages.lcm.batch import Batch
from stages.lcm.packing import layout_of

LENGTHS = (3, 1, 4, 2)
PER_SENTENCE = ("embeddings", "weights", "codes", "paragraphs", "weights_on_host")


def whole() -> Batch:
    """A batch that has everything, as one has that moved to a GPU."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([1.0, 0, 1, 0, 0, 1, 1, 1, 0, 1])
    lengths = torch.tensor(LENGTHS)
    return Batch(
        embeddings=torch.randn((10, 8), generator=generator),
        lengths=lengths,
        weights=weights,
        codes=torch.arange(20, dtype=torch.int32).reshape(10, 2),
        sequences=torch.tensor([7, 5, 6, 9]),
        texts=tuple("abcdefghij"),
        paragraphs=torch.arange(10, dtype=torch.int32),
        tokens=Tokens.of([[3, *range(4, 5 + k), 3] for k in range(10)]),
        layout=layout_of(lengths),
        weights_on_host=weights.clone(),
    )


@pytest.mark.parametrize("documents", [1, 2, 3, 4, 9])
def test_smaller_batches_have_their_own_rows_of_everything(documents: int) -> None:
    batch = whole()
    assert all(getattr(batch, one.name) is not None for one in fields(batch))
    parts = list(batch.split(documents))
    assert [len(one.lengths) for one in parts[:-1]] == [min(documents, 4)] * (len(parts) - 1)
    for name in (*PER_SENTENCE, "lengths", "sequences"):
        assert torch.equal(torch.cat([getattr(one, name) for one in parts]), getattr(batch, name)), name
    assert "".join(text for one in parts for text in one.texts or ()) == "abcdefghij"
    assert batch.tokens is not None
    assert np.array_equal(np.concatenate([one.tokens.ids for one in parts if one.tokens]), batch.tokens.ids)
    first = 0
    for one in parts:
        assert one.tokens is not None and len(one.tokens.lengths) == one.sentences == int(one.lengths.sum())
        assert np.array_equal(one.target_rows + first, [n for n in batch.target_rows if 0 <= n - first < one.sentences])
        assert int(one.packing.scatter.numel()) == one.sentences
        first += one.sentences
