"""Settings of the `segment` section of corpus.yaml. Importing this costs nothing: no spaCy."""

from __future__ import annotations

from typing import ClassVar, Literal

from stages.stage import Settings, meaning


class SegmentSettings(Settings):
    """How documents become sentences (LCM 2.2)."""

    version: ClassVar[int] = 3  # raised when the code changes what comes out

    method: Literal["spacy", "spacy-capped"] = meaning(
        "spacy-capped",
        description="spacy: spaCy's rules, sentences of any length; spacy-capped: longer ones are broken",
    )
    max_chars: int = meaning(200, ge=10, description="hard cap in characters; 200 in the LCM paper")
    max_tokens: int | None = meaning(
        128, ge=8, description="hard cap in tokens of `model`, language tag and </s> included; null for none"
    )
    model: str = meaning("sonar-tiny", description="the model card whose tokenizer counts tokens")
    max_document_sentences: int = meaning(
        100_000, ge=1, description="a document of more sentences becomes numbered sub-documents"
    )
