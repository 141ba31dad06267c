"""Fits on the pilot: robust scaler, predictor of fragility, RVQ codebooks, a decoder, and rates of samples.

A fit uses the rows of the pilot whose u lies below the rate that gives the number it asks for, part by part in the
order of their names: always the same rows, whatever worked on them. Cost: the embeddings of those rows are read once,
at about 1 GB/s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import FitProgress
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.fits import (
    FitRecord,
    Numbers,
    Rate,
    checkpoint_path,
    commit_fit,
    commit_rate,
    fit_recipe,
    next_generation,
    read_artifact,
)
from pipeline.corpus.states import ChunkState
from pipeline.run.pilot import Pilot, PilotSample
from pipeline.storage.remote import translate_errors
from pipeline.storage.store import Store
from stages.arrow import embedding_array, embedding_matrix
from stages.cards import CardError
from stages.registry import build_stage
from stages.sampling import Rows
from stages.sonar.card import load_card
from stages.stage import whole

if TYPE_CHECKING:
    from stages.rvq.codebooks import Codebooks

HELD_OUT_ROWS = 4096  # the largest share of the sample on which codebooks are evaluated
LEAST_HELD_OUT = 20  # rows of a small sample
JUDGED_ROWS = 500  # of those, how many are decoded for the curve of AutoBLEU by codebooks
SCORES = ("fragility_bleu", "fragility_cosine")

Progress = Callable[[int, int], None]  # done, of how many


def freeze_rates(store: Store, config: RunConfig, pilot: Pilot, everything: Sequence[ChunkState]) -> list[Rate]:
    """Freeze samples that are given as numbers of rows, as shares of all rows.

    How many rows there will be is estimated by the bytes of the pilot and of all inputs.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        pilot: the chunks and parts of the pilot.
        everything: all chunks of the view.

    Returns:
        The rates that were frozen now.
    """
    rows = sum(part.rows for part in pilot.parts)
    seen = sum(one.chunk.bytes for one in pilot.chunks)
    whole = len(pilot.chunks) == len(everything) or not seen
    estimated = float(rows) if whole else rows * sum(one.chunk.bytes for one in everything) / seen
    samples = {stage.name: getattr(stage, "sample", None) for stage in config.asked_stages()}
    return [
        commit_rate(store, config, name, sample.rows, estimated)
        for name, sample in samples.items()
        if isinstance(sample, Rows) and name not in config.frozen.rates and estimated
    ]


def fit(
    store: Store, config: RunConfig, pilot: Pilot, name: str, refit: bool, device: str, progress: FitProgress
) -> FitRecord:
    """Fit one artifact on the pilot and freeze it.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        pilot: the chunks and parts of the pilot.
        name: `scaler`, `predictor`, `rvq` or `decoder`.
        refit: whether to fit it even if there is one with this recipe.
        device: where it is computed: `cpu`, `cuda:0`, `mps`.
        progress: shows how far the fit is, and its measurement.

    Returns:
        The record of the fit.

    Raises:
        CorpusError: if there are too few rows, or a model is missing.
    """
    started = time.perf_counter()
    generation = next_generation(store, config, name, refit)
    settings = getattr(config, name)
    if settings.file:
        return _take(store, config, name, generation)
    sample = PilotSample(store, pilot, settings.rows)
    fitting = {"scaler": _fit_scaler, "predictor": _fit_predictor, "rvq": _fit_rvq, "decoder": _fit_decoder}[name]
    try:
        made = fitting(store, config, sample, device, progress)
    except (ValueError, CardError) as error:
        apart = ", some of them held out for evaluation" if name != "scaler" else ""
        raise CorpusError(f"{name} cannot be fitted on the pilot ({sample.rows} sentences{apart}): {error}") from error
    chunks = [one.chunk.id for one in pilot.chunks]
    recipe = fit_recipe(config, name)
    data = made.artifact({"fingerprint": fingerprint(recipe), "recipe": recipe, "chunks": chunks, "rows": made.rows})
    record = commit_fit(
        store,
        config,
        name,
        generation,
        data,
        source=None,
        chunks=chunks,
        rows=made.rows,
        numbers=made.numbers,
        seconds=time.perf_counter() - started,
        device=device,
        fingerprints=[one.fingerprint for one in pilot.chunks],
        card=_card(config, name, data),
    )
    if name == "decoder":
        store.delete(checkpoint_path(record.fingerprint))  # it served its purpose
    return record


def _card(config: RunConfig, name: str, data: bytes) -> Callable[[str], bytes] | None:
    """Return what makes the model card beside an artifact; None for artifacts that have none."""
    if name != "decoder":
        return None
    from pipeline.run.decoder_fit import card_of  # torch

    return card_of(config, data)


def _take(store: Store, config: RunConfig, name: str, generation: int) -> FitRecord:
    """Copy an artifact of another corpus. Raises `CorpusError` unless it was fitted on the same kind of embeddings."""
    from stages.artifact import from_bytes

    settings = getattr(config, name)
    where = f"{name}.file {settings.file}"
    with translate_errors(settings.file), fsspec.open(settings.file, "rb") as file:
        data = file.read()
    try:
        tensors, about = from_bytes(name, data)
        theirs, ours = about["provenance"], fit_recipe(config, name)
        of_them = {section: theirs["recipe"][section] for section in ("encode", "segment")}
    except ValueError as error:
        raise CorpusError(f"{where}: {error}") from error
    except KeyError as error:
        raise CorpusError(
            f"{where} does not say on which corpus it was fitted: give one of a corpus's fits/"
        ) from error
    assert ours
    for section, their_fingerprint in of_them.items():
        if their_fingerprint != ours[section]:
            raise CorpusError(
                f"{where} was fitted under {section} {their_fingerprint}, this corpus is of {section} {ours[section]} "
                f"(fingerprints of settings and models): make the sections alike, or leave {name}.file out"
            )
    if name == "decoder":
        from pipeline.run.decoder_fit import check_fits

        check_fits(config, theirs["recipe"])
    found = about["settings"] | dict(zip(("codebooks", "units"), next(iter(tensors.values())).shape, strict=False))
    for key in {"scaler": ("clip",), "rvq": ("codebooks", "units")}.get(name, ()):
        if found[key] != getattr(settings, key):
            raise CorpusError(
                f"{where} has {key} {found[key]}, {name}.{key} is {getattr(settings, key)}: make them equal"
            )
    return commit_fit(
        store, config, name, generation, data, source=settings.file, chunks=theirs["chunks"], rows=theirs["rows"],
        numbers=about["numbers"], seconds=0.0, device="none", card=_card(config, name, data),
    )  # fmt: skip


@dataclass(frozen=True)
class _FittedArtifact:
    artifact: Callable[[dict[str, object]], bytes]  # provenance → file
    rows: int
    numbers: Numbers


def _fit_scaler(
    store: Store, config: RunConfig, sample: PilotSample, device: str, progress: FitProgress
) -> _FittedArtifact:
    from stages.scaler.robust import ScalerFit

    assert config.encode and config.scaler
    counting = ScalerFit(load_card(config.encode.model).dim)
    rows, most = 0, min(sample.rows, config.scaler.rows)
    progress.of(rows, most)
    for table in sample.batches("embedding"):
        counting.add(embedding_matrix(table["embedding"]))
        rows += table.num_rows
        progress.of(rows, most)
    scaler = counting.finish(clip=config.scaler.clip)
    return _FittedArtifact(scaler.to_bytes, rows, {"constant_dimensions": float(scaler.constant_dimensions)})


def _fit_rvq(
    store: Store, config: RunConfig, sample: PilotSample, device: str, progress: FitProgress
) -> _FittedArtifact:
    """Fit codebooks; their error and AutoBLEU are measured on held-out rows (a twentieth, at most 4096)."""
    from stages.rvq.fit import fit_codebooks

    assert config.rvq
    progress.of(0, config.rvq.codebooks)
    rows = max(1.0, sample.rows * sample.rate)
    held_out = sample.rate * max(min(0.05, HELD_OUT_ROWS / rows), min(0.5, LEAST_HELD_OUT / rows))
    judged = sample.below(held_out, "text", "lang", "embedding")
    if not judged.num_rows:
        raise ValueError(f"of {rows:.0f} rows none can be held out; raise rvq.rows or fit.rows")
    judge = _CodebookJudge(config, judged, device)
    embeddings = sample.embeddings(above=held_out)
    seen = len(embeddings)
    codebooks, numbers = fit_codebooks(embeddings, config.rvq, device, progress.of)
    numbers = {"relative_error_fitted": numbers["relative_error"]} | judge.judge(codebooks, progress.measuring)
    return _FittedArtifact(
        replace(codebooks, numbers=numbers).to_bytes, seen, numbers
    )  # for corpora that use the codebooks


class _CodebookJudge:
    """Measures relative error and mean AutoBLEU of dequantised rows by number of codebooks (LCM Figure 9).

    It is created before the codebooks are fitted, so that a problem with the decoder shows before hours of fitting.
    """

    def __init__(self, config: RunConfig, rows: pa.Table, device: str) -> None:
        from stages.autobleu.settings import AutobleuSettings

        assert config.encode
        self._exact = embedding_matrix(rows["embedding"])
        few = rows.take(pc.sort_indices(rows["u"])[:JUDGED_ROWS])
        self._few = {f"sentences.{name}": few[name] for name in ("text", "lang", "u")} | {
            "status.status": few["status"]
        }
        self._few_exact = embedding_matrix(few["embedding"])
        settings = config.autobleu or AutobleuSettings(model=config.encode.model)
        self._stage = build_stage(settings.model_copy(update={"sample": 1.0}), {})
        self._stage.setup(device)
        self._autobleu_exact = self._autobleu(self._few_exact)

    def judge(self, codebooks: Codebooks, progress: Progress) -> dict[str, float | list[float]]:
        """Return the numbers for the record."""
        codes = codebooks.encode(self._exact)
        exact = self._exact.astype(np.float32)
        energy = float(np.square(exact, dtype=np.float64).sum())
        errors = []
        for first in range(1, codes.shape[1] + 1):
            left = exact - codebooks.decode(codes, first).cpu().numpy()
            errors.append(float(np.square(left, dtype=np.float64).sum()) / energy)
        codes = codebooks.encode(self._few_exact)
        counts = [2**power for power in range(12) if 2**power < codes.shape[1]] + [codes.shape[1]]
        progress(0, len(counts))
        scores = []
        for first in counts:
            scores.append(self._autobleu(codebooks.decode(codes, first).half().cpu().numpy()))
            progress(len(scores), len(counts))
        return {
            "held_out_rows": float(len(exact)),
            "relative_error": errors,
            "codebooks": [float(one) for one in counts],
            "autobleu": scores,
            "autobleu_exact": self._autobleu_exact,
        }

    def _autobleu(self, embeddings: npt.NDArray[np.float16]) -> float:
        table = pa.table({**self._few, "embeddings.embedding": embedding_array(embeddings)})
        result = whole(self._stage, table)
        return float(np.mean(result.families["autobleu"]["autobleu"].to_numpy(), dtype=np.float64))


def _fit_decoder(
    store: Store, config: RunConfig, sample: PilotSample, device: str, progress: FitProgress
) -> _FittedArtifact:
    from pipeline.run.decoder_fit import fit_decoder

    return _FittedArtifact(*fit_decoder(store, config, sample, device, progress))


def _fit_predictor(
    store: Store, config: RunConfig, sample: PilotSample, device: str, progress: FitProgress
) -> _FittedArtifact:
    from stages.predictor.fit import fit_predictor
    from stages.scaler.robust import RobustScaler

    assert config.predictor
    progress.of(0, config.predictor.epochs)
    tables = [table.filter(pc.is_valid(table["fragility_cosine"])) for table in sample.batches("embedding", *SCORES)]
    embeddings = np.concatenate([embedding_matrix(table["embedding"]) for table in tables])
    targets = np.stack([np.concatenate([table[name].to_numpy() for table in tables]) for name in SCORES], axis=1)
    scaler = RobustScaler.from_bytes(read_artifact(store, config.frozen.fits["scaler"]))
    predictor, numbers = fit_predictor(embeddings, targets, config.predictor, scaler, device, progress.of)
    return _FittedArtifact(predictor.to_bytes, len(embeddings), numbers)
