"""Evaluates what a training ends with: on its own test split, beside the model, and for its trackers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from rich.console import Console

from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training.evaluation.evaluate import EvaluateOptions, evaluate, index_of_training, table_at
from pipeline.training.evaluation.table import ResultRow
from pipeline.training.evaluation.trained import sampling_in_evaluation
from pipeline.training.record import Started, read_started
from pipeline.training.status import read_metrics
from pipeline.training.trackers.about import OTHERS, Attachment, about
from pipeline.training.trackers.feed import Feed


def evaluate_trained(console: Console, url: str, run: str, find_device: Callable[[], str]) -> None:
    """Evaluate what a training ends with, on its own test split, or on its validation split if there is no other.

    Nothing happens if the settings ask for no evaluation, or if the table beside the model is of this step, drawn in
    this way, and of at least as many sentences.

    Args:
        console: where the table is printed.
        url: the corpus.
        run: the folder of the training.
        find_device: says where networks compute.
    """
    corpus = Corpus(url)
    started = read_started(corpus.store, run)
    pinned, sentences, name = started.pinned, started.settings.evaluate_sentences, run.rpartition("/")[2]
    if not sentences:
        return
    index = index_of_training(corpus, pinned)
    split = next((one for one in ("test", "validation") if index.about.splits[one][0]), None)
    if split is None:
        console.print(
            "not evaluated: no documents are in the splits test and validation; pipeline evaluate --split train judges "
            "by those that the model learned from"
        )
    elif not _is_evaluated(corpus.store, f"{run}/evaluation/{split}.json", name, started):
        options = EvaluateOptions(models=(name,), split=split, sentences=sentences)
        rows = evaluate(console, corpus, options, find_device, lambda: index)
        _track(console, corpus.store, run, started, split, rows.get(name))


def _track(console: Console, store: Store, run: str, started: Started, split: str, row: ResultRow | None) -> None:
    """Attach what was measured of a model to the run that trackers have of its training."""
    trackers = [one for one in OTHERS if one in started.settings.trackers]
    if not trackers or row is None:
        return
    figures = {
        f"evaluation/{split}/{name}": figure.mean for name, figure in row.figures.items() if math.isfinite(figure.mean)
    }
    path = f"evaluation/{split}.json"
    files = {path: store.read(f"{run}/{path}").decode()}
    say = partial(console.print, markup=False, highlight=False)
    feed = Feed(trackers, about(store, run, started), read_metrics(store, run), say)
    with console.status(f"evaluation: {', '.join(trackers)}"):
        feed.end("done", Attachment(figures=figures, files=files))


def _is_evaluated(store: Store, path: str, name: str, started: Started) -> bool:
    """Whether the table at `path` has the figures of a finished model that its settings ask for."""
    if (table := table_at(store, path)) is None:
        return False
    of_model = table.models.get(name)  # unfinished ones have longer names
    wanted = started.settings.steps, asdict(sampling_in_evaluation(started))
    if of_model is None or (of_model.steps, of_model.sampling) != wanted:
        return False
    return table.sentences_asked >= started.settings.evaluate_sentences
