"""A small corpus with a scaler and codes, small models, and their training."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from pipeline.config.load import load_config
from pipeline.config.train import TrainSettings
from pipeline.storage.store import Store
from pipeline.training.distributed import Processes, WrappedModel
from pipeline.training.run import train
from pipeline.training.status import read_metrics
from pipeline.training.step import Stepper, adamw
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.scaler.robust import RobustScaler
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.corpora import made_once
from tests.support.runs import run

CARD: dict[str, Any] = {
    "name": "small",
    "description": "of tests",
    "licence": "MIT",
    "kind": "base",
    "model_dim": 16,
    "heads": 2,
    "inner_dim": 32,
    "layers": 2,
    "context": 16,
    "dropout": 0.1,
}
TRAIN = {
    "steps": 6,
    "batch_concepts": 128,
    "micro_concepts": 64,
    "lr": 1e-2,
    "log_every": 1,
    "validate_every": 0,
    "validation_concepts": 100,
    "timeout_seconds": 60,
}


@dataclass(frozen=True)
class OneOfTwo(Processes):
    """A process whose `told` says what the other one says, in turn, then nothing; `said`: what it said itself."""

    world: int = 2
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    other: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def told(self, said: str) -> list[str]:
        self.said.append(said)
        both = [said, self.other[len(self.said) - 1] if len(self.said) <= len(self.other) else ""]
        return both[::-1] if self.rank else both


def make_corpus(folder: Path, **sections: Any) -> Path:
    """The corpus.yaml of a finished corpus of 24 documents, and the card `small.yaml` beside it."""
    write_jsonl(folder / "in" / "some.jsonl", sample_documents("libreoffice-eng", 24))
    settings = {"autobleu": None, "scaler": {}, "split": {"validation": 0.2}, "rvq": {"codebooks": 2, "units": 8}}
    path = write_config(folder, **(settings | sections))
    run(path)
    write_card(folder)
    return path


@pytest.fixture(scope="session")
def made_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus.yaml of such a corpus, which nobody changes."""
    return made_once(tmp_path_factory, "trainings", make_corpus) / "corpus.yaml"


@pytest.fixture(scope="module")
def training_corpus(made_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, of one's own: trainings of a module's tests do not meet others."""
    copy = tmp_path_factory.mktemp("trainings-of") / "corpus"
    shutil.copytree(made_corpus.parent, copy)
    return copy / made_corpus.name


def folder(corpus: Path, name: str) -> Path:
    """Of a training."""
    return corpus.parent / "out" / "train" / name


def take_back_to(corpus: Path, name: str, step: int) -> None:
    """A finished run of training as it was after its checkpoint of a step."""
    for path in (folder(corpus, name) / "checkpoints").glob("step-*.json"):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()
    (folder(corpus, name) / "model.json").unlink()


def write_card(folder: Path, name: str = "small", **changes: Any) -> Path:
    """A card in a file of its own."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**CARD, "name": name, **changes}), "utf-8")
    return path


def trained(corpus: Path, name: str, fresh: bool = False, **settings: Any) -> str:
    """Train under a name; what was shown."""
    shown = io.StringIO()
    chosen = {"model": str(corpus.parent / "small.yaml"), "name": name} | TRAIN | settings
    if "epochs" in settings:
        chosen["steps"] = None
    config = load_config(corpus, [f"train.{key}={yaml.safe_dump(value, default_flow_style=True).split(chr(10))[0]}"
                                  for key, value in chosen.items()])  # fmt: skip
    train(Console(file=shown, width=300), config, fresh)
    return shown.getvalue()


def steps_of(corpus: Path, name: str) -> list[tuple[int, float, float]]:
    """(step, loss, norm of the gradient) as they were logged."""
    lines = read_metrics(Store(str(corpus.parent / "out")), f"train/{name}")
    return [(line["step"], line["loss"], line["norm"]) for line in lines if line["kind"] == "train"]


ALONE = Processes(0, 1, torch.device("cpu"))


def stepper(**settings: float) -> Stepper:
    torch.manual_seed(0)
    card = LcmCard.model_validate(CARD | {"dropout": 0.0})
    losses = WrappedModel(build(card, RobustScaler(torch.zeros(8), torch.ones(8))))
    chosen = TrainSettings.model_validate(settings)
    return Stepper(losses, adamw(losses, chosen), chosen, ALONE, torch.float32)


def batch(*lengths: int, seed: int) -> Batch:
    made = torch.Generator().manual_seed(seed)
    rows = sum(lengths)
    return Batch(
        torch.randn(rows, 8, generator=made).half(),
        torch.tensor(lengths),
        torch.rand(rows, generator=made),
        sequences=torch.arange(len(lengths)) + 10 * seed,
    )
