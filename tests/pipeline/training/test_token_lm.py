"""Token language models in a training: exact resume, headless, likelihoods beside other models, texts, bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.storage.store import Store
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.model_file import load_model
from pipeline.training.record import PinnedTokenizer, read_started
from pipeline.training.tokens import Tokeniser, tokenizer_card
from stages.fetch import sha256_of
from stages.lcm.token_lm import TokenLm
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer
from tests.support.cli import pipeline
from tests.support.trainings import folder, steps_of, take_back_to, trained, write_card

WORDS: dict[str, Any] = {"batch_concepts": 32, "micro_concepts": 16, "validation_concepts": 16, "steps": 4}
HEADLESS: dict[str, Any] = WORDS | {"token_lm": {"loss": "cwt", "head": 0.25}}


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    return training_corpus


@pytest.fixture(scope="module")
def model(corpus: Path) -> str:
    card = write_card(corpus.parent, "words", kind="token-lm", context=8, context_tokens=514, layers=1)
    return str(card)


def said(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("how", ["headless", "ngram"])
def test_it_goes_on_bit_for_bit(corpus: Path, model: str, how: str) -> None:
    """Headless: at the step with which cross-entropy begins."""
    settings = (HEADLESS if how == "headless" else WORDS | {"ngram": {"n": 3, "wdr": True}}) | {"model": model}
    trained(corpus, f"{how}-whole", **settings)
    trained(corpus, f"{how}-resumed", **settings, checkpoint_every=1, keep_checkpoints=6)
    take_back_to(corpus, f"{how}-resumed", 3)
    assert "resuming from step 3 of 4" in trained(corpus, f"{how}-resumed", **settings)
    assert steps_of(corpus, f"{how}-resumed") == steps_of(corpus, f"{how}-whole")
    weights = [(folder(corpus, f"{how}-{name}") / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert weights[0] == weights[1]
    pinned = read_started(Store(str(corpus.parent / "out")), f"train/{how}-whole").pinned
    card = TextCodec.of(Corpus(str(corpus.parent / "out")), "cpu").decoder_card
    assert pinned.tokenizer is not None and pinned.decoder is None
    assert (pinned.tokenizer.digest, pinned.tokenizer.vocabulary) == (card.tokenizer_digest, card.vocab_size)
    with pytest.raises(ConfigError, match=r"was begun .* model\.token_lm\.temperature 1\.0 → 0\.5"):
        trained(corpus, f"{how}-whole", **settings | {"token_lm": settings.get("token_lm", {}) | {"temperature": 0.5}})


def test_its_likelihood_stands_beside_that_of_other_models(corpus: Path, model: str) -> None:
    trained(corpus, "base", steps=1)
    trained(corpus, "words", **WORDS | {"steps": 8}, model=model)
    url = str(corpus.parent / "out")
    arguments = ["evaluate", url, "--split", "validation", "--sentences", "20"]
    done = pipeline(*arguments, "--model", "words", "--model", "base", "--metrics", "l2,nll,bpc")
    assert done.returncode == 0, done.stderr
    written = json.loads((folder(corpus, "words") / "evaluation/validation.json").read_text())["models"]
    words, base = written["words"]["metrics"], written["base"]["metrics"]
    assert words.keys() == {"nll", "bpc"} and base.keys() == {"l2", "nll", "bpc"}
    assert words["nll"]["sentences"] == base["nll"]["sentences"]
    ratio = base["nll"]["mean"] / base["bpc"]["mean"]
    assert words["nll"]["mean"] / words["bpc"]["mean"] == pytest.approx(ratio)  # of the same tokens and characters
    assert 2.0 < words["nll"]["mean"] < 5.5  # guessing among 109 gives 4.7
    alone = pipeline(*arguments, "--model", "words")
    assert alone.returncode == 0 and "bits/char" in alone.stdout
    lines = (folder(corpus, "words") / "evaluation/validation.csv").read_text().splitlines()
    assert lines[0].startswith("model,steps,l2,l2_error") and lines[1].startswith("words,8,,,")
    refused = pipeline(*arguments, "--model", "words", "--guidance", "2")
    assert refused.returncode == 2 and "models of the kind token-lm do not read it" in said(refused.stderr)


def test_it_writes_texts(corpus: Path, model: str, tmp_path: Path) -> None:
    trained(corpus, "writer", **WORDS | {"steps": 2, "ngram": {"n": 2}}, model=model)
    url, prompt = str(corpus.parent / "out"), tmp_path / "prompt.txt"
    prompt.write_text("Open the file. Then close it.")
    arguments = ["generate", url, "--model", "writer", "--sentences", "2"]
    done = pipeline(*arguments, "--prompt", str(prompt), "--to", str(tmp_path / "text.txt"))
    assert done.returncode == 0, done.stderr
    assert "2 sentences; stopped: limit" in done.stdout
    drawn = pipeline(*arguments, "--split", "validation", "--documents", "1", "--prompt-sentences", "1",
                     "--top-k", "5", "--temperature", "0.5", "--ensemble", "0.4")  # fmt: skip
    assert drawn.returncode == 0 and "continued by the model" in drawn.stdout, drawn.stderr
    for option, value in (("--end-cosine", "0.5"), ("--steps", "3")):
        refused = pipeline(*arguments, "--prompt", str(prompt), option, value)
        assert refused.returncode == 2 and f"{option}: models of the kind token-lm do not read it" in said(
            refused.stderr
        )


def test_weights_begin_another_loss(corpus: Path, model: str) -> None:
    trained(corpus, "first", **HEADLESS | {"steps": 1}, model=model)
    trained(corpus, "second", **WORDS | {"steps": 1}, model=model, init_from=str(folder(corpus, "first")))
    second, _ = load_model(str(folder(corpus, "second")))
    assert isinstance(second, TokenLm)
    with pytest.raises(ConfigError, match=r"is another model, of the card [a-z-]+: model\.ngram None → "):
        trained(corpus, "x", **WORDS | {"ngram": {}}, model=model, init_from=str(folder(corpus, "first")))


def test_the_sentence_that_closes_a_document_is_in_its_language() -> None:
    card = load_card("sonar-tiny")
    tokens = Tokeniser(card, "here", own=True)(["Bonjour.", "End of text."], ["fra_Latn", "eng_Latn"])
    expected = SonarTokenizer(card).encode(["Bonjour.", "End of text."], "fra_Latn")
    assert tokens.ids.tolist() == [token for one in expected for token in one]


def test_what_does_not_fit_is_refused(corpus: Path, model: str, tmp_path: Path) -> None:
    """All before anything is trained."""
    name = TextCodec.of(Corpus(str(corpus.parent / "out")), "cpu").decoding.model
    base = load_card(name)
    (tmp_path / "tokenizer.model").write_bytes(base.path("tokenizer").read_bytes() + b"\n")
    files = {"tokenizer": {"path": "tokenizer.model", "sha256": sha256_of(tmp_path / "tokenizer.model")}}
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({"base": name, "name": "other", "files": files}))
    with pytest.raises(ConfigError, match=r"train\.token_lm\.tokenizer: the tokenizer of other differs from that"):
        trained(corpus, "x", **WORDS | {"token_lm": {"tokenizer": str(other)}}, model=model)
    with pytest.raises(ConfigError, match=r"differs from the one that the training began with \(.*, not 00000000"):
        tokenizer_card(PinnedTokenizer(model=name, digest="0" * 16, vocabulary=109))
    short = write_card(corpus.parent, "short", kind="token-lm", context=8, context_tokens=100)
    with pytest.raises(ConfigError, match=r"reads 100 tokens at once \(context_tokens\); a sentence of .* up to 514"):
        trained(corpus, "x", **WORDS, model=str(short))
    sentences = next((corpus.parent / "out").glob("sentences/**/*.parquet"))
    away = tmp_path / "away.parquet"
    sentences.rename(away)
    try:
        with pytest.raises(CorpusError, match=r"1 of its \d+ files of sentences are gone"):
            trained(corpus, "x", **WORDS, model=model)
    finally:
        away.rename(sentences)
    assert not (folder(corpus, "x") / "checkpoints").exists()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("train.token_lm={loss: cosine}", "train.token_lm.loss"),
        ("train.token_lm={temperature: 0}", "train.token_lm.temperature is 0; allowed: greater than 0"),
        ("train.ngram={n: 1}", "train.ngram.n is 1; allowed: greater than or equal to 2"),
        ("train.ngram={alpha: 2}", "train.ngram.alpha is 2; allowed: less than or equal to 1"),
        ("train.sampling={ensemble: 2}", "train.sampling.ensemble is 2; allowed: less than or equal to 1"),
        ("train.sampling={ensemble: 0.5}", "train.sampling.ensemble: only models that are trained with n-gram heads"),
        ("train.objective=contrastive", "belongs to the kind base, not to token-lm"),
    ],
)
def test_settings_that_cannot_be(corpus: Path, chosen: str, message: str) -> None:
    refused = pipeline("train", str(corpus), "--set", "train={model: lcm-token-lm-tiny}", "--set", chosen)
    assert refused.returncode == 2
    assert message in said(refused.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["fsdp", "ddp"])
@pytest.mark.parametrize("how", ["plain", "ngram"])
def test_two_processes_agree_with_one(corpus: Path, model: str, parallel: str, how: str) -> None:
    """Not headless: its negatives are those of a micro-batch, whichever process has it, so it would agree as well."""
    settings = WORDS | {"model": model} | ({"ngram": {"n": 2, "wdr": True}} if how == "ngram" else {})
    one, two = f"one-{parallel}-{how}", f"two-{parallel}-{how}"
    trained(corpus, one, **settings)
    trained(corpus, two, **settings, processes=2, parallel=parallel)
    for mine, theirs in zip(steps_of(corpus, one), steps_of(corpus, two), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3)
    weights = [load_model(str(folder(corpus, name)))[0].state_dict() for name in (one, two)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-2, atol=1e-3)
