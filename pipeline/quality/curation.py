"""Measures what other curators look at: languages by source, noise, published rules, duplicates.

One pass over the columns that the corpus has of the sections `language`, `noise` and `duplicates`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.formats import counted, plain
from pipeline.conditions.condition import Clause, Condition
from pipeline.corpus.reader import Corpus
from pipeline.quality.measures import JudgedLanguages, StartsOfDocuments
from stages.noise.settings import DOCUMENT_COLUMNS, PRESETS, SENTENCE_COLUMNS

LANGUAGE = ("lang_detected", "lang_differs")
SHARES = tuple(name for name in SENTENCE_COLUMNS if name.endswith("_share"))
LEVELS = (0.0, 0.1, 0.3, 0.5)  # a sentence is counted where more than this share of its characters is noise
SHARE = 0.02  # of a source's sentences in another language, from which it is told
FEW = 50  # of fewer sentences nothing is told
EXAMPLES = 15
ALL = "all of these"
REPEATS = ((1, 1), (2, 2), (3, 10), (11, 100), (101, None))  # how often a sentence occurs


@dataclass(frozen=True)
class LanguageDifference:
    """The sentences of a source that are stated in one language. detected: language → how many of those that differ."""

    source: str
    stated: str
    judged: int
    differ: int
    detected: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """Which part of the judged sentences is in another language than stated."""
        return self.differ / self.judged if self.judged else 0.0

    @property
    def is_much(self) -> bool:
        """Whether enough sentences differ that somebody should look."""
        return self.judged >= FEW and self.share > SHARE

    def said(self) -> str:
        """Describe the difference in a sentence."""
        mostly = f", mostly {self.detected[0][0]}" if self.detected else ""
        of = f"{counted(self.judged, 'judged sentence')} stated as {self.stated}"
        return f"{plain(self.source, 200)}: {self.share:.1%} of {of} are in another language{mostly}"


@dataclass(frozen=True)
class RuleCount:
    """How many rows, and documents, one condition of a preset would remove, by itself.

    documents: None for conditions on sentences, which remove parts of documents.
    """

    preset: str
    rule: str
    sentences: int
    documents: int | None


@dataclass
class Curation:
    """What was measured of about the first rows; parts that the corpus has no columns for are empty."""

    rows: int = 0
    documents: int = 0
    languages: list[LanguageDifference] = field(default_factory=list)
    differing: list[tuple[str, str, str]] = field(default_factory=list)  # stated, detected, text: examples
    noisy: dict[str, list[int]] = field(default_factory=dict)  # column → sentences above each of `LEVELS`
    rules: list[RuleCount] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)  # sentences that occur as often as `REPEATS` says
    repeated: dict[int, tuple[int, str]] = field(default_factory=dict)  # hash → count and text of those that occur most

    @property
    def suspicious(self) -> list[LanguageDifference]:
        """The sources of which more than `SHARE` differ, the most sentences first."""
        return sorted((one for one in self.languages if one.is_much), key=lambda one: -one.differ)


def measure_curation(corpus: Corpus, max_rows: int) -> Curation:
    """Measure about the first `max_rows` rows, in the (random) order of the parts."""
    found = Curation()
    there = corpus.catalogue
    with_language = set(LANGUAGE) <= there.keys()
    with_repeats = {"sentence_hash", "duplicate_count"} <= there.keys()
    presets = {
        name: condition
        for name, text in PRESETS.items()
        if set(DOCUMENT_COLUMNS) <= there.keys() and (condition := corpus.condition(text, name))
    }
    shares = [name for name in SHARES if name in there]
    names = {*shares, *(column for one in presets.values() for column in one.columns)}
    names |= {"source", "lang", "text", *LANGUAGE} if with_language else set()
    names |= {"text", "sentence_hash", "duplicate_count"} if with_repeats else set()
    if not names or not corpus.parts:
        return found
    judged, differ = Counter[tuple[str, str]](), Counter[tuple[str, str, str]]()
    found.noisy = {name: [0] * len(LEVELS) for name in shares}
    removed = Counter[tuple[str, str, bool]]()
    found.repeats = [0] * len(REPEATS) if with_repeats else []
    begins = StartsOfDocuments()
    judges = JudgedLanguages(corpus) if with_language else None
    for batch in corpus.batches(*sorted(names | set(begins.columns)), max_rows=max_rows):
        table = batch.table
        starts = pa.array(begins(table))
        found.rows += table.num_rows
        found.documents += pc.sum(starts).as_py() or 0
        if judges:
            _add_languages(table, judges, judged, differ, found.differing)
        for name in shares:
            values = table[name].to_numpy()
            for at, level in enumerate(LEVELS):
                found.noisy[name][at] += int((values > level).sum())
        _add_rules(table.append_column("starts_document", starts), presets, removed)
        if with_repeats:
            _add_repeats(table, found)
    found.languages = _differences(judged, differ)
    found.rules = [
        RuleCount(name, rule, removed[name, rule, False], documents)
        for name, condition in presets.items()
        for rule in (*(one.text for one in condition.clauses), ALL)
        for documents in [removed[name, rule, True] if _of_documents(condition) else None]
    ]
    return found


def _of_documents(condition: Condition) -> bool:
    """Return whether a condition is the same for all sentences of a document."""
    return set(condition.columns) <= {*DOCUMENT_COLUMNS, "lang"}


def language_differences(corpus: Corpus, max_rows: int) -> list[LanguageDifference]:
    """Return only the languages of sources, of about the first `max_rows` rows; none if the corpus has not detected
    any.
    """
    judged, differ = Counter[tuple[str, str]](), Counter[tuple[str, str, str]]()
    if set(LANGUAGE) <= corpus.catalogue.keys() and corpus.parts:
        judges = JudgedLanguages(corpus)
        for batch in corpus.batches("source", "lang", "text", *LANGUAGE, max_rows=max_rows):
            _add_languages(batch.table, judges, judged, differ, [])
    return _differences(judged, differ)


def _add_languages(
    table: pa.Table,
    judges: JudgedLanguages,
    judged: Counter[tuple[str, str]],
    differ: Counter[tuple[str, str, str]],
    examples: list[tuple[str, str, str]],
) -> None:
    known = table.filter(pa.array(judges(table)))
    for one in known.group_by(["source", "lang"]).aggregate([([], "count_all")]).to_pylist():
        judged[one["source"], one["lang"]] += one["count_all"]
    other = known.filter(known["lang_differs"])
    keys = ["source", "lang", "lang_detected"]
    for one in other.group_by(keys).aggregate([([], "count_all")]).to_pylist():
        differ[one["source"], one["lang"], one["lang_detected"]] += one["count_all"]
    for one in other.slice(0, EXAMPLES - len(examples)).to_pylist():
        examples.append((one["lang"], one["lang_detected"], one["text"]))


def _differences(judged: Counter[tuple[str, str]], differ: Counter[tuple[str, str, str]]) -> list[LanguageDifference]:
    of: dict[tuple[str, str], Counter[str]] = {key: Counter() for key in judged}
    for (source, stated, detected), count in differ.items():
        of[source, stated][detected] += count
    found = [
        LanguageDifference(source, stated, count, of[source, stated].total(), tuple(_ranked(of[source, stated])))
        for (source, stated), count in judged.items()
    ]
    return sorted(found, key=lambda one: (-one.differ, -one.judged, one.source, one.stated))


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _add_rules(table: pa.Table, presets: dict[str, Condition], removed: Counter[tuple[str, str, bool]]) -> None:
    """Count the rows, and the first rows of documents, that a condition removes."""
    documents = pc.sum(table["starts_document"]).as_py() or 0
    for name, condition in presets.items():
        tests: list[tuple[str, Clause | Condition]] = [(one.text, one) for one in condition.clauses]
        for rule, test in [*tests, (ALL, condition)]:
            left = test.filter(table)
            removed[name, rule, False] += table.num_rows - left.num_rows
            removed[name, rule, True] += documents - (pc.sum(left["starts_document"]).as_py() or 0)


def _add_repeats(table: pa.Table, found: Curation) -> None:
    counts = table["duplicate_count"].to_numpy()
    for at, (low, high) in enumerate(REPEATS):
        found.repeats[at] += int(((counts >= low) & (counts <= (high or np.inf))).sum())
    several = table.filter(pc.greater(table["duplicate_count"], 1)).group_by("sentence_hash")
    every = dict(found.repeated)
    for one in several.aggregate([("duplicate_count", "max"), ("text", "min")]).to_pylist():
        key, count, text = one["sentence_hash"], one["duplicate_count_max"], one["text_min"]
        every[key] = count, min(text, every[key][1]) if key in every else text
    found.repeated = dict(sorted(every.items(), key=lambda item: (-item[1][0], item[1][1]))[:EXAMPLES])
