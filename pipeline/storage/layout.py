"""The corpus on disk: every path, schema and Parquet setting, and nothing that acts.

The row families of a part (one row = one sentence) have the same rows in the same order and the same row groups, so
joining their columns side by side is free. Row groups have 8192 rows: a random document is read in about 20 ms.
Embeddings are stored as BYTE_STREAM_SPLIT + zstd level 1: the exponent bytes of neighbouring values compress, the
mantissas do not.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.base.errors import CorpusError
from stages.noise.settings import DOCUMENT_COLUMNS as NOISE_OF_DOCUMENTS
from stages.noise.settings import SENTENCE_COLUMNS

LAYOUT_VERSION = 2  # of corpora that are made now: data files in 256 folders of each family
READABLE = (1, 2)  # in layout 1 they lie directly in the family's folder; receipts say where each one is
ROW_GROUP_ROWS = 8192
CORPUS_FILE = "corpus.json"
RUNS = "runs"

ROW_FAMILIES = (
    "sentences", "language", "noise", "hashes", "minhash", "embeddings", "status", "plans", "plan-embeddings",
    "autobleu", "fragility", "fragility-predicted", "codes", "duplicates", "near-duplicates", "semantic-duplicates",
)  # fmt: skip
COMPARED = ("duplicates", "near-duplicates", "semantic-duplicates")  # families that say what documents repeat others
FITS = "fits"
INDEXES = "train/index"

_PLAIN: dict[str, list[tuple[str, pa.DataType]]] = {
    "documents": [
        ("doc", pa.int32()),  # number of the document in its part
        ("doc_id", pa.string()),
        ("subdocument", pa.int32()),  # 0, or which piece of a document of more than max_document_sentences
        ("lang", pa.string()),
        ("lang_confidence", pa.float32()),  # of the identification; null where the language was stated
        ("split", pa.string()),
        ("source", pa.string()),
        ("text_hash", pa.uint64()),
        ("first_row", pa.int32()),
        ("rows", pa.int32()),
    ],
    "sentences": [
        ("doc", pa.int32()),
        ("position", pa.int32()),  # number of the sentence in its document
        ("paragraph", pa.int32()),  # number of its paragraph in its document
        ("text", pa.string()),
        ("lang", pa.string()),
        ("start", pa.int32()),  # code points in the original document
        ("end", pa.int32()),
        ("chars", pa.int32()),
        ("tokens", pa.int32()),  # with language tag and </s>, before any truncation
        ("u", pa.float64()),  # uniform in [0, 1): the row's place in every sample
    ],
    "language": [
        ("lang_detected", pa.string()),
        ("lang_confidence_detected", pa.float32()),
        ("lang_differs", pa.bool_()),  # from the stated language, with confidence
    ],
    "noise": [(name, pa.float32()) for name in (*SENTENCE_COLUMNS, *NOISE_OF_DOCUMENTS)],
    "hashes": [("sentence_hash", pa.uint64()), ("doc_hash", pa.uint64())],
    "minhash": [("minhash", pa.list_(pa.field("element", pa.uint64())))],  # in the first row of each document
    "duplicates": [
        ("duplicate_of", pa.string()),  # id of the document with the first such sentence; null: this is the first
        ("duplicate_of_position", pa.int32()),
        ("duplicate_count", pa.int32()),  # sentences that are equal, with this one
        ("doc_duplicate_of", pa.string()),
        ("doc_duplicate_count", pa.int32()),
    ],
    "semantic-duplicates": [
        ("semantic_duplicate_of", pa.string()),
        ("semantic_duplicate_of_position", pa.int32()),
        ("semantic_duplicate_count", pa.int32()),
    ],
    "near-duplicates": [("near_duplicate_of", pa.string()), ("near_duplicate_count", pa.int32())],  # of documents
    "status": [("status", pa.uint8())],  # 0 ok, 1 truncated, 2 non-finite
    "plans": [("plan", pa.string())],  # in the first row of each paragraph that has one
    "autobleu": [("autobleu", pa.float32()), ("decoded", pa.string())],
    "fragility": [  # −mean over noise levels of scores in [0, 1]: nearer 0 is more fragile (LCM eq. 26)
        ("fragility_bleu", pa.float32()),
        ("fragility_cosine", pa.float32()),
        ("bleu_by_noise", pa.list_(pa.field("element", pa.float32()))),  # as Parquet calls it: digests see the name
        ("cosine_by_noise", pa.list_(pa.field("element", pa.float32()))),
    ],
    "fragility-predicted": [
        ("fragility_predicted_bleu", pa.float32()),
        ("fragility_predicted_cosine", pa.float32()),
        ("fragility_predicted", pa.float32()),  # that of predictor.score
        ("weight", pa.float32()),  # of the sentence in a loss (LCM eq. 25)
    ],
    "quarantine": [
        ("record", pa.string()),  # where it stands: file and byte offset or row
        ("records", pa.int64()),  # how many records this row stands for (the rest of a broken Parquet row group)
        ("doc_id", pa.string()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("payload", pa.binary()),  # its beginning
        ("payload_bytes", pa.int64()),  # length of the whole record in bytes
    ],
}
_NULLABLE = {
    "quarantine.doc_id",
    "documents.lang_confidence",
    "language.lang_detected",
    "language.lang_confidence_detected",
    "duplicates.duplicate_of",
    "duplicates.duplicate_of_position",
    "duplicates.doc_duplicate_of",
    "minhash.minhash",
    "plans.plan",
    "near-duplicates.near_duplicate_of",
    "semantic-duplicates.semantic_duplicate_of",
    "semantic-duplicates.semantic_duplicate_of_position",
} | {
    f"{family}.{name}"  # not sampled, or the embedding is not finite
    for family in ("autobleu", "fragility", "fragility-predicted")
    for name, _ in _PLAIN[family]
    if name != "weight"
}
_VECTORS = {
    "embeddings": ("embedding", pa.float16()),
    "plan-embeddings": ("plan_embedding", pa.float16()),  # zero where `plan` is null, which compresses to nothing
    "codes": ("codes", pa.uint16()),
}
VECTORS = tuple(_VECTORS)  # families of one column, whose width only the file knows
DOCUMENT_COLUMNS = tuple(name for name, _ in _PLAIN["documents"])
_NONE_KEPT: Mapping[str, pa.DataType] = MappingProxyType({})
RESERVED_COLUMNS = {"embedding", "codes", "part", "row"} | {
    name for family, columns in _PLAIN.items() if family not in ("quarantine", "plans") for name, _ in columns
}
PLAN_COLUMNS = {"plan", "plan_embedding"}  # reserved where there is a section `plans`: inputs may bring such names


def schema(family: str, *, width: int | None = None, keep: Mapping[str, pa.DataType] = _NONE_KEPT) -> pa.Schema:
    """Return the declared schema of a family.

    Args:
        family: the family.
        width: how many numbers its vectors have; needed for embeddings and codes.
        keep: name → type of the metadata columns of documents.

    Returns:
        The schema, in which nulls are forbidden where none may be.

    Raises:
        ValueError: if the width is needed and not given.
    """
    if family in VECTORS:
        if width is None:
            raise ValueError(f"the schema of {family} needs the width of its vectors")
        name, kind = _VECTORS[family]
        return pa.schema([pa.field(name, pa.list_(pa.field("element", kind, nullable=False), width), nullable=False)])
    fields = [pa.field(name, kind, nullable=f"{family}.{name}" in _NULLABLE) for name, kind in _PLAIN[family]]
    if family == "documents":
        fields += [pa.field(name, kind) for name, kind in keep.items()]
    return pa.schema(fields)


def checked(family: str, table: pa.Table, expected: pa.Schema, rows: int | None) -> pa.Table:
    """Return a table in its declared schema.

    Args:
        family: the family, for messages.
        table: the columns as a stage computed them.
        expected: the declared schema.
        rows: how many rows there must be; None if any number is right.

    Returns:
        The table, cast to the schema.

    Raises:
        CorpusError: for wrong columns, nulls or row counts.
    """
    if rows is not None and table.num_rows != rows:
        raise CorpusError(f"{family}: {table.num_rows} rows came out of {rows} rows that went in")
    if table.column_names != expected.names:
        raise CorpusError(f"{family}: columns {table.column_names} came out; its schema has {expected.names}")
    for column in expected:
        if not column.nullable and table[column.name].null_count:
            raise CorpusError(f"{family}.{column.name}: {table[column.name].null_count} nulls where none are allowed")
    return table.cast(expected)


def parquet_options(table: pa.Table) -> dict[str, Any]:
    """Return the options of `pq.write_table` for a family's table; the type of its first column tells vectors from
    others.

    At 64 codebooks, codes of 13 bits take 105 bytes per sentence, of which 104 are information (dictionaries: 107 to
    113). Each page has a checksum, so that who reads a row group need not read the whole file to know that it is whole.
    """
    options: dict[str, Any] = {
        "row_group_size": ROW_GROUP_ROWS, "compression": "zstd", "compression_level": 1, "write_page_checksum": True,
    }  # fmt: skip
    if table.column_names[0] in {name for name, _ in _VECTORS.values()}:
        options |= {"use_dictionary": False, "write_statistics": False}
        options["column_encoding"] = {f"{table.column_names[0]}.list.element": "BYTE_STREAM_SPLIT"}
        options["data_page_size"] = 8 << 20  # a tenth faster to read than the default of 1 MB
    else:
        options["use_dictionary"] = [
            name for name in ("lang", "split", "source", "reason", "stage") if name in table.column_names
        ]
        options["compression_level"] = 3
    return options


def to_parquet(table: pa.Table) -> pa.Buffer:
    """Return the bytes of a family's file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **parquet_options(table))
    return sink.getvalue()


def data_path(family: str, part: str, fingerprint: str) -> str:
    """Return a name for a data file that was never used before.

    Args:
        family: the family.
        part: the name of the part.
        fingerprint: the fingerprint of the result, 64 hex digits.

    Returns:
        A path; its last six digits are unique to this attempt. Its folder is one of 256, since the paper's corpus has
        millions of parts.
    """
    return f"{family}/{part[:2]}/{part}.{fingerprint[:8]}-{secrets.token_hex(3)}.parquet"


def data_owner(path: str) -> tuple[str, str]:
    """Return (part or chunk, first eight digits of the fingerprint) from the name of a data file."""
    part, rest = path.rsplit("/", 1)[-1].split(".", 1)
    return part, rest[:8]


def receipt_path(stage: str, part: str, fingerprint: str) -> str:
    """Return the path of the receipt of one stage for one part.

    Args:
        stage: the stage.
        part: the name of the part.
        fingerprint: the fingerprint of the result, 64 hex digits.

    Returns:
        A path in the corpus.
    """
    return f"receipts/{stage}/{part[:2]}/{part}.{fingerprint[:8]}.json"


def chunk_receipt_path(chunk: str, fingerprint: str) -> str:
    """Return the path of the receipt of a chunk."""
    return f"chunks/{chunk[:2]}/{chunk}.{fingerprint[:8]}.json"


def index_paths(digest: str) -> tuple[str, str]:
    """Return the paths of an index: its shuffle blocks and description, written last, and the files of its parts."""
    return f"{INDEXES}/{digest[:12]}.parquet", f"{INDEXES}/{digest[:12]}.parts.parquet"


def index_row_ranges_path(digest: str, split: str, number: int) -> str:
    """Return the path of one file with row ranges of a split.

    Args:
        digest: the digest of the index.
        split: `train`, `validation` or `test`, or `index_share` of it.
        number: the number of the file, from 0.

    Returns:
        A path in the corpus.
    """
    return f"{INDEXES}/{digest[:12]}.{split}-{number:05d}.runs"


def index_share(which: int, of: int, split: str) -> str:
    """Return what stands for a split in the names of the row ranges that a share of an index has written.

    Args:
        which: the number of the share, from 1.
        of: how many shares there are.
        split: `train`, `validation` or `test`.

    Returns:
        A piece of a name.
    """
    return f"share-{which}-of-{of}.{split}"


def index_share_prefix(digest: str) -> str:
    """Return what the paths of the notes and the row ranges of an index's shares begin with."""
    return f"{INDEXES}/{digest[:12]}.share-"


def select_share_prefix(digest: str, version: int) -> str:
    """Return what the paths of the notes of a selection's shares begin with; `version`: of what such a note says."""
    return f"{INDEXES}/{digest[:12]}.select-{version}."


def is_of_share(path: str) -> bool:
    """Return whether a path is of what a share of an index or of a selection has written."""
    return re.fullmatch(rf"{INDEXES}/[0-9a-f]{{12}}\.(share|select)-.*", path) is not None


def part_name(chunk: str, number: int) -> str:
    """Return the name `<chunk>-00000`: parts sort in the order of their documents."""
    return f"{chunk}-{number:05d}"


def part_number(part: str) -> int:
    """Return the number of a part within its chunk."""
    return int(part.partition("-")[2])


def part_owner(part: str) -> str:
    """Return the chunk of a part; the name of a chunk itself stays as it is."""
    return part.partition("-")[0]
