"""Encode: sentences → FP16 SONAR embeddings, LCM 2.1.

Each distinct (text, language) of a part is encoded once, in batches of exactly equal token count; results go into one
preallocated tensor and are copied to the host once. Cost: 2 · parameters FLOP a token, nothing for padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from stages.batching import Distinct, Indices, Tokens, distinct_rows, equal_length_batches
from stages.device import compute_dtype
from stages.encode.settings import EncodeSettings
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_encoder
from stages.sonar.networks import SonarTextEncoder
from stages.sonar.tokenizer import SonarTokenizer
from stages.stage import Computed

OK, TRUNCATED, NON_FINITE = 0, 1, 2


@dataclass(frozen=True)
class Prepared:
    """Tokens of the distinct sentences, which of them lost their end, and the batches to compute."""

    distinct: Distinct
    tokens: Tokens
    truncated: npt.NDArray[np.bool_]
    batches: list[Indices]


class Encode:
    """The encode stage; see `EncodeSettings`."""

    def __init__(self, settings: EncodeSettings) -> None:
        self.settings = settings
        self.card = load_card(settings.model)
        self.tokenizer = SonarTokenizer(self.card)
        self.device = "cpu"
        self.network: SonarTextEncoder

    def setup(self, device: str) -> None:
        """Load the encoder."""
        self.device = device
        self.network = load_encoder(self.card, compute_dtype(self.settings.precision, device), device)

    def prepare(self, part: pa.Table) -> Prepared:
        """Tokenise the distinct sentences and plan batches."""
        text, lang = part["sentences.text"], part["sentences.lang"]
        distinct = distinct_rows(text, lang)
        texts = text.take(pa.array(distinct.first)).to_pylist()
        langs = np.asarray(lang.take(pa.array(distinct.first)).to_pylist(), dtype=object)
        lists: list[list[int]] = [[] for _ in texts]
        for code in sorted(set(langs)):
            where = np.flatnonzero(langs == code)
            for index, ids in zip(where, self.tokenizer.encode([texts[i] for i in where], code), strict=True):
                lists[index] = ids
        tokens = Tokens.of(lists)
        truncated = np.zeros(len(texts), np.bool_)
        full = np.flatnonzero(tokens.lengths >= self.card.max_tokens)
        if len(full):
            truncated[full] = np.asarray(self.tokenizer.count([texts[i] for i in full])) > self.card.max_tokens
        return Prepared(distinct, tokens, truncated, equal_length_batches(tokens.lengths, self.settings.batch_tokens))

    @torch.inference_mode()
    def compute(self, prepared: Prepared) -> tuple[Prepared, npt.NDArray[np.float16]]:
        """The network over all batches. Returns (distinct sentences, dim) float16 on the host."""
        rows = len(prepared.distinct.first)
        result = torch.empty((rows, self.card.dim), dtype=torch.float16, device=self.device)
        for batch in prepared.batches:
            ids = torch.from_numpy(prepared.tokens.rows(batch)).to(self.device, torch.int64, non_blocking=True)
            result[torch.from_numpy(batch).to(self.device)] = self.network(ids).to(torch.float16)
        return prepared, result.cpu().numpy()

    def finish(self, computed: tuple[Prepared, npt.NDArray[np.float16]]) -> Computed:
        """Back to the rows of the part: embeddings, statuses, counts. What is not finite becomes zeros and a status."""
        prepared, embeddings = computed
        finite = np.isfinite(embeddings).all(axis=1)
        embeddings[~finite] = 0
        status = np.where(finite, np.where(prepared.truncated, TRUNCATED, OK), NON_FINITE).astype(np.uint8)
        inverse = prepared.distinct.inverse
        rows = status[inverse]
        norms = np.sqrt(np.einsum("ij,ij->i", embeddings, embeddings, dtype=np.float32))[inverse].astype(np.float64)
        counts = {
            "duplicates_saved": float(len(inverse) - len(embeddings)),
            "tokens": float(prepared.tokens.offsets[-1]),
            "truncated": float((rows == TRUNCATED).sum()),
            "non_finite": float((rows == NON_FINITE).sum()),
            "norm_sum": float(norms.sum()),
            "norm_square_sum": float((norms**2).sum()),
        }
        families = {
            "embeddings": pa.table({"embedding": embedding_array(embeddings[inverse])}),
            "status": pa.table({"status": rows}),
        }
        return Computed(families, counts)


def embedding_array(embeddings: npt.NDArray[np.float16]) -> pa.FixedSizeListArray:
    """(rows, dim) float16 → an Arrow column over the same memory."""
    kind = pa.list_(pa.field("element", pa.float16(), nullable=False), embeddings.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(embeddings).reshape(-1)), type=kind)


def embedding_matrix(column: pa.ChunkedArray) -> npt.NDArray[np.float16]:
    """An embedding column → (rows, dim) float16, without copying when the column is one chunk."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    dim = array.type.list_size
    return np.asarray(array.flatten().to_numpy(zero_copy_only=True)).reshape(-1, dim)
