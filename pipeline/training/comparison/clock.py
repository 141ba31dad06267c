"""How many steps of a row its minutes allow: by the log of a short training of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console

from pipeline.base.errors import CorpusError
from pipeline.base.formats import counted
from pipeline.config.science import Science
from pipeline.config.train import TrainSettings
from pipeline.corpus.fingerprint import fingerprint
from pipeline.storage.store import Store
from pipeline.training.comparison.begun import begun
from pipeline.training.comparison.results import TimedSteps
from pipeline.training.record import differences
from pipeline.training.run import train
from pipeline.training.status import METRICS, Numbers, read_metrics
from stages.lcm.card import last_steps

TAKE_AS_LONG = ("steps", "seed", "init_from", "corpora")  # a step takes as long with others


def timed(science: Science, row: str, minutes: float) -> TimedSteps:
    """Return what the number of steps of a row follows from now.

    Args:
        science: the settings.
        row: the row.
        minutes: its minutes.

    Returns:
        What is kept beside the number of steps.
    """
    settings = science.settings
    asked = science.config(row, settings.seeds[0]).train
    assert asked is not None
    usual = TrainSettings().pinned()
    of_step = {key: value for key, value in asked.pinned().items() if key not in TAKE_AS_LONG}
    chosen = {key: value for key, value in of_step.items() if value != usual.get(key)}  # more settings change nothing
    card = {key: value for key, value in asked.card.recorded().items() if key not in ("description", "licence")}
    return TimedSteps(
        minutes=minutes,
        clock=settings.clock,
        calibration_steps=settings.calibration_steps,
        train=fingerprint([card, chosen]),
    )


def steps_by_clock(console: Console, science: Science, row: str, seed: int) -> int:
    """Train a row for a few steps, unless that is done, and return how many steps its minutes allow.

    A short training of other settings is made again.

    Args:
        console: where progress is shown.
        science: the settings.
        row: the row, which has minutes.
        seed: the seed of the short training.

    Returns:
        The number of steps, 1 at least.

    Raises:
        CorpusError: if the log of the short training is not whole.
    """
    settings = science.settings
    minutes = settings.minutes_of(row)
    short = science.config(row, seed, settings.calibration_steps, f"{row}-calibration")
    assert short.train is not None and minutes is not None
    pinned = begun(short)
    train(console, short, fresh=pinned is not None and bool(differences(short, pinned)))
    store, run = Store(short.output), short.train.folder
    lines = [one for one in read_metrics(store, run) if one["kind"] == "train"]
    name = "cpu_seconds" if settings.clock == "cpu" else "seconds"
    if len(lines) < settings.calibration_steps or not all(one.get(name) for one in lines):
        raise CorpusError(
            f"{store.url}/{run}/{METRICS} does not have the {name} of "
            f"{counted(settings.calibration_steps, 'step')}, by which {minutes:g} minutes become "
            f"steps of {row}; delete the folder {store.url}/{run}, and its training is made again"
        )
    return max(1, round(minutes * 60 / seconds_of_step(lines, settings.clock, short.train.card.last_share)))


def seconds_of_step(lines: Sequence[Numbers], clock: str, last_share: float) -> float:
    """Estimate how long a step of a long training takes, from the log of a short one.

    Medians are taken, and the first step counts only if there is no other, as it also prepares things. If the last
    steps of a training have another loss, those of the short one count by their share in the long one.

    Args:
        lines: the log, one line for each step.
        clock: `cpu` for CPU seconds, anything else for seconds of the clock.
        last_share: the share of steps at the end that have another loss; 0 if none have.

    Returns:
        Seconds.
    """
    each = [float(one["cpu_seconds" if clock == "cpu" else "seconds"]) for one in lines]
    others = last_steps(last_share, len(each))
    first, last = each[: len(each) - others], each[len(each) - others :]
    if not (first and last):
        return statistics.median(each[1:] or each)
    return (1 - last_share) * statistics.median(first[1:] or first) + last_share * statistics.median(last)
