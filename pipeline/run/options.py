"""The options of a run; apart from what carries it out, so that a plan need not import that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pipeline.config.run_config import RunConfig
from pipeline.inputs import Chunk


@dataclass(frozen=True)
class RunOptions:
    """The options of the command, as `pipeline/cli.py` explains them."""

    only: str | None = None
    until: str | None = None
    refit: Collection[str] = ()
    take_over: bool = False
    accept_removal: bool = False
    ask: Callable[[str], bool] | None = None  # asks the person at the terminal; None: there is nobody
    strict: bool = False  # what does not hold of report.expect is an error
    chunks: Sequence[Chunk] | None = None  # chunks of the inputs, in the order of the run, if they are listed already


def ends_with_training(config: RunConfig, options: RunOptions) -> bool:
    """Return whether a run ends with training."""
    return config.train is not None and options.only is None and options.until is None
