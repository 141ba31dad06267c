"""Rates of stages that were measured on this machine, kept in the user's cache for plans of other corpora.

A run keeps what it measured when it ends, and `pipeline plan --calibrate` measures in a few seconds. A rate is for a
machine (its processor or GPU, and the cores that a process may use), a stage, its models by digest, and the settings
that its cost depends on. Rates are counted in tokens, since the sentences of another corpus have other lengths. A file
that is damaged, not sealed or of another machine counts as absent: a plan then says that nobody measured the rate.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.base.errors import PipelineError
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import SEGMENT, segment_recipe
from pipeline.storage.records import is_sealed, parse_json, sealed
from stages.cards import CardError
from stages.cores import cores
from stages.fetch import cache_folder
from stages.stage import StageSettings

FOLDER = "rates"  # below the cache folder
DECODER = "decoder"  # a fit, whose rate counts steps
_COST_OF_STEPS = ("model", "batch_tokens", "precision", "noise", "codes")
LEAST_SECONDS = 1.0  # of work that is measured; less says little
SETUP_SECONDS = 10.0  # of work of a run, which begins with setting up libraries; in less, that may be most of it
LESS = 10  # a rate is not replaced by one of less than a tenth of its work
_Positive = Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]


@dataclass(frozen=True)
class MachineRate:
    """What one worker of this machine did: `sentences` (of a decoder: steps) of `tokens`, in `seconds` of work.

    machine: as `machine()` gives it; stage, work: the stage, and a digest of what its cost depends on; created: when.
    """

    machine: str
    stage: str
    work: str
    sentences: _Positive
    tokens: _Positive
    seconds: _Positive
    created: float

    def per_second(self, tokens: float | None) -> float:
        """Return sentences per second, for sentences with this many tokens on average; None: for sentences of the same
        length.
        """
        return self.sentences / self.seconds if not tokens else self.tokens / tokens / self.seconds


@functools.cache
def machine() -> str:
    """Describe this machine without loading a library: GPUs by NVIDIA's driver, processor, cores of this process."""
    gpus = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        gpus += [line.partition(":")[2].strip() for line in _text(path).splitlines() if line.startswith("Model")]
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    threads = os.environ.get("OMP_NUM_THREADS")
    parts = [*gpus, next(names, os.uname().machine), f"{cores()} cores", *([f"{threads} threads"] if threads else [])]
    return ", ".join(parts)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def machine_rate(config: RunConfig, stage: str) -> MachineRate | None:
    """Return the rate of a stage that was measured on this machine, if there is one that can be believed."""
    work = _work(config, stage)
    if work is None:
        return None
    path = _path(stage, work)
    try:
        data = path.read_bytes()
        found = parse_json(data, MachineRate, str(path), "delete it")
    except (OSError, PipelineError):
        return None
    return found if is_sealed(data) and (found.machine, found.stage, found.work) == (machine(), stage, work) else None


def keep_rate(
    config: RunConfig, stage: str, sentences: float, tokens: float, seconds: float, asked: bool = False
) -> None:
    """Keep a measured rate in the cache.

    A rate of too little work is not kept, nor one of far less work than that which is there. A cache that cannot be
    written is no error.

    Args:
        config: the configuration of the run.
        stage: the stage.
        sentences: how many sentences the stage worked on, without those that its sample leaves out; for a decoder, how
            many steps.
        tokens: how many tokens they had.
        seconds: how long that took.
        asked: whether somebody asked for this measurement, which counts then, however little work it was.
    """
    work = _work(config, stage)
    if work is None or seconds < LEAST_SECONDS or not sentences or not tokens:
        return
    before = machine_rate(config, stage)
    if before and tokens * LESS < before.tokens and not asked:
        return
    rate = MachineRate(machine(), stage, work, sentences, tokens, seconds, time.time())
    path = _path(stage, work)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(sealed(json.dumps(asdict(rate))))
        Path(file.name).replace(path)


def _path(stage: str, work: str) -> Path:
    name = hashlib.blake2b(f"{machine()}\0{work}".encode(), digest_size=8).hexdigest()
    return cache_folder() / FOLDER / f"{stage}-{name}.json"


def _work(config: RunConfig, stage: str) -> str | None:
    """Return a digest of what the cost of a stage depends on: its models and settings, without the sample's size."""
    try:
        if stage == SEGMENT:
            langs = {one.lang if isinstance(one.lang, str) else "of each document" for one in config.input}
            return fingerprint([segment_recipe(config), sorted(langs)])  # SaT is for some languages, rules for others
        if stage == DECODER:
            values = config.decoder.meaningful() if config.decoder else {}
            return fingerprint({key: values[key] for key in _COST_OF_STEPS}) if values else None
        settings = next((one for one in config.asked_stages() if one.name == stage), None)
        encoder = config.encode.artifacts() if config.encode else {}  # by which the width of embeddings is known
        return fingerprint(_cost(settings) | {"encoder": encoder}) if settings else None
    except (CardError, PipelineError):  # the card cannot be read, which others report
        return None


def _cost(settings: StageSettings) -> dict[str, Any]:
    values = {key: value for key, value in settings.meaningful().items() if key not in ("sample", "model")}
    return {"stage": settings.name, "version": settings.version, "settings": values, "models": settings.artifacts()}
