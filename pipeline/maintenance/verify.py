"""Checks every file of a corpus against the receipt that vouches for it: bytes, schema, rows, contents, finite values;
and ledgers against the receipts that they were folded from, row by row.

Cost: each file is read once and hashed twice (file and columns), a few hundred MB/s per core; memory: the files of as
many parts as there are threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.base.errors import CorpusError, DamagedError, MissingError
from pipeline.base.parallel import in_parallel
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.counters import by_detail, counters_of, stages_of
from pipeline.corpus.fingerprint import column_digest, content_digest
from pipeline.corpus.fits import lost_remedy, record_of
from pipeline.corpus.ledger import detail_of, row_of
from pipeline.corpus.reader import Corpus
from pipeline.corpus.receipts import DataFile, Receipt, read_chunk_receipt, read_receipt
from pipeline.corpus.states import ChunkState, PartState, States, read_state
from pipeline.inputs.column_types import is_kept_type
from pipeline.maintenance.records import RECEIPT, Finding
from pipeline.maintenance.trainings import check_indexes, check_trainings
from pipeline.storage import layout
from pipeline.storage.store import Store
from pipeline.training.status import FOLDER as TRAININGS
from stages.arrow import embedding_matrix
from stages.stage import NON_FINITE

THREADS = 4
AT_ONCE = 64  # chunks whose receipts are in memory
FEW = 256  # chunks whose receipts are looked for one by one


def check(corpus: Corpus, progress: Callable[[int], None]) -> list[Finding]:
    """Return everything that is wrong with the rows of a corpus, its fits, indexes and models; records must be intact.

    `progress` is told the bytes of every file that was read.
    """
    state = read_state(corpus.store, corpus.view, ledgers=False)  # receipts are the record
    wrong = [
        Finding("the accounting", what, None, rerun=True) for what in compute_accounting(corpus.store, state).problems
    ]
    for name in corpus.view.fits:
        wrong += _fit(corpus, name)
    wrong += _files(corpus.store, state, progress)
    return [*wrong, *check_ledgers(corpus.chunks), *_trainings(corpus)]


def check_apart_from_rows(corpus: Corpus) -> list[Finding]:
    """Return what is wrong with what belongs to no chunk: the accounting by the ledgers, fits, indexes and models."""
    problems = compute_accounting(corpus.store, corpus.chunks).problems
    wrong = [Finding("the accounting", what, None, rerun=True) for what in problems]
    return [*wrong, *(one for name in corpus.view.fits for one in _fit(corpus, name)), *_trainings(corpus)]


def check_chunks(
    corpus: Corpus, numbers: Sequence[int], progress: Callable[[int], None], lost: bool = True
) -> list[Finding]:
    """Return what is wrong with some chunks of a corpus: with files, receipts and ledger rows.

    Nothing else is read except the ledgers. Of a chunk that is not segmented, all that its receipts name is read.

    Args:
        corpus: the corpus.
        numbers: the numbers of the chunks in the view.
        progress: is told the bytes of every file that was read.
        lost: whether ledgers that name missing receipts are reported, of whatever chunk.

    Returns:
        The findings; empty if all is well.
    """
    chunks = corpus.chunks
    wrong = _files(corpus.store, (chunks[number] for number in numbers), progress)
    return [*wrong, *check_ledgers(chunks, np.asarray(numbers, np.int64), lost)]


def _files(store: Store, chunks: Iterable[ChunkState], progress: Callable[[int], None]) -> list[Finding]:
    wrong: list[Finding] = []
    not_segmented: set[str] = set()
    rest = iter(chunks)
    with ThreadPoolExecutor(THREADS) as pool:
        while some := list(itertools.islice(rest, AT_ONCE)):
            not_segmented |= {chunk.chunk.id for chunk in some if not chunk.segmented}
            parts = [part for chunk in some for part in chunk.parts]
            for found, done in pool.map(lambda part: _part(store, part), parts):
                wrong += found
                progress(done)
            for found in pool.map(lambda chunk: _quarantine(store, chunk), some):
                wrong += found
        for found, done in pool.map(lambda path: _left_receipt(store, path), _left_receipts(store, not_segmented)):
            wrong += found
            progress(done)
    return wrong


def _left_receipts(store: Store, chunks: Collection[str]) -> Iterator[str]:
    """Yield what is left of the receipts of chunks whose receipts of segmenting are gone: the next run makes the same
    sentences again, and would believe them.
    """
    folders = [*(f"receipts/{stage}" for stage in store.folders("receipts")), "chunks"] if chunks else []
    pieces = [f"{one[:2]}/{one}" for one in chunks] if len(chunks) < FEW else "0123456789abcdef"
    for folder, piece in itertools.product(folders, pieces):
        for path in store.find(folder, piece):
            if RECEIPT.fullmatch(path) and layout.part_owner(layout.data_owner(path)[0]) in chunks:
                yield path


def _left_receipt(store: Store, path: str) -> tuple[list[Finding], int]:
    try:
        if path.startswith("chunks/"):
            quarantine = read_chunk_receipt(store, path).quarantine
            files = [(quarantine.path, quarantine.digest)] if quarantine else []
        else:
            files = [(file.path, file.digest) for file in read_receipt(store, path).files]
    except CorpusError as error:
        return [Finding(path, str(error), path)], 0
    found, done = [], 0
    for file, digest in files:
        data, wrong = _bytes(store, file, digest)
        found += [Finding(file, what, path) for what in wrong]
        done += len(data)
    return found, done


def _fit(corpus: Corpus, name: str) -> list[Finding]:
    path = corpus.view.fits[name]
    try:
        record = record_of(corpus.store, corpus.view, name)
    except CorpusError as error:
        what = error.what if isinstance(error, DamagedError) else error
        return [Finding(path, f"{what}; {lost_remedy(name)}", None)]
    assert record  # the view names it
    return [
        Finding(file, f"{what}; {lost_remedy(name)}", path)
        for file, digest in record.files.items()
        for what in _bytes(corpus.store, file, digest)[1]
    ]


def _trainings(corpus: Corpus) -> Iterable[Finding]:
    if not corpus.store.folders(TRAININGS):
        return ()
    return [*check_indexes(corpus), *check_trainings(corpus.store)]


def _quarantine(store: Store, chunk: ChunkState) -> list[Finding]:
    file = chunk.receipt.quarantine if chunk.receipt else None
    if not chunk.receipt or not file:
        return []
    receipt = layout.chunk_receipt_path(chunk.receipt.chunk, chunk.receipt.fingerprint)
    return [Finding(file.path, what, receipt) for what in _bytes(store, file.path, file.digest)[1]]


def total_bytes(corpus: Corpus) -> int:
    """Return the total number of bytes that `progress` is told."""
    total = corpus.chunks.total
    return int(sum(sum(by_detail(total, stage, "bytes").values()) for stage in stages_of(total)))


def _part(store: Store, part: PartState) -> tuple[list[Finding], int]:
    wrong: list[Finding] = []
    tables: dict[str, pa.Table] = {}
    done = 0
    for stage, receipt in part.receipts.items():
        path = layout.receipt_path(stage, receipt.part, receipt.fingerprint)
        for file in receipt.files:
            table, what = _file(store, file, receipt)
            wrong += [Finding(file.path, one, path) for one in what]
            done += file.bytes
            if table is not None and file.family in ("embeddings", "status"):
                tables[file.family] = table
                if len(tables) == 2:
                    wrong += [Finding(file.path, one, path) for one in _values(**tables)]
    return wrong, done


def _file(store: Store, file: DataFile, receipt: Receipt) -> tuple[pa.Table | None, list[str]]:
    """Return the table of a file, if it can be read, and what is wrong with it."""
    data, wrong = _bytes(store, file.path, file.digest)
    if wrong:
        return None, wrong
    try:
        opened = pq.ParquetFile(pa.BufferReader(data))
        table = opened.read(use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return None, [f"cannot be read: {error}"]
    return table, list(_differences(file, receipt, opened.metadata, table))


def _differences(file: DataFile, receipt: Receipt, metadata: pq.FileMetaData, table: pa.Table) -> Iterator[str]:
    if table.num_rows != file.rows:
        yield f"has {table.num_rows} rows, its receipt says {file.rows}"
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    steps = range(0, file.rows, layout.ROW_GROUP_ROWS)
    if file.family in layout.ROW_FAMILIES and groups != [min(layout.ROW_GROUP_ROWS, file.rows - at) for at in steps]:
        yield f"has row groups of {sorted(set(groups))} rows, not of {layout.ROW_GROUP_ROWS}"
    width = table.schema.field(0).type.list_size if file.family in layout.VECTORS else None
    keep = {} if file.family != "documents" else _kept(table.schema)
    expected = layout.schema(file.family, width=width, keep=keep)
    if table.schema.remove_metadata() != expected:
        yield f"has the schema {table.schema.to_string()!r}, the declared one is {expected.to_string()!r}"
    for name in table.column_names:
        if column_digest(table[name]) != receipt.columns.get(f"{file.family}.{name}"):
            yield f"column {name} is not the one that its receipt vouches for"


def _kept(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the kept columns of documents with the types that they should have: string if the type is not allowed."""
    kept = [field for field in schema if field.name not in layout.DOCUMENT_COLUMNS]
    return {field.name: field.type if is_kept_type(field.type) else pa.string() for field in kept}


def _values(embeddings: pa.Table, status: pa.Table) -> Iterator[str]:
    """Check that embeddings are finite, and zero where the status says that they were not."""
    values = embedding_matrix(embeddings["embedding"])
    bad = int((~np.isfinite(values).all(axis=1)).sum())
    if bad:
        yield f"{bad} rows hold values that are not finite"
    broken = status["status"].to_numpy() == NON_FINITE
    if values[broken].any():
        yield f"rows of status {NON_FINITE} hold values other than zero"


def _bytes(store: Store, path: str, digest: str) -> tuple[bytes, list[str]]:
    try:
        data = store.read(path)
    except MissingError:
        return b"", ["is missing, though a receipt vouches for it"]
    except DamagedError as error:  # no file at all
        return b"", [f"{error.what}; {error.remedy}"]
    found = content_digest(data)
    return data, [] if found == digest else [
        f"has {len(data)} bytes with digest {found[:8]}…, its receipt says {digest[:8]}…"
    ]


def check_ledgers(states: States, numbers: npt.NDArray[np.int64] | None = None, lost: bool = True) -> Iterator[Finding]:
    """Compare every row that the view uses with one made again from receipts; a difference spoils the row's file.

    Cost: one small read per receipt.

    Args:
        states: the chunks of a view.
        numbers: of the chunks whose rows are compared, if not all.
        lost: whether missing receipts are reported, of whatever chunk.

    Yields:
        What is wrong.
    """
    store = states.store
    rows = states.rows if numbers is None else states.rows[numbers]
    if states.gone and lost:
        chunks = states.ledgers.columns("chunk")["chunk"].take(states.gone).to_pylist()
        for chunk in sorted(set(chunks)):
            what = f"some receipts of chunk {chunk} are missing, though a ledger vouches for them; pipeline run"
            yield Finding(f"receipts of chunk {chunk}", f"{what} makes what they stand for again", None, rerun=True)
    vouched = np.zeros(len(states.ledgers), np.bool_)
    vouched[rows[rows >= 0]] = True
    for path, row in states.ledgers.rows(vouched):
        where = f"the row of chunk {row['chunk']}"
        try:
            receipt = read_chunk_receipt(store, layout.chunk_receipt_path(row["chunk"], row["fingerprint"].hex()))
            chunk, folded = detail_of(row["receipts"], f"{store.url}/{path}")
            places = [
                [(stage, layout.receipt_path(stage, one.part, one.fingerprint)) for stage, one in part.items()]
                for part in folded
            ]
            every = [place for part in places for place in part]
            found = iter(in_parallel(lambda place: read_receipt(store, place[1]), every))
            parts: list[dict[str, Receipt]] = [{stage: next(found) for stage, _ in part} for part in places]
            again = row_of(receipt, parts, counters_of(receipt, ((part, ()) for part in parts)))
        except (CorpusError, ValueError, KeyError) as error:
            yield Finding(path, f"vouches for a receipt that cannot be read: {where}: {error}", path)
            continue
        # Receipts are compared as they are read: earlier versions wrote them without fields that are empty by default.
        same = (chunk, folded) == (receipt, parts)
        differing = [name for name in row if (not same if name == "receipts" else row[name] != again[name])]
        if differing:
            yield Finding(path, f"differs from the receipts in {', '.join(differing)}: {where}", path)
