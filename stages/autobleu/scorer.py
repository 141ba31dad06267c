"""AutoBLEU: decode each embedding and score the text that comes back against the sentence, LCM 2.2.

A sentence that does not survive encoding and decoding is one that a model of embeddings cannot learn from. Decoding
starts from the stored float16 embedding, so the score is that of the corpus as it lies on disk. Cost: a few times that
of encoding, since every token is a step; beam search costs `beam` times as much as greedy decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from stages.arrow import embedding_matrix, scattered
from stages.autobleu.bleu import sentence_bleu, sentence_statistics
from stages.autobleu.settings import AutobleuSettings
from stages.batching import Indices, distinct_rows
from stages.device import trouble
from stages.sampling import rate
from stages.sonar.decode import BatchedDecoder, sampled_rows, stopped, stopped_at_limit
from stages.stage import Computed


@dataclass(frozen=True)
class PreparedDecoding:
    """The distinct sentences to decode. `row[i]`: the place of part row `rows[i]` among them."""

    part_rows: int
    rows: Indices
    row: Indices
    texts: list[str]
    langs: list[str]
    prefixes: Indices
    embeddings: npt.NDArray[np.float16]
    max_new: Indices


@dataclass(frozen=True)
class DecodedRows:
    """Decodings of a part. `ids`: those of each distinct sentence; `counts`: the cost of decoding."""

    prepared: PreparedDecoding
    ids: list[list[int]]
    counts: dict[str, float]


class Autobleu:
    """The AutoBLEU stage; see `AutobleuSettings`."""

    def __init__(self, settings: AutobleuSettings) -> None:
        self.settings = settings
        self.decoder = BatchedDecoder(settings, beam=settings.beam, length_penalty=settings.length_penalty)

    def setup(self, device: str) -> None:
        """Load the decoder."""
        self.decoder.setup(device)

    def prepare(self, part: pa.Table) -> PreparedDecoding:
        """Choose the rows to score and bound each decoding by the length of its source."""
        scored = sampled_rows(part, rate(self.settings.sample, "autobleu.sample"))
        chosen = part.select(["sentences.text", "sentences.lang"]).take(pa.array(scored))
        distinct = distinct_rows(chosen["sentences.text"], chosen["sentences.lang"])
        first = pa.array(distinct.first)
        texts = chosen["sentences.text"].take(first).to_pylist()
        langs = chosen["sentences.lang"].take(first).to_pylist()
        return PreparedDecoding(
            part_rows=part.num_rows,
            rows=scored,
            row=distinct.inverse,
            texts=texts,
            langs=langs,
            prefixes=self.decoder.prefixes(langs),
            embeddings=embedding_matrix(part["embeddings.embedding"])[scored[distinct.first]],
            max_new=self.decoder.limits(texts),
        )

    def compute(self, prepared: PreparedDecoding) -> DecodedRows:
        """Decode, with sentences of similar length together."""

        def embeddings(batch: Indices) -> torch.Tensor:
            return torch.from_numpy(prepared.embeddings[batch]).to(self.decoder.device)

        return DecodedRows(prepared, *self.decoder.decode(embeddings, prepared.prefixes, prepared.max_new))

    def finish(self, computed: DecodedRows) -> Computed:
        """Return the text of the decodings, their BLEU, and the statistics of corpus BLEU by language."""
        prepared, ids = computed.prepared, computed.ids
        texts = self.decoder.tokenizer.decode(ids)
        times = np.bincount(prepared.row, minlength=len(texts))
        score, counts = _scored(texts, prepared.texts, prepared.langs, times)
        counts = computed.counts | counts
        counts["stopped_at_length"] = float((stopped_at_limit(ids, prepared.max_new) * times).sum())
        columns = {"autobleu": pa.array(score), "decoded": pa.array(texts, pa.string())}
        of_rows = {name: values.take(pa.array(prepared.row)) for name, values in columns.items()}
        table = {name: scattered(values, prepared.rows, prepared.part_rows) for name, values in of_rows.items()}
        return Computed({"autobleu": pa.table(table)}, counts)

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count rows whose decodings are there: their BLEU is computed from the texts."""
        rows = pa.array(sampled_rows(part, rate(self.settings.sample, "autobleu.sample")))
        texts, langs = part["sentences.text"].take(rows).to_pylist(), part["sentences.lang"].take(rows).to_pylist()
        decoded = families["autobleu"]["decoded"].take(rows).to_pylist()
        _, counts = _scored(decoded, texts, langs, np.ones(len(texts), np.int64))
        return trouble(taken) | counts | stopped(taken, len(texts))


def _scored(
    decoded: list[str], texts: list[str], langs: list[str], times: Indices
) -> tuple[npt.NDArray[np.float32], dict[str, float]]:
    """Return the BLEU of decodings, and the counts of sentences, each of which occurs `times` times, with the
    statistics of corpus BLEU by language.
    """
    of_langs = np.asarray(langs, dtype=object)
    score = np.zeros(len(texts), np.float32)
    counts = {"scored": float(times.sum()), "score_sum": 0.0}
    for lang in sorted(set(langs)):
        where = np.flatnonzero(of_langs == lang)
        statistics = sentence_statistics([decoded[i] for i in where], [texts[i] for i in where], lang)
        score[where] = sentence_bleu(statistics)
        for index, value in enumerate((statistics * times[where][:, None]).sum(axis=0)):
            counts[f"bleu.{lang}.{index}"] = float(value)
    counts["score_sum"] = float((score.astype(np.float64) * times).sum())
    return score, counts
