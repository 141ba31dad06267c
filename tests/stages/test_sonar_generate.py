"""Batched generation against the plainest way to do the same: one sentence, one hypothesis, no cache at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.sonar import generate
from stages.sonar.generate import Hypothesis, beam_search, greedy
from stages.sonar.greedy import OpenRows
from stages.sonar.ids import END, PAD
from stages.sonar.networks import DecoderState, SonarTextDecoder
from tests.stages.small_decoder import (
    PREFIX,
    VOCAB,
    batch,
    decoder,
    log_probabilities,
    plain_greedy,
    rows,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums of several threads differ in the last bit with the size of a batch; an earlier test may have set some."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain_beam_search(
    network: SonarTextDecoder, number: int, limit: int, beam: int, length_penalty: float
) -> list[Hypothesis]:
    """The official algorithm: one list of hypotheses, topk over all their continuations."""
    open_ones = [(list(PREFIX), float(log_probabilities(network, list(PREFIX), number)[0, PREFIX[1]]))]
    found: list[Hypothesis] = []
    for step in range(limit):
        totals = torch.stack([log_probabilities(network, ids, number)[-1] + score for ids, score in open_ones])
        if step == limit - 1:
            totals[:, [token for token in range(VOCAB) if token != END]] = -torch.inf
        totals[:, PAD] = -torch.inf
        best = totals.flatten().topk(2 * beam)
        candidates = [
            (open_ones[at // VOCAB][0], at % VOCAB, score)
            for score, at in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            if score > -torch.inf
        ]
        for ids, token, score in candidates[:beam]:
            if token == END and len(found) < beam:
                normalised = score / (len(ids)) ** length_penalty
                found.append(Hypothesis([*ids[len(PREFIX) :], END], normalised))
        if len(found) == beam:
            break
        open_ones = [([*ids, token], score) for ids, token, score in candidates if token != END][:beam]
    return sorted(found, key=lambda one: -one.score)


def assert_same(ours: list[Hypothesis], plain: list[Hypothesis]) -> None:
    assert [one.ids for one in ours] == [one.ids for one in plain]
    assert [one.score for one in ours] == pytest.approx([one.score for one in plain], abs=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 5), rows)
def test_greedy_is_the_plain_one(device: str, seed: int, chosen: list[tuple[int, int]]) -> None:
    ours = greedy(decoder(seed, device=device), *batch(chosen, device))
    assert ours == [plain_greedy(decoder(seed), number, limit) for number, limit in chosen]


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), rows, st.integers(1, 10), st.sampled_from([0.0, 0.7, 1.0, 2.0]))
def test_beam_search_is_the_plain_one(
    device: str, seed: int, chosen: list[tuple[int, int]], beam: int, length_penalty: float
) -> None:
    network = decoder(seed, device=device)
    found = beam_search(network, *batch(chosen, device), beam=beam, length_penalty=length_penalty)
    for ours, (number, limit) in zip(found, chosen, strict=True):
        assert_same(ours, plain_beam_search(decoder(seed), number, limit, beam, length_penalty))


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 5), rows, st.integers(2, 10))
def test_ties_are_broken_as_one_sentence_alone_breaks_them(seed: int, chosen: list[tuple[int, int]], beam: int) -> None:
    network = decoder(seed, tied=True)
    found = beam_search(network, *batch(chosen), beam=beam)
    for ours, (number, limit) in zip(found, chosen, strict=True):
        plain = plain_beam_search(network, number, limit, beam, 1.0)
        assert [one.score for one in ours] == pytest.approx([one.score for one in plain], abs=1e-5)
        twins = [[token // 2 if token > 5 else token for token in one.ids] for one in ours]
        assert sorted(twins) == sorted([token // 2 if token > 5 else token for token in one.ids] for one in plain)
        alone = beam_search(network, *batch([(number, limit)]), beam=beam)
        assert alone == [ours]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 5), rows, st.integers(1, 10))
def test_a_row_of_a_beam_search_does_not_depend_on_the_others(
    seed: int, chosen: list[tuple[int, int]], beam: int
) -> None:
    together = beam_search(decoder(seed), *batch(chosen), beam=beam)
    alone = [beam_search(decoder(seed), *batch([row]), beam=beam)[0] for row in chosen]
    assert together == alone  # ids, and scores to the last bit
    backwards = beam_search(decoder(seed), *batch(chosen[::-1]), beam=beam)
    assert together == backwards[::-1]


def test_sentences_end_at_different_steps() -> None:
    """What the properties above are about happens in these networks."""
    chosen = [(number, 9) for number in range(20)]
    greedy_lengths = {len(ids) for seed in range(6) for ids in greedy(decoder(seed), *batch(chosen))}
    assert len(greedy_lengths) >= 5
    found = [row for seed in range(6) for row in beam_search(decoder(seed), *batch(chosen), beam=4)]
    assert len({max(len(one.ids) for one in row) for row in found}) >= 4
    assert any(
        row[0].ids != plain_greedy(decoder(0), number, 9) for row, (number, _) in zip(found, chosen, strict=False)
    )
    tied = [one.score for row in beam_search(decoder(0, tied=True), *batch(chosen), beam=4) for one in row]
    assert len(set(tied)) < len(tied)


@pytest.mark.parametrize("beam", [0, 3])
def test_finished_sentences_leave_the_batch(monkeypatch: pytest.MonkeyPatch, beam: int) -> None:
    """beam 0 is greedy. Rows of each step: six of eight sentences have a limit of two tokens."""
    stepped: list[int] = []
    step = SonarTextDecoder.step

    def counting(
        self: SonarTextDecoder, ids: torch.Tensor, state: DecoderState, seen: int | None = None
    ) -> torch.Tensor:
        stepped.append(len(ids))
        return step(self, ids, state, seen)

    monkeypatch.setattr(SonarTextDecoder, "step", counting)
    network = decoder(0)
    numbers = [number for number in range(40) if END not in plain_greedy(network, number, 5)[:-1]][:8]
    chosen = [(number, 2 if place < 6 else 5) for place, number in enumerate(numbers)]
    if beam:
        beam_search(network, *batch(chosen), beam=beam)
        assert stepped[:3] == [8, 8, 8 * beam] and max(stepped[3:]) <= 2 * beam
    else:
        greedy(network, *batch(chosen))
        assert stepped[:2] == [8, 8] and stepped[2] >= 7 and max(stepped[3:]) == 2


@pytest.mark.parametrize("logits", [1, 3 * VOCAB, 1 << 27])
def test_how_many_logits_exist_at_once_changes_no_bit(monkeypatch: pytest.MonkeyPatch, logits: int) -> None:
    chosen = [(number, 1 + number % 9) for number in range(12)]
    expected = [beam_search(decoder(1), *batch([row]), beam=3)[0] for row in chosen]
    monkeypatch.setattr(generate, "LOGITS", logits)
    assert beam_search(decoder(1), *batch(chosen), beam=3) == expected


@pytest.mark.parametrize("beam", [0, 3])
def test_learning_late_that_rows_are_finished_changes_nothing(monkeypatch: pytest.MonkeyPatch, beam: int) -> None:
    """On a GPU the count of open rows is that of the step before; here it is made so."""
    on_time = OpenRows.count
    late: list[int] = []

    def count(self: OpenRows, opened: torch.Tensor) -> int:
        before = self.__dict__.get("before", len(opened))
        self.__dict__["before"] = on_time(self, opened)
        late.append(before - self.__dict__["before"])
        return int(before)

    for seed in range(4):
        chosen = [(number, 1 + number % 9) for number in range(24)]

        def run(seed: int = seed, chosen: list[tuple[int, int]] = chosen) -> list[list[int]] | list[list[Hypothesis]]:
            if beam:
                return beam_search(decoder(seed), *batch(chosen), beam=beam)
            return greedy(decoder(seed), *batch(chosen))

        expected = run()
        with monkeypatch.context() as patch:
            patch.setattr(OpenRows, "count", count)
            assert run() == expected
    assert any(late)


def test_a_decoder_that_gives_no_numbers_gives_no_hypothesis() -> None:
    embeddings, prefixes, limits = batch([(0, 9), (1, 9), (2, 9)])
    expected = beam_search(decoder(0), embeddings, prefixes, limits, beam=3)
    embeddings[1] = torch.nan
    assert beam_search(decoder(0), embeddings, prefixes, limits, beam=3) == [expected[0], [], expected[2]]


@pytest.mark.parametrize("beam", [0, VOCAB // 2 + 1])
def test_a_beam_that_the_vocabulary_does_not_hold_is_an_error(beam: int) -> None:
    with pytest.raises(ValueError, match=f"beam is {beam}; a vocabulary of {VOCAB} tokens allows 1 to {VOCAB // 2}"):
        beam_search(decoder(0), *batch([(0, 1)]), beam=beam)


def test_limits_and_empty_batches() -> None:
    embeddings, prefixes, _ = batch([(0, 1)])
    with pytest.raises(ValueError, match="holds 0"):
        beam_search(decoder(0), embeddings, prefixes, torch.tensor([0]))
    assert beam_search(decoder(0), embeddings[:0], prefixes[:0], torch.zeros(0, dtype=torch.int64)) == []
