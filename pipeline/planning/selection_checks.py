"""Finds clauses of a selection that no sentence can satisfy, from settings alone: before anything is computed.

Only columns with few possible values are looked at: characters, tokens, language and split of a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.base.formats import number
from pipeline.conditions.condition import Condition
from pipeline.config.run_config import RunConfig
from pipeline.inputs import SPLITS
from pipeline.inputs.splits import split_column
from stages.cards import CardError
from stages.sonar.card import load_card

MOST = 100_000  # values of a column that are tried
SHOWN = 8  # languages in a message
ADDED_TOKENS = 2  # language tag and </s>, which the cap may leave out


def impossible_clauses(config: RunConfig, condition: Condition, types: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Yield a message for each clause that keeps no sentence, whatever the inputs hold.

    Args:
        config: the configuration.
        condition: the selection.
        types: the types of the columns that it may read.

    Yields:
        What is wrong, and which values there are.
    """
    for clause in condition.clauses:
        for name, values, told in _domains(config) if len(clause.columns) == 1 else ():
            if clause.columns == (name,) and name in types:
                table = pa.table({name: pa.array(values, types[name])})
                if not clause.filter(table).num_rows:
                    yield f"select.where: `{clause.text}` keeps no sentence, because {told}"


def _domains(config: RunConfig) -> Iterator[tuple[str, Sequence[Any], str]]:
    """Yield columns, all the values that they can have, and how to say it."""
    if config.segment.capped:
        for name, most, unit in (
            ("chars", config.segment.max_chars, "characters"),
            ("tokens", config.segment.max_tokens, "tokens"),
        ):
            if most and most <= MOST:
                told = f"sentences have from 1 to {number(most)} {unit} (segment.max_{name})"
                yield name, range(1, most + 1 + (ADDED_TOKENS if name == "tokens" else 0)), told
    if langs := _languages(config):
        shown = ", ".join(langs[:SHOWN]) + (f" and {len(langs) - SHOWN} more" if len(langs) > SHOWN else "")
        yield "lang", langs, f"the languages are {shown}"
    shares = {"train": 1 - config.split.validation - config.split.test, "validation": config.split.validation}
    shares["test"] = config.split.test
    by_column = split_column(config.split) is not None and hasattr(config.split.by, "column")
    splits = [name for name in SPLITS if by_column or shares[name] > 0]
    yield "split", splits, f"all documents are in {' or '.join(splits)} (split)"


def _languages(config: RunConfig) -> list[str]:
    """Return the languages that documents can have: those of the inputs, or if documents say it, the model's."""
    if all(isinstance(one.lang, str) for one in config.input):
        return sorted({str(one.lang) for one in config.input})
    try:
        return sorted(load_card(config.segment.model).languages)
    except CardError:  # reported elsewhere
        return []
