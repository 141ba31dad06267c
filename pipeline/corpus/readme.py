"""The README.md of every corpus folder, for people who find the folder and not this program.

It is the same text in every corpus, so it stays true when a corpus is copied, renamed or purged. Nothing reads it: a
run writes it where it is missing, and a README that somebody else wrote stays.
"""

from __future__ import annotations

from pipeline.storage.store import Store

README = "README.md"
TEXT = """\
# A corpus of sentence embeddings

This folder was made by sonar-pipeline: documents, their sentences, a SONAR embedding of each sentence, scores. It can
be copied or moved as a whole. This text is the same in every such folder, and no program reads it.

**Do not read it by globs such as `sentences/**/*.parquet`.** Results of older settings and of interrupted attempts stay
in the same folders until `pipeline gc --delete`, so a glob mixes stale rows with current ones and counts sentences
several times. Which files are current is in `receipts/` and `ledger/`. These commands and classes read exactly those
(`CORPUS` is this folder, a path or a URL):

| to | use |
|---|---|
| see what is in it, and whether it is complete | `pipeline status CORPUS`, `pipeline inspect CORPUS` |
| look around in it in a browser | `pipeline browse CORPUS` |
| read it in Python | `from pipeline import Corpus; Corpus("CORPUS").to_pandas("text", "embedding")` |
| list the current files | `pipeline files CORPUS --json` |
| query it in DuckDB | `pipeline sql CORPUS --open` |
| read it with pandas, Polars, Spark, `datasets` | `pipeline export CORPUS --format parquet --to OTHER` |
| read it with NumPy or webdataset | `pipeline export CORPUS --format numpy --to OTHER`, or `--format webdataset` |
| check every file against its digest | `pipeline verify CORPUS` |
| delete what is not current | `pipeline gc CORPUS --delete` |
| remove documents for good | `pipeline purge CORPUS --ids FILE` |

| folder | holds |
|---|---|
| `corpus.json` | the name of the corpus and the version of this layout |
| `documents/` | Parquet: one row per document, with id, language, split, source, metadata |
| `sentences/` | Parquet: one row per sentence, with its text and place |
| `embeddings/`, `status/` | Parquet: a float16 vector of each sentence, in the same order; and whether it is whole |
| `language/`, `noise/`, `hashes/`, `minhash/` | Parquet: what was measured of the text |
| `plans/`, `plan-embeddings/` | Parquet: plans of paragraphs, in their first rows, and vectors of these |
| `autobleu/`, `fragility/`, `fragility-predicted/`, `codes/` | Parquet: scores and codes of the embeddings |
| `duplicates/`, `near-duplicates/`, `semantic-duplicates/` | Parquet: which sentences and documents repeat others |
| `quarantine/` | Parquet: records that could not be used, with the reason |
| `receipts/`, `chunks/`, `ledger/` | which files are current, with their digests; the accounting |
| `runs/`, `recipes/`, `fits/`, `ids/` | each run with its settings; scalers, codebooks and decoders; ids of documents |
| `report/index.html` | plots and tables |
| `train/` | trained models and their indexes |
| `exports/`, `tombstones/`, `lock/` | which exports were made; ids that were purged; who works on it now |

The files of a folder that begin with the same name (a part, such as `48616b49f3c3-00000`) have the same rows in the
same order. Embeddings are stored as float16 with Parquet's BYTE_STREAM_SPLIT, which DuckDB cannot read.
"""


def write_readme(store: Store) -> None:
    """Write the README unless there is one."""
    if not store.exists(README):
        store.create(README, TEXT.encode())
