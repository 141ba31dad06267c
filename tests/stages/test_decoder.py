"""Fine-tuning a decoder: what it is given, by the equations; exact resuming; what it learns; a file of any card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stages.batching import Tokens
from stages.decoder.finetune import (
    LEVELS,
    CheckpointFile,
    DecoderSentences,
    FineTuning,
    _round,
    held_out_numbers,
    prefix_lengths,
    to_artifact,
)
from stages.decoder.settings import DecoderSettings
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler
from stages.sonar.card import ModelCard, ModelFile, load_card
from stages.sonar.checkpoint import load_decoder
from stages.sonar.ids import END, PAD
from stages.sonar.tokenizer import SonarTokenizer

FOLDER = Path(__file__).parent / "fixtures/sonar-space-tiny"
ROWS = 24


@pytest.fixture(scope="module")
def card() -> ModelCard:
    return load_card(str(FOLDER / "card-m2m100.yaml"))


@pytest.fixture(scope="module")
def sentences(card: ModelCard) -> DecoderSentences:
    rng = np.random.default_rng(0)
    texts = [f"The house number {number} is old." * (1 + number % 3) for number in range(ROWS)]
    return DecoderSentences(
        rng.standard_normal((ROWS, card.dim)).astype(np.float16),
        Tokens.of(SonarTokenizer(card).encode(texts, "eng_Latn")),
        rng.random(ROWS),
        rng.integers(0, 4, (ROWS, 6)).astype(np.uint16),
    )


@pytest.fixture(scope="module")
def scaler(card: ModelCard) -> RobustScaler:
    generator = torch.Generator().manual_seed(1)
    median, iqr = (torch.rand(card.dim, generator=generator) for _ in range(2))
    return RobustScaler(median, iqr + 0.5, None, ROWS, torch.zeros(card.dim, dtype=torch.bool))


@pytest.fixture(scope="module")
def codebooks(card: ModelCard) -> Codebooks:
    return Codebooks(torch.randn((6, 4, card.dim), generator=torch.Generator().manual_seed(2)).half())


def settings(**others: object) -> DecoderSettings:
    given = {"model": str(FOLDER / "card-m2m100.yaml"), "precision": "float32", "batch_tokens": 128, "warmup": 2}
    return DecoderSettings.model_validate(given | others)


class InMemory(CheckpointFile):
    def __init__(self) -> None:
        self.data: bytes | None = None

    def write(self, data: bytes) -> None:
        self.data = data


def training(
    card: ModelCard, sentences: DecoderSentences, asked: DecoderSettings, scaler: RobustScaler, codebooks: Codebooks
) -> FineTuning:
    return FineTuning(card, sentences, asked, scaler=scaler, codebooks=codebooks, made_of="test", device="cpu")


def test_noise_follows_equation_27(
    card: ModelCard, sentences: DecoderSentences, scaler: RobustScaler, codebooks: Codebooks
) -> None:
    made = training(card, sentences, settings(), scaler, codebooks)
    rows = np.arange(ROWS)
    found = made.given(rows, np.random.default_rng(5)).double()
    rng = np.random.default_rng(5)
    alpha = torch.from_numpy(rng.random((4, ROWS))[2])[:, None]
    eps = torch.from_numpy(rng.standard_normal((ROWS, card.dim), dtype=np.float32)).double()
    x = torch.from_numpy(sentences.embeddings).double()
    normalised = (x - scaler.median) / scaler.iqr
    expected = (torch.sqrt(1 - alpha) * normalised + torch.sqrt(alpha) * eps) * scaler.iqr + scaler.median
    assert (found - expected).abs().max() < 1e-5
    kept = training(card, sentences, settings(exact=1.0), scaler, codebooks)
    assert torch.equal(kept.given(rows, np.random.default_rng(5)).double(), x)


def test_codes_give_sums_of_the_first_centroids(
    card: ModelCard, sentences: DecoderSentences, scaler: RobustScaler, codebooks: Codebooks
) -> None:
    made = training(card, sentences, settings(noise=False, codes=True), scaler, codebooks)
    assert sentences.codes is not None
    counts = np.tile([4, 5, 6], ROWS // 3)
    found = made._dequantised(np.arange(ROWS), counts)
    for row, count in enumerate(counts):
        assert torch.equal(found[row], codebooks.decode(sentences.codes[row : row + 1], int(count))[0])
    given = made.given(np.arange(ROWS), np.random.default_rng(3))
    choices = torch.stack([codebooks.decode(sentences.codes, count) for count in (4, 5, 6)])
    assert ((given - choices).abs().amax(dim=2).amin(dim=0) == 0).all()
    mixed = training(card, sentences, settings(codes=True), scaler, codebooks)
    dequantised = (mixed.given(np.arange(ROWS), np.random.default_rng(3)) - choices).abs().amax(dim=2).amin(dim=0) == 0
    assert 4 < dequantised.sum() < ROWS - 4


def test_prefixes_are_two_thirds_and_more_of_the_codebooks_in_three_of_ten_rows() -> None:
    rng = np.random.default_rng(0)
    found = prefix_lengths(rng.random(100_000), rng.random(100_000), 64, settings())
    counts = np.bincount(found, minlength=65)
    assert set(np.flatnonzero(counts)) == set(range(43, 65))  # ⌈2/3 · 64⌉ = 43
    assert abs(counts[64] / 100_000 - (0.7 + 0.3 / 22)) < 0.01
    assert np.ptp(counts[43:64]) < 0.2 * counts[43:64].mean()
    assert (prefix_lengths(rng.random(99), rng.random(99), 1, settings()) == 1).all()


def test_a_round_has_each_sentence_once_in_batches_within_the_tokens() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 500)
    asked = settings(batch_tokens=128)
    first, second = (_round(lengths, asked, number) for number in (0, 1))
    for batches in (first, second):
        assert sorted(np.concatenate(batches).tolist()) == list(range(500))
        assert all(len(rows) * lengths[rows].max() <= 128 for rows in batches)
    assert [rows.tolist() for rows in first] != [rows.tolist() for rows in second]
    (alone,) = _round(np.array([500]), asked, 0)
    assert alone.tolist() == [0]


def test_the_first_step_is_plain_cross_entropy_and_the_encoder_has_no_part_in_it(
    card: ModelCard, sentences: DecoderSentences, scaler: RobustScaler, codebooks: Codebooks
) -> None:
    asked = settings(steps=1, exact=1.0, batch_tokens=4096)
    made = training(card, sentences, asked, scaler, codebooks)
    made.run(InMemory(), lambda done, of: None)
    decoder, total, tokens = load_decoder(card), 0.0, 0
    (rows,) = _round(sentences.targets.lengths, asked, 0)
    for row in rows:
        ids = sentences.targets.ids[sentences.targets.offsets[row] : sentences.targets.offsets[row + 1]].tolist()
        embedding = torch.from_numpy(sentences.embeddings[row : row + 1]).float()
        logits = decoder(torch.tensor([[END, *ids[:-1]]]), embedding)[0, 1:]
        total += float(F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum"))
        tokens += len(ids) - 1
        assert PAD not in ids
    assert made.numbers()["loss"] == pytest.approx([total / tokens], rel=1e-5)
    assert made.at.tokens == tokens


def test_what_was_interrupted_ends_with_the_same_bits(
    card: ModelCard, sentences: DecoderSentences, scaler: RobustScaler, codebooks: Codebooks
) -> None:
    asked = settings(steps=12, codes=True)
    whole, first, second = (training(card, sentences, asked, scaler, codebooks) for _ in range(3))
    whole.run(InMemory(), lambda done, of: None)
    file = InMemory()
    first.run(file, lambda done, of: None, stop=7)
    assert file.data and second.resume(file.data) and second.at.step == 7
    assert not second.tensors().keys() - whole.tensors().keys()
    told: list[int] = []
    second.run(InMemory(), lambda done, of: told.append(done))
    assert told == [7, 8, 9, 10, 11, 12]  # first where it goes on
    ours, theirs = second.network.state_dict(), whole.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert second.numbers() == whole.numbers()
    other = training(card, sentences, settings(steps=13, codes=True), scaler, codebooks)
    other.made_of = "other rows"
    assert not other.resume(file.data) and other.at.step == 0
    with pytest.raises(ValueError, match="not a decoder-checkpoint"):
        other.resume(b"nothing")


def test_it_learns_and_the_file_is_one_that_a_card_of_another_layout_may_name(
    card: ModelCard, sentences: DecoderSentences, scaler: RobustScaler, codebooks: Codebooks, tmp_path: Path
) -> None:
    made = training(card, sentences, settings(steps=40, learning_rate=3e-3), scaler, codebooks)
    made.run(InMemory(), lambda done, of: None)
    told: list[tuple[int, int]] = []
    numbers = held_out_numbers(card, made.network, sentences, scaler, lambda done, of: told.append((done, of)))
    assert told == [(done, 2 * len(LEVELS)) for done in range(2 * len(LEVELS) + 1)]
    before, after = (np.asarray(numbers[name]) for name in ("nats_before", "nats"))
    assert len(before) == len(after) == len(LEVELS) and (after < before - 1).all()
    path = tmp_path / "decoder.safetensors"
    path.write_bytes(to_artifact(made.tensors(), {"numbers": {}}))
    assert card.layout == "m2m100"
    file = ModelFile.of(path, tmp_path).model_copy(update={"path": str(path), "layout": "native"})
    named = card.model_copy(update={"files": card.files.model_copy(update={"decoder": file})})
    ours, theirs = load_decoder(named).state_dict(), made.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name].half().float()) for name in theirs)


def test_what_does_not_fit_is_said(
    card: ModelCard, sentences: DecoderSentences, scaler: RobustScaler, codebooks: Codebooks
) -> None:
    narrow = DecoderSentences(sentences.embeddings[:, :8], sentences.targets, sentences.u, sentences.codes)
    with pytest.raises(ValueError, match=f"takes embeddings of {card.dim} dimensions, those of the corpus have 8"):
        training(card, narrow, settings(), scaler, codebooks)
    empty = DecoderSentences(sentences.embeddings[:0], Tokens.of([]), sentences.u[:0])
    with pytest.raises(ValueError, match="no sentence of a training document"):
        training(card, empty, settings(), scaler, codebooks)
    coded = settings(codes=True)
    with pytest.raises(ValueError, match=r"decoder\.codes needs codebooks"):
        FineTuning(card, sentences, coded, scaler=scaler, codebooks=None, made_of="", device="cpu")
    with pytest.raises(ValueError, match=r"decoder\.noise needs the robust scaler"):
        FineTuning(card, sentences, settings(), scaler=None, codebooks=None, made_of="", device="cpu")
    with pytest.raises(ValueError, match=r"the loss is nan at step 0; lower decoder\.learning_rate"):
        broken = training(card, sentences, settings(), scaler, codebooks)
        torch.nn.init.constant_(broken.network.norm.weight, torch.nan)
        broken.run(InMemory(), lambda done, of: None)
