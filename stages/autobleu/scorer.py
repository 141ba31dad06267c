"""AutoBLEU: decode each embedding and score the text that comes back against the sentence, LCM 2.2.

A sentence that does not survive encoding and decoding is one that a model of embeddings cannot learn from. Decoding
starts from the stored float16 embedding, so the score is that of the corpus as it lies on disk. Cost: a few times that
of encoding, since every token is a step; beam search costs `beam` times as much as greedy decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from stages.arrow import embedding_matrix
from stages.autobleu.bleu import sentence_bleu, sentence_statistics
from stages.autobleu.settings import AutobleuSettings
from stages.batching import Indices, distinct_rows
from stages.device import Budget, compute_dtype, in_batches
from stages.encode.encoder import NON_FINITE
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_decoder
from stages.sonar.generate import beam_search, greedy
from stages.sonar.networks import SonarTextDecoder
from stages.sonar.tokenizer import SonarTokenizer
from stages.stage import Computed


@dataclass(frozen=True)
class Prepared:
    """The distinct sentences to decode. `row[i]`: place of part row `rows[i]` among them."""

    part_rows: int
    rows: Indices
    row: Indices
    texts: list[str]
    langs: list[str]
    embeddings: npt.NDArray[np.float16]
    max_new: Indices


@dataclass(frozen=True)
class Decoded:
    """ids: what came back of each distinct sentence; counts: what decoding took."""

    prepared: Prepared
    ids: list[list[int]]
    counts: dict[str, float]


class Autobleu:
    """The AutoBLEU stage; see `AutobleuSettings`."""

    def __init__(self, settings: AutobleuSettings) -> None:
        self.settings = settings
        self.card = load_card(settings.model)
        self.tokenizer = SonarTokenizer(self.card)
        self.device = "cpu"
        self.dtype = torch.float32
        self.network: SonarTextDecoder
        remedy = "set autobleu.precision to float16, or lower autobleu.beam or length_factor"
        self._budget = Budget(settings.batch_rows, "batch_rows", "hypotheses", remedy)

    def setup(self, device: str) -> None:
        """Load the decoder."""
        self.device = device
        self.dtype = compute_dtype(self.settings.precision, device)
        self.network = load_decoder(self.card, self.dtype, device)

    def prepare(self, part: pa.Table) -> Prepared:
        """Choose the rows to score and bound each decoding by the length of its source."""
        u = part["sentences.u"].to_numpy()
        scored = np.flatnonzero((u < self.settings.sample) & (part["status.status"].to_numpy() != NON_FINITE))
        chosen = part.select(["sentences.text", "sentences.lang"]).take(pa.array(scored))
        distinct = distinct_rows(chosen["sentences.text"], chosen["sentences.lang"])
        first = pa.array(distinct.first)
        texts = chosen["sentences.text"].take(first).to_pylist()
        langs = chosen["sentences.lang"].take(first).to_pylist()
        lengths = np.asarray(self.tokenizer.count(texts), dtype=np.int64)
        bound = np.ceil(lengths * self.settings.length_factor).astype(np.int64) + self.settings.length_extra
        max_new = np.minimum(bound, self.card.max_tokens - 2)
        embeddings = embedding_matrix(part["embeddings.embedding"])[scored[distinct.first]]
        return Prepared(part.num_rows, scored.astype(np.int64), distinct.inverse, texts, langs, embeddings, max_new)

    def compute(self, prepared: Prepared) -> Decoded:
        """Decode, sentences of like length together."""
        ids: list[list[int]] = [[] for _ in prepared.texts]
        prefix_of = {lang: self.tokenizer.target_prefix(lang) for lang in set(prepared.langs)}
        prefixes = np.asarray([prefix_of[lang] for lang in prepared.langs], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(-prepared.max_new, kind="stable")

        def decode(start: int, stop: int) -> None:
            batch = order[start:stop]
            embeddings = torch.from_numpy(prepared.embeddings[batch]).to(self.device, self.dtype)
            prefix = torch.from_numpy(prefixes[batch]).to(self.device)
            for index, found in zip(batch, self._decode(embeddings, prefix, prepared.max_new[batch]), strict=True):
                ids[index] = found

        halvings = in_batches(np.full(len(order), self.settings.beam), self._budget, decode)
        return Decoded(prepared, ids, self._budget.counts(halvings))

    def _decode(self, embeddings: torch.Tensor, prefixes: torch.Tensor, max_new: Indices) -> list[list[int]]:
        """The best ids of each row; none where the decoder gives no numbers."""
        limits, beam = torch.from_numpy(max_new), self.settings.beam
        if beam == 1:
            return greedy(self.network, embeddings, prefixes, limits)
        penalty = self.settings.length_penalty
        found = beam_search(self.network, embeddings, prefixes, limits, beam=beam, length_penalty=penalty)
        return [hypotheses[0].ids if hypotheses else [] for hypotheses in found]

    def finish(self, computed: Decoded) -> Computed:
        """Text of the decodings, their BLEU, and the statistics of corpus BLEU by language."""
        prepared, ids = computed.prepared, computed.ids
        texts = self.tokenizer.decode(ids)
        langs = np.asarray(prepared.langs, dtype=object)
        times = np.bincount(prepared.row, minlength=len(texts))
        score = np.zeros(len(texts), np.float32)
        counts = computed.counts | {"scored": float(len(prepared.rows)), "score_sum": 0.0}
        for lang in sorted(set(prepared.langs)):
            where = np.flatnonzero(langs == lang)
            statistics = sentence_statistics([texts[i] for i in where], [prepared.texts[i] for i in where], lang)
            score[where] = sentence_bleu(statistics)
            for index, value in enumerate((statistics * times[where][:, None]).sum(axis=0)):
                counts[f"bleu.{lang}.{index}"] = float(value)
        bound = [len(one) >= limit for one, limit in zip(ids, prepared.max_new.tolist(), strict=True)]
        counts["score_sum"] = float((score.astype(np.float64) * times).sum())
        counts["stopped_at_length"] = float((np.asarray(bound, dtype=np.int64) * times).sum())
        place = np.full(prepared.part_rows, -1, np.int64)
        place[prepared.rows] = prepared.row
        take = pa.array(place, mask=place < 0)
        table = pa.table({"autobleu": pa.array(score).take(take), "decoded": pa.array(texts, pa.string()).take(take)})
        return Computed({"autobleu": table}, counts)
