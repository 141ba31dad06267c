"""Encode: sentences → FP16 SONAR embeddings, LCM 2.1.

Each distinct (text, language) of a part is encoded once, in batches without padding; results go into one preallocated
tensor and are copied to the host once. Cost: 2 · parameters FLOP a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import Tensor

from stages.arrow import embedding_array
from stages.batching import Distinct, Tokens, distinct_rows
from stages.device import Budget, compute_dtype, prepare_cuda
from stages.encode.official import load_official_encoder
from stages.encode.settings import EncodeSettings
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_encoder
from stages.sonar.embed import embed
from stages.sonar.tokenizer import SonarTokenizer
from stages.stage import NON_FINITE, OK, TRUNCATED, Computed

CPU_TOKENS, GPU_TOKENS = 16_384, 32_768  # of a batch, where the settings do not say


@dataclass(frozen=True)
class PreparedSentences:
    """Tokens of the distinct sentences, and which of them were truncated."""

    distinct: Distinct
    tokens: Tokens
    truncated: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Encoded:
    """`embeddings`: (distinct sentences, dim) float16 on the host; `counts`: the cost of computing them."""

    prepared: PreparedSentences
    embeddings: npt.NDArray[np.float16]
    counts: dict[str, float]


class Encode:
    """The encode stage; see `EncodeSettings`."""

    def __init__(self, settings: EncodeSettings) -> None:
        self.settings = settings
        self.card = load_card(settings.model)
        self.tokenizer = SonarTokenizer(self.card)
        self.device = "cpu"
        self.network: Callable[[Tensor], Tensor]
        self._budget: Budget

    def setup(self, device: str) -> None:
        """Load the encoder."""
        self.device = device
        prepare_cuda(device)
        limit = self.settings.batch_tokens or (GPU_TOKENS if device.startswith("cuda") else CPU_TOKENS)
        remedy = "lower segment.max_tokens, or set encode.precision to float16"
        self._budget = Budget(limit, "batch_tokens", "tokens", remedy)
        load = load_encoder if self.settings.backend == "native" else load_official_encoder
        self.network = load(self.card, compute_dtype(self.settings.precision, device), device)

    def prepare(self, part: pa.Table) -> PreparedSentences:
        """Tokenise the distinct sentences."""
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
        return PreparedSentences(distinct, tokens, truncated)

    def compute(self, prepared: PreparedSentences) -> Encoded:
        """Run the network over all batches."""
        dim = self.card.dim
        embeddings, failures = embed(self.network, prepared.tokens, self._budget, dim=dim, device=self.device)
        return Encoded(prepared, embeddings, self._budget.counts(failures))

    def finish(self, computed: Encoded) -> Computed:
        """Return the rows of the part: embeddings, statuses, counts. Embeddings that are not finite become zeros with a
        status.
        """
        prepared, embeddings = computed.prepared, computed.embeddings
        finite = np.isfinite(embeddings).all(axis=1)
        embeddings[~finite] = 0
        status = np.where(finite, np.where(prepared.truncated, TRUNCATED, OK), NON_FINITE).astype(np.uint8)
        inverse = prepared.distinct.inverse
        rows = status[inverse]
        norms = np.sqrt(np.einsum("ij,ij->i", embeddings, embeddings, dtype=np.float32))[inverse].astype(np.float64)
        counts = computed.counts | {
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
