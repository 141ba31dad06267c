"""A sentence's embedding and greedy decoding are the same bits whatever is in the batch and however many threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stages.device import compute_dtype
from stages.packed import blocks
from stages.rows import cancelling, fewest_rows
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_decoder, load_encoder, rows_are_independent
from stages.sonar.generate import greedy
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder, linear
from stages.sonar.tokenizer import SonarTokenizer

ROWS = (1, 2, 3, 7, 64)
LENGTHS = (3, 4, 7, 16, 33, 64, 130)
THREADS = (1, 2)


@pytest.fixture(autouse=True)
def threads_are_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


DTYPES = {torch.float32, compute_dtype("auto", "cpu")}  # bfloat16 too, where the CPU multiplies it


@pytest.fixture(scope="module", params=sorted(DTYPES, key=str), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture(
    scope="module", params=[128, *(pytest.param(one, marks=pytest.mark.slow) for one in (256, 512, "sonar-tiny"))]
)
def networks(request: pytest.FixtureRequest, dtype: torch.dtype) -> tuple[SonarTextEncoder, SonarTextDecoder]:
    if request.param == "sonar-tiny":
        card = load_card("sonar-tiny")
        return load_encoder(card, dtype), load_decoder(card, dtype)
    torch.manual_seed(0)
    dim = request.param
    numbers = {"dim": dim, "layers": 1, "ffn_dim": 4 * dim, "vocab_size": 1003, "max_tokens": 514}
    encoder, decoder = SonarTextEncoder(heads=dim // 64, **numbers), SonarTextDecoder(heads=dim // 64, **numbers)
    return encoder.to(dtype), decoder.to(dtype)


@pytest.mark.parametrize("inner", [256, 512, 1024, 2048])
@pytest.mark.parametrize("columns", [256, 1024])
@torch.inference_mode()
def test_a_row_has_the_same_bits_among_any_number_of_others(inner: int, columns: int, dtype: torch.dtype) -> None:
    x, weight = cancelling(1100, inner, columns, dtype, seed=7)
    torch.set_num_threads(1)
    whole = linear(x, weight)
    for threads in THREADS:
        torch.set_num_threads(threads)
        few = fewest_rows(inner, columns, dtype)
        counts = {1, 3, 17, 33, 37, 64, 100, 200, few - 1, few, few + 1, 255, 257, 500, 700, 1099}
        different = [rows for rows in sorted(counts) if not torch.equal(linear(x[:rows], weight), whole[:rows])]
        assert not different, f"{threads} threads, filled up to {few} rows"


def test_this_process_computes_reproducibly(dtype: torch.dtype) -> None:
    assert rows_are_independent(dtype)


@torch.inference_mode()
def test_embeddings(networks: tuple[SonarTextEncoder, SonarTextDecoder]) -> None:
    encoder, _ = networks
    for length in LENGTHS:
        ids = torch.randint(4, 1000, (64, length), generator=torch.Generator().manual_seed(length))
        torch.set_num_threads(1)
        alone = torch.cat([encoder(ids[i : i + 1]) for i in range(8)])
        for threads in THREADS:
            torch.set_num_threads(threads)
            for rows in ROWS:
                part = encoder(ids[:rows])
                assert torch.equal(part[:8], alone[:rows]), f"{rows} rows of {length} tokens, {threads} threads"


@torch.inference_mode()
def test_embeddings_among_sentences_of_other_lengths(networks: tuple[SonarTextEncoder, SonarTextDecoder]) -> None:
    encoder, _ = networks
    runs = [(2, 130), (1, 64), (7, 33), (3, 16), (64, 7), (1, 4), (2, 3)]
    total = sum(rows * length for rows, length in runs)
    ids = torch.randint(4, 1000, (total,), generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(1)
    alone = torch.cat([encoder(row[None]) for block in blocks(ids, runs) for row in block])
    for threads in THREADS:
        torch.set_num_threads(threads)
        assert torch.equal(encoder.packed(ids, runs), alone), f"{threads} threads"


@torch.inference_mode()
def test_logits_of_every_step(networks: tuple[SonarTextEncoder, SonarTextDecoder]) -> None:
    _, decoder = networks
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 1000, (64, 20), generator=generator)
    embeddings = torch.randn(64, decoder.norm.normalized_shape[0], generator=generator).to(decoder.norm.weight)

    def logits(rows: int) -> torch.Tensor:
        state = decoder.start(embeddings[:rows], capacity=20)
        return torch.stack([decoder.logits(decoder.step(column[:rows], state)) for column in ids.T], dim=1)

    torch.set_num_threads(1)
    whole = logits(64)
    for threads in THREADS:
        torch.set_num_threads(threads)
        for rows in ROWS:
            assert torch.equal(logits(rows), whole[:rows]), f"{rows} rows, {threads} threads"


@torch.inference_mode()
def test_greedy_decoding_while_rows_leave_the_batch(dtype: torch.dtype) -> None:
    card = load_card("sonar-tiny")
    tokenizer, encoder, decoder = SonarTokenizer(card), load_encoder(card, dtype), load_decoder(card, dtype)
    texts = [
        "Yes.",
        "She smiled.",
        "The river was wide and slow.",
        "He opened the door and went out into the garden.",
    ] * 6
    embeddings = torch.cat([encoder(torch.tensor([ids])) for ids in tokenizer.encode(texts, "eng_Latn")])
    embeddings += torch.linspace(0, 0.01, len(texts))[:, None]  # so that no two rows are the same
    prefixes = torch.tensor([tokenizer.target_prefix("eng_Latn")] * len(texts))
    limits = torch.arange(len(texts)) % 17 + 3
    together = greedy(decoder, embeddings, prefixes, limits)
    assert len({len(ids) for ids in together}) > 3
    for i in range(len(texts)):
        row = slice(i, i + 1)
        assert greedy(decoder, embeddings[row], prefixes[row], limits[row]) == [together[i]]
        assert len(together[i]) <= limits[i]


def test_a_limit_of_no_tokens_is_an_error() -> None:
    decoder = load_decoder(load_card("sonar-tiny"))
    with pytest.raises(ValueError, match="holds 0"):
        greedy(decoder, torch.zeros(1, decoder.norm.normalized_shape[0]), torch.tensor([[3, 8]]), torch.tensor([0]))
    assert (
        greedy(decoder, torch.zeros(0, 256), torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        == []
    )
