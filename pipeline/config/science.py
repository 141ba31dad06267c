"""The file of `pipeline compare-objectives`: which objectives are trained on one corpus, and how they are judged.

No heavy imports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.base.errors import ConfigError
from pipeline.config.run_config import RunConfig, load_config
from pipeline.config.train import NAME, TrainSettings
from stages.cards import CardError
from stages.yaml_text import load_yaml

_STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
_CLAIM = re.compile(r"^(\w+)\((.+?)\) ([<>]) (\w+)\((.+?)\)$")
BASELINES = ("previous sentence", "median vector", "the sentence itself")
OWN = ("parameters", "flops_per_step", "gradient_diversity")  # what is known of a training besides metrics


class Objective(BaseModel):
    """One row: a training, or another way to draw from that of another row."""

    model_config = _STRICT

    train: dict[str, Any] = Field(default_factory=dict, description="settings of the section train, for this row only")
    of: str | None = Field(default=None, description="the row whose trainings are evaluated again, with `sampling`")
    sampling: dict[str, Any] = Field(default_factory=dict, description="how embeddings are drawn, as train.sampling")

    @model_validator(mode="after")
    def _one_of_both(self) -> Objective:
        if self.of is not None and self.train:
            raise ValueError("give either train, or the row whose trainings are evaluated again (of)")
        return self


@dataclass(frozen=True)
class Claim:
    """`metric(row) < metric(row)`: what is to be confirmed or refuted."""

    text: str
    smaller: tuple[str, str]  # metric, row
    larger: tuple[str, str]

    @classmethod
    def of(cls, text: str) -> Claim:
        """Parse a claim. Raises ValueError if the text is not one."""
        found = _CLAIM.match(text)
        if not found:
            raise ValueError(f"the claim {text!r} is not of the form `nll(sonar-llm) < nll(base)`")
        metric, row, sign, other_metric, other = found.groups()
        sides = ((metric, row), (other_metric, other))
        return cls(text, *(sides if sign == "<" else sides[::-1]))


class ScienceSettings(BaseModel):
    """The settings of one comparison of objectives. Paths are relative to the file."""

    model_config = _STRICT

    corpus: str = Field(min_length=1, description="the corpus.yaml of a corpus that has been run")
    output: str = Field(min_length=1, description="folder for results.json, results.md and results.svg")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, description="each row is trained with each")
    minutes: float | None = Field(
        default=None, gt=0, description="length of each training, by its measured speed (default: train.steps decides)"
    )
    calibration_steps: int = Field(default=20, ge=2, description="steps of the training that measures the speed")
    train: dict[str, Any] = Field(default_factory=dict, description="settings of the section train, for all rows")
    objectives: dict[Annotated[str, Field(pattern=NAME)], Objective] = Field(min_length=1)
    split: str = Field(default="test", description="split whose documents are evaluated")
    sentences: int = Field(default=1000, ge=1)
    metrics: tuple[str, ...] = Field(default=("l2", "par", "ca", "nll", "bpc"), min_length=1)
    claims: tuple[str, ...] = Field(default=())

    @model_validator(mode="after")
    def _rows_exist(self) -> ScienceSettings:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are {list(self.seeds)}; each stands for a training of its own: name it once")
        for name, one in self.objectives.items():
            if one.of is not None and (one.of not in self.objectives or self.objectives[one.of].of is not None):
                raise ValueError(f"{name} is of {one.of}, which is not a row that is trained")
        for claim in map(Claim.of, self.claims):
            for metric, row in (claim.smaller, claim.larger):
                if row not in self.objectives and row not in BASELINES:
                    rows = ", ".join((*self.objectives, *BASELINES))
                    raise ValueError(f"the claim {claim.text!r} is about {row}; rows are {rows}")
                if metric not in self.metrics and metric not in OWN:
                    known = ", ".join((*self.metrics, *OWN))
                    raise ValueError(f"the claim {claim.text!r} is about {metric}; the metrics here are {known}")
        return self

    @property
    def trained(self) -> list[str]:
        """Rows that are trained."""
        return [name for name, one in self.objectives.items() if one.of is None]


@dataclass(frozen=True)
class Science:
    """The settings, and the configuration of the corpus with the section train of every row."""

    settings: ScienceSettings
    corpus: RunConfig
    output: str

    def config(self, row: str, seed: int, steps: int | None = None, name: str | None = None) -> RunConfig:
        """Of one training. Raises `ConfigError`, or `CardError`, for settings that cannot be."""
        settings = self.settings
        quiet = {"evaluate_sentences": 0, "validate_every": 0}
        asked = quiet | settings.train | settings.objectives[row].train
        asked |= {"name": name or f"{row}-seed-{seed}", "seed": seed} | ({"steps": steps} if steps else {})
        if steps is not None and asked.get("warmup_steps") is not None:
            asked["warmup_steps"] = min(asked["warmup_steps"], steps)
        return self.corpus.model_copy(update={"train": _train(row, asked)})


def load_science(path: Path) -> Science:
    """Read the file and check all that can be known before anything is trained. Raises `ConfigError`, `CardError`."""
    try:
        data = load_yaml(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; give a YAML file like conf/science.yaml") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} holds {type(data).__name__}; give keys and values like conf/science.yaml")
    try:
        settings = ScienceSettings.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {_said(one)}" for one in error.errors())) from error
    here = path.resolve().parent
    corpus = load_config(here / settings.corpus, ["train=null"])
    output = settings.output if "://" in settings.output else str(here / settings.output)
    science = Science(settings, corpus, output)
    for row in settings.objectives:
        one = settings.objectives[row]
        changed = science.config(one.of or row, settings.seeds[0]).train
        assert changed is not None
        if one.sampling:
            changed = _train(row, changed.model_dump(mode="json") | {"sampling": one.sampling})
        try:
            _ = changed.card
        except CardError as error:
            raise ConfigError(f"{path}: objectives.{row}: {error}") from error
    return science


def _train(row: str, asked: dict[str, Any]) -> TrainSettings:
    try:
        return TrainSettings.model_validate_json(json.dumps(asked))
    except ValidationError as error:
        raise ConfigError("\n".join(f"objectives.{row}.train: {_said(one)}" for one in error.errors())) from error


def _said(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
