"""Measures whether the rest of a corpus is like the pilot that its artifacts were fitted on.

Each artifact is judged by its purpose, on documents that it did not see: the scaler by the median and interquartile
range of normalised values (0 and 1 without drift), codebooks by their relative error compared with that of rows held
out of the fit, the predictor by the mean of its predictions, in standard deviations. For an artifact of another corpus,
every part is unseen. Of a chunk of the pilot that has changed since, what it held then tells which documents are new;
where that is deleted, nothing of the chunk is judged. Cost: the embeddings of a few row groups; the error of codebooks
is in the receipts, for every row of a part, so parts that hold both new and seen documents are left out there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import MissingError
from pipeline.corpus.fits import FitRecord, fitted_scaler, record_of
from pipeline.corpus.part_reader import opened_data_file
from pipeline.corpus.reader import Corpus
from pipeline.corpus.receipts import summed
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.states import ChunkState, PartState
from pipeline.corpus.unfolded import read_chunks
from stages.arrow import embedding_matrix
from stages.stage import NON_FINITE

RELATIVE_ERROR = "relative_error"  # Σ‖x − x̂‖² / Σ‖x‖² with the first 1, 2, … codebooks
AUTOBLEU = "autobleu"  # 0–100, of dequantised embeddings
CODEBOOKS = "codebooks"  # the number of codebooks of each AutoBLEU; 1, 2, … if it is not given
AUTOBLEU_EXACT = "autobleu_exact"  # of the same embeddings before they were quantised


@dataclass(frozen=True)
class FitSummary:
    """One fitted artifact: what it was fitted on, and its numbers. Reports need not know how fits are stored.

    For the fit `rvq`, the lists `relative_error` and `autobleu` are plotted (LCM paper, Figure 9).
    """

    name: str
    rows: int
    chunks: int
    numbers: Mapping[str, float | Sequence[float]]
    fingerprint: str
    score: str = "cosine"  # that a predictor's weights follow
    changed: int = 0  # chunks that have changed since, of which nobody knows any more what they held

    def held_out(self, score: str | None = None) -> tuple[float, int] | None:
        """Return (Pearson correlation, sentences) of a predictor on held-out sentences; None if not known."""
        correlation, rows = self.numbers.get(f"pearson_{score or self.score}"), self.numbers.get("held_out_rows")
        if isinstance(correlation, float) and isinstance(rows, float) and math.isfinite(correlation):
            return correlation, int(rows)
        return None

    def curve(self, name: str) -> tuple[list[float], list[float]] | None:
        """Return (numbers of codebooks, values) of a list; None if it was not measured."""
        values = self.numbers.get(name)
        if not isinstance(values, Sequence) or not values:
            return None
        places = self.numbers.get(CODEBOOKS) if name == AUTOBLEU else None
        at = places if isinstance(places, Sequence) else range(1, len(values) + 1)
        return [float(place) for place in at], [float(value) for value in values]


@dataclass(frozen=True)
class Drift:
    """One measure of a fit: its value on the rows of the fit, and on later data."""

    fit: str
    measure: str
    fitted: float
    now: float
    drifted: bool


def records_of(corpus: Corpus) -> list[FitRecord]:
    """Return the records of the fits that the newest run depends on."""
    found = (record_of(corpus.store, corpus.view, name) for name in corpus.view.fits)
    return [record for record in found if record]


def predicted_score(corpus: Corpus) -> str:
    """Return the score of fragility that `fragility_predicted` and `weight` follow: `cosine` or `bleu`."""
    return str(corpus.view.stages["predictor"]["predictor"]["score"])


def fit_summary(corpus: Corpus, record: FitRecord) -> FitSummary:
    """Return what reports and measures say of a fit."""
    found = FitSummary(
        record.name, record.rows, len(record.chunks), record.numbers, record.digest, changed=_changed(corpus, record)
    )
    return replace(found, score=predicted_score(corpus)) if record.name == "predictor" else found


ROWS = 20_000
SHIFT = 0.1  # of medians, in interquartile ranges, over all dimensions
SPREAD = 1.25  # times wider or narrower
WORSE = 1.1  # times the error
MOST_PARTS = 2000  # in the (random) order of the run: their receipts are read
MOVED = 0.5  # standard deviations


def drift(corpus: Corpus, records: Sequence[FitRecord]) -> list[Drift]:
    """Return one entry per measure; none if the pilot was the whole corpus, or nothing else is finished yet."""
    found: list[Drift] = []
    for record in records:
        if record.name not in _MEASURES:
            continue
        pilot = _pilot(record)
        needs, measure = _MEASURES[record.name]
        others = (
            (part, seen)
            for chunk in corpus.chunks
            if needs not in chunk.missing and (seen := _seen(corpus, pilot, chunk)) is not None
            for part in chunk.parts
        )
        parts = list(itertools.islice(others, MOST_PARTS))
        found += measure(corpus, record, parts) if parts else []
    return found


_Unseen = tuple[PartState, frozenset[int]]  # a part, and hashes of documents in it that the fit may have seen


def _pilot(record: FitRecord) -> dict[str, str]:
    """Return the chunks of a fit with their fingerprints, which are empty where they are not known."""
    if record.source:
        return {}
    known = record.fingerprints or [""] * len(record.chunks)
    return dict(zip(record.chunks, known, strict=True))


def _seen(corpus: Corpus, pilot: Mapping[str, str], chunk: ChunkState) -> frozenset[int] | None:
    """Return hashes of the documents of a chunk that the fit may have seen; None if it may have seen any of them."""
    made = pilot.get(chunk.chunk.id)
    if made is None:
        return frozenset()
    earlier = [] if made in ("", chunk.fingerprint) else _earlier(corpus, chunk.chunk.id, made)
    found: set[int] = set()
    for file in (file for part in earlier for file in part.receipts[SEGMENT].files if file.family == "documents"):
        try:
            with opened_data_file(corpus.store, file.path) as opened:
                found |= set(opened.read(["text_hash"])["text_hash"].to_pylist())
        except MissingError:
            return None
    return frozenset(found) if earlier else None


def _earlier(corpus: Corpus, chunk: str, fingerprint: str) -> list[PartState]:
    (opened,) = read_chunks(corpus.store, corpus.view, [(chunk, fingerprint)])
    return opened[1] if opened else []


def _changed(corpus: Corpus, record: FitRecord) -> int:
    by_id = corpus.chunks.by_id
    there = {one: made for one, made in _pilot(record).items() if made and one in by_id}
    changed = [one for one, made in there.items() if corpus.chunks[by_id[one]].fingerprint != made]
    return sum(not _earlier(corpus, one, there[one]) for one in changed)


def _scaler(corpus: Corpus, record: FitRecord, parts: list[_Unseen]) -> list[Drift]:
    from stages.scaler.robust import ScalerFit

    embeddings = embedding_matrix(_sample(corpus, parts, "embedding")["embedding"])
    fitted = fitted_scaler(corpus.store, corpus.view)
    if fitted is None or not len(embeddings):
        return []
    count = ScalerFit(len(fitted.median))
    count.add(embeddings)
    now = count.finish()
    shift = float(((now.median - fitted.median) / fitted.iqr).abs().mean())
    spread = float((now.iqr / fitted.iqr).quantile(0.5))  # `median` takes the lower of two middle values
    return [
        Drift(record.name, "mean shift of medians, in IQR", 0.0, shift, shift > SHIFT),
        Drift(record.name, "IQR, median over dimensions", 1.0, spread, not 1 / SPREAD < spread < SPREAD),
    ]


def _rvq(corpus: Corpus, record: FitRecord, parts: list[_Unseen]) -> list[Drift]:
    def is_new(part: PartState, seen: frozenset[int]) -> bool:
        return not seen or seen.isdisjoint(corpus.documents(part.ref.part)["text_hash"].to_pylist())

    counts = summed([part.receipts["rvq"].counts for part, seen in parts if is_new(part, seen)])
    curve = record.numbers.get(RELATIVE_ERROR)
    if not counts.get("rvq.squared_norm") or not isinstance(curve, list):
        return []
    before, now = curve[-1], counts["rvq.squared_error"] / counts["rvq.squared_norm"]
    return [Drift(record.name, RELATIVE_ERROR.replace("_", " "), before, now, now > WORSE * before)]


def _predictor(corpus: Corpus, record: FitRecord, parts: list[_Unseen]) -> list[Drift]:
    values = _sample(corpus, parts, "fragility_predicted")["fragility_predicted"].drop_null().to_numpy()
    score = predicted_score(corpus)
    mean, std = (record.numbers.get(f"{name}_{score}", math.nan) for name in ("mean", "std"))
    if not len(values) or not isinstance(mean, float) or not isinstance(std, float):
        return []
    now = float(values.mean(dtype=np.float64))
    return [Drift(record.name, "mean of fragility_predicted", mean, now, abs(now - mean) > MOVED * std)]


def _sample(corpus: Corpus, parts: list[_Unseen], *columns: str) -> pa.Table:
    """Return finite rows that the fit did not see, about `ROWS`: of the first row group of parts without others."""
    tables, rows = [], 0
    for part, seen in parts:
        with corpus.reader(part.ref.part) as reader:
            for group in range(reader.groups if seen else 1):
                table = reader.read([*columns, "status", "text_hash"], group)
                known = pc.is_in(table["text_hash"], pa.array(sorted(seen), pa.uint64()))
                finite = pc.not_equal(table["status"], pa.scalar(NON_FINITE, pa.uint8()))
                tables.append(table.filter(pc.and_not(finite, known)))
                rows += tables[-1].num_rows
        if rows >= ROWS:
            break
    return pa.concat_tables(tables)


# of a fit, the stage whose rows are compared with the pilot's, and how
_MEASURES = {"scaler": ("encode", _scaler), "rvq": ("rvq", _rvq), "predictor": ("predictor", _predictor)}
