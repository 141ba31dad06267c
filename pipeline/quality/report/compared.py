"""Compares a corpus with another one, or with what an earlier run made of it: settings, and the measures of both.

Measures are those of `report.expect` (`pipeline/config/report.py`), of about as many rows of each. An earlier run is
read by the view that it published; results that `pipeline gc` has deleted since are missing, and the section says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.formats import plain
from pipeline.config.report import MEASURES
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_run, read_config
from pipeline.corpus.view import View
from pipeline.quality.expectations import Groups, format_measure, measure_rows, measure_whole
from pipeline.quality.report.page import Block, Cell, Note, Said, Section, Table, counted, number
from pipeline.storage import layout

OF_ONE_RUN = ("selected", "drifted")  # measures that only the newest run has
BY_LANGUAGE = ("tokens_mean", "autobleu_mean", "language_mismatch")
NOT_COMPARED = ("output", "launcher", "report")  # settings that say where and how, not what
MOST_SETTINGS, MOST_LANGUAGES, LONGEST = 60, 40, 120
SAME = 1e-9  # relative: sums of the same rows


def run_of(corpus: Corpus, name: str) -> str | None:
    """Return the folder of a run of this corpus by its name, or the beginning of that; None if there is none.

    Raises `ConfigError` if several begin with it.
    """
    begin = name.removeprefix(f"{layout.RUNS}/")
    found = [one for one in corpus.store.folders(layout.RUNS) if begin and one.startswith(begin)]
    if len(found) > 1:
        raise ConfigError(
            f"--compare {name}: {len(found)} runs begin with that: {', '.join(found[:5])}; write more of it"
        )
    return f"{layout.RUNS}/{found[0]}" if found else None


def compare_corpora(corpus: Corpus, place: str, max_rows: int) -> Section:
    """Compare a corpus with another one, or with an earlier run.

    Args:
        corpus: the corpus.
        place: a folder or URL of another corpus, or a run of this one.
        max_rows: read only about this many rows of each.

    Returns:
        A section of the report.

    Raises:
        ConfigError: if the text is the beginning of the names of several runs.
        CorpusError: if there is no such corpus or run, or nothing is left of it.
    """
    run = run_of(corpus, place)
    try:
        other = Corpus(corpus.url, View.read(corpus.store, run), corpus.store) if run else Corpus(place)
    except CorpusError as error:
        if run:
            raise
        runs = corpus.store.folders(layout.RUNS)
        raise CorpusError(f"--compare {place}: {error}; runs of {corpus.url} are: {', '.join(runs[-5:])}") from None
    if not other.parts:
        raise CorpusError(f"--compare {place}: nothing of it is left, or done yet; see: pipeline status {other.url}")
    settings = _settings(
        read_config(corpus.store, newest_run(corpus.store)), read_config(other.store, run or newest_run(other.store))
    )
    ours, theirs = _measured(corpus, max_rows), _measured(other, max_rows)
    name = f"run {run.partition('/')[2]}" if run else other.view.name
    blocks: list[Block] = [*_remarks(corpus, other, max_rows), _measures(ours, theirs), _languages(ours, theirs)]
    blocks.append(_settings_table(settings))
    lead = f"With {plain(name, 200)} in {plain(other.url, 200)}: what is different, by settings and by numbers."
    return Section("compared", "Comparison", lead, blocks)


def _remarks(corpus: Corpus, other: Corpus, max_rows: int) -> Iterator[Note]:
    for one, whose in ((corpus, "this corpus"), (other, "the other")):
        if one.rows > max_rows:
            yield Note(
                f"Measures of sentences are of about {number(max_rows)} of {number(one.rows)} of {whose}.", "plain"
            )
        if one.hides_documents:
            yield Note(f"Documents of {whose} were purged since its last run: what that counted is not shown.", "look")
        waiting = int(one.chunks.total.get("segment/left", 0))
        if waiting:
            yield Note(f"{counted(waiting, 'chunk')} of {whose} have no result, or it was deleted since.", "look")


def _settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (key, here, there) of the settings that differ; a section that one of them lacks is one setting."""
    lacking = {key for key in {*ours, *theirs} if (ours.get(key) is None) != (theirs.get(key) is None)}
    one, other = ({**dict(_flat(_without(of, lacking))), **_whole(of, lacking)} for of in (ours, theirs))
    keys = [key for key in dict.fromkeys((*one, *other)) if key.partition(".")[0] not in NOT_COMPARED]
    return [(key, one.get(key, "–"), other.get(key, "–")) for key in keys if one.get(key) != other.get(key)]


def _without(settings: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: one for key, one in settings.items() if key not in keys}


def _whole(settings: Mapping[str, Any], keys: set[str]) -> dict[str, str]:
    found = {key: settings[key] for key in sorted(keys) if settings.get(key) is not None}
    return {key: json.dumps(one, ensure_ascii=False, default=str) for key, one in found.items()}


def _flat(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from _flat(one, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for place, one in enumerate(value):
            yield from _flat(one, f"{where}.{place}")
    elif value is not None:
        yield where, json.dumps(value, ensure_ascii=False, default=str)


def _settings_table(settings: list[tuple[str, str, str]]) -> Block:
    if not settings:
        return Note("All settings are the same.", "good")
    shown = settings[:MOST_SETTINGS]
    cells: list[list[Cell]] = [[key, *(Said(plain(one, LONGEST)) for one in values)] for key, *values in shown]
    more = f"; {len(settings) - len(shown)} more are left out" if len(settings) > len(shown) else ""
    return Table(("setting", "here", "there"), cells, f"Settings that differ{more}", text=3)


MeasuredGroups = dict[tuple[str, str], Groups | str]


def _measured(corpus: Corpus, max_rows: int) -> MeasuredGroups:
    asked = [(name, "all") for name in MEASURES] + [(name, "lang") for name in BY_LANGUAGE]
    whole = [name for name, one in MEASURES.items() if not one.of_rows and name not in OF_ONE_RUN]
    found = measure_rows(corpus, asked, max_rows)
    return found | {(name, "all"): one for name, one in measure_whole(corpus, whole, max_rows).items()}


def _value(found: MeasuredGroups, name: str, kind: str = "all", group: str = "all") -> float | None:
    groups = found.get((name, kind), "")
    return groups[group][0] if not isinstance(groups, str) and group in groups else None


def _difference(name: str, ours: float | None, theirs: float | None) -> str:
    """Return the difference with its sign: of shares in points, `+0.5 points`."""
    if ours is None or theirs is None:
        return "–"
    less = ours - theirs
    if abs(less) <= SAME * max(abs(ours), abs(theirs)):
        return "same"
    unit = MEASURES[name].unit
    text = f"{100 * less:+.3g} points" if unit == "share" else f"{less:+.4g}" if unit == "number" else f"{less:+,.0f}"
    return text.replace("-", "−").replace(",", "\u202f")


def _measures(ours: MeasuredGroups, theirs: MeasuredGroups) -> Table:
    cells: list[list[Cell]] = []
    for name, measure in MEASURES.items():
        both = _value(ours, name), _value(theirs, name)
        if both != (None, None):
            cells.append([name, measure.about, *(format_measure(name, one) for one in both), _difference(name, *both)])
    return Table(("measure", "what it is", "here", "there", "difference"), cells, "Measures", text=2)


def _languages(ours: MeasuredGroups, theirs: MeasuredGroups) -> Table:
    counts = [
        {lang: rows for lang, (_, rows) in groups.items()} if not isinstance(groups, str) else {}
        for groups in (one.get(("tokens_mean", "lang"), "") for one in (ours, theirs))
    ]
    langs = sorted(counts[0] | counts[1], key=lambda lang: (-max(one.get(lang, 0) for one in counts), lang))
    cells: list[list[Cell]] = []
    for lang in langs[:MOST_LANGUAGES]:
        line: list[Cell] = [lang, *(number(one.get(lang, 0)) for one in counts)]
        for name in BY_LANGUAGE[1:]:
            both = [_value(one, name, "lang", lang) for one in (ours, theirs)]
            line += [*(format_measure(name, one) for one in both), _difference(name, *both)]
        cells.append(line)
    names = [name.removesuffix("_mean").replace("_", " ").replace("autobleu", "AutoBLEU") for name in BY_LANGUAGE[1:]]
    columns = [column for name in names for column in (f"{name} here", "there", "difference")]
    head = ("language", "sentences here", "there", *columns)
    return Table(head, cells, "By language")
