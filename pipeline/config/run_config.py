"""`RunConfig`: the frozen content of a corpus.yaml, and what its sections need of each other. `load.py` reads the file.

Each stage has a section, named like the stage's folder; a stage whose section is left out does not run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self

import yaml
from pydantic import PrivateAttr, model_validator

from pipeline.config.frozen import Frozen, SettingPlaces
from pipeline.config.launcher import LauncherSettings
from pipeline.config.report import MEASURES, ReportSettings, measure_of
from pipeline.config.select import SelectSettings
from pipeline.config.stages import FITS
from pipeline.config.train import TrainSettings
from pipeline.inputs import InputSettings, SplitSettings
from pipeline.inputs.column_types import ColumnType
from pipeline.storage import layout
from stages.autobleu.settings import AutobleuSettings
from stages.decoder.settings import DecoderSettings
from stages.duplicates.settings import (
    DuplicatesSettings,
    HashSettings,
    MinhashSettings,
    NearDuplicatesSettings,
    SemanticDuplicatesSettings,
)
from stages.encode.settings import EncodeSettings
from stages.fragility.settings import FragilitySettings
from stages.language.settings import LanguageSettings
from stages.noise.settings import NoiseSettings
from stages.plans.settings import PlanEmbeddingSettings, PlansSettings
from stages.predictor.settings import PredictorSettings
from stages.rvq.settings import RvqSettings
from stages.sampling import Rows
from stages.scaler.settings import ScalerSettings
from stages.segment.settings import SegmentSettings
from stages.stage import Settings, StageSettings, execution, meaning

_NEEDS = {
    "plans": ("encode",), "autobleu": ("encode",), "scaler": ("encode",), "fragility": ("encode", "scaler"),
    "predictor": ("encode",), "rvq": ("encode",), "decoder": ("encode",),
}  # fmt: skip


class PilotSettings(Settings):
    """The pilot: the sample that scaler, predictor, codebooks and decoder are fitted on."""

    rows: int = meaning(2_000_000, ge=1, description="sentences that the pilot holds: the first chunks of the run")
    scored_rows: int | None = meaning(
        None,
        ge=1,
        description="about how many sentences of a whole pilot fragility scores before the predictor is fitted, if "
        "fragility.sample gives fewer (default: those of fragility.sample)",
    )

    def meaningful(self) -> dict[str, Any]:
        """Return what fits depend on; the rate of the pilot is part of the recipe of fragility, with which it is
        scored.
        """
        return {"rows": self.rows}

    @property
    def scored_rate(self) -> float:
        """The share of the pilot's sentences that are scored at least; larger samples contain smaller ones."""
        return min(1.0, (self.scored_rows or 0) / self.rows)


class RunConfig(Settings):
    """A whole corpus.yaml."""

    name: str = meaning(min_length=1, description="name of the corpus")
    output: str = execution(min_length=1, description="folder of the corpus: any fsspec URL, or relative to the file")
    input: tuple[InputSettings, ...] = meaning(min_length=1, description="where documents come from")
    duplicate_ids: Literal["error", "keep-first", "keep-all"] | None = meaning(
        None,
        description="documents with the same id, over all inputs with an id column: error, keep-first (the "
        "later ones are quarantined) or keep-all; if not set, the first in each chunk is kept, and the end of a run "
        "says how many ids occur in several chunks",
    )
    part_sentences: int = meaning(100_000, ge=100, description="a part ends with the document that reaches this")
    chunk_bytes: int = meaning(
        64 << 20,
        ge=1 << 16,
        description="plain JSONL files are cut into chunks of this size, compressed ones where the next member begins; "
        "small files share chunks",
    )
    split: SplitSettings = meaning(SplitSettings(), description="shares of validation and test documents")
    segment: SegmentSettings = meaning(SegmentSettings(), description="documents → sentences")
    language: LanguageSettings | None = meaning(
        None, description="the language of each sentence, against the stated one"
    )
    noise: NoiseSettings | None = meaning(None, description="shares of digits, markup, repetitions, … of each sentence")
    duplicates: DuplicatesSettings | None = meaning(
        None, description="which sentences and documents repeat others of the corpus"
    )
    encode: EncodeSettings | None = meaning(None, description="sentences → embeddings")
    plans: PlansSettings | None = meaning(None, description="plans of paragraphs → embeddings")
    autobleu: AutobleuSettings | None = meaning(None, description="embeddings → text → score")
    fit: PilotSettings = meaning(PilotSettings(), description="the pilot, for scaler, predictor, rvq and decoder")
    scaler: ScalerSettings | None = meaning(None, description="median and interquartile range of every dimension")
    fragility: FragilitySettings | None = meaning(None, description="noise on embeddings → text → score")
    predictor: PredictorSettings | None = meaning(None, description="embeddings → fragility, without decoding")
    rvq: RvqSettings | None = meaning(None, description="embeddings → codes of residual vector quantisation")
    decoder: DecoderSettings | None = meaning(None, description="a decoder that is fine-tuned on perturbed embeddings")
    select: SelectSettings | None = execution(None, description="which sentences trainers and exports use")
    report: ReportSettings | None = execution(None, description="a page of plots at the end of the run")
    train: TrainSettings | None = execution(None, description="a Large Concept Model, trained at the end of the run")
    seed: int = meaning(0, ge=0, description="seed of the order of chunks, and so of the choice of the pilot")
    launcher: LauncherSettings = execution(LauncherSettings(), description="where the work happens")

    _frozen: Frozen = PrivateAttr(default_factory=Frozen)
    _places: SettingPlaces = PrivateAttr(default_factory=SettingPlaces)

    @model_validator(mode="after")
    def _stages_fit(self) -> RunConfig:
        unfit = self.unfit()
        if unfit:
            raise ValueError("\n".join(message for _, message in unfit))
        return self

    def unfit(self) -> list[tuple[tuple[str, ...], str]]:
        """Return settings that do not fit together: the key of one of them, and what is wrong."""
        found: list[tuple[tuple[str, ...], str]] = [
            ((name,), f"{name} needs what {needs} makes: add a section `{needs}: {{}}`")
            for name, sections in _NEEDS.items()
            for needs in sections
            if getattr(self, name) and not getattr(self, needs)
        ]
        if self.semantic and not self.rvq:
            codes = "duplicates.semantic compares sentences with the same first code: add a section `rvq: {}`"
            found.append((("duplicates", "semantic"), codes))
        if self.train and not self.scaler:
            found.append((("train",), "train needs what scaler makes: add a section `scaler: {}`"))
        if self.predictor and not self.fragility and not self.predictor.file:
            learns = "predictor learns from what fragility measures: add a section `fragility: {}`, or a file"
            found.append((("predictor",), learns))
        found += self._without_section() + self._without_plans()
        for key, section in (("noise", "scaler"), ("codes", "rvq")):
            if self.decoder and not self.decoder.file and getattr(self.decoder, key) and not getattr(self, section):
                without = (
                    f"decoder.{key} needs what {section} makes: add a section `{section}: {{}}`, or set it to false"
                )
                found.append((("decoder", key), without))
        if self.encode and self.segment.model != self.encode.model:
            differ = (
                f"segment.model is {self.segment.model} but encode.model is {self.encode.model}; the length cap counts "
                "the encoder's tokens: leave segment.model out"
            )
            found.append((("segment", "model"), differ))
        declared: dict[str, tuple[int, ColumnType]] = {}
        for number, one in enumerate(self.input):
            for name, kind in one.declared_types.items():
                first, before = declared.setdefault(name, (number, kind))
                if before != kind:
                    differ = (
                        f"input {number + 1}: keep says that {name} is {kind}, input {first + 1} that it is {before}; "
                        "a column has one type in a corpus: declare it once"
                    )
                    found.append((("input", str(number), "keep", name), differ))
            reserved_here = layout.RESERVED_COLUMNS | (layout.PLAN_COLUMNS if self.plans else set())
            clash = reserved_here.intersection(one.keep)
            if clash:
                reserved = (
                    f"keep names {', '.join(sorted(clash))}, which the corpus itself uses; leave them out, or rename "
                    "them in the data (all columns in docs/reference/corpus-format.md are reserved)"
                )
                found.append((("input", str(number), "keep"), reserved))
        return found

    def _without_plans(self) -> list[tuple[tuple[str, ...], str]]:
        """Return what plans of paragraphs lack."""
        found: list[tuple[tuple[str, ...], str]] = []
        kept = self.keep_columns()
        if self.plans and self.plans.column and self.plans.column not in kept:
            lacks = (
                f"plans.column is {self.plans.column!r}, which no input keeps; kept are: {', '.join(kept) or 'none'}; "
                f"add it to an input's keep: [{self.plans.column}]"
            )
            found.append((("plans", "column"), lacks))
        if self.train and self.train.plans == "column" and not self.plans:
            lacks = (
                "train.plans is column, and nothing embeds plans here: add a section `plans: {column: NAME}`, which "
                "names a kept column of the input, or `plans: {lm: CARD}`, or give train.plans: headline"
            )
            found.append((("train", "plans"), lacks))
        return found

    def _without_section(self) -> list[tuple[tuple[str, ...], str]]:
        """Return what the report expects of columns, fits or a selection that this file does not make."""
        found: list[tuple[tuple[str, ...], str]] = []
        for name in self.report.expect if self.report else ():
            section = MEASURES[measure_of(name)[0]].section or ""
            there: Any = self
            for key in section.split(".") if section else ():
                there = getattr(there, key, None)
            if not there:
                first, _, key = section.partition(".")
                remedy = f"add `{first}: {{{key}: {{}}}}`" if key else f"add a section `{first}`"
                remedy += ", or leave the measure out"
                found.append((("report", "expect", name), f"report.expect.{name} needs what {section} makes: {remedy}"))
            elif name == "drifted" and not any(getattr(self, fit) for fit in FITS):
                fits = f"report.expect.drifted is about fits, and there are none: add one of {', '.join(FITS)}"
                found.append((("report", "expect", name), fits))
        return found

    @property
    def frozen(self) -> Frozen:
        """The decisions of the corpus; empty before `with_frozen`."""
        return self._frozen

    def with_frozen(self, frozen: Frozen) -> RunConfig:
        """Return the same configuration for a corpus with these decisions."""
        config = self.model_copy()
        config._frozen = frozen
        return config

    def with_places(self, places: SettingPlaces) -> Self:
        """Return the same configuration, which knows where its settings are made."""
        config = self.model_copy()
        config._places = places
        return config

    def place(self, *keys: str) -> str:
        """Return where a setting is made: "corpus.yaml:12", or the option; if it is left out, the place of its
        section.
        """
        return self._places.nearest(keys)

    @property
    def is_written(self) -> bool:
        """Whether somebody wrote its settings; what a run recorded names all settings, also those left out."""
        return bool(self._places)

    @property
    def hashes(self) -> HashSettings | None:
        """The stage that hashes what the section `duplicates` compares."""
        return self.duplicates.hashes if self.duplicates else None

    @property
    def minhash(self) -> MinhashSettings | None:
        """The stage that makes the keys by which nearly equal documents are found."""
        return self.duplicates.minhash if self.duplicates else None

    @property
    def near(self) -> NearDuplicatesSettings | None:
        """The stage that finds nearly equal documents."""
        return self.duplicates.near_duplicates if self.duplicates else None

    @property
    def semantic(self) -> SemanticDuplicatesSettings | None:
        """The stage that finds sentences that mean the same."""
        return self.duplicates.semantic_duplicates if self.duplicates else None

    @property
    def plan_embeddings(self) -> PlanEmbeddingSettings | None:
        """The stage that embeds the plans of paragraphs as the sentences are embedded."""
        if not self.plans or not self.encode:
            return None
        longest = self.segment.max_document_sentences
        return PlanEmbeddingSettings(
            **self.encode.model_dump(), **self.plans.model_dump(), max_document_sentences=longest
        )

    def asked_stages(self) -> tuple[StageSettings, ...]:
        """Return the row-wise stages that the file asks for, in order."""
        stages = (
            self.language, self.noise, self.hashes, self.minhash, self.encode, self.plan_embeddings, self.autobleu,
            self.fragility, self.predictor, self.rvq, self.duplicates, self.near, self.semantic,
        )  # fmt: skip
        return tuple(stage for stage in stages if stage)

    def row_stages(self) -> tuple[StageSettings, ...]:
        """Return the stages whose artifacts are fitted and whose sampling rates are known; the others wait for the
        pilot.
        """
        return tuple(ready for stage in self.asked_stages() if (ready := self._ready(stage)))

    def _ready(self, stage: StageSettings) -> StageSettings | None:
        if not self.frozen.fits.keys() >= set(stage.fits) or (stage.corpus_wide and not self.frozen.compared):
            return None
        rate = self.frozen.rates.get(stage.name)
        if rate is None:
            return None if isinstance(getattr(stage, "sample", None), Rows) else stage
        return stage.model_copy(update={"sample": rate})

    def scoring_the_pilot(self) -> RunConfig:
        """Return the configuration by which fragility scores the pilot for the predictor: at a rate of its own, if that
        is higher, until the predictor is fitted.
        """
        if not self.fragility or not self.fit.scored_rows:
            return self
        rate = self.frozen.rates.get("fragility", self.fragility.sample)
        if isinstance(rate, Rows) or rate >= self.fit.scored_rate:
            return self
        rates = {**self.frozen.rates, "fragility": self.fit.scored_rate}
        return self.with_frozen(replace(self.frozen, rates=rates))

    def as_yaml(self) -> str:
        """Return YAML from which `load_config` makes the same configuration; absent sections stay absent."""
        values = {key: value for key, value in self.model_dump(mode="json").items() if value is not None}
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    def keep_columns(self) -> tuple[str, ...]:
        """Return the metadata columns of all inputs, which every row of the corpus has."""
        return tuple(sorted({column for one in self.input for column in one.keep}))

    def stored_columns(self, one: InputSettings) -> tuple[str, ...]:
        """Return the metadata columns that files of an input have: those that it keeps, and that of plans, which a
        stage reads of every part.
        """
        of_plans = {self.plans.column} if self.plans and self.plans.column else set()
        return self.frozen.kept.get(str(one.name)) or tuple(sorted({*one.keep, *of_plans}))

    def kept_types(self, one: InputSettings) -> dict[str, ColumnType]:
        """Return the declared types, from any input, of the columns that this input keeps."""
        declared = {name: kind for other in self.input for name, kind in other.declared_types.items()}
        return {name: declared[name] for name in sorted(one.keep) if name in declared}
