"""Texts ⇄ embeddings, by the encoder that made a corpus and the decoder that goes with it, on one device.

Cost: both networks are loaded when they are first needed; then 2 · parameters FLOP per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pipeline.base.errors import ConfigError
from pipeline.corpus.encoder import encode_texts, prepare_encoder
from pipeline.corpus.reader import Corpus
from pipeline.corpus.standalone import TextModels, text_models
from stages.batching import Tokens
from stages.device import prepare_cuda
from stages.encode.encoder import Encode
from stages.segment.segmenter import Segmenter
from stages.sonar.card import ModelCard, load_card
from stages.sonar.checkpoint import load_decoder
from stages.sonar.decode import BatchedDecoder
from stages.sonar.likelihood import sentence_losses
from stages.sonar.networks import SonarTextDecoder
from stages.sonar.tokenizer import SonarTokenizer

LONGEST = 128  # tokens of a decoded sentence, where the corpus has no cap


class TextCodec:
    """A segmenter, an encoder and a decoder, each loaded when it is first needed.

    Args:
        models: the settings of the segmenter, the encoder and the decoder, with digests of their files.
        place: the corpus or model that needs them, for messages.
        remedy: what to do, other than restoring them, if files of the encoder have changed, for messages.
        device: where they compute: `cpu`, `cuda:0`, `mps`.
    """

    def __init__(self, models: TextModels, place: str, remedy: str, device: str) -> None:
        self.place, self.remedy, self.device = place, remedy, device
        self.segmenting, self.encoding, self.decoding = models.segment, models.encode, models.decode
        self.artifacts = models.artifacts

    @classmethod
    def of(cls, corpus: Corpus, device: str) -> TextCodec:
        """Return the models that the newest run of a corpus names."""
        return cls(text_models(corpus), corpus.url, "run the corpus again with these", device)

    @property
    def decoder_card(self) -> ModelCard:
        """The card of the decoder, which says the languages that it speaks."""
        return load_card(self.decoding.model)

    def check_language(self, lang: str, option: str) -> str:
        """Raise `ConfigError`, with the nearest codes, for a language that the decoder does not speak."""
        card = self.decoder_card
        if lang not in card.languages:
            few = card.languages if len(card.languages) <= 12 else card.nearest_languages(lang)
            raise ConfigError(
                f"{option} {lang}: {card.name} knows no such language; {'all' if few is card.languages else 'nearest'} "
                f"of its {len(card.languages)} codes: {', '.join(few)} (see: pipeline models {self.decoding.model})"
            )
        return lang

    def segment(self, text: str, lang: str) -> tuple[list[str], Tensor]:
        """Return the sentences of a text, cut by the settings `segmenting`, and the number of each one's paragraph."""
        segmenter = Segmenter(self.segmenting, self._encoder.tokenizer.count, self.device)
        found = segmenter.segment([text], [lang])
        return found.text.to_pylist(), torch.from_numpy(found.paragraph.copy())

    def encode(self, texts: Sequence[str], langs: Sequence[str]) -> Tensor:
        """Return (texts, dim) float16, on the CPU."""
        return torch.from_numpy(encode_texts(self._encoder, texts, langs).copy())

    def decode(self, embeddings: Tensor, langs: Sequence[str]) -> list[str]:
        """Return the text of each of (rows, dim), decoded greedily into its language; equal rows are decoded once."""
        names = sorted(set(langs))
        number = np.array([[names.index(lang)] for lang in langs], np.float32).reshape(-1, 1)
        keys = np.concatenate([embeddings.float().cpu().numpy(), number], axis=1)
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        prefixes = self._decoder.prefixes([langs[row] for row in first])
        distinct = embeddings[torch.from_numpy(first).to(embeddings.device)].to(self.device)
        ids, _ = self._decoder.decode(
            lambda rows: distinct[torch.from_numpy(rows).to(self.device)], prefixes, np.full(len(first), self.longest)
        )
        texts = self._decoder.tokenizer.decode(ids)
        return [texts[row] for row in inverse.reshape(-1)]

    @property
    def longest(self) -> int:
        """Tokens of a sentence that is written, at most."""
        return min(self.segmenting.max_tokens or LONGEST, self.decoder_card.max_tokens - 2)

    def check_dimension(self, dim: int) -> None:
        """Raise `ConfigError` if the decoder takes embeddings of another dimension than a corpus has."""
        card = self.decoder_card
        if card.dim != dim:
            raise ConfigError(
                f"{card.name}, the decoder of {self.place}, takes embeddings of {card.dim} dimensions; those of "
                f"the corpus have {dim}: name the decoder that goes with its encoder (corpus.yaml: autobleu.model)"
            )

    def likelihood(self, embeddings: Tensor, texts: Sequence[str], langs: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return −log p of each text, given its embedding.

        Tokens are those of the decoder, `</s>` among them. It computes in float32.

        Args:
            embeddings: (rows, dim).
            texts: the texts.
            langs: the language of each, such as `eng_Latn`.

        Returns:
            (rows,) float64 in nats, NaN for texts with more tokens than the decoder has room for; and (rows,) int64,
                the number of tokens.
        """
        tokenizer = SonarTokenizer(self.decoder_card)
        ids: list[list[int]] = [[] for _ in texts]
        for lang in sorted(set(langs)):
            rows = [row for row, one in enumerate(langs) if one == lang]
            for row, found in zip(rows, tokenizer.encode([texts[row] for row in rows], lang), strict=True):
                ids[row] = found
        whole = torch.tensor([count <= self.decoder_card.max_tokens for count in tokenizer.count(texts)])
        targets = Tokens.of(ids)
        with torch.inference_mode():
            nats = sentence_losses(self._float32_decoder, embeddings.float().to(self.device), targets).double().cpu()
        return nats.where(whole, torch.nan), torch.from_numpy(targets.lengths - 1)

    @cached_property
    def _float32_decoder(self) -> SonarTextDecoder:
        prepare_cuda(self.device)
        return load_decoder(self.decoder_card, torch.float32, self.device)

    @cached_property
    def _encoder(self) -> Encode:
        return prepare_encoder(self.encoding, self.artifacts, self.place, self.remedy, self.device)

    @cached_property
    def _decoder(self) -> BatchedDecoder:
        decoder = BatchedDecoder(self.decoding)
        decoder.setup(self.device)
        return decoder
