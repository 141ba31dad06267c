"""Whether the rest of a corpus looks like the pilot that its artifacts were fitted on.

Each artifact is judged by what it is for, on rows of the pilot and on as many rows outside it: the scaler by the median
and interquartile range of normalised values (0 and 1 where nothing drifts), codebooks by their relative error, the
predictor by its mean in standard deviations. Cost: the embeddings of at most 2 · 20 000 rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus import Corpus
from pipeline.fits import FitRecord, read_artifact
from pipeline.frozen import FitRef
from pipeline.receipts import summed
from pipeline.report.fits import RELATIVE_ERROR, Drift
from stages.arrow import embedding_matrix
from stages.encode.settings import NON_FINITE

ROWS = 20_000
SHIFT = 0.1  # of medians, in interquartile ranges, over all dimensions
SPREAD = 1.25  # times wider or narrower
WORSE = 1.1  # times the error
MOVED = 0.5  # standard deviations


def drift(corpus: Corpus, records: Sequence[FitRecord]) -> list[Drift]:
    """One entry a measure; none where the pilot was the whole corpus."""
    found: list[Drift] = []
    for record in records:
        inside = [part.ref.part for chunk in corpus.chunks if chunk.chunk.id in record.chunks for part in chunk.parts]
        outside = [part for part in corpus.parts if part not in set(inside)]
        measure = {"scaler": _scaler, "rvq": _rvq, "predictor": _predictor}[record.name]
        if inside and outside:
            found += measure(corpus, record, inside, outside)
    return found


def _scaler(corpus: Corpus, record: FitRecord, inside: list[str], outside: list[str]) -> list[Drift]:
    from stages.scaler.robust import RobustScaler, ScalerFit

    fitted = RobustScaler.from_bytes(_artifact(corpus, record))

    def measured(parts: list[str]) -> tuple[float, float]:
        count = ScalerFit(len(fitted.median))
        count.add(embedding_matrix(_sample(corpus, parts, "embedding")["embedding"]))
        now = count.finish()
        shift = ((now.median - fitted.median) / fitted.iqr).abs().mean()
        return float(shift), float((now.iqr / fitted.iqr).median())

    (shift, spread), (shift_now, spread_now) = measured(inside), measured(outside)
    return [
        Drift(record.name, "mean shift of medians, in IQR", shift, shift_now, shift_now > shift + SHIFT),
        Drift(record.name, "IQR, median over dimensions", spread, spread_now, not 1 / SPREAD < spread_now < SPREAD),
    ]


def _rvq(corpus: Corpus, record: FitRecord, inside: list[str], outside: list[str]) -> list[Drift]:
    def measured(parts: list[str]) -> float:
        """Over every row, from the receipts."""
        receipts = [corpus.state_of(part).receipts for part in parts]
        counts = summed([one["rvq"].counts for one in receipts if "rvq" in one])
        return counts["rvq.squared_error"] / counts["rvq.squared_norm"] if counts else math.nan

    before, now = measured(inside), measured(outside)
    return [Drift(record.name, RELATIVE_ERROR.replace("_", " "), before, now, now > WORSE * before)]


def _predictor(corpus: Corpus, record: FitRecord, inside: list[str], outside: list[str]) -> list[Drift]:
    if "fragility_predicted" not in corpus.columns:
        return []
    values, now = (
        _sample(corpus, parts, "fragility_predicted")["fragility_predicted"].drop_null().to_numpy()
        for parts in (inside, outside)
    )
    moved = abs(float(now.mean()) - float(values.mean())) > MOVED * float(values.std())
    return [Drift(record.name, "mean of fragility_predicted", float(values.mean()), float(now.mean()), moved)]


def _sample(corpus: Corpus, parts: list[str], *columns: str) -> pa.Table:
    """About `ROWS` finite rows of the parts, those with the smallest u; of very many parts the first suffice."""
    tables, rows = [], 0
    total = sum(corpus.state_of(part).rows for part in parts)
    rate = max(ROWS / max(1, total), 0.01)
    for part in parts:
        table = corpus.table(*columns, "u", "status", part=part)
        finite = pc.not_equal(table["status"], pa.scalar(NON_FINITE, pa.uint8()))
        tables.append(table.filter(pc.and_(finite, pc.less(table["u"], rate))))
        rows += tables[-1].num_rows
        if rows >= ROWS:
            break
    return pa.concat_tables(tables)


def _artifact(corpus: Corpus, record: FitRecord) -> bytes:
    return read_artifact(corpus.store, FitRef(record.path, record.digest, corpus.view.fits[record.name]))
