"""Checks whether sections of a corpus.yaml get what they need: conditions their columns, trainings and fits
their data.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.base.errors import ConfigError
from pipeline.base.extras import missing_extras
from pipeline.base.formats import counted, number
from pipeline.conditions.condition import Condition
from pipeline.conditions.expression import parse
from pipeline.config.run_config import RunConfig
from pipeline.config.select import SelectSettings
from pipeline.config.stages import FITS
from pipeline.config.train import OF_CARD, TrainSettings
from pipeline.corpus.fits import freeze
from pipeline.corpus.part_reader import Column, columns_of
from pipeline.inputs import SPLITS, ChunkTable, InputSettings
from pipeline.inputs.column_types import TEXT, ColumnType, common_type
from pipeline.inputs.documents import short
from pipeline.inputs.samples import COUNTED, RecordSample
from pipeline.inputs.splits import split_column
from pipeline.planning.pilot_size import POINTS_PER_UNIT, check_learnable, sentences_in, sentences_of
from pipeline.storage import layout
from pipeline.storage.local_files import refusal
from pipeline.storage.remote import is_remote, missing_bucket, no_output
from pipeline.storage.store import REMEDIES, Store
from stages.cards import CardError
from stages.lcm.card import load_lcm_card, trained_lcms
from stages.sonar.card import load_card

MOST = 100_000  # values of a column that are tried
SHOWN = 8  # languages in a message
ADDED_TOKENS = 2  # language tag and </s>, which the cap may leave out
SHORTEST = 8  # times shorter than usual sentences may be, as titles and chats are
Problem = tuple[tuple[str, ...], str]  # path of keys, and what is wrong there
_SECTIONS = {  # family of columns → the section that makes it
    "language": "language: {}", "noise": "noise: {}", "hashes": "duplicates: {}", "duplicates": "duplicates: {}",
    "minhash": "duplicates: {near: {}}", "near-duplicates": "duplicates: {near: {}}",
    "semantic-duplicates": "duplicates: {semantic: {}}", "embeddings": "encode: {}", "status": "encode: {}",
    "plans": "plans: {column: NAME}", "plan-embeddings": "plans: {column: NAME}",
    "autobleu": "autobleu: {}", "fragility": "fragility: {}", "fragility-predicted": "predictor: {}",
    "codes": "rvq: {}",
}  # fmt: skip
_MADE_BY = {
    name: f"add a section `{section}`, which makes it"
    for family, section in _SECTIONS.items()
    for name in layout.schema(family, width=1).names
}


@dataclass(frozen=True)
class KeptSample:
    """Kept columns according to the first records: their types, and which are null there.

    undeclared: those whose type further records may change.
    """

    types: Mapping[str, ColumnType]
    undeclared: frozenset[str] = frozenset()
    null: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: RunConfig, samples: Sequence[tuple[InputSettings, RecordSample]]) -> KeptSample:
        """Describe the kept columns by the samples of those inputs that can be read."""
        declared = {name: kind for one in config.input for name, kind in config.kept_types(one).items()}
        found: dict[str, list[ColumnType]] = {}
        for _, first in samples:
            for name, kind in first.kept_types().items():
                found.setdefault(name, []).append(kind)
        types = {name: common_type(kinds) for name, kinds in found.items()} | declared
        null = {
            name
            for name in types
            if any(name not in first.kept or None in first.kept[name] for _, first in samples if first.documents)
        }
        return cls(types, frozenset(types) - frozenset(declared), frozenset(null))

    def as_text(self) -> KeptSample:
        """Return the sample with columns of undeclared type as text, as corpora of earlier versions store them."""
        return KeptSample({name: TEXT if name in self.undeclared else kind for name, kind in self.types.items()})


def section_problems(
    config: RunConfig, chunks: ChunkTable | None, samples: Sequence[tuple[InputSettings, RecordSample]]
) -> list[Problem]:
    """Return what is wrong between sections, and with files that they name.

    Args:
        config: the configuration.
        chunks: the chunks of the inputs; None if they cannot be listed.
        samples: (settings, sample) of the inputs that can be read.

    Returns:
        Where in the configuration, and what; empty if all is well.
    """
    whole = chunks is not None and len(samples) == len(config.input) and all(first.whole for _, first in samples)
    read = [first for _, first in samples] if whole else []
    return [
        *_select(config, KeptSample.of(config, samples)),
        *_plans(config, samples),
        *_train(config, read),
        *training_problems(config),
        *_codes(config, chunks, read),
        *_predictor(config, chunks, read),
        *_files(config),
        *_output(config),
    ]


def near(name: str, known: Collection[str]) -> str:
    """Return a hint with the names that were probably meant; empty if none is similar."""
    alike = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(alike)}? " if alike else ""


def _available(config: RunConfig, kept: KeptSample) -> tuple[Mapping[str, Column], set[str]]:
    """Return the columns that the corpus will have, and those of them that a sample leaves null."""
    made, sampled = [f"sentences.{name}" for name in layout.schema("sentences").names], set[str]()
    for stage in config.asked_stages():
        columns = [(family, name) for family in stage.writes for name in layout.schema(family, width=1).names]
        made += [f"{family}.{name}" for family, name in columns]
        if getattr(stage, "sample", 1.0) != 1.0:
            sampled |= {name for _, name in columns}
    made += [f"documents.{name}" for name in (*layout.DOCUMENT_COLUMNS, *config.keep_columns())]
    return columns_of(set(made), kept.types), sampled


def _select(config: RunConfig, kept: KeptSample) -> Iterator[Problem]:
    if config.select:
        found = list(_condition(config, config.select, ("select",), kept))
        begun = not is_remote(config.output) and Path(config.output, layout.CORPUS_FILE).exists()
        if found and kept.undeclared and begun:
            found = list(_condition(config, config.select, ("select",), kept.as_text())) and found
        yield from found
    for index, other in enumerate(config.train.corpora if config.train else ()):
        if not is_remote(other.path) and not Path(other.path, layout.CORPUS_FILE).exists():
            yield ("train", "corpora", str(index), "path"), f"train.corpora: {other.path} is not a corpus"


def _condition(config: RunConfig, select: SelectSettings, keys: tuple[str, ...], kept: KeptSample) -> Iterator[Problem]:
    """Check a condition against the columns that there will be, and against those that a sample leaves null."""
    if select.where is None:
        return
    columns, sampled = _available(config, kept)
    types = {column.name: column.type for column in columns.values()}
    try:
        condition = parse(select.where, types, "select.where", absent=_MADE_BY, kept=kept.types)
    except ConfigError as error:
        yield keys, str(error)
        return
    yield from ((keys, text) for text in _impossible_clauses(config, condition, types))
    for column in condition.undecided(sampled | kept.null):
        clause = next(one for one in condition.clauses if column in one.columns and column not in one.null_columns)
        keep, leave_out = clause.with_nulls(condition.undecided(sampled | kept.null))
        which = "rows that are not sampled" if column in sampled else "documents that do not say it"
        or_all = "; or set `sample: 1.0`" if column in sampled else ""
        yield (
            keys,
            f"select.where: {column} is null in {which}, and `{clause.text}` does not say what becomes of "
            f"them. To keep them: {keep}; to leave them out: {leave_out}{or_all}",
        )


def _plans(config: RunConfig, samples: Sequence[tuple[InputSettings, RecordSample]]) -> Iterator[Problem]:
    """Check that the column of plans holds texts or lists of texts."""
    if not config.plans or not config.plans.column:
        return
    name, allowed = config.plans.column, "allowed are string and list<string>: a text, or a list with one per paragraph"
    declared = {kind for one in config.input for column, kind in one.declared_types.items() if column == name}
    if wrong := declared - {TEXT, ColumnType.list_of(TEXT)}:
        yield ("plans", "column"), f"plans.column: keep says that {name} is {wrong.pop()}; {allowed}"
        return
    for one, first in samples:
        for value in first.kept.get(name, ()):
            if not all(
                each is None or isinstance(each, str) for each in (value if isinstance(value, list) else [value])
            ):
                yield (
                    ("plans", "column"),
                    f"plans.column: {name} of a document in {one.path} is {short(value)}; {allowed}",
                )
                break


def _train(config: RunConfig, read: Sequence[RecordSample]) -> Iterator[Problem]:
    """Check what a training needs of other sections, which would otherwise fail only when the corpus is done.

    read: the samples of all inputs, if these are all their records.
    """
    train = config.train
    if not train:
        return
    if config.encode is None:
        yield ("train",), "train needs what encode makes: add a section `encode: {}`"
    quantised = False
    with contextlib.suppress(CardError):  # reported elsewhere
        quantised = load_lcm_card(train.model).quantised
        quantised = train.card.quantised
    if quantised and config.rvq is None:
        yield (
            ("train", "model"),
            f"train.model {train.model} models codes, which nothing makes here; add a section "
            "`rvq: {codebooks: 8, units: 256}`",
        )
    if train.weights == "fragility" and config.predictor is None:
        yield (
            ("train", "weights"),
            ("train.weights is fragility, which nothing makes here; add sections `fragility: {}` and `predictor: {}`"),
        )
    if train.answers is not None and train.answers not in config.keep_columns():
        kept = config.keep_columns()
        yield (
            ("train", "answers"),
            f"train.answers is {train.answers!r}, which no input keeps; {near(train.answers, kept)}"
            f"kept are: {', '.join(kept) or 'none'} (input: keep)",
        )
    if split_column(config.split) is None or not hasattr(config.split.by, "column"):
        if config.split.validation + config.split.test >= 1:
            yield ("split",), "train has nothing to learn from: validation and test take all documents; lower one"
        if train.validation_concepts and not config.split.validation:
            yield (
                ("split", "validation"),
                "split.validation is 0, so the training has nothing to be validated on; give it a share, or set "
                "train.validation_concepts: 0",
            )
            return
    yield from _empty_splits(config, read)


def training_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield what is wrong with the section train, whatever the corpus holds."""
    train = config.train
    if not train:
        return
    if config.is_written and train.epochs is not None and "steps" in train.model_fields_set:
        yield ("train", "epochs"), "train.epochs and train.steps both say how long it trains; give one of them"
    try:
        load_lcm_card(train.model)
    except CardError:
        pass  # reported elsewhere
    else:
        try:
            card = train.card
            if card.context > train.micro_concepts:
                yield (
                    ("train", "micro_concepts"),
                    f"train.micro_concepts is {train.micro_concepts}, the context of {card.name} {card.context}: a "
                    f"document may be that long; give {card.context} or more, and no less for train.batch_concepts",
                )
        except CardError as error:  # of an objective or of sampling that the model does not know
            where, _, said = str(error).partition(":")
            named = (one for one in re.findall(r"\w+", said) if one in OF_CARD and one in train.model_fields_set)
            keys = where.split(".") if where.startswith("train.") else ("train", next(named, "objective"))
            yield tuple(keys), str(error)
    yield from ((("train", "trackers"), text) for text in tracker_problems(train, config.output))
    first = train.init_from
    if first and first not in (ships := trained_lcms()) and "://" not in first and not Path(first).exists():
        yield (
            ("train", "init_from"),
            f"train.init_from {first} does not exist; give the folder of a trained model, …/train/NAME, or one that "
            f"ships: {', '.join(ships)}",
        )


def _empty_splits(config: RunConfig, read: Sequence[RecordSample]) -> Iterator[Problem]:
    """Check in small corpora that the splits that a training needs have documents."""
    splits = sum((one.splits for one in read), Counter[str]())
    assert config.train
    for split in ("train", "validation") if config.train.validation_concepts else ("train",):
        if splits and not splits[split]:
            other = "; or set train.validation_concepts: 0" if split == "validation" else ""
            yield (
                ("split", "validation"),
                f"split: none of the {counted(splits.total(), 'document')} of the inputs is in the split {split}, "
                f"which train needs; give it a larger share, or more documents{other}",
            )


def _codes(config: RunConfig, chunks: ChunkTable | None, read: Sequence[RecordSample]) -> Iterator[Problem]:
    """Check that codebooks have no more units than the pilot has sentences.

    read: the samples of all inputs, if these are all their records.
    """
    if not config.rvq or config.rvq.file or chunks is None:
        return
    most = min(config.fit.rows, config.rvq.rows)
    few = _few_sentences(chunks, config.rvq.units)
    if read and max(one.characters for one in read) <= COUNTED:
        counted_here = math.ceil(_slack(config) * sum(one.sentences for one in read))
        few = counted_here if counted_here < config.rvq.units else few
    if most < config.rvq.units:
        yield (
            ("rvq", "units"),
            f"rvq.units is {config.rvq.units}, more than the {number(most)} sentences that rvq.rows and fit.rows "
            "give the fit; lower it, or raise those",
        )
    elif few is not None:
        good = f"{POINTS_PER_UNIT} sentences per unit and more make good codebooks"
        todo = f"lower it ({good}: {max(2, few // POINTS_PER_UNIT)})" if few > 2 else f"give more documents ({good})"
        yield (
            ("rvq", "units"),
            f"rvq.units is {config.rvq.units}, but the inputs hold fewer than {counted(few, 'sentence')}; {todo}"
            if few
            else "rvq needs sentences, and the inputs hold none that can be used",
        )


def _predictor(config: RunConfig, chunks: ChunkTable | None, read: Sequence[RecordSample]) -> Iterator[Problem]:
    """Check that fragility will score as many rows as the predictor needs, unless that is fitted."""
    if not config.predictor or config.predictor.file or not config.fragility or chunks is None:
        return
    most = SHORTEST * float(sentences_of(chunks) + len(chunks))
    if read and max(one.characters for one in read) <= COUNTED:
        most = min(most, _slack(config) * sum(one.sentences for one in read))
    try:
        check_learnable(config, most, f"the inputs hold at most about {counted(math.ceil(most), 'sentence')}")
    except ConfigError as error:
        if "predictor" not in freeze(Store(config.output), config, ()).frozen.fits:
            yield ("fragility", "sample"), str(error)


def _slack(config: RunConfig) -> float:
    """Return how many times more sentences there may be than are counted: SaT finds some without marks, too."""
    return 3.0 if config.segment.uses_sat else 1.3


def _few_sentences(chunks: ChunkTable, needed: int) -> int | None:
    """Return the largest possible number of sentences if it is less than `needed`, however short they are;
    else None.
    """
    total = 0
    for chunk in chunks:
        total += SHORTEST * (sentences_in(chunk) + 1)
        if total >= needed:
            return None
    return total


def _files(config: RunConfig) -> Iterator[Problem]:
    """Check that artifacts of other corpora exist."""
    for section in FITS:
        file = getattr(getattr(config, section), "file", None)
        if file and not is_remote(file) and not Path(file).is_file():
            yield (
                (section, "file"),
                (f"{section}.file {file} does not exist; give the path of a file in a corpus's fits/, or leave it out"),
            )


def _output(config: RunConfig) -> Iterator[Problem]:
    """Check that this user may write to a local output folder, and that a URL names a bucket that exists; whether it
    can be written is tested by `doctor` and by the run.
    """
    if why := no_output(config.output):
        yield ("output",), f"output {config.output}: {why}; give a folder, or a URL: s3://… gs://… az://…"
        return
    if is_remote(config.output):
        try:
            Store(config.output)
        except ConfigError as error:
            yield ("output",), f"output {error}"
            return
        protocol, _, rest = config.output.partition("://")
        if not rest.partition("/")[0]:
            yield ("output",), f"output {config.output} names no bucket; write {protocol}://BUCKET/FOLDER"
        elif bucket := missing_bucket(config.output):
            yield ("output",), f"output {config.output}: there is no bucket {bucket}; make it, or correct its name"
        return
    path = Path(config.output).absolute()
    for folder in (path, *path.parents):
        if os.path.lexists(folder):
            if not os.path.isdir(folder):  # noqa: PTH112 (Path.is_dir raises where it may not look)
                yield ("output",), f"output {config.output} lies in {folder}, which is not a folder; give another"
            elif refused := refusal(folder):
                why = f"{os.strerror(refused)} ({folder}); {REMEDIES[refused]}"
                yield ("output",), f"output {config.output} cannot be written: {why}"
            return


def tracker_problems(settings: TrainSettings, output: str) -> Iterator[str]:
    """Yield what keeps the trackers of a training from working here. `output`: the folder or URL of the corpus."""
    needed = [name for name in settings.trackers if name != "tensorboard"]
    if lacking := missing_extras(needed):
        yield f"train.trackers: {lacking}"
    remote = is_remote(output)
    if "mlflow" in needed and remote and not os.environ.get("MLFLOW_TRACKING_URI"):
        yield (
            f"train.trackers: mlflow keeps its runs in the folder of a training, and {output} is not a folder of "
            "this machine; set MLFLOW_TRACKING_URI to a server, or to sqlite:////PATH/mlflow.db"
        )
    offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
    if "wandb" in needed and remote and offline and not os.environ.get("WANDB_DIR"):
        yield (
            "train.trackers: wandb writes its runs into the folder of a training when it is offline, and "
            f"{output} is not a folder of this machine; set WANDB_DIR to a folder"
        )


def _impossible_clauses(config: RunConfig, condition: Condition, types: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Yield a message for each clause that keeps no sentence, whatever the inputs hold.

    Only columns with few possible values are looked at: characters, tokens, language and split of a sentence.
    """
    for clause in condition.clauses:
        for name, values, told in _domains(config) if len(clause.columns) == 1 else ():
            if clause.columns == (name,) and name in types:
                table = pa.table({name: pa.array(values, types[name])})
                if not clause.filter(table).num_rows:
                    yield f"select.where: `{clause.text}` keeps no sentence, because {told}"


def _domains(config: RunConfig) -> Iterator[tuple[str, Sequence[Any], str]]:
    """Yield columns, all the values that they can have, and how to say it."""
    if config.segment.capped:
        for name, most, unit in (
            ("chars", config.segment.max_chars, "characters"),
            ("tokens", config.segment.max_tokens, "tokens"),
        ):
            if most and most <= MOST:
                told = f"sentences have from 1 to {number(most)} {unit} (segment.max_{name})"
                yield name, range(1, most + 1 + (ADDED_TOKENS if name == "tokens" else 0)), told
    if langs := _languages(config):
        shown = ", ".join(langs[:SHOWN]) + (f" and {len(langs) - SHOWN} more" if len(langs) > SHOWN else "")
        yield "lang", langs, f"the languages are {shown}"
    shares = {"train": 1 - config.split.validation - config.split.test, "validation": config.split.validation}
    shares["test"] = config.split.test
    by_column = split_column(config.split) is not None and hasattr(config.split.by, "column")
    splits = [name for name in SPLITS if by_column or shares[name] > 0]
    yield "split", splits, f"all documents are in {' or '.join(splits)} (split)"


def _languages(config: RunConfig) -> list[str]:
    """Return the languages that documents can have: those of the inputs, or if documents say it, the model's."""
    if all(isinstance(one.lang, str) for one in config.input):
        return sorted({str(one.lang) for one in config.input})
    try:
        return sorted(load_card(config.segment.model).languages)
    except CardError:  # reported elsewhere
        return []
