"""Trainings of a comparison that are begun: where they are, and whether they are what the file asks for now."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.storage.store import Store
from pipeline.training.checkpoint_markers import markers
from pipeline.training.model_file import check_model
from pipeline.training.record import Pinned, differences, read_started
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
