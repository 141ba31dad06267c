"""Encode: sentences → FP16 SONAR embeddings, LCM 2.1.

Each distinct (text, language) of a part is encoded once, in batches without padding; results go into one preallocated
tensor and are copied to the host once. Cost: 2 · parameters FLOP per token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from stages.arrow import embedding_array, embedding_matrix
from stages.batching import Distinct, Tokens, distinct_rows
from stages.cards import CardError
from stages.device import Budget, batch_limit, compute_dtype, prepare_cuda, trouble
from stages.encode.settings import EncodeSettings
from stages.sonar.card import ModelCard, load_card
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
    """Embeddings (distinct sentences, dim) float16 on the host; `counts`: the cost of computing them."""

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
        self._budget = Budget(batch_limit(limit, device, self.card.ffn_dim), "batch_tokens", "tokens", remedy)
        load = load_encoder if self.settings.backend == "native" else _load_official_encoder
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
        families = {
            "embeddings": pa.table({"embedding": embedding_array(embeddings[inverse])}),
            "status": pa.table({"status": rows}),
        }
        return Computed(families, computed.counts | _counts(prepared, embeddings, rows))

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count rows whose embeddings are there. Costs tokenising the distinct sentences."""
        prepared = self.prepare(part)
        embeddings = embedding_matrix(families["embeddings"]["embedding"])[prepared.distinct.first]
        return trouble(taken) | _counts(prepared, embeddings, families["status"]["status"].to_numpy())


def _counts(
    prepared: PreparedSentences, embeddings: npt.NDArray[np.float16], status: npt.NDArray[np.uint8]
) -> dict[str, float]:
    """Return counts of a part; embeddings: (distinct sentences, dim); status: (rows,)."""
    inverse = prepared.distinct.inverse
    norms = np.sqrt(np.einsum("ij,ij->i", embeddings, embeddings, dtype=np.float32))[inverse].astype(np.float64)
    return {
        "duplicates_saved": float(len(inverse) - len(embeddings)),
        "tokens": float(prepared.tokens.offsets[-1]),
        "truncated": float((status == TRUNCATED).sum()),
        "non_finite": float((status == NON_FINITE).sum()),
        "norm_sum": float(norms.sum()),
        "norm_square_sum": float((norms**2).sum()),
    }


INSTALL = (
    "install it in a virtual environment of its own, with the PyTorch that its compiled part was built for (pip "
    "install 'sonar-pipeline[encode,sonar-space]'), or leave encode.backend at native, which needs nothing more"
)


class BackendError(RuntimeError):
    """The official package is not installed, or does not work here."""


class OfficialEncoder(nn.Module):
    """The encoder of the official package, sonar-space on fairseq2: ids → one embedding per sentence.

    It stands for `SonarTextEncoder` where encode.backend says so: the same weights, the same stage. Tokens, batches,
    statuses and counts stay ours (the tokens are the official ones, except for texts over the longest length, which
    keep their `</s>`). It is meant for comparisons: expect the same embeddings up to rounding, at a lower speed.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Encode ids (rows, length), of which every row has `length` tokens → (rows, dim)."""
        from fairseq2.nn import BatchLayout

        embeddings: Tensor = self.model(ids, BatchLayout.of(ids)).sentence_embeddings
        return embeddings


def _load_official_encoder(card: ModelCard, dtype: torch.dtype, device: str) -> OfficialEncoder:
    """Return the card's encoder in the official package, ready for inference.

    Raises BackendError if the package cannot be imported, CardError if it cannot read the card's layout.
    """
    if card.layout != "fairseq2":
        raise CardError(
            f"encode.backend is sonar-space, which reads the layout fairseq2; card {card.name} is {card.layout}: use "
            "the card sonar, or encode.backend: native"
        )
    try:
        import sonar.models.sonar_text  # noqa: F401  (registers the models; there is another package named sonar)
        from fairseq2.assets import AssetCard
        from fairseq2.models import load_model
    except Exception as error:  # a compiled part that does not fit its PyTorch fails in many ways
        raise BackendError(
            f"encode.backend is sonar-space, and that package cannot be imported ({type(error).__name__}: {error}); "
            f"{INSTALL}"
        ) from error
    numbers = {
        "model_dim": card.dim,
        "max_seq_len": card.max_tokens - 2,  # to which the package adds the two positions that it does not use
        "num_encoder_layers": card.encoder_layers,
        "num_encoder_attn_heads": card.heads,
        "ffn_inner_dim": card.ffn_dim,
        # pad 1 here, though the tokenizer's is 0: positions start after it
        "vocab_info": {"size": card.vocab_size, "unk_idx": 1, "bos_idx": 2, "eos_idx": 3, "pad_idx": 1},
    }
    described = AssetCard(
        card.name,
        {
            "model_family": "transformer_encoder",
            "model_arch": "basic",
            "model_config": {"_set_": numbers},
            "checkpoint": card.verify("encoder").absolute().as_uri(),
        },
    )
    model = load_model(described, device=torch.device(device), dtype=dtype, mmap=True, progress=False)
    return OfficialEncoder(model.eval())
