"""The stages of a run with their networks on one device, where one part computes at a time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.base.captured import capture_warnings
from pipeline.base.errors import starting
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fits import read_artifact
from pipeline.storage.store import Store
from stages.device import describe
from stages.registry import build_stage
from stages.stage import Stage, StageSettings


@dataclass(frozen=True)
class Ran:
    """The result of `compute`, seconds of waiting for the device and of computing, the device, and warnings."""

    computed: Any
    wait: float
    seconds: float
    device: str
    warned: tuple[str, ...]


class Computes(Protocol):
    """Runs the networks of a worker: in this process or in another one."""

    def stage(self, settings: StageSettings) -> tuple[Stage, list[str]]:
        """Return the stage whose `prepare` and `finish` to call, and the warnings while it was loaded."""

    def compute(self, settings: StageSettings, prepared: Any) -> Ran:
        """Call the stage's `compute` where the device is."""


class Networks:
    """Runs networks in this process. Stages are loaded on first use; several threads may call it."""

    def __init__(self, config: RunConfig, device: str) -> None:
        self.config, self.device = config, device
        self._store = Store(config.output)
        self._stages: dict[str, tuple[Stage, list[str]]] = {}
        self._loading = threading.Lock()
        self._computing = threading.Lock()

    def stage(self, settings: StageSettings) -> tuple[Stage, list[str]]:
        """Return the stage, set up."""
        with self._loading:
            if settings.name not in self._stages:
                with starting(settings.name), capture_warnings() as warned:
                    stage = built(self._store, self.config, settings)
                    stage.setup(self.device)
                self._stages[settings.name] = stage, warned
            return self._stages[settings.name]

    def compute(self, settings: StageSettings, prepared: Any) -> Ran:
        """Wait until no other part computes, then compute."""
        stage, _ = self.stage(settings)
        asked = time.perf_counter()
        with self._computing, capture_warnings() as warned:
            began = time.perf_counter()
            computed = stage.compute(prepared)
            ended = time.perf_counter()
        return Ran(computed, began - asked, ended - began, describe(self.device), tuple(warned))


def built(store: Store, config: RunConfig, settings: StageSettings) -> Stage:
    """Return a stage with the fits that it needs, not yet on a device.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        settings: the settings of the stage.

    Returns:
        The stage.
    """
    fits = config.frozen.fits
    return build_stage(settings, {name: read_artifact(store, fits[name]) for name in settings.fits})
