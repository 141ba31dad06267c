"""Where a model is trained: one process a GPU, on this machine, over the nodes of a SLURM job, or on a Ray cluster.

Whatever starts the processes, they run the same function, find each other by torchrun's variables, and go on from the
newest checkpoint; so those who start them only need to start them again.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.base.errors import CorpusError
from pipeline.training.status import TrainingStatus

FRUITLESS = 3  # starts in a row that may bring no step before they are given up


class RestartPolicy:
    """Decides whether processes that were lost are started again: as long as that brings steps. look: at the disk."""

    def __init__(self, look: Callable[[], TrainingStatus]) -> None:
        self._poll = look
        self._steps = look().steps
        self._fruitless = 0

    def lost(self, what: str) -> TrainingStatus:
        """To be called after each loss. Raises `CorpusError` if it was too often, or a process said why it gave up."""
        now = self._poll()
        if now.failed:  # it would fail again
            raise CorpusError(now.failed)
        self._fruitless = 0 if now.steps > self._steps else self._fruitless + 1
        self._steps = now.steps
        if self._fruitless == FRUITLESS:
            raise CorpusError(
                f"training was lost {FRUITLESS} times before a checkpoint beyond step {now.steps} was written: {what}; "
                "what the processes said stands above. Where nothing is wrong, lower train.checkpoint_every"
            )
        return now
