"""Takes a sample of held-out sentences, and decodes it with one decoder after the other: exact, with noise, and
dequantised; BLEU and cosine of each, and means whose errors are over documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted
from pipeline.corpus.fits import fitted_scaler, used_artifact
from pipeline.corpus.reader import Corpus
from pipeline.inputs.splits import SPLITS as ALL_SPLITS
from pipeline.quality.measures import mean_over_documents
from stages.arrow import embedding_matrix
from stages.autobleu.bleu import sentence_bleu, sentence_statistics
from stages.autobleu.settings import AutobleuSettings
from stages.batching import Indices
from stages.cards import CardError
from stages.fragility.card import load_external_card
from stages.fragility.noise import noise, perturbed
from stages.fragility.scorer import ExternalEncoder, ExternalTokenizer
from stages.rvq.codebooks import Codebooks
from stages.sonar.card import ModelCard
from stages.sonar.decode import BatchedDecoder
from stages.stage import OK

Scores = npt.NDArray[np.float32]
EXTERNAL_TOKENS = 16_384

HELD_OUT = "held-out"
SPLITS = (HELD_OUT, *(one for one in ALL_SPLITS if one != "train"))


@dataclass(frozen=True)
class MeasuredDecoder:
    """What one decoder made of the sample.

    levels: of noise, the first is 0; bleu: (rows, levels), 0–100; cosine: (rows, levels), in [0, 1], with an external
    encoder; codebooks: numbers of them; by_codebooks: (rows, numbers), BLEU.
    """

    card: ModelCard
    asked: str
    levels: tuple[float, ...]
    bleu: Scores
    cosine: Scores | None
    external: str | None
    codebooks: tuple[int, ...]
    by_codebooks: Scores


class Measuring:
    """Measures decoders on one sample of sentences.

    Args:
        corpus: the corpus, with a fitted scaler.
        sample: the held-out sentences.
        levels: the levels of noise, without 0.
        external: the encoder for cosines; None to leave them out.
        decoding: precision and lengths of decodings; they are greedy whatever it says.
        device: where networks compute: `cpu`, `cuda:0`, `mps`.

    Raises:
        ConfigError: if the corpus has no robust scaler.
    """

    def __init__(
        self,
        corpus: Corpus,
        sample: HeldOutSample,
        levels: tuple[float, ...],
        external: str | None,
        decoding: AutobleuSettings,
        device: str,
    ) -> None:
        self.sample, self.device, self.external, self.decoding = sample, device, external, decoding
        scaler = fitted_scaler(corpus.store, corpus.view)
        if scaler is None:
            raise ConfigError(
                f"{corpus.url} has no robust scaler, in whose space noise is added: run it with `scaler: {{}}`"
            )
        self.scaler, self.levels = scaler, (0.0, *levels)
        self.codebooks = _codebooks(corpus) if sample.codes is not None else None

    def measure(self, card: ModelCard, asked: str) -> MeasuredDecoder:
        """Decode everything with one decoder. Raises `ConfigError` for a language that it does not speak."""
        decoder = BatchedDecoder(self.decoding.model_copy(update={"model": asked}))
        decoder.setup(self.device)
        try:
            prefixes = decoder.prefixes(self.sample.langs)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        limits = decoder.limits(self.sample.texts)

        def texts(given: Callable[[Indices], Tensor]) -> list[str]:
            ids, _ = decoder.decode(given, prefixes, limits)
            return decoder.tokenizer.decode(ids)

        noisy = [texts(self._noisy(level)) for level in self.levels]
        numbers = self._numbers()
        dequantised = [texts(self._dequantised(first)) for first in numbers]
        return MeasuredDecoder(
            card,
            asked,
            self.levels,
            np.stack([self._bleu(one) for one in noisy], axis=1),
            self._cosine(noisy) if self.external else None,
            self.external,
            numbers,
            np.stack([self._bleu(one) for one in dequantised], axis=1) if dequantised else np.empty((0, 0), np.float32),
        )

    def _noisy(self, level: float) -> Callable[[Indices], Tensor]:
        def given(rows: Indices) -> Tensor:
            x = torch.from_numpy(self.sample.embeddings[rows]).to(self.device)
            if not level:
                return x
            alpha = np.full(len(rows), level)
            eps = torch.from_numpy(noise(self.sample.u[rows], alpha, 0, x.shape[1])).to(self.device)
            return perturbed(x, eps, torch.from_numpy(alpha).to(self.device), self.scaler)

        return given

    def _numbers(self) -> tuple[int, ...]:
        """Return 1, 2, 4 … codebooks, and all."""
        if self.codebooks is None:
            return ()
        count = len(self.codebooks.centroids)
        return (*(2**power for power in range(12) if 2**power < count), count)

    def _dequantised(self, first: int) -> Callable[[Indices], Tensor]:
        def given(rows: Indices) -> Tensor:
            assert self.codebooks is not None and self.sample.codes is not None
            return self.codebooks.decode(self.sample.codes[rows], first).to(self.device)

        return given

    def _bleu(self, decoded: list[str]) -> Scores:
        found = np.zeros(len(decoded), np.float32)
        langs = np.asarray(self.sample.langs, object)
        for lang in sorted(set(self.sample.langs)):
            where = np.flatnonzero(langs == lang)
            originals = [self.sample.texts[at] for at in where]
            found[where] = sentence_bleu(sentence_statistics([decoded[at] for at in where], originals, lang))
        return found

    def _cosine(self, decoded: list[list[str]]) -> Scores:
        assert self.external
        try:
            card = load_external_card(self.external)
            tokenizer = ExternalTokenizer(card)
            encoder = ExternalEncoder(card, dtype=torch.float32, device=self.device, batch_tokens=EXTERNAL_TOKENS)
        except CardError as error:
            raise ConfigError(f"{error}; or compare by BLEU alone: --external none") from error
        vectors = [encoder.encode(tokenizer(texts))[0].astype(np.float32) for texts in (self.sample.texts, *decoded)]
        return np.stack([np.einsum("ij,ij->i", vectors[0], one).clip(0, 1) for one in vectors[1:]], axis=1)


def _codebooks(corpus: Corpus) -> Codebooks:
    fitted = used_artifact(corpus.store, corpus.view, "rvq")
    assert fitted is not None  # there are codes
    return Codebooks.from_bytes(fitted)


@dataclass(frozen=True)
class MeanScore:
    """A mean over sentences, and its standard error: documents are what was drawn."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {2 * self.error:.1f}" if math.isfinite(self.error) else f"{self.mean:.1f}"


@dataclass(frozen=True)
class HeldOutSample:
    """Sentences in the order of their u.

    documents: (rows,) a number for each document; codes: None where the corpus has none.
    """

    split: str
    texts: list[str]
    langs: list[str]
    u: npt.NDArray[np.float64]
    documents: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float16]
    codes: npt.NDArray[np.uint16] | None

    def __len__(self) -> int:
        return len(self.texts)

    def describe(self) -> str:
        """Describe the size of the sample, and what it is taken from."""
        count = len(set(self.documents.tolist()))
        of = "validation and test" if self.split == HELD_OUT else self.split
        return f"{counted(len(self), 'sentence')} in {counted(count, 'document')} of {of}"

    def mean(self, values: npt.NDArray[np.floating]) -> MeanScore:
        """Return the mean of (rows,) values, and its error with whole documents as what was drawn (clusters)."""
        return MeanScore(*mean_over_documents(values, self.documents))


def take_held_out(corpus: Corpus, split: str, most: int) -> HeldOutSample:
    """Return held-out sentences, those with the smallest u.

    Truncated sentences are left out.

    Args:
        corpus: the corpus.
        split: `validation`, `test`, or `HELD_OUT` for both.
        most: how many sentences.

    Returns:
        The sentences, with their embeddings and codes.

    Raises:
        ConfigError: if there is no such sentence, or no embedding.
    """
    if "embedding" not in corpus.columns:
        raise ConfigError(f"{corpus.url} has no embeddings to decode: run it with a section `encode: {{}}`")
    wanted = pa.array([one for one in SPLITS[1:] if split in (HELD_OUT, one)])
    coded = ["codes"] if "codes" in corpus.columns else []
    columns = ["text", "lang", "u", "status", "split", "part", "doc", "embedding", *coded]
    found: pa.Table | None = None
    for batch in corpus.batches(*columns):
        table = batch.table
        held = pc.and_(pc.is_in(table["split"], value_set=wanted), pc.equal(table["status"], pa.scalar(OK, pa.uint8())))
        kept = table.filter(held)
        both = kept if found is None else pa.concat_tables([found, kept])
        found = both.take(pc.sort_indices(both["u"])[:most])  # never more in memory than asked for, and a row group
    if found is None or not found.num_rows:
        raise ConfigError(
            f"{corpus.url} has no sentence of a {' or '.join(wanted.to_pylist())} document to compare decoders on: "
            "give split a share (`split: {validation: 0.01, test: 0.01}`), or another --split"
        )
    table = found
    keys = [f"{part}/{doc}" for part, doc in zip(table["part"].to_pylist(), table["doc"].to_pylist(), strict=True)]
    _, documents = np.unique(keys, return_inverse=True)
    return HeldOutSample(
        split,
        table["text"].to_pylist(),
        table["lang"].to_pylist(),
        table["u"].to_numpy(),
        documents.astype(np.int64),
        embedding_matrix(table["embedding"]).copy(),
        np.stack(table["codes"].to_numpy()).astype(np.uint16) if coded else None,
    )
