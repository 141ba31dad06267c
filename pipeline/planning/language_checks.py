"""Checks the languages of inputs against those of the model, from the first records: documents in other languages are
set aside by a run, and that should be known before it starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeline.base.formats import counted
from pipeline.config.run_config import RunConfig
from pipeline.inputs import InputSettings, LangDetect, nearest_languages
from pipeline.inputs.documents import short
from pipeline.inputs.records import NOT_CERTAIN, UNKNOWN_LANGUAGE
from pipeline.inputs.samples import RecordSample
from pipeline.planning.section_checks import Problem
from stages.sonar.card import ModelCard, readable_cards

SHOWN_LANGUAGES = 5
EXPLAINED = 3  # languages for which a way on is given


def stated_language(one: InputSettings, keys: tuple[str, ...], card: ModelCard) -> Iterator[Problem]:
    """Check the language that is stated for all documents of an input.

    Args:
        one: the input.
        keys: where it is in the configuration.
        card: the model.

    Yields:
        A problem, if the model does not know it.
    """
    if isinstance(one.lang, str) and one.lang not in card.languages:
        yield (
            (*keys, "lang"),
            f"input {int(keys[1]) + 1}: lang is {one.lang!r}, which {card.name} does not know; "
            f"{nearest_languages(one.lang, card.languages)}; or {{column: NAME}}, where each document says its "
            "own, or detect, where its text does",
        )


def language_findings(
    config: RunConfig, one: InputSettings, keys: tuple[str, ...], first: RecordSample, card: ModelCard
) -> tuple[list[Problem], list[Problem]]:
    """Return what a run would set aside because of languages, by the first records of an input.

    Args:
        config: the configuration.
        one: the input.
        keys: where it is in the configuration.
        first: its first records.
        card: the model, which knows some languages.

    Returns:
        Problems, if no record of the input would become a document; and warnings, if some would not.
    """
    uncertain = len(first.refused.get(NOT_CERTAIN, ()))
    stops = not first.documents and (first.whole or isinstance(one.lang, str))  # else the rest may be known
    found: list[Problem] = []
    place = (*keys, "lang")
    name = f"input {int(keys[1]) + 1}"
    if first.unknown and not first.documents:
        none = f"none of {first.where()} has a" if first.records > 1 else f"{first.where()} has no"
        found.append(
            (
                place,
                f"{name}: {none} language that {card.name} knows: {_listed(first.unknown)}; "
                f"{'a run would set all of them' if stops else 'a run sets such documents'} aside "
                f"({UNKNOWN_LANGUAGE}). What can be done: {_ways(config, one, first, card)}",
            )
        )
    elif first.unknown:
        found.append(
            (
                place,
                f"{name}: {share_of(first.unknown.total(), first)} in languages that {card.name} does not know: "
                f"{_listed(first.unknown)}. A run sets such documents aside ({UNKNOWN_LANGUAGE}) and goes on. "
                f"What can be done: {_ways(config, one, first, card)}",
            )
        )
    if uncertain and isinstance(one.lang, LangDetect):
        threshold = one.lang.detect.threshold
        found.append(
            (
                place,
                f"{name}: {share_of(uncertain, first)} in a language that is not certain enough for "
                f"lang.detect.threshold {threshold}. A run sets such documents aside ({NOT_CERTAIN}). Lower the "
                "threshold, or state the language: lang: CODE, or {column: NAME}",
            )
        )
    return (found, []) if stops else ([], found)


def share_of(some: int, first: RecordSample) -> str:
    """Say how many of the records that were looked at are meant, and which share that is."""
    if first.records == 1:
        return f"{first.where()} is"
    share = some / first.records
    about = "all" if some == first.records else f"about {share:.0%}" if share >= 0.01 else "less than 1%"
    return f"{counted(some, 'record')} of {first.where()} ({about}) {'is' if some == 1 else 'are'}"


def _listed(unknown: Counter[str]) -> str:
    shown = ", ".join(
        f"{short(code)} ({counted(times, 'record')})" for code, times in unknown.most_common(SHOWN_LANGUAGES)
    )
    return shown + (f" and {len(unknown) - SHOWN_LANGUAGES} more" if len(unknown) > SHOWN_LANGUAGES else "")


def _ways(config: RunConfig, one: InputSettings, first: RecordSample, card: ModelCard) -> str:
    """Say what a person can do about languages that the model does not know."""
    from stages.language.identifier import SONAR_CODES  # of languages of two letters (de: deu_Latn)

    others = [other for other in readable_cards() if other.name != card.name]
    section = "encode" if config.encode else "segment"
    ways: dict[str, None] = {}
    for code, _ in first.unknown.most_common(EXPLAINED):
        meant = (code, *SONAR_CODES.get(code.lower(), ()))
        here = [known for known in meant if known in card.languages]
        there = next(((other, known) for other in others for known in meant if known in other.languages), None)
        if here:
            ways[f"for {short(code)} the code is {' or '.join(here)}"] = None
        elif there:
            ways[f"{there[1]} is known to {there[0].name} ({section}: {{model: {there[0].name}}})"] = None
        else:
            ways[f"for {short(code)}, {nearest_languages(code, card.languages)}"] = None
    out = "state the languages where they are detected wrongly" if isinstance(one.lang, LangDetect) else ""
    return "; ".join([*ways, *([out] if out else []), "or leave such documents out of the input"])
