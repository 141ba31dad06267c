"""Compares all sentences and all documents of a corpus, and writes the columns of `duplicates`,
`near` and `semantic`.

Every part has hashes, or keys of MinHash, already. They are distributed by range to files of a temporary folder, and
each range is compared alone; what is found is distributed by part in the same way. So memory holds a few million hashes
(more beyond 800 million sentences). A part counts each hash once, so that a sentence that is everywhere does not fill a
range. The result depends on the parts and their order alone. Parts whose receipt exists are not written again. One
process does it with every launcher. Cost: see `benchmarks/duplicates.py`; 20 bytes per distinct key of a part in the
temporary folder. Embeddings are compared on the first GPU of the machine where it runs, if there is one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.errors import CorpusError, PipelineError
from pipeline.base.parallel import prefetch
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.part_reader import PartReader
from pipeline.corpus.receipts import commit
from pipeline.corpus.recipes import in_input_order, part_fingerprint, stage_recipe
from pipeline.corpus.states import PartState
from pipeline.planning.plan import Plan
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from stages.duplicates.groups import FOUND, MEMBERS, GroupLookup, clusters, edges_of, groups, members
from stages.duplicates.settings import SemanticDuplicatesSettings
from stages.stage import NON_FINITE, StageSettings

AT_ONCE = 4_000_000  # hashes in memory
MOST_PIECES = 200  # files open at a time, of three kinds; so beyond 800 million sentences, more hashes are in memory
_NAMED = pa.schema([*FOUND, pa.field("doc_id", pa.string()), pa.field("position", pa.int32())])
Ints = npt.NDArray[np.int64]


def find_duplicates(plan: Plan, stage: str, device: Callable[[], str] = lambda: "cpu", at_once: int = AT_ONCE) -> int:
    """Write the family of a corpus-wide stage for all parts that lack it.

    Args:
        plan: the plan; all its chunks must be segmented, and all parts must have what is compared, or `CorpusError` is
            raised.
        stage: `duplicates`, `near` or `semantic`.
        device: says where embeddings are compared; it is called only if they are.
        at_once: how many rows are in memory at the same time, about.

    Returns:
        How many parts lacked it.
    """
    settings = next(one for one in plan.config.row_stages() if one.name == stage)
    parts = _parts_in_order(plan, settings)
    where = device() if isinstance(settings, SemanticDuplicatesSettings) else "cpu"
    return compare_parts(Store(plan.config.output), plan.config, settings, parts, where, at_once)


def compare_parts(
    store: Store,
    config: RunConfig,
    settings: StageSettings,
    parts: Sequence[PartState],
    device: str = "cpu",
    at_once: int = AT_ONCE,
) -> int:
    """Write the family of a corpus-wide stage for those of some parts that lack it.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        settings: the settings of the stage.
        parts: the parts, in the order of the corpus; all have what is compared.
        device: where embeddings are compared: `cpu`, `cuda:0`.
        at_once: how many rows are in memory at the same time, about.

    Returns:
        How many parts lacked it.
    """
    started = time.perf_counter()
    rows = np.asarray([part.rows for part in parts], np.int64)
    total = max(1, int(rows.sum()))
    pieces = min(MOST_PIECES, -(-total // at_once))
    batch = (np.cumsum(rows) - 1) * pieces // total  # of each part: parts of one batch are written together
    work = ComparedParts(store, settings, parts, batch, pieces, device)
    with tempfile.TemporaryDirectory() as folder:
        units = UNITS[settings.name]
        named = [work.named(unit, Path(folder, str(number))) for number, unit in enumerate(units)]
        shared = (time.perf_counter() - started) / total
        written = 0
        for number, tables in enumerate(zip(*(one.read() for one in named), strict=True)):
            inside = [one for one in np.flatnonzero(batch == number).tolist() if settings.name in parts[one].missing]
            write = partial(_write, work, config, list(zip(units, tables, strict=True)), shared)
            written += sum(1 for _ in prefetch(write, inside))
    return written


def _parts_in_order(plan: Plan, settings: StageSettings) -> list[PartState]:
    order, _ = in_input_order(plan.config, plan.view.listed.chunks)
    found: list[PartState] = []
    for number in order.tolist():
        chunk = plan.chunks[number]
        if not chunk.segmented:
            raise CorpusError(f"{settings.name}: {chunk.chunk.source} is not segmented; run without --only")
        found += sorted(chunk.parts, key=lambda part: part.ref.part)
    for part in found:
        there = {column for receipt in part.receipts.values() for column in receipt.columns}
        for column in settings.reads:
            if column not in there:
                raise CorpusError(f"{settings.name}: part {part.ref.part} has no {column}; run without --only")
    return found


class _PartRows:
    """The rows of a part, with the columns that are compared, and the rows at which documents begin."""

    def __init__(self, store: Store, part: PartState, columns: Sequence[str]) -> None:
        with PartReader(store, part.ref.part, part.receipts, frozenset()) as reader:
            self.table = reader.read(["doc", *columns])
        self.rows = np.arange(self.table.num_rows)
        self.starts = np.flatnonzero(np.diff(self.table["doc"].to_numpy(), prepend=-1))

    @property
    def begins(self) -> Ints:
        """Return (rows,) the first row of each one's document."""
        return np.repeat(self.starts, np.diff(np.append(self.starts, len(self.rows))))


@dataclass(frozen=True)
class Unit:
    """What is compared, and the columns that say so: `<prefix>duplicate_of` and `<prefix>duplicate_count`.

    `column`: that of the keys; `documents`: whether documents are compared, not sentences; `found`: yields `FOUND`
    tables; `by_row`: whether their key is a row.
    """

    prefix: str
    column: str
    documents: bool
    found: Callable[[Unit, ComparedParts, Path], Iterator[pa.Table]]
    by_row: bool = False

    @property
    def name(self) -> str:
        """What is counted."""
        return "documents" if self.documents else "sentences"

    def keys(self, part: _PartRows) -> npt.NDArray[np.uint64]:
        """Return (rows,) the keys by which rows are looked up in what was found."""
        if self.by_row:
            return (part.begins if self.documents else part.rows).astype(np.uint64)
        return np.asarray(part.table[self.column].to_numpy())


@dataclass(frozen=True)
class ComparedParts:
    """The parts, in order, the batch of each, how many batches and ranges of keys there are, and where embeddings are
    compared.
    """

    store: Store
    settings: StageSettings
    parts: Sequence[PartState]
    batch: Ints
    pieces: int
    device: str

    @property
    def computed_on(self) -> str:
        """Return where the comparison was computed, for receipts: `cpu`, or a device of PyTorch."""
        if not isinstance(self.settings, SemanticDuplicatesSettings):
            return "cpu"
        from stages.device import describe  # imports torch, as the comparison did

        return describe(self.device)

    def scan(self, *columns: str) -> Iterator[tuple[int, _PartRows]]:
        """Yield the number and the rows of one part after the other."""
        return enumerate(prefetch(lambda part: _PartRows(self.store, part, columns), self.parts))

    def named(self, unit: Unit, folder: Path) -> _Distributed:
        """Find a unit's duplicates, and where the first of each is; distributed by part."""
        folder.mkdir()
        found = _Distributed(folder / "found", FOUND, self.pieces)
        for table in unit.found(unit, self, folder):
            found.add(table, self.batch[table["first_part"].to_numpy()])
        named = _Distributed(folder / "named", _NAMED, self.pieces)
        for table in found.read():
            some = _with_names(self.store, self.parts, table)
            named.add(some, self.batch[some["part"].to_numpy()])
        return named


def _equal(unit: Unit, work: ComparedParts, folder: Path) -> Iterator[pa.Table]:
    """Yield the groups of equal keys, one range of keys after the other."""
    hashed = _Distributed(folder / "members", MEMBERS, work.pieces)
    for number, part in work.scan(unit.column):
        keys, rows = unit.keys(part), part.rows
        if unit.documents:
            keys, rows = keys[part.starts], part.starts
        hashed.add_by_hash(members(keys, rows, number))
    return (groups(table) for table in hashed.read())


def _linked(unit: Unit, work: ComparedParts, folder: Path) -> Iterator[pa.Table]:
    """Yield the clusters of documents that are linked by common keys; memory holds the links, 16 bytes each."""
    hashed = _Distributed(folder / "members", MEMBERS, work.pieces)
    links = [np.zeros((0, 2), np.int64)]
    for number, part in work.scan(unit.column):
        lists = part.table[unit.column].combine_chunks()
        keys = lists.flatten().to_numpy()
        rows = part.starts.repeat(len(keys) // max(1, len(part.starts)))
        links.append(np.unique(edges_of(keys, (number << 32) + rows), axis=0))
        hashed.add_by_hash(members(keys, rows, number))
    for table in map(groups, hashed.read()):
        one, other = (
            (table[a].to_numpy().astype(np.int64) << 32) + table[b].to_numpy()
            for a, b in (("part", "row"), ("first_part", "first_row"))
        )
        links.append(np.unique(np.stack([one, other], axis=1)[one != other], axis=0))
    yield _found(*clusters(np.concatenate(links)))


def _similar(unit: Unit, work: ComparedParts, folder: Path) -> Iterator[pa.Table]:
    """Yield the sentences that are similar to others with the same first code, a few codes at a time."""
    from stages.device import DeviceMemoryError  # imports torch
    from stages.duplicates.semantic import similar

    assert isinstance(work.settings, SemanticDuplicatesSettings)
    spread: _Distributed | None = None
    for number, part in work.scan(unit.column, "status", "codes"):
        table = part.table.combine_chunks()
        codes, embeddings = (table[name].combine_chunks() for name in ("codes", unit.column))
        first = codes.flatten().to_numpy().reshape(len(codes), -1)[:, 0].astype(np.int64)
        rows = pa.table({"code": first, "place": (number << 32) + part.rows, "embedding": embeddings})
        if spread is None:
            pieces = min(MOST_PIECES, work.pieces * -(-embeddings.type.list_size // 64))
            spread = _Distributed(folder / "embeddings", rows.schema, pieces)
        finite = table["status"].to_numpy() != NON_FINITE
        spread.add(rows.filter(pa.array(finite)), first[finite] % spread.count)
    for table in spread.read() if spread else ():
        table = table.take(pa.array(np.argsort(table["code"].to_numpy(), kind="stable")))
        codes = table["code"].to_numpy()
        edges = np.append(np.flatnonzero(np.diff(codes, prepend=-1)), len(codes))
        for start, end in pairwise(edges.tolist()):
            some = table.slice(start, end - start)
            places = some["place"].to_numpy()
            try:
                first, sizes = similar(embedding_matrix(some["embedding"]), work.settings.cosine, work.device)
            except DeviceMemoryError as error:
                raise PipelineError(f"duplicates.semantic: {error}") from error
            yield _found(places[sizes > 1], places[first[sizes > 1]], sizes[sizes > 1])


def _found(places: Ints, first: Ints, sizes: Ints) -> pa.Table:
    """Return `FOUND`, whose keys are rows, from places: parts and rows in one number."""
    columns = [places & _ROW, places >> 32, places & _ROW, first >> 32, first & _ROW, sizes]
    return pa.table(columns, schema=FOUND)


_ROW = 0xFFFFFFFF  # the bits of a row in a place
UNITS = {
    "duplicates": (Unit("", "sentence_hash", False, _equal), Unit("doc_", "doc_hash", True, _equal)),
    "near": (Unit("near_", "minhash", True, _linked, by_row=True),),
    "semantic": (Unit("semantic_", "embedding", False, _similar, by_row=True),),
}


def _with_names(store: Store, parts: Sequence[PartState], found: pa.Table) -> pa.Table:
    """Add where the first member of each group stands: `doc_id` and `position`."""
    order = np.argsort(found["first_part"].to_numpy(), kind="stable")
    found = found.take(pa.array(order))
    of_part = found["first_part"].to_numpy()
    edges = np.append(np.flatnonzero(np.diff(of_part, prepend=-1)), len(of_part))
    tables = [_NAMED.empty_table()]
    for start, end in pairwise(edges.tolist()):
        some = found.slice(start, end - start)
        rows = pa.array(some["first_row"].to_numpy())
        part = _PartRows(store, parts[of_part[start]], ["doc_id", "position"])
        names = part.table.select(["doc_id", "position"]).take(rows)
        tables.append(pa.table([*some.columns, *names.columns], schema=_NAMED))
    return pa.concat_tables(tables)


def _write(
    work: ComparedParts, config: RunConfig, found: Sequence[tuple[Unit, pa.Table]], shared: float, number: int
) -> None:
    """Write the columns of one part.

    Args:
        work: the parts, and how they were compared.
        config: the configuration, with what is frozen.
        found: what was found, of this part and others.
        shared: seconds of the comparison per row.
        number: which part.
    """
    started = time.perf_counter()
    store, settings = work.store, work.settings
    part, (family,) = work.parts[number], settings.writes
    rows = _PartRows(store, part, [unit.column for unit, _ in found if not unit.by_row])
    columns: dict[str, pa.Array] = {}
    counts: dict[str, float] = {}
    for unit, table in found:
        table = table.filter(pa.array(table["part"].to_numpy() == number)).sort_by("key")
        lookup = GroupLookup.of(unit.keys(rows), table["key"].to_numpy())
        first = np.zeros(len(rows.rows), np.bool_)
        if len(table):
            row = rows.begins if unit.documents else rows.rows
            there, at = (table[name].to_numpy()[lookup.place] for name in ("first_part", "first_row"))
            first = (there == number) & (at == row)
        columns[f"{unit.prefix}duplicate_of"] = lookup.take(table["doc_id"], ~first)
        if not unit.documents:
            columns[f"{unit.prefix}duplicate_of_position"] = lookup.take(table["position"], ~first)
        columns[f"{unit.prefix}duplicate_count"] = lookup.take(table["count"]).fill_null(1)
        repeated = lookup.grouped & ~first
        counts[unit.name] = float(repeated[rows.starts].sum() if unit.documents else repeated.sum())
    inputs = {column: digest for one in part.receipts.values() for column, digest in one.columns.items()}
    inputs = {column: inputs[column] for column in settings.reads}
    recipe = stage_recipe(settings, config.frozen)
    commit(
        store,
        stage=settings.name,
        part=part.ref.part,
        fingerprint=part_fingerprint(recipe, inputs),
        recipe=fingerprint(recipe),
        inputs=inputs,
        families={family: layout.checked(family, pa.table(columns), layout.schema(family), part.rows)},
        counts=counts,
        seconds={"compute": round(time.perf_counter() - started + shared * part.rows, 4)},
        device=work.computed_on,
    )


class _Distributed:
    """A table whose rows are distributed to `count` pieces, each in a file if there are several."""

    def __init__(self, folder: Path, schema: pa.Schema, count: int) -> None:
        self._schema, self.count = schema, count
        self._kept: list[pa.Table] = []
        self._paths = [folder / str(number) for number in range(count)] if count > 1 else []
        if self._paths:
            folder.mkdir()
        self._writers = [pa.ipc.new_stream(str(path), schema) for path in self._paths]

    def add(self, table: pa.Table, pieces: Ints) -> None:
        """Add rows to the pieces of these numbers; a piece keeps the order in which rows were added."""
        if not self._writers:
            self._kept.append(table)
            return
        order = np.argsort(pieces, kind="stable")
        edges = np.searchsorted(pieces[order], np.arange(self.count + 1))
        table = table.take(pa.array(order))
        for number in np.unique(pieces).tolist():
            self._writers[number].write_table(table.slice(edges[number], edges[number + 1] - edges[number]))

    def add_by_hash(self, table: pa.Table) -> None:
        """Add rows to the pieces of their keys."""
        high = (table["key"].to_numpy() >> np.uint64(32)).astype(np.int64)
        self.add(table, high * self.count >> 32)

    def read(self) -> Iterator[pa.Table]:
        """Yield one piece after the other."""
        for writer in self._writers:
            writer.close()
        if not self._writers:
            yield pa.concat_tables([self._schema.empty_table(), *self._kept]).combine_chunks()
        for path in self._paths:
            yield pa.ipc.open_stream(pa.memory_map(str(path))).read_all().combine_chunks()
            path.unlink()
