"""Reads a corpus back: columns side by side, part by part, exactly what the receipts of the newest run vouch for.

from pipeline import Corpus
corpus = Corpus("runs/sample")
table = corpus.table("text", "embedding", "autobleu", part=0)
for table in corpus.scan("embedding"): ...
matrix = corpus.embeddings(part=0)          # (rows, dim) float16

for batch in corpus.batches("text", "title", where=corpus.condition("autobleu < 20")):
    batch.table                             # at most 8192 rows, those with an AutoBLEU below 20

frame = corpus.to_pandas("text", "autobleu", where="autobleu < 20")
corpus.nearest("The market opens at seven.", k=5, lang="eng_Latn")
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.formats import counted
from pipeline.conditions.condition import Condition
from pipeline.conditions.expression import parse
from pipeline.corpus import frames
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.nearest import Metric, Query, find_nearest
from pipeline.corpus.part_reader import (
    ROW_COLUMNS,
    Column,
    PartBatch,
    PartReader,
    columns_of,
    no_column,
    not_made,
    with_kept,
)
from pipeline.corpus.receipts import DataFile
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.runs import newest_view
from pipeline.corpus.states import PartState, SharedReading, States, View, read_state
from pipeline.corpus.tombstones import Tombstones, read_tombstones
from pipeline.inputs.column_types import ColumnType
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix

if TYPE_CHECKING:  # torch takes seconds
    from pipeline.corpus.nearest_index import NearestIndex
    from pipeline.corpus.torch_rows import TorchRows
    from stages.encode.encoder import Encode

RECENT_CHUNKS = 64  # whose receipts are kept


class Corpus:
    """A corpus on any fsspec filesystem, as the newest run describes it; only files that a receipt names are opened.

    Args:
        url: the address of a corpus, or the path of the corpus.yaml that made it; `CorpusError` is raised if there is
            no corpus.
        view: what is read; None for the view of the newest run.
        store: the folder of the corpus, if it is open already.
        shared: what is read once for several views, if others are read too.
    """

    def __init__(
        self, url: str, view: View | None = None, store: Store | None = None, shared: SharedReading | None = None
    ) -> None:
        if view is None and url.endswith((".yaml", ".yml")):
            from pipeline.config.load import load_config

            url = load_config(url).output
        self.url = url
        self.store = store or Store(url)
        self.view = view or newest_view(self.store)
        self._shared = shared
        self._recent: dict[int, list[PartState]] = {}  # recently used chunks
        self._one_at_a_time = threading.Lock()  # for readers of receipts in several threads
        self._encoders: dict[str, Encode] = {}  # by device

    def __reduce__(self) -> tuple[type[Corpus], tuple[str, View]]:
        return Corpus, (self.url, self.view)

    def __repr__(self) -> str:
        return (
            f"Corpus({self.url!r}): {counted(self.rows, 'sentence')} in {counted(len(self.parts), 'part')}; columns: "
            f"{', '.join(self.catalogue) or 'none yet'}"
        )

    def __len__(self) -> int:
        return self.rows

    def __bool__(self) -> bool:
        return True  # even without any sentence

    @cached_property
    def tombstones(self) -> Tombstones:
        """What was purged and may still be in files, as of the first access."""
        return read_tombstones(self.store, waiting=True)

    @cached_property
    def chunks(self) -> States:
        """The chunks of the newest run, in its order."""
        return read_state(self.store, self.view, shared=self._shared)

    @cached_property
    def parts(self) -> list[str]:
        """The names of the parts, sorted."""
        return sorted(part for chunk in self.chunks for part in chunk.part_names())

    @property
    def rows(self) -> int:
        """The number of sentences in all parts."""
        rows = int(self.chunks.total.get("chunk/sentences", 0))
        touched = [self.chunks.by_id[chunk] for chunk in self.tombstones.by_chunk if chunk in self.chunks.by_id]
        return rows - sum(part.rows - self._rows(part) for number in touched for part in self.chunks[number].parts)

    @cached_property
    def hides_documents(self) -> bool:
        """Whether files and receipts still count purged documents, which readers leave out, as they do columns that
        compare documents with these.
        """
        return any(chunk in self.chunks.by_id for chunk in self.tombstones.by_chunk)

    @cached_property
    def catalogue(self) -> dict[str, Column]:
        """Every column of all parts: of sentences, of the documents they are from, and `part` and `row`.

        A column that some inputs keep is null in the documents of the others.
        """
        return columns_of(self._vouched, self.kept_types) if self.parts else {}

    @cached_property
    def _vouched(self) -> frozenset[str]:
        """The columns ("family.column") that all parts have and that hold for what is left after a purge, and those
        that inputs keep.
        """
        found = with_kept(self.chunks.columns, self.kept_types)
        return frozenset(
            one for one in found if not (self.hides_documents and one.partition(".")[0] in layout.COMPARED)
        )

    @cached_property
    def kept_types(self) -> dict[str, ColumnType]:
        """The types of columns that inputs keep, the same for all parts; a column without a recorded type is text."""
        return self.chunks.kept_types

    @cached_property
    def columns(self) -> list[str]:
        """The row columns that every part has; `table` returns these if none is named."""
        return [column.name for column in self.catalogue.values() if column.family in layout.ROW_FAMILIES]

    def condition(self, text: str, origin: str = "--where") -> Condition:
        """Parse a condition on the columns of the catalogue; its grammar is in `pipeline/conditions/expression.py`.

        Raises `ExpressionError` for a condition that cannot be understood; `origin` begins the message.
        """
        types = {column.name: column.type for column in self.catalogue.values()}
        absent = {name: f"{not_made(name)}: pipeline run does that" for name in set(ROW_COLUMNS) - set(types)}
        return parse(text, types, origin, absent=absent, kept=list(self.kept_types))

    def check_has_parts(self) -> None:
        """Raise `CorpusError` if no part is finished yet, or there will be none: no document has a sentence."""
        if not self.parts:
            what = "has no finished part yet" if self.chunks.total.get(f"{SEGMENT}/left") else "has no sentence"
            raise CorpusError(f"{self.url} {what}; see: pipeline status {self.url}")

    def table(self, *columns: str, part: str | int | None = None) -> pa.Table:
        """Return columns side by side (all row columns, if none is named).

        `part` is a name or a number; if it is left out, all parts follow each other. Row columns are `text`, `lang`,
        `chars`, `tokens`, `doc`, `position`, `start`, `end`, `u`, `embedding`, `status`, `autobleu`, `decoded`; those
        of documents (`doc_id`, `split`, `source`, metadata) are repeated for every sentence; `part` and `row` say where
        the sentence stands.
        """
        if part is None:
            self.check_has_parts()
            return pa.concat_tables(self.scan(*columns))
        with self.reader(part) as reader:
            names = self._checked(columns or tuple(self.columns), reader.columns, f"part {reader.part}")
            return reader.read(names)

    def scan(self, *columns: str) -> Iterator[pa.Table]:
        """Yield the `table` of one part after the other."""
        for part in self.parts:
            yield self.table(*columns, part=part)

    def batches(
        self,
        *columns: str,
        where: Condition | str | None = None,
        parts: Sequence[str] | None = None,
        max_rows: int | None = None,
    ) -> Iterator[PartBatch]:
        """Yield one row group after the other, in the order of the corpus: at most 8192 rows are in memory.

        With a condition, columns that it does not use are read only where some row satisfies it.

        Args:
            *columns: the names of the columns to read.
            where: a condition that rows must satisfy.
            parts: the parts to read, in this order; None for all.
            max_rows: end with the row group by which this many rows were read, whether they satisfy the condition or
                not.

        Yields:
            The rows of one row group.
        """
        names = self._checked(columns, self.catalogue, self.url)
        where = self._where(where)
        read = 0
        for part in self.parts if parts is None else parts:
            with self.reader(part) as reader:
                for batch in reader.batches(names, where):
                    yield batch
                    read += batch.rows
                    if max_rows is not None and read >= max_rows:
                        return

    def schema(self, *columns: str) -> pa.Schema:
        """Return the declared schema of what `batches` yields."""
        with self.reader(0) as reader:
            return reader.schema(self._checked(columns, self.catalogue, self.url))

    def to_arrow(self, *columns: str, where: Condition | str | None = None) -> pa.Table:
        """Return these columns (all row columns, if none is named) of the rows that satisfy the condition, in
        memory.
        """
        names = self._names(columns)
        tables = (batch.table for batch in self.batches(*names, where=where))
        return pa.concat_tables([self.schema(*names).empty_table(), *tables])

    def to_pandas(self, *columns: str, where: Condition | str | None = None) -> Any:
        """Return `to_arrow` as a `pandas.DataFrame`; a vector becomes a NumPy array."""
        return frames.to_pandas(self.to_arrow(*columns, where=where))

    def to_polars(self, *columns: str, where: Condition | str | None = None) -> Any:
        """Return `to_arrow` as a `polars.DataFrame`."""
        return frames.to_polars(self.to_arrow(*columns, where=where))

    def to_datasets(self, *columns: str, where: Condition | str | None = None, streaming: bool = False) -> Any:
        """Return `to_arrow` as a dataset of Hugging Face's `datasets`.

        Args:
            *columns: the columns of each row; none for all.
            where: a condition that rows must satisfy.
            streaming: whether to return an `IterableDataset`, which reads one row group (8192 rows) after the other.

        Returns:
            A `Dataset` or an `IterableDataset`.
        """
        if streaming:
            return frames.to_streaming_datasets(self, self._names(columns), self._where(where))
        return frames.to_datasets(self.to_arrow(*columns, where=where))

    def torch(self, *columns: str, where: Condition | str | None = None, rank: int = 0, world: int = 1) -> TorchRows:
        """Return an `IterableDataset` for PyTorch's `DataLoader`, whose workers read different parts.

        A row is a dict by column: a vector is a tensor, everything else a Python value. Workers have to be spawned
        (`multiprocessing_context="spawn"`).

        Args:
            *columns: the columns of each row.
            where: a condition that rows must satisfy.
            rank: the number of this process, from 0, if several processes read different parts.
            world: the number of such processes.

        Returns:
            The dataset, whose rows are read when it is iterated over.
        """
        from pipeline.corpus.torch_rows import TorchRows

        return TorchRows(self, self._names(columns), self._where(where), rank, world)

    def files(self, family: str = "sentences") -> list[str]:
        """Return the addresses of a family's Parquet files that receipts name, in the order of the parts.

        Files that were replaced are left out. Raises `CorpusError` while files hold purged documents, and for a family
        that some part lacks.
        """
        families = (*layout.ROW_FAMILIES, "documents")
        if family not in families:
            raise CorpusError(f"there is no family {family}; allowed: {', '.join(families)}")
        if self.hides_documents:
            raise CorpusError(
                f"files of {self.url} still hold purged documents, which only readers such as `batches` leave out; "
                "run the corpus.yaml of this corpus, and they are erased"
            )
        found = []
        for part in self.parts:
            receipts = self.state_of(part).receipts.values()
            paths = [file.path for receipt in receipts for file in receipt.files if file.family == family]
            if not paths:
                raise CorpusError(f"part {part} of {self.url} has no file of {family}: its stage has not run there")
            found.append(f"{self.url.rstrip('/')}/{paths[0]}")
        return found

    def files_of(self, parts: Iterable[str], families: Sequence[str]) -> list[DataFile]:
        """Return what receipts say of the files of some parts, of some families."""
        receipts = (receipt for part in parts for receipt in self.state_of(part).receipts.values())
        return [file for receipt in receipts for file in receipt.files if file.family in families]

    def place(self, row: int) -> tuple[str, int]:
        """Return part, and row in it, of a row of the whole corpus; negative numbers count from the end."""
        left = row if row >= 0 else row + self.rows
        for chunk in sorted(self.chunks, key=lambda one: one.chunk.id) if left >= 0 else ():
            purged = self.tombstones.of(chunk.chunk.id)
            if not purged and left >= (chunk.sentences or 0):
                left -= chunk.sentences or 0
                continue
            for name in chunk.part_names():
                rows = self._rows(self.state_of(name))
                if left < rows:
                    return name, left
                left -= rows
        raise CorpusError(f"{self.url} has {counted(self.rows, 'row')}; there is no row number {row}")

    def nearest(
        self,
        query: str | Query,
        k: int = 10,
        *columns: str,
        lang: str | None = None,
        where: Condition | str | None = None,
        metric: Metric = "cosine",
        device: str = "cpu",
        index: NearestIndex | None = None,
    ) -> pa.Table:
        """Return the k sentences nearest to a query, best first.

        The search is exact: every embedding is read, with one row group in memory. With an index, only likely rows are
        read.

        Args:
            query: a sentence, which the corpus's own encoder encodes; the number of a row of the corpus, or (part,
                row), which is left out of the result itself; or a vector of the embeddings' width.
            k: how many sentences to return.
            *columns: the columns to return, by default `text` and `lang`.
            lang: the language of a query that is a sentence; it may be left out if all sentences of the
                corpus are in one.
            where: a condition that rows must satisfy.
            metric: `cosine`, or `euclidean`, whose scores are distances.
            device: where the sentence is encoded: `cpu`, `cuda:0`, `mps`.
            index: an index from `build_index` or `open_index`; it allows no condition.

        Returns:
            A table with `score`, `part`, `row`, and the columns.

        Raises:
            CorpusError: for a query that cannot be searched for.
            ConfigError: for an unknown column or language, or a condition beside an index.
        """
        names = self._checked(columns or ("text", "lang"), self.catalogue, self.url)
        if isinstance(query, str):
            query = self._encoded(query, lang, device)
        if index:
            if where is not None:
                raise ConfigError("an index searches all rows: leave out `where`, or search without `index`")
            index.check(self._identity, metric)
        return find_nearest(self, query, k, names, self._where(where), metric, index)

    def build_index(self, path: str | Path | None = None, metric: Metric = "cosine") -> NearestIndex:
        """Build an index for many questions to `nearest`, and write it to a local file if one is named.

        It takes 2 · dim bytes per sentence in memory and in the file, and misses some neighbours in large corpora.
        Raises `CorpusError` before that if the folder of the file does not exist, or the file is a folder.
        """
        from pipeline.corpus.nearest_index import NearestIndex

        self._names(("embedding", "status"))
        if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
            what = "is a folder" if Path(path).is_dir() else f"lies in {Path(path).parent}, which is no folder"
            raise CorpusError(f"{path} {what}; name a file in a folder that exists")
        made = NearestIndex.build(self, self.rows, metric, self._identity)
        if path is not None:
            made.save(path)
        return made

    def open_index(self, path: str | Path) -> NearestIndex:
        """Read an index that `build_index` wrote. Raises `ConfigError` if the corpus has changed since."""
        from pipeline.corpus.nearest_index import NearestIndex

        found = NearestIndex.load(path)
        found.check(self._identity, found.metric)
        return found

    def fitting(self, index: NearestIndex | None) -> NearestIndex | None:
        """Return an index if it is of this state of the corpus, and otherwise None."""
        return index if index and index.identity == self._identity else None

    @property
    def _identity(self) -> str:
        """A digest of the recipes, the chunks and what was purged."""
        purged = {chunk: sorted(ids) for chunk, ids in self.tombstones.by_chunk.items()}
        return fingerprint({"view": self.view.header(), "purged": purged})

    def _encoded(self, text: str, lang: str | None, device: str) -> npt.NDArray[np.float16]:
        from pipeline.corpus.encoder import encode_texts, language_of, load_encoder

        if device not in self._encoders:
            self._encoders[device] = load_encoder(self.store, self.view, device)
        encoder = self._encoders[device]
        lang = language_of(self.store, encoder, lang, lambda: self._first_langs)
        found: npt.NDArray[np.float16] = encode_texts(encoder, [text], [lang])[0]
        return found

    @cached_property
    def _first_langs(self) -> list[str]:
        """The languages of the sentences of the first parts, until there are two. This column is small."""
        found: dict[str, None] = {}
        for part in self.parts:
            found |= dict.fromkeys(pc.unique(self.table("lang", part=part)["lang"]).drop_null().to_pylist())
            if len(found) > 1:
                break
        return list(found)[:2]

    def documents(self, part: str | int) -> pa.Table:
        """Return the documents of a part: id, language, split, source, first row, rows and the metadata that
        was kept.
        """
        with self.reader(part) as reader:
            return reader.documents()

    def embeddings(self, part: str | int) -> npt.NDArray[np.float16]:
        """Return the embeddings of a part: (rows, dim) float16. No Python object is created for a row."""
        return embedding_matrix(self.table("embedding", part=part)["embedding"])

    def state_of(self, part: str | int) -> PartState:
        """Return a part's receipts, by its name or number."""
        names = self.parts
        if isinstance(part, int):
            if not -len(names) <= part < len(names):
                raise CorpusError(f"{self.url} has {counted(len(names), 'part')}; there is no part number {part}")
            part = names[part]
        number = self.chunks.by_id.get(layout.part_owner(part))
        for state in self._parts_of(number) if number is not None else ():
            if state.ref.part == part:
                return state
        raise CorpusError(f"{self.url} has no part {part}; the first of {len(names)} is {(names or ['none'])[0]}")

    def _parts_of(self, number: int) -> list[PartState]:
        with self._one_at_a_time:
            parts = self._recent.get(number)
            if parts is None:
                if len(self._recent) >= RECENT_CHUNKS:
                    self._recent.clear()
                parts = self._recent[number] = self.chunks[number].parts
            return parts

    def reader(self, part: str | int) -> PartReader:
        """Return a reader of a part's columns; use it in a `with` statement."""
        state = self.state_of(part)
        receipts = state.receipts
        if self.hides_documents:
            receipts = {
                stage: one
                for stage, one in receipts.items()
                if not any(file.family in layout.COMPARED for file in one.files)
            }
        return PartReader(self.store, state.ref.part, receipts, self.tombstones.of(state.chunk), self.kept_types)

    def _rows(self, state: PartState) -> int:
        if not self.tombstones.of(state.chunk):
            return state.rows
        with self.reader(state.ref.part) as reader:
            return reader.rows

    def _names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the named columns, which must exist, or all row columns. Raises `CorpusError` if no part is
        finished.
        """
        self.check_has_parts()
        return self._checked(columns or tuple(self.columns), self.catalogue, self.url)

    def _where(self, where: Condition | str | None) -> Condition | None:
        return self.condition(where, "where") if isinstance(where, str) else where

    def _checked(self, columns: tuple[str, ...], available: dict[str, Column], where: str) -> tuple[str, ...]:
        for column in columns:
            if column not in available:
                raise CorpusError(f"{where}: {no_column(column, available)}")
        return columns
