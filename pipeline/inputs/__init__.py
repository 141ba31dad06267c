"""Documents that go in: found, cut into chunks, counted, and read, from files of any fsspec store.

`resolve_inputs` → `plan_inputs` → `order_chunks` happen once per run; `count_documents` and `read_documents` once per
chunk, on the worker. JSONL, Parquet, text and Markdown; gzip, bz2, xz and zstd.
"""

from pipeline.inputs.chunk import Chunk
from pipeline.inputs.chunks import CHUNK_BYTES, order_chunks, plan_chunks, plan_inputs
from pipeline.inputs.counting import Content, Counted, count_documents
from pipeline.inputs.documents import Document, Rejected
from pipeline.inputs.listing import InputFile, list_files
from pipeline.inputs.packing import files_of, root_of
from pipeline.inputs.readers import read_documents
from pipeline.inputs.records import nearest_languages
from pipeline.inputs.settings import InputError, InputSettings, LangColumn, LangDetect, SplitSettings, resolve_inputs
from pipeline.inputs.splits import SPLITS
from pipeline.inputs.table import ChunkTable

__all__ = [
    "CHUNK_BYTES",
    "SPLITS",
    "Chunk",
    "ChunkTable",
    "Content",
    "Counted",
    "Document",
    "InputError",
    "InputFile",
    "InputSettings",
    "LangColumn",
    "LangDetect",
    "Rejected",
    "SplitSettings",
    "count_documents",
    "files_of",
    "list_files",
    "nearest_languages",
    "order_chunks",
    "plan_chunks",
    "plan_inputs",
    "read_documents",
    "resolve_inputs",
    "root_of",
]
