"""The `report` section of corpus.yaml: what may be expected of a corpus, by name. This module imports nothing heavy.

A measure of rows is the mean of a column, or the share of rows that satisfy a condition among those that satisfy
another (`of`), in the language of `--where`; so the definitions below are what is computed.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import field_validator

from stages.noise.settings import PRESETS, SENTENCE_COLUMNS
from stages.stage import Settings, execution

Unit = Literal["share", "count", "number"]
SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
GROUPS = {"_by_language": "lang", "_by_source": "source"}  # suffix of a measure → column of its groups
_LIMIT = re.compile(r"(<=|>=|==|<|>)\s*(-?[0-9][0-9_ ]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|-?\.[0-9]+)\s*(%?)")


@dataclass(frozen=True)
class Measure:
    """One number of a corpus. `section`: the section of corpus.yaml that it needs.

    A measure of rows is the `mean` of a column, or the share of rows for which a condition holds (`share`), or does not
    hold or is unknown (`fails`), among the rows that satisfy `of`; with `among`, of the first sentences of documents
    (or of sub-documents), or of the sentences whose language was judged. Other measures come from receipts and fits.
    """

    about: str
    unit: Unit = "share"
    section: str | None = None
    mean: str | None = None
    share: str | None = None
    fails: str | None = None
    of: str | None = None
    among: Literal["documents", "judged"] | None = None

    @property
    def of_rows(self) -> bool:
        """Whether the measure is computed from rows, and so by language and by source too."""
        return any((self.mean, self.share, self.fails))


MEASURES: dict[str, Measure] = {
    "documents": Measure("documents that were kept", "count"),
    "sentences": Measure("sentences", "count"),
    "tokens": Measure("tokens", "count"),
    "dropped": Measure("documents that were dropped, of those that were read"),
    "quarantined": Measure("documents in quarantine, of those that were read"),
    "chars_mean": Measure("characters per sentence", "number", mean="chars"),
    "tokens_mean": Measure("tokens per sentence", "number", mean="tokens"),
    "truncated": Measure("sentences that were encoded only in part", section="encode", share="status == 1"),
    "not_finite": Measure("sentences whose embedding is not finite", section="encode", share="status == 2"),
    "autobleu_mean": Measure("AutoBLEU of the scored sentences", "number", "autobleu", mean="autobleu"),
    "autobleu_below_20": Measure(
        "scored sentences with an AutoBLEU below 20", section="autobleu", share="autobleu < 20",
        of="autobleu is not null",
    ),
    "fragility_cosine_mean": Measure(
        "fragility by cosine; nearer 0 is more fragile", "number", "fragility", mean="fragility_cosine"
    ),
    "fragility_bleu_mean": Measure(
        "fragility by BLEU; nearer 0 is more fragile", "number", "fragility", mean="fragility_bleu"
    ),
    "weight_mean": Measure("sample weight", "number", "predictor", mean="weight"),
    "predictor_correlation": Measure(
        "Pearson's r of predicted and measured fragility on held-out sentences", "number", "predictor"
    ),
    "rvq_relative_error": Measure("relative squared error with all codebooks, on held-out sentences", "number", "rvq"),
    "drifted": Measure("measures of fits by which later data has drifted", "count"),
    "language_mismatch": Measure(
        "judged sentences in another language than stated", section="language", share="lang_differs", among="judged"
    ),
    "duplicate_sentences": Measure(
        "sentences that occurred earlier", section="duplicates", share="duplicate_of is not null"
    ),
    "duplicate_documents": Measure(
        "documents that occurred earlier", section="duplicates", share="doc_duplicate_of is not null",
        among="documents",
    ),
    "near_duplicate_documents": Measure(
        "documents that are nearly equal to an earlier one", section="duplicates.near",
        share="near_duplicate_of is not null", among="documents",
    ),
    "semantic_duplicates": Measure(
        "sentences that mean the same as an earlier one", section="duplicates.semantic",
        share="semantic_duplicate_of is not null",
    ),
    **{
        f"{name}_mean": Measure(f"{name.replace('_', ' ')} of characters", section="noise", mean=name)
        for name in SENTENCE_COLUMNS
        if name.endswith("_share")
    },
    **{
        f"removed_by_{name.replace('-', '_')}": Measure(
            f"sentences that select: {{preset: {name}}} would remove", section="noise", fails=rules
        )
        for name, rules in PRESETS.items()
    },
    "selected": Measure("sentences that `select` keeps", section="select"),
}  # fmt: skip


@dataclass(frozen=True)
class Limit:
    """What a measure is compared with. `text`: the limit as it is shown."""

    sign: str
    value: float
    text: str

    def holds(self, value: float) -> bool:
        """Return whether a value satisfies the limit; NaN satisfies none."""
        return bool(SIGNS[self.sign](value, self.value))


def measure_of(name: str) -> tuple[str, str | None]:
    """Split a name of `expect`: `autobleu_mean_by_language` → (`autobleu_mean`, `lang`).

    Raises `ValueError` for an unknown name.
    """
    if name in MEASURES:
        return name, None
    for suffix, column in GROUPS.items():
        base = name.removesuffix(suffix)
        if base != name and base in MEASURES:
            if MEASURES[base].of_rows:
                return base, column
            raise ValueError(f"{name}: {base} is one number of the whole corpus; write {base}")
    every = [*MEASURES, *(key + suffix for key, one in MEASURES.items() if one.of_rows for suffix in GROUPS)]
    near = difflib.get_close_matches(name, every, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"{name} is not a measure; {hint}there are: {', '.join(MEASURES)}; those of rows also with _by_language and "
        "_by_source"
    )


def limit_of(name: str, value: Any) -> Limit:
    """Parse what is expected of a measure, such as `>= 40` or `< 2 %`. Raises `ValueError` that says what is wrong."""
    unit = MEASURES[measure_of(name)[0]].unit
    found = _LIMIT.fullmatch(value.strip()) if isinstance(value, str) else None
    example = {"share": '"< 0.02" or "< 2 %"', "count": '">= 1000"', "number": '">= 40"'}[unit]
    if not found:
        raise ValueError(
            f"{name} is {value!r}; allowed: one of {' '.join(SIGNS)} and a number, in quotes, for instance {example}"
        )
    sign, written, percent = found.groups()
    limit = float(re.sub("[_ ]", "", written)) / (100 if percent else 1)
    if not math.isfinite(limit):
        raise ValueError(f"{name} is {value!r}; give a finite number: for instance {example}")
    if percent and unit != "share":
        raise ValueError(f"{name} is {value!r}; it is not a share, so leave out the %: for instance {example}")
    if unit == "share" and not 0 <= limit <= 1:
        raise ValueError(f"{name} is {value!r}; it is a share between 0 and 1: for instance {example}")
    if unit == "count" and limit < 0:
        raise ValueError(f"{name} is {value!r}; it is a number of things, and never negative: for instance {example}")
    return Limit(sign, limit, f"{sign} {written.strip()}{' %' if percent else ''}")


class ReportSettings(Settings):
    """The report at the end of a run."""

    max_rows: int = execution(2_000_000, ge=1, description="sentences that the plots are made from")
    interactive: bool = execution(False, description="also write report/interactive.html, to explore a sample in")
    expect: dict[str, str] = execution(
        {},
        description='what must hold of the corpus, for instance autobleu_mean: ">= 40"; checked after a run and by '
        "pipeline report, and with --strict the exit code is 1 if something does not hold",
    )

    @field_validator("expect", mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f'is {value!r}; allowed: measures and limits, for instance autobleu_mean: ">= 40"')
        wrong = []
        for name, limit in value.items():
            try:
                limit_of(str(name), limit)
            except ValueError as error:
                wrong.append(str(error))
        if wrong:
            raise ValueError("\n".join(wrong))
        return value

    def limits(self) -> dict[str, Limit]:
        """Return what is expected, by measure."""
        return {name: limit_of(name, text) for name, text in self.expect.items()}
