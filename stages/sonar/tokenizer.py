"""Text to token ids and back, in the id layout of the published SONAR models.

pad 0, unknown 1, begin 2, end 3, then the sentencepiece pieces shifted by one, then the languages in the card's order.
A source is `[language] pieces </s>`, a target starts with `</s> [language]`. Batches go through sentencepiece's own
threads; nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sentencepiece import SentencePieceProcessor

from stages.cards import CardError
from stages.cores import cores
from stages.sonar.card import ModelCard
from stages.sonar.ids import BEGIN, END, PAD, UNKNOWN

__all__ = ["BEGIN", "END", "PAD", "UNKNOWN", "SonarTokenizer", "check_tokenizer"]


def check_tokenizer(card: ModelCard) -> None:
    """Raise `CardError` if the tokenizer's file is on this machine and is another one than the card describes."""
    if card.path("tokenizer").is_file():
        SonarTokenizer(card)


class SonarTokenizer:
    """The tokenizer of one model card. Cheap to make, and safe to pickle by making it again from the card."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        file = card.verify("tokenizer")
        try:
            self._pieces = SentencePieceProcessor(model_file=str(file))
        except RuntimeError as error:
            raise CardError(
                f"card {card.name}: {file} is no model of SentencePiece; correct files.tokenizer"
            ) from error
        self._first_language = self._pieces.vocab_size() + 1
        self._threads = cores()
        after = self._first_language + len(card.languages)
        if after > card.vocab_size:
            raise CardError(
                f"card {card.name}: {self._pieces.vocab_size()} pieces and {len(card.languages)} languages need ids up "
                f"to {after - 1}, vocab_size is {card.vocab_size}; correct vocab_size, languages or files.tokenizer"
            )
        self._language_ids = {code: self._first_language + i for i, code in enumerate(card.languages)}

    def language_id(self, lang: str) -> int:
        """Return the id of a language code. Raises ValueError, with the nearest codes, if the model does not
        know it.
        """
        if lang in self._language_ids:
            return self._language_ids[lang]
        raise ValueError(
            f"model {self.card.name} does not know the language {lang!r}; nearest of its {len(self.card.languages)} "
            f"codes: {', '.join(self.card.nearest_languages(lang))}"
        )

    def encode(self, texts: Sequence[str], lang: str) -> list[list[int]]:
        """Return `[language] pieces </s>` of each text, at most `max_tokens` long: the text is cut, `</s>` is kept."""
        tag = self.language_id(lang)
        room = self.card.max_tokens - 2
        return [[tag, *(piece + 1 for piece in ids[:room]), END] for ids in self._encode(texts)]

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text before any cut, language tag and `</s>` included."""
        return [len(ids) + 2 for ids in self._encode(texts)]

    def target_prefix(self, lang: str) -> tuple[int, int]:
        """Return the start of a decoding: `</s> [language]`."""
        return END, self.language_id(lang)

    def pieces(self) -> npt.NDArray[np.bool_]:
        """Return (vocab_size,) which ids are pieces of text: not control symbols, languages, or unused ids."""
        ids = np.arange(self.card.vocab_size)
        found: npt.NDArray[np.bool_] = (ids > END) & (ids < self._first_language)
        return found

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of ids; control symbols and languages are dropped."""
        pieces = [[i - 1 for i in ids if END < i < self._first_language or i == UNKNOWN] for ids in sequences]
        if not pieces:  # sentencepiece takes an empty batch for an empty text
            return []
        texts: list[str] = self._pieces.decode(pieces, num_threads=self._threads)
        return texts

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._pieces.encode(list(texts), num_threads=self._threads)
        return ids
