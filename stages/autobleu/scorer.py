"""AutoBLEU: decode each embedding greedily and score the text that comes back against the sentence, LCM 2.2.

A sentence that does not survive encoding and decoding is one that a model of embeddings cannot learn from. Decoding
starts from the stored float16 embedding, so the score is that of the corpus as it lies on disk. Cost: a few times that
of encoding, since every token is a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from stages.autobleu.bleu import sentence_bleu, sentence_statistics
from stages.autobleu.settings import AutobleuSettings
from stages.batching import Indices, distinct_rows
from stages.device import compute_dtype
from stages.encode.encoder import NON_FINITE, embedding_matrix
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_decoder
from stages.sonar.generate import greedy
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


class Autobleu:
    """The AutoBLEU stage; see `AutobleuSettings`."""

    def __init__(self, settings: AutobleuSettings) -> None:
        self.settings = settings
        self.card = load_card(settings.model)
        self.tokenizer = SonarTokenizer(self.card)
        self.device = "cpu"
        self.dtype = torch.float32
        self.network: SonarTextDecoder

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

    @torch.inference_mode()
    def compute(self, prepared: Prepared) -> tuple[Prepared, list[list[int]]]:
        """Greedy decoding, sentences of like length together."""
        decoded: list[list[int]] = [[] for _ in prepared.texts]
        prefix_of = {lang: self.tokenizer.target_prefix(lang) for lang in set(prepared.langs)}
        prefixes = np.asarray([prefix_of[lang] for lang in prepared.langs], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(-prepared.max_new, kind="stable")
        for start in range(0, len(order), self.settings.batch_rows):
            batch = order[start : start + self.settings.batch_rows]
            embeddings = torch.from_numpy(prepared.embeddings[batch]).to(self.device, self.dtype)
            generated = greedy(
                self.network,
                embeddings,
                torch.from_numpy(prefixes[batch]).to(self.device),
                torch.from_numpy(prepared.max_new[batch]).to(self.device),
            )
            for index, ids in zip(batch, generated, strict=True):
                decoded[index] = ids
        return prepared, decoded

    def finish(self, computed: tuple[Prepared, list[list[int]]]) -> Computed:
        """Text of the decodings, their BLEU, and the statistics of corpus BLEU by language."""
        prepared, ids = computed
        texts = self.tokenizer.decode(ids)
        langs = np.asarray(prepared.langs, dtype=object)
        times = np.bincount(prepared.row, minlength=len(texts))
        score = np.zeros(len(texts), np.float32)
        counts: dict[str, float] = {"scored": float(len(prepared.rows)), "score_sum": 0.0}
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
