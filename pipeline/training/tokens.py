"""Tokens of sentences, for models that learn by words: by the tokenizer of the corpus's encoder, pinned by a digest."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.errors import ConfigError
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.training.data.end_of_text import TEXTS
from pipeline.training.record import PinnedTokenizer
from stages.batching import Tokens
from stages.cards import CardError
from stages.lcm.card import LcmCard
from stages.sonar.card import ModelCard, load_card
from stages.sonar.tokenizer import SonarTokenizer

HERE = "train.token_lm.tokenizer"


class Tokeniser:
    """Makes tokens of sentences in their languages, cut where the encoder cuts them: at `max_tokens`.

    Args:
        card: the card whose tokenizer is used.
        setting: the setting that names the card, for messages.
        own: whether the sentence that closes a document is in the language of the sentence before it, not in English,
            so that nothing but the text says that a document ends.
    """

    def __init__(self, card: ModelCard, setting: str, own: bool = False) -> None:
        self._tokenizer, self._setting, self._own = SonarTokenizer(card), setting, own

    def __call__(self, texts: Sequence[str], langs: Sequence[str]) -> Tokens:
        """Return `[language] pieces </s>` of each text.

        Raises `ConfigError` for a language that the model does not know.
        """
        if self._own:
            before = ["", *langs]
            langs = [before[row] if row and texts[row] in TEXTS else lang for row, lang in enumerate(langs)]
        found: list[list[int]] = [[] for _ in texts]
        for lang in dict.fromkeys(langs):
            rows = [row for row, one in enumerate(langs) if one == lang]
            try:
                ids = self._tokenizer.encode([texts[row] for row in rows], lang)
            except ValueError as error:
                raise ConfigError(
                    f"{self._setting}: {error}; take its documents out (select), or name another"
                ) from error
            for row, one in zip(rows, ids, strict=True):
                found[row] = one
        return Tokens.of(found)


def pinned_tokenizer(corpus: Corpus, card: LcmCard) -> PinnedTokenizer | None:
    """Return the tokenizer of a token language model; None if the model needs none.

    Raises `ConfigError` for one that is not the encoder's, or makes more tokens of a sentence than the model reads.
    """
    if card.kind != "token-lm":
        return None
    encoder = load_card(newest_config(corpus.store)["encode"]["model"])
    named = load_card(card.learns.tokenizer) if card.learns.tokenizer else encoder
    if named.tokenizer_digest != encoder.tokenizer_digest:
        raise ConfigError(
            f"{HERE}: the tokenizer of {named.name} differs from that of {encoder.name}, which encoded "
            f"{corpus.url}: likelihoods could not be compared; leave it out"
        )
    assert card.context_tokens is not None
    if card.context_tokens < encoder.max_tokens:
        raise ConfigError(
            f"{card.name} reads {card.context_tokens} tokens at once (context_tokens); a sentence of {encoder.name} "
            f"has up to {encoder.max_tokens}; take a card with {encoder.max_tokens} or more"
        )
    name = card.learns.tokenizer or newest_config(corpus.store)["encode"]["model"]
    return PinnedTokenizer(model=name, digest=encoder.tokenizer_digest, vocabulary=encoder.vocab_size)


def tokenizer_card(pinned: PinnedTokenizer) -> ModelCard:
    """Return the card of a training's tokenizer. Raises `ConfigError` if it is missing or has changed."""
    try:
        card = load_card(pinned.model)
    except CardError as error:
        raise ConfigError(f"{HERE}: {error}") from error
    if card.tokenizer_digest != pinned.digest:
        raise ConfigError(
            f"{HERE}: the tokenizer of {pinned.model} differs from the one that the training began with "
            f"({card.tokenizer_digest[:8]}, not {pinned.digest[:8]}): restore its file, or start over: --fresh"
        )
    return card
