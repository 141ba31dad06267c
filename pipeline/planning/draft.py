"""Drafts a first corpus.yaml for someone's files: what `pipeline init DATA…` finds by looking at them, with comments.

A few hundred records of each kind of file in a folder are read. Columns are recognised by their names and content,
languages by the column that has codes, or else by the texts. The resulting file passes every check and runs.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from pipeline.base.errors import ConfigError, PipelineError, visible
from pipeline.base.formats import counted, size
from pipeline.inputs import InputFile, InputSettings, SplitSettings, count_documents, list_files
from pipeline.inputs.chunk import UNREADABLE
from pipeline.inputs.chunks import whole_file
from pipeline.inputs.listing import COMPRESSIONS, FORMATS, table_hint
from pipeline.inputs.samples import RecordSample, sample
from pipeline.storage.remote import is_remote
from stages.language.identifier import identifier
from stages.sonar.card import load_card

SMALL_MODEL, LARGE_MODEL = "sonar-tiny", "sonar"
TEXT_NAMES = ("text", "content", "body", "document", "article", "raw_content", "markdown", "passage")
ID_NAMES = ("id", "doc_id", "document_id", "_id", "uuid", "guid", "key", "url", "uri")
LANG_NAMES = ("lang", "language", "lang_code", "language_code")
ONE_LANGUAGE = 0.95  # with at least this share of texts in one language, all are assumed to be in it
USUAL = 0.9  # with at least this share of ids or language codes, a column is assumed to hold them
CERTAIN = 0.5  # confidence of the identification
FEW_DOCUMENTS = 1000  # for fewer documents, more than a hundredth is held out, so that it is not empty
SHORT = 200  # characters of a value that is metadata, not text
COUNTED_FILES, COUNTED_BYTES = 200, 32 << 20  # in which documents are counted
PACKED = 3  # bytes of text per byte of a compressed file
KEPT = 6  # columns suggested as metadata


@dataclass
class Draft:
    """One entry of `input:`. `lang`: a code, {column: NAME} or detect; `langs`: languages of the sampled texts."""

    path: str
    files: int
    bytes: int
    text: str | None = None
    id: str | None = None
    lang: str | dict[str, str] = "detect"
    keep: list[str] = field(default_factory=list)
    langs: Counter[str] = field(default_factory=Counter)
    documents: float = 0.0  # in all
    counted: bool = True  # or estimated


@dataclass
class _Group:
    """Files of one kind below one place, and the pattern that finds them."""

    pattern: str
    files: list[InputFile]

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.files)


def draft(data: Sequence[str], folder: Path, name: str | None, output: str | None) -> str:
    """Return the text of a corpus.yaml for the given data.

    Args:
        data: files, folders or patterns.
        folder: the folder that corpus.yaml will be in; paths are written relative to it.
        name: the name of the corpus; None to derive it from the data.
        output: the folder of the corpus; None for `runs/NAME`.

    Returns:
        YAML with comments.

    Raises:
        ConfigError: if nothing can be read as documents.
    """
    found, others, empty = [], [], []
    for place in data:
        groups, unknown = _groups(place)
        others += unknown
        filled = [group for group in groups if group.bytes]
        if filled:  # if none is, `_entry` says so
            empty += [group.pattern for group in groups if not group.bytes]
        found += [_entry(group) for group in filled or groups]
    if not found:
        known = " ".join(FORMATS)
        tables = [one for one in others if one.lower().endswith((".csv", ".tsv"))]
        convert = (
            f"; of {visible(tables[0])} pandas makes a file that is read: "
            "pandas.read_csv(FILE, sep=…, dtype=str, keep_default_na=False).to_parquet('documents.parquet')"
            if tables
            else ""
        )
        raise ConfigError(
            f"{', '.join(data)}: no file of a known format; known extensions are {known}, each with "
            f"{' '.join(COMPRESSIONS)}{convert}"
        )
    name = name or _name(data[0])
    return _written(found, others, empty, folder, name, output or f"runs/{name}")


def _groups(place: str) -> tuple[list[_Group], list[str]]:
    """Return the files below a place by extension, and the names of those that are not documents."""
    if is_remote(place) or (any(sign in place for sign in "*?[") and not os.path.lexists(Path(place).expanduser())):
        files = list_files(InputSettings(path=_absolute(place), lang="und"))
        return [_Group(place, [one for one in files if one.format != UNREADABLE])], []
    path = Path(place).expanduser()
    if path.is_file():
        kind = _kind(path.name)
        return ([_Group(place, _listed(place))], []) if kind else ([], [path.name])
    if not path.is_dir():
        raise ConfigError(f"{place} does not exist; give files, folders, or a pattern in quotes ('data/*.jsonl')")
    kinds: dict[str, bool] = {}  # extension → whether some lie in folders below
    unknown = []
    for below, folders, names in os.walk(path):
        folders[:] = sorted(one for one in folders if one[:1] not in "._")
        for file in sorted(names):
            kind = _kind(file)
            if kind and file[:1] not in "._":
                kinds[kind] = kinds.get(kind, False) or Path(below) != path
            elif file[:1] not in "._":
                unknown.append(file)
    groups = []
    for kind, deep in sorted(kinds.items()):
        pattern = f"{place.rstrip('/')}/{'**/' * deep}*{kind}"
        groups.append(_Group(pattern, _listed(pattern)))
    return groups, unknown


def _listed(place: str) -> list[InputFile]:
    return [one for one in list_files(InputSettings(path=_absolute(place), lang="und")) if one.format != UNREADABLE]


def _absolute(place: str) -> str:
    return place if is_remote(place) else str(Path(place).expanduser().absolute())


def _kind(name: str) -> str:
    """Return extension with compression, `.jsonl.gz`; empty for files that are not read."""
    path = Path(name)
    last, inner = path.suffix, Path(path.stem).suffix if path.suffix.lower() in COMPRESSIONS else ""
    return f"{inner}{last}" if (inner or last).lower() in FORMATS else ""


def _entry(group: _Group) -> Draft:
    """Describe one kind of files, from a sample of them."""
    found = Draft(group.pattern, len(group.files), group.bytes)
    if not found.bytes:
        what = "is empty" if found.files == 1 else f"matches {found.files} files, which are all empty"
        raise ConfigError(f"{group.pattern} {what} (0 bytes); give files that hold documents, or leave this out")
    settings = InputSettings(path=_absolute(group.pattern), lang="und")
    seen = sample([whole_file(settings, one) for one in group.files], settings, SplitSettings(), keep_values=True)
    for column in [one for one in seen.columns if not _is_text(one) or visible(one) != one]:
        del seen.columns[column]  # a name that should not be written to a file of settings
    if all(one.format == "text" for one in group.files):
        found.documents = len(group.files)
        texts = _strings(seen, "text")
    else:
        found.text = _text_column(seen)
        if found.text is None:
            raise ConfigError(f"{group.pattern}: {_no_texts(seen)}, or leave these files out")
        texts = _strings(seen, found.text)
        found.id = _id_column(seen, found.text)
        lang = _lang_column(seen)
        found.keep = _metadata(seen, {found.text, found.id, lang})
        found.documents, found.counted = (len(seen.values), True) if seen.whole else _documents(group, seen, settings)
        if lang:
            found.lang = {"column": lang}
            found.langs = Counter(one for one in _strings(seen, lang) if one in _codes())
            return found
    found.langs = _languages(texts)
    most = found.langs.most_common(1)
    if most and most[0][1] >= ONE_LANGUAGE * len(texts):
        found.lang = most[0][0]
    return found


def _documents(group: _Group, seen: RecordSample, settings: InputSettings) -> tuple[float, bool]:
    """Return the number of documents, and whether all were counted.

    Otherwise it is estimated: from those that were counted, in files from the first to the last and no more than
    `COUNTED_BYTES`; where a compressed file is larger, from the mean size of those in the sample, written as JSON.
    """
    size = sum(one.size for one in group.files)
    documents = read = 0
    files = group.files[:: -(-len(group.files) // COUNTED_FILES)]
    for file in files:
        chunk = whole_file(settings, file)
        within = file.format == "parquet" or file.size <= COUNTED_BYTES - read
        if not within and (file.compression or read):
            break
        chunk = chunk if within else replace(chunk, end=COUNTED_BYTES, bytes=COUNTED_BYTES)
        documents, read = documents + count_documents(chunk).documents, read + chunk.bytes
    if documents:
        return documents * size / read, read == size
    sizes = [len(json.dumps(one, ensure_ascii=False, default=str).encode(errors="replace")) for one in seen.values]
    packed = any(one.compression or one.format == "parquet" for one in group.files)
    return size * (PACKED if packed else 1) * len(sizes) / max(1, sum(sizes)), False


def _strings(seen: RecordSample, column: str) -> list[str]:
    """Return the column's values that are texts; others would be quarantined on reading."""
    return [value for one in seen.values if isinstance(value := one.get(column), str) and _is_text(value)]


def _is_text(value: str) -> bool:
    """Return whether a value can be written: lone surrogates cannot."""
    return not re.search("[\ud800-\udfff]", value)


def _codes() -> frozenset[str]:
    """Return SONAR's languages."""
    return frozenset(load_card(LARGE_MODEL).languages)


def _text_column(seen: RecordSample) -> str | None:
    """Return the column of strings with a usual name, or else the one with the longest strings that may be texts.

    Dates, codes and addresses may not: they are ASCII without a space.
    """
    usable = {column: texts for column in seen.columns if (texts := _strings(seen, column))}
    named = [column for name in TEXT_NAMES for column in usable if column.lower() == name]
    texts_only = [column for column in usable if not all(one.isascii() and " " not in one for one in usable[column])]
    longest = sorted(texts_only, key=lambda column: -sum(map(len, usable[column])))
    return next(iter(named or longest), None)


def _id_column(seen: RecordSample, text: str) -> str | None:
    """Return a column with a usual name whose values are distinct; a few bad values are quarantined."""
    for name in ID_NAMES:
        for column in seen.columns:
            if column.lower() != name or column == text:
                continue
            values = [one.get(column) for one in seen.values]
            plain = [one for one in values if isinstance(one, str | int) and not isinstance(one, bool) and one != ""]
            if len(plain) >= USUAL * len(values) and len(set(map(str, plain))) == len(plain):
                return column
    return None


def _lang_column(seen: RecordSample) -> str | None:
    """Return a column of SONAR codes, preferably one with a usual name; a few bad values are quarantined."""
    known = _codes()
    for column in sorted(seen.columns, key=lambda one: one.lower() not in LANG_NAMES):
        texts = _strings(seen, column)
        if texts and sum(one in known for one in texts) >= USUAL * len(texts):
            return column
    return None


def _no_texts(seen: RecordSample) -> str:
    """Say why no column can be the text, and what to do."""
    lines = "where one line is one document"
    if not seen.columns and seen.refused:
        return f"no record becomes a document, the first because of this: {next(iter(seen.refused.values()))[0]}"
    for column in seen.columns:
        values = [one.get(column) for one in seen.values]
        if all(isinstance(one, list) and one and isinstance(one[0], dict) for one in values):
            path = f".{column}[]" if column.isidentifier() and column.isascii() else f'.["{column}"][]'
            return f"documents lie in a list, {column}; make a file {lines}: jq -c '{path}' FILE"
    there = ", ".join(seen.columns) or "none"
    return f"no column holds texts; columns: {there}; write the text into a column of its own if it lies in an object"


def _metadata(seen: RecordSample, used: Collection[str | None]) -> list[str]:
    """Return columns of short values, which are worth keeping."""
    from pipeline.storage import layout

    def short(value: Any) -> bool:
        if isinstance(value, list):
            return len(value) <= SHORT and all(one is None or short(one) for one in value)
        return isinstance(value, int | float | date) or (isinstance(value, str) and len(value) <= SHORT)

    free = [one for one in seen.columns if one not in used and one not in layout.RESERVED_COLUMNS]
    return [
        one
        for one in free
        if any(short(v.get(one)) for v in seen.values) and all(v.get(one) is None or short(v[one]) for v in seen.values)
    ][:KEPT]


def _languages(texts: Sequence[str]) -> Counter[str]:
    """Count the languages of texts that are identified with confidence."""
    identify = identifier().identify
    found = (identify(text) for text in texts)
    return Counter(one.lang for one in found if one and one.lang and one.confidence >= CERTAIN)


def _name(place: str) -> str:
    """Name a corpus after the last word of a place."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", re.split(r"[*?\[]", place)[0]) if word]
    known = {one.strip(".") for one in (*FORMATS, *COMPRESSIONS)}
    return next((word for word in reversed(words) if word.lower() not in known), "corpus")


def _shares(found: Sequence[Draft]) -> Counter[str]:
    """Return the share of each language in the documents that told theirs, weighted by the sizes of the inputs."""
    weights = Counter[str]()
    for one in found:
        for lang, count in one.langs.items():
            weights[lang] += one.documents * count / one.langs.total()  # type: ignore[assignment]  # weights need not be whole
    total = weights.total() or 1
    return Counter({lang: weight / total for lang, weight in weights.items()})


def _written(
    found: Sequence[Draft], others: Sequence[str], empty: Sequence[str], folder: Path, name: str, output: str
) -> str:
    langs = _shares(found)
    small = set(load_card(SMALL_MODEL).languages)
    model = SMALL_MODEL if langs and small.issuperset(langs) else LARGE_MODEL
    documents = sum(one.documents for one in found)
    about = "" if all(one.counted for one in found) else "About "
    held_out = 0.1 if documents < FEW_DOCUMENTS else 0.01
    told = ", ".join(f"{lang} {share:.0%}" for lang, share in langs.most_common(6))
    lines = [
        "# Made by `pipeline init`, which looked at the first records. Check it, then:",
        "#   pipeline plan corpus.yaml      what a run would do",
        "#   pipeline run corpus.yaml       make the corpus; run it again after any change",
        f"name: {_scalar(name)}",
        f"output: {_scalar(output)}     # where the corpus goes; relative to this file, or a URL such as s3://…",
        "",
        "input:",
    ]
    for one in found:
        lines += _input_lines(one, folder)
    if empty:
        lines.append(f"# Not read, because all of these files are empty: {', '.join(map(visible, empty))}.")
    if others:
        kinds = Counter(Path(file).suffix or file for file in others)
        named = ", ".join(f"{counted(count, 'file')} {visible(kind)}" for kind, count in kinds.most_common(5))
        lines.append(f"# Not read, because their format is not known: {named}.")
        lines += [f"# {hint}." for hint in {table_hint(file.lower()): None for file in others} if hint]
    lines += [
        "",
        f"# {about}{counted(documents, 'document')}: {held_out:.0%} of them for validation and test each.",
        f"split: {{validation: {held_out}, test: {held_out}, by: text}}     # copies of a text stay together",
        "segment: {method: sat-capped}     # documents → sentences, none over 200 characters or 128 tokens",
        *_model_lines(model, told, langs, small),
        "",
        "# What to uncomment next:",
        "# language: {}                    # the language of each sentence, against the stated one",
        "# noise: {}                       # digits, links, markup, repetitions, …, and the published rules over them",
        "# duplicates: {}                  # which sentences and documents repeat earlier ones",
        "# autobleu: {sample: 0.1}         # decode a tenth of the sentences again, to see how good their vectors are",
        "# scaler: {}                      # median and interquartile range of every dimension; training needs it",
        "# fragility: {sample: {rows: 50_000}}     # how fast a vector's meaning is lost under noise; needs scaler",
        "# rvq: {codebooks: 8, units: 256} # vectors → codes, for quantised models",
        '# select: "chars >= 10"           # the sentences that trainings and exports see',
        "# train: {model: lcm-two-tower-tiny, steps: 300}     # a Large Concept Model; needs scaler",
        "# report: {}                      # a page of plots at the end of each run",
        "launcher: auto                    # this process if there is little to do, otherwise all cores and GPUs",
    ]
    return "\n".join(lines) + "\n"


def _input_lines(one: Draft, folder: Path) -> Iterator[str]:
    lang = one.lang if isinstance(one.lang, str) else f"{{column: {_scalar(one.lang['column'])}}}"
    yield f"  - path: {_scalar(_relative(one.path, folder))}     # {counted(one.files, 'file')}, {size(one.bytes)}"
    if one.text is not None:
        yield f"    text: {_scalar(one.text)}"
        if one.id:
            yield f"    id: {_scalar(one.id)}"
        else:
            yield "    # id: COLUMN                  # no column identifies every document: ids are generated"
    if lang == "detect":
        seen = ", ".join(lang for lang, _ in one.langs.most_common(5)) or "none for certain"
        yield f"    lang: detect                  # detected from each text: {seen}"
    else:
        yield f"    lang: {lang}"
    if one.keep:
        yield f"    # keep: [{', '.join(map(_scalar, one.keep))}]     # metadata to carry along"


def _model_lines(model: str, told: str, langs: Counter[str], small: Collection[str]) -> list[str]:
    if model == SMALL_MODEL:
        return [
            f"# Languages: {told}. sonar-tiny knows them, and is part of the package.",
            "# The published model is called sonar: fetched once (6 GB), and slow without a GPU.",
            "encode: {model: sonar-tiny}",
        ]
    beyond = ", ".join(sorted(set(langs) - set(small))) or "they could not be detected"
    return [
        f"# Languages: {told or 'not told'}. sonar-tiny does not know all of them ({beyond}), sonar knows 202; it is",
        "# fetched once (pipeline models sonar --fetch, 6 GB), and needs a GPU for more than a few books.",
        "encode: {model: sonar}",
    ]


def _relative(path: str, folder: Path) -> str:
    """Return a path as it is written in a file of this folder."""
    return path if is_remote(path) else os.path.relpath(Path(path).expanduser().absolute(), folder.absolute())


def _scalar(value: str) -> str:
    """Return a string in YAML, on one line."""
    return yaml.safe_dump(value, allow_unicode=True, width=100_000, default_flow_style=True).split("\n")[0]


def write_draft(text: str, to: Path) -> None:
    """Write a new file. Raises `ConfigError` if it exists already, or cannot be written."""
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{to} exists already; give another name with --to, or delete it") from error
    except OSError as error:
        raise PipelineError(f"{to} cannot be written: {error.strerror}") from error
