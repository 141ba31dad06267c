"""Fragility: how much of a sentence survives noise on its embedding, LCM 2.5.2.

Each sampled row is perturbed at every noise level (eq. 27), decoded, and compared with its text by BLEU and by the
cosine of an external encoder, both in [0, 1]; fragility is −mean over the levels (eq. 26): nearer 0 is more fragile.
All rows and levels are decoded together. Cost: one decoding per level, nine by default, and one external encoding of
each distinct text; rows that are copies of each other have noise of their own, so each is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from stages.arrow import embedding_matrix, scattered
from stages.autobleu.bleu import sentence_bleu, sentence_statistics
from stages.batching import Indices, Tokens
from stages.cards import CardError
from stages.device import Budget, trouble
from stages.fragility.card import ExternalCard, load_external_card
from stages.fragility.noise import noise, perturbed
from stages.fragility.settings import FragilitySettings
from stages.sampling import rate
from stages.scaler.robust import RobustScaler
from stages.sonar.decode import BatchedDecoder, sampled_rows, stopped, stopped_at_limit
from stages.sonar.embed import embed
from stages.stage import Computed, Further

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PreparedNoise:
    """The sampled rows of a part; `rows`: their places in it."""

    part_rows: int
    rows: Indices
    texts: list[str]
    langs: list[str]
    u: npt.NDArray[np.float64]
    prefixes: Indices
    embeddings: npt.NDArray[np.float16]
    max_new: Indices


@dataclass(frozen=True)
class DecodedNoise:
    """The ids decoded from each row at each level, row after row, and counts for the receipt."""

    prepared: PreparedNoise
    ids: list[list[int]]
    counts: dict[str, float]


@dataclass(frozen=True)
class EncodedTexts:
    """The vectors of texts in the external encoder's space, (texts, dim) float16 of length 1, and receipt counts."""

    vectors: npt.NDArray[np.float16]
    counts: dict[str, float]


class Fragility:
    """The fragility stage; see `FragilitySettings`. `scaler`: the bytes of the fitted robust scaler."""

    def __init__(self, settings: FragilitySettings, scaler: bytes) -> None:
        self.settings = settings
        self.rate = rate(settings.sample, "fragility.sample")
        self.levels = np.asarray(settings.noise_levels, np.float64)
        self.scaler = RobustScaler.from_bytes(scaler)
        self.decoder = BatchedDecoder(settings)
        self.external: ExternalEncoder
        dim = self.decoder.card.dim
        if len(self.scaler.median) != dim:
            raise ValueError(
                f"the scaler was fitted on {len(self.scaler.median)} dimensions, the decoder of {settings.model} takes "
                f"{dim}; set fragility.model to the decoder of encode.model, or fit the scaler again (--refit)"
            )

    def setup(self, device: str) -> None:
        """Load the decoder and the external encoder."""
        self.decoder.setup(device)
        self.external = ExternalEncoder(
            load_external_card(self.settings.external),
            dtype=self.decoder.dtype,
            device=device,
            batch_tokens=self.settings.external_batch_tokens,
        )

    def prepare(self, part: pa.Table) -> PreparedNoise:
        """Choose the rows to score and bound each decoding by the length of its source."""
        rows = sampled_rows(part, self.rate)
        chosen = part.select(["sentences.text", "sentences.lang", "sentences.u"]).take(pa.array(rows))
        texts, langs = chosen["sentences.text"].to_pylist(), chosen["sentences.lang"].to_pylist()
        return PreparedNoise(
            part_rows=part.num_rows,
            rows=rows,
            texts=texts,
            langs=langs,
            u=chosen["sentences.u"].to_numpy(),
            prefixes=self.decoder.prefixes(langs),
            embeddings=embedding_matrix(part["embeddings.embedding"])[rows],
            max_new=self.decoder.limits(texts),
        )

    def compute(self, prepared: PreparedNoise | Tokens) -> DecodedNoise | EncodedTexts:
        """Decode every row at every level; then, of the tokens of all texts, encode these outside SONAR."""
        return self._encoded(prepared) if isinstance(prepared, Tokens) else self._decoded(prepared)

    def _encoded(self, tokens: Tokens) -> EncodedTexts:
        vectors, failures = self.external.encode(tokens)
        return EncodedTexts(vectors, self.external.budget.counts(failures) | {"external_texts": float(len(vectors))})

    def _decoded(self, prepared: PreparedNoise) -> DecodedNoise:
        count, device = len(self.levels), self.decoder.device

        def embeddings(batch: Indices) -> torch.Tensor:
            rows, alpha = batch // count, self.levels[batch % count]
            given = torch.from_numpy(prepared.embeddings[rows]).to(device)
            eps = torch.from_numpy(noise(prepared.u[rows], alpha, self.settings.seed, given.shape[1])).to(device)
            return perturbed(given, eps, torch.from_numpy(alpha).to(device), self.scaler)

        limits = np.repeat(prepared.max_new, count)
        ids, counts = self.decoder.decode(embeddings, np.repeat(prepared.prefixes, count, axis=0), limits)
        return DecodedNoise(prepared, ids, counts | {"stopped_at_length": float(stopped_at_limit(ids, limits).sum())})

    @cached_property
    def _external_tokenizer(self) -> ExternalTokenizer:
        """Return the tokenizer of the external encoder, which may be in another process."""
        return ExternalTokenizer(load_external_card(self.settings.external))

    def finish(self, computed: DecodedNoise) -> Further:
        """Return the decoded texts; the device then encodes the tokens of each distinct one and of the originals."""
        originals, decoded = computed.prepared.texts, self.decoder.tokenizer.decode(computed.ids)
        codes = pc.dictionary_encode(pa.array(originals + decoded, pa.string()))
        tokens = self._external_tokenizer(codes.dictionary.to_pylist())

        def scored(encoded: EncodedTexts) -> Computed:
            cosine = self._cosine(encoded.vectors, codes.indices.to_numpy(), len(originals))
            counts = computed.counts | encoded.counts
            counts["out_of_memory"] += computed.counts["out_of_memory"]
            return self._columns(computed.prepared, decoded, cosine, counts)

        return Further(tokens, scored)

    def _cosine(self, vectors: npt.NDArray[np.float16], place: npt.NDArray[np.int32], originals: int) -> Floats:
        """Return (originals, levels) cosines in [0, 1]. place: of each text among the vectors, the originals first."""
        original, decoded = np.repeat(place[:originals], len(self.levels)), place[originals:]
        found = np.empty(len(decoded), np.float32)
        for start in range(0, len(decoded), 8192):  # bounds the memory of vectors in float32
            pairs = slice(start, start + 8192)
            ours, theirs = (vectors[at[pairs]].astype(np.float32) for at in (original, decoded))
            found[pairs] = np.einsum("ij,ij->i", ours, theirs)
        return found.clip(0, 1).reshape(originals, len(self.levels))

    def _columns(
        self, prepared: PreparedNoise, decoded: list[str], cosine: Floats, taken: dict[str, float]
    ) -> Computed:
        """Return the BLEU of every decoding, the means over the levels, and the columns that hold them."""
        levels = len(self.levels)
        bleu = np.zeros(cosine.size, np.float32)
        langs = np.repeat(np.asarray(prepared.langs, dtype=object), levels)
        for lang in sorted(set(prepared.langs)):
            where = np.flatnonzero(langs == lang)
            references = [prepared.texts[i // levels] for i in where]
            statistics = sentence_statistics([decoded[i] for i in where], references, lang)
            bleu[where] = sentence_bleu(statistics) / 100
        scores = {"bleu": bleu.clip(0, 1).reshape(cosine.shape), "cosine": cosine}
        counts = taken | self._counts(scores)
        columns: dict[str, pa.Array] = {}
        for name, values in scores.items():
            columns[f"fragility_{name}"] = pa.array(-values.mean(axis=1, dtype=np.float64).astype(np.float32))  # eq. 26
        offsets = pa.array(np.arange(len(prepared.rows) + 1, dtype=np.int32) * levels)
        for name, values in scores.items():
            columns[f"{name}_by_noise"] = pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))
        table = {name: scattered(values, prepared.rows, prepared.part_rows) for name, values in columns.items()}
        return Computed({"fragility": pa.table(table)}, counts)

    def _counts(self, scores: Mapping[str, Floats]) -> dict[str, float]:
        """Return counts of scores, (scored rows, levels) each."""
        counts = {"scored": float(len(scores["cosine"])), "decodings": float(scores["cosine"].size)}
        for name, values in scores.items():
            counts[f"fragility_{name}_sum"] = float(-values.mean(axis=1, dtype=np.float64).sum())
            for level, total in zip(self.settings.noise_levels, values.sum(axis=0, dtype=np.float64), strict=True):
                counts[f"{name}.{level:g}"] = float(total)
        return counts

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count rows whose scores are there."""
        rows, levels, scores = pa.array(sampled_rows(part, self.rate)), len(self.levels), {}
        for name in ("bleu", "cosine"):
            values = families["fragility"][f"{name}_by_noise"].take(rows).combine_chunks()
            scores[name] = np.asarray(pc.list_flatten(values), np.float32).reshape(len(rows), levels)
        counts = trouble(taken) | {"external_texts": taken.get("external_texts", 0.0)} | self._counts(scores)
        return counts | stopped(taken, len(rows) * levels)


class ExternalTokenizer:
    """The tokenizer of a card, which cuts off the end of longer texts. Raises CardError if its file cannot be had."""

    def __init__(self, card: ExternalCard) -> None:
        self._tokenizer = Tokenizer.from_file(str(card.files() / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(card.max_tokens)

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Return the ids of each text."""
        return Tokens.of([one.ids for one in self._tokenizer.encode_batch(list(texts))])


class ExternalEncoder:
    """The loaded encoder of a card: texts → unit vectors, by a network unrelated to SONAR, through transformers.

    Batches are of exactly equal token count, as for SONAR: no padding, and a text's vector does not depend on its
    neighbours. Weights are read from safetensors; code that a repository may hold is never run.

    Args:
        card: the encoder.
        dtype: the type of its weights.
        device: where it computes: `cpu`, `cuda:0`, `mps`.
        batch_tokens: the most tokens of a batch.

    Raises:
        CardError: if its files cannot be fetched, or do not fit the card.
    """

    def __init__(self, card: ExternalCard, *, dtype: torch.dtype, device: str, batch_tokens: int) -> None:
        from transformers import AutoModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # it would come among our own
        self.card, self.device = card, device
        folder = card.files()
        config = _config(card, json.loads((folder / "config.json").read_text(encoding="utf-8")))
        try:
            loaded, info = AutoModel.from_pretrained(
                folder, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise CardError(f"card {card.name}: transformers cannot load {folder}: {error}") from error
        missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
        if missing or loaded.config.hidden_size != card.dim:
            raise CardError(
                f"card {card.name}: {folder} does not fit: dim is {card.dim}, its vectors have "
                f"{loaded.config.hidden_size}; weights that it lacks: {', '.join(missing) or 'none'}; correct the card"
            )
        self.network = loaded.to(device).eval().requires_grad_(False)
        remedy = "set fragility.precision to float16"
        self.budget = Budget(batch_tokens, "external_batch_tokens", "tokens", remedy)

    def encode(self, tokens: Tokens) -> tuple[npt.NDArray[np.float16], int]:
        """Return (texts, dim) float16 of length 1, and how often a batch ran out of memory."""
        return embed(self._forward, tokens, self.budget, dim=self.card.dim, device=self.device)

    def _forward(self, ids: Tensor) -> Tensor:
        """Encode ids (rows, length), of which every row has `length` tokens → (rows, dim)."""
        hidden: Tensor = self.network(input_ids=ids).last_hidden_state
        pooled = hidden.float().mean(dim=1) if self.card.pooling == "mean" else hidden[:, 0].float()
        return F.normalize(pooled, dim=1)


def _config(card: ExternalCard, content: dict[str, Any]) -> Any:
    """Return the model's configuration, with what the card replaces."""
    from transformers import AutoConfig

    described = {key: value for key, value in (content | card.config).items() if card.config.get(key, ...) is not None}
    described.pop("auto_map", None)  # names code to run
    try:
        return AutoConfig.for_model(**described)
    except (ValueError, TypeError, KeyError) as error:
        raise CardError(
            f"card {card.name}: transformers knows no model of type {described.get('model_type')!r}, or not its "
            f"numbers ({error}); code from a repository is not run: take an encoder that transformers has itself"
        ) from error
