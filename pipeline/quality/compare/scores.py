"""Segments a sample with one method, and scores the result with the stages of corpus.yaml.

Speed is measured after loading: whole passes over the sample for at least a second. Every sentence is scored,
regardless of `autobleu.sample`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.errors import CorpusError, starting
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import RowProgress
from pipeline.quality.compare.sample import TextSample
from pipeline.quality.measures import mean_over_documents
from stages.autobleu.settings import AutobleuSettings
from stages.encode.settings import EncodeSettings
from stages.registry import build_stage
from stages.segment.segmenter import Segmented, Segmenter
from stages.segment.settings import SegmentSettings
from stages.sonar.card import load_card
from stages.stage import Stage, StageSettings, whole

METHODS = ("spacy", "spacy-capped", "sat", "sat-capped")
TIMED_SECONDS = 1.0
SLICE = 512  # sentences between two updates of the progress
WARM_UP = 32  # sentences

Count = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class Cut:
    """The sample as one method cuts it. `speed`: megabytes of UTF-8 per second."""

    method: str
    segmented: Segmented
    speed: float

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return len(self.segmented.chars)


@dataclass(frozen=True)
class Length:
    """Sentences of `first` to `last` characters (None: no limit).

    `mean`, `error`: AutoBLEU, and its standard error over documents.
    """

    first: int
    last: int | None
    sentences: int
    mean: float
    error: float


@dataclass(frozen=True)
class Scored:
    """Scores of a method. `autobleu`: (sentences,), NaN if an embedding is not finite; `seconds` of encoding and
    decoding.
    """

    cut: Cut
    autobleu: npt.NDArray[np.float32]
    truncated: int
    seconds: float

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.cut.method

    @property
    def chars(self) -> npt.NDArray[np.int32]:
        """(sentences,) lengths in characters."""
        return self.cut.segmented.chars

    @property
    def unscored(self) -> int:
        """The number of sentences whose embedding is not finite."""
        return int(np.isnan(self.autobleu).sum())

    def mean(self, *, by_characters: bool = False) -> float:
        """Return AutoBLEU averaged over sentences, or over characters: methods differ in how many sentences
        they make.
        """
        known = ~np.isnan(self.autobleu)
        weights = self.chars[known] if by_characters else np.ones(int(known.sum()))
        return float(np.average(self.autobleu[known].astype(np.float64), weights=weights)) if known.any() else math.nan

    def by_length(self, max_chars: int) -> list[Length]:
        """Return steps of 20 characters up to 300 for a cap of 200, and one for all longer sentences; wider for larger
        caps.
        """
        width = 20 * max(1, -(-max_chars // 200))
        steps = 15
        step = np.minimum((self.chars - 1) // width, steps)
        documents = np.asarray(self.cut.segmented.document)
        found = []
        for index in range(steps + 1):
            here = (step == index) & ~np.isnan(self.autobleu)
            mean, error = mean_over_documents(self.autobleu[here], documents[here])
            found.append(
                Length(
                    first=index * width + 1,
                    last=(index + 1) * width if index < steps else None,
                    sentences=int(here.sum()),
                    mean=mean,
                    error=error,
                )
            )
        return found


def cut(settings: SegmentSettings, method: str, sample: TextSample, count_tokens: Count, device: str) -> Cut:
    """Segment the sample, and repeat that to measure the time.

    Args:
        settings: the section `segment`.
        method: the method that is used instead of the one in the settings.
        sample: the texts.
        count_tokens: counts the tokens of a text.
        device: where networks compute: `cpu`, `cuda:0`, `mps`.

    Returns:
        The sentences, and the speed in MB/s. `StartError` is raised if the method cannot be loaded.
    """
    with starting(f"segment.method {method}"):
        segmenter = Segmenter(settings.model_copy(update={"method": method}), count_tokens, device)
    segmented = segmenter.segment(
        sample.texts, sample.langs
    )  # untimed: the rules of a language are loaded on first use
    passes, seconds, started = 0, 0.0, time.perf_counter()
    while seconds < TIMED_SECONDS:
        segmenter.segment(sample.texts, sample.langs)
        passes, seconds = passes + 1, time.perf_counter() - started
    return Cut(method, segmented, passes * sample.megabytes / seconds)


class Scorer:
    """The stages encode and autobleu as corpus.yaml sets them, or with defaults if it has no such section."""

    def __init__(self, config: RunConfig, device: str) -> None:
        encode = config.encode or EncodeSettings(model=config.segment.model)
        autobleu = config.autobleu or AutobleuSettings(model=encode.model)
        self._settings = (encode, autobleu.model_copy(update={"sample": 1.0}))
        self._stages = [(settings, _loaded(settings, device)) for settings in self._settings]
        self._warm = False

    def describe(self) -> str:
        """Describe models and search in words."""
        encode, autobleu = self._settings
        names = dict.fromkeys(load_card(model).name for model in (encode.model, autobleu.model))
        return f"{' → '.join(names)}, {'greedy' if autobleu.beam == 1 else f'beam {autobleu.beam}'}"

    def score(self, made: Cut, sample: TextSample, progress: RowProgress) -> Scored:
        """Encode and decode every sentence.

        Args:
            made: the sentences of one method.
            sample: the texts that they were cut from.
            progress: is told of scored sentences.

        Returns:
            AutoBLEU of each sentence, how many were truncated, and the seconds. `CorpusError` is raised if a sentence
                does not fit into the device's memory.
        """
        langs = pa.array(sample.langs).take(pa.array(made.segmented.document))
        zeros = pa.array(np.zeros(made.sentences))
        table = pa.table({"sentences.text": made.segmented.text, "sentences.lang": langs, "sentences.u": zeros})
        if not self._warm:
            self._compute(table.slice(0, WARM_UP))
            self._warm = True
        started = time.perf_counter()
        parts = []
        for start in range(0, made.sentences, SLICE):
            parts.append(self._compute(table.slice(start, SLICE)))
            progress.add(parts[-1].num_rows)
        seconds = time.perf_counter() - started
        done = pa.concat_tables(parts)
        scores = done["autobleu.autobleu"].to_numpy()
        truncated = int((done["status.status"].to_numpy() == 1).sum())
        return Scored(made, scores, truncated, seconds)

    def _compute(self, table: pa.Table) -> pa.Table:
        """Return scores and statuses of the rows, as the worker of a run gets them."""
        from stages.device import DeviceMemoryError  # imports torch

        for settings, stage in self._stages:
            try:
                result = whole(stage, table.select(settings.reads))
            except DeviceMemoryError as error:
                raise CorpusError(f"{settings.name}: {error}") from error
            for family, columns in result.families.items():
                for name in columns.column_names:
                    table = table.append_column(f"{family}.{name}", columns[name])
        return table.select(["autobleu.autobleu", "status.status"])


def _loaded(settings: StageSettings, device: str) -> Stage:
    with starting(settings.name):
        stage = build_stage(settings, {})
        stage.setup(device)
    return stage
