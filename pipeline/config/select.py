"""The `select` section of corpus.yaml: which sentences a trainer and an export see. This module imports
nothing heavy.
"""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import model_validator

from pipeline.conditions.tokens import ConditionTokens, ExpressionError
from stages.noise.settings import PRESETS
from stages.stage import Settings, execution, meaning


class SelectSettings(Settings):
    """Which sentences are used; the short form is only the condition: `select: "autobleu >= 30 and chars >= 10"`."""

    where: str | None = meaning(
        None, min_length=1, description="condition on columns that sentences must satisfy, as for inspect --where"
    )
    # Never has a value: the rules become part of `where`, so that what is pinned says what was asked.
    preset: str | list[str] | None = execution(
        None,
        exclude=True,
        description=f"published rules over the columns of the section noise, added to where: {', '.join(PRESETS)}",
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

    @model_validator(mode="before")
    @classmethod
    def _rules(cls, value: Any) -> Any:
        """Put the rules of presets before the condition."""
        if not isinstance(value, dict) or value.get("preset") is None:
            return value
        names = value["preset"] if isinstance(value["preset"], list) else [value["preset"]]
        unknown = [str(name) for name in names if not isinstance(name, str) or name not in PRESETS]
        if unknown or not names:
            near = [one for name in unknown for one in difflib.get_close_matches(name, PRESETS, n=1)]
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise ValueError(f"preset {', '.join(unknown) or '[]'}: {hint}there are: {', '.join(PRESETS)}")
        others, where = {key: one for key, one in value.items() if key != "preset"}, value.get("where")
        if where is not None and not (isinstance(where, str) and where.strip() and _closes_what_it_opens(where)):
            return others  # which is refused for what it has as `where`
        rules = [PRESETS[name] for name in names] + ([] if where is None else [f"({where})"])
        return others | {"where": " and ".join(rules)}


def _closes_what_it_opens(where: str) -> bool:
    """Return whether a condition can stand in parentheses: `a) or (b` would end those around it."""
    depth = 0
    try:
        tokens = ConditionTokens(where, "select.where")
    except ExpressionError:
        return False
    while (one := tokens.take()).kind != "end":
        depth += (one.kind == "sign") * ((one.value == "(") - (one.value == ")"))
        if depth < 0:
            return False
    return depth == 0
