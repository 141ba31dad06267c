"""What a job does while a store, or SLURM, is away: it waits, and if that takes too long, it queues itself again with
a delay.

A job that gave up for good would end the run: SLURM starts the next scheduler job however its array ended, that one
would find the same outage, and none would follow.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

from rich.console import Console

from launchers.slurm import jobs
from launchers.slurm.sbatch import WARNING
from launchers.slurm.site import PAUSE, SlurmAwayError, SlurmError
from pipeline.base.formats import duration
from pipeline.config.launcher import STORAGE_PATIENCE
from pipeline.storage.remote import AwayError
from pipeline.storage.retry import be_patient

DELAY_SECONDS = 600.0  # before a job that gave up starts again; less if its patience is


@contextlib.contextmanager
def queued_again_when_away(console: Console, patience: float | None) -> Iterator[None]:
    """Do the work of a job in the `with` block. `patience`: launcher.storage_patience, in seconds; None: its default.

    The job has it on its command line, because the configuration lies in the store. Raises `AwayError`
    or `SlurmAwayError` if this process is not in a job that can be queued again.
    """
    patience = STORAGE_PATIENCE if patience is None else patience
    be_patient(patience, from_start=True)
    signal.signal(WARNING, lambda number, frame: jobs.requeue())  # until the work has a better answer
    try:
        yield
    except (AwayError, SlurmAwayError) as error:
        delay = max(1.0, min(DELAY_SECONDS, patience))
        console.print(f"{error}; waited for it, and queued again in {duration(delay)}", highlight=False, markup=False)
        until = time.monotonic() + patience
        while True:
            try:
                jobs.requeue(delay)
                return
            except SlurmAwayError:
                if time.monotonic() > until:
                    raise error from None
                time.sleep(PAUSE)
            except SlurmError:
                raise error from None
