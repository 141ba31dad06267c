"""A chunk: the piece of one input file, or the small files, that a worker takes at a time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

TO_THE_END = -1
BY_TEXT = " by text"  # follows the compression of a chunk that is a range of the decompressed text
PACKED = "packed"  # the format of a chunk of several small files; `packing.py` knows them
LONGEST = 256 << 20  # characters of a text, or bytes of a line: longer ones are set aside and not held in memory
SHORT = 1 << 20  # … of a compressed file, where a longer one may have GROWTH times the stored bytes of its chunk
GROWTH = 100  # texts are compressed to a twentieth at best
UNREADABLE = "unreadable"  # the format of files that cannot be opened, and a reason of quarantine


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of one file, or several small files. The id depends only on input name, (first) path and start.

    `start`, `end`: bytes of JSONL, as it is stored or (`by_text`) as it is decompressed; row groups of Parquet; 0 and
    −1 for whole files (text, compressed, and Parquet whose footer could not be read when planning). `bytes`: stored
    bytes of the range, about if it is one of decompressed text. `take`: the most records that are read (from `limit`);
    None for all. Of format "packed", `url` and `stamp` are those of all files, and `path` is for people. `stamp`:
    changes with the file; of format "unreadable", why it cannot be read. `current`: the stamp that the file has now, if
    it was segmented under another one, `stamp`, and its content is the same.
    """

    id: str
    input: str
    path: str
    url: str
    format: str
    compression: str
    start: int
    end: int
    bytes: int
    take: int | None
    stamp: str
    current: str = ""

    @property
    def source(self) -> str:
        """Where the documents say they come from: input name and relative path."""
        return f"{self.input}:{self.path}"

    @property
    def by_text(self) -> bool:
        """Whether the chunk is a range of what its file is decompressed to; the last such range has no end."""
        return self.compression.endswith(BY_TEXT)

    @property
    def longest(self) -> int:
        """The most characters of a text, or bytes of a line, that are read: fewer in a file that holds far more than it
        stores, because a record takes many times its length in memory.
        """
        stored = self.bytes if self.compression or self.format == "parquet" else LONGEST
        return min(LONGEST, max(SHORT, GROWTH * stored))

    def to_json(self) -> str:
        """Return a JSON object of strings, integers and null, for descriptors and receipts."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, value: str) -> Chunk:
        """Reverse `to_json`; raises TypeError for missing or unknown keys."""
        return cls(**json.loads(value))


def chunk_id(input_name: str, path: str, start: int) -> str:
    """Return the id of a chunk, which stays the same when files are added or appended to.

    Args:
        input_name: the name of the input.
        path: the path of the file, or of the first of several.
        start: where the chunk begins: a byte, or a row group of Parquet.

    Returns:
        12 hex digits of a hash.
    """
    return hashlib.blake2b(f"{input_name}\0{path}\0{start}".encode(), digest_size=6).hexdigest()
