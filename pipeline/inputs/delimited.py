"""Makes Parquet of a table in text, CSV or TSV: `python -m pipeline.inputs.delimited IN.csv OUT.parquet`.

The separator is found in the first line. Spreadsheets put fields with separators, quotation marks or line ends between
quotation marks, and double those inside; other files with tabs leave quotation marks as they come. A file is taken for
one of the latter where all of its lines have as many separators, and some quotation mark begins a field that no other
one ends. All values stay text: 007 is no number, and NA no missing value.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections.abc import Sequence

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.base.errors import PipelineError, visible
from pipeline.base.formats import counted
from pipeline.inputs.settings import InputError
from pipeline.storage.replacing import replacing_file

SEPARATORS = ",;\t|"
_NONE = "\a"  # separates the fields of a table with one column
_BLOCK = 64 << 20  # bytes that hold any row
_NAMES = {_NONE: "one column", "\t": "separated by tabs"}


def read_delimited(data: bytes) -> tuple[pa.Table, str, bool]:
    """Read a table in UTF-8, or in UTF-16 with a mark.

    Returns the table, of text; the separator; and whether fields may stand between quotation marks. Raises
    `InputError` for another encoding, for rows of different lengths, and for columns without a name of their own.
    """
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start} is no {error.encoding.upper()}; convert the file to UTF-8 first: iconv -f ENCODING "
            "-t UTF-8"
        ) from error
    separator = max(_NONE + SEPARATORS, key=text.partition("\n")[0].count)
    quoted = not (separator in (_NONE, "\t") and _has_stray_quotes(text, separator))
    lines = io.StringIO(text, newline="")
    try:
        names = next(
            csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE), []
        )
    except csv.Error as error:
        raise InputError(f"the first line gives no names of columns: {error}") from error
    if twice := sorted({visible(one) for one in names if not one or names.count(one) > 1}):
        raise InputError(f"the first line does not name each column once, but has these: {twice}; mend it")
    try:
        table = pa.csv.read_csv(
            io.BytesIO(text.encode()),
            pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False, column_names=names, skip_rows_after_names=1),
            pa.csv.ParseOptions(
                delimiter=separator, quote_char='"' if quoted else False, double_quote=quoted,
                newlines_in_values=quoted, ignore_empty_lines=separator != _NONE,
            ),
            pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        raise InputError(str(error)) from error
    return table, separator, quoted


def _has_stray_quotes(text: str, separator: str) -> bool:
    """Return whether quotation marks at the beginning of fields do not enclose them."""
    lines = text.rstrip("\r\n").split("\n")
    if any(one.count(separator) != lines[0].count(separator) for one in lines):
        return False
    start = rf'(^|[\n{separator}])"'
    whole = rf'{start}(?:[^"{separator}]|"")*+"(?=[\r\n{separator}])'
    return re.search(start, re.sub(whole, "", text + "\n")) is not None


def main(arguments: Sequence[str]) -> int:
    """Convert the first file to the second. Returns the exit code."""
    if len(arguments) != 2:
        print("Usage: python -m pipeline.inputs.delimited IN.csv OUT.parquet", file=sys.stderr)
        return 2
    source, target = arguments
    try:
        with fsspec.open(source, "rb", compression="infer") as file:
            table, separator, quoted = read_delimited(file.read())
        with replacing_file(target) as out:
            pq.write_table(table, out)
    except (PipelineError, OSError) as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 1
    how = _NAMES.get(separator, f"separated by {separator}")
    marks = "" if quoted else ", in which quotation marks are text"
    print(f"{target}: {counted(table.num_rows, 'row')} of {source}, {how}{marks}; columns: {table.column_names}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
