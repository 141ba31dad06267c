"""The pilot, and what is fitted on it: robust scaler, predictor of fragility, RVQ codebooks, rates of samples.

The pilot is the shortest run of chunks, in the (seeded, stratified random) order of the run, that holds `fit.rows`
sentences. A fit looks at the rows of the pilot whose u lies below the rate that gives the number it asks for, part by
part in the order of their names: the same rows whatever worked on them. Cost: the embeddings of those rows are read
once, at about 1 GB/s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.errors import CorpusError
from pipeline.fingerprint import fingerprint
from pipeline.fits import FitRecord, Numbers, Rate, commit_fit, commit_rate, fit_recipe, read_artifact
from pipeline.part_reader import PartReader
from pipeline.remote import in_words
from pipeline.state import ChunkState, PartState
from pipeline.store import Store
from stages.arrow import embedding_array, embedding_matrix
from stages.encode.settings import NON_FINITE
from stages.sampling import Rows
from stages.sonar.card import load_card

if TYPE_CHECKING:
    from stages.rvq.codebooks import Codebooks

FIRST_CHUNKS = 8  # that are segmented before it is known how many sentences a chunk holds
JUDGED_ROWS = 500  # that are decoded again for the curve of AutoBLEU by codebooks
SCORES = ("fragility_bleu", "fragility_cosine")

Progress = Callable[[int, int], None]  # done, of how many


@dataclass(frozen=True)
class Pilot:
    """chunks: from the first of the run; `enough`: all segmented, and they hold the rows asked for, or are all."""

    chunks: list[ChunkState]
    enough: bool

    @property
    def parts(self) -> list[PartState]:
        """In the order of their names."""
        return sorted((part for one in self.chunks for part in one.parts), key=lambda part: part.ref.part)


def pilot_of(chunks: Sequence[ChunkState], rows: int) -> Pilot:
    """The pilot; while too little is segmented, so many chunks as will probably be needed."""
    held = 0
    for index, one in enumerate(chunks):
        if one.receipt is None:
            mean = held / index if index else 0.0
            more = int((rows - held) / mean) + 1 if mean else FIRST_CHUNKS
            return Pilot(list(chunks[: index + more]), False)
        held += one.receipt.sentences
        if held >= rows:
            return Pilot(list(chunks[: index + 1]), True)
    return Pilot(list(chunks), True)


def freeze_rates(store: Store, config: RunConfig, pilot: Pilot, everything: Sequence[ChunkState]) -> list[Rate]:
    """Decide the shares of samples that are given as numbers of rows, by the bytes of the pilot and of all inputs."""
    rows = sum(part.rows for part in pilot.parts)
    seen = sum(one.chunk.bytes for one in pilot.chunks)
    whole = len(pilot.chunks) == len(everything) or not seen
    estimated = float(rows) if whole else rows * sum(one.chunk.bytes for one in everything) / seen
    samples = {stage.name: getattr(stage, "sample", None) for stage in config.asked_stages()}
    return [
        commit_rate(store, name, sample, estimated)
        for name, sample in samples.items()
        if isinstance(sample, Rows) and name not in config.frozen.rates
    ]


def fit(store: Store, config: RunConfig, pilot: Pilot, name: str, device: str, progress: Progress) -> FitRecord:
    """Fit one artifact on the pilot and freeze it. Raises `CorpusError` if there are too few rows."""
    started = time.perf_counter()
    settings = getattr(config, name)
    if settings.file:
        return _take(store, config, name, settings.file)
    sample = _Sample(store, pilot, settings.rows)
    fitting = {"scaler": _fit_scaler, "predictor": _fit_predictor, "rvq": _fit_rvq}[name]
    try:
        made = fitting(store, config, sample, device, progress)
    except ValueError as error:
        raise CorpusError(f"{name} cannot be fitted on the pilot ({sample.rows} sentences): {error}") from error
    chunks = [one.chunk.id for one in pilot.chunks]
    recipe = fit_recipe(config, name)
    data = made.artifact({"fingerprint": fingerprint(recipe), "recipe": recipe, "chunks": chunks, "rows": made.rows})
    return commit_fit(
        store,
        config,
        name,
        data,
        chunks=chunks,
        rows=made.rows,
        numbers=made.numbers,
        seconds=time.perf_counter() - started,
        device=device,
    )


def _take(store: Store, config: RunConfig, name: str, url: str) -> FitRecord:
    """Copy an artifact of another corpus. Raises `CorpusError` unless it was fitted on the same kind of embeddings."""
    from stages.artifact import from_bytes

    with in_words(url), fsspec.open(url, "rb") as file:
        data = file.read()
    try:
        _, about = from_bytes(name, data)
    except ValueError as error:
        raise CorpusError(f"{name}.file {url}: {error}") from error
    theirs, ours = about["provenance"], fit_recipe(config, name)
    assert ours
    for section in ("encode", "segment"):
        if theirs["recipe"][section] != ours[section]:
            raise CorpusError(
                f"{name}.file {url} was fitted under {section} {theirs['recipe'][section]}, this corpus is of "
                f"{section} {ours[section]} (fingerprints of settings and models): make the sections alike, or leave "
                f"{name}.file out"
            )
    return commit_fit(
        store, config, name, data, chunks=theirs["chunks"], rows=theirs["rows"], numbers=about["numbers"], seconds=0.0,
        device="none: it was taken from another corpus",
    )  # fmt: skip


class _Sample:
    """The finite rows of the pilot's parts with u below the rate that gives about `wanted` of them."""

    def __init__(self, store: Store, pilot: Pilot, wanted: int) -> None:
        self._store, self._parts = store, pilot.parts
        counts = [part.receipts["encode"].counts for part in self._parts]
        self.rows = int(sum(part.rows for part in self._parts) - sum(one["non_finite"] for one in counts))
        self._rate = min(1.0, wanted / max(1, self.rows))

    def batches(self, *columns: str) -> Iterator[pa.Table]:
        """Row group after row group."""
        for part in self._parts:
            with PartReader(self._store, part.ref.part, part.receipts) as reader:
                for batch in reader.batches([*columns, "u", "status"]):
                    table = batch.table
                    below = pc.less(table["u"], self._rate)
                    yield table.filter(pc.and_(below, pc.not_equal(table["status"], pa.scalar(NON_FINITE, pa.uint8()))))

    def smallest_u(self, wanted: int, *columns: str) -> pa.Table:
        """The rows with the smallest u: within every sample, wherever they stand."""
        found: pa.Table | None = None
        for table in self.batches(*columns):
            both = pa.concat_tables([found, table]) if found else table
            found = both.take(pc.sort_indices(both["u"])[:wanted])
        assert found is not None
        return found

    def embeddings(self) -> npt.NDArray[np.float16]:
        """(rows, dim) of all batches."""
        return np.concatenate([embedding_matrix(table["embedding"]) for table in self.batches("embedding")])


@dataclass(frozen=True)
class _Made:
    artifact: Callable[[dict[str, object]], bytes]  # provenance → file
    rows: int
    numbers: Numbers


def _fit_scaler(store: Store, config: RunConfig, sample: _Sample, device: str, progress: Progress) -> _Made:
    from stages.scaler.robust import ScalerFit

    assert config.encode and config.scaler
    counting = ScalerFit(load_card(config.encode.model).dim)
    rows = 0
    for table in sample.batches("embedding"):
        counting.add(embedding_matrix(table["embedding"]))
        rows += table.num_rows
        progress(rows, min(sample.rows, config.scaler.rows))
    scaler = counting.finish(clip=config.scaler.clip)
    return _Made(scaler.to_bytes, rows, {"constant_dimensions": float(scaler.constant_dimensions)})


def _fit_rvq(store: Store, config: RunConfig, sample: _Sample, device: str, progress: Progress) -> _Made:
    from stages.rvq.fit import fit_codebooks

    assert config.rvq
    embeddings = sample.embeddings()
    codebooks, numbers = fit_codebooks(embeddings, config.rvq, device, progress)
    numbers |= _autobleu_by_codebooks(config, sample, codebooks, device)
    return _Made(codebooks.to_bytes, len(embeddings), numbers)


def _autobleu_by_codebooks(
    config: RunConfig, sample: _Sample, codebooks: Codebooks, device: str
) -> dict[str, float | list[float]]:
    """Mean AutoBLEU of dequantised embeddings with the first 1, 2, 4, … codebooks (LCM Figure 9), and of exact ones."""
    from stages.autobleu.settings import AutobleuSettings

    assert config.encode
    settings = config.autobleu or AutobleuSettings(model=config.encode.model)
    stage = settings.model_copy(update={"sample": 1.0}).build({})
    stage.setup(device)
    rows = sample.smallest_u(JUDGED_ROWS, "text", "lang", "embedding")
    columns = {"sentences.text": rows["text"], "sentences.lang": rows["lang"], "sentences.u": rows["u"]}
    columns["status.status"] = rows["status"]
    exact = embedding_matrix(rows["embedding"])
    codes = codebooks.encode(exact)

    def score(embeddings: npt.NDArray[np.float16]) -> float:
        table = pa.table({**columns, "embeddings.embedding": embedding_array(embeddings)})
        result = stage.finish(stage.compute(stage.prepare(table)))
        return float(np.mean(result.families["autobleu"]["autobleu"].to_numpy(), dtype=np.float64))

    counts = [2**power for power in range(12) if 2**power < codes.shape[1]] + [codes.shape[1]]
    scores = [score(codebooks.decode(codes, first).half().cpu().numpy()) for first in counts]
    return {"codebooks": [float(one) for one in counts], "autobleu": scores, "autobleu_exact": score(exact)}


def _fit_predictor(store: Store, config: RunConfig, sample: _Sample, device: str, progress: Progress) -> _Made:
    from stages.predictor.fit import fit_predictor
    from stages.scaler.robust import RobustScaler

    assert config.predictor
    tables = [table.filter(pc.is_valid(table["fragility_cosine"])) for table in sample.batches("embedding", *SCORES)]
    embeddings = np.concatenate([embedding_matrix(table["embedding"]) for table in tables])
    targets = np.stack([np.concatenate([table[name].to_numpy() for table in tables]) for name in SCORES], axis=1)
    scaler = RobustScaler.from_bytes(read_artifact(store, config.frozen.fits["scaler"]))
    predictor, numbers = fit_predictor(embeddings, targets, config.predictor, scaler, device, progress)
    return _Made(predictor.to_bytes, len(embeddings), numbers)
