"""The live files of a corpus, and SQL that shows them to DuckDB: a view for each family, and one with all their
columns.

A folder of a corpus also holds files that were replaced, so a glob would give stale rows; the views name the files that
receipts vouch for. DuckDB cannot read vectors as a corpus stores them (float16 with BYTE_STREAM_SPLIT): the views leave
them out, and `pipeline export --format parquet` writes them in a readable form.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.base.errors import ConfigError
from pipeline.base.formats import plain
from pipeline.corpus.part_reader import kept_names
from pipeline.corpus.reader import Corpus
from pipeline.corpus.recipes import SEGMENT
from pipeline.export.pieces import free
from pipeline.inputs.column_types import EXACT_IN_FLOAT, TEXT, ColumnType, types_in
from pipeline.storage import layout
from pipeline.storage.remote import is_remote

_PART = r"([^/\\]+)\.[0-9a-f]{8}-[^/\\]*$"
_SQL_TYPES = {
    "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT", "float": "REAL",
    "double": "DOUBLE", "string": "VARCHAR", "date32[day]": "DATE",
}  # fmt: skip
_SHOWN = 60  # characters of a name in a comment
_NUMBERS = ("part", "row")  # that views make themselves
_OF_FILES = ("doc", "lang", "first_row", "rows")  # of documents: also in sentences, or only the part's own numbers


def families_of(corpus: Corpus) -> list[str]:
    """Return the families of files that every part has, `documents` first. Raises `CorpusError` before the
    first part.
    """
    corpus.check_has_parts()
    there = {column.family for column in corpus.catalogue.values()}
    return [family for family in ("documents", *layout.ROW_FAMILIES) if family in there]


def live_files(corpus: Corpus, family: str) -> list[str]:
    """Return the absolute addresses of a family's files, in the order of the parts."""
    there = corpus.files(family)
    return there if is_remote(corpus.url) else [str(Path(file).absolute()) for file in there]


def duckdb_views(corpus: Corpus) -> str:
    """Return `CREATE VIEW` statements for DuckDB: `documents`, `sentences`, scores, and `corpus` with all of them
    joined.

    Rows of a view have `part` and `row`, documents `part` and `doc`. Raises `CorpusError` if the corpus has no finished
    part, or while its files still hold purged documents.
    """
    families = [family for family in families_of(corpus) if family not in layout.VECTORS]
    renamed = [
        f"-- The kept column {plain(name, _SHOWN)} is {plain(shown, _SHOWN)} here: SQL does not heed case.\n"
        for name, shown in _shown(corpus).items()
        if shown != name
    ]
    views = ["".join(renamed)] if renamed else []
    views += [_view(family, live_files(corpus, family), corpus) for family in families]
    joined = [
        f"JOIN {_name(family)} USING (part, row)" for family in families if family not in ("documents", "sentences")
    ]
    views.append(
        "CREATE OR REPLACE VIEW corpus AS\n"
        f"SELECT * FROM sentences\n"
        f"JOIN (SELECT * EXCLUDE ({', '.join(name for name in _OF_FILES if name != 'doc')}) FROM documents) "
        "USING (part, doc)" + "".join(f"\n{line}" for line in joined) + ";\n"
    )
    return "\n".join(views)


def open_duckdb(views: str) -> int:
    """Start DuckDB's shell with these views, and return its exit code. Raises `ConfigError` if it is not on
    the PATH.
    """
    shell = shutil.which("duckdb")
    if shell is None:
        raise ConfigError(
            "--open needs DuckDB's command line, and no program named duckdb is on the PATH; install it, or pipe the "
            "statements into another client: pipeline sql CORPUS"
        )
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "views.sql"
        script.write_text(views, encoding="utf-8")
        return subprocess.run([shell, "-init", str(script)], check=False).returncode


def _view(family: str, files: list[str], corpus: Corpus) -> str:
    groups = _alike(corpus, files) if family == "documents" else {_KeptColumns(): files}
    selects = [_select(family, some, kept, corpus) for kept, some in groups.items()]
    return f"CREATE OR REPLACE VIEW {_name(family)} AS\n" + "UNION ALL BY NAME\n".join(selects).rstrip("\n") + ";\n"


@dataclass(frozen=True)
class _KeptColumns:
    """How a view makes kept columns of some files: what it leaves out, replaces and adds, and their types in files."""

    excluded: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def __str__(self) -> str:
        replaced = f" REPLACE ({', '.join(self.replaced)})" if self.replaced else ""
        return replaced + "".join(f", {one}" for one in self.added)


def _shown(corpus: Corpus) -> dict[str, str]:
    """Return the names of kept columns in views, other ones where SQL would take them for an earlier column, since case
    does not matter to it.
    """
    taken = [*_NUMBERS, *_OF_FILES, *(name for name in corpus.catalogue if name not in corpus.kept_types)]
    found: dict[str, str] = {}
    for name in sorted(corpus.kept_types):
        known = {one.lower() for one in (*taken, *layout.DOCUMENT_COLUMNS)}
        found[name] = free(name, [*taken, *corpus.kept_types]) if name.lower() in known else name
        taken.append(found[name])
    return found


def _read_as(kept: Sequence[str]) -> dict[str, str]:
    """Return what DuckDB calls the kept columns of a file, in their order.

    It gives a column that has the name of an earlier one a number: `lang`, `Lang` are `lang`, `Lang_1`.
    """
    times = dict.fromkeys(map(str.lower, layout.DOCUMENT_COLUMNS), 1)
    found: dict[str, str] = {}
    for name in kept:
        read = name
        if (key := name.lower()) in times:
            while read.lower() in times:
                read = f"{name}_{times[key]}"
                times[key] += 1
        times[read.lower()] = 1
        found[name] = read
    return found


def _select(family: str, files: list[str], kept: _KeptColumns, corpus: Corpus) -> str:
    file_name = free("__file", corpus.catalogue)
    listed = ",\n  ".join(f"'{file.replace(chr(39), chr(39) * 2)}'" for file in files)
    numbers = family != "documents"
    row, excluded, option = (
        ("file_row_number AS row, ", [file_name, "file_row_number"], ", file_row_number = true")
        if numbers
        else ("", [file_name, *kept.excluded], ", union_by_name = true")
    )
    return (
        f"SELECT regexp_extract({file_name}, '{_PART}', 1) AS part, {row}* EXCLUDE ({', '.join(excluded)}){kept}\n"
        f"FROM read_parquet([\n  {listed}\n], filename = '{file_name}', hive_partitioning = false{option})\n"
    )


def _alike(corpus: Corpus, files: list[str]) -> dict[_KeptColumns, list[str]]:
    """Group files of documents by what gives their kept columns the names and the common types of all parts; a column
    that a file does not have is null.

    DuckDB's own common types are others: of 2^53 + 1 and 0.5 it makes floats, of true and 2 numbers, and of dates and
    numbers none.
    """
    groups: dict[_KeptColumns, list[str]] = {}
    shown = _shown(corpus)
    for part, file in zip(corpus.parts, files, strict=True):
        receipt = corpus.state_of(part).receipts[SEGMENT]
        mine, read_as = types_in(receipt.counts, {}), _read_as(kept_names(receipt.columns))
        excluded = [_quoted(read) for name, read in read_as.items() if shown.get(name) != read]
        replaced, added, types = [], [], []
        for name, kind in corpus.kept_types.items():
            read = read_as.get(name)
            cast = _cast(read, mine.get(name, TEXT), kind) if read else f"CAST(NULL AS {_sql_type(kind.arrow)})"
            if read != shown[name]:
                added.append(f"{cast} AS {_quoted(shown[name])}")
            elif cast != _quoted(read):
                replaced.append(f"{cast} AS {_quoted(read)}")
            if read and cast != _quoted(read):
                types.append(str(mine.get(name, TEXT).arrow))
        groups.setdefault(_KeptColumns(*map(tuple, (excluded, replaced, added, types))), []).append(file)
    return groups


def _cast(name: str, mine: ColumnType, common: ColumnType) -> str:
    """Return the cast of a column in the files of a part; its name, if it has the common type."""
    column, kind = _quoted(name), common.arrow
    if mine.arrow == kind:
        return column
    if kind == pa.string() and pa.types.is_nested(mine.arrow):
        return f"to_json({column})::VARCHAR"
    if kind == pa.string() and pa.types.is_floating(mine.arrow):  # as readers write it: whole numbers have no point
        value = f"CAST({column} AS DOUBLE)"
        is_whole = f"{value} = trunc({value}) AND abs({value}) <= {EXACT_IN_FLOAT}"
        return f"CASE WHEN {is_whole} THEN CAST(CAST({value} AS BIGINT) AS VARCHAR) ELSE CAST({value} AS VARCHAR) END"
    cast = "TRY_CAST" if mine.arrow == pa.string() else "CAST"  # text that stands for nulls alone
    return f"{cast}({column} AS {_sql_type(kind)})"


def _sql_type(kind: pa.DataType) -> str:
    """Return DuckDB's name of a type."""
    if pa.types.is_list(kind):
        return f"{_sql_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{_quoted(one.name)} {_sql_type(one.type)}' for one in kind)})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
    return _SQL_TYPES[str(kind)]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _name(family: str) -> str:
    return family.replace("-", "_")
