"""Token language models: losses against plain loops, pieces of long documents, headless, n-grams, bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stages.batching import Indices, Tokens
from stages.lcm import softmax
from stages.lcm.attention import Cache
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import LcmCard, load_lcm_card
from stages.lcm.model import Sampling
from stages.lcm.packing import Packing
from stages.lcm.softmax import softmax_losses
from stages.lcm.token_lm import TokenLm, headless_losses, streams_of, windows
from stages.lcm.token_writing import TextReader, continue_texts
from stages.sonar.ids import END
from tests.stages.lcm import models
from tests.stages.lcm.models import LANG, VOCAB

CONTEXT = 200


def batch(lengths: tuple[int, ...] = (3, 1, 6)) -> Batch:
    return models.batch_of_words(lengths)


def card(**changes: object) -> LcmCard:
    return models.card("token-lm", **({"context_tokens": CONTEXT} | changes))


def made(**changes: object) -> TokenLm:
    torch.manual_seed(0)
    model = build(card(**changes), models.scaler(), vocabulary=VOCAB)
    assert isinstance(model, TokenLm)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.train()


def sentences(one: Batch) -> list[list[int]]:
    assert one.tokens is not None
    return [one.tokens.ids[a:b].tolist() for a, b in zip(one.tokens.offsets, one.tokens.offsets[1:], strict=False)]


def documents(one: Batch) -> list[list[tuple[int, list[int]]]]:
    """Sentences with their numbers, by document."""
    all_of_them = iter(enumerate(sentences(one)))
    return [[next(all_of_them) for _ in range(length)] for length in one.lengths.tolist()]


def ids_of(document: list[tuple[int, list[int]]]) -> list[int]:
    return [token for _, sentence in document for token in sentence]


def read(model: TokenLm, one: Batch) -> list[Tensor]:
    """What the model says at each token of every document."""
    ids = [ids_of(document) for document in documents(one)]
    lengths = [len(some) for some in ids]
    found = model._read(np.array([token for some in ids for token in some]), np.array(lengths))
    return list(found.split(lengths))


Target = tuple[int, int, int, int]  # document, place in it, sentence, token


def targets_of(one: Batch) -> list[Target]:
    """Every token that is predicted."""
    found = []
    for number, document in enumerate(documents(one)):
        at = 0
        for sentence, ids in document:
            found += [(number, at + k, sentence, ids[k]) for k in range(1, len(ids)) if one.weights[sentence] > 0]
            at += len(ids)
    return found


def by_sentence(one: Batch, values: list[tuple[int, Tensor]]) -> Tensor:
    found = [torch.zeros((), dtype=torch.float64) for _ in range(one.sentences)]
    for number, value in values:
        found[number] = found[number] + value
    return torch.stack(found)


def assert_same(model: TokenLm, ours: Tensor, plain: Tensor, weights: Tensor) -> None:
    """Losses and gradients."""
    torch.testing.assert_close(ours.double(), plain, rtol=1e-6, atol=1e-7)
    names, parameters = zip(*model.named_parameters(), strict=True)
    mine = torch.autograd.grad((weights * ours).sum(), parameters)
    theirs = torch.autograd.grad((weights * plain).sum(), parameters)
    for name, one, other in zip(names, mine, theirs, strict=True):
        assert one.abs().sum() > 0, name
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_cross_entropy_is_that_of_plain_loops() -> None:
    model, one = made(), batch()
    hidden, table = read(model, one), model.embedding.weight.double()
    plain = [
        (sentence, -(table @ hidden[document][at - 1].double()).log_softmax(0)[token])
        for document, at, sentence, token in targets_of(one)
    ]
    ours = model.losses(one)
    assert_same(model, ours, by_sentence(one, plain), one.weights)
    torch.testing.assert_close(model.eval().losses(one), ours)
    assert ours[:2].tolist() == [0, 0] and (ours[2:] > 0).all()


def test_headless_losses_are_those_of_the_paper_s_code() -> None:
    """−log [exp(o·e(x)) / Σ exp(o·e(x_j))], j over all predicted tokens: their Fig. 10."""
    model, one = made(token_lm={"loss": "cwt", "temperature": 0.7, "head": 0.5}), batch()
    model.begin_step(1, 4)
    hidden, targets, table = read(model, one), targets_of(one), model.embedding.weight.double()
    plain = []
    for document, at, sentence, token in targets:
        scores = table @ hidden[document][at - 1].double() / 0.7
        everything = torch.stack([scores[other].exp() for *_, other in targets]).sum()
        plain.append((sentence, -(scores[token].exp() / everything).log()))
    assert_same(model, model.losses(one), by_sentence(one, plain), one.weights)
    before = model.losses(one)
    model.begin_step(2, 4)
    after = model.losses(one)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(model.eval().losses(one), after)
    other = made()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.losses(one), after)


def test_cross_entropy_begins_at_the_share_of_steps_that_is_written() -> None:
    model, one = made(token_lm={"loss": "cwt", "head": 0.07}), batch()
    model.begin_step(92, 100)
    before = model.losses(one)
    model.begin_step(93, 100)
    assert not torch.equal(model.losses(one), before)


@pytest.mark.parametrize("wdr", [False, True])
@pytest.mark.parametrize("n", [2, 4])
def test_n_gram_losses_are_those_of_plain_loops(wdr: bool, n: int) -> None:
    """½ L_0 + α / (2N − 2) Σ L_n, eq. 5, 6, 9 and 10."""
    model, one = made(ngram={"n": n, "wdr": wdr, "alpha": 0.8}), batch()
    assert model.ngram is not None
    hidden, table = read(model, one), model.embedding.weight
    ids = [ids_of(document) for document in documents(one)]
    plain = []
    for document, at, sentence, token in targets_of(one):
        for ahead in range(n):
            place = at - 1 - ahead  # h there predicts x_t at place + 1
            if place < 0:
                continue
            x = hidden[document][place]
            if ahead:
                x = model.ngram.heads[ahead - 1](x)
                for i in range(1, ahead + 1) if wdr else ():
                    x = x - comb(ahead, i) * (-1) ** i * table[ids[document][place + 1 + ahead - i]].detach()
            share = 0.8 / (2 * n - 2) if ahead else 0.5
            plain.append((sentence, -share * (table.double() @ x.double()).log_softmax(0)[token]))
    assert_same(model, model.losses(one), by_sentence(one, plain), one.weights)


@pytest.mark.parametrize("wdr", [False, True])
def test_the_ensemble_is_eq_13(wdr: bool) -> None:
    model, one = made(ngram={"n": 3, "wdr": wdr}).eval(), batch()
    assert model.ngram is not None
    hidden, table = read(model, one), model.embedding.weight
    ids = [ids_of(document) for document in documents(one)]
    plain, last = [], {}
    for number, words in enumerate(ids):
        for at in range(1, len(words) + 1):
            x = 0.6 * hidden[number][at - 1]
            for n in (1, 2):
                each = hidden[number][at - 1]
                if at - 1 - n >= 0:
                    each = model.ngram.heads[n - 1](hidden[number][at - 1 - n])
                    for i in range(1, n + 1) if wdr else ():
                        each = each - comb(n, i) * (-1) ** i * table[words[at - i]]
                x = x + 0.4 / 2 * each
            last[number, at] = table.double() @ x.double()
    for document, at, sentence, token in targets_of(one):
        plain.append((sentence, -last[document, at].log_softmax(0)[token]))
    ours = model.likelihoods(one, ensemble=0.4)
    torch.testing.assert_close(ours.double(), by_sentence(one, plain), rtol=1e-6, atol=1e-7)
    assert not torch.allclose(ours, model.likelihoods(one), rtol=1e-3)
    said = TextReader(model, ensemble=0.4).logits(dict(enumerate(ids)))
    expected = torch.stack([last[number, len(one_of_them)] for number, one_of_them in enumerate(ids)])
    torch.testing.assert_close(said.double(), expected, rtol=1e-5, atol=1e-5)


def test_scores_in_chunks_are_the_same_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(50, 6, requires_grad=True), torch.randn(300, 6, requires_grad=True)
    labels, upstream = torch.randint(300, (50,)), torch.rand(50)
    expected = torch.nn.functional.cross_entropy(queries @ keys.T, labels, reduction="none")
    wanted = torch.autograd.grad((upstream * expected).sum(), (queries, keys))
    monkeypatch.setattr(softmax, "SCORES", 1000)  # three rows at a time
    found = softmax_losses(queries, keys, labels)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(torch.autograd.grad((upstream * found).sum(), (queries, keys)), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        rough = softmax_losses(queries, keys, labels)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, expected, rtol=0.05, atol=0.1)
    assert not len(softmax_losses(queries[:0], keys, labels[:0]))


class _Largest(TorchDispatchMode):
    """Numbers in the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = call(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, made.numel() if isinstance(made, Tensor) else 0)
        return made


def test_no_tensor_has_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "SCORES", 1 << 14)
    model, one = made(), batch()
    words = len(targets_of(one))
    with torch.no_grad():
        model.embedding.weight = torch.nn.Parameter(torch.randn(4096, 16))
    with _Largest() as largest:
        model.losses(one).sum().backward()
    assert words * 4096 > 2 * largest.numbers and largest.numbers <= 16 * 4096  # the embedding and its gradient


def test_documents_do_not_look_into_each_other_nor_ahead() -> None:
    model, one = made(ngram={"n": 3, "wdr": True}).eval(), batch()
    alone = []
    for document in documents(one):
        words = Tokens.of([ids for _, ids in document])
        weights = one.weights[torch.tensor([number for number, _ in document])]
        lone = Batch(torch.zeros(len(document), 1), torch.tensor([len(document)]), weights, tokens=words)
        alone.append(model.likelihoods(lone, ensemble=0.3))
    torch.testing.assert_close(model.likelihoods(one, ensemble=0.3), torch.cat(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("before", [0, 10, 20])
def test_long_documents_are_cut_between_sentences(before: int) -> None:
    draw = np.random.default_rng(1)
    for _ in range(50):
        sizes = draw.integers(1, 20, draw.integers(1, 30)).tolist()
        pieces = windows(sizes, 40, before)
        assert [number for _, first, end in pieces for number in range(first, end)] == list(range(len(sizes)))
        for start, first, end in pieces:
            assert start <= first < end and sum(sizes[start:end]) <= 40 and sum(sizes[start:first]) <= before
            assert start == first or first > 0
    assert windows([5, 5, 5], 15, before) == [(0, 0, 3)]


def test_pieces_of_a_long_document_are_read_with_what_is_before_them() -> None:
    one = batch((6,))
    one = replace(one, tokens=Tokens.of([[LANG, 4 + k, 5, 6, END] for k in range(6)]), weights=torch.ones(6))
    assert one.tokens is not None
    learning = streams_of(one.tokens, one.lengths, one.weights.numpy() > 0, 15, 0)
    assert learning.lengths.tolist() == [15, 15] and learning.sentence.tolist() == np.repeat(range(6), 5).tolist()
    judging = streams_of(one.tokens, one.lengths, one.weights.numpy() > 0, 15, 7)
    assert judging.lengths.tolist() == [15, 15, 10] and judging.before.max() == 14
    assert judging.sentence.tolist() == np.repeat([0, 1, 2, 2, 3, 4, 4, 5], 5).tolist()
    for streams in (learning, judging):
        assert np.unique(streams.sentence[streams.scored], return_counts=True)[1].tolist() == [4] * 6
    model = made(context_tokens=15)
    torch.testing.assert_close(model.losses(one)[:3], model.eval().losses(one)[:3])
    with pytest.raises(ValueError, match="a sentence has 5 tokens, and the model reads 4 at once"):
        made(context_tokens=4).losses(one)


def test_it_learns() -> None:
    hows: tuple[dict[str, Any], ...] = (
        {},
        {"token_lm": {"loss": "cwt", "head": 0.25}},
        {"ngram": {"n": 3, "wdr": True}},
    )
    for how in hows:
        torch.manual_seed(0)
        model = build(card(**how), models.scaler(), vocabulary=VOCAB)
        one = batch()
        words = sum(len(sentence) - 1 for sentence in sentences(one)[2:])
        assert model.eval().losses(one).sum().item() / words == pytest.approx(math.log(VOCAB) + 0.5, abs=0.5)
        optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
        for step in range(30):
            model.begin_step(step, 30)
            loss = (one.weights * model.losses(one)).sum() / words
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert model.eval().losses(one).sum() / words < 0.8 * math.log(VOCAB)


def test_operations_count_what_is_compared_with() -> None:
    one = batch()
    plain, headless = made(), made(token_lm={"loss": "cwt"})
    words = len(targets_of(one))
    difference = headless.flops(one) - plain.flops(one)
    assert difference == pytest.approx(6 * 16 * words * (words - VOCAB))
    two = made(ngram={"n": 2})
    assert two.flops(one) - plain.flops(one) == pytest.approx(6 * words * (2 * 16**2 + 16 * VOCAB))


def test_parameters_are_counted() -> None:
    for changes in ({}, {"ngram": {"n": 3}}, {"head_dim": 12}):
        one = card(**changes)
        assert sum(p.numel() for p in made(**changes).parameters()) == one.parameters(vocabulary=VOCAB)
    smallama = load_lcm_card("lcm-token-lm-1.4b")
    assert smallama.parameters(vocabulary=2 * 32_000) == pytest.approx(1.4e9, rel=0.03)  # of Llama, both ends


def test_a_single_token_is_refused() -> None:
    assert headless_losses(torch.ones(1, 4), torch.ones(1, 4), 1.0).item() == 0  # nothing to learn from
    model = made(token_lm={"loss": "cwt"})
    one = replace(batch((1,)), tokens=Tokens.of([[LANG, END]]), weights=torch.ones(1))
    with pytest.raises(ValueError, match="a single token to predict"):
        model.check(one)
    made().check(one)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="has not been given the tokens of its sentences"):
        made().losses(models.batch())
    with pytest.raises(ValueError, match="is a token language model, which predicts no embeddings"):
        made().predict(batch(), Sampling())
    with pytest.raises(ValueError, match="give the size of their vocabulary"):
        build(card(), models.scaler())
    for changes, message in (
        ({"context_tokens": None}, "kind token-lm needs context_tokens"),
        ({"ngram": {"n": 1}}, "ngram"),
        ({"ngram": {"n": 9}}, "ngram"),
        ({"ngram": {"alpha": 0.0}}, "alpha"),
        ({"ngram": {}, "token_lm": {"loss": "cwt"}}, "ngram does not go with loss cwt"),
        ({"token_lm": {"temperature": 0.0}}, "temperature"),
        ({"token_lm": {"head": 1.5}}, "head"),
        ({"head_dim": 7}, "head_dim is 7; rotary position embeddings need an even number"),
        ({"objective": "contrastive"}, "objective contrastive belongs to the kind base, not to token-lm"),
        ({"diffusion": {"steps": 10}}, "kind token-lm has no diffusion"),
    ):
        with pytest.raises(ValueError, match=message):
            card(**changes)
    with pytest.raises(ValueError, match="kind base has no context_tokens, token_lm"):
        models.card("base", context_tokens=10, token_lm={})
    with pytest.raises(ValueError, match="kind quant-d has no head_dim"):
        models.card("quant-d", head_dim=8)
    with pytest.raises(ValueError, match="kind two-tower has no rope_base"):
        models.card("two-tower", rope_base=5e5)
    with pytest.raises(ValueError, match="ngram does not go with objective contrastive"):
        models.card("base", objective="contrastive", ngram={})


@pytest.mark.parametrize("ensemble", [0.0, 0.4])
def test_texts_that_are_read_on_are_read_alike(ensemble: float) -> None:
    """Token by token, in turn, several at once, with another beginning, and beyond the room of the cache."""
    model, one = made(ngram={"n": 3, "wdr": True}).eval(), batch((3, 2, 6))
    ids = [ids_of(document) for document in documents(one)]
    reader = TextReader(model, ensemble)
    ends = [[4, 0, 9], [5, 0, 9], [5, 3, 10], [7, 4, 10], [7, 4, 30], *([8 + n, 5 + n, 31 + n] for n in range(12))]
    seen = [0, 0, 0]
    for step in ends:
        texts = {number: ids[number][:end] for number, end in enumerate(step) if end > seen[number]}
        seen = step
        found = reader.logits(texts)
        for number, said in zip(texts, found, strict=True):
            alone = TextReader(model, ensemble).logits({7: texts[number]})[0]
            torch.testing.assert_close(said, alone, rtol=1e-5, atol=1e-5)
    other = reader.logits({0: [LANG, *ids[0][2:9]], 2: ids[2]})
    torch.testing.assert_close(other[1], TextReader(model, ensemble).logits({0: ids[2]})[0], rtol=1e-5, atol=1e-5)
    plain = model.next_logits(read(model, one)[2], np.array(ids[2]), np.arange(len(ids[2])), ensemble)[-1]
    torch.testing.assert_close(other[1], plain, rtol=1e-5, atol=1e-5)


def test_the_cache_has_room_for_two_contexts() -> None:
    model = made(context_tokens=12).eval()
    reader = TextReader(model)
    text = [LANG, *range(4, 9)]
    for number in range(7):  # in turn, so that each leaves a gap in the row of the other
        reader.logits({0: text, 1: text} if not number else {number % 2: [*text, *range(4, 4 + (number + 1) // 2)]})
        assert reader._seen.shape[1] <= 24
    last = reader.logits({0: text, 1: [*text, 4, 5, 6, 7]})
    torch.testing.assert_close(last[0], TextReader(model).logits({0: text})[0], rtol=1e-5, atol=1e-5)


def test_each_token_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made().eval()
    read_tokens: list[int] = []
    step = TokenLm.read_on

    def counted(self: TokenLm, ids: Indices, packing: Packing, caches: list[Cache]) -> Tensor:
        read_tokens.append(len(ids))
        return step(self, ids, packing, caches)

    monkeypatch.setattr(TokenLm, "read_on", counted)
    allowed = torch.zeros(VOCAB, dtype=torch.bool)
    allowed[4:LANG] = True
    prompts = [[[LANG, 5, 6, END]], [[LANG, 7, END], [LANG, 8, 9, END]]]
    written = continue_texts(
        model, prompts, [LANG, LANG], Sampling(top_k=1), end=[4, END], allowed=allowed, max_sentences=3, max_tokens=5
    )
    of_prompts, of_texts = 4 + 7, sum(len(one) + 1 for text in written for one in text.sentences)
    ended = sum(3 for text in written if text.stopped == "end of text")
    assert all(text.sentences for text in written) and of_texts >= 8
    assert sum(read_tokens) == of_prompts + of_texts + ended - 2  # nothing follows the last token of each
