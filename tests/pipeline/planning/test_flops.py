"""`pipeline flops`: closed forms against loops over tokens and sentences, and what the command says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.planning.flops import LLMS, Assumptions, lcm_writing_flops, training_flops
from stages.lcm.card import load_lcm_card
from stages.lcm.inference_flops import next_flops, reading_flops
from stages.sonar.card import load_card
from stages.sonar.flops import decoder_flops, encoder_flops
from tests.support.cli import pipeline


def test_an_llm_reads_and_writes_token_by_token() -> None:
    llm = LLMS[0]
    body = llm.layers * (4 * llm.dim**2 + 3 * llm.dim * llm.inner)
    assert llm.parameters == pytest.approx(6.74e9, rel=0.001), "Llama-2 7B"
    found = 0.0
    for place in range(1, 31):
        found += 2 * body + 4 * llm.layers * llm.dim * place
        found += 2 * llm.dim * llm.vocab if place > 20 else 0
    assert llm.writing_flops(20, 10) == pytest.approx(found, rel=1e-12)


def test_an_lcm_encodes_reads_predicts_and_decodes_sentence_by_sentence() -> None:
    card, sonar, assumed = load_lcm_card("lcm-two-tower-7b"), load_card("sonar"), Assumptions()
    sizes = {"dim": 1024, "ffn_dim": 8192}
    found = reading_flops(card, 1024, 99)
    for sentence in range(100):
        if sentence < 50:
            found += encoder_flops([22], layers=24, **sizes)
        else:
            found += next_flops(card, 1024, sentence, assumed.sampling(card))
            found += decoder_flops([20], layers=24, vocab_size=256206, **sizes)
    assert lcm_writing_flops(card, sonar, 100, 20, assumed) == pytest.approx(found, rel=1e-9)


def test_sonar_llm_encodes_each_sentence_that_it_has_written() -> None:
    card, sonar, assumed = load_lcm_card("lcm-sonar-llm-900m"), load_card("sonar"), Assumptions()
    sizes = {"dim": 1024, "ffn_dim": 8192}
    found = reading_flops(card, 1024, 99)
    for sentence in range(100):
        if sentence < 99:  # the last one is not read again
            found += encoder_flops([22], layers=24, **sizes)
        if sentence >= 50:
            found += next_flops(card, 1024, sentence, assumed.sampling(card))
            found += decoder_flops([20], layers=24, vocab_size=256206, **sizes)
    assert lcm_writing_flops(card, sonar, 100, 20, assumed) == pytest.approx(found, rel=1e-9)
    shown = " ".join(pipeline("flops", "--model", card.name, "--model", "lcm-quant-c-1.6b").stdout.split())
    assert "lcm-sonar-llm-900m: each sentence that it has written is encoded before the next" in shown
    assert "lcm-quant-c-1.6b: a step for each of 64 codebooks of 8 192 units, guidance 1.5 (2 passes)" in shown
    assert "lcm-quant-c-1.6b: a text of more than 128 sentences, its context, counts as if it had room" in shown


@pytest.mark.parametrize("name", ["lcm-base-1.6b", "lcm-one-tower-1.6b", "lcm-two-tower-1.6b", "lcm-quant-c-1.6b"])
def test_training_takes_about_six_operations_a_weight(name: str) -> None:
    card = load_lcm_card(name)
    positions = 1 if name.startswith(("lcm-base", "lcm-two")) else 2  # clean and noisy sentences
    assert training_flops(card, 1024, 78) == pytest.approx(6 * card.parameters() * positions, rel=0.15)


def test_parameters_are_counted_for_the_width_of_the_encoder() -> None:
    card = load_lcm_card("lcm-two-tower-tiny")
    for encoder, dim in (("sonar-tiny", 256), ("sonar", 1024)):
        shown = pipeline("flops", "--model", card.name, "--sonar", encoder).stdout
        assert f"{card.parameters(dim):,}".replace(",", " ") in shown, shown


def test_the_command(tmp_path: Path) -> None:
    plot = tmp_path / "flops.svg"
    shown = pipeline("flops", "--tokens", "2000,200000", "--sentence-tokens", "20", "--price", "2.5", "--plot", plot)
    assert shown.returncode == 0 and "lcm-two-tower-7b" in shown.stdout and "guidance 3 (2 passes)" in shown.stdout
    assert plot.read_text().startswith("<?xml") and "Llama-2 7B" in plot.read_text()
    found = json.loads(pipeline("flops", "--tokens", "2000,200000", "--sentence-tokens", "20", "--json").stdout)
    flops = {(one["model"], one["tokens"]): one["flops"] for one in found["writing"]}
    assert flops["Llama-2 7B", 2000] < flops["lcm-two-tower-7b", 2000], "a short text favours the LLM"
    assert flops["Llama-2 7B", 200_000] > 3 * flops["lcm-two-tower-7b", 200_000], "Fig. 13: a long one does not"
    assert set(found) == {"assumptions", "writing", "training"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens", "many"), "--tokens many: 'many' is not a number"),
        (("--tokens", "0"), "is not between 1 and 1e9"),
        (("--plot", "flops.gif"), "must end in .svg, .png or .pdf"),
        (("--generated", "0"), "give a share above 0"),
        (
            ("--model", "lcm-two-tower-tiny", "--steps", "101"),
            "lcm-two-tower-tiny has 100 timesteps, fewer than 101 steps of sampling; give",
        ),
        (("--model", "lcm-nothing"), "lcm-nothing"),
        (("--model", "lcm-token-lm-tiny"), "a token language model takes as much as the LLMs"),
    ],
)
def test_what_cannot_be_computed_is_said(options: tuple[str, str], words: str) -> None:
    refused = pipeline("flops", *options)
    assert refused.returncode == 2 and words in " ".join(refused.stderr.split()), refused


def test_training_through_a_decoder_says_that_the_decoder_is_not_counted() -> None:
    shown = pipeline("flops", "--model", "lcm-sonar-llm-tiny", "--model", "lcm-base-tiny")
    assert shown.returncode == 0, shown.stderr
    said = " ".join(shown.stdout.split())
    assert "training of lcm-sonar-llm-tiny: without the decoder's passes" in said
    assert "training of lcm-base-tiny" not in said
