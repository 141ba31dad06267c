"""The files of `pipeline compare-objectives` and `pipeline ablate`: what is trained, on what, and how it is evaluated.

No heavy imports.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.base.errors import ConfigError
from pipeline.config.causes import causes
from pipeline.config.explain import explain
from pipeline.config.load import load_config, read_yaml
from pipeline.config.run_config import RunConfig
from pipeline.config.select import SelectSettings
from pipeline.config.train import NAME, TrainSettings
from stages.cards import CardError

_STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
_CLAIM = re.compile(r"^(?:(\d+(?:\.\d+)?) )?(\w+)\((.+?)\) ([<>]) (?:(\d+(?:\.\d+)?) )?(\w+)\((.+?)\)$")
ALL = "all"  # the row of an ablation that is trained on every sentence
BASELINES = ("previous sentence", "median vector", "the sentence itself")
OWN = (
    "parameters",
    "flops_per_step",
    "cpu_seconds",
    "gradient_diversity",
)  # what is known of a training besides metrics


def _check_shared(train: Mapping[str, Any]) -> None:
    """Raise ValueError for settings of a section train that a comparison cannot follow."""
    if "epochs" in train:
        raise ValueError("train.epochs: comparisons count steps; give train.steps")
    if "name" in train:
        raise ValueError("train.name: comparisons name trainings by their rows and seeds; leave it out")


class Objective(BaseModel):
    """One row: a training, or another way to draw from that of another row."""

    model_config = _STRICT

    train: dict[str, Any] = Field(default_factory=dict, description="settings of the section train, for this row only")
    of: str | None = Field(default=None, description="the row whose trainings are evaluated again, with `sampling`")
    sampling: dict[str, Any] = Field(default_factory=dict, description="how embeddings are drawn, as train.sampling")
    minutes: float | None = Field(default=None, gt=0, description="length of its trainings (default: that of all rows)")
    steps_of: str | None = Field(
        default=None, description="a row that is trained for as many steps, in place of minutes"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Objective:
        lengths = [self.minutes, self.steps_of, self.train.get("steps")]
        if self.of is not None and (self.train or any(lengths)):
            raise ValueError(
                "give either train, minutes and steps_of, or the row whose trainings are evaluated again (of)"
            )
        _check_shared(self.train)
        if sum(one is not None for one in lengths) > 1:
            raise ValueError("give one of minutes, steps_of and train.steps")
        return self


class ScalingLaw(BaseModel):
    """Rows of one objective in several sizes, through which a·N^−α + b is fitted."""

    model_config = _STRICT

    metric: str
    rows: tuple[str, ...] = Field(min_length=3)


@dataclass(frozen=True)
class Claim:
    """`metric(row) < metric(row)`, or `metric(row) < 1.02 metric(row)`: what is to be confirmed or refuted."""

    text: str
    smaller: tuple[str, str]  # metric, row
    larger: tuple[str, str]
    factors: tuple[float, float] = (1.0, 1.0)  # of both

    @classmethod
    def of(cls, text: str) -> Claim:
        """Parse a claim. Raises ValueError if the text is not one."""
        found = _CLAIM.match(text)
        if not found:
            raise ValueError(f"the claim {text!r} is not of the form `nll(sonar-llm) < nll(base)`")
        factor, metric, row, sign, other_factor, other_metric, other = found.groups()
        sides, factors = ((metric, row), (other_metric, other)), (float(factor or 1), float(other_factor or 1))
        return cls(text, *sides, factors) if sign == "<" else cls(text, *sides[::-1], factors[::-1])


class _ComparisonSettings(BaseModel):
    """What comparisons of trainings have in common. Paths are relative to the file."""

    model_config = _STRICT

    corpus: str = Field(min_length=1, description="the corpus.yaml of a corpus that has been run")
    output: str = Field(min_length=1, description="folder for results.json, results.md and results.svg")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, description="each row is trained with each")
    train: dict[str, Any] = Field(default_factory=dict, description="settings of the section train, for all rows")
    split: str = Field(default="test", description="split whose documents are evaluated")
    sentences: int = Field(default=1000, ge=1, description="how many sentences of that split are predicted")
    language_model: str | None = Field(
        default=None, min_length=1, description="for the metric mi: gpt2, smollm2 or the path of a card's file"
    )
    metrics: tuple[str, ...] = Field(
        default=("l2", "par", "ca", "nll", "bpc"), min_length=1, description="what is measured, as evaluate names it"
    )

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are {list(self.seeds)}; each stands for a training of its own: name it once")
        return self

    @model_validator(mode="after")
    def _train_is_shared(self) -> Self:
        _check_shared(self.train)
        return self


class ScienceSettings(_ComparisonSettings):
    """The settings of one comparison of objectives."""

    minutes: float | None = Field(
        default=None, gt=0, description="length of each training, by its measured speed (default: train.steps decides)"
    )
    clock: Literal["wall", "cpu"] = Field(
        default="wall",
        description="what minutes measure: wall, the time that passes; cpu, the CPU time of the process, which other "
        "work on the machine does not change",
    )
    calibration_steps: int = Field(default=20, ge=2, description="steps of the training that measures the speed")
    objectives: dict[Annotated[str, Field(pattern=NAME)], Objective] = Field(
        min_length=1, description="the rows: a name of letters, digits, dots, _ and - for each, and what is trained"
    )
    claims: tuple[str, ...] = Field(default=(), description="what is to be confirmed, as `nll(base) < nll(other)`")
    scaling: tuple[ScalingLaw, ...] = Field(default=(), description="what falls with the parameters of which rows")

    @model_validator(mode="after")
    def _rows_exist(self) -> ScienceSettings:
        for name, one in self.objectives.items():
            if one.of is not None and (one.of not in self.objectives or self.objectives[one.of].of is not None):
                raise ValueError(f"{name} is of {one.of}, which is not a row that is trained")
            other = self.objectives.get(one.steps_of or name)
            if other is None or (one.steps_of and (other.of or other.steps_of)):
                raise ValueError(f"{name} has steps_of {one.steps_of}, which is not a row with steps of its own")
        for claim in map(Claim.of, self.claims):
            for metric, row in (claim.smaller, claim.larger):
                if row not in self.objectives and row not in BASELINES:
                    rows = ", ".join((*self.objectives, *BASELINES))
                    raise ValueError(f"the claim {claim.text!r} is about {row}; rows are {rows}")
                self._check_metric(f"the claim {claim.text!r}", metric)
        for fit in self.scaling:
            self._check_metric("scaling", fit.metric)
            unknown = [row for row in fit.rows if row not in self.trained]
            if unknown or len(set(fit.rows)) < len(fit.rows):
                wrong = f"{unknown[0]}, which is not trained" if unknown else f"{', '.join(fit.rows)}: name each once"
                raise ValueError(f"scaling is about {wrong}; trained rows are {', '.join(self.trained)}")
        return self

    def _check_metric(self, where: str, metric: str) -> None:
        if metric not in self.metrics and metric not in OWN:
            raise ValueError(f"{where} is about {metric}; the metrics here are {', '.join((*self.metrics, *OWN))}")

    def minutes_of(self, row: str) -> float | None:
        """Return how long a row is trained; None: the steps are given."""
        one = self.objectives[row]
        return one.minutes or (None if "steps" in one.train else self.minutes)

    @property
    def trained(self) -> list[str]:
        """Rows that are trained."""
        return [name for name, one in self.objectives.items() if one.of is None]


class AblationRow(BaseModel):
    """One row of an ablation: what it is trained on, and how. Short forms are only the condition, or only the section
    select.
    """

    model_config = _STRICT

    select: SelectSettings | None = Field(default=None, description="which sentences it is trained on (default: all)")
    corpus: str | None = Field(
        default=None,
        description="another corpus.yaml of the same encoder, for instance segmented in another way",
    )
    train: dict[str, Any] = Field(default_factory=dict, description="settings of the section train, for this row only")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"select": value}
        if not isinstance(value, dict):
            return value
        unknown = [key for key in value if key not in cls.model_fields]
        if unknown and len(unknown) == len(value) and set(unknown) & set(SelectSettings.model_fields):
            return {"select": value}
        if unknown:
            raise ValueError(
                f"unknown key {unknown[0]}; allowed here: {', '.join(cls.model_fields)}; or, without these, the keys "
                f"of a section select: {', '.join(SelectSettings.model_fields)}"
            )
        return value

    @model_validator(mode="after")
    def _differs_fairly(self) -> AblationRow:
        if not self.model_fields_set:
            raise ValueError(f"nothing differs from {ALL!r}: give select, corpus or train")
        for key in ("steps", "epochs", "seed", "name"):
            if key in self.train:
                raise ValueError(f"train.{key}: all rows are trained alike; set seeds and train.steps for all of them")
        return self


class AblationSettings(_ComparisonSettings):
    """The settings of one ablation: the same model, trained equally long on several selections."""

    metrics: tuple[str, ...] = Field(
        default=("l2_r", "ca", "nll"), min_length=1, description="what is measured, as evaluate names it"
    )
    held_out: SelectSettings | None = Field(
        default=None, description="which sentences of the split are evaluated (default: all)"
    )
    selections: dict[Annotated[str, Field(pattern=NAME)], AblationRow] = Field(
        min_length=1, description="the rows: a name of letters, digits, dots, _ and - for each, and what is selected"
    )

    @model_validator(mode="after")
    def _all_is_taken(self) -> Self:
        if ALL in self.selections:
            raise ValueError(f"selections.{ALL}: that is the row without a selection, which is there already")
        return self

    def name_of(self, row: str) -> str:
        """Return what trainings of a row are called: another selection, or another training, has another name."""
        asked = [self.train, self.selections[row].model_dump(mode="json") if row in self.selections else None]
        return f"ablate-{row}-{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]}"

    def science(self) -> ScienceSettings:
        """Return the same settings as a comparison of objectives, in which every row is an objective of its own."""
        rows = {ALL: Objective()} | {row: Objective(train=one.train) for row, one in self.selections.items()}
        shared = {name: getattr(self, name) for name in _ComparisonSettings.model_fields}
        return ScienceSettings(**shared, objectives=rows)


Kind = TypeVar("Kind", bound=_ComparisonSettings)


@dataclass(frozen=True)
class Science:
    """The settings, and the configuration of the corpus with the section train of every row.

    trained_on: the corpora, with their selections, of rows that are trained on another one than the others. names: row
    → name of its trainings, without the seed, where that is not the row's own name.
    """

    settings: ScienceSettings
    corpus: RunConfig
    output: str
    folder: Path
    section: str = "objectives"  # in which the file names rows
    evaluated: str = "select.where"  # which of its keys says what is evaluated
    trained_on: Mapping[str, RunConfig] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[tuple[str, ...], str] = field(default_factory=dict)  # path of keys → where the file has them

    def config(self, row: str, seed: int, steps: int | None = None, name: str | None = None) -> RunConfig:
        """Return the configuration of one training.

        Args:
            row: the name of a row, one of `settings.objectives`.
            seed: the seed of the training.
            steps: train for this many optimizer steps; None for the number in the settings.
            name: the training's name if this is a short training that is timed; its losses are logged at each step.

        Returns:
            The configuration of the row's corpus with the section `train` of this training.

        Raises:
            ConfigError: or `CardError`, for invalid settings.
        """
        settings = self.settings
        quiet = {"evaluate_sentences": 0, "validate_every": 0}
        asked = quiet | settings.train | settings.objectives[row].train
        if str(asked.get("model")).endswith(".yaml"):
            asked["model"] = str(self.folder / asked["model"])
        if name:  # a short training that is timed
            asked |= {"log_every": 1}
        name = name or f"{self.names.get(row, row)}-seed-{seed}"
        asked |= {"name": name, "seed": seed} | ({"steps": steps} if steps else {})
        if steps is not None and asked.get("warmup_steps") is not None:
            asked["warmup_steps"] = min(asked["warmup_steps"], steps)
        return self.trained_on.get(row, self.corpus).model_copy(update={"train": self.train_of(row, asked)})

    def train_of(self, row: str, asked: dict[str, Any]) -> TrainSettings:
        """Check the section train of a row. Raises `ConfigError`."""
        try:
            return TrainSettings.model_validate_json(json.dumps(asked))
        except ValidationError as error:
            places: dict[tuple[str, ...], str] = {}
            for start in (("train",), (self.section, row, "train")):  # settings of the row come before those of all
                places |= {key[len(start) :]: at for key, at in self.places.items() if key[: len(start)] == start}
            section = Path(f"{self.section}.{row}.train")
            raise ConfigError(_explained(section, error, places, asked, TrainSettings)) from error


def load_science(path: Path) -> Science:
    """Read the file and check all that can be known before anything is trained. Raises `ConfigError`, `CardError`."""
    settings, places = _read(path, ScienceSettings, "conf/science.yaml")
    here = path.resolve().parent
    corpus = load_config(here / settings.corpus, ["train=null"])
    return _checked(path, Science(settings, corpus, _output(settings, here), here, places=places))


def load_ablation(path: Path) -> Science:
    """Read the file of an ablation, as `load_science` does; the row of all sentences comes first.

    Raises `ConfigError` or `CardError` for what cannot be.
    """
    settings, places = _read(path, AblationSettings, "conf/ablation.yaml")
    here = path.resolve().parent
    corpus = load_config(here / settings.corpus, ["train=null"])
    trained_on = {ALL: corpus.model_copy(update={"select": None})}
    for row, one in settings.selections.items():
        other = load_config(here / one.corpus, ["train=null"]) if one.corpus else corpus
        trained_on[row] = other.model_copy(update={"select": one.select})
    science = Science(
        settings.science(),
        corpus.model_copy(update={"select": settings.held_out}),
        _output(settings, here),
        here,
        "selections",
        "held_out",
        trained_on,
        {row: settings.name_of(row) for row in trained_on},
        places,
    )
    return _checked(path, science)


def _read(path: Path, kind: type[Kind], example: str) -> tuple[Kind, dict[tuple[str, ...], str]]:
    data, _, places, repeated = read_yaml(path, f"a file like {example}", "corpus, output, seeds …")
    text = json.dumps(data, default=str)
    data = json.loads(text)  # keys are texts
    try:
        settings = kind.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError("\n".join([*repeated, _explained(path, error, places, data, kind)])) from error
    if repeated:
        raise ConfigError("\n".join(repeated))
    if str(settings.language_model).endswith(".yaml"):
        card = str(path.resolve().parent / str(settings.language_model))
        settings = settings.model_copy(update={"language_model": card})
    return settings, places


def _output(settings: _ComparisonSettings, here: Path) -> str:
    return settings.output if "://" in settings.output else str(here / settings.output)


def _checked(path: Path, science: Science) -> Science:
    settings = science.settings
    for row in settings.objectives:
        one = settings.objectives[row]
        changed = science.config(one.of or row, settings.seeds[0]).train
        assert changed is not None
        if one.sampling:
            changed = science.train_of(row, changed.model_dump(mode="json") | {"sampling": one.sampling})
        try:
            _ = changed.card
        except CardError as error:
            raise ConfigError(f"{path}: {science.section}.{row}: {error}") from error
    return science


def _explained(
    path: Path, error: ValidationError, places: Mapping[tuple[str, ...], str], data: Any, kind: type[BaseModel]
) -> str:
    found = causes([dict(one) for one in error.errors()], data)
    together = [f"{path}: {one['ctx']['error']}" for one in found if not one["loc"]]  # of settings that do not fit
    return "\n".join([*together, *(line for one in found for line in explain(path, one, places, data, kind))])
