"""Languages that a tokenizer hardly knows: its tokens are so short that the cap in tokens cuts sentences to pieces."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from stages.cards import CardError
from stages.sonar.card import ModelCard

LEAST = 100  # tokens of a language: fewer say nothing about it
ENOUGH = 20_000  # characters of a language, to see how long tokens are
OF_ONE = 4000  # characters of a document: a strange one is not its language
FEWEST = 1.5  # characters per token; English has about 4
FEWEST_DENSE = 0.75  # the same, where one character is a syllable or a word
_DENSE = ("Hans", "Hant", "Jpan", "Kore", "Hang")


def cut_by_tokens(counts: Mapping[str, tuple[int, int]], max_tokens: int | None, model: str) -> list[str]:
    """Warn of languages whose sentences are cut by max_tokens long before max_chars.

    Args:
        counts: language → characters of some of its text, and tokens without the language tag and `</s>`.
        max_tokens: `segment.max_tokens`; None where nothing is capped.
        model: the card whose tokenizer counted.

    Returns:
        One warning of all of them, the worst language first; none if there are none, or too little text to tell.
    """
    if not max_tokens:
        return []
    ratios = {
        lang: characters / tokens
        for lang, (characters, tokens) in sorted(counts.items(), key=lambda one: one[1][0] / max(1, one[1][1]))
        if tokens >= LEAST and characters < (FEWEST_DENSE if lang.endswith(_DENSE) else FEWEST) * tokens
    }
    if not ratios:
        return []
    cut = sorted({int(ratio * (max_tokens - 2)) for ratio in ratios.values()})
    these = "this language" if len(ratios) == 1 else f"these {len(ratios)} languages"
    return [
        f"{', '.join(f'{lang}: {ratio:.1f}' for lang, ratio in ratios.items())} characters per token of {model}, so "
        f"segment.max_tokens ({max_tokens}) cuts sentences at about {' to '.join(map(str, cut[:1] + cut[1:][-1:]))} "
        f"characters; the model hardly knows {these}: use another one, or raise segment.max_tokens"
    ]


def add_beginning(texts: dict[str, str], lang: str, text: str) -> None:
    """Add the beginning of a document, as segmenting composes it (NFC), to the text of its language, until that is
    enough to count tokens.

    Args:
        texts: language → text, which is changed.
        lang: the language of the document.
        text: the text of the document.
    """
    texts[lang] = (texts.get(lang, "") + unicodedata.normalize("NFC", text[:OF_ONE]))[:ENOUGH]


def tokens_by_language(card: ModelCard, texts: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return language → characters and tokens of its text; empty if the tokenizer's file is not on this machine."""
    if not texts or not card.path("tokenizer").is_file():
        return {}
    from stages.sonar.tokenizer import SonarTokenizer  # imports sentencepiece, which few plans need

    try:
        tokens = SonarTokenizer(card).count(list(texts.values()))
    except CardError:  # another file than the card describes, which `check_tokenizer` tells
        return {}
    return {lang: (len(text), count - 2) for (lang, text), count in zip(texts.items(), tokens, strict=True)}
