"""Tensors of a checkpoint in safetensors files, and a plan in JSON that says where each is: nothing is unpickled.

    plan.json                     every tensor: its type, its shape, its pieces with their places and files
    00003-0000.safetensors …      pieces that process 3 wrote, in files of about 512 MB

PyTorch's own storage of checkpoints keeps its plan as a pickle, which can run any code when it is read. This one
replaces it in `torch.distributed.checkpoint`, which decides who writes what, and who reads which piece of which file.
The marker of the checkpoint holds a digest of every file; what is read is compared with it first. Cost: a process holds
one file in memory; SHA-256 takes about a second per GB.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from pipeline.base.errors import CorpusError
from pipeline.corpus.fingerprint import content_digest
from pipeline.storage.records import Record, said_of
from pipeline.storage.store import Store
from pipeline.training.checkpoint_markers import PLAN

FILE_BYTES = 1 << 29
Dtype = Literal["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


class Piece(Record):
    """A box of a tensor, and the file that holds it."""

    file: str
    offsets: list[int]
    sizes: list[int]


class PlannedTensor(Record):
    """A tensor and its pieces, which cover it."""

    dtype: Dtype
    size: list[int]
    pieces: list[Piece]


class SharePlan(Record):
    """Every tensor of a checkpoint by its name."""

    tensors: dict[str, PlannedTensor]


@dataclasses.dataclass(frozen=True)
class _Written:
    file: str
    digest: str


class ShareWriter(StorageWriter):
    """Writes a checkpoint into a folder. In the end, `digests` of the first process has every file by its name."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder
        self.digests: dict[str, str] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: no state is kept between two checkpoints."""

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        """Do nothing: folders are created by writing."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give every process its number, which its files have in their names."""
        return [dataclasses.replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the pieces of this process, file after file."""
        results = []
        for number, items in enumerate(_by_file(plan.items)):
            name = f"{plan.storage_data:05d}-{number:04d}.safetensors"
            tensors = {item.index.fqn: _on_host(planner.resolve_data(item)) for item in items}
            data = save(tensors)
            self._store.write(f"{self._folder}/{name}", data)
            written = _Written(name, content_digest(data))
            results += [WriteResult(item.index, tensors[item.index.fqn].nbytes, written) for item in items]
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the plan. The first process calls this, with what all processes have written."""
        files = {one.index: one.storage_data for some in results for one in some}
        tensors = {}
        for name, tensor in metadata.state_dict_metadata.items():
            assert isinstance(tensor, TensorStorageMetadata), name
            pieces = [
                Piece(
                    file=files[MetadataIndex(name, one.offsets)].file, offsets=list(one.offsets), sizes=list(one.sizes)
                )
                for one in tensor.chunks
                if math.prod(one.sizes)
            ]
            dtype: Any = str(tensor.properties.dtype).removeprefix("torch.")
            tensors[name] = PlannedTensor(dtype=dtype, size=list(tensor.size), pieces=pieces)
        data = SharePlan(tensors=tensors).model_dump_json().encode()
        self._store.write(f"{self._folder}/{PLAN}", data)
        self.digests = {one.file: one.digest for one in files.values()} | {PLAN: content_digest(data)}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return True: PyTorch does not choose the storage."""
        return False


class ShareReader(StorageReader):
    """Reads a checkpoint of a folder.

    Args:
        store: the corpus.
        folder: the folder of the checkpoint.
        digests: name of a file → its digest.
    """

    def __init__(self, store: Store, folder: str, digests: Mapping[str, str]) -> None:
        self._store, self._folder, self._digests = store, folder, digests
        self._files: Mapping[MetadataIndex, str] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: no state is kept between two checkpoints."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the plan. Raises `CorpusError` if it is not the one that was written, or not a plan."""
        try:
            plan = SharePlan.model_validate_json(self._bytes(PLAN))
        except ValidationError as error:
            raise CorpusError(
                f"{self._store.url}/{self._folder}/{PLAN} is not a checkpoint plan: {said_of(error)}"
            ) from error
        tensors, files = {}, {}
        for name, one in plan.tensors.items():
            if sum(math.prod(piece.sizes) for piece in one.pieces) != math.prod(one.size):
                raise CorpusError(f"{self._store.url}/{self._folder}/{PLAN}: the pieces of {name} do not cover it")
            chunks = [ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes)) for piece in one.pieces]
            properties = TensorProperties(dtype=getattr(torch, one.dtype))
            tensors[name] = TensorStorageMetadata(properties, torch.Size(one.size), chunks)
            files.update({MetadataIndex(name, piece.offsets): piece.file for piece in one.pieces})
        return Metadata(dict(tensors), storage_data=files)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Remember where everything is.

        Args:
            metadata: which tensor is in which file.
            is_coordinator: whether this is the first process.
            *args: further arguments of PyTorch, which are not used.
            **kwargs: further arguments of PyTorch, which are not used.
        """
        self._files = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this process's tensors, file after file. Raises `CorpusError` for damaged data."""
        by_file: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_file[self._files[item.storage_index]].append(item)
        for name, items in by_file.items():
            try:
                tensors = load(self._bytes(name))
                for item in items:
                    _copy(tensors[item.storage_index.fqn], item, planner)
            except (SafetensorError, KeyError, RuntimeError) as error:
                where = f"{self._store.url}/{self._folder}/{name}"
                raise CorpusError(f"{where} is not what {PLAN} says ({error})") from error
        return _done(None)

    def _bytes(self, name: str) -> bytes:
        where = f"{self._store.url}/{self._folder}/{name}"
        if name not in self._digests:
            raise CorpusError(f"{where} has no digest in the marker")
        data = self._store.read(f"{self._folder}/{name}")
        if content_digest(data) != self._digests[name]:
            raise CorpusError(f"{where} was changed or damaged: its digest is not the one in the marker")
        return data

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return True: PyTorch does not choose the storage."""
        return False


def _by_file(items: Sequence[WriteItem]) -> Iterator[list[WriteItem]]:
    """Yield the items of each file, those of one tensor in different ones; empty ones are left out."""
    held: list[WriteItem] = []
    size = 0
    for item in items:
        assert item.tensor_data is not None, f"{item.index.fqn} is not a tensor"
        bytes_of = math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
        if held and (size + bytes_of > FILE_BYTES or any(one.index.fqn == item.index.fqn for one in held)):
            yield held
            held, size = [], 0
        if bytes_of:
            held.append(item)
            size += bytes_of
    if held:
        yield held


def _on_host(tensor: torch.Tensor | io.BytesIO) -> torch.Tensor:
    assert isinstance(tensor, torch.Tensor), "only tensors can be saved"
    return tensor.detach().to("cpu").contiguous()


def _copy(piece: torch.Tensor, item: ReadItem, planner: LoadPlanner) -> None:
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        piece = piece.narrow(dimension, offset, length)
    target = planner.resolve_tensor(item).detach()
    if (target.dtype, target.shape) != (piece.dtype, piece.shape):
        raise RuntimeError(
            f"{item.dest_index.fqn} is {piece.dtype} of {list(piece.shape)}, wanted {target.dtype} of "
            f"{list(target.shape)}"
        )
    target.copy_(piece)
    planner.commit_tensor(item, target)


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
