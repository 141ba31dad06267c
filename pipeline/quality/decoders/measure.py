"""Decodes the sample with one decoder after the other: exact, with noise, and dequantised; BLEU and cosine of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.base.errors import ConfigError
from pipeline.corpus.fits import fitted_scaler, used_artifact
from pipeline.corpus.reader import Corpus
from pipeline.quality.decoders.sample import HeldOutSample
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

Scores = npt.NDArray[np.float32]
EXTERNAL_TOKENS = 16_384


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
