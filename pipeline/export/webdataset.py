"""Tar files that the package `webdataset` streams: one sample per sequence of sentences.

    data/train/00000.tar    data/train/00001.tar    …    data/validation/00000.tar    …

    <key>.npy     (sentences, dim) float16 or float32
    <key>.json    doc_id, split, source, metadata, `piece` and `part` of the sequence; text, lang, scores and the other
                  columns of sentences as lists with one entry per row of the matrix

The key names part, document and sequence, so it is unique over all tar files. Members have no time and no owner: the
same corpus gives the same bytes. A member takes up to 1 kB of header and padding, so short sequences are better read
from the format parquet. Memory: two row groups of the corpus and the longest sequence.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.base.formats import to_json
from pipeline.export.pieces import FIRST, ExportedSequences, ExportTask, Written, exported_sequences, free, row_columns
from pipeline.inputs.splits import SPLITS
from pipeline.storage.export_target import ExportTarget

MEGABYTE = 10**6


def write_webdataset(task: ExportTask) -> Written:
    """Write every selected sequence. Raises `CorpusError` for a damaged file of the corpus."""
    selection, target, written = task.selection, task.target, task.written
    catalogue = selection.corpus.catalogue
    names = row_columns(selection.corpus, embedding=True)
    of_document = [name for name in names if catalogue[name].family == "documents" or name == "part"]
    with contextlib.ExitStack() as closing:
        shards: dict[str, _Shards] = {}
        for chosen in selection:
            for sequences in exported_sequences(selection, chosen, names):
                matrix = np.ascontiguousarray(sequences.embeddings, np.dtype(task.vectors).newbyteorder("<"))
                written.dim = matrix.shape[1]
                for number, (low, high) in enumerate(pairwise(sequences.offsets.tolist())):
                    about = _about(sequences, number, low, high, of_document)
                    split = about["split"]
                    if split not in shards:
                        shards[split] = closing.enter_context(_Shards(target, split, task.shard_mb * MEGABYTE, written))
                    key = f"{chosen.part}-{sequences.doc[number]:06d}-{sequences.piece[number]:04d}"
                    shards[split].add(key, {"npy": _npy(matrix[low:high]), "json": to_json(about).encode()})
                    written.count(split, 1, high - low)
                task.progress.add(len(sequences.text))
    first = next(split for split in SPLITS if split in shards)
    last = shards[first].number - 1
    braces = f"{{00000..{last:05d}}}" if last else "00000"
    tars = f"{target.url}/data/{first}/{braces}.tar"
    written.next_step = f"webdataset.WebDataset({tars!r}, shardshuffle=False).decode()"
    if odd := sorted(set(target.url) & set("#{}")):
        written.next_step += f" cannot open a path with {' '.join(odd)}: move the export first"
    return written


def _about(sequences: ExportedSequences, number: int, low: int, high: int, of_document: list[str]) -> dict[str, Any]:
    """Return what the JSON of a sequence says: values of its document once, those of its sentences as lists."""
    table = sequences.table.drop_columns("embedding").slice(low, high - low)
    ordered = dict.fromkeys([*(name for name in FIRST if name in of_document), *table.column_names])
    about = {name: table[name][0].as_py() if name in of_document else table[name].to_pylist() for name in ordered}
    return about | {free("piece", about): int(sequences.piece[number])}


def _npy(matrix: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, matrix, allow_pickle=False)
    return file.getvalue()


class _Shards(contextlib.ExitStack):
    """Writes the tar files of a split, one after the other; use it in a `with` statement."""

    def __init__(self, target: ExportTarget, split: str, most: int, written: Written) -> None:
        super().__init__()
        self._target, self._split, self._most, self._written = target, split, most, written
        self._bytes = 0
        self._tar: tarfile.TarFile | None = None
        self.number = 0  # of tar files begun

    def add(self, key: str, members: dict[str, bytes]) -> None:
        """Append a sample; all of its members are in the same tar file, one after the other."""
        size = sum(2 * tarfile.BLOCKSIZE + len(data) for data in members.values())
        if self._tar is None or self._bytes + size > self._most:
            self._tar, self._bytes = self._next(), tarfile.RECORDSIZE  # of the end of the file
        for ending, data in members.items():
            member = tarfile.TarInfo(f"{key}.{ending}")
            member.size = len(data)
            self._tar.addfile(member, io.BytesIO(data))
        self._bytes += size

    def _next(self) -> tarfile.TarFile:
        self.close()
        file = self.enter_context(self._target.file(f"data/{self._split}/{self.number:05d}.tar"))
        self.callback(self._count, file)
        self.number += 1
        return self.enter_context(tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT))

    def _count(self, file: Any) -> None:
        self._written.files += 1
        self._written.bytes += file.tell()
