"""An index over the embeddings of a corpus for many questions to `nearest`: inverted lists of faiss, one file.

The lists (IVF) are those of 4 · √rows centroids; a question looks into `probes` of them. They hold every vector with 16
bits per value, so memory and file take 2 · dim bytes per sentence. Building reads the embeddings twice, on one thread,
so the same corpus has the same index. What the index finds is compared again, exactly, with the embeddings of the
corpus; but a neighbour in a list that was not looked into is missed.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.base.errors import ConfigError, CorpusError, DamagedError, StorageError
from pipeline.corpus.nearest import Metric, Searchable
from stages.arrow import embedding_matrix
from stages.stage import NON_FINITE

POINTS_PER_LIST = 64  # that centroids are trained on; faiss wants 39 at least
PROBES = 32  # lists that a question looks into, of as many as there are
_REMEDY = "delete it, and build it again: corpus.build_index(path)"


class NearestIndex:
    """What `Corpus.build_index` makes. `probes`: how many lists a question looks into; more find more, and take longer.

    `identity` names the content of the corpus that it was built over.
    """

    def __init__(
        self, index: Any, metric: Metric, parts: list[str], starts: npt.NDArray[np.int64], identity: str
    ) -> None:
        """Keep an index that was built or read.

        Args:
            index: an `IndexIVF` of faiss.
            metric: the metric that it was built for.
            parts: the names of the parts.
            starts: (parts,) int64, the id of each part's first row.
            identity: what `Corpus` compares, so that an index of another state of the corpus is refused.
        """
        self._index, self._parts, self._starts = index, parts, starts  # an IndexIVF of faiss
        self.metric, self.identity = metric, identity
        self.probes = min(PROBES, index.nlist)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @classmethod
    def build(cls, source: Searchable, rows: int, metric: Metric, identity: str) -> NearestIndex:
        """Build the index of a corpus.

        Args:
            source: what offers the embeddings.
            rows: how many rows it has; decides on the number of lists.
            metric: `cosine` or `euclidean`.
            identity: identifies the state of the corpus.

        Returns:
            The index, in memory; vectors are stored in FP16.
        """
        import faiss

        width = source.schema("embedding").field(0).type.list_size
        lists = max(1, min(int(4 * math.sqrt(rows)), rows // POINTS_PER_LIST))
        kind = faiss.METRIC_INNER_PRODUCT if metric == "cosine" else faiss.METRIC_L2
        index = faiss.index_factory(width, f"IVF{lists},SQfp16", kind)
        share = min(1.0, lists * POINTS_PER_LIST / max(1, rows))
        chance = np.random.default_rng(0)
        points = [vectors[chance.random(len(vectors)) < share] for _, _, vectors in _vectors(source, metric)]
        with _one_thread():
            index.train(np.concatenate([np.zeros((0, width), np.float32), *points]))
            names, starts, next_id = list[str](), list[int](), 0
            for part, numbers, vectors in _vectors(source, metric):
                if not names or names[-1] != part:
                    names.append(part)
                    starts.append(next_id)
                index.add_with_ids(vectors, starts[-1] + numbers)
                next_id = max(next_id, int(starts[-1] + numbers.max(initial=-1)) + 1)
        return cls(index, metric, names, np.asarray(starts, np.int64), identity)

    def candidates(self, query: npt.NDArray[np.float32], k: int) -> list[tuple[str, int]]:
        """Return part and row of up to k rows that are likely to be the nearest."""
        vector = _unit(query[None, :]) if self.metric == "cosine" else query[None, :]
        self._index.nprobe = self.probes
        _, found = self._index.search(vector, min(k, max(1, len(self))))
        ids = found[0][found[0] >= 0]
        owner = np.searchsorted(self._starts, ids, side="right") - 1
        return [(self._parts[of], int(one - self._starts[of])) for of, one in zip(owner, ids, strict=True)]

    def save(self, path: str | Path) -> None:
        """Write the index to a local file, which appears under its name when it is complete.

        Raises `StorageError` or `OSError` if it cannot be written.
        """
        import faiss
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        arrays: dict[str, npt.NDArray[Any]] = {"index": faiss.serialize_index(self._index), "starts": self._starts}
        about = {"metric": self.metric, "identity": self.identity, "parts": self._parts}
        told = json.dumps(about | {"digest": _digest(about, arrays)})
        temporary = Path(path).with_name(f".{Path(path).name}.{secrets.token_hex(4)}.tmp")
        try:
            save_file(arrays, temporary, metadata={"of": told})  # one key, for several come in any order
            temporary.replace(path)
        except SafetensorError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> NearestIndex:
        """Read an index. Raises `CorpusError` if the file is not one, or damaged: faiss gets only what was saved."""
        import faiss
        from safetensors import SafetensorError, safe_open

        try:
            if Path(path).exists() and not Path(path).is_file():
                raise ValueError("it is a folder, pipe or device, not a file")
            with safe_open(path, framework="numpy") as file:
                told = json.loads((file.metadata() or {})["of"])
                arrays = {name: file.get_tensor(name) for name in ("index", "starts")}
                if told.pop("digest", "") != _digest(told, arrays):
                    raise ValueError("it was changed, or is of an earlier version")
                index = faiss.deserialize_index(arrays["index"])
                return cls(index, told["metric"], told["parts"], arrays["starts"], told["identity"])
        except FileNotFoundError as error:
            raise CorpusError(f"there is no index {path}; build it: corpus.build_index({str(path)!r})") from error
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise DamagedError(str(path), str(error), _REMEDY) from error

    def check(self, identity: str, metric: Metric) -> None:
        """Raise `ConfigError` if this is not an index of that corpus, as it is now, for this metric."""
        if self.metric != metric:
            raise ConfigError(f"the index is for metric={self.metric!r}, not {metric!r}; build another one")
        if self.identity != identity:
            raise ConfigError("the index is of another corpus, or this one has changed since; build it again")


def _digest(about: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> str:
    found = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for one in arrays.values():
        found.update(np.ascontiguousarray(one).data)
    return found.hexdigest()[:32]


def _vectors(
    source: Searchable, metric: Metric
) -> Iterator[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Yield part, rows and vectors of one row group after the other, without those that are not finite or 0."""
    for batch in source.batches("embedding", "status", "part", "row"):
        table = batch.table
        if not table.num_rows:
            continue
        found = embedding_matrix(table["embedding"]).astype(np.float32)
        usable = (table["status"].to_numpy() != NON_FINITE) & found.any(axis=1)
        vectors = found[usable]
        yield (
            table["part"][0].as_py(),
            table["row"].to_numpy()[usable].astype(np.int64),
            _unit(vectors) if metric == "cosine" else vectors,
        )


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = vectors / np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
