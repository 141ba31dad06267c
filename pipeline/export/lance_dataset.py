"""A Lance dataset: one row per sentence, for random access, and for search by text, score and vector.

    sentences.lance/    opened by lance.dataset(…)

Columns are those of `pipeline/export/pieces.py`, and `embedding`, a list of fixed size, as Lance's vector indexes want
it; float16 is bit for bit what the corpus holds. Rows are in the order of the corpus, with the split as a column. Lance
commits the dataset when all is written. Memory: what Lance gathers before it writes, and a row group of the corpus.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.base.errors import CorpusError, StorageError
from pipeline.corpus.reader import Corpus
from pipeline.export.pieces import ExportTask, Written, row_columns, rows_by_split


def check_names(corpus: Corpus) -> None:
    """Raise `CorpusError` for metadata with a point in its name, which Lance takes for the field of a struct."""
    if odd := [name for name in row_columns(corpus, embedding=False) if "." in name]:
        raise CorpusError(
            f"{corpus.url}: Lance has no columns with a point in their names, and here is {', '.join(odd)}; rename "
            "it in the data, or leave it out of `keep`; --format parquet takes it as it is"
        )


def write_lance(task: ExportTask) -> Written:
    """Write every selected sentence to a folder of this machine.

    Raises `CorpusError` for a damaged file of the corpus, and `StorageError` if the folder cannot be written.
    """
    import lance  # the extra `lance`

    target, written = task.target, task.written
    failed: list[BaseException] = []
    tables = _tables(task, failed)
    first = next(tables)
    batches = (batch for table in itertools.chain([first], tables) for batch in table.cast(first.schema).to_batches())
    place = Path(target.url) / "sentences.lance"
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        lance.write_dataset(pa.RecordBatchReader.from_batches(first.schema, batches), str(place))
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if failed:  # Lance calls the reader, and tells of its errors as of its own
            raise failed[0] from None
        if isinstance(error, OSError):
            reason = str(error).splitlines()[0].partition(", /")[0]  # without the place in Lance's source
            raise StorageError(f"{place} cannot be written: {reason}; fix that, and export again") from error
        raise
    files = [path for path in place.rglob("*") if path.is_file()]
    for path in files:
        target.add(path.relative_to(target.url).as_posix(), path.stat().st_size)
    written.files, written.bytes = len(files), sum(path.stat().st_size for path in files)
    written.next_step = f'lance.dataset({str(place)!r}).to_table(filter="chars > 100", limit=10)'
    return written


def _tables(task: ExportTask, failed: list[BaseException]) -> Iterator[pa.Table]:
    names = row_columns(task.selection.corpus, embedding=task.vectors != "none")
    try:
        for chosen in task.selection:
            for _, table in rows_by_split(task, chosen, names):
                if "embedding" in table.column_names:
                    place = table.column_names.index("embedding")
                    field = table.schema.field(place)
                    task.written.dim = field.type.list_size
                    kind = pa.list_(pa.type_for_alias(task.vectors), task.written.dim)
                    table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
                yield table
    except (Exception, KeyboardInterrupt) as error:
        failed.append(error)
        raise
