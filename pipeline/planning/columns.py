"""Recognises what the columns of someone's records hold, by their names and content: text, id, language, metadata,
and texts that `pipeline init` cannot choose because they lie in lists or in several columns.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from pipeline.inputs.samples import RecordSample
from stages.sonar.card import load_card

LARGE_MODEL = "sonar"  # whose languages are known
TEXT_NAMES = ("text", "content", "body", "document", "article", "raw_content", "markdown", "passage")
ENTRY_NAMES = (*TEXT_NAMES, "value", "message", "utterance")  # of texts in the objects of a list
PART_NAMES = {
    *("question", "query", "prompt", "instruction", "input", "problem", "context"),
    *("answer", "response", "output", "completion", "solution"),
}  # of columns that make one text together
ID_NAMES = (
    *("id", "doc_id", "document_id", "_id", "uuid", "guid", "key", "url", "uri"),
    *("docid", "documentid", "article_id", "articleid", "page_id", "pageid", "record_id", "pmid", "qid"),
)
LANG_NAMES = ("lang", "language", "lang_code", "language_code")
USUAL = 0.9  # with at least this share of ids or language codes, a column is assumed to hold them
SHORT = 200  # characters of a value that is metadata, not text


def strings(seen: RecordSample, column: str) -> list[str]:
    """Return the column's values that are texts; others would be quarantined on reading."""
    return [value for one in seen.values if isinstance(value := one.get(column), str) and is_text(value)]


def is_text(value: str) -> bool:
    """Return whether a value can be written: lone surrogates cannot."""
    return not re.search("[\ud800-\udfff]", value)


def codes() -> frozenset[str]:
    """Return SONAR's languages."""
    return frozenset(load_card(LARGE_MODEL).languages)


def text_column(seen: RecordSample) -> str | None:
    """Return the column of strings with a usual name, or else the one with the longest strings that may be texts.

    Dates, codes and addresses may not: they are ASCII without a space.
    """
    usable = {column: texts for column in seen.columns if (texts := strings(seen, column))}
    named = [column for name in TEXT_NAMES for column in usable if column.lower() == name]
    texts_only = [column for column in usable if not all(one.isascii() and " " not in one for one in usable[column])]
    longest = sorted(texts_only, key=lambda column: -sum(map(len, usable[column])))
    return next(iter(named or longest), None)


def id_column(seen: RecordSample, text: str) -> str | None:
    """Return a column with a usual name whose values are distinct; a few bad values are quarantined.

    Otherwise one whose name ends in "id", if all records were looked at: authors, say, may be distinct in the first.
    """
    for name in ID_NAMES:
        for column in seen.columns:
            if column.lower() == name and column != text and _distinct(seen, column, USUAL):
                return column
    unique = unique_columns(seen, text) if seen.whole else []
    return next((one for one in unique if one.lower().endswith("id")), None)


def unique_columns(seen: RecordSample, text: str) -> list[str]:
    """Return the columns whose values are short and distinct in all records, if there are several."""
    return [one for one in seen.columns if one != text and len(seen.values) > 1 and _distinct(seen, one, 1)]


def _distinct(seen: RecordSample, column: str, share: float) -> bool:
    """Return whether at least this share of the records have a value that can be an id, all of them distinct."""
    values = [one.get(column) for one in seen.values]
    plain = [one for one in values if isinstance(one, str | int) and not isinstance(one, bool) and one != ""]
    short = all(len(str(one)) <= SHORT for one in plain) or share < 1
    return short and len(plain) >= share * len(values) and len(set(map(str, plain))) == len(plain)


def lang_column(seen: RecordSample) -> str | None:
    """Return a column of SONAR codes, preferably one with a usual name; a few bad values are quarantined."""
    known = codes()
    for column in sorted(seen.columns, key=lambda one: one.lower() not in LANG_NAMES):
        texts = strings(seen, column)
        if texts and sum(one in known for one in texts) >= USUAL * len(texts):
            return column
    return None


def metadata(seen: RecordSample, used: Collection[str | None]) -> list[str]:
    """Return columns of short values, which are worth keeping."""

    def short(value: Any) -> bool:
        if isinstance(value, list):
            return len(value) <= SHORT and all(one is None or short(one) for one in value)
        return isinstance(value, int | float | date) or (isinstance(value, str) and len(value) <= SHORT)

    return [
        one
        for one in seen.columns
        if one not in used
        and any(short(v.get(one)) for v in seen.values)
        and all(v.get(one) is None or short(v[one]) for v in seen.values)
    ]


def holds_lists(seen: RecordSample, column: str) -> bool:
    """Return whether a column holds lists of texts, or null, and nothing else."""
    lists = [value for one in seen.values if (value := one.get(column)) is not None]
    texts = all(isinstance(one, list) and all(each is None or isinstance(each, str) for each in one) for one in lists)
    return texts and any(lists)


def parts_of_texts(seen: RecordSample, text: str) -> list[str]:
    """Return other columns that hold texts: of questions and answers, or with values too long for metadata.

    Those that the text already has in it, as after joining them, are left out.
    """

    def joined(column: str) -> bool:
        pairs = [(one.get(column) or "", one.get(text) or "") for one in seen.values]
        return all(isinstance(part, str) and isinstance(whole, str) and part in whole for part, whole in pairs)

    return [
        column
        for column in seen.columns
        if column != text
        and any(" " in one or not one.isascii() for one in strings(seen, column))
        and (column.lower() in PART_NAMES or any(len(one) > SHORT for one in strings(seen, column)))
        and not joined(column)
    ]


@dataclass(frozen=True)
class TextsInList:
    """A column of lists that hold texts, or objects with a text under `key`; `characters` are those of all texts, and
    `parts` says whether such a text may be a list itself, of its parts.
    """

    column: str
    key: str | None
    characters: int
    parts: bool = False

    def joined(self, parquet: bool) -> str:
        """Return a command that writes the texts of each list into the column `text`, in their order."""
        if parquet:
            one = "x" if self.key is None else f"x[{json.dumps(self.key)}]"
            lists = f"t[{json.dumps(self.column)}].map(lambda one: [] if one is None else one)"
            texts = f"{one} for x in some if x and {one}"
            if self.parts:
                each = f"for x in some if x and {one} is not None for part in {one} if part"
                texts = f'text {each} for text in [part if isinstance(part, str) else part["text"]] if text'
            return _by_pandas(f'["\\n\\n".join({texts}) for some in {lists}]')
        entries = f"{jq_path(self.column)}[]?"
        return _by_jq(entries) if self.key is None else _by_jq(f"{entries}{_jq_key(self.key)}?", _STRINGS)


def longest_list(seen: RecordSample) -> TextsInList | None:
    """Return the column of lists that holds most characters of text; None if no list holds any."""
    found = [one for column in seen.columns if (one := _texts_in_list(seen, column))]
    return max(found, key=lambda one: one.characters, default=None)


def _texts_in_list(seen: RecordSample, column: str) -> TextsInList | None:
    entries = [entry for one in seen.values if isinstance(some := one.get(column), list) for entry in some]
    if texts := [one for one in entries if isinstance(one, str)]:
        return TextsInList(column, None, sum(map(len, texts)))
    lengths: Counter[str] = Counter()
    of_parts: set[str] = set()
    for entry in entries:
        for key, value in entry.items() if isinstance(entry, dict) else ():
            parts = _parts(value) if key.lower() in ENTRY_NAMES and isinstance(value, list) else []
            if parts:
                of_parts.add(key)
            if _may_be_text(key, value) or parts:
                lengths[key] += sum(map(len, parts or [value]))
    named = [key for name in ENTRY_NAMES for key in lengths if key.lower() == name]
    key = next(iter([*named, *(key for key, _ in lengths.most_common(1))]), None)
    return None if key is None else TextsInList(column, key, lengths[key], key in of_parts)


def _parts(values: Sequence[Any]) -> list[str]:
    """Return the texts of a list of texts and of objects that have one under `text`, as in exports of chats."""
    texts = [one.get("text") if isinstance(one, dict) else one for one in values]
    return [one for one in texts if isinstance(one, str)]


def _may_be_text(key: str, value: Any) -> bool:
    """Return whether a field of an object may hold text, by its name or because it is no code, date or address."""
    return isinstance(value, str) and (key.lower() in ENTRY_NAMES or " " in value or not value.isascii())


def text_in_object(seen: RecordSample, parquet: bool) -> tuple[str, str, str] | None:
    """Return the column of objects with most characters of text, the key of the text, and a command that writes it into
    the column `text`; None if no object holds texts.
    """
    lengths: Counter[tuple[str, str]] = Counter()
    for one in seen.values:
        for column in seen.columns:
            value = one.get(column)
            for key, inner in value.items() if isinstance(value, dict) else ():
                if _may_be_text(key, inner):
                    lengths[column, key] += len(inner)
    named = [found for name in ENTRY_NAMES for found in lengths if found[1].lower() == name]
    found = next(iter([*named, *(found for found, _ in lengths.most_common(1))]), None)
    if found is None:
        return None
    column, key = found
    if parquet:
        each = f"None if one is None else one[{json.dumps(key)}]"
        return column, key, _by_pandas(f"t[{json.dumps(column)}].map(lambda one: {each})")
    program = f".text = ({jq_path(column)}{_jq_key(key)}? // null)"
    return column, key, f"jq -c {shlex.quote(program)} FILE > NEW.jsonl"


def longest_object(seen: RecordSample) -> tuple[str, int] | None:
    """Return the column of objects that hold most characters of text, at any depth, and how many; None if none do."""
    found = {
        column: sum(_characters(value) for one in seen.values if isinstance(value := one.get(column), dict))
        for column in seen.columns
    }
    column = max(found, key=lambda one: found[one], default=None)
    return (column, found[column]) if column is not None and found[column] else None


def _characters(value: Any) -> int:
    """Return how many characters the texts in a value have, which are none without a space among ASCII characters."""
    left, found = [value], 0
    while left:
        one = left.pop()
        if _may_be_text("", one):
            found += len(one)
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return found


def list_of_objects(seen: RecordSample) -> str | None:
    """Return a column that has a list of objects in each record."""
    return next((column for column in seen.columns if all(map(_objects, (v.get(column) for v in seen.values)))), None)


def _objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def joined_parts(names: Sequence[str], parquet: bool) -> str:
    """Return a command that joins several columns of texts to one, `text`."""
    if parquet:
        return _by_pandas(f't[{json.dumps(list(names))}].fillna("").agg("\\n\\n".join, axis=1)')
    return _by_jq(", ".join(map(jq_path, names)))


def _by_pandas(texts: str) -> str:
    """Return a command that writes texts, an expression of the table `t`, into the column `text`."""
    read, write = 'import pandas; t = pandas.read_parquet("IN.parquet")', 't.to_parquet("OUT.parquet")'
    program = f'{read}; t["text"] = {texts}; {write}'
    return f"python -c {shlex.quote(program)}"


# Of turns with pictures, the content is a list of parts, of which some are objects with a text.
_STRINGS = 'if type == "array" then .[] else . end | .text? // . | strings'


def _by_jq(texts: str, kept: str = "values") -> str:
    """Return a command that joins texts, as jq names them, into the key `text`; by itself, null ones are left out."""
    program = f'.text = ([{texts} | {kept}] | join("\\n\\n"))'
    return f"jq -c {shlex.quote(program)} FILE > NEW.jsonl"


def jq_path(name: str) -> str:
    """Return how jq names a key of an object."""
    key = _jq_key(name)
    return key if key[0] == "." else f".{key}"


def _jq_key(name: str) -> str:
    """Return how jq names a key of what stands before; jq 1.6 knows no point before a bracket there."""
    return f".{name}" if name.isidentifier() and name.isascii() else f"[{json.dumps(name)}]"
