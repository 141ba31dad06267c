"""`export --format parquet`: what is selected, and nothing else, bit for bit in every reader that people use."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.export import ExportOptions, export_corpus
from pipeline.select.command import SelectOptions
from pipeline.storage import layout
from tests.pipeline.export.exported import WHERE, expected, export
from tests.support.cli import pipeline
from tests.support.corpora import ROW_GROUP_ROWS

COLUMNS = ["doc_id", "piece", "split", "lang", "text", "chars", "autobleu", "decoded", "embedding", "part", "row"]


@pytest.fixture(scope="module")
def written(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("wide") / "to"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        options = ("--where", WHERE, "--row-group-rows", "50")
        shown = pipeline("export", finished, "--format", "parquet", "--to", to, *options)
    assert shown.returncode == 0 and f"written to {to} (" in shown.stdout, shown
    return to


@pytest.fixture(scope="module")
def truth(finished: Path) -> pa.Table:
    """What the corpus says of the selected rows, sorted by their place; embeddings in float16."""
    names = [name for name in COLUMNS if name != "piece"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        found = Corpus(str(finished)).to_arrow(*names, where=WHERE)
    assert found.num_rows > 100
    return found.sort_by([("part", "ascending"), ("row", "ascending")])


def in_duckdb(query: str) -> list[list[Any]]:
    """Rows that DuckDB finds, in a process of its own: at its end it complains about references."""
    code = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))"
    done = subprocess.run([sys.executable, "-c", code, query], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def _silent() -> Console:
    return Console(file=io.StringIO())


def check(rows: dict[str, list[object]], truth: pa.Table) -> None:
    """Columns as lists, sorted by part and row."""
    for name in ("doc_id", "split", "lang", "text", "chars", "decoded", "part", "row"):
        assert rows[name] == truth[name].to_pylist(), name
    scores = np.array([np.nan if one is None else one for one in rows["autobleu"]], np.float32)
    wanted = truth["autobleu"].to_numpy()
    assert (np.isnan(scores) == np.isnan(wanted)).all() and (
        scores[~np.isnan(scores)] == wanted[~np.isnan(wanted)]
    ).all()
    embeddings = np.array([np.asarray(one, np.float32) for one in rows["embedding"]])
    stored = np.array(truth["embedding"].combine_chunks().flatten()).reshape(len(embeddings), -1)
    assert stored.dtype == np.float16 and (embeddings == stored.astype(np.float32)).all()


def test_arrow_reads_it(written: Path, truth: pa.Table) -> None:
    table = ds.dataset(written / "data").to_table(COLUMNS).sort_by([("part", "ascending"), ("row", "ascending")])
    check(table.to_pydict(), truth)
    assert table.schema.field("embedding").type.value_type == pa.float32()
    files = sorted((written / "data").rglob("*.parquet"))
    assert {file.parent.name for file in files} == {"train", "validation", "test"}
    groups = [pq.read_metadata(file) for file in files]
    assert max(one.num_row_groups for one in groups) > 1
    for one in groups:
        sizes = [one.row_group(group).num_rows for group in range(one.num_row_groups)]
        assert set(sizes[:-1]) <= {50} and 0 < sizes[-1] <= 50


def test_duckdb_reads_it(written: Path, truth: pa.Table) -> None:
    found = in_duckdb(f"SELECT {', '.join(COLUMNS)} FROM '{written}/data/*/*.parquet' ORDER BY part, row")
    check({name: list(values) for name, values in zip(COLUMNS, zip(*found, strict=True), strict=True)}, truth)


def test_polars_reads_it(written: Path, truth: pa.Table) -> None:
    import polars as pl

    found = pl.scan_parquet(f"{written}/data/*/*.parquet").select(COLUMNS).sort("part", "row").collect()
    check(found.to_dict(as_series=False), truth)


def test_pandas_reads_it(written: Path, truth: pa.Table) -> None:
    import pandas as pd

    frame = pd.concat(pd.read_parquet(file) for file in sorted((written / "data").rglob("*.parquet")))
    frame = frame.sort_values(["part", "row"])
    rows = {name: [None if one is pd.NA or one != one else one for one in frame[name]] for name in COLUMNS[:-3]}
    check(rows | {name: frame[name].tolist() for name in COLUMNS[-3:]}, truth)


def test_datasets_reads_it_by_split(written: Path, truth: pa.Table, tmp_path: Path) -> None:
    import datasets

    found = datasets.load_dataset(str(written / "data"), cache_dir=str(tmp_path))
    assert set(found) == {"train", "validation", "test"}
    for split, one in found.items():
        assert set(one["split"]) == {split}
    together = datasets.concatenate_datasets(list(found.values())).select_columns(COLUMNS).to_list()
    together.sort(key=lambda row: (row["part"], row["row"]))
    check({name: [row[name] for row in together] for name in COLUMNS}, truth)


def test_pieces_are_those_of_the_selection(corpus: Corpus, written: Path) -> None:
    table = ds.dataset(written / "data").to_table().sort_by([("part", "ascending"), ("row", "ascending")])
    found: dict[tuple[str, int, str], list[str]] = {}
    for row in table.to_pylist():
        found.setdefault((row["doc_id"], row["piece"], row["split"]), []).append(row["text"])
    assert found == {(doc, piece, split): texts for doc, piece, split, texts, _ in expected(corpus, "split-documents")}
    about = json.loads((written / "export.json").read_text())
    assert about["written"]["sequences"] == len(found) and about["written"]["sentences"] == table.num_rows


def test_vectors_in_float16_or_not_at_all(corpus: Corpus, tmp_path: Path) -> None:
    for vectors in ("float16", "none"):
        rules = SelectOptions()
        export_corpus(_silent(), corpus.url, corpus, ExportOptions("parquet", str(tmp_path / vectors), rules, vectors))
    table = ds.dataset(tmp_path / "float16/data").to_table(["embedding", "part", "row"])
    table = table.sort_by([("part", "ascending"), ("row", "ascending")])
    stored = corpus.to_arrow("embedding")["embedding"].combine_chunks().flatten()
    assert (
        table["embedding"].combine_chunks().flatten().cast(pa.float16()).to_numpy().tobytes()
        == stored.to_numpy().tobytes()
    )
    (first,) = in_duckdb(f"SELECT embedding FROM '{tmp_path}/float16/data/*/*.parquet' ORDER BY part, row LIMIT 1")
    assert first == [[float(one) for one in table["embedding"][0].as_py()]]
    without = ds.dataset(tmp_path / "none/data")
    assert "embedding" not in without.schema.names and without.count_rows() == corpus.rows


def test_options_of_other_formats_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    for options, words in (
        (ExportOptions("lcm", str(tmp_path / "to"), vectors="float16"), "--vectors is an option of --format parquet, "),
        (ExportOptions("numpy", str(tmp_path / "to"), vectors="none"), "float16, float32 with --format numpy"),
        (ExportOptions("numpy", str(tmp_path / "to"), shard_mb=1), "--shard-mb is an option of --format webdataset"),
        (ExportOptions("lcm", str(tmp_path / "to"), row_group_rows=5), "--row-group-rows is an option"),
        (ExportOptions("parquet", str(tmp_path / "to"), vectors="f8"), "allowed are float32, float16, none"),
    ):
        with pytest.raises(ConfigError, match=words):
            export_corpus(_silent(), corpus.url, corpus, options)
    assert not (tmp_path / "to").exists()
    assert "sentences" in export(corpus, "parquet", tmp_path / "to")
