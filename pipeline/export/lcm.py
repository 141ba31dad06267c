"""The layout that Meta's large_concept_model loads: one row per document, sentences and embeddings as lists.

    data/split=train/<part>.parquet     text_sentences: list<string>
                                        text_sentences_sonar_emb: list<fixed_size_list<halffloat>[dim]>
                                        doc_id, subdocument, piece (together unique), lang
    datacard.yaml                       to copy into lcm/datacards/
    normalizer.pt  normalizer.yaml      if there is one: the card to copy into lcm/cards/

`split` is a hive partition, because the release filters it (`pretraining_data=train`) by partition before it reads. It
loads whole row groups, several at once: they hold documents of about 8192 sentences, 17 MB at 1024 dimensions.
Embeddings stay FP16, the release's own type in training; lists and their elements are declared nullable, as its
suffixes ("End of text.") are, because Arrow joins only lists of equal types.
"""

from __future__ import annotations

import contextlib
import re
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pipeline.export.pieces import ExportedSequences, ExportTask, Written, exported_sequences
from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import PartSelection
from pipeline.storage import layout
from pipeline.storage.export_target import ExportTarget
from pipeline.storage.remote import is_remote

if TYPE_CHECKING:
    from stages.scaler.robust import RobustScaler

CARDS = ("datacard.yaml", "normalizer.pt", "normalizer.yaml")
TEXT, EMBEDDINGS = "text_sentences", "text_sentences_sonar_emb"


def write_lcm(task: ExportTask) -> Written:
    """Write every selected sequence."""
    for chosen in task.selection:
        _write_part(task, chosen)
    return task.written


def write_lcm_cards(corpus: str, target: ExportTarget, written: Written, scaler: RobustScaler | None = None) -> None:
    """Write the cards of an export, and the scaler in the form of the release's `SonarNormalizer`.

    Args:
        corpus: the name of the corpus.
        target: the folder of the export.
        written: all that was written; the cards are added to it.
        scaler: the fitted scaler; None to write none.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", corpus)  # the characters that the release allows in a name
    card = {
        "name": name,
        "parquet_path": {"s3": f"{target.url}/data"},  # the release's default "cluster", for local folders too
        "source_column": EMBEDDINGS,
        "source_text_column": TEXT,
    }
    splits = [split for split in SPLITS if split in written.by_split]
    target.write_text("datacard.yaml", _yaml(card) + f"# partition columns:\n# split ({', '.join(splits)})\n")
    written.files += 1
    if scaler is not None:
        with target.file("normalizer.pt") as file:
            file.write(scaler.to_lcm())
        target.write_text("normalizer.yaml", _yaml(_normalizer_card(name, target, scaler, written.dim)))
        written.files += 2
    written.next_step = (
        f"Copy datacard.yaml into lcm/datacards/ of large_concept_model and train on {name}={splits[0]}"
        + (f", normalised by {name}_normalizer (normalizer.yaml into lcm/cards/)" if scaler is not None else "")
    )


def _write_part(task: ExportTask, chosen: PartSelection) -> None:
    written = task.written
    documents = task.selection.corpus.documents(chosen.part)
    splits = np.asarray(documents["split"].to_pylist(), dtype=object)
    with contextlib.ExitStack() as closing:  # all files of a part appear together, when the part is done
        writers: dict[str, _RowGroups] = {}
        for pieces in exported_sequences(task.selection, chosen):
            table = _table(pieces, documents)
            written.dim = pieces.embeddings.shape[1]
            of_split = splits[pieces.doc]
            for split in dict.fromkeys(of_split):
                if split not in writers:
                    file = closing.enter_context(task.target.file(f"data/split={split}/{chosen.part}.parquet"))
                    writers[split] = closing.enter_context(contextlib.closing(_RowGroups(file, table.schema, written)))
                rows = table.filter(pa.array(of_split == split))
                sentences = len(rows[EMBEDDINGS].combine_chunks().flatten())
                writers[split].write(rows, sentences)
                written.count(split, rows.num_rows, sentences)
            task.progress.add(len(pieces.text))


def _table(pieces: ExportedSequences, documents: pa.Table) -> pa.Table:
    offsets = pa.array(pieces.offsets, pa.int32())
    dim = pieces.embeddings.shape[1]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(pieces.embeddings.reshape(-1)), dim)
    of_document = documents.select(["doc_id", "subdocument", "lang"]).take(pa.array(pieces.doc))
    return pa.table(
        {
            TEXT: pa.ListArray.from_arrays(offsets, pieces.text),
            EMBEDDINGS: pa.ListArray.from_arrays(offsets, vectors),
            "doc_id": of_document["doc_id"],
            "subdocument": of_document["subdocument"],
            "piece": pa.array(pieces.piece, pa.int32()),
            "lang": of_document["lang"],
        }
    )


class _RowGroups:
    """Collects documents into row groups of up to `layout.ROW_GROUP_ROWS` sentences, or of one table that has more."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, written: Written) -> None:
        options: dict[str, Any] = {
            "compression": "zstd",
            "compression_level": 1,
            "use_dictionary": ["lang"],
            "write_statistics": ["doc_id", "subdocument", "piece", "lang"],
            "column_encoding": {f"{EMBEDDINGS}.list.element.list.element": "BYTE_STREAM_SPLIT"},
            "data_page_size": 8 << 20,
        }
        self._file, self._written = file, written
        self._writer = pq.ParquetWriter(file, schema, **options)
        self._waiting: list[pa.Table] = []
        self._sentences = 0

    def write(self, table: pa.Table, sentences: int) -> None:
        if self._sentences + sentences > layout.ROW_GROUP_ROWS:
            self._flush()
        self._waiting.append(table)
        self._sentences += sentences

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._written.files += 1
        self._written.bytes += self._file.tell()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._sentences = [], 0


def _normalizer_card(name: str, target: ExportTarget, scaler: RobustScaler, dim: int) -> dict[str, Any]:
    place = target.url if is_remote(target.url) else f"file://{target.url}"
    return {
        "name": f"{name}_normalizer",
        "model_family": "sonar_normalizer",
        "model_arch": "base" if scaler.clip is None else "clipping",
        "model_config": {"dim": dim},
        "checkpoint": f"{place}/normalizer.pt",
    }


def _yaml(card: dict[str, Any]) -> str:
    return str(yaml.safe_dump(card, sort_keys=False, allow_unicode=True))
