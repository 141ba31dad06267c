"""Implements `pipeline train`: checks, pins the training, starts its processes, and reports the result.

Running again resumes from the newest checkpoint. A training keeps the index, the scaler and the codebooks that it began
with, whatever is added to the corpus; changes of other meaning settings are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError, DamagedError
from pipeline.base.extras import missing_extras
from pipeline.base.formats import counted, number
from pipeline.base.messages import print_plain
from pipeline.config.frozen import FitRef
from pipeline.config.run_config import RunConfig
from pipeline.config.select import SelectSettings
from pipeline.config.train import TrainSettings
from pipeline.coordination.leases import Lease
from pipeline.coordination.lock import locked
from pipeline.corpus.fingerprint import content_digest, fingerprint
from pipeline.corpus.fits import read_artifact, record_of
from pipeline.corpus.reader import Corpus
from pipeline.corpus.tombstones import purged_from
from pipeline.planning.section_checks import training_problems
from pipeline.select.command import unfinished
from pipeline.storage.retry import be_patient
from pipeline.storage.store import Store
from pipeline.training import checkpoint
from pipeline.training.checkpoint_markers import markers
from pipeline.training.data.checks import (
    check_columns,
    check_files,
    check_mix,
    check_or_say,
    say_if_changed,
    texts_in_train,
)
from pipeline.training.data.command import said_of_plans
from pipeline.training.data.index import Index, TrainingSource, is_present, make_index, read_index, whole_index
from pipeline.training.data.order import mean_sentences
from pipeline.training.data.sequences import Sequences
from pipeline.training.data.snapshot import FAMILIES_OF_PLANS, encoder_used
from pipeline.training.log import learned
from pipeline.training.record import (
    BROKEN,
    RECORD,
    Fit,
    Pinned,
    PinnedIndex,
    Started,
    as_begun,
    asked,
    check_own_folder,
    check_weights,
    continues_full_attention,
    differences,
    encoder_of,
    located,
    places_of_indexes,
    read_started,
    refuse,
    write_started,
)
from pipeline.training.status import CHECKPOINTS, MODEL, SCALER, clear_failure
from stages.lcm.card import LcmCard

Begin = Callable[[int], None]  # (processes that will train): writes what they read; what cannot be is refused first
# (console, corpus, run, processes, begin): trains, and returns whether it was asked to stop
Spread = Callable[[Console, str, str, int | None, Begin], bool]


def train(console: Console, config: RunConfig, fresh: bool = False, spread: Spread | None = None) -> None:
    """Train the model of `config.train` until it is done.

    Args:
        console: where progress is shown.
        config: the configuration, with a section `train`.
        fresh: whether what was trained under that name is deleted first, once all checks have passed.
        spread: starts the processes; None to start them on this machine.

    Raises:
        KeyboardInterrupt: if it was asked to stop, also while it ended; what was trained is saved.
    """
    from pipeline.training.local import check_processes, here
    from pipeline.training.model_file import check_fits, check_model
    from pipeline.training.worker import progress

    be_patient(config.launcher.storage_patience)
    settings, store = settings_of(config), Corpus(config.output).store
    if spread is None:
        check_processes(settings.processes, settings.oversubscribe)
    with alone(store, settings):
        checked = check(console, config, fresh)
        run = checked.run
        if checked.is_trained:
            checked.begin(1)
            check_model(store, run)
            say_trained(console, store, run)
            return
        if spread is None:
            check_fits(store, checked.started.pinned)
        asked = (spread or here)(console, config.output, run, settings.processes, checked.begin)
    now = progress(store, run)
    if not now.finished:
        console.print(f"stopped at step {now.steps} of {now.of}, which is saved", highlight=False)
        raise KeyboardInterrupt
    print_plain(console, f"{learned(store, run)}: {config.output}/{run}")
    if asked:  # during the last step or after it: what else the command would do is left for the next time
        raise KeyboardInterrupt


def say_trained(console: Console, store: Store, run: str) -> None:
    """Say that a model is trained, and whether it learned from documents that have been purged since.

    Args:
        console: where it is printed.
        store: the corpus, which is looked at, and so are the others of the mix.
        run: the folder of the training.
    """
    console.print(f"{run} is trained: nothing to do (--fresh starts over)", markup=False, highlight=False)
    started = read_started(store, run)
    places = zip(places_of_indexes(started.pinned, started.settings), started.pinned.indexes, strict=True)
    if any(one.digest[:12] in purged_from(Store(url) if url else store) for url, one in places):
        console.print(
            f"{run} learned from documents that were purged since; without them: pipeline train corpus.yaml --fresh",
            style="yellow",
            markup=False,
            highlight=False,
        )


def settings_of(config: RunConfig) -> TrainSettings:
    """Return the section train. Raises `ConfigError` if there is none."""
    if config.train is None:
        raise ConfigError("there is no section train: add `train: {model: lcm-two-tower-tiny, steps: 300}`")
    return config.train


def alone(store: Store, settings: TrainSettings) -> AbstractContextManager[Lease]:
    """Hold the lock of a training. Raises `CorpusError` if another process has it; SLURM jobs are checked elsewhere."""
    return locked(store, "training", training=settings.folder)


@dataclass(frozen=True)
class CheckedTraining:
    """A training that nothing keeps from starting. scaler: the file to write; None if it is there."""

    store: Store
    started: Started
    scaler: bytes | None
    fresh: bool

    @property
    def run(self) -> str:
        """The folder of the training."""
        return self.started.settings.folder

    @property
    def is_trained(self) -> bool:
        """Whether its model is written, and stays."""
        return not self.fresh and self.store.exists(f"{self.run}/{MODEL}")

    def begin(self, processes: int | None) -> None:
        """Write what processes of the training read; with `fresh`, delete what was trained before. Raises `ConfigError`
        before that if so many processes cannot train it; None: how many there will be is not known yet.
        """
        if processes is not None and not self.is_trained:
            self.started.settings.check_shared(processes)
        if self.fresh:
            checkpoint.forget(self.store, self.run)
        clear_failure(self.store, self.run)
        if self.scaler is not None:
            self.store.write(f"{self.run}/{SCALER}", self.scaler)
        write_started(self.store, self.run, self.started)


def check(console: Console, config: RunConfig, fresh: bool = False) -> CheckedTraining:
    """Check what is asked for; of the training, nothing is written or deleted yet.

    Args:
        console: where is shown what was decided.
        config: the configuration, with a section `train`; `ConfigError` is raised if it does not fit the corpus.
        fresh: whether it begins, whatever was trained under that name.

    Returns:
        The training.
    """
    settings, corpus = settings_of(config), Corpus(config.output)
    run, store = settings.folder, corpus.store
    store.check_changeable(f"{run}/{CHECKPOINTS}")
    there = [] if fresh else markers(store, run)
    begins = fresh or not (there or store.exists(f"{run}/{MODEL}"))
    check_own_folder(config)
    _check_section(config, begins)
    card = settings.card
    if begins:
        settings = settings.with_lanes(processes_of(config))
        pinned, settings, scaler = _pin(console, config, settings, card, corpus)
        _check_content(console, settings, card, corpus, pinned)
        return CheckedTraining(
            store, Started(pinned=pinned, settings=settings, scaler=content_digest(scaler)), scaler, fresh
        )
    started = read_started(store, run)
    pinned = started.pinned
    settings = as_begun(settings, pinned.settings)
    if continues_full_attention(config, pinned):
        console.print(f"{run} continues with own_attention: full, as it began", markup=False, highlight=False)
    refuse(run, differences(config, pinned))
    if not store.exists(f"{run}/{MODEL}"):
        checkpoint.check_whole(store, there[-1])
        _make_again(config, settings, corpus, pinned)
        _check_content(console, settings, card, corpus, pinned)
        say_if_changed(console, corpus, run, pinned)
    lost = None if store.exists(f"{run}/{SCALER}") else _scaler(store, settings, pinned, started.scaler)
    digest = started.scaler if lost is None else content_digest(lost)
    return CheckedTraining(store, Started(pinned=pinned, settings=settings, scaler=digest), lost, fresh)


def _check_content(console: Console, settings: TrainSettings, card: LcmCard, corpus: Corpus, pinned: Pinned) -> None:
    """Compare what will be read with its receipts, or say that it is too much. Raises `CorpusError` for damage."""
    families = ["embeddings", *["codes"] * card.quantised, *["sentences"] * card.reads_words]
    families += ["fragility-predicted"] * (settings.weights == "fragility")
    families += FAMILIES_OF_PLANS if settings.plans == "column" else ()
    for url, one in zip(places_of_indexes(pinned, settings), pinned.indexes, strict=True):
        there = Corpus(url) if url else corpus
        index = read_index(there, one.digest)
        check_files(index, families)
        check_or_say(console, there, index, families)


def _check_section(config: RunConfig, begins: bool) -> None:
    """Raise `ConfigError`, with the lines, for settings that are not possible; of a training that goes on, only its
    trackers are looked at.
    """
    lacking = missing_extras(["train"]) if "tensorboard" in settings_of(config).trackers else None
    problems = [*([(("train", "trackers"), lacking)] if lacking else []), *training_problems(config)]
    said = [f"{config.place(*keys)}: {text}" for keys, text in problems if begins or keys == ("train", "trackers")]
    if said:
        raise ConfigError("\n".join(said))


def processes_of(config: RunConfig) -> int:
    """Return how many processes will train, as far as the configuration says."""
    launcher, settings = config.launcher, settings_of(config)
    if launcher.kind == "slurm":
        return launcher.train_nodes * (settings.processes or launcher.gpus_per_node or 1)
    return settings.processes or 1


def known_processes(config: RunConfig) -> int | None:
    """Return how many processes will train; None if only the node of a SLURM job knows."""
    launcher = config.launcher
    is_known = launcher.kind != "slurm" or settings_of(config).processes or launcher.gpus_per_node
    return processes_of(config) if is_known else None


def _check_encoder(config: RunConfig, corpus: Corpus) -> None:
    """Raise `ConfigError` if the embeddings that are there are not of the encoder that the configuration names."""
    named, used = encoder_of(config), encoder_used(corpus)
    if config.encode and named and named != used:
        model = corpus.view.stages["encode"]["encode"]["model"]
        raise ConfigError(
            f"{corpus.url} has embeddings of {model} ({used[:8]}), but encode.model is {config.encode.model} "
            f"({named[:8]}), another encoder: pipeline run makes the embeddings again"
        )


def indexed(
    config: RunConfig, settings: TrainSettings, corpus: Corpus, origin: str = "select.where"
) -> list[Callable[[], Index]]:
    """Return functions that make or find the index of every corpus of the mix; the training's own comes first.

    Args:
        config: the configuration, whose section `select` says what is selected of the training's own corpus.
        settings: the section `train`.
        corpus: the training's own corpus.
        origin: how a user knows its condition, for messages.

    Returns:
        A function for each corpus.
    """
    own = partial(
        make_index, corpus, config.select or SelectSettings(), answers=settings.answers, plans=settings.plans,
        origin=origin,
    )  # fmt: skip
    make = partial(make_index, answers=settings.answers, plans=settings.plans, origin="corpora.select")
    others = [partial(make, Corpus(one.path), one.select or SelectSettings()) for one in settings.corpora]
    return [own, *others]


def _make_again(config: RunConfig, settings: TrainSettings, corpus: Corpus, pinned: Pinned) -> None:
    """Make deleted indexes again. Raises `CorpusError` if a corpus would give another one now, or none is recorded."""
    if len(pinned.indexes) != 1 + len(settings.corpora):
        what = f"it has {len(pinned.indexes)} indexes, and learns from {1 + len(settings.corpora)} corpora"
        raise DamagedError(f"{corpus.url}/{settings.folder}/{RECORD}", what, BROKEN)
    places = places_of_indexes(pinned, settings)
    for url, one, make in zip(places, pinned.indexes, indexed(config, settings, corpus), strict=True):
        there = Corpus(url) if url else corpus
        if is_present(there, one.digest):
            whole_index(there, one.digest)
        elif make().digest != one.digest:
            raise CorpusError(
                f"the index {one.digest[:12]} of {there.url}, to which {settings.folder} is pinned, is gone, and the "
                "corpus has changed since; restore its files in train/index, bring that corpus back to the inputs and "
                "settings that it had (pipeline run), or start over with --fresh"
            )


def _pin(
    console: Console, config: RunConfig, settings: TrainSettings, card: LcmCard, corpus: Corpus
) -> tuple[Pinned, TrainSettings, bytes]:
    """Return what a training is pinned to, its settings with the steps that its epochs take, and its scaler; says how
    much it will learn from, once nothing keeps it from starting.
    """
    scaler = _fit(corpus, "scaler")
    if scaler is None:
        raise ConfigError(f"{corpus.url} has no scaler, which models need: add `scaler: {{}}` and run it")
    codebooks = _fit(corpus, "rvq") if card.quantised else None
    if card.quantised and codebooks is None:
        raise ConfigError(
            f"{card.name} models codes, and {corpus.url} has none: add `rvq: {{codebooks: 8, units: 256}}` and run it"
        )
    waiting = unfinished(corpus)
    if waiting:
        print_plain(
            console,
            f"{counted(waiting, 'chunk')} not segmented yet: the model is trained without them (finish: pipeline run)",
        )
    _check_encoder(config, corpus)
    own, *others = indexed(config, settings, corpus)
    index = own()
    check_index(index, settings, card)
    from pipeline.training.through_decoder import pinned_decoder  # torch
    from pipeline.training.tokens import pinned_tokenizer

    decoder, tokenizer = pinned_decoder(corpus, card, index), pinned_tokenizer(corpus, card)
    of_scaler = _dim(corpus, scaler)
    if of_scaler != index.dim:
        raise CorpusError(f"the scaler of {corpus.url} has {of_scaler} dimensions, the embeddings {index.dim}")
    documents, _, sentences = index.about.splits["train"]
    read = index.sentences("train")
    each = mean_sentences(Sequences.of(index, "train"), card.context, settings.micro_concepts, settings.seed)
    settings = settings.with_steps_of(read, each)
    indexes, mixed = [PinnedIndex(url="", digest=index.digest, weight=settings.weight)], []
    for other, make in zip(settings.corpora, others, strict=True):
        found = make()
        check_other(found, card)
        indexes.append(PinnedIndex(url=other.path, digest=found.digest, weight=other.weight))
        mixed.append(found)
    check_sources([index, *mixed], settings, card)
    pinned = Pinned(
        **asked(config, settings, card),
        indexes=indexes,
        encoder=index.about.encoder,
        dim=index.dim,
        scaler=scaler,
        codebooks=codebooks,
        decoder=decoder,
        tokenizer=tokenizer,
    )
    initial = _scaler(corpus.store, settings, pinned)
    epochs = settings.steps * settings.per_step * each / read
    much = "" if settings.corpora else f", about {epochs:.1f} epochs"
    print_plain(
        console,
        f"{card.name}: {counted(settings.steps, 'step')}{much} of {number(sentences)} sentences in "
        f"{counted(documents, 'document')} (index {index.digest[:12]})"
        + (f" and of {number(len(mixed))} other {'corpus' if len(mixed) == 1 else 'corpora'}" if mixed else ""),
    )
    for url, one in zip(["", *(one.path for one in settings.corpora)], [index, *mixed], strict=True):
        for line in said_of_plans(one):
            print_plain(console, f"{line}{url and f' in {url}'}")
    if settings.validation_concepts and mixed and (same := texts_in_train(index, mixed)):
        print_plain(
            console,
            f"The training may learn from {counted(same, 'document')} of the split validation, whose text other "
            "corpora have in the split train, so the validation loss is too low; give all of these corpora the same "
            "section split, with by: text (pipeline evaluate leaves such documents out)",
            style="yellow",
        )
    return pinned, settings, initial


def _scaler(store: Store, settings: TrainSettings, pinned: Pinned, wanted: str = "") -> bytes:
    """Return the corpus's scaler, or that of the initial weights.

    Raises `ConfigError` if these do not fit, `CorpusError` if they are damaged, or the scaler is not the wanted one.
    """
    if settings.init_from:
        from pipeline.training.model_file import check_initial  # torch
        from pipeline.training.model_header import model_header

        there, run = located(settings.init_from)
        check_weights(settings.init_from, model_header(there, run).pinned, pinned.weights_are_for)
        if not wanted:  # those that begin; later there are checkpoints
            check_initial(there, run)
        data = there.read(f"{run}/{SCALER}")
    else:
        data = read_artifact(store, FitRef(**pinned.scaler))
    if wanted not in ("", content_digest(data)):
        raise CorpusError(
            f"{store.url}/{settings.folder}/{SCALER} is gone, and its source has changed since; restore it, or start "
            "over with --fresh"
        )
    return data


def check_index(index: Index, settings: TrainSettings, card: LcmCard) -> None:
    """Check that a model can be trained on an index.

    Args:
        index: the index of the training's own corpus.
        settings: the section `train`.
        card: the card of the model.

    Raises:
        ConfigError: if a split that is needed has no documents, or the micro-batches are too small.
        CorpusError: if texts that are needed are gone.
    """
    wanted = ("train", "validation") if settings.validation_concepts else ("train",)
    for split in wanted:
        _check_split(index, split)
    if card.context > settings.micro_concepts:
        raise ConfigError(
            f"train.micro_concepts is {settings.micro_concepts}, the context of {card.name} {card.context}: a document "
            f"may be that long; give {card.context} or more"
        )
    _check_texts(index, card)


def check_sources(mix: Sequence[Index], settings: TrainSettings, card: LcmCard) -> None:
    """Check that the loader will not refuse the corpora of a mix, before anything of the training is written.

    Args:
        mix: the indexes of its corpora, the training's own first; that alone if the training is begun.
        settings: the section `train`.
        card: the card of the model.

    Raises:
        ConfigError: if columns are missing, or the corpora do not fit together.
    """
    for one in mix:
        check_columns(one, settings.weights, card.quantised)
    weights = [settings.weight, *(one.weight for one in settings.corpora)]
    check_mix([TrainingSource(one, weight) for one, weight in zip(mix, weights, strict=False)], card.quantised)


def check_other(index: Index, card: LcmCard) -> None:
    """Check that a model can be trained on the index of another corpus of its mix, as `check_index` does."""
    _check_split(index, "train")
    _check_texts(index, card)


def _check_texts(index: Index, card: LcmCard) -> None:
    """Raises `CorpusError` if sentences' texts, which the model learns by, are gone."""
    if card.reads_words:
        check_files(index, ("sentences",))


def _check_split(index: Index, split: str) -> None:
    if not index.about.splits[split][0]:
        without = "; or set train.validation_concepts to 0, to train without" if split == "validation" else ""
        raise ConfigError(
            f"{index.url} has no documents of the split {split} ({index.said_of_splits()}); give it a larger share "
            f"(corpus.yaml: split) and run it{without}"
        )


def _fit(corpus: Corpus, name: str) -> Fit | None:
    """Return the present fit. Raises `CorpusError` if it was made on other embeddings."""
    record = record_of(corpus.store, corpus.view, name)
    if record is None:
        return None
    encoded = fingerprint(corpus.view.stages["encode"])
    if record.recipe["encode"] != encoded:
        raise CorpusError(
            f"the {name} of {corpus.url} was fitted on other embeddings (encode {record.recipe['encode'][:8]}, these "
            f"are {encoded[:8]}): run the corpus again"
        )
    return dict(vars(record.ref(corpus.view.fits[name])))


def _dim(corpus: Corpus, scaler: Fit) -> int:
    from stages.scaler.robust import RobustScaler  # torch

    return len(RobustScaler.from_bytes(read_artifact(corpus.store, FitRef(**scaler))).median)
