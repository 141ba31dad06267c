"""One process of a training: joins the others, resumes from the newest checkpoint, trains, saves.

    python -m pipeline.training.worker CORPUS train/NAME [PATIENCE]     # started by torchrun, or alone

Its command is the same on one machine, on SLURM and on Ray; the training's folder says what to do (`prepare`). SIGTERM,
SIGINT and SIGUSR2 ask all processes to finish the step, save and end with code 0: `progress` says whether it is done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from pipeline.base.errors import ConfigError, CorpusError, PipelineError
from pipeline.base.formats import counted
from pipeline.config.train import TrainSettings
from pipeline.corpus.reader import Corpus
from pipeline.storage.remote import AwayError
from pipeline.storage.retry import be_patient, give_up_soon
from pipeline.storage.store import Store
from pipeline.training import checkpoint
from pipeline.training.checkpoint_markers import Marker, check_is_of, markers
from pipeline.training.data.index import read_index
from pipeline.training.data.loader import Loader, TrainingSource, buffer_sentences_of, share_of_files
from pipeline.training.distributed import Processes, joined, parallel
from pipeline.training.log import Log
from pipeline.training.loop import Loop
from pipeline.training.model_file import codebooks_of, load_model, made_if_it_fits, read_scaler, save_model
from pipeline.training.model_header import ModelHeader
from pipeline.training.record import Started, places_of_indexes, read_started
from pipeline.training.status import MODEL, record_failure
from pipeline.training.step import Stepper, adamw, seed_of
from pipeline.training.through_decoder import HERE as DECODER
from pipeline.training.through_decoder import card_of, decoder_of
from pipeline.training.tokens import HERE as TOKENIZER
from pipeline.training.tokens import Tokeniser, tokenizer_card
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.lcm.model import Lcm
from stages.lcm.sonar_llm import SonarLlm

WARNINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2)


@dataclass(frozen=True)
class TrainingProgress:
    """Steps in the newest checkpoint, of how many, and whether the model is trained and written."""

    steps: int
    of: int
    finished: bool


def progress(store: Store, run: str) -> TrainingProgress:
    """Return how far a training is, by what is on disk."""
    there = markers(store, run)
    steps = read_started(store, run).settings.steps
    return TrainingProgress(there[-1].step if there else 0, steps, store.exists(f"{run}/{MODEL}"))


def work(console: Console, url: str, run: str, patience: float | None = None) -> bool:
    """Train until all is done, or until a signal asks to stop.

    Args:
        console: where progress is shown.
        url: the corpus.
        run: the folder of the training. A `PipelineError` is recorded there before it is raised, unless the store is
            away.
        patience: seconds to wait for a store that is away; None for those that this process waits anyway.

    Returns:
        Whether a signal asked this process to stop, also if that was during the last step or after it.
    """
    if patience is not None:
        be_patient(patience, from_start=True)
    store = Store(url)
    record = read_started(store, run)
    try:
        with joined(record.settings.timeout_seconds) as processes, _NotedSignals() as asked_to_stop:
            _Work(console, store, run, record, processes).all(asked_to_stop)
        return asked_to_stop()
    except AwayError:  # another try may succeed
        raise
    except PipelineError as error:
        with contextlib.suppress(PipelineError):  # on a full disk: the first error is the one to report
            record_failure(store, run, str(error))
        raise


class _Work:
    def __init__(self, console: Console, store: Store, run: str, record: Started, processes: Processes) -> None:
        self.console, self.store, self.run, self.record, self.processes = console, store, run, record, processes
        self.settings: TrainSettings = record.settings
        self.card = LcmCard.model_validate(record.pinned.card)
        self.settings.check_shared(processes.world)

    def all(self, asked_to_stop: Callable[[], bool]) -> None:
        precision, on_gpu = self.settings.precision, self.processes.device.type == "cuda"
        bfloat16 = precision == "bfloat16" or (precision == "auto" and on_gpu)
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        newest = self.newest()
        self._remove_interrupted()
        losses = parallel(self._model(fresh=newest is None), self.settings, self.processes, dtype)
        optimizer = adamw(losses, self.settings)
        done, pinned = 0, self.record.pinned.digest
        if newest:
            done = newest.step
            checkpoint.load(self.store, newest, losses, optimizer, one=self.processes.world == 1)
        loader = self._loader("train", done * self.settings.per_step)
        if newest:
            self._say(f"resuming from step {done} of {self.settings.steps}")
        self.say_who_reads(loader.streams)
        log = self._log(done)

        def save(step: int) -> None:
            checkpoint.save(
                self.store, self.run, step, pinned, losses, optimizer, self.processes, self.settings.keep_checkpoints
            )
            if log:
                log.flush()

        micros = _stream(loader)
        loop = Loop(
            self.store, self.run, self.settings, self.processes,
            Stepper(losses, optimizer, self.settings, self.processes, dtype), micros,
            self._validation(), save, loader.names, log, asked_to_stop,
        )  # fmt: skip
        try:
            if log:
                with log:
                    done, validation = loop.train(done)
            else:
                done, validation = loop.train(done)
        finally:
            micros.close()
        if done == self.settings.steps:
            self._write_model(losses, validation)

    def newest(self) -> Marker | None:
        """Return the checkpoint to resume from, as the first process sees it, because caches of NFS may differ.

        Raises `CorpusError` if it is one of another training.
        """
        there = markers(self.store, self.run) if self.processes.first else []
        said = self.processes.told(there[-1].model_dump_json() if there else "")[0]
        if not said:
            return None
        marker = Marker.model_validate_json(said)
        check_is_of(self.store, self.run, marker, self.record.pinned.digest, self.settings.steps)
        return marker

    def say_who_reads(self, lanes: int) -> None:
        """Say if several processes read the same files. `lanes`: how many streams the corpora have."""
        world, wanted = self.processes.world, self.settings.streams
        readers = share_of_files(lanes, world)
        if readers == 1:
            return
        remedy = (
            f"with train.lanes {-(-lanes // world) * world} each reads its own (in another training: they decide the "
            "order of the data)"
        )
        if lanes < wanted:
            remedy = f"the corpus is too small for train.lanes {wanted}"
        self._say(
            f"{counted(lanes, 'stream')} for {world} processes: every file of embeddings is read by {readers} of them; "
            + remedy
        )

    def _remove_interrupted(self) -> None:
        """Remove interrupted checkpoints in the first process; the others wait, so that none of theirs is taken for
        one.
        """
        for folder in checkpoint.interrupted(self.store, self.run) if self.processes.first else []:
            self._say(f"{folder} was interrupted and does not count: removed")
            checkpoint.delete_folders(self.store, [folder])
        if self.processes.first:
            checkpoint.keep_newest(self.store, self.run, self.settings.keep_checkpoints)
        self.processes.told("")

    def _log(self, done: int) -> Log | None:
        """Return the log in the first process, and None in the others, which wait until it has been made.

        Raises `CorpusError` in all of them if the log of earlier steps is damaged.
        """
        log, failed = None, None
        if self.processes.first:
            try:
                log = Log(self.console, self.store, self.run, self.record, done)
            except AwayError:  # another try may succeed
                raise
            except PipelineError as error:
                failed = error
        said = self.processes.told(str(failed or ""))[0]
        if said:
            raise failed or CorpusError(said)
        return log

    def _model(self, fresh: bool) -> Lcm:
        pinned = self.record.pinned
        torch.manual_seed(seed_of(self.settings.seed, "weights"))
        scaler, codebooks = read_scaler(self.store, self.run, self.record.scaler), codebooks_of(self.store, pinned)
        vocabulary = pinned.tokenizer.vocabulary if pinned.tokenizer else None
        model = made_if_it_fits(self.card, partial(build, self.card, scaler, codebooks, vocabulary))
        if isinstance(model, SonarLlm):
            model.use(decoder_of(pinned))
        if self.settings.init_from and fresh:
            model.load_state_dict(load_model(self.settings.init_from)[0].state_dict())
        return model.train()

    def _loader(self, split: str, start: int) -> Loader:
        corpus = Corpus(self.store.url)
        sources, training = [], split == "train"
        places = places_of_indexes(self.record.pinned, self.settings)
        for url, one in zip(places, self.record.pinned.indexes, strict=True):
            index = read_index(Corpus(url) if url else corpus, one.digest)
            sources.append(TrainingSource(index, one.weight * index.about.splits[split][2]))
        return Loader(
            sources if training else sources[:1],
            split=split,
            max_sentences=self.card.context,
            micro_concepts=self.settings.micro_concepts,
            seed=self.settings.seed,
            rank=self.processes.rank if training else 0,
            world=self.processes.world if training else 1,
            start=start,
            weights=self.settings.weights if training else "none",
            codes=self.card.quantised,
            structure=training,
            tokenise=self._tokeniser(),
            pin=self.processes.device.type == "cuda",
            shuffle=training,
            epochs=None if training else 1,
            streams=self.settings.streams,
            buffer_sentences=buffer_sentences_of(self.settings.streams, self.settings.micro_concepts),
        )

    def _tokeniser(self) -> Tokeniser | None:
        pinned = self.record.pinned
        if pinned.decoder:
            return Tokeniser(card_of(pinned), DECODER)
        return Tokeniser(tokenizer_card(pinned.tokenizer), TOKENIZER, own=True) if pinned.tokenizer else None

    def _validation(self) -> list[Batch]:
        """Return the first documents of the validation split: at most `validation_concepts`, at least a batch."""
        found: list[Batch] = []
        if self.settings.validation_concepts:
            batches = iter(self._loader("validation", 0))
            for _, batch in batches:
                if found and sum(one.sentences for one in found) + batch.sentences > self.settings.validation_concepts:
                    break
                found.append(batch)
        return found

    def _write_model(self, losses: torch.nn.Module, validation: float | None) -> None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(losses, options=options)
        if self.processes.first:
            own = {key.removeprefix("model."): one for key, one in weights.items() if isinstance(one, torch.Tensor)}
            about = ModelHeader(
                steps=self.settings.steps,
                pinned=self.record.pinned,
                scaler=self.record.scaler,
                validation=validation,
                torch=torch.__version__,
            )
            save_model(self.store, self.run, own, about)

    def _say(self, text: str) -> None:
        if self.processes.first:
            self.console.print(text, markup=False, highlight=False)


def _stream(loader: Loader) -> Generator[tuple[int, Batch]]:
    """Yield the micro-batches; closing the generator ends the loader's threads."""
    yield from loader


class _NotedSignals:
    """Makes signals only note that somebody asks to stop, until the step is done; restores the handlers afterwards.

    A second Ctrl-C raises `KeyboardInterrupt` at once: a step may be long, and a store that is away is waited for.
    """

    def __enter__(self) -> Callable[[], bool]:
        self._asked = threading.Event()
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._note) for one in WARNINGS}
        return self._asked.is_set

    def _note(self, number: int, frame: object) -> None:
        if number == signal.SIGINT:
            if self._asked.is_set():
                raise KeyboardInterrupt
            give_up_soon()  # on a store that is away just now
            if os.isatty(2):
                os.write(2, b"\nstopping after this step, which is saved; Ctrl-C again stops at once\n")
        self._asked.set()

    def __exit__(self, *of_error: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)


SETTING, RECORDED = 2, 3  # codes of a process that recorded why every other start would fail too


def main() -> None:
    """Run `python -m pipeline.training.worker`."""
    console = Console(width=160)
    url, run, *patience = sys.argv[1:]
    try:
        work(console, url, run, *map(float, patience))
    except PipelineError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(SETTING if isinstance(error, ConfigError) else 1 if isinstance(error, AwayError) else RECORDED)


if __name__ == "__main__":
    main()
