"""Ours against the official package (sonar-space 0.5.0, fairseq2 0.8.1) on a small checkpoint in fairseq2's layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from stages.cards import CardError
from stages.sonar import checkpoint
from stages.sonar.card import ModelCard, load_card
from stages.sonar.checkpoint import load_decoder, load_encoder
from stages.sonar.generate import beam_search, greedy
from stages.sonar.networks import SonarTextDecoder
from stages.sonar.tokenizer import END, SonarTokenizer

FOLDER = Path(__file__).parent / "fixtures/sonar-space-tiny"
TOO_LONG = 46  # the one sentence of more than 514 tokens


@pytest.fixture(scope="module")
def card() -> ModelCard:
    return load_card(str(FOLDER / "card.yaml"))


@pytest.fixture(scope="module")
def tokenizer(card: ModelCard) -> SonarTokenizer:
    return SonarTokenizer(card)


@pytest.fixture(scope="module")
def decoder(card: ModelCard) -> SonarTextDecoder:
    return load_decoder(card)


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "reference.json").read_text())
    with np.load(FOLDER / "reference.npz") as arrays:
        return loaded | {name: torch.from_numpy(arrays[name]) for name in arrays}


@pytest.mark.parametrize("lang", ["eng_Latn", "fra_Latn"])
def test_source_ids(tokenizer: SonarTokenizer, reference: dict[str, Any], lang: str) -> None:
    ours, theirs = tokenizer.encode(reference["sentences"], lang), reference[f"source_ids.{lang}"]
    assert ours[:TOO_LONG] == theirs[:TOO_LONG]
    assert ours[TOO_LONG] == [*theirs[TOO_LONG][:513], END]  # the text is cut, </s> is kept
    assert tokenizer.count(reference["sentences"]) == [len(ids) for ids in theirs]


@pytest.mark.parametrize("lang", ["eng_Latn", "fra_Latn"])
def test_embeddings(card: ModelCard, reference: dict[str, Any], lang: str) -> None:
    encoder = load_encoder(card)
    with torch.inference_mode():
        ours = torch.cat([encoder(torch.tensor([ids[:514]])) for ids in reference[f"source_ids.{lang}"]])
    assert (ours - reference[f"embedding.{lang}"]).abs().max() < 1e-5


def test_a_masked_batch_gives_the_same_embeddings(card: ModelCard, reference: dict[str, Any]) -> None:
    encoder = load_encoder(card)
    rows = [torch.tensor(ids) for ids in reference["source_ids.eng_Latn"][:TOO_LONG]]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    with torch.inference_mode():
        ours = encoder(ids, ids != 0)
    assert (ours - reference["embedding.eng_Latn"][:TOO_LONG]).abs().max() < 1e-5


def test_logits(decoder: SonarTextDecoder, reference: dict[str, Any]) -> None:
    with torch.inference_mode():
        ours = decoder(reference["decoder.input_ids"], reference["embedding.eng_Latn"])
    assert (ours - reference["decoder.logits"]).abs().max() < 3e-5


def test_steps_with_a_cache_give_the_logits_of_teacher_forcing(
    decoder: SonarTextDecoder, reference: dict[str, Any]
) -> None:
    ids = reference["decoder.input_ids"]
    with torch.inference_mode():
        state = decoder.start(reference["embedding.eng_Latn"], capacity=ids.shape[1])
        ours = torch.stack([decoder.logits(decoder.step(column, state)) for column in ids.T], dim=1)
    assert (ours - reference["decoder.logits"]).abs().max() < 3e-5


def test_greedy(decoder: SonarTextDecoder, tokenizer: SonarTokenizer, reference: dict[str, Any]) -> None:
    embeddings = reference["embedding.eng_Latn"]
    rows = len(embeddings)
    prefixes = torch.tensor([tokenizer.target_prefix("eng_Latn")] * rows)
    assert prefixes[0].tolist() == reference["target_prefix.eng_Latn"]
    ours = greedy(decoder, embeddings, prefixes, torch.full((rows,), 46))
    assert ours == [hypotheses[0]["ids"] for hypotheses in reference["hypotheses.beam1.eng_Latn"]]
    assert tokenizer.decode(ours) == reference["decoded.beam1.eng_Latn"]


@pytest.mark.parametrize("beam", [1, 5])
def test_beam_search(
    decoder: SonarTextDecoder, tokenizer: SonarTokenizer, reference: dict[str, Any], beam: int
) -> None:
    embeddings, theirs = reference["embedding.eng_Latn"], reference[f"hypotheses.beam{beam}.eng_Latn"]
    prefixes = torch.tensor([tokenizer.target_prefix("eng_Latn")] * len(embeddings))
    ours = beam_search(decoder, embeddings, prefixes, torch.full((len(embeddings),), 46), beam=beam)
    assert [[h.ids for h in row] for row in ours] == [[h["ids"] for h in row] for row in theirs]
    scores = torch.tensor([[h.score for h in row] for row in ours])
    assert (scores - torch.tensor([[h["score"] for h in row] for row in theirs])).abs().max() < 1e-5


def test_beam_search_into_another_language(
    decoder: SonarTextDecoder, tokenizer: SonarTokenizer, reference: dict[str, Any]
) -> None:
    embeddings = reference["embedding.eng_Latn"]
    prefixes = torch.tensor([tokenizer.target_prefix("fra_Latn")] * len(embeddings))
    ours = beam_search(decoder, embeddings, prefixes, torch.full((len(embeddings),), 46), beam=5)
    assert tokenizer.decode([row[0].ids for row in ours]) == reference["decoded.beam5.fra_Latn"]


def test_beam_search_with_other_beams_penalties_and_limits(
    decoder: SonarTextDecoder, tokenizer: SonarTokenizer, reference: dict[str, Any]
) -> None:
    """beams.json: what the official generator gave for the first four sentences."""
    cases = json.loads((FOLDER / "beams.json").read_text())
    assert {(case["beam"], case["len_penalty"], case["max_seq_len"]) for case in cases} >= {(10, 0, 7), (2, 2, 48)}
    for case in cases:
        theirs = case["hypotheses"]
        rows = len(theirs)
        ours = beam_search(
            decoder,
            reference["embedding.eng_Latn"][:rows],
            torch.tensor([tokenizer.target_prefix("eng_Latn")] * rows),
            torch.full((rows,), case["max_seq_len"] - 2),
            beam=case["beam"],
            length_penalty=case["len_penalty"],
        )
        assert [[h.ids for h in row] for row in ours] == [[h["ids"] for h in row] for row in theirs]
        scores = torch.tensor([[h.score for h in row] for row in ours])
        assert (scores - torch.tensor([[h["score"] for h in row] for row in theirs])).abs().max() < 3e-5


def test_the_end_is_forced_at_the_longest_length(
    decoder: SonarTextDecoder, tokenizer: SonarTokenizer, reference: dict[str, Any]
) -> None:
    prefixes = torch.tensor([tokenizer.target_prefix("eng_Latn")])
    (found,) = beam_search(decoder, reference["embedding.eng_Latn"][:1], prefixes, torch.tensor([4]), beam=5)
    assert len(found) == 5
    assert all(len(h.ids) <= 4 and h.ids[-1] == END for h in found)


def test_weights_survive_our_own_layout(card: ModelCard, decoder: SonarTextDecoder, tmp_path: Path) -> None:
    for role, network in (("encoder", load_encoder(card)), ("decoder", decoder)):
        digest = checkpoint.save(network, tmp_path / f"{role}.safetensors")
        file = getattr(card.files, role).model_copy(update={"path": f"{role}.safetensors", "sha256": digest})
        card = card.model_copy(update={"layout": "native", "files": card.files.model_copy(update={role: file})})
    shutil.copy(FOLDER / "tiny.model", tmp_path)
    (tmp_path / "card.yaml").write_text(card.model_dump_json())  # JSON is YAML
    again = load_decoder(load_card(str(tmp_path / "card.yaml")))
    for name, value in decoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.half().float()), name


def test_a_card_that_does_not_fit_its_weights_lists_every_problem(card: ModelCard) -> None:
    deeper = card.model_copy(update={"encoder_layers": 3, "ffn_dim": 96})
    with pytest.raises(CardError) as error:
        load_encoder(deeper)
    for word in ("missing", "layers.2.attention.qkv_proj.weight", "of another shape", "(128, 64)", "correct the card"):
        assert word in str(error.value)
    with pytest.raises(CardError, match=r"unexpected: encoder\.layers\.1\."):
        load_encoder(card.model_copy(update={"encoder_layers": 1}))


@pytest.mark.parametrize("number", ["ffn_dim", "vocab_size", "max_tokens"])
def test_numbers_of_a_card_that_its_weights_do_not_bear_out_take_no_memory(card: ModelCard, number: str) -> None:
    larger = card.model_dump(mode="json") | {number: 10**12}
    if number == "max_tokens":
        with pytest.raises(ValidationError, match="less than or equal to 1000000"):
            ModelCard.model_validate_json(json.dumps(larger))
    else:
        with pytest.raises(CardError, match=r"of another shape: .*, the card wants "):
            load_encoder(card.model_copy(update={number: 10**12}))
