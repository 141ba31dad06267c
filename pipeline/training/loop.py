"""The training loop: steps, validation, checkpoints, and the numbers that are logged.

On GPUs, the result of a step is read after the next one has begun, by all processes at the same place, so that they
stop, fail and save together. A step that is not finite is therefore noticed one step late, but never saved.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import nn

from pipeline.config.train import TrainSettings
from pipeline.storage.store import Store
from pipeline.training import not_finite
from pipeline.training.distributed import Processes
from pipeline.training.log import Log
from pipeline.training.step import Pending, Result, Stepper, learning_rate, products, seed_of
from stages.device import peak_tflops
from stages.lcm.batch import Batch


@dataclass
class Interval:
    """The steps between two lines of the log."""

    steps: int = 0
    loss: float = 0.0
    weight: float = 0.0
    norm: float = 0.0  # the largest
    sentences: int = 0
    flops: float = 0.0
    waited: tuple[float, ...] = ()  # seconds of waiting for micro-batches, by process
    began: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)  # seconds that this process had computed by then

    def add(self, result: Result) -> None:
        """Count a step."""
        self.steps += 1
        self.loss += result.loss * result.weight
        self.weight += result.weight
        self.norm = max(self.norm, result.norm)
        self.sentences += result.sentences
        self.flops += result.flops
        self.waited = tuple(map(sum, zip_longest(self.waited, result.waited, fillvalue=0.0)))


@dataclass
class Loop:
    """A training in this process.

    `stepper`: takes steps; `micros`: this process's micro-batches, in order, from those of step `done` on.
    `validation`: batches, the same in all processes. `save`: writes a checkpoint. `names`: describes sequences in
    words. `log`: that of the first process.
    """

    store: Store
    run: str
    settings: TrainSettings
    processes: Processes
    stepper: Stepper
    micros: Iterator[tuple[int, Batch]]
    validation: Sequence[Batch]
    save: Callable[[int], None]
    names: Callable[[Sequence[int]], list[str]]
    log: Log | None
    asked_to_stop: Callable[[], bool] = lambda: False
    _interval: Interval = field(default_factory=Interval)

    def train(self, done: int) -> tuple[int, float | None]:
        """Take steps from `done` on. Returns how many are done at the end, and the last loss on the validation split.

        These are fewer than `settings.steps` if the training was asked to stop; all are saved. Raises `NotFiniteError`.
        """
        settings, share = self.settings, self.settings.per_step // self.processes.world
        pending: Pending | None = None
        saved, validated, validation = done, -1, None
        self._interval = Interval()
        self.stepper.begin(done)
        stopping = False
        while done < settings.steps and not stopping:
            since = time.perf_counter()
            mine = [next(self.micros) for _ in range(share)]
            begun = self.stepper.step(done, mine, self.asked_to_stop(), time.perf_counter() - since)
            done += 1
            stopping = self._poll(pending) > 0
            pending = begun
            if begun.arrived is None:  # the training is done already
                stopping, pending = self._poll(pending) > 0 or stopping, None
            due = stopping or done == settings.steps or done % settings.checkpoint_every == 0
            check = settings.validate_every > 0 and done % settings.validate_every == 0
            if due or check:
                stopping = self._poll(pending) > 0 or stopping
                pending = None
            if self.validation and (check or done == settings.steps):
                validation, validated = self._validate(done), done
            if due:
                if self._interval.steps:  # so that a training that resumes from here logs the same
                    self._tell(done)
                self._save(done)
                saved = done
        if saved < done:
            self._save(done)
        if self.validation and done == settings.steps and validated < done:
            validation = self._validate(done)  # all steps were done before
        return done, validation

    def _poll(self, pending: Pending | None) -> int:
        """Read the result of a step. Returns how many processes were asked to stop before it."""
        if pending is None:
            return 0
        result = pending.result()
        if not result.finite:
            not_finite.stop(self.store, self.run, pending, result, self.processes, self.names)
        self._interval.add(result)
        done = pending.step + 1
        if done % self.settings.log_every == 0 or done in (self.settings.steps, self.stepper.with_first_loss):
            self._tell(done)  # never a mean of two losses
        return result.stops

    def _tell(self, done: int) -> None:
        over, now, cpu = self._interval, time.perf_counter(), time.process_time()
        self._interval = Interval(began=now, cpu=cpu)
        if not self.log:
            return
        seconds = now - over.began
        tflops = over.flops / seconds / 1e12 / self.processes.world
        peak = peak_tflops(self.processes.device, self.stepper.dtype)
        numbers = {
            "loss": over.loss / over.weight if over.weight else 0.0,
            "norm": over.norm,
            "lr": learning_rate(done - 1, self.settings),
            "concepts_per_second": over.sentences / seconds,
            "seconds": seconds,
            "cpu_seconds": cpu - over.cpu,  # of this process, all threads
            "tflops": tflops,  # of one process
            "processes": self.processes.world,
            "mfu": tflops / peak if peak else None,
            "loader_wait": max(over.waited) / seconds,  # of the process that waited longest
            "seconds_left": (self.settings.steps - done) * seconds / over.steps,
        }
        self.log.see("train", done, numbers)

    def _save(self, done: int) -> None:
        with self._apart():
            if self.log:
                self.log.flush()  # whoever is killed from now on goes on after what is logged
            self.save(done)

    def _validate(self, done: int) -> float:
        """Return the loss on the validation split, with the same noise each time. Every process computes all of it."""
        stepper = self.stepper
        with self._apart():
            loss = _validation_loss(
                stepper.losses, self.validation, self.settings.seed, self.processes.device, stepper.dtype
            )
        if self.log:
            self.log.see("validation", done, {"loss": loss})
        return loss

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Exclude the time inside the `with` block from the rates."""
        began, cpu = time.perf_counter(), time.process_time()
        yield
        self._interval.began += time.perf_counter() - began
        self._interval.cpu += time.process_time() - cpu


def _validation_loss(
    losses: nn.Module, batches: Sequence[Batch], seed: int, device: torch.device, dtype: torch.dtype
) -> float:
    """Return Σ weight·loss / Σ weight, without dropout."""
    total = torch.zeros(2, dtype=torch.float64, device=device)
    losses.eval()
    with torch.no_grad(), products(dtype, device):
        for number, batch in enumerate(batches):
            moved = batch.to(device)
            torch.manual_seed(seed_of("validation", seed, number))
            each = losses(moved)
            total += torch.stack([(moved.weights * each).sum(), moved.weights.sum()])
    losses.train()
    loss, weight = total.tolist()
    return float(loss / weight) if weight else 0.0
