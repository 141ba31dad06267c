"""SONAR-LLM in a training: exact resume, its pinned decoder, weights of Base-LCM, evaluation, generation, bad input."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.storage.store import Store
from pipeline.training.distributed import Processes
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.model_file import load_model
from pipeline.training.record import Pinned, PinnedDecoder, read_started
from pipeline.training.through_decoder import HERE, decoder_of
from pipeline.training.tokens import Tokeniser
from pipeline.training.worker import _Work
from stages.cards import CardError
from stages.fetch import sha256_of
from stages.lcm.batch import of_documents
from stages.lcm.model import Sampling
from stages.lcm.sonar_llm import SonarLlm
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer
from tests.support.cli import pipeline
from tests.support.trainings import folder, steps_of, take_back_to, trained

WORDS: dict[str, Any] = {
    "objective": "sonar-llm",
    "sonar_llm": {"targets_per_document": 1},
    "clip_norm": 1.0,
    "batch_concepts": 64,
    "validation_concepts": 16,
}


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    return training_corpus


def test_it_goes_on_bit_for_bit_with_the_decoder_that_it_began_with(corpus: Path) -> None:
    trained(corpus, "whole", **WORDS, steps=4)
    trained(corpus, "resumed", **WORDS, steps=4, checkpoint_every=1, keep_checkpoints=6)
    take_back_to(corpus, "resumed", 2)
    assert "resuming from step 2 of 4" in trained(corpus, "resumed", **WORDS, steps=4)
    assert steps_of(corpus, "resumed") == steps_of(corpus, "whole")
    weights = [(folder(corpus, name) / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert weights[0] == weights[1]
    started = read_started(Store(str(corpus.parent / "out")), "train/whole")
    card = TextCodec.of(Corpus(str(corpus.parent / "out")), "cpu").decoder_card
    assert started.pinned.decoder is not None and started.pinned.decoder.digest == card.decoder_digest
    assert started.pinned.card["sonar_llm"] == {"decoder": None, "targets_per_document": 1}
    other = started.pinned.model_copy(update={"decoder": PinnedDecoder(model="sonar-tiny", digest="0" * 16)})
    with pytest.raises(ConfigError, match=r"is not the decoder that the training began with \(.*00000000"):
        decoder_of(other)
    with pytest.raises(ConfigError, match=r"was begun .* model\.sonar_llm\.targets_per_document 1 → 2"):
        trained(corpus, "whole", **WORDS | {"sonar_llm": {"targets_per_document": 2}}, steps=4)


def test_batches_have_the_tokens_of_their_sentences(corpus: Path) -> None:
    trained(corpus, "tokens", **WORDS, steps=1)
    store = Store(str(corpus.parent / "out"))
    record = read_started(store, "train/tokens")
    loader = _Work(Console(), store, "train/tokens", record, Processes(0, 1, torch.device("cpu")))._loader("train", 0)
    tokenizer = SonarTokenizer(TextCodec.of(Corpus(str(corpus.parent / "out")), "cpu").decoder_card)
    batches, seen = iter(loader), []
    for _ in range(8):
        _, batch = next(batches)
        assert batch.tokens is not None and batch.texts is not None and len(batch.texts) == batch.sentences
        expected = [tokenizer.encode([text], "eng_Latn")[0] for text in batch.texts]
        assert [batch.tokens.ids[a:b].tolist() for a, b in pairwise(batch.tokens.offsets.tolist())] == expected
        seen += batch.texts
    batches.close()
    assert "End of text." in seen  # whose language is that of its embedding


def test_weights_of_base_lcm_begin_it_and_the_likelihood_falls(corpus: Path) -> None:
    trained(corpus, "mse", steps=1)
    words = WORDS | {"sonar_llm": {}, "warmup_steps": 0, "init_from": str(folder(corpus, "mse"))}
    trained(corpus, "words", **words, steps=12)
    model, _ = load_model(str(folder(corpus, "words")))
    assert isinstance(model, SonarLlm)
    trained(corpus, "back", init_from=str(folder(corpus, "words")), steps=1)
    done = pipeline(
        "evaluate", str(corpus.parent / "out"), "--model", "words", "--model", "mse", "--split", "validation",
        "--sentences", "30", "--metrics", "l2,nll,bpc",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    models = json.loads((folder(corpus, "words") / "evaluation/validation.json").read_text())["models"]
    assert models["words"]["metrics"]["nll"]["mean"] < models["mse"]["metrics"]["nll"]["mean"]


def test_texts_go_on_from_what_was_said(corpus: Path, tmp_path: Path) -> None:
    trained(corpus, "speaking", **WORDS, steps=2)
    url, prompt = str(corpus.parent / "out"), tmp_path / "prompt.txt"
    prompt.write_text("Open the file. Then close it.")
    arguments = ["generate", url, "--model", "speaking", "--prompt", str(prompt), "--sentences", "2"]
    said = {}
    for name, more in (("default", []), ("again", ["--reencode"]), ("predictions", ["--no-reencode"])):
        done = pipeline(*arguments, "--previous-cosine", "1", "--end-cosine", "1", *more)
        assert done.returncode == 0, done.stderr
        assert "2 sentences; stopped: limit" in done.stdout
        said[name] = done.stdout
    assert said["default"] == said["again"]
    codec = TextCodec.of(Corpus(url), "cpu")
    model, _ = load_model(str(folder(corpus, "speaking")))
    context = codec.encode(codec.segment(prompt.read_text(), "eng_Latn")[0], ["eng_Latn"] * 2).float()
    for _ in range(2):
        (text,) = codec.decode(model.next(of_documents([context]), Sampling()), ["eng_Latn"])
        context = torch.cat([context, codec.encode([text], ["eng_Latn"]).float()])
        assert re.sub(r"\s+", " ", text).strip() in re.sub(r"\s+", " ", said["default"])


def test_a_pinned_training_without_a_decoder_has_the_digest_that_it_always_had() -> None:
    fields: dict[str, Any] = {"card": {}, "settings": {}, "select": None, "indexes": [], "encoder": "e", "dim": 8}
    pinned = Pinned.model_construct(**fields, scaler={}, codebooks=None)
    assert pinned.digest == "129648f92d4dfe90a586f81e7f3b24f0"
    assert (
        Pinned.model_construct(**fields, scaler={}, codebooks=None, decoder=PinnedDecoder(model="m", digest="d")).digest
        != pinned.digest
    )


def test_what_does_not_fit_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"train\.sonar_llm\.decoder: sonar takes embeddings of 1024 dimensions, those"
    ):
        trained(corpus, "x", objective="sonar-llm", sonar_llm={"decoder": "sonar"})
    with pytest.raises(CardError, match="no model is called 'sonar-teeny'"):
        trained(corpus, "x", objective="sonar-llm", sonar_llm={"decoder": "sonar-teeny"})
    name = TextCodec.of(Corpus(str(corpus.parent / "out")), "cpu").decoding.model
    base = load_card(name)
    other = tmp_path / "other.yaml"
    tokenizer = tmp_path / "tokenizer.model"
    tokenizer.write_bytes(base.path("tokenizer").read_bytes() + b"\n")
    files = {"tokenizer": {"path": "tokenizer.model", "sha256": sha256_of(tokenizer)}}
    other.write_text(yaml.safe_dump({"base": name, "name": "other", "files": files}))
    with pytest.raises(ConfigError, match=r"the tokenizer of other differs from that of sonar-"):
        trained(corpus, "x", objective="sonar-llm", sonar_llm={"decoder": str(other)})
    with pytest.raises(ConfigError, match=r"train\.sonar_llm\.decoder: .*does not know the language 'tlh_Latn'"):
        Tokeniser(base, HERE)(["nuqneH"], ["tlh_Latn"])
    refused = pipeline("train", str(corpus), "--set", "train={model: lcm-quant-d-tiny, objective: sonar-llm}")
    assert refused.returncode == 2 and "belongs to the kind base" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["fsdp", "ddp"])
def test_two_processes_agree_with_one(corpus: Path, parallel: str) -> None:
    one, two = f"one-{parallel}", f"two-{parallel}"
    settings = WORDS | {"batch_concepts": 128, "steps": 3}
    trained(corpus, one, **settings)
    trained(corpus, two, **settings, processes=2, parallel=parallel)
    for mine, theirs in zip(steps_of(corpus, one), steps_of(corpus, two), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3)
