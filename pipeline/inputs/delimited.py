"""Makes Parquet of a table in text, CSV or TSV: `python -m pipeline.inputs.delimited IN.csv OUT.parquet`.

The first line that is not blank names the columns, and shows the separator unless Excel's line `sep=;` before it states
it. Spreadsheets put fields with separators, quotation marks or line ends between quotation marks, and double those
inside; other files with tabs, or of one column, leave quotation marks as they come. All values stay text: 007 is no
number, and NA no missing value. Nothing is guessed where rows would be merged or cut: a file that fits neither way is
refused, with the line.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.base.errors import PipelineError, visible
from pipeline.base.formats import counted
from pipeline.inputs.magic import HEAD, marked_encoding
from pipeline.inputs.settings import InputError
from pipeline.inputs.streams import DECODE_ERRORS
from pipeline.storage.replacing import replacing_file

ONE_COLUMN = "\a"  # separates the fields of a table with one column
SEPARATORS = (ONE_COLUMN, ",", ";", "\t", "|")
INDEX = "index"  # the name of a first column without one: pandas writes row numbers so
_ROWS = 65_536  # that become Arrow at a time
_STATED = re.compile(r'sep=([^"\r\n])(?=\r?\n)')  # Excel's own first line
_SAID = {ONE_COLUMN: "one column", "\t": "separated by tabs"}


def read_delimited(data: bytes) -> tuple[pa.Table, str, bool]:
    """Read a table in UTF-8, or in UTF-16 with a mark, or with a first line in Latin letters.

    Returns the table, of text; the separator; and whether fields may stand between quotation marks. Raises
    `InputError` for another encoding, for rows of different lengths, for a quotation mark that is never closed, and for
    columns without a name of their own.
    """
    encoding = marked_encoding(data[:HEAD]) or marked_encoding(data[:HEAD].partition(b"\n")[0])
    try:
        text = data.decode(encoding or "utf-8-sig").lstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start} is not {error.encoding.upper()}; convert the file to UTF-8 first: iconv -f ENCODING "
            "-t UTF-8 FILE > NEW (Excel's CSV is often in WINDOWS-1252; unpack a compressed file before that)"
        ) from error
    csv.field_size_limit(sys.maxsize)
    stated = _STATED.match(text)
    separator = stated[1] if stated else max(SEPARATORS, key=lambda one: _columns(text, one))
    text = text[stated.end() :] if stated else text
    quoted = _is_quoted(text, separator)
    rows = _rows(text, separator, quoted)
    names = _names(next(rows, []))
    batches = []
    while some := list(islice(rows, _ROWS)):
        columns = zip(*some, strict=True)
        batches.append(pa.table([pa.array(one, pa.string()) for one in columns], names))
    empty = pa.table({name: pa.array([], pa.string()) for name in names})
    return pa.concat_tables([empty, *batches]), separator, quoted


def _columns(text: str, separator: str) -> int:
    """Return how many columns the first line names, if this separates them; 0 where it cannot."""
    try:
        return len(next(_rows(text, separator, quoted=True), []))
    except InputError:
        return len(text.partition("\n")[0].split(separator)) if separator == "\t" else 0


def _is_quoted(text: str, separator: str) -> bool:
    """Return whether quotation marks enclose fields.

    With tabs they do not if all lines have the same number of tabs, and reading them as marks of fields fails or joins
    lines. In one column they do not if reading them so fails.
    """
    if separator not in (ONE_COLUMN, "\t"):
        return True
    try:
        rows = sum(1 for _ in _rows(text, separator, quoted=True))
    except InputError:
        rows = None
    if separator == ONE_COLUMN:
        return rows is not None
    lines = [line for line in text.split("\n") if line.strip("\r")]
    return rows == len(lines) or len({line.count(separator) for line in lines}) > 1


def _rows(text: str, separator: str, quoted: bool) -> Iterator[list[str]]:
    """Yield the fields of each row that is not blank. Raises `InputError` for one that cannot be read."""
    lines = io.StringIO(text, newline="")
    if quoted:
        reader = csv.reader(lines, delimiter=separator, strict=True)
    else:
        reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
    width = None
    try:
        for row in reader:
            width = width or len(row)
            if row and len(row) != width:
                raise InputError(f"line {reader.line_num} has {counted(len(row), 'field')}, the first one {width}")
            if row:
                yield row
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}: {error}") from error


def _names(names: list[str]) -> list[str]:
    if names and not names[0] and INDEX not in names:
        names = [INDEX, *names[1:]]
    if not names:
        raise InputError("there is no line with the names of columns")
    if twice := sorted({visible(one) for one in names if not one or names.count(one) > 1}):
        raise InputError(f"the first line does not name each column once, but has these: {twice}; mend it")
    return names


def main(arguments: Sequence[str]) -> int:
    """Convert the first file to the second. Returns the exit code."""
    if len(arguments) != 2:
        print("Usage: python -m pipeline.inputs.delimited IN.csv OUT.parquet", file=sys.stderr)
        return 2
    source, target = arguments
    if os.path.realpath(source) == os.path.realpath(target):
        print(f"{source}: OUT is the same file, which would be replaced; give another name", file=sys.stderr)
        return 2
    try:
        with fsspec.open(source, "rb", compression="infer") as file:
            table, separator, quoted = read_delimited(file.read())
        with replacing_file(target) as out:
            pq.write_table(table, out)
    except (PipelineError, *DECODE_ERRORS) as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 1
    how = _SAID.get(separator, f"separated by '{separator}'")
    marks = "" if quoted else ", in which quotation marks are text"
    print(f"{target}: {counted(table.num_rows, 'row')} of {source}, {how}{marks}; columns: {table.column_names}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
