"""The training recipe: its data, its schedule, exact resuming, and that it learns."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.muon import orthogonalised
from recipes.sonar.average import average
from recipes.sonar.batches import Batches, TokenSequences, TrainingSet
from recipes.sonar.data import CorpusSource, corpus_weights, is_held_out, read, sentences, tokenise
from recipes.sonar.export import export, loaded, networks
from recipes.sonar.recipe import SonarRecipe, TrainingBudget, continued, schedule
from recipes.sonar.scores import held_out_scores
from recipes.sonar.train import train_tokenizer
from recipes.sonar.trainer import Trainer
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_encoder
from stages.sonar.cross_entropy import projected_cross_entropy
from stages.sonar.tokenizer import END, PAD, SonarTokenizer

LANGUAGES = ("eng_Latn", "deu_Latn", "fra_Latn", "rus_Cyrl", "zho_Hans")
WORDS = ["cat", "dog", "river", "house", "sees", "eats", "green", "small", "the", "a", "and", "because", "when", "big"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusSource:
    """Documents in two pieces each, and aligned records in two languages."""
    rng = np.random.default_rng(0)

    def text(count: int) -> str:
        return " ".join(" ".join(rng.choice(WORDS, 5)).capitalize() + "." for _ in range(count))

    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for i in range(300):
            record: dict[str, str] = {"id": f"book-{i // 2}-{i:04}", "lang": "eng_Latn", "text": text(4)}
            if i % 3 == 0:
                record = {"id": f"pair{i}", "eng_Latn": text(1), "deu_Latn": text(1).upper()}
            lines.write(json.dumps(record) + "\n")
    return CorpusSource(path)


@pytest.fixture(scope="module")
def recipe() -> SonarRecipe:
    return SonarRecipe(
        corpora=("test",),
        name="test",
        dim=32,
        heads=2,
        ffn_dim=64,
        pieces=300,
        batch_tokens=256,
        curriculum=((24, 2),),
        warmup=5,
    )


@pytest.fixture(scope="module")
def tokenizer(corpus: CorpusSource, recipe: SonarRecipe, tmp_path_factory: pytest.TempPathFactory) -> SonarTokenizer:
    out = tmp_path_factory.mktemp("tokenizer")
    (out / "test").mkdir()
    train_tokenizer([corpus], LANGUAGES, out / "test/tokenizer.model", pieces=recipe.pieces, seed=1)
    size = 1 + len(LANGUAGES) + 300
    export(recipe, *networks(recipe, size), out, "", {})
    return SonarTokenizer(load_card(str(out / "test.yaml")))


@pytest.fixture(scope="module")
def data(corpus: CorpusSource, tokenizer: SonarTokenizer) -> TrainingSet:
    return tokenise([corpus], tokenizer)


def test_matrices_of_a_stack_are_orthogonalised_each_for_itself() -> None:
    stack = torch.randn((3, 20, 12), generator=torch.Generator().manual_seed(1))
    each = torch.stack([orthogonalised(matrix) for matrix in stack])
    assert torch.allclose(orthogonalised(stack), each, atol=1e-5)


def test_sentences_of_several_scripts() -> None:
    text = 'He said: "I am." Then he left... v1.2 is out\nNew line! 今天很好。“是吗？”他问。 Привет мир! Как дела?'
    assert list(sentences(text)) == [
        'He said: "I am."',
        "Then he left... v1.2 is out",
        "New line!",
        "今天很好。",
        "“是吗？”",
        "他问。",
        "Привет мир!",
        "Как дела?",
    ]


@pytest.mark.parametrize("text", ["word " * 300, "字" * 500, "a" * 401 + " b", "", " \n "])
def test_sentences_are_of_1_to_200_characters_and_lose_nothing(text: str) -> None:
    pieces = list(sentences(text))
    assert all(0 < len(piece) <= 200 for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_a_book_is_on_one_side_only(tmp_path: Path) -> None:
    records = [{"id": f"book-{i // 10}-{i:04}", "lang": "eng_Latn", "text": "x"} for i in range(4000)]
    (tmp_path / "books.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    trained, held_out = (list(read([CorpusSource(tmp_path / "books.jsonl")], side)) for side in (False, True))
    assert len(trained) + len(held_out) == 4000
    assert 20 < len(held_out) < 200
    assert not {r["id"].rsplit("-", 1)[0] for r in trained} & {r["id"].rsplit("-", 1)[0] for r in held_out}


def test_layers_that_are_added_change_nothing_at_first(recipe: SonarRecipe, tokenizer: SonarTokenizer) -> None:
    grown = continued(recipe, tokenizer.card, encoder_layers=3, decoder_layers=4)
    ids = torch.tensor(tokenizer.encode(["The cat sees a dog."], "eng_Latn"))
    encoder, decoder = loaded(tokenizer.card)
    larger = loaded(tokenizer.card, grown)
    assert [len(network.layers) for network in (encoder, decoder, *larger)] == [2, 2, 3, 4]
    embedding = encoder(ids)
    assert torch.equal(larger[0](ids), embedding) and torch.equal(larger[1](ids, embedding), decoder(ids, embedding))
    with pytest.raises(ValueError, match="--decoder-layers 1: test has 2"):
        continued(recipe, tokenizer.card, decoder_layers=1)


def test_a_share_nests(corpus: CorpusSource) -> None:
    whole, half, fifth = (
        {r["id"] for r in read([CorpusSource.parse(f"{corpus.path}@{share}")], held_out=False)}
        for share in (1, 0.5, 0.2)
    )
    assert fifth < half < whole


@pytest.mark.parametrize(
    "text", ["nowhere.jsonl", "@0.5", "{path}@2", "{path}@x", "{path}@1:0", "{path}@1:x", "{path}@1:inf"]
)
def test_a_corpus_that_cannot_be_read_is_an_error(corpus: CorpusSource, text: str) -> None:
    with pytest.raises(ValueError, match="FILE@SHARE"):
        CorpusSource.parse(text.format(path=corpus.path))


def test_a_record_without_text_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(
        '{"id": "1", "lang": "eng_Latn", "text": "x"}\n{"id": "2", "lang": "eng_Latn"}\n'
    )
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2.*id, lang and text"):
        list(read([CorpusSource(tmp_path / "bad.jsonl")], held_out=False)) + list(
            read([CorpusSource(tmp_path / "bad.jsonl")], True)
        )


def test_documents_of_a_title_are_on_one_side() -> None:
    """A novel whose documents count as pages of their own would be on both sides."""
    for title in ("Emma", "Effi Briest", "Germinal"):
        sides = {
            is_held_out({"id": f"novel-{i}-x", "lang": "eng_Latn", "title": title, "text": ""}) for i in range(200)
        }
        assert len(sides) == 1
    share = np.mean([is_held_out({"id": "1", "lang": "eng_Latn", "title": str(i), "text": ""}) for i in range(2000)])
    assert 0.04 < share < 0.08


def several(lengths: list[list[int]]) -> TrainingSet:
    """Sequences that stand alone, of each source so many tokens long."""
    flat = [length for source in lengths for length in source]
    owner = [number for number, source in enumerate(lengths) for _ in source]
    tokens = TokenSequences.pack([[4] * length for length in flat])
    return TrainingSet(tokens, np.arange(len(flat)), np.array(owner, np.int64), np.empty((0, 5), np.int64))


def test_weights_say_how_many_sentences_of_each_corpus_are_drawn() -> None:
    batches = Batches(several([[5] * 500, [5] * 20]), seed=1, aligned_share=0.0, weights=[3, 1], round_size=80)
    drawn = [np.concatenate(batches.plan(number, longest=512, budget=64))[:, 0] for number in range(2)]
    for each in drawn:
        assert (each < 500).sum() == 60
        assert (each >= 500).sum() == 20
    assert sorted(drawn[0][drawn[0] >= 500]) == list(range(500, 520))  # each once before any twice
    assert not set(drawn[0][drawn[0] < 500]) & set(drawn[1][drawn[1] < 500])


def test_short_sentences_are_thinned_in_proportion_to_their_length() -> None:
    batches = Batches(several([[4] * 1000 + [16] * 1000]), seed=1, aligned_share=0.0, thinned=16)
    (pool,) = batches.pools
    assert 200 < (pool < 1000).sum() < 300
    assert (pool >= 1000).sum() == 1000


def test_weights_are_given_to_every_corpus_of_documents_or_to_none(corpus: CorpusSource) -> None:
    data = several([[5], [5]])
    plain, heavy = CorpusSource(corpus.path), CorpusSource(corpus.path, 0.5, 2.0)
    assert corpus_weights([plain, plain], data) is None
    assert corpus_weights([heavy, heavy, plain], data) == [2.0, 2.0, 0.0]  # the last holds aligned records
    with pytest.raises(ValueError, match=r"corpus\.jsonl\.gz@1: others have a :WEIGHT"):
        corpus_weights([plain, heavy], data)
    with pytest.raises(ValueError, match=r"@0\.5:2: it holds aligned records only.*--aligned-share"):
        corpus_weights([plain, plain, heavy], data)


def test_tokens_of_other_corpora_are_not_taken(data: TrainingSet, tmp_path: Path) -> None:
    data.save(tmp_path / "tokens.npz", "[books]")
    assert TrainingSet.load(tmp_path / "tokens.npz", "[books]").tokens.starts[-1] == data.tokens.starts[-1]
    with pytest.raises(ValueError, match=r"made of \[books\], not of \[novels\]; delete it"):
        TrainingSet.load(tmp_path / "tokens.npz", "[novels]")


def test_the_loss_and_its_gradients_are_those_of_torch() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(1100, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    target = torch.randint(30, (1100,))
    mine = projected_cross_entropy(hidden, weight, target)
    theirs = torch.nn.functional.cross_entropy(hidden @ weight.T, target)
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-5)
    gradients = (torch.autograd.grad(3 * loss, [hidden, weight]) for loss in (mine, theirs))
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    rough = projected_cross_entropy(hidden, weight, target, torch.bfloat16)
    assert rough.item() == pytest.approx(theirs.item(), rel=0.01)


def test_batches_hold_every_example_within_the_budget(data: TrainingSet) -> None:
    batches = Batches(data, seed=3, aligned_share=0.0, round_size=len(data.alone))
    plan = batches.plan(0, longest=512, budget=256)
    assert sorted(int(i) for pairs in plan for i in pairs[:, 0]) == sorted(data.alone.tolist())
    assert all(batches.batch(pairs).source.numel() <= 256 for pairs in plan)
    assert all((a == b).all() for a, b in zip(plan, batches.plan(0, longest=512, budget=256), strict=True))
    assert any(
        len(a) != len(b) or (a != b).any() for a, b in zip(plan, batches.plan(1, longest=512, budget=256), strict=False)
    )


def test_translations_pair_languages_of_one_record(data: TrainingSet, tokenizer: SonarTokenizer) -> None:
    batches = Batches(data, seed=3, aligned_share=1.0, round_size=400)
    crossed = 0
    for pairs in batches.plan(0, longest=512, budget=512):
        batch = batches.batch(pairs)
        for source, target, given in zip(batch.source, batch.target_out, batch.target_in, strict=True):
            kept = target[target != PAD]
            assert given[0] == END
            assert torch.equal(given[1 : len(kept)], kept[:-1])
            crossed += int(source[0] != target[0])
    assert 60 < crossed < 140  # half of 400 choose a target among 2 languages


def test_the_schedule_warms_up_and_decays_over_the_last_fifth() -> None:
    rates = [schedule(step, 1 - step / 1000, 100, 0.2) for step in range(1000)]
    assert rates[0] == 0.01
    assert rates[99:801] == pytest.approx([1.0] * 702)
    assert rates[900] == pytest.approx(0.5)
    assert rates[999] == pytest.approx(0.005)
    assert schedule(700, 1 - 700 / 2000, 100, 0.2) == rates[700]  # lengthening a run changes nothing before the decay


def test_muon_brings_singular_values_near_one() -> None:
    for shape in ((32, 96), (96, 32)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_resuming_is_exact(recipe: SonarRecipe, data: TrainingSet, tokenizer: SonarTokenizer, tmp_path: Path) -> None:
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()
    whole = Trainer(recipe, tokenizer.card, data, tmp_path / "whole")
    whole.run(TrainingBudget(9))
    first = Trainer(recipe, tokenizer.card, data, tmp_path / "halves")
    first.run(TrainingBudget(9), stop=4)
    second = Trainer(recipe, tokenizer.card, data, tmp_path / "halves")
    second.resume()
    assert second.progress.step == 4
    second.run(TrainingBudget(9))
    for name, value in whole.decoder.state_dict().items():
        assert torch.equal(second.decoder.state_dict()[name], value), name
    other = Trainer(SonarRecipe(corpora=("other",), name="test", dim=32), tokenizer.card, data, tmp_path / "halves")
    with pytest.raises(ValueError, match=r"corpora: .*take another --out"):
        other.resume()


def test_a_training_of_minutes_ends_with_its_time(
    recipe: SonarRecipe, data: TrainingSet, tokenizer: SonarTokenizer, tmp_path: Path
) -> None:
    trainer = Trainer(recipe, tokenizer.card, data, tmp_path)
    trainer.run(TrainingBudget(minutes=0.005))
    assert trainer.progress.step >= 1
    assert trainer.progress.seconds >= 0.3
    again = Trainer(recipe, tokenizer.card, data, tmp_path)
    again.resume()
    again.run(TrainingBudget(minutes=0.005))  # its time is over
    assert again.progress.step == trainer.progress.step


def test_a_model_is_trained_further(
    recipe: SonarRecipe, data: TrainingSet, tokenizer: SonarTokenizer, tmp_path: Path
) -> None:
    """It starts with the card's weights, in bfloat16 too, and between both lies their mean."""
    (tmp_path / "test").mkdir()
    (tmp_path / "test/tokenizer.model").write_bytes(tokenizer.card.path("tokenizer").read_bytes())
    further = continued(replace(recipe, precision="bf16", learning_rate=1e-3), tokenizer.card)
    assert further.start.startswith("test (encoder ")
    trainer = Trainer(further, tokenizer.card, data, tmp_path)
    first, _ = loaded(tokenizer.card)
    assert torch.equal(trainer.encoder.state_dict()["norm.weight"], first.state_dict()["norm.weight"])
    trainer.run(TrainingBudget(steps=2))
    assert trainer.encoder.embedding.weight is trainer.decoder.embedding.weight
    card = export(further, trainer.encoder, trainer.decoder, tmp_path, "", {})
    assert "further from test (encoder " in card.description
    mean, _ = average([tokenizer.card, card], [1, 3])
    matrix = "layers.0.ffn.inner_proj.weight"
    old, new, both = (network.state_dict()[matrix] for network in (first, loaded(card)[0], mean))
    assert not torch.equal(old, new)
    assert torch.allclose(both, old / 4 + 3 * new / 4, atol=1e-6)
    with pytest.raises(ValueError, match="sonar-tiny has tokenizer_digest"):
        average([tokenizer.card, load_card("sonar-tiny")], [1, 1])


def test_it_learns_and_what_it_exports_scores_the_same(
    recipe: SonarRecipe, data: TrainingSet, tokenizer: SonarTokenizer, corpus: CorpusSource, tmp_path: Path
) -> None:
    trainer = Trainer(recipe, tokenizer.card, data, tmp_path)
    before = held_out_scores(trainer.encoder, trainer.decoder, tokenizer, [corpus])
    trainer.run(TrainingBudget(120))
    after = held_out_scores(trainer.encoder, trainer.decoder, tokenizer, [corpus])
    assert after["loss corpus"]["eng_Latn"] < before["loss corpus"]["eng_Latn"] - 2
    assert after["sentences corpus"]["eng_Latn"] > 0
    (tmp_path / "test").mkdir()
    (tmp_path / "test/tokenizer.model").write_bytes(tokenizer.card.path("tokenizer").read_bytes())
    card = export(recipe, trainer.encoder, trainer.decoder, tmp_path, "Trained.", after)
    assert card.scores == after
    ids = torch.tensor(tokenizer.encode(["The cat sees a dog."], "eng_Latn"))
    with torch.inference_mode():
        assert torch.allclose(load_encoder(card)(ids), trainer.encoder(ids), atol=5e-3)
