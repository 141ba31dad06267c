"""Settings of the `segment` section of corpus.yaml. Imports neither spaCy nor torch."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Literal

from stages.segment.sat.card import load_sat_card
from stages.stage import Settings, execution, meaning

MethodName = Literal["spacy", "spacy-capped", "sat", "sat-capped", "paragraphs"]


class SegmentSettings(Settings):
    """How documents become sentences (LCM 2.2)."""

    version: ClassVar[int] = 4  # raised when the code changes what comes out

    method: MethodName = meaning(
        "sat-capped",
        description="spacy: spaCy's rules; sat: a SaT model; …-capped: no sentence is over max_chars or max_tokens; "
        "paragraphs: sat-capped, and SaT's paragraphs of two to nine sentences in the column `paragraph`",
    )
    sat: str = meaning("sat-tiny", description="the SaT model: a card's name (conf/sat/), or the path of a card")
    sat_only: bool = meaning(
        False,
        description="true: SaT in every language; false: if SaT's card names languages that it is good at, rules in "
        "the others, except for documents without sentence-final marks",
    )
    threshold: float | None = meaning(
        None, gt=0, lt=1, description="a sentence ends where SaT's probability is higher; null: the card's"
    )
    paragraph_threshold: float | None = meaning(
        None, gt=0, lt=1, description="a paragraph ends where SaT's probability is higher; null: the card's"
    )
    stride: int | None = meaning(
        None,
        ge=16,
        le=510,
        description="tokens from one window of SaT to the next; null: ¾ of a window; 64 in wtpsplit",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = meaning(
        "auto",
        description="format of SaT; auto: float16 on GPUs, on CPUs bfloat16 where they multiply it, else float32",
    )
    max_chars: int = meaning(200, ge=10, description="hard cap in characters; 200 in the LCM paper")
    max_tokens: int | None = meaning(
        128, ge=8, description="hard cap in tokens of `model`, language tag and </s> included; null for none"
    )
    min_chars: int = meaning(
        0, ge=0, description="shorter pieces are joined to a neighbour, where the cap and blank lines allow it"
    )
    model: str = meaning("sonar-tiny", description="the model card whose tokenizer counts tokens")
    max_document_sentences: int = meaning(
        100_000, ge=1, description="a document with more sentences becomes numbered sub-documents"
    )
    batch_tokens: int = execution(16_384, ge=512, description="tokens that SaT computes at once, at most")

    @property
    def uses_sat(self) -> bool:
        """Return whether a SaT model is needed."""
        return not self.method.startswith("spacy")

    @property
    def languages(self) -> frozenset[str] | None:
        """Languages whose documents SaT segments even where rules could; None for all of them."""
        if self.sat_only or self.method not in ("sat", "sat-capped"):
            return None
        languages = load_sat_card(self.sat).languages
        return None if languages is None else frozenset(languages)

    @property
    def capped(self) -> bool:
        """Whether no piece may exceed max_chars and max_tokens."""
        return self.method not in ("spacy", "sat")

    def meaningful(self) -> dict[str, Any]:
        """Return the meaning settings without those that the method does not use: changing them makes nothing stale."""
        kept = super().meaningful()
        unused = {"sat_only"}  # the digest of the model tells: a model without languages of its own is always alone
        unused |= set() if self.capped else {"max_chars", "max_tokens"}
        if not self.uses_sat:
            unused |= {"sat", "threshold", "stride", "precision"}
        if self.method != "paragraphs":
            unused.add("paragraph_threshold")
        found = {name: value for name, value in kept.items() if name not in unused}
        if self.method in ("sat", "sat-capped"):  # whose paragraphs were SaT's before
            found["paragraphs"] = "between blank lines"
        return found

    def artifacts(self) -> dict[str, str]:
        """Return digests of the files that decide where sentences end."""
        if not self.uses_sat:
            return {}
        card, languages = load_sat_card(self.sat), self.languages
        if languages is None:
            return {"sat": card.digest}
        digest = hashlib.sha256(" ".join(sorted(languages)).encode()).hexdigest()[:16]
        return {"sat": card.digest, "sat languages": digest}
