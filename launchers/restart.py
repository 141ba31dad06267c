"""Decides when lost processes of a training are started again, on this machine, on SLURM or on a Ray cluster.

Whatever starts the processes, they run the same function, find each other by torchrun's variables, and resume from the
newest checkpoint; so the launcher only needs to start them again.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.base.errors import CorpusError
from pipeline.training.status import TrainingStatus

FRUITLESS = 3  # starts in a row without a new step before the training is given up


class RestartPolicy:
    """Decides whether lost processes are started again: as long as that leads to new steps. `look` reads the saved
    steps.
    """

    def __init__(self, look: Callable[[], TrainingStatus]) -> None:
        self._poll = look
        self._steps = look().steps
        self._fruitless = 0

    def lost(self, what: str) -> TrainingStatus:
        """Call this after each loss. Raises `CorpusError` if there were too many, or a process said why it gave up."""
        now = self._poll()
        if now.failed:  # it would fail again
            raise CorpusError(now.failed)
        self._fruitless = 0 if now.steps > self._steps else self._fruitless + 1
        self._steps = now.steps
        if self._fruitless == FRUITLESS:
            raise CorpusError(
                f"training was lost {FRUITLESS} times before a checkpoint beyond step {now.steps} was written: {what}; "
                "see above what the processes said. If nothing is wrong, lower train.checkpoint_every"
            )
        return now
