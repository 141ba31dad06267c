"""The contrastive objective in a training: by settings and by card, exact resume, shares, its head, bad input."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.train import TrainSettings
from pipeline.corpus.fingerprint import fingerprint
from pipeline.training.distributed import WrappedModel
from pipeline.training.evaluation.end_of_training import evaluate_trained
from pipeline.training.model_file import load_model
from pipeline.training.step import Stepper, adamw
from stages.lcm.batch import of_documents
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.lcm.contrastive import ContrastiveLcm
from stages.lcm.model import Sampling
from stages.scaler.robust import RobustScaler
from tests.support.cli import pipeline
from tests.support.trainings import ALONE, CARD, batch, folder, steps_of, take_back_to, trained, write_card

TIED: dict[str, Any] = {"objective": "contrastive", "contrastive": {"keys": "tied", "head": 0.34}}


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    return training_corpus


def test_a_card_and_settings_say_the_same(corpus: Path) -> None:
    trained(corpus, "set", objective="contrastive")
    card = write_card(corpus.parent, "small-contrastive", objective="contrastive")
    trained(corpus, "of-card", model=str(card))
    assert steps_of(corpus, "set") == steps_of(corpus, "of-card")
    assert steps_of(corpus, "set")[0][1] == pytest.approx(4.1, abs=0.4)  # about log 64: PostNet begins with zeros
    trained(corpus, "other", model=str(card), objective="mse")
    trained(corpus, "base")
    assert steps_of(corpus, "other") == steps_of(corpus, "base")
    pinned = [json.loads((folder(corpus, name) / "run.json").read_text())["pinned"] for name in ("set", "base")]
    assert pinned[0]["card"]["contrastive"] == {"keys": "frozen", "temperature": None, "head": 0.02}
    assert not {"objective", "contrastive"} & (pinned[1]["card"].keys() | pinned[1]["settings"].keys())
    with pytest.raises(ConfigError, match=r"train/set was begun .* model\.contrastive\.temperature None → 0\.1"):
        trained(corpus, "set", objective="contrastive", contrastive={"temperature": 0.1})


def test_losses_before_and_of_the_head_are_told_apart(corpus: Path) -> None:
    """A mean over both, or one beside the other, would look like a training that went astray."""
    shown = trained(corpus, "apart", **TIED, log_every=5)
    trained(corpus, "apart-each", **TIED)
    before, of_head = steps_of(corpus, "apart-each")[:3], steps_of(corpus, "apart-each")[3:]
    assert [step for step, *_ in steps_of(corpus, "apart")] == [3, 5, 6]
    losses = [loss for _, loss, _ in steps_of(corpus, "apart")]
    assert min(loss for _, loss, _ in before) <= losses[0] <= max(loss for _, loss, _ in before)
    assert min(loss for _, loss, _ in of_head) <= min(losses[1:]) and losses[2] == pytest.approx(of_head[-1][1])
    ahead, after = shown.split("from here on the head is trained, by a loss that cannot be compared")
    assert "step 3 of 6" in ahead and "step 6 of 6" in after
    assert f"loss {losses[0]:.4f}, then of the head loss {losses[1]:.4f} → {losses[2]:.4f}," in after, after
    assert "another loss" not in trained(corpus, "one-loss", objective="contrastive", log_every=5)


@pytest.mark.parametrize(
    ("card", "digest"),
    [("lcm-base-tiny", "9cf598a9c2cf0e8047e8e4669b6c35f6"), ("lcm-two-tower-tiny", "57c4fce701c54f499e71c00a1cff7b7b")],
)
def test_trainings_of_other_objectives_are_pinned_to_what_they_always_were(card: str, digest: str) -> None:
    settings = TrainSettings(model=card)
    assert fingerprint({"card": settings.card.recorded(), "settings": settings.pinned()}) == digest


@pytest.mark.parametrize("step", [2, 4, 5])
def test_it_goes_on_bit_for_bit(corpus: Path, step: int) -> None:
    """Before the head of tied keys begins, with its first step, and after it."""
    if not (folder(corpus, "whole") / "model.json").exists():
        trained(corpus, "whole", **TIED)
    trained(corpus, f"resumed-{step}", **TIED, checkpoint_every=1, keep_checkpoints=6)
    take_back_to(corpus, f"resumed-{step}", step)
    assert f"resuming from step {step} of 6" in trained(corpus, f"resumed-{step}", **TIED)
    assert steps_of(corpus, f"resumed-{step}") == steps_of(corpus, "whole")
    weights = [(folder(corpus, name) / "model.safetensors").read_bytes() for name in ("whole", f"resumed-{step}")]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["fsdp", "ddp"])
def test_two_processes_with_tied_keys_agree_with_one(corpus: Path, parallel: str) -> None:
    one, two = f"one-{parallel}", f"two-{parallel}"
    trained(corpus, one, **TIED, validate_every=4)
    trained(corpus, two, **TIED, validate_every=4, processes=2, parallel=parallel)
    for mine, theirs in zip(steps_of(corpus, one), steps_of(corpus, two), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3)
    weights = [load_model(str(folder(corpus, name)))[0].state_dict() for name in (one, two)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-2, atol=1e-3)


def test_a_model_without_a_head_predicts_nothing_until_it_has_one(corpus: Path, tmp_path: Path) -> None:
    headless = {"objective": "contrastive", "contrastive": {"keys": "tied", "head": 0.0}}
    trained(corpus, "headless", **headless)
    url, prompt = str(corpus.parent / "out"), tmp_path / "prompt.txt"
    prompt.write_text("A sentence. Another one.")
    refused = pipeline("generate", url, "--model", "headless", "--prompt", str(prompt))
    assert refused.returncode == 1 and "has no head yet" in re.sub(r"\s+", " ", refused.stderr)
    with pytest.raises(CorpusError, match=r"headless: small was trained with tied keys and has no head yet"):
        evaluate_trained(Console(file=io.StringIO()), url, "train/headless", lambda: "cpu")
    with_head = {"objective": "contrastive", "contrastive": {"keys": "tied", "head": 1.0}}
    trained(corpus, "with-head", **with_head, init_from=str(folder(corpus, "headless")), steps=2)
    model, _ = load_model(str(folder(corpus, "with-head")))
    assert isinstance(model, ContrastiveLcm) and bool(model.head)
    done = pipeline("generate", url, "--model", "with-head", "--prompt", str(prompt), "--sentences", "1")
    assert done.returncode == 0, done.stderr
    evaluate_trained(Console(file=io.StringIO()), url, "train/with-head", lambda: "cpu")
    assert (folder(corpus, "with-head") / "evaluation").is_dir()


def test_weights_of_other_keys_are_refused(corpus: Path) -> None:
    trained(corpus, "frozen-keys", objective="contrastive", steps=1)
    with pytest.raises(
        ConfigError, match=r"is another model, of the card [a-z-]+: model\.contrastive\.keys frozen → tied"
    ):
        trained(corpus, "x", **TIED, init_from=str(folder(corpus, "frozen-keys")))
    with pytest.raises(
        ConfigError, match=r"is another model, of the card [a-z-]+: model\.objective contrastive → None"
    ):
        trained(corpus, "x", init_from=str(folder(corpus, "frozen-keys")))
    assert not (folder(corpus, "x") / "model.json").exists()
    shutil.rmtree(folder(corpus, "frozen-keys"))


def test_a_single_target_is_an_error_of_the_setting() -> None:
    card = LcmCard.model_validate(CARD | {"objective": "contrastive"})
    losses = WrappedModel(build(card, RobustScaler(torch.zeros(8), torch.ones(8))))
    settings = TrainSettings(micro_concepts=16, batch_concepts=16)
    taken = Stepper(losses, adamw(losses, settings), settings, ALONE, torch.float32)
    one = batch(3, seed=1)
    one.weights[:2] = 0
    with pytest.raises(ConfigError, match=r"train\.micro_concepts is 16: a micro-batch has a single target"):
        taken.step(0, [(0, one)])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["train.model=lcm-two-tower-tiny", "train.objective=contrastive"], "the kind base, not to two-tower"),
        (["train.model=lcm-base-tiny", "train.contrastive={keys: tied}"], "objective is not contrastive"),
        (
            ["train.objective=contrastive", "train.contrastive={temperature: 0}"],
            "train.contrastive.temperature is 0; allowed: greater than 0",
        ),
        (
            ["train.objective=contrastive", "train.contrastive={head: 2}"],
            "train.contrastive.head is 2; allowed: less than or equal to 1",
        ),
        (["train.objective=cosine"], "train.objective"),
    ],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_settings_that_cannot_be(corpus: Path, command: str, chosen: list[str], message: str) -> None:
    arguments = [one for setting in chosen for one in ("--set", setting)]
    refused = pipeline(command, str(corpus), "--set", "train={}", *arguments)
    assert refused.returncode == 2
    assert message in re.sub(r"\s+", " ", refused.stderr)


def test_what_is_predicted_is_finite(corpus: Path) -> None:
    trained(corpus, "predicting", **TIED)
    model, about = load_model(str(folder(corpus, "predicting")))
    assert about.validation is not None
    documents = torch.randn(4, about.pinned.dim).half()
    assert model.predict(of_documents([documents]), Sampling()).isfinite().all()
