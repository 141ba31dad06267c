"""Turns rows of a corpus into the JSON that the page shows: values that it can put into text nodes as they are.

Control characters and marks that turn the direction of text become visible escapes; long texts are cut, and end with …;
numbers that JavaScript or JSON cannot hold become text, NaN too, which is no null. Also how the rows of a filter are
used elsewhere.
"""

from __future__ import annotations

import datetime as dt
import math
import shlex
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import pyarrow as pa
import regex
import yaml

from pipeline.base.errors import visible
from pipeline.base.formats import to_json
from pipeline.conditions.condition import Condition
from pipeline.corpus.nearest import Candidates, find_nearest
from pipeline.corpus.part_reader import PART, ROW, Column, PartBatch, PartReader
from pipeline.corpus.reader import Corpus
from pipeline.quality.browse.find import Place, Watch, can_be_ordered, values_of
from pipeline.storage import layout

Pieces = list[list[str]]  # pairs of a sign (= - +) and a text; joined, the texts are the whole

TEXT, DECODED = "text", "decoded"
SHORT, LONG = 2_000, 100_000  # characters of a value on a page of rows, and of the one row that is looked at
EXACT = 2**53  # whole numbers up to here are exact in JavaScript
FIRST_SHOWN = ("lang", "autobleu", "fragility_cosine", "fragility_predicted", "chars", "doc_id")
AROUND = 5  # sentences before and after the one that is looked at
MOST_AROUND = 100  # sentences of a document in one answer
COUNT = 12  # nearest rows
LONGEST = 1_500  # words of both together; longer ones are shown without marks (some tens of milliseconds)
_WORDS = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\p{M}*"
    r"|(?:(?![\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}])[\w\p{M}])+|\s+|."
)


def differences(text: str, decoded: str) -> tuple[Pieces, Pieces]:
    """Return the pieces of both: `=` is in both, `-` only in the text, `+` only in what it decodes to.

    differences("The ship arrived.", "The sheep arrived.")
    # ([["=", "The "], ["-", "ship"], ["=", " arrived."]], [["=", "The "], ["+", "sheep"], ["=", " arrived."]])

    Of scripts that put no spaces between words, single characters are compared.
    """
    ours, theirs = _WORDS.findall(text), _WORDS.findall(decoded)
    if len(ours) + len(theirs) > LONGEST:
        return [["=", text]], [["=", decoded]]
    mine: Pieces = []
    other: Pieces = []
    for kind, from_, to, other_from, other_to in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        _add(mine, "=" if kind == "equal" else "-", "".join(ours[from_:to]))
        _add(other, "=" if kind == "equal" else "+", "".join(theirs[other_from:other_to]))
    return mine, other


def _add(pieces: Pieces, sign: str, text: str) -> None:
    if not text:
        return
    if pieces and pieces[-1][0] == sign:
        pieces[-1][1] += text
    else:
        pieces.append([sign, text])


def described(corpus: Corpus) -> dict[str, Any]:
    """Return what the page has to know of the corpus."""
    columns = {name: one for name, one in corpus.catalogue.items() if one.family not in layout.VECTORS}
    return {
        "name": visible(corpus.view.name),
        "url": visible(corpus.url),
        "rows": corpus.rows,
        "parts": len(corpus.parts),
        "columns": [_described(one) for one in columns.values()],
        "shown": [name for name in FIRST_SHOWN if name in columns],
        "decoded": DECODED in columns,
        "embeddings": "embedding" in corpus.catalogue,
    }


def _described(column: Column) -> dict[str, Any]:
    kind = column.type
    return {
        "name": column.name,
        "of": column.family or "place",
        "type": str(kind),
        "number": pa.types.is_integer(kind) or pa.types.is_floating(kind),
        "nullable": column.nullable,
        "ordered": can_be_ordered(column),
    }


def shown_columns(corpus: Corpus, asked: list[str]) -> tuple[str, ...]:
    """Return the columns of a page of rows: those asked for, as far as the corpus has them, and the texts."""
    names = (name for name in asked if name in corpus.catalogue and corpus.catalogue[name].family not in layout.VECTORS)
    return tuple(dict.fromkeys([name for name in (TEXT, DECODED) if name in corpus.catalogue] + list(names)))


def shown_rows(
    corpus: Corpus, places: list[Place], names: tuple[str, ...], longest: int = SHORT
) -> list[dict[str, Any]]:
    """Return rows as the page shows them.

    Args:
        corpus: the corpus.
        places: (part, row) of each.
        names: the columns, as `shown_columns` returns them.
        longest: the most characters of a value.

    Returns:
        For each row `part`, `row`, `values` by column, and the pieces of `text` and `decoded`.
    """
    return [_shown_row(one, names, longest) for one in values_of(corpus, places, names)]


def _shown_row(values: dict[str, Any], names: tuple[str, ...], longest: int) -> dict[str, Any]:
    """Return one row of `shown_rows`."""
    return {
        PART: values[PART],
        ROW: values[ROW],
        "values": {name: shown_value(values[name], longest) for name in names if name not in (TEXT, DECODED)},
        **pieces_of(values, longest),
    }


def pieces_of(values: dict[str, Any], longest: int) -> dict[str, Pieces | None]:
    """Return the pieces of the text of a row, and of what its embedding decodes to."""
    text, decoded = values[TEXT], values.get(DECODED)
    if decoded is None:
        return {TEXT: [["=", _cut(text, longest)]], DECODED: None}
    mine, other = differences(_cut(text, longest), _cut(decoded, longest))
    return {TEXT: mine, DECODED: other}


def shown_value(value: Any, longest: int) -> Any:
    """Return a value that JSON and the page can hold."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else str(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    return _cut(value if isinstance(value, str) else to_json(value), longest)


def _cut(text: str, longest: int) -> str:
    return visible(text if len(text) <= longest else f"{text[:longest]}…")


def looked_at(corpus: Corpus, part: str, row: int) -> dict[str, Any]:
    """Return all that the corpus says of one row, and the sentences around it.

    Args:
        corpus: the corpus; `CorpusError` is raised if it has no such row.
        part: the part of the row.
        row: its number in the part.

    Returns:
        The row as `shown_rows` returns it, and the document as `around` returns it.
    """
    names = tuple(name for name, column in corpus.catalogue.items() if column.family not in layout.VECTORS)
    found = shown_rows(corpus, [(part, row)], names, LONG)[0]
    return found | {"document": around(corpus, part, row, AROUND, AROUND)}


def around(corpus: Corpus, part: str, row: int, before: int, after: int) -> dict[str, Any]:
    """Return the document of a row, and the sentences around the row.

    Only the row groups of these sentences are read.

    Args:
        corpus: the corpus; `CorpusError` is raised if it has no such row.
        part: the part of the row.
        row: its number in the part.
        before: how many sentences before the row; at most half of `MOST_AROUND`.
        after: how many sentences after it.

    Returns:
        The document's `id`, `piece` and number of `sentences`; the `rows`; the places of the `first` and the `last` of
            them in the document, from 1.
    """
    before, after = (min(max(one, 0), MOST_AROUND // 2) for one in (before, after))
    names = tuple(name for name in (TEXT, DECODED, "lang", "autobleu", "paragraph") if name in corpus.catalogue)
    with corpus.reader(part) as reader:
        reader.take((ROW,), [row])  # or there is no such row
        documents = reader.documents(["doc_id", "subdocument", "first_row", "rows"])
        place = int(documents["first_row"].to_numpy().searchsorted(row, side="right")) - 1
        while documents["rows"][place].as_py() == 0:  # documents without sentences begin at the row of the next one
            place -= 1
        document = documents.slice(place, 1).to_pylist()[0]
        start, end = document["first_row"], document["first_row"] + document["rows"]
        low, high = max(start, row - before), min(end, row + 1 + after)
        sentences = reader.take((*names, PART, ROW), range(low, high)).to_pylist()
    return {
        "id": _cut(document["doc_id"], SHORT),
        "piece": document["subdocument"],
        "sentences": document["rows"],
        "first": low - start + 1,
        "last": high - start,
        "rows": [_shown_row(one, names, SHORT) for one in sentences],
    }


class _WatchedCorpus:
    """A corpus of which each row group that is read is told to a watch."""

    def __init__(self, corpus: Corpus, watch: Watch) -> None:
        self._corpus, self._watch = corpus, watch

    @property
    def parts(self) -> list[str]:
        return self._corpus.parts

    def schema(self, *columns: str) -> pa.Schema:
        return self._corpus.schema(*columns)

    def reader(self, part: str | int) -> PartReader:
        return self._corpus.reader(part)

    def place(self, row: int) -> tuple[str, int]:
        return self._corpus.place(row)

    def batches(
        self, *columns: str, where: Condition | None = None, parts: Sequence[str] | None = None
    ) -> Iterator[PartBatch]:
        read = found = 0
        for batch in self._corpus.batches(*columns, where=where, parts=parts):
            read += batch.rows
            found += batch.table.num_rows
            self._watch.see(read, found)
            yield batch


def neighbours(
    corpus: Corpus, part: str, row: int, where: Condition | None, index: Candidates | None, watch: Watch
) -> list[dict[str, Any]]:
    """Return the nearest rows, best first, each with its `score` (cosine).

    Args:
        corpus: the corpus.
        part: the part of the row.
        row: its number in the part.
        where: a condition that the others must satisfy; without one and with an index, only likely rows are compared.
        index: an index of the whole corpus; None to compare all rows.
        watch: is told of the rows that are compared.

    Returns:
        At most `COUNT` rows as `shown_rows` returns them.

    Raises:
        CorpusError: for a row that does not exist or has no usable embedding.
    """
    names = tuple(name for name in (TEXT, DECODED, "lang", "autobleu", "doc_id") if name in corpus.catalogue)
    index = index if where is None else None
    found = find_nearest(_WatchedCorpus(corpus, watch), (part, row), COUNT, names, where, "cosine", index)
    return [_shown_row(one, names, SHORT) | {"score": one["score"]} for one in found.to_pylist()]


def use_of(corpus: Corpus, where: Condition | None) -> dict[str, str]:
    """Return texts to copy: the section `select` of these rows, a command that writes them, and Python that reads them;
    and a remark, what a person has to know about `select`.

    `select` refuses a clause on a column that has nulls if it does not say what null means. A clause on one column
    alone never holds for a null, so `… is not null` in front keeps the same rows; for other clauses the remark says
    that a person has to decide.
    """
    text = " ".join(where.text.split("\n")).strip() if where else ""
    clauses = where.clauses if where else ()
    undecided = where.undecided({one.name for one in corpus.catalogue.values() if one.nullable}) if where else ()
    mixed = {name for clause in clauses if len(clause.columns) > 1 for name in clause.columns}
    alone, open_ = ([name for name in undecided if (name in mixed) == wanted] for wanted in (False, True))
    added = [f"{_named(name)} is not null" for name in alone]
    selected = " and ".join([*added, f"({text})"]) if added else text
    remarks = []
    if alone:
        remarks.append(f"Sentences without {', '.join(alone)} never satisfy the filter; select wants that written out.")
    if open_:
        remarks.append(
            f"{', '.join(open_)} can be null, and the condition does not say what becomes of those sentences: select "
            "refuses it until it says “… is null or …” or “… is not null and …”."
        )
    quoted = f'"{text}"' if text and not set(text) & set('"$`!\\') else shlex.quote(text)
    columns = ", ".join(repr(name) for name in ("text", "lang", "embedding") if name in corpus.catalogue)
    return {
        "select": yaml.safe_dump({"select": selected}, allow_unicode=True, width=10_000).strip() if selected else "",
        "inspect": f"pipeline inspect {shlex.quote(corpus.url)} --to rows.parquet"
        + (f" --where {quoted}" if text else ""),
        "python": "from pipeline import Corpus\n\n"
        f"corpus = Corpus({corpus.url!r})\nfor batch in corpus.batches({columns}"
        + (f", where={text!r}" if text else "")
        + "):\n    print(batch.table)",
        "remark": " ".join(remarks),
    }


def _named(name: str) -> str:
    return name if name.isidentifier() and name.lower() not in ("and", "or", "not", "in", "is", "null") else f"`{name}`"
