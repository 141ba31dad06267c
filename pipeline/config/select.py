"""The `select` section of corpus.yaml: which sentences a trainer and an export see. This module imports
nothing heavy.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from stages.stage import Settings, meaning


class SelectSettings(Settings):
    """Which sentences are used; the short form is only the condition: `select: "autobleu >= 30 and chars >= 10"`."""

    where: str | None = meaning(
        None, min_length=1, description="condition on columns that sentences must satisfy, as for inspect --where"
    )
    # A model learns to predict the next sentence: sentences on both sides of a gap must not seem to be neighbours.
    broken: Literal["drop-sentences", "split-documents", "drop-documents"] = meaning(
        "split-documents",
        description="what becomes of a document that lost sentences: split-documents: every unbroken stretch is a "
        "piece of its own; drop-sentences: the gaps are closed; drop-documents: the document is left out",
    )
    min_sentences: int = meaning(
        1,
        ge=1,
        description="documents, or pieces of them, with fewer sentences are left out; of a document that "
        "segment.max_document_sentences cut, each piece counts as one",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"where": value} if isinstance(value, str) else value
