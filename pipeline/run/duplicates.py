"""Compares all sentences and all documents of a corpus by their hashes, and writes the columns of `duplicates`.

Every part has hashes already. They are distributed by range of hash to files of a temporary folder, and each range is
compared alone; what is found is distributed by part in the same way. So memory holds some million hashes (more beyond
800 million sentences). A part counts each hash once, so that a sentence that is everywhere does not fill a range. The
result depends on the parts and their order alone. Parts whose receipt exists are not written again. One process does it
with every launcher. Cost: see `benchmarks/duplicates.py`; 20 bytes per distinct sentence of a part in the temporary
folder.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.errors import CorpusError
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
from stages.duplicates.groups import FOUND, MEMBERS, Lookup, groups, members
from stages.duplicates.settings import DuplicatesSettings

AT_ONCE = 4_000_000  # hashes in memory
MOST_PIECES = 200  # files open at a time, of three kinds; so beyond 800 million sentences, more hashes are in memory
_NAMED = pa.schema([*FOUND, pa.field("doc_id", pa.string()), pa.field("position", pa.int32())])
Ints = npt.NDArray[np.int64]


def find_duplicates(plan: Plan, at_once: int = AT_ONCE) -> int:
    """Write the family `duplicates` of all parts that lack it, and return how many these are.

    Raises `CorpusError` if a chunk is not segmented, or a part has no hashes.
    """
    return compare_parts(Store(plan.config.output), plan.config, _parts_in_order(plan), at_once)


def compare_parts(store: Store, config: RunConfig, parts: Sequence[PartState], at_once: int = AT_ONCE) -> int:
    """Do it for parts in the order of the corpus, which all have hashes."""
    settings = config.duplicates
    assert settings
    started = time.perf_counter()
    rows = np.asarray([part.rows for part in parts], np.int64)
    total = int(rows.sum())
    pieces = min(MOST_PIECES, max(1, -(-total // at_once)))
    batch = (np.cumsum(rows) - 1) * pieces // max(1, total)  # of each part: parts of one batch are written together
    with tempfile.TemporaryDirectory() as folder:
        of_sentences, of_documents = (
            _Distributed(Path(folder, f"{unit}-members"), MEMBERS, pieces) for unit in ("sentence", "document")
        )
        for number, (_, sentences, starts, documents) in enumerate(prefetch(partial(_hashes, store), parts)):
            of_sentences.add_by_hash(members(sentences, np.arange(len(sentences)), number))
            of_documents.add_by_hash(members(documents[starts], starts, number))
        named = []
        for unit, hashed in (("sentence", of_sentences), ("document", of_documents)):
            found = _Distributed(Path(folder, f"{unit}-found"), FOUND, pieces)
            for table in hashed.read():
                some = groups(table)
                found.add(some, batch[some["first_part"].to_numpy()])
            named.append(_Distributed(Path(folder, f"{unit}-named"), _NAMED, pieces))
            for table in found.read():
                some = _with_names(store, parts, table)
                named[-1].add(some, batch[some["part"].to_numpy()])
        shared = (time.perf_counter() - started) / max(1, total)
        written = 0
        for number, (sentences, documents) in enumerate(zip(named[0].read(), named[1].read(), strict=True)):
            inside = [one for one in np.flatnonzero(batch == number).tolist() if settings.name in parts[one].missing]
            write = partial(_write, store, config, settings, parts, (sentences, documents), shared)
            written += sum(1 for _ in prefetch(write, inside))
    return written


def _parts_in_order(plan: Plan) -> list[PartState]:
    order, _ = in_input_order(plan.config, plan.view.listed.chunks)
    found: list[PartState] = []
    for number in order.tolist():
        chunk = plan.chunks[number]
        if not chunk.segmented:
            raise CorpusError(f"duplicates: {chunk.chunk.source} is not segmented; run without --only")
        found += sorted(chunk.parts, key=lambda part: part.ref.part)
    for part in found:
        if "hashes" not in part.receipts:
            raise CorpusError(f"duplicates: part {part.ref.part} has no hashes; run without --only")
    return found


def _reader(store: Store, part: PartState) -> PartReader:
    return PartReader(store, part.ref.part, part.receipts, frozenset())


def _hashes(store: Store, part: PartState) -> tuple[PartReader, npt.NDArray[np.uint64], Ints, npt.NDArray[np.uint64]]:
    """Return a part's hashes of sentences, the first rows of its documents, and for each row its document's hash."""
    with _reader(store, part) as reader:
        table = reader.read(["sentence_hash", "doc_hash", "doc"])
    starts = np.flatnonzero(np.diff(table["doc"].to_numpy(), prepend=-1))
    return reader, table["sentence_hash"].to_numpy(), starts, table["doc_hash"].to_numpy()


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
        with _reader(store, parts[of_part[start]]) as reader:
            names = reader.read(["doc_id", "position"]).take(rows)
        tables.append(pa.table([*some.columns, *names.columns], schema=_NAMED))
    return pa.concat_tables(tables)


def _write(
    store: Store,
    config: RunConfig,
    settings: DuplicatesSettings,
    parts: Sequence[PartState],
    found: tuple[pa.Table, pa.Table],
    shared: float,
    number: int,
) -> None:
    """Write the columns of one part. `shared`: seconds of the comparison per row."""
    started = time.perf_counter()
    part = parts[number]
    _, sentences, starts, documents = _hashes(store, part)
    columns: dict[str, pa.Array] = {}
    counts: dict[str, float] = {}
    rows = np.arange(len(sentences))
    begin = np.repeat(starts, np.diff(np.append(starts, len(rows))))
    for unit, keys, row, table in zip(
        ("sentence", "document"), (sentences, documents), (rows, begin), found, strict=True
    ):
        head = "" if unit == "sentence" else "doc_"
        table = table.filter(pa.array(table["part"].to_numpy() == number)).sort_by("key")
        lookup = Lookup.of(keys, table["key"].to_numpy())
        at = lookup.place
        first = np.zeros(len(rows), np.bool_)
        if len(table):
            first = (table["first_part"].to_numpy()[at] == number) & (table["first_row"].to_numpy()[at] == row)
        columns[f"{head}duplicate_of"] = lookup.take(table["doc_id"], ~first)
        if unit == "sentence":
            columns["duplicate_of_position"] = lookup.take(table["position"], ~first)
        columns[f"{head}duplicate_count"] = lookup.take(table["count"]).fill_null(1)
        repeated = lookup.grouped & ~first
        counts[f"{unit}s"] = float(repeated.sum() if unit == "sentence" else repeated[starts].sum())
    table = pa.table(columns)
    inputs = {column: part.receipts["hashes"].columns[column] for column in settings.reads}
    recipe = stage_recipe(settings, config.frozen)
    commit(
        store,
        stage=settings.name,
        part=part.ref.part,
        fingerprint=part_fingerprint(recipe, inputs),
        recipe=fingerprint(recipe),
        inputs=inputs,
        families={"duplicates": layout.checked("duplicates", table, layout.schema("duplicates"), part.rows)},
        counts=counts,
        seconds={"compute": round(time.perf_counter() - started + shared * part.rows, 4)},
        device="cpu",
    )


class _Distributed:
    """A table whose rows are distributed to `count` pieces, each in a file if there are several."""

    def __init__(self, folder: Path, schema: pa.Schema, count: int) -> None:
        self._schema, self._count = schema, count
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
        edges = np.searchsorted(pieces[order], np.arange(self._count + 1))
        table = table.take(pa.array(order))
        for number in np.unique(pieces).tolist():
            self._writers[number].write_table(table.slice(edges[number], edges[number + 1] - edges[number]))

    def add_by_hash(self, table: pa.Table) -> None:
        """Add rows to the pieces of their keys."""
        high = (table["key"].to_numpy() >> np.uint64(32)).astype(np.int64)
        self.add(table, high * self._count >> 32)

    def read(self) -> Iterator[pa.Table]:
        """Yield one piece after the other."""
        for writer in self._writers:
            writer.close()
        if not self._writers:
            yield pa.concat_tables([self._schema.empty_table(), *self._kept]).combine_chunks()
        for path in self._paths:
            yield pa.ipc.open_stream(pa.memory_map(str(path))).read_all().combine_chunks()
            path.unlink()
