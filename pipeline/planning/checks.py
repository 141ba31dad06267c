"""Finds all mistakes of a corpus.yaml that can be known before anything is computed, and reports them at once.

First the file alone (`read_config`), then what it names: models, languages, files, the first records of each input,
conditions, sections that will not get what they need, the output. `plan`, `run` and `doctor` all use these checks.
Cost: listing the inputs, which the run then need not repeat, and reading a few hundred records of each.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, starmap
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.base.formats import counted, number
from pipeline.config.load import read_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.runs import known_edges, packs
from pipeline.inputs import (
    Chunk,
    ChunkTable,
    InputError,
    InputSettings,
    LangColumn,
    order_chunks,
    plan_chunks,
    plan_inputs,
)
from pipeline.inputs.chunk import UNREADABLE
from pipeline.inputs.chunks import Edges
from pipeline.inputs.column_types import NOTHING, TEXT, ColumnType, common_type
from pipeline.inputs.documents import short
from pipeline.inputs.kept_values import as_array, found_type
from pipeline.inputs.listing import in_folder_names
from pipeline.inputs.packing import PACKABLE
from pipeline.inputs.records import NOT_CERTAIN, UNKNOWN_LANGUAGE
from pipeline.inputs.samples import RecordSample, sample
from pipeline.inputs.splits import split_column
from pipeline.planning.language_checks import language_findings, share_of, stated_language
from pipeline.planning.section_checks import Problem, near, section_problems
from pipeline.planning.sentence_counts import SentenceCounter
from pipeline.storage.remote import no_output, translate_errors
from pipeline.storage.store import Store
from stages.cards import CardError
from stages.lcm.card import load_lcm_card, shipped_lcm_cards
from stages.segment.sat.card import load_sat_card, shipped_sat_cards
from stages.sonar.card import ModelCard, load_card, shipped_cards
from stages.sonar.tokenizer import check_tokenizer

CARD = (".yaml", ".yml")
_OF_INPUT = re.compile(r": (unknown key )?input\b")  # mistakes in the section input
_NO_COLUMN = re.compile("there is no column|which no input keeps")
SHOWN_COLUMNS = 20
MORE = Callable[[RunConfig], None]  # raises `ConfigError`, `CardError` or `PipelineError`


@dataclass(frozen=True)
class Checked:
    """A configuration without known mistakes.

    `chunks`: those of its inputs, in the order of the run; `notices`: what is not a mistake but may surprise.
    """

    config: RunConfig
    chunks: ChunkTable
    notices: tuple[str, ...] = ()


def load_checked(path: str | Path, overrides: Sequence[str] = (), more: Sequence[MORE] = ()) -> Checked:
    """Load a configuration as `load_config` does, and make all other checks too.

    Args:
        path: a corpus.yaml.
        overrides: settings as `section.key=value`.
        more: further checks, for instance of a launcher.

    Returns:
        The configuration, the chunks of its inputs, and warnings.

    Raises:
        ConfigError: with a line for each mistake.
    """
    config, mistakes = read_config(path, overrides)
    chunks: ChunkTable | None = None
    notices: tuple[str, ...] = ()
    found: list[str] = []
    if config is not None:
        found, chunks, notices = problems_of(config, more)
    if mistakes or found or config is None or chunks is None:
        raise ConfigError("\n".join(sorted_mistakes(mistakes, found)))
    return Checked(config, chunks, notices)


def sorted_mistakes(mistakes: Collection[str], further: Collection[str]) -> list[str]:
    """Return each mistake once, in the order of the file.

    `further`: those that were found in the rest of the file, where defaults stand for the values of `mistakes`; what is
    said of such a default is left out, and so are columns that are lacking where an input is wrong.
    """
    wrong = {_subject(one) for one in mistakes}
    if any(_OF_INPUT.search(one) for one in mistakes):  # whose columns are not known then
        further = [one for one in further if "did you mean" in one or not _NO_COLUMN.search(one)]
    return sorted(dict.fromkeys([*mistakes, *(one for one in further if _subject(one) not in wrong)]), key=_line)


def _subject(mistake: str) -> str:
    """Return the place and the key that a mistake is about, `corpus.yaml:7: rvq.units`; else the whole of it."""
    about = re.match(r".*?: [\w.]+(?= is )", mistake)
    return about[0] if about else mistake


def problems_of(config: RunConfig, more: Sequence[MORE] = ()) -> tuple[list[str], ChunkTable | None, tuple[str, ...]]:
    """Return what is wrong, one line each; the chunks of the inputs if they can all be listed; and what may surprise,
    one line each.
    """
    cards, found = _models(config)
    chunks, samples, of_inputs, warned = _inputs(
        config, cards.get(config.segment.model) or _likely(config.segment.model)
    )
    found += of_inputs
    found += section_problems(config, chunks, samples)
    for check in more:
        try:
            check(config)
        except (PipelineError, CardError) as error:
            found.append((("launcher",), str(error)))
    warned += [*_of_two_kinds(config, samples), *_equal_ids(config, samples)]
    warned += _closed_files(config, chunks) if chunks else ()
    notices = tuple(f"{config.place(*keys)}: {text}" for keys, text in warned)
    return [f"{config.place(*keys)}: {text}" for keys, text in found], chunks, notices


def _line(mistake: str) -> tuple[int, int]:
    """Return the sort key of a mistake: its line; mistakes without a line come last."""
    at = re.match(r".*?\.ya?ml:(\d+): ", mistake)
    return (0, int(at[1])) if at else (1, 0)


def _models(config: RunConfig) -> tuple[dict[str, ModelCard], list[Problem]]:
    """Return cards by name, and problems with names of models."""
    cards: dict[str, ModelCard] = {}
    found: list[Problem] = []
    asked = [
        (name, stage.model)
        for name in ("encode", "segment", "autobleu", "fragility", "decoder")
        if (stage := getattr(config, name))
    ]
    for section, name in asked:
        if name in cards or any(told.startswith(f"{name} ") for _, told in found):
            continue
        try:
            cards[name] = load_card(name)
        except CardError as error:
            found.append(((section, "model"), f"{name} {_no_card(name, shipped_cards(), error)}"))
    encoder = cards.get(config.encode.model) if config.encode else None
    unlike: list[Problem] = []
    first_of = {name: section for section, name in reversed(asked)}
    for section, name in asked:
        if name in cards:
            try:
                if first_of[name] == section:
                    check_tokenizer(cards[name])
                if encoder:
                    cards[name].check_encoder(encoder, f"{section}.model")
            except CardError as error:
                unlike.append(((section, "model"), str(error)))
    others: list[tuple[tuple[str, str], str, Callable[[str], object], Collection[str]]] = []
    if config.segment.uses_sat:
        others.append((("segment", "sat"), config.segment.sat, load_sat_card, shipped_sat_cards()))
    if config.fragility:
        from stages.fragility.card import load_external_card, shipped_external_cards

        others.append(
            (("fragility", "external"), config.fragility.external, load_external_card, shipped_external_cards())
        )
    if config.language and config.language.identifier:
        from stages.language.card import load_identifier_card, shipped_identifier_cards

        others.append(
            (("language", "identifier"), config.language.identifier, load_identifier_card, shipped_identifier_cards())
        )
    if config.plans and config.plans.lm:
        from stages.causal_lm import load_language_card, shipped_language_cards

        others.append((("plans", "lm"), config.plans.lm, load_language_card, shipped_language_cards()))
    if config.train:
        others.append((("train", "model"), config.train.model, load_lcm_card, shipped_lcm_cards()))
    for keys, name, load, known in others:
        try:
            load(name)
        except CardError as error:
            found.append((keys, f"{name} {_no_card(name, known, error)}"))
    return cards, unlike + [(keys, f"{'.'.join(keys)} is {text}") for keys, text in found]


def _likely(name: str) -> ModelCard | None:
    """Return the card that was probably meant, to check languages with."""
    alike = difflib.get_close_matches(name, shipped_cards(), n=1, cutoff=0.5)
    return load_card(alike[0]) if alike else None


def _no_card(name: str, known: Collection[str], error: CardError) -> str:
    """Say that a card's name is unknown, or that the card cannot be used."""
    if name.endswith((*CARD, ".safetensors")):
        return f"– {error}"
    return f"– no model has that name; {near(name, known)}allowed: {', '.join(known)}, or the path of a card (.yaml)"


def _inputs(
    config: RunConfig, card: ModelCard | None
) -> tuple[ChunkTable | None, list[tuple[InputSettings, RecordSample]], list[Problem], list[Problem]]:
    """Return the chunks, if they can all be listed, the first records of the readable inputs, what is wrong, and what
    may surprise.
    """
    found: list[Problem] = []
    warned: list[Problem] = []
    samples: list[tuple[InputSettings, RecordSample]] = []
    by_input: dict[str, Sequence[Chunk]] = {}
    chunks: ChunkTable | None = None
    if not config.input:  # it is what is wrong, as the check of the file said
        return chunks, samples, found, warned
    try:
        planned = plan_inputs(config.input, config.chunk_bytes, *_rules(config))
        chunks = order_chunks(planned, seed=config.seed)
        names = planned.table["input"].combine_chunks().dictionary_decode()
        by_input = {one.input_name: _head(planned, names.index(one.input_name).as_py()) for one in config.input}
    except (PipelineError, OSError) as error:
        together = error
        for index, one in enumerate(config.input):
            try:
                with translate_errors(one.path):
                    by_input[one.input_name] = plan_chunks(one, config.chunk_bytes)
            except (PipelineError, OSError) as error:
                found.append((("input", str(index), "path"), _plain(error, index, one)))
        if not found:
            named = [index for index, one in enumerate(config.input) if one.input_name == getattr(together, "name", "")]
            found.append((("input", str(named[0]), "path") if named else ("input",), str(together)))
    count = SentenceCounter(config.segment).sentences if config.rvq or config.predictor else None
    for index, one in enumerate(config.input):
        keys = ("input", str(index))
        found += stated_language(one, keys, card) if card else ()
        if one.input_name in by_input:
            try:
                with translate_errors(one.path):
                    first = sample(
                        by_input[one.input_name],
                        one,
                        config.split,
                        card.languages if card else None,
                        count=count,
                    )
            except (PipelineError, OSError) as error:
                found.append(((*keys, "path"), _plain(error, index, one)))
                continue
            samples.append((one, first))
            of_columns = list(_columns(config, one, keys, first))
            found += [*of_columns, *_misfits(one, keys, first)]
            if not of_columns:
                stops = first.whole and not first.documents
                (found if stops else warned).extend(_set_aside(keys, first))
            if card:
                problems, warnings = language_findings(config, one, keys, first, card)
                found, warned = [*found, *problems], [*warned, *warnings]
    return chunks, samples, found, warned


def _set_aside(keys: tuple[str, ...], first: RecordSample) -> Iterator[Problem]:
    """Yield why a run would set some of the first records aside; languages have a check of their own.

    It is a problem if none of them would become a document, otherwise a warning; either lists all reasons.
    """
    others = {
        reason: errors for reason, errors in first.refused.items() if reason not in (UNKNOWN_LANGUAGE, NOT_CERTAIN)
    }
    if others and not first.documents:
        reasons = _reasons(first.refused)
        none = f"none of {first.where()} becomes" if first.records > 1 else f"{first.where()} does not become"
        yield (
            keys,
            f"{_numbered(keys)}: {none} a document; a run would set aside {reasons}. Mend the input, name other "
            "columns in `text`, `id` and `lang`, or leave this input out",
        )
    elif others:
        which = f": {_reasons(others)}" if len(others) > 1 else " " + "".join(starmap(_reason, others.items()))
        some = share_of(sum(map(len, others.values())), first)
        yield keys, f"{_numbered(keys)}: {some} set aside by a run{which}"


def _reasons(refused: Mapping[str, Sequence[str]]) -> str:
    """List reasons for setting records aside. `refused`: reason → errors."""
    return "; ".join(f"{counted(len(errors), 'record')} {_reason(one, errors)}" for one, errors in refused.items())


def _reason(reason: str, errors: Sequence[str]) -> str:
    return f"({reason}), with this error for the first: {errors[0]}"


def _closed_files(config: RunConfig, chunks: ChunkTable) -> Iterator[Problem]:
    """Yield how many files of an input cannot be opened, and why for the first of them."""
    closed = chunks.table.filter(pc.equal(chunks.table["format"], UNREADABLE))
    for index, one in enumerate(config.input):
        mine = closed.filter(pc.equal(closed["input"], one.input_name)).select(["path", "stamp"]).to_pylist()
        if mine:
            first = min(mine, key=lambda file: file["path"])
            keys, them = ("input", str(index)), "it" if len(mine) == 1 else "them"
            yield (
                (*keys, "path"),
                f"{_numbered(keys)}: {counted(len(mine), 'file')} cannot be read, and a run sets {them} aside; the "
                f"first is {first['path']}: {first['stamp']}",
            )


def _misfits(one: InputSettings, keys: tuple[str, ...], first: RecordSample) -> Iterator[Problem]:
    """Yield declared types that no value of the sample fits."""
    for name, kind in one.declared_types.items():
        values = [value for value in first.kept.get(name, ()) if value is not None]
        _, misfits = as_array(values, kind, name)
        if values and len(misfits) >= len(values) and all(path == name for path, _ in misfits):
            yield (
                (*keys, "keep", name),
                f"{_numbered(keys)}: keep says that {name} is {kind}, and no value in {first.where()} of {one.path} "
                f"fits, such as {short(values[0])}; they are {found_type(values)}",
            )


def _equal_ids(config: RunConfig, samples: Sequence[tuple[InputSettings, RecordSample]]) -> Iterator[Problem]:
    """Yield what becomes of documents whose ids occur more than once among the first records."""
    of_files = sum((first.ids for _, first in samples), Counter[tuple[str, str]]())
    seen = Counter[str]()
    for (_, doc_id), times in of_files.items():
        seen[doc_id] += times
    (doc_id, times), *_ = seen.most_common(1) or [("", 0)]
    if times < 2 or config.duplicate_ids == "keep-all":
        return
    within = any(times > 1 for (_, one), times in of_files.items() if one == doc_id)
    with_id = next((str(number) for number, one in enumerate(config.input) if one.id), None)
    other = "name another column as id" if with_id else "give files of the same path in two inputs other names"
    becomes = {
        "error": "the run will end before it segments. Give every document its own id, or set duplicate_ids to "
        "keep-first or keep-all",
        "keep-first": "the first document of each id is kept; later ones are set aside",
        None: f"{'later ones in the same file are set aside' if within else 'all of them are kept'}. Set duplicate_ids "
        f"(error, keep-first or keep-all) to say what is meant, or {other}",
    }[config.duplicate_ids]
    key = ("duplicate_ids",) if config.duplicate_ids or with_id is None else ("input", with_id, "id")
    yield (
        key,
        f"the first {number(seen.total())} documents have only {counted(len(seen), 'id')}; {number(times)} of them "
        f"have {short(doc_id)}: {becomes}",
    )


def _of_two_kinds(config: RunConfig, samples: Sequence[tuple[InputSettings, RecordSample]]) -> Iterator[Problem]:
    """Yield kept columns, and fields and elements of them, that become text because some values are, with an example of
    each kind.
    """
    declared = {name for one in config.input for name in config.kept_types(one)}
    for name in config.keep_columns():
        if name in declared:
            continue
        number = next(index for index, one in enumerate(config.input) if name in one.keep)
        whole = _KeptPlace(
            name,
            {kind: place for _, first in samples for kind, place in first.kinds.get(name, {}).items()},
            [value for _, first in samples for value in first.kept.get(name, ())],
        )
        for place in (whole, *whole.inside()):
            if problem := place.problem(name):
                yield ("input", str(number), "keep"), problem


@dataclass(frozen=True)
class _KeptPlace:
    """A kept column, or a field or the elements of one: its kinds with the file and an example of each, and its values.

    `declare` makes the type of the column from that of the place.
    """

    path: str
    kinds: Mapping[ColumnType, tuple[str, Any]]
    values: Sequence[Any]
    declare: Callable[[ColumnType], ColumnType] = lambda kind: kind

    def inside(self) -> Iterator[_KeptPlace]:
        """Yield the elements of lists, or the fields of structs, if all values are such."""
        common = common_type(self.kinds)
        if common.element is not None:
            kinds = {kind.element: place for kind, place in self.kinds.items() if kind.element is not None}
            elements = [one for value in self.values if isinstance(value, list | tuple) for one in value]
            yield _KeptPlace(f"what {self.path} holds", kinds, elements, ColumnType.list_of)
        for name, _ in common.fields:
            kinds = {
                dict(kind.fields)[name]: (file, value and value.get(name))
                for kind, (file, value) in self.kinds.items()
                if name in dict(kind.fields)
            }
            values = [value.get(name) for value in self.values if isinstance(value, dict)]
            yield _KeptPlace(f"{self.path}.{name}", kinds, values, partial(_with_field, common, name))

    def problem(self, column: str) -> str | None:
        """Say that this becomes text, and how to declare the column; None if it does not."""
        kinds = [kind for kind in self.kinds if kind != NOTHING]
        other = next((kind for kind in kinds if kind != TEXT), None)
        if other is None or common_type(kinds) != TEXT:
            return None
        pair = (other, TEXT) if TEXT in kinds else _without_common(kinds)
        shown = [(kind, *self.kinds[kind]) for kind in pair]
        ways = " and ".join(f"{_called(kind, value)} in {file} ({short(value)})" for kind, file, value in shown)
        values = [value for value in self.values if value is not None]
        fitting = next((kind for kind in (pair[0], ColumnType("uint64")) if _holds_integers(kind, values)), None)
        meant = "where values that do not fit become null and are counted, or "
        meant = f"{{{column}: {self.declare(fitting)}}}, {meant}" if fitting else ""
        return (
            f"keep: {self.path} is {ways}, so all of {self.path} is kept as text, and conditions compare it as text; "
            f"declare what is meant: keep: {meant}{{{column}: {self.declare(TEXT)}}}"
        )


def _with_field(struct: ColumnType, name: str, kind: ColumnType) -> ColumnType:
    return ColumnType.struct_of(dict(struct.fields) | {name: kind})


def _without_common(kinds: Sequence[ColumnType]) -> tuple[ColumnType, ColumnType]:
    """Return two of the kinds that only text holds; the first and the last where it takes more than two."""
    return next((pair for pair in combinations(kinds, 2) if common_type(pair) == TEXT), (kinds[0], kinds[-1]))


def _called(kind: ColumnType, value: Any) -> str:
    """Name the type of a value; a whole number that is kept as text is none."""
    return "beyond int64" if kind == TEXT and isinstance(value, int) else str(kind)


def _holds_integers(kind: ColumnType, values: Sequence[Any]) -> bool:
    """Return whether a type holds all whole numbers of these values, if some are beyond int64; others may be lost."""
    whole = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return all(found_type([value]) != TEXT for value in whole) or not as_array(whole, kind, "")[1]


def _numbered(keys: tuple[str, ...]) -> str:
    return f"input {int(keys[1]) + 1}"


def _rules(config: RunConfig) -> tuple[Collection[str], Edges]:
    """Return the formats whose small files share chunks in this corpus, and how it cut compressed files."""
    with contextlib.suppress(PipelineError, OSError):  # problems of the output are reported elsewhere
        if not no_output(config.output):
            store = Store(config.output)
            return packs(store), known_edges(store, config.chunk_bytes)
    return PACKABLE, {}


def _head(planned: ChunkTable, row: int) -> Sequence[Chunk]:
    """Return the chunks of the input that begins in this row: all of them, or the first thousands."""
    name = planned[row].input
    return [one for one in planned[row : row + 4096] if one.input == name]


def _plain(error: Exception, index: int, one: InputSettings) -> str:
    """Return an error that names the path as written, not the name that was made from it."""
    what = f"input {index + 1}"
    if isinstance(error, InputError):
        return str(error).replace(f"input {one.input_name}:", f"{what}:")
    return f"{what}: {error}"


def _columns(config: RunConfig, one: InputSettings, keys: tuple[str, ...], first: RecordSample) -> Iterator[Problem]:
    """Yield problems with columns that no record of the sample has."""
    wanted = [((*keys, "text"), "text", one.text)]
    if one.id:
        wanted.append(((*keys, "id"), "id", one.id))
    if isinstance(one.lang, LangColumn):
        wanted.append(((*keys, "lang", "column"), "lang.column", one.lang.column))
    shared = split_column(config.split)
    if shared:
        wanted.append((("split", "by"), "split.by", shared))
    wanted += [((*keys, "keep", column), "keep", column) for column in one.keep]
    there = [name for name, _ in first.columns.most_common(SHOWN_COLUMNS)]
    for place, key, column in wanted:
        if not first.columns or column in first.columns:
            continue
        files = [file for file in first.files if file.endswith(".parquet")]
        alike = f"{folders}; " if (folders := in_folder_names(files, column)) else near(column, there)
        of = "" if key == "split.by" else f"input {int(keys[1]) + 1}: "
        if key == "keep" and not alike and (first.unread or not first.whole):
            continue  # it may be there later, or in a record that could not be read
        yield (
            place,
            f"{of}{key} is {column!r}, but {first.where()} of {one.path} "
            f"{'has' if first.records == 1 else 'have'} no such column; {alike}columns: {', '.join(there)}",
        )
