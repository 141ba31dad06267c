"""Settings of plans of paragraphs, which the inputs bring or a language model writes. Imports no torch, so that a plan
of work is fast.
"""

from __future__ import annotations

from string import Formatter
from typing import Any, ClassVar

from pydantic import field_validator, model_validator

from stages.causal_lm import load_language_card
from stages.encode.settings import EncodeSettings
from stages.stage import Settings, execution, meaning

PARAGRAPH = 5.0  # sentences, roughly: estimates count a plan for each
MORE = "some documents have more plans than paragraphs"
PROMPT = (
    "What is this paragraph about? Answer with one short sentence in the language of the paragraph, and nothing else."
    "\n\n{text}\n\nAnswer: "
)


class PlansSettings(Settings):
    """Plans of paragraphs from a column that an input keeps, or that a language model writes, for trainings with
    `plans: column` (LCM 4.3).

    Adds `plan`, in the first row of each paragraph that has one, and `plan_embedding`, which is zero in other rows.
    """

    column: str | None = meaning(
        None,
        min_length=1,
        description="the kept column with a document's plans: a list with one text per paragraph, in order, or one "
        "text, the plan of the first paragraph; null or an empty text is no plan",
    )
    lm: str | None = meaning(
        None,
        min_length=1,
        description="instead of a column: the causal language model that writes a plan for each paragraph: a card's "
        "name (conf/language/), or the path of a card",
    )
    prompt: str = meaning(
        PROMPT,
        description="what the model continues, with {text} where the paragraph stands; for a chat model with the marks "
        "of a turn",
    )
    max_tokens: int = meaning(24, ge=1, le=512, description="the most tokens of a plan that the model writes")

    @field_validator("prompt")
    @classmethod
    def _has_one_place(cls, prompt: str) -> str:
        try:
            fields = [name for _, name, *_ in Formatter().parse(prompt) if name is not None]
        except ValueError:  # a brace alone
            fields = []
        if fields != ["text"] or prompt.count("{text}") != 1:
            raise ValueError(
                f"{prompt!r} is no prompt: write {{text}} once, where the paragraph stands, and {{{{ }}}} for braces"
            )
        return prompt

    @model_validator(mode="after")
    def _has_one_maker(self) -> PlansSettings:
        if (self.column is None) == (self.lm is None):
            raise ValueError(
                "give column: NAME, of plans that the inputs bring, or lm: CARD, of a model that writes them"
            )
        if self.column and (unread := sorted({"prompt", "max_tokens"} & self.model_fields_set)):
            raise ValueError(f"only lm reads {' and '.join(unread)}, and column is given: leave out one or the other")
        return self


class PlanEmbeddingSettings(EncodeSettings):
    """Plans of paragraphs → `plans.plan` (null where a row begins no paragraph with a plan), and their embeddings,
    `plan-embeddings.plan_embedding` (rows, dim) float16, zero in these rows.
    """

    name: ClassVar[str] = "plans"
    version: ClassVar[int] = 1
    writes: ClassVar[tuple[str, ...]] = ("plans", "plan-embeddings")
    row_warnings: ClassVar[tuple[str, ...]] = (MORE,)

    column: str | None = meaning(None, description="the kept column with the plans")
    lm: str | None = meaning(None, description="the model that writes them")
    prompt: str = meaning(PROMPT, description="what the model continues")
    max_tokens: int = meaning(24, description="the most tokens of a plan that the model writes")
    max_document_sentences: int = execution(description="the most sentences of a document that is not cut")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]  # the column is known only here
        """The columns that are read: where paragraphs begin, in which language, and plans or texts."""
        plans = f"documents.{self.column}" if self.column else "sentences.text"
        return ("sentences.doc", "sentences.paragraph", "sentences.lang", plans)

    def meaningful(self) -> dict[str, Any]:
        """Return the meaning settings: those of a column, or those of a model, of which the card's name counts and not
        its path.
        """
        found = super().meaningful()
        for key in ("column",) if self.lm else ("lm", "prompt", "max_tokens"):
            del found[key]
        return found | ({"lm": load_language_card(self.lm).name} if self.lm else {})

    def artifacts(self) -> dict[str, str]:
        """Return the digests of the encoder's weights, and of the language model's."""
        return super().artifacts() | ({"lm": load_language_card(self.lm).digest} if self.lm else {})
