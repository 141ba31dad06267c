"""Drafts a first corpus.yaml for someone's files: what `pipeline init DATA…` finds by looking at them, with comments.

A few hundred records of each kind of file in a folder are read. Columns are recognised by their names and content,
languages by the column that has codes, or else by the texts. The resulting file passes every check and runs.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from pipeline.base.errors import ConfigError, PipelineError, visible
from pipeline.base.formats import counted, size
from pipeline.inputs import InputSettings, SplitSettings, count_documents
from pipeline.inputs.chunk import UNREADABLE
from pipeline.inputs.chunks import whole_file
from pipeline.inputs.listing import KNOWN, format_hint, in_folder_names
from pipeline.inputs.samples import FILES, RecordSample, sample
from pipeline.planning import columns
from pipeline.planning.draft_files import FileGroup, absolute, groups_of, is_pattern, kind_of, once_each, reaches
from pipeline.storage import layout
from pipeline.storage.remote import is_remote
from stages.language.identifier import identifier
from stages.segment import marks
from stages.sonar.card import load_card

SMALL_MODEL, LARGE_MODEL = "sonar-tiny", columns.LARGE_MODEL
KEPT = 6  # columns suggested as metadata
SHOWN = 5  # columns or languages that a comment names
LANGUAGES = 6  # whose shares a comment tells
ONE_LANGUAGE = 0.95  # with at least this share of texts in one language, all are assumed to be in it
CERTAIN = 0.5  # confidence of the identification, the threshold of `lang: detect`
FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n[\w-]+:.*?^---[ \t]*\r?$", re.M | re.S)
STRIP = r"find . -name '*.md' -exec perl -0pi -e 's/\A(\xEF\xBB\xBF)?---[ \t]*\r?\n[\w-]+:.*?^---[ \t]*\r?\n//ms' {} +"
JUDGED = 0.5  # with at least this share of texts identified, the others are assumed to be in their language
FEW_DOCUMENTS = 1000  # for fewer documents, more than a hundredth is held out, so that it is not empty
TEXTS = 50  # text files whose language is identified
COUNTED_FILES, COUNTED_BYTES = 200, 32 << 20  # in which documents are counted
PACKED = 3  # bytes of text per byte of a compressed file
LEAVE_OUT = ", or leave these files out"


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
    lists: list[str] = field(default_factory=list)  # of these, those that hold lists of texts
    langs: Counter[str] = field(default_factory=Counter)
    uncertain: int = 0  # texts whose language is not certain
    unique: list[str] = field(default_factory=list)  # columns that could be the id, if none is called like one
    reserved: list[str] = field(default_factory=list)  # metadata with names that corpora use themselves
    notes: list[str] = field(default_factory=list)  # what else the records hold
    missed: list[str] = field(default_factory=list)  # text that is not read: this is printed, too
    documents: float = 0.0  # in all
    counted: bool = True  # or estimated


def draft(data: Sequence[str], to: Path, name: str | None, output: str | None) -> tuple[str, list[str]]:
    """Return the text of a corpus.yaml for the given data, and what its author should know before running it.

    Args:
        data: files, folders or patterns.
        to: the file that will hold it; paths are written relative to its folder.
        name: the name of the corpus; None to derive it from the data.
        output: the folder of the corpus; None for `runs/NAME`.

    Returns:
        YAML with comments, and one line for each input whose text lies elsewhere for the most part, for each kind of
        file in a folder that is left out, and for a name that is taken.

    Raises:
        ConfigError: if most of what a place holds cannot be read as documents; it says why of all kinds of files there.
    """
    found: list[Draft] = []
    others: list[str] = []
    empty: list[str] = []
    refused: list[str] = []
    left_out: list[str] = []
    looked = [groups_of(place) for place in data]
    once = once_each([group for groups, _ in looked for group in groups])
    for groups, unknown in looked:
        others += unknown
        groups = [group for group in groups if any(group is one for one in once)]
        filled = [group for group in groups if group.bytes]
        if filled:  # if none is, `_entry` says so
            empty += [group.pattern for group in groups if not group.bytes]
        reasons, unread = [], 0
        for group in filled or groups:
            try:
                found.append(_entry(group))
            except ConfigError as error:
                reasons.append(str(error))
                unread += group.bytes
        if 2 * unread < sum(group.bytes for group in groups):
            left_out += [f"not read: {visible(reason.removesuffix(LEAVE_OUT))}" for reason in reasons]
        else:  # most of what is there
            refused += reasons
    if refused:
        raise ConfigError("\n".join(refused))
    if not found:
        hints = "".join(f"; {hint}" for hint in _hints(others))
        raise ConfigError(f"{', '.join(data)}: no file of a known format; known extensions are {KNOWN}{hints}")
    notes = [f"{one.path}: {visible(why)}" for one in found for why in one.missed] + left_out
    runs = "_runs" if any(reaches(one.path, to.parent / "runs") for one in found) else "runs"
    if name is None:
        name = _name(data[0])
        if output is None and (to.parent / runs / name).exists():
            taken, name = name, _free(to.parent / runs, name)
            notes.append(f"{runs}/{visible(taken)} exists already, so this corpus is called {visible(name)}")
    return _written(found, others, empty, left_out, to, name, output or f"{runs}/{name}"), notes


def _hints(others: Sequence[str]) -> list[str]:
    """Say how files of formats that are not read become documents."""
    return list(dict.fromkeys(hint for file in others if (hint := format_hint(file.lower()))))


def _entry(group: FileGroup) -> Draft:
    """Describe one kind of files, from a sample of them."""
    found = Draft(group.pattern, len(group.files), group.bytes)
    if not found.bytes:
        what = "is empty" if found.files == 1 else f"matches {found.files} files, which are all empty"
        raise ConfigError(f"{group.pattern} {what} (0 bytes); give files that hold documents, or leave this out")
    settings = InputSettings(path=absolute(group.pattern), lang="und")
    seen = sample([whole_file(settings, one) for one in group.files], settings, SplitSettings(), keep_values=True)
    if lost := seen.refused.get(UNREADABLE):
        where = f"{counted(len(lost), 'record')} of {seen.where()}"
        found.missed.append(f"{where} cannot be read, with this error for the first: {lost[0]}")
    if folders := in_folder_names((one.path for one in group.files if one.format == "parquet"), besides=seen.columns):
        found.missed.append(folders)
    for column in [one for one in seen.columns if not columns.is_text(one) or visible(one) != one]:
        del seen.columns[column]  # a name that should not be written to a file of settings
    if all(one.format == "text" for one in group.files):
        found.documents = len(group.files)
        texts = _texts_of_files(group, settings)
        if headed := sum(map(bool, map(FRONT_MATTER.match, texts))):
            begin = "begins" if headed == 1 else "begin"
            found.missed.append(
                f"{headed} of the {counted(len(texts), 'file')} examined {begin} with front matter (--- … ---), which "
                "would become sentences, as code blocks do; to remove it, in a copy of the folder: "
                + STRIP.replace(".md", Path(group.files[0].path).suffix or ".md")
            )
        if texts and not any(map(marks.VISIBLE.search, texts)):
            found.missed.append("there is nothing visible in the files examined, so nothing of them would be kept")
    else:
        texts = _choose_columns(found, group, seen, settings)
    if isinstance(found.lang, dict):
        return found
    texts = [one for one in texts if one.strip()]
    found.langs, judged = _languages(texts)
    found.uncertain = len(texts) - judged
    most = found.langs.most_common(1)
    if most and most[0][1] >= ONE_LANGUAGE * judged and judged >= JUDGED * len(texts):
        found.lang = most[0][0]
    return found


def _choose_columns(found: Draft, group: FileGroup, seen: RecordSample, settings: InputSettings) -> list[str]:
    """Choose the columns of an input, count its documents, and return their texts."""
    parquet = all(one.format == "parquet" for one in group.files)
    found.text = columns.text_column(seen)
    if found.text is None:
        raise ConfigError(f"{group.pattern}: {_no_texts(seen, parquet)}{LEAVE_OUT}")
    texts = columns.strings(seen, found.text)
    found.id = columns.id_column(seen, found.text)
    found.unique = [] if found.id else columns.unique_columns(seen, found.text)
    if lang := columns.lang_column(seen):
        found.lang = {"column": lang}
        found.langs = Counter(one for one in columns.strings(seen, lang) if one in columns.codes())
    kept = columns.metadata(seen, {found.text, found.id, lang})
    found.reserved = [one for one in kept if one in layout.RESERVED_COLUMNS]
    found.keep = [one for one in kept if one not in layout.RESERVED_COLUMNS][:KEPT]
    found.lists = [one for one in found.keep if one not in layout.PLAN_COLUMNS and columns.holds_lists(seen, one)]
    if found.lists:  # with a section plans, their names are the corpus's own
        found.keep = [one for one in found.keep if one not in layout.PLAN_COLUMNS]
    _note_other_texts(found, seen, sum(map(len, texts)), parquet)
    found.documents, found.counted = (len(seen.values), True) if seen.whole else _documents(group, seen, settings)
    return texts


def _texts_of_files(group: FileGroup, settings: InputSettings) -> list[str]:
    """Return the texts of some text files, from the first to the last; of large files, of a few."""
    files = group.files[:: -(-len(group.files) // TEXTS)]
    while len(files) > FILES and sum(one.size for one in files) > COUNTED_BYTES:
        files = files[::2]
    each = (sample([whole_file(settings, one)], settings, SplitSettings(), keep_values=True) for one in files)
    return [text for one in each for text in columns.strings(one, "text")]


def _note_other_texts(found: Draft, seen: RecordSample, characters: int, parquet: bool) -> None:
    """Say which columns hold texts besides the one that is read, and how they become one text."""
    listed = columns.longest_list(seen)
    if listed and listed.characters > characters:
        found.missed.append(
            f"most of the text lies in a list, {listed.column} ({counted(listed.characters, 'character')} in the "
            f"records examined; {found.text}, which is read, has {characters}); to read it, join each list first: "
            f"{listed.joined(parquet)}"
        )
    elif (inside := columns.longest_object(seen)) and inside[1] > characters:
        found.missed.append(
            f"most of the text lies in objects, {inside[0]} ({counted(inside[1], 'character')} in the records "
            f"examined; {found.text}, which is read, has {characters}); to read it, write it into a column of its own "
            "first"
        )
    if parts := columns.parts_of_texts(seen, str(found.text)):
        both = columns.joined_parts([one for one in seen.columns if one in {found.text, *parts}], parquet)
        are = "is text also, and is" if len(parts) == 1 else "are texts also, and are"
        found.notes.append(f"{', '.join(parts)} {are} not read; to read all as one text, join them: {both}")


def _documents(group: FileGroup, seen: RecordSample, settings: InputSettings) -> tuple[float, bool]:
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


def _no_texts(seen: RecordSample, parquet: bool) -> str:
    """Say why no column can be the text, and what to do."""
    if not seen.columns and seen.refused:
        return f"no record becomes a document, the first because of this: {next(iter(seen.refused.values()))[0]}"
    if not seen.columns:
        lines = "there are only blank lines" if seen.whole else "the first lines are all blank"
        return f"{lines if seen.records else 'there are no records'}; give files that hold documents"
    listed = columns.longest_list(seen)
    column = listed.column if listed else columns.list_of_objects(seen)
    each = f"jq -c {shlex.quote(f'{columns.jq_path(column)}[]')} FILE > NEW.jsonl" if column else ""
    if column and (listed is None or len(seen.values) == 1):
        return f"documents lie in a list, {column}; make a file where one line is one document: {each}"
    if listed:
        other = f" (where each entry is a document of its own: {each})" if listed.key and not parquet else ""
        return (
            f"texts lie in a list, {column}; join each list to one text, in its order: {listed.joined(parquet)}{other}"
        )
    there = f"no column holds texts; columns: {', '.join(seen.columns)}"
    if found := columns.text_in_object(seen, parquet):
        column, key, command = found
        return f"{there}; texts lie in an object ({column}, {key}); write them into a column of their own: {command}"
    return f"{there}; write the text into a column of its own if it lies in an object"


def _languages(texts: Sequence[str]) -> tuple[Counter[str], int]:
    """Count the languages of texts that are identified with confidence, and these texts."""
    identify = identifier().identify
    judged = [one for text in texts if (one := identify(text)) and one.confidence >= CERTAIN]
    return Counter(one.lang for one in judged if one.lang), len(judged)


def _name(place: str) -> str:
    """Name a corpus after a file without its extensions, after a folder, or after the folder of a pattern."""
    path = absolute(place)
    if is_pattern(place):
        path = re.split(r"[*?\[]", path)[0].rpartition("/")[0]
    name = path.rstrip("/").rpartition("/")[2] if is_remote(place) else Path(os.path.normpath(path)).name
    if not Path(path).is_dir():
        name = name.removesuffix(kind_of(name))
    signs = unicodedata.normalize("NFC", name)
    kept = "".join(one if one in "_-." or unicodedata.category(one)[0] in "LMN" else " " for one in signs)
    return "-".join(kept.split()).strip("-.") or "corpus"


def _free(folder: Path, name: str) -> str:
    return next(other for number in itertools.count(2) if not (folder / (other := f"{name}-{number}")).exists())


def _shares(found: Sequence[Draft]) -> Counter[str]:
    """Return the share of each language in the documents that told theirs, weighted by the sizes of the inputs."""
    weights = Counter[str]()
    for one in found:
        for lang, count in one.langs.items():
            weights[lang] += one.documents * count / one.langs.total()  # type: ignore[assignment]  # weights need not be whole
    total = weights.total() or 1
    return Counter({lang: weight / total for lang, weight in weights.items()})


def _written(
    found: Sequence[Draft], others: Sequence[str], empty: Sequence[str], left_out: Sequence[str], to: Path, name: str,
    output: str,
) -> str:  # fmt: skip
    file = visible(shlex.quote(str(to)))
    langs = _shares(found)
    small = set(load_card(SMALL_MODEL).languages)
    model = SMALL_MODEL if langs and small.issuperset(langs) else LARGE_MODEL
    documents = sum(one.documents for one in found)
    about = "" if all(one.counted for one in found) else "About "
    held_out = 0.1 if documents < FEW_DOCUMENTS else 0.01
    told = ", ".join(f"{lang} {share:.0%}" for lang, share in langs.most_common(LANGUAGES))
    told += f" and {len(langs) - LANGUAGES} more" if len(langs) > LANGUAGES else ""
    lines = [
        "# Made by `pipeline init`, which looked at the first records. Check it, then:",
        f"#   pipeline plan {file}      what a run would do",
        f"#   pipeline run {file}       make the corpus; run it again after any change",
        f"name: {_scalar(name)}",
        f"output: {_scalar(output)}     # where the corpus goes; relative to this file, or a URL such as s3://…",
        "",
        "input:",
    ]
    for one in found:
        lines += _input_lines(one, to.parent)
    if empty:
        lines.append(f"# Not read, because all of these files are empty: {', '.join(map(visible, empty))}.")
    lines += [f"# {one[0].upper()}{one[1:]}" for one in left_out]
    if others:
        kinds = Counter(Path(file).suffix or file for file in others)
        named = ", ".join(f"{counted(count, 'file')} {visible(kind)}" for kind, count in kinds.most_common(5))
        lines.append(f"# Not read, because their format is not known: {named}.")
        lines += [f"# {hint}" for hint in _hints(others)]
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
        *(
            f"# plans: {{column: {_scalar(one)}}}     # if these are texts that say what its paragraphs are about"
            for one in [one for each in found for one in each.lists][:1]
        ),
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
            unique = ", ".join(one.unique[:SHOWN])
            named = "no column is named like an id; with distinct values"
            why = f"{named}: {unique}" if unique else "no column of texts or whole numbers has distinct values"
            yield f"    # id: COLUMN                  # {why}; ids are generated"
    uncertain = f"{counted(one.uncertain, 'text')} of those examined {'is' if one.uncertain == 1 else 'are'} uncertain"
    if lang == "detect":
        seen = ", ".join(lang for lang, _ in one.langs.most_common(SHOWN)) or "none for certain"
        aside = f"; {uncertain}, and would be set aside" if one.uncertain else ""
        yield f"    lang: detect                  # detected from each text: {seen}{aside}"
    else:
        yield f"    lang: {lang}" + (f"                # {uncertain}" if one.uncertain else "")
    if one.keep:
        yield f"    # keep: [{', '.join(map(_scalar, one.keep))}]     # metadata to carry along"
    if one.reserved:
        named = ", ".join(one.reserved)
        yield f"    # {named}: corpora use such names themselves; to keep a column, rename it in the data"
    yield from (f"    # {visible(note)}" for note in (*one.missed, *one.notes))


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
