"""Ledgers: the content of the receipts of finished chunks, one row per chunk, so that few files describe millions of
parts.

`ledger/<time>-<id>.parquet` files are written once and never changed; a chunk may stand in several. A row has
three kinds of columns: what it holds for (the fingerprint of the chunk's segmentation, and the recipes of the stages
that all its parts have), the counters (`pipeline/corpus/counters.py`), and the receipts themselves, which are read
only when details of a part are needed. Receipts stay the record: a lost ledger is folded again, and `pipeline verify`
checks that both are equal.

Cost: 60 bytes per chunk in memory, a few seconds to add up a million chunks; 2 to 15 kB per chunk on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from pipeline.base.errors import CorpusError, DamagedError
from pipeline.base.parallel import in_parallel
from pipeline.corpus.counters import CHUNK, Counters, least_of, most_of
from pipeline.corpus.ledger_copy import LedgerCopy
from pipeline.corpus.receipts import ChunkReceipt, Receipt
from pipeline.storage import layout
from pipeline.storage.records import parse_json, said_of
from pipeline.storage.store import Store

FOLDER = "ledger"
VERSION = "1"
GROUP = 256  # chunks per row group, which is read to see the receipts of one chunk
FILE_CHUNKS = 1 << 14  # at most in a file
_KEPT_GROUPS = 4  # row groups whose receipts are kept in memory
SMALL = 1 << 12  # files of fewer chunks are compacted
_KEYS = "keys.list.element"
SCHEMA = pa.schema(
    [
        ("chunk", pa.string()),
        ("fingerprint", pa.binary(16)),
        ("recipes", pa.string()),  # JSON: stage → its recipe's fingerprint and the columns that it wrote
        ("prints", pa.binary()),  # 4 bytes of each receipt's fingerprint: stage after stage, part after part
        ("parts", pa.int32()),
        ("skipped", pa.list_(pa.int32())),  # numbers of parts that are absent because all their documents were purged
        ("sentences", pa.int64()),
        ("stamp", pa.string()),  # of the input file
        ("take", pa.int64()),
        ("created", pa.float64()),
        ("keys", pa.list_(pa.string())),  # of the counters
        ("values", pa.list_(pa.float64())),
        ("receipts", pa.string()),  # JSON: the chunk's, and by stage those of every part
    ],
    {"ledger": VERSION},
)
REMEDY = "pipeline verify --repair deletes it: it is made again from receipts"
Ints = npt.NDArray[np.int64]
Detail = tuple[ChunkReceipt, list[dict[str, Receipt]]]  # of every part its receipts by stage


class _RecipeOf(BaseModel):
    recipe: str
    columns: list[str]


class _Detail(BaseModel):
    chunk: ChunkReceipt
    parts: list[dict[str, Receipt]]


class LedgerGoneError(CorpusError):
    """A ledger was compacted into another one since it was listed; list again."""


def row_of(receipt: ChunkReceipt, parts: Sequence[Mapping[str, Receipt]], counters: Counters) -> dict[str, Any]:
    """Return the ledger row of a chunk.

    Args:
        receipt: the chunk's receipt.
        parts: stage → receipt of each part; all parts must have the same stages.
        counters: the counters of the chunk and its parts, added up.

    Returns:
        Column → value.
    """
    first = parts[0] if parts else {}
    numbers = [layout.part_number(ref.part) for ref in receipt.parts]
    recipes = {stage: {"recipe": one.recipe, "columns": sorted(one.columns)} for stage, one in first.items()}
    receipts = {"chunk": receipt.model_dump(), "parts": [{s: part[s].model_dump() for s in first} for part in parts]}
    return {
        "chunk": receipt.chunk,
        "fingerprint": bytes.fromhex(receipt.fingerprint),
        "recipes": json.dumps({CHUNK: {"recipe": receipt.recipe, "columns": []}, **recipes}),
        "prints": b"".join(bytes.fromhex(part[stage].fingerprint[:8]) for stage in first for part in parts),
        "parts": len(parts),
        "skipped": sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers)),
        "sentences": receipt.sentences,
        "stamp": receipt.stamp,
        "take": receipt.take,
        "created": receipt.created,
        "keys": list(counters),
        "values": list(counters.values()),
        "receipts": json.dumps(receipts, ensure_ascii=False, separators=(",", ":")),
    }


def _recipes_of(text: str, where: str) -> dict[str, dict[str, Any]]:
    recipes = parse_json(text, dict[str, _RecipeOf], where, REMEDY)
    if CHUNK not in recipes:
        raise DamagedError(where, "a row has no recipe of its chunk", REMEDY)
    return {stage: one.model_dump() for stage, one in recipes.items()}


def detail_of(text: str, where: str) -> Detail:
    """Parse the receipts of a row. `where` names the file in messages. Raises `CorpusError` if they are damaged."""
    value = parse_json(text, _Detail, where, REMEDY)
    return value.chunk, value.parts


def write_rows(store: Store, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write rows into new files, and return their paths."""
    rest = iter(rows)
    tables = (pa.Table.from_pylist(some, SCHEMA) for some in iter(lambda: list(itertools.islice(rest, GROUP)), []))
    return list(_write(store, tables))


def _write(store: Store, tables: Iterator[pa.Table]) -> Iterator[str]:
    """Write tables of `GROUP` rows into files of at most `FILE_CHUNKS` rows."""
    while some := next(tables, None):
        sink = pa.BufferOutputStream()
        options: dict[str, Any] = {"compression": "zstd", "write_statistics": False, "write_page_checksum": True}
        with pq.ParquetWriter(sink, SCHEMA, use_dictionary=["recipes", "stamp", _KEYS], **options) as writer:
            for table in itertools.chain([some], itertools.islice(tables, FILE_CHUNKS // GROUP - 1)):
                writer.write_table(table)
        path = f"{FOLDER}/{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{secrets.token_hex(3)}.parquet"
        store.write(path, memoryview(sink.getvalue()))
        yield path


@contextlib.contextmanager
def _opened(store: Store, path: str, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a ledger file for reading; `texts` are columns to read as dictionaries.

    Raises `LedgerGoneError` if it no longer exists, `CorpusError` if it is damaged or of a newer version.
    """
    try:
        with store.open(path) as handle:
            file = pq.ParquetFile(handle, read_dictionary=list(texts), pre_buffer=True, page_checksum_verification=True)
            version = (file.schema_arrow.metadata or {}).get(b"ledger", b"none").decode()
            if version != VERSION:
                raise CorpusError(
                    f"{store.url}/{path} is a ledger of version {version}; this program reads version {VERSION}: use "
                    "the program that wrote it, or delete that file (it is made again from receipts)"
                )
            yield file
    except (CorpusError, FileNotFoundError) as error:
        if store.exists(path):
            raise
        raise LedgerGoneError(f"{store.url}/{path} is gone") from error
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise DamagedError(f"{store.url}/{path}", said_of(error), REMEDY) from error


def check_file(store: Store, path: str) -> None:
    """Read all of a ledger. Raises `LedgerGoneError`, or `CorpusError` if anything in it cannot be read."""
    where = f"{store.url}/{path}"
    with _opened(store, path) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number).cast(SCHEMA)
            for recipes, receipts in zip(table["recipes"].to_pylist(), table["receipts"].to_pylist(), strict=True):
                _recipes_of(recipes, where)
                detail_of(receipts, where)


class Ledgers:
    """The rows of all ledger files in columns. `recipes` are the distinct ones; `recipe` is the index of each row's
    recipe.

    Args:
        store: the corpus.
        files: the paths of the ledger files.
        tables: what was read of each file, with the columns of `_INDEX`.
    """

    def __init__(self, store: Store, files: list[str], tables: list[pa.Table]) -> None:
        self._store = store
        self.files = files
        table = pa.concat_tables(tables or [_INDEX.empty_table()]).unify_dictionaries().combine_chunks()
        found = table["recipes"].combine_chunks()
        texts = found.dictionary.to_pylist()
        self.recipes = [_recipes_of(text, f"{store.url}/{FOLDER}") for text in texts]
        self.recipe: Ints = found.indices.to_numpy().astype(np.int64)
        self.fingerprints = table["fingerprint"].combine_chunks()
        self.parts: Ints = table["parts"].to_numpy().astype(np.int64)
        self.sentences: Ints = table["sentences"].to_numpy()
        skipped = table["skipped"].combine_chunks()
        some = np.flatnonzero(skipped.value_lengths().to_numpy())
        self._skipped = {row: set(skipped[row].as_py()) for row in some.tolist()}
        self._ends: Ints = np.cumsum([len(one) for one in tables], dtype=np.int64)
        self._copy, self._reads = LedgerCopy(), Counter[int]()  # how many row groups were read of each ledger
        self._groups: dict[tuple[int, int], pa.ChunkedArray] = {}  # the receipts of those that were read last
        self._one_at_a_time = threading.Lock()

    @classmethod
    def read(cls, store: Store) -> Ledgers:
        """Return the index of the ledgers: 40 bytes per row.

        Raises `LedgerGoneError` if a ledger was compacted meanwhile.
        """
        files = [path for path in store.find(FOLDER) if path.endswith(".parquet")]
        return cls(store, files, in_parallel(lambda path: _index(store, path), files))

    def __len__(self) -> int:
        return len(self.parts)

    def numbers(self, row: int) -> Sequence[int]:
        """Return the numbers of the parts of a row."""
        skipped = self._skipped.get(row, set())
        every = range(int(self.parts[row]) + len(skipped))
        return [number for number in every if number not in skipped] if skipped else every

    def columns(self, *names: str) -> pa.Table:
        """Return some columns of all rows."""

        def read(path: str) -> pa.Table:
            with _opened(self._store, path) as file:
                return file.read(list(names))

        empty = pa.schema([SCHEMA.field(name) for name in names]).empty_table()
        return pa.concat_tables([empty, *in_parallel(read, self.files)]).combine_chunks()

    def counters(self, groups: Ints, count: int) -> list[Counters]:
        """Add up the rows of each group. `groups` gives the group of every row in [0, count), or −1."""
        found: list[Counters] = [{} for _ in range(count)]
        start = 0
        for path, end in zip(self.files, self._ends.tolist(), strict=True):
            if (groups[start:end] >= 0).any():
                with _opened(self._store, path, [_KEYS]) as file:
                    for number in range(file.num_row_groups):
                        table = file.read_row_group(number, columns=[_KEYS, "values.list.element"])
                        _add_up(table, groups[start : start + len(table)], found)
                        start += len(table)
            start = end
        return found

    def having(self, head: str) -> npt.NDArray[np.bool_]:
        """Return which rows have a counter whose key begins with this, from the keys alone."""
        found = np.zeros(len(self), np.bool_)
        start = 0
        for path, end in zip(self.files, self._ends.tolist(), strict=True):
            with _opened(self._store, path, [_KEYS]) as file:
                for number in range(file.num_row_groups):
                    keys = file.read_row_group(number, columns=[_KEYS])["keys"].combine_chunks()
                    names = keys.flatten()
                    wanted = np.asarray([name.startswith(head) for name in names.dictionary.to_pylist()], np.bool_)
                    of_row = np.repeat(np.arange(start, start + len(keys)), keys.value_lengths().to_numpy())
                    found[of_row[wanted[names.indices.to_numpy()]]] = True
                    start += len(keys)
            start = end
        return found

    def rows(self, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the file and all columns of every wanted row, with one row group in memory."""
        start = 0
        for path, end in zip(self.files, self._ends.tolist(), strict=True):
            for table in _rows_of(self._store, path, wanted[start:end]):
                for row in table.to_pylist():
                    yield path, row
            start = end

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Remove all other rows: files are written again without them, or deleted if no row is left."""
        start = 0
        for path, end in zip(self.files, self._ends.tolist(), strict=True):
            if not rows[start:end].all():
                list(_write(self._store, _regrouped(_rows_of(self._store, path, rows[start:end]))))
                self._store.delete(path)
            start = end

    def detail(self, row: int) -> Detail:
        """Return the receipts of a row. Rows may be asked for in any order (`ledger_copy.py`).

        Raises `LedgerGoneError` if its ledger was compacted meanwhile.
        """
        number = int(np.searchsorted(self._ends, row, side="right"))
        inside = row - (int(self._ends[number - 1]) if number else 0)
        with self._one_at_a_time:
            text = self._receipts(number, inside)
        return detail_of(text, f"{self._store.url}/{self.files[number]}")

    def _receipts(self, ledger: int, row: int) -> str:
        place = ledger, row // GROUP
        if place not in self._groups:
            copied = self._copied(ledger, row)
            if copied is not None:
                return copied
            with _opened(self._store, self.files[ledger]) as file:
                self._groups[place] = _receipts_of(file, place[1])
            if len(self._groups) > _KEPT_GROUPS:
                del self._groups[next(iter(self._groups))]
        return str(self._groups[place][row % GROUP].as_py())

    def _copied(self, ledger: int, row: int) -> str | None:
        """Return the receipts of a row from the copy of its ledger, which is made once row groups of it were read more
        often than there are; None before that, and if there is no space for it.
        """
        if ledger not in self._copy:
            rows = int(self._ends[ledger] - (self._ends[ledger - 1] if ledger else 0))
            self._reads[ledger] += 1
            if self._copy.given_up or self._reads[ledger] <= -(-rows // GROUP):
                return None
            with _opened(self._store, self.files[ledger]) as file:
                groups = (_receipts_of(file, group) for group in range(file.num_row_groups))
                error = self._copy.add(ledger, itertools.chain.from_iterable(groups))
            if error:
                self._copy.give_up(error)
        return self._copy.text(ledger, row) if ledger in self._copy else None


def _receipts_of(file: pq.ParquetFile, group: int) -> pa.ChunkedArray:
    return file.read_row_group(group, columns=["receipts"])["receipts"]


_INDEX = pa.schema(
    [
        SCHEMA.field("fingerprint"),
        ("recipes", pa.dictionary(pa.int32(), pa.string())),
        SCHEMA.field("parts"),
        SCHEMA.field("skipped"),
        SCHEMA.field("sentences"),
    ]
)


def _index(store: Store, path: str) -> pa.Table:
    with _opened(store, path, ["recipes"]) as file:
        return file.read(_INDEX.names).replace_schema_metadata().unify_dictionaries().cast(_INDEX)


def _add_up(table: pa.Table, groups: Ints, found: list[Counters]) -> None:
    keys, values = table["keys"].combine_chunks(), table["values"].combine_chunks().flatten().to_numpy()
    of_row = np.repeat(groups, keys.value_lengths().to_numpy())
    flat = keys.flatten()
    names = flat.dictionary.to_pylist()
    used = of_row >= 0
    cell = of_row[used] * len(names) + flat.indices.to_numpy()[used]
    values = values[used]
    added = np.bincount(cell, values)
    for one in np.flatnonzero(np.bincount(cell)).tolist():
        counters, key = found[one // len(names)], names[one % len(names)]
        if least_of(key) or most_of(key):
            pick = min if least_of(key) else max
            value = pick(values[cell == one].tolist())
            counters[key] = pick(counters.get(key, value), value)
        else:
            counters[key] = counters.get(key, 0.0) + float(added[one])


def forget(store: Store, chunks: Collection[str]) -> None:
    """Remove the rows of these chunks from the ledgers; call this before receipts of these chunks are deleted."""
    ledgers = Ledgers.read(store) if chunks else None
    if ledgers and len(ledgers):
        owners = ledgers.columns("chunk")["chunk"].to_pylist()
        ledgers.keep(np.asarray([one not in chunks for one in owners], np.bool_))


def compact(store: Store) -> int:
    """Merge small files, writing new ones first, so that readers find every row at any moment. Returns how many were
    merged.

    Rows whose results all stand in a newer row of their chunk are left out. Memory: a file of 16 384 chunks, 30 to
    250 MB.
    """
    small: list[str] = []
    for path in store.find(FOLDER):
        with contextlib.suppress(LedgerGoneError), _opened(store, path) as file:
            if file.metadata.num_rows < SMALL:
                small.append(path)
    if len(small) < 2:
        return 0
    with contextlib.suppress(LedgerGoneError):  # another process is compacting
        list(_write(store, _regrouped(_distinct(store, small[::-1]))))
        for path in small:
            store.delete(path)
        return len(small)
    return 0


def _distinct(store: Store, paths: Sequence[str]) -> Iterator[pa.Table]:
    seen: defaultdict[bytes, list[frozenset[tuple[str, str, bytes]]]] = defaultdict(list)
    for path in paths:
        with _opened(store, path) as file:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number)
                new = []
                for row in table.select(["fingerprint", "recipes", "prints", "parts", "skipped"]).to_pylist():
                    results, newer = _results_of(row), seen[row["fingerprint"]]
                    new.append(not any(results <= one for one in newer))
                    newer.append(results)
                yield table.filter(pa.array(new, pa.bool_()))


def _results_of(row: Mapping[str, Any]) -> frozenset[tuple[str, str, bytes]]:
    """Return what a row holds of its chunk: stages, with their recipes and 4 bytes of each receipt's fingerprint."""
    recipes = json.loads(row["recipes"])
    chunk, size = recipes.pop(CHUNK), 4 * row["parts"]
    prints = (row["prints"][start : start + size] for start in itertools.count(0, size))
    stages = {(stage, json.dumps(recipe), some) for (stage, recipe), some in zip(recipes.items(), prints, strict=False)}
    return frozenset({(CHUNK, json.dumps([chunk, row["parts"], row["skipped"]]), b"")} | stages)


def _rows_of(store: Store, path: str, rows: npt.NDArray[np.bool_]) -> Iterator[pa.Table]:
    with _opened(store, path) as file:
        start = 0
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            yield table.filter(pa.array(rows[start : start + len(table)]))
            start += len(table)


def _regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows as tables of `GROUP` rows."""
    held = SCHEMA.empty_table()
    for table in tables:
        held = pa.concat_tables([held, table])
        while len(held) >= GROUP:
            yield held.slice(0, GROUP)
            held = held.slice(GROUP)
    if len(held):
        yield held
