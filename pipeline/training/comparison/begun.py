"""Trainings of a comparison that are begun: where they are, and whether they are what the file asks for now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.config.science import Science
from pipeline.storage.store import Store
from pipeline.training.checkpoint_markers import markers
from pipeline.training.data.index import Index
from pipeline.training.evaluation.held_out import HeldOut
from pipeline.training.evaluation.seen import Source, learned_by_weights, learned_from, say_unknown, seen_by
from pipeline.training.model_file import check_model
from pipeline.training.record import Pinned, differences, located, read_started
from pipeline.training.status import MODEL, RECORD


def place_of(config: RunConfig) -> str:
    """Return the folder of a training, with its corpus."""
    assert config.train is not None
    return f"{Store(config.output).url.rstrip('/')}/{config.train.folder}"


def begun(config: RunConfig) -> Pinned | None:
    """Return what a training that goes on, or is done, is pinned to; None if it would begin."""
    assert config.train is not None
    store, run = Store(config.output), config.train.folder
    if not (markers(store, run) or store.exists(f"{run}/{MODEL}")):
        return None
    return pinned_of(store, run)


def pinned_of(store: Store, run: str) -> Pinned:
    """Return what a training is pinned to. Raises `CorpusError` if its record cannot be read."""
    try:
        return read_started(store, run).pinned
    except CorpusError as error:
        raise CorpusError(
            f"{store.url}/{run}/{RECORD}, the record of a training of this comparison, is missing or damaged; restore "
            f"it from a copy, or delete the folder {store.url}/{run}, and it is trained again"
        ) from error


def check_begun(row: str, config: RunConfig) -> None:
    """Check that a training, if it is begun, goes on with the settings that it began with.

    `row`: as the file names it; `config`: what the file asks for. Raises `ConfigError` if it was begun with others.
    """
    pinned = begun(config)
    if pinned and (changed := differences(config, pinned)):
        raise conflict(row, [place_of(config)], changed)


def check_trained(config: RunConfig) -> None:
    """Raise `CorpusError` if the model of a training is written, and damaged."""
    assert config.train is not None
    store, run = Store(config.output), config.train.folder
    if store.exists(f"{run}/{MODEL}"):
        check_model(store, run, f"delete the folder {place_of(config)}, and run the comparison again, which trains it")


def conflict(row: str, places: Sequence[str], changed: Sequence[str]) -> ConfigError:
    """Return the error that says that trainings were begun with other settings, and what to do.

    Args:
        row: the row, as the file names it.
        places: the folders of its trainings.
        changed: `key old → new` for each setting.

    Returns:
        The error.
    """
    those = "this folder, and it is" if len(places) == 1 else "these folders, and they are"
    return ConfigError(
        f"{row}: {', '.join(places)}: begun with other settings, by an earlier state of this file or by another one: "
        f"{'; '.join(changed)}. Restore them to go on, or delete {those} trained again; for files side by side, give "
        "rows other names, or each file a corpus of its own"
    )


def seen_by_rows(
    console: Console, science: Science, learned: Mapping[str, Sequence[Index]], index: Index, held: HeldOut
) -> dict[str, frozenset[str]]:
    """Return which held-out documents have the text of one that the trainings of a row learn from.

    Args:
        console: where it is said if that cannot be told.
        science: the settings.
        learned: the indexes of each row, from which trainings that are not begun yet will learn.
        index: the index of the held-out documents.
        held: the documents.

    Returns:
        row → hashes of their texts; rows that see none are left out, and so are all if the split is the one that
            trainings learn from.
    """
    settings = science.settings
    if settings.split == "train":  # which all rows learn from
        return {}
    runs = {place_of(science.config(row, seed)) for row in settings.trained for seed in settings.seeds}
    found = {}
    for row, indexes in learned.items():
        sources: list[Source] = []
        for seed in settings.seeds:
            config = science.config(row, seed)
            assert config.train is not None
            if pinned := begun(config):
                sources += learned_from(place_of(config), pinned)
                continue
            sources += [((one.url,), one.digest) for one in indexes]
            if begins := config.train.init_from:
                store, run = located(begins)
                if f"{store.url.rstrip('/')}/{run}" not in runs:  # what those learn from is here anyway
                    sources += learned_by_weights(begins)
        hashes, is_known = seen_by(dict.fromkeys(sources), index, held)
        if hashes:
            found[row] = frozenset(hashes)
        if not is_known:
            say_unknown(console, row)
    return found
