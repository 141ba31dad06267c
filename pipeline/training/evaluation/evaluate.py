"""What `pipeline evaluate` does: the metrics of LCM 2.4.1 for trained models and two trivial baselines, on one split.

All are given the same documents, wrapped at the smallest context of the models. The table goes to the terminal, and as
JSON and CSV beside every model: train/<run>/evaluation/<split>.json.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from pipeline.base.errors import ConfigError, CorpusError, DamagedError, PipelineError
from pipeline.base.formats import counted, number
from pipeline.base.messages import print_plain
from pipeline.config.select import SelectSettings
from pipeline.config.train import TrainSettings
from pipeline.corpus.reader import Corpus
from pipeline.inputs.splits import SPLITS
from pipeline.storage.records import sealed
from pipeline.storage.store import Store
from pipeline.training.data.checks import check_or_say
from pipeline.training.data.end_of_text import END_OF_PARAGRAPH, END_OF_TEXT, LANG
from pipeline.training.data.index import Index, is_present, make_index, read_index
from pipeline.training.evaluation.held_out import HELD_OUT_READS, HeldOut, fitting
from pipeline.training.evaluation.measure import (
    BY_NEIGHBOURS,
    DECODED,
    LIKELIHOOD,
    METRICS,
    NORMALISED,
    Judge,
    MetricValue,
    measure,
    measure_words,
    predictions,
)
from pipeline.training.evaluation.seen import without_seen
from pipeline.training.evaluation.sweep import to_long_csv, to_svg
from pipeline.training.evaluation.table import ResultRow, SweptValue, show, to_csv, to_groups_csv, to_json
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.evaluation.trained import (
    Trained,
    check_can_write,
    check_options,
    load_trained,
    places_of,
    sampling_of,
)
from pipeline.training.metric_names import TITLES
from pipeline.training.record import Pinned, located
from pipeline.training.status import EvaluationTable, read_evaluation, training_statuses, without_record
from stages.causal_lm import load_language_card
from stages.lcm.baselines import MeanBaseline, Previous, SentencePredictor, Truth
from stages.lcm.card import options_of, trained_lcms
from stages.lcm.language_model import LanguageModel
from stages.lcm.model import Sampling
from stages.lcm.plans import PlanningPredictor
from stages.lcm.token_lm import TokenLm
from stages.scaler.robust import RobustScaler

POOL = 2048  # sentences that contrastive accuracy compares with
CONTEXT = 128  # sentences a document is wrapped at, where only baselines are evaluated


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The options of the command, as `pipeline/commands/train.py` explains them."""

    models: tuple[str, ...] = ()
    split: str = "test"
    sentences: int = 10_000
    metrics: str = "l2,l2_squared,l2_r,par,ca"
    language_model: str | None = None
    mi_sentences: int = 500
    seed: int = 0
    sampling: dict[str, Any] | None = None  # replaces the paper's
    of_file: TrainSettings | None = None  # the section train of the YAML file that was named
    context: int | None = None  # sentences that documents are wrapped at, if that is less than the models' contexts
    baselines: bool = True
    sweeps: Mapping[str, Sequence[float]] = field(default_factory=dict)  # option of sampling → values, one at a time
    by: str | None = None  # column of documents by which figures are also given
    left_out: frozenset[str] | None = None  # hashes of texts that are not judged, in place of what the models have seen


def evaluate(
    console: Console,
    corpus: Corpus,
    options: EvaluateOptions,
    find_device: Callable[[], str],
    find_index: Callable[[], Index],
) -> dict[str, ResultRow]:
    """Evaluate models on held-out documents, print the table, and write it beside the models.

    A model that cannot be evaluated is left out with a remark, unless it was asked for by name. If it is damaged, an
    error follows when all others have been evaluated.

    Args:
        console: where the table is printed.
        corpus: the corpus.
        options: the options of the command.
        find_device: says where networks compute; it is called once the options are checked.
        find_index: returns the index of the documents.

    Returns:
        Name of a model or baseline → its figures.

    Raises:
        ConfigError: for options that are not possible, before anything long begins.
        CorpusError: if a model is damaged.
        StorageError: if the folder of a model cannot be written, before anything is computed.
    """
    wanted = metrics_of(options.metrics, options.language_model)
    if options.split not in SPLITS:
        raise ConfigError(f"--split {options.split}: there is no such split; splits are {', '.join(SPLITS)}")
    card = load_language_card(options.language_model) if options.language_model else None
    places = places_of(corpus, options.models)
    check_can_write(places)
    index = find_index()
    if options.left_out is None:  # else it is a comparison, whose trainings have compared them
        check_or_say(console, corpus, index, HELD_OUT_READS)
    device = find_device()
    left_out = _LeftOut(console, asked=bool(options.models))
    trained = _load(places, index, device, options, left_out)
    if any(isinstance(one.model, TokenLm) for one in trained) and not LIKELIHOOD & set(wanted):
        wanted += ("nll", "bpc")  # a token model has no other metrics
    held = _held_out(console, index, options, trained)
    words = _words(corpus, device, wanted, index.dim, held)
    language_model = LanguageModel(card, device=device) if card else None
    scaler = _scaler(corpus, wanted, trained)
    pool = pool_of(held, options.seed)
    judge = Judge(held, wanted, pool, words, language_model, options.mi_sentences, device, scaler)
    rows, evaluated = _judged(console, judge, trained, options, left_out)
    about = _about(index, held, judge, options)
    if not options.models:
        _note_unfinished(corpus, left_out)
    if not places:
        console.print("No model is trained on this corpus yet: pipeline train corpus.yaml", style="yellow")
    show(console, rows, about)
    answering = [one.name for one in evaluated if one.about.pinned.settings.get("answers")]
    if answering:
        print_plain(
            console, f"{', '.join(answering)}: trained on answers; these metrics are over all sentences, prompts too"
        )
    _write(console, evaluated, _files(rows, about, options), about["sentences"], wanted)
    left_out.raise_for_damaged()
    return rows


@dataclass(frozen=True)
class _LeftOut:
    """Models that something is wrong with are left out, unless they were asked for by name.

    damaged: their names, except those of models that are only not of this corpus as it is.
    """

    console: Console
    asked: bool
    damaged: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except PipelineError as error:
            if self.asked:
                raise
            print_plain(self.console, f"left out: {error}", style="yellow")
            if not isinstance(error, ConfigError) and name not in self.damaged:
                self.damaged.append(name)

    def raise_for_damaged(self) -> None:
        if self.damaged:
            raise CorpusError(
                f"{counted(len(self.damaged), 'model')} of this corpus could not be evaluated: "
                f"{', '.join(self.damaged)}; the lines 'left out' say why. The others are evaluated"
            )


def _load(places: list[str], index: Index, device: str, options: EvaluateOptions, left_out: _LeftOut) -> list[Trained]:
    """Load the models that can be evaluated: once for each value of a sweep."""
    trained: list[Trained] = []
    for place in places:
        with left_out.noting(_name(place)):
            trained.append(load_trained(place, index, device, False, options.sampling, options.of_file))
    check_options(trained, options.sampling)
    trained = [each for one in trained for each in _with_values(one, options.sweeps)]
    if options.sweeps and not any(one.swept for one in trained):
        raise ConfigError(f"--sweep {', '.join(options.sweeps)}: no model that is evaluated reads it; leave it out")
    return trained


def _with_values(one: Trained, sweeps: Mapping[str, Sequence[float]]) -> list[Trained]:
    """Return a model once for each value of the options that it reads; as it is, where there is no sweep at all."""
    if not sweeps:
        return [one]
    return [
        replace(one, sampling=_replaced(one.sampling, option, value), swept=SweptValue(one.name, option, value))
        for option, values in sweeps.items()
        if option in options_of(one.model.card)
        for value in values
    ]


def _replaced(sampling: Sampling, option: str, value: Any) -> Sampling:
    return replace(sampling, **{option: value})


def _held_out(console: Console, index: Index, options: EvaluateOptions, trained: list[Trained]) -> HeldOut:
    """Return the documents, cut so that they fit all models, without texts that the models were trained on."""
    contexts = [one.model.card.context for one in trained] + ([options.context] if options.context else [])
    context = min(contexts, default=CONTEXT)
    planning = [one.model.card.context for one in trained if one.plans]
    held, shorter = fitting(
        index, options.split, max_sentences=context, sentences=options.sentences, by=options.by, planning=planning
    )
    if options.left_out is None:
        held, _ = without_seen(console, index, options.split, held, trained)
    else:
        held = held.without([one in options.left_out for one in held.hashes])
    if shorter < context:
        print_plain(
            console,
            f"documents are cut at {counted(shorter, 'sentence')}, since plans and breaks take room in a context",
            style="dim",
        )
    return held


def _words(corpus: Corpus, device: str, wanted: tuple[str, ...], dim: int, held: HeldOut) -> TextCodec:
    """Return what decodes and encodes. Raises `ConfigError` if it cannot decode what the metrics need."""
    words = TextCodec.of(corpus, device)
    if (DECODED | LIKELIHOOD) & set(wanted):
        words.check_dimension(dim)
        for lang in sorted(set(held.langs)):
            words.check_language(lang, "decoding sentences in")
    return words


def _scaler(corpus: Corpus, wanted: tuple[str, ...], trained: list[Trained]) -> RobustScaler | None:
    """Return the corpus's scaler, or that of a model. Raises `ConfigError` if there is none, but metrics need it."""
    from pipeline.corpus.fits import fitted_scaler

    scaler = fitted_scaler(corpus.store, corpus.view) or next((one.model.scaler for one in trained), None)
    if NORMALISED & set(wanted) and scaler is None:
        named = ", ".join(name for name in wanted if name in NORMALISED)
        raise ConfigError(f"--metrics {named} needs a scaler: add `scaler: {{}}` to corpus.yaml and run it")
    return scaler


def _judged(
    console: Console, judge: Judge, trained: list[Trained], options: EvaluateOptions, left_out: _LeftOut
) -> tuple[dict[str, ResultRow], list[Trained]]:
    """Return the figures of each model and baseline by name, and the models among them."""
    rows: dict[str, ResultRow] = {}
    evaluated: list[Trained] = []
    for one, name, predictor, sampling in _predictors(trained, judge, options.baselines):
        predict = partial(predictions, predictor, judge.held, sampling, options.seed, judge.device)
        if one is None:
            rows[name] = ResultRow(_figures(console, name, judge, None, predict))
            continue
        with left_out.noting(one.name):
            found = _figures(console, name, judge, one, predict)
            breaks = predictor.breaks if isinstance(predictor, PlanningPredictor) else None
            if one.model.card.objective == "sonar-llm":
                breaks = None  # its predictions are known by their text alone
            rows[name] = ResultRow(found, one.about.steps, asdict(sampling), one.swept, breaks, one.about.weights)
            evaluated.append(one)
    return rows, evaluated


def _predictors(
    trained: list[Trained], judge: Judge, baselines: bool
) -> list[tuple[Trained | None, str, SentencePredictor, Sampling]]:
    """Return what is compared, by name: models, then those that learned nothing."""
    found: list[tuple[Trained | None, str, SentencePredictor, Sampling]] = []
    planning = any(one.plans for one in trained)
    closing = judge.words.encode([END_OF_PARAGRAPH, END_OF_TEXT], [LANG] * 2) if planning else None
    for one in trained:
        name = one.name if one.name not in [row[1] for row in found] else one.place
        of = one.about.pinned.settings["steps"]
        name += "" if one.about.steps == of else f" (step {one.about.steps} of {of})"
        if one.swept:
            name = f"{one.name}, {one.swept.option} {one.swept.shown}"
            name = name if name not in [row[1] for row in found] else f"{one.place}, {name.partition(', ')[2]}"
        predictor: SentencePredictor = one.model
        if one.plans and closing is not None:
            predictor = PlanningPredictor(one.model, closing[0], closing[1])
        found.append((one, name, predictor, one.sampling))
    if not baselines:
        return found
    found.append((None, "previous sentence", Previous(), Sampling()))
    if judge.scaler is not None:
        found.append((None, "median vector", MeanBaseline(judge.scaler.median), Sampling()))
    return [*found, (None, "the sentence itself", Truth(), Sampling())]


def _figures(
    console: Console, name: str, judge: Judge, trained: Trained | None, predict: Callable[[], Tensor]
) -> dict[str, MetricValue]:
    with console.status(f"{escape(name)}: predicting") as status:
        try:
            if trained and isinstance(trained.model, TokenLm):
                return measure_words(judge, trained.model, trained.tokenizer, trained.sampling)
            return measure(judge, predict(), lambda step: status.update(f"{escape(name)}: {step}"))
        except ValueError as error:
            raise CorpusError(f"{name}: {error}") from error


def _note_unfinished(corpus: Corpus, left_out: _LeftOut) -> None:
    """Say which trainings of the corpus have no model that could be evaluated."""
    for status in training_statuses(corpus.store):
        if not status.holds_model:
            with left_out.noting(_name(status.run)):
                if status.damaged:
                    raise CorpusError(status.damaged)
                raise ConfigError(f"{status.run} has no checkpoint yet")
    for run in without_record(corpus.store):
        with left_out.noting(_name(run)):
            sampling_of(f"{corpus.url.rstrip('/')}/{run}")


def _name(place: str) -> str:
    return place.rpartition("/")[2]


def _about(index: Index, held: HeldOut, judge: Judge, options: EvaluateOptions) -> dict[str, Any]:
    documents, sentences = len(set(held.wholes)), len(held.judged)
    said = f"{counted(sentences, 'sentence')} of {counted(documents, 'document')} of {index.about.corpus}, split "
    said += f"{options.split}, drawn at random" if held.drawn else options.split
    if index.about.select.get("where") is not None:
        said += ", of what `select` keeps"
    if BY_NEIGHBOURS & set(judge.wanted):
        said += f"; contrastive accuracy against {number(len(judge.pool))} sentences"
    by = {"by": options.by} if options.by else {}
    return {
        "said": said,
        **by,
        "corpus": index.about.corpus,
        "index": index.digest,
        "split": options.split,
        "documents": documents,
        "sentences": sentences,
        "sentences_asked": options.sentences,
        "pool": len(judge.pool),
        "seed": options.seed,
        "encoder": index.about.model,
        "decoder": judge.words.decoding.model,
        "language_model": options.language_model,
    }


def _files(rows: dict[str, ResultRow], about: dict[str, Any], options: EvaluateOptions) -> dict[str, bytes]:
    """Return the files of a table by name."""
    files = {".json": sealed(to_json(rows, about)), ".csv": to_csv(rows).encode()}
    if options.by:
        by = f"-by-{re.sub(r'[^A-Za-z0-9._-]', '_', options.by)}.csv"
        files[by] = to_groups_csv(rows, options.by).encode()
    if options.sweeps:  # beside the table of the usual values, which stays
        files = {f"-sweep{ending}": data for ending, data in files.items()}
        files |= {"-sweep.csv": to_long_csv(rows).encode(), "-sweep.svg": to_svg(rows)}
    elif options.sampling:  # other options than the training's, by which it is described
        files = {f"-sampled{ending}": data for ending, data in files.items()}
    return {f"{options.split}{ending}": data for ending, data in files.items()}


def _write(
    console: Console, evaluated: list[Trained], files: dict[str, bytes], sentences: int, metrics: Sequence[str]
) -> None:
    """Write the table beside each model. Models that ship with the package get none."""
    for place in dict.fromkeys(one.place for one in evaluated if one.place not in trained_lcms().values()):
        store, folder = located(place)
        for name, data in files.items():
            path = f"{folder}/evaluation/{name}"
            before = _more(store, path, sentences, metrics) if name.endswith(".json") else ""
            store.write(path, data)
            print_plain(console, f"{place.rstrip('/')}/evaluation/{name} written")
            if before:
                what = f"This replaces a table {before}; an export of the model shows the new figures."
                print_plain(console, what, style="yellow")


def table_at(store: Store, path: str) -> EvaluationTable | None:
    """Read the table beside a model; None if there is none, or if it is damaged: it is made again."""
    try:
        return read_evaluation(store, path) if store.exists(path) else None
    except DamagedError:
        return None


def _more(store: Store, path: str, sentences: int, metrics: Sequence[str]) -> str:
    """Say of what the table at `path` is, if it is of more sentences or of other metrics too; otherwise nothing."""
    if (table := table_at(store, path)) is None:
        return ""
    if table.sentences > sentences:
        return f"of {table.said}"
    lost = dict.fromkeys(name for one in table.models.values() for name in one.metrics if name not in metrics)
    return f"that also has {', '.join(TITLES.get(name, name) for name in lost)}" if lost else ""


def pool_of(held: HeldOut, seed: int) -> Tensor:
    """Return the places of the sentences that contrastive accuracy compares with: `POOL` drawn from all, ascending."""
    drawn = torch.randperm(len(held.embeddings), generator=torch.Generator().manual_seed(seed))
    return drawn[:POOL].sort().values


def metrics_of(text: str, language_model: str | None) -> tuple[str, ...]:
    """Return the metrics that a list like `l2,ca` names. Raises `ConfigError` for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    names += ["mi"] if language_model and "mi" not in names else []
    unknown = [name for name in names if name not in METRICS]
    if unknown or not names:
        what = f"there is no metric {', '.join(unknown)}" if unknown else "none is named"
        raise ConfigError(f"--metrics {text}: {what}; metrics are {', '.join(METRICS)}")
    if "mi" in names and not language_model:
        raise ConfigError("--metrics mi needs a language model: --language-model gpt2, smollm2 or a card's file")
    return tuple(names)


def index_of_training(corpus: Corpus, pinned: Pinned) -> Index:
    """Return the index of the corpus that a training is pinned to, or what its selection gives now.

    If it was trained on answers, the index knows where they begin. The index has no plans: held-out documents are the
    same for models with and without them. That of a model with plans is made of the corpus as it is now. Raises
    `ConfigError` if the corpus lacks a column that the training needs.
    """
    digest = pinned.indexes[0].digest
    if is_present(corpus, digest) and pinned.settings.get("plans", "none") == "none":
        return read_index(corpus, digest)
    return make_index(
        corpus, SelectSettings.model_validate(pinned.select or {}), answers=pinned.settings.get("answers")
    )
