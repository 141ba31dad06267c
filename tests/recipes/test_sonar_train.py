"""The training recipe: its data, its schedule, exact resuming, and that it learns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.muon import orthogonalised
from recipes.sonar.data import Batches, CorpusSource, TrainingSet, read, sentences, tokenise
from recipes.sonar.scores import held_out_scores
from recipes.sonar.tokenizer import train_tokenizer
from recipes.sonar.train import SonarRecipe, Trainer, export, networks, schedule
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_encoder
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


def test_a_share_nests(corpus: CorpusSource) -> None:
    whole, half, fifth = (
        {r["id"] for r in read([CorpusSource.parse(f"{corpus.path}@{share}")], held_out=False)}
        for share in (1, 0.5, 0.2)
    )
    assert fifth < half < whole


@pytest.mark.parametrize("text", ["nowhere.jsonl", "@0.5", "{path}@2", "{path}@x"])
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
    rates = [schedule(step, 1000, 100, 0.2) for step in range(1000)]
    assert rates[0] == 0.01
    assert rates[99:801] == [1.0] * 702
    assert rates[900] == 0.5
    assert rates[999] == pytest.approx(0.005)
    assert schedule(700, 2000, 100, 0.2) == rates[700]  # lengthening a run changes nothing before the decay


def test_muon_brings_singular_values_near_one() -> None:
    for shape in ((32, 96), (96, 32)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_resuming_is_exact(recipe: SonarRecipe, data: TrainingSet, tokenizer: SonarTokenizer, tmp_path: Path) -> None:
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()
    whole = Trainer(recipe, tokenizer.card, data, tmp_path / "whole")
    whole.run(9)
    first = Trainer(recipe, tokenizer.card, data, tmp_path / "halves")
    first.run(9, stop=4)
    second = Trainer(recipe, tokenizer.card, data, tmp_path / "halves")
    second.resume()
    assert second.progress.step == 4
    second.run(9)
    for name, value in whole.decoder.state_dict().items():
        assert torch.equal(second.decoder.state_dict()[name], value), name
    other = Trainer(SonarRecipe(corpora=("other",), name="test", dim=32), tokenizer.card, data, tmp_path / "halves")
    with pytest.raises(ValueError, match=r"corpora: .*take another --out"):
        other.resume()


def test_it_learns_and_what_it_exports_scores_the_same(
    recipe: SonarRecipe, data: TrainingSet, tokenizer: SonarTokenizer, corpus: CorpusSource, tmp_path: Path
) -> None:
    trainer = Trainer(recipe, tokenizer.card, data, tmp_path)
    before = held_out_scores(trainer.encoder, trainer.decoder, tokenizer, [corpus])
    trainer.run(120)
    after = held_out_scores(trainer.encoder, trainer.decoder, tokenizer, [corpus])
    assert after["loss"]["eng_Latn"] < before["loss"]["eng_Latn"] - 2
    (tmp_path / "test").mkdir()
    (tmp_path / "test/tokenizer.model").write_bytes(tokenizer.card.path("tokenizer").read_bytes())
    card = export(recipe, trainer.encoder, trainer.decoder, tmp_path, "Trained.", after)
    assert card.scores == after
    ids = torch.tensor(tokenizer.encode(["The cat sees a dog."], "eng_Latn"))
    with torch.inference_mode():
        assert torch.allclose(load_encoder(card)(ids), trainer.encoder(ids), atol=5e-3)
