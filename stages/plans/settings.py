"""Settings of plans that the inputs bring. Imports no torch, so that a plan of work is fast."""

from __future__ import annotations

from typing import ClassVar

from stages.encode.settings import EncodeSettings
from stages.stage import Settings, execution, meaning

PARAGRAPH = 5.0  # sentences, roughly: estimates count a plan for each
MORE = "some documents have more plans than paragraphs"


class PlansSettings(Settings):
    """Plans of paragraphs from a column that an input keeps, for trainings with `plans: column` (LCM 4.3).

    Adds `plan`, in the first row of each paragraph that has one, and `plan_embedding`, which is zero in other rows.
    """

    column: str = meaning(
        min_length=1,
        description="the kept column with a document's plans: a list with one text per paragraph, in order, or one "
        "text, the plan of the first paragraph; null or an empty text is no plan",
    )


class PlanEmbeddingSettings(EncodeSettings):
    """Plans of paragraphs → `plans.plan` (null where a row begins no paragraph with a plan), and their embeddings,
    `plan-embeddings.plan_embedding` (rows, dim) float16, zero in these rows.
    """

    name: ClassVar[str] = "plans"
    version: ClassVar[int] = 1
    writes: ClassVar[tuple[str, ...]] = ("plans", "plan-embeddings")
    row_warnings: ClassVar[tuple[str, ...]] = (MORE,)

    column: str = meaning(description="the kept column with the plans")
    max_document_sentences: int = execution(description="the most sentences of a document that is not cut")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]  # the column is known only here
        """The columns that are read: texts of no sentence, but where paragraphs begin and in which language."""
        return ("sentences.doc", "sentences.paragraph", "sentences.lang", f"documents.{self.column}")
