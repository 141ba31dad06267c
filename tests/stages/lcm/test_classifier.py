"""Classifiers of sequences: against one pass for each text, by networks with fresh weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from stages.cards import CardError
from stages.lcm.classifier import Classifier, load_classifier_card

PROMPT = ["It rained all night.", "The river had risen."]
TEXTS = ["The bridge was under water.", "Bake for thirty minutes.", "A " * 60 + "long sentence.", "No."]


def write_classifier(folder: Path, pair: bool = False, **changed: Any) -> Path:
    """The card of a fresh small network beside it: RoBERTa for sentences, BERT for pairs."""
    from transformers import BertConfig, BertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification

    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator([*PROMPT, *TEXTS], trainers.WordLevelTrainer(special_tokens=special))
    kind = processors.BertProcessing if pair else processors.RobertaProcessing
    tokenizer.post_processor = kind(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "initializer_range": 0.5, "pad_token_id": 1, "num_labels": 3, "max_position_embeddings": 80,
    }  # fmt: skip
    if pair:
        BertForSequenceClassification(BertConfig(**sizes, type_vocab_size=2)).save_pretrained(folder)
    else:
        RobertaForSequenceClassification(RobertaConfig(**sizes, type_vocab_size=1)).save_pretrained(folder)
    names = ("config.json", "tokenizer.json", "model.safetensors")
    card = {
        "name": "fluent", "kind": "sequence-classifier", "description": "a test", "licence": "none", "model": "./",
        "label": 2, "pair": pair, "max_tokens": 40,
        "sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names},
    }  # fmt: skip
    path = folder / "fluent.yaml"
    path.write_text(yaml.safe_dump(card | changed), "utf-8")
    return path


@pytest.mark.parametrize("batch_tokens", [1, 8192])
def test_a_sentence_has_the_probability_of_a_pass_of_its_own(
    tmp_path: Path, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    monkeypatch.setattr("stages.lcm.classifier._BATCH_TOKENS", batch_tokens)
    model = Classifier(load_classifier_card(str(write_classifier(tmp_path))), device="cpu")
    network = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), model_max_length=40)
    expected = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, return_tensors="pt")["input_ids"]
        expected.append(network(input_ids=ids).logits.double().softmax(1)[0, 2].item())
    assert model.probabilities(TEXTS).tolist() == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) == len(TEXTS)
    assert model.score(PROMPT, TEXTS) == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert model.score(PROMPT, []) is None


def test_a_pair_is_a_prompt_and_all_that_follows(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = Classifier(load_classifier_card(str(write_classifier(tmp_path, pair=True))), device="cpu")
    network = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    whole = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(" ".join(PROMPT), " ".join(TEXTS[:2]))
    assert set(whole.type_ids) == {0, 1}
    ids, types = torch.tensor([whole.ids]), torch.tensor([whole.type_ids])
    expected = network(input_ids=ids, token_type_ids=types).logits.double().softmax(1)[0, 2].item()
    assert model.score(PROMPT, TEXTS[:2]) == pytest.approx(expected, rel=1e-5)


def test_what_is_no_classifier_is_refused(tmp_path: Path) -> None:
    assert load_classifier_card("cola").label == 0
    with pytest.raises(CardError, match="no classifier is called 'kola'; use one of cola, or the path of a card"):
        load_classifier_card("kola")
    with pytest.raises(CardError, match="label is 3; the model has 3 classes"):
        Classifier(load_classifier_card(str(write_classifier(tmp_path, label=3))), device="cpu")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CardError, match=r"tokenizer\.json has sha256 .*, the card says"):
        Classifier(load_classifier_card(str(tmp_path / "fluent.yaml")), device="cpu")
