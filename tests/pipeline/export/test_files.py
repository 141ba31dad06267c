"""`export --format numpy`, `webdataset` and `lance`: those who read such files find the corpus bit for bit."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.formats import to_json
from pipeline.export import ExportOptions, export_corpus
from pipeline.export.pieces import rows_by_split
from pipeline.select.command import SelectOptions
from pipeline.select.selection import Selection
from stages.arrow import embedding_matrix
from tests.pipeline.export.exported import WHERE, expected, export
from tests.support.cli import pipeline

SPLITS = ("train", "validation", "test")
COLUMNS = ("doc_id", "split", "source", "lang", "title", "text", "chars", "autobleu", "decoded", "part", "row")


def written(corpus: Corpus, to: Path | str, **options: Any) -> Path:
    export_corpus(Console(file=io.StringIO()), corpus.url, corpus, ExportOptions(to=str(to), **options))
    return Path(to)


@pytest.mark.parametrize("vectors", ["float16", "float32"])
def test_numpy_maps_the_vectors_of_the_texts(corpus: Corpus, tmp_path: Path, vectors: str) -> None:
    import polars as pl

    to = written(corpus, tmp_path / "to", format="numpy", vectors=vectors, rules=SelectOptions(WHERE))
    rows = corpus.to_arrow(*COLUMNS, "embedding", where=WHERE).to_pylist()
    wanted = expected(corpus, "split-documents")
    assert any(piece for _, piece, *_ in wanted)
    for split in SPLITS:
        of_split = [row for row in rows if row["split"] == split]
        mapped = np.load(to / f"data/{split}/embeddings.npy", mmap_mode="r")
        assert isinstance(mapped, np.memmap) and mapped.dtype == vectors and mapped.flags.c_contiguous
        stored = np.array([row["embedding"] for row in of_split], np.float16)
        assert mapped.tobytes() == stored.astype(vectors).tobytes() and len(stored)
        lines = [json.loads(line) for line in (to / f"data/{split}/rows.jsonl").read_text().splitlines()]
        for line, row in zip(lines, of_split, strict=True):
            assert {name: line[name] for name in COLUMNS} == {name: row[name] for name in COLUMNS}
            assert "embedding" not in line
        pieces = [piece for _, piece, of, texts, _ in wanted if of == split for _ in texts]
        assert [line["piece"] for line in lines] == pieces
        assert pl.read_ndjson(to / f"data/{split}/rows.jsonl")["text"].to_list() == [one["text"] for one in of_split]
    about = json.loads((to / "export.json").read_text())
    assert about["written"]["sentences"] == len(rows) and about["dim"] == 64


def sequences(samples: list[tuple[np.ndarray[Any, Any], dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """Samples in the form of `expected`, in the order of the corpus."""
    samples.sort(key=lambda one: (one[1]["part"], one[1]["row"][0]))
    found = []
    for matrix, about in samples:
        assert matrix.shape == (len(about["text"]), 64) and len(about["row"]) == len(about["chars"]) == len(matrix)
        vectors = [row.tobytes() for row in matrix]
        found.append((about["doc_id"], about["piece"], about["split"], about["text"], vectors))
    return found


def test_datasets_reads_the_tar_files(corpus: Corpus, tmp_path: Path) -> None:
    import datasets

    to = written(corpus, tmp_path / "to", format="webdataset", rules=SelectOptions(WHERE))
    files = {split: str(to / f"data/{split}/*.tar") for split in SPLITS}
    found = datasets.load_dataset("webdataset", data_files=files, streaming=True)
    samples = [(np.array(row["npy"], np.float16), row["json"]) for split in SPLITS for row in found[split]]
    assert sequences(samples) == expected(corpus, "split-documents")
    titles = {row["doc_id"]: row["title"] for row in corpus.to_arrow("doc_id", "title").to_pylist()}
    assert all(about["title"] == titles[about["doc_id"]] for _, about in samples) and None in titles.values()


def test_webdataset_reads_its_tar_files(corpus: Corpus, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    to = written(corpus, tmp_path / "to", format="webdataset", rules=SelectOptions(WHERE), vectors="float32")
    samples = []
    for split in SPLITS:
        stream = webdataset.WebDataset(str(to / f"data/{split}/00000.tar"), shardshuffle=False).decode()
        for sample in stream:
            assert sample["npy"].dtype == np.float32 and sample["__key__"].startswith(sample["json"]["part"])
            samples.append((sample["npy"].astype(np.float16), sample["json"]))
    assert sequences(samples) == expected(corpus, "split-documents")


def test_tar_files_are_no_larger_than_asked_and_the_same_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr("pipeline.export.webdataset.MEGABYTE", 20_000)
    first, again = (written(corpus, tmp_path / name, format="webdataset", shard_mb=1) for name in ("a", "b"))
    tars = sorted(path.relative_to(first) for path in first.rglob("*.tar"))
    assert len(tars) > 5
    for tar in tars:
        assert (first / tar).read_bytes() == (again / tar).read_bytes()
        samples = len(list(datasets.load_dataset("webdataset", data_files=str(first / tar), streaming=True)["train"]))
        assert (first / tar).stat().st_size <= 20_000 or samples == 1
    about = json.loads((first / "export.json").read_text())
    assert about["written"]["sentences"] == corpus.rows


def test_a_corpus_that_changes_meanwhile_leaves_no_wrong_header(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted_before(selection: Selection) -> dict[str, int]:
        return {"train": 7, "validation": 7, "test": 7}

    monkeypatch.setattr("pipeline.export.numpy_files.split_rows", counted_before)
    with pytest.raises(CorpusError, match="7 sentences were counted"):
        written(corpus, tmp_path / "to", format="numpy")
    assert not [path for path in (tmp_path / "to").rglob("*") if path.is_file()]


def test_object_stores_take_them(corpus: Corpus, bucket: str) -> None:
    import fsspec

    said = export(corpus, "numpy", f"{bucket}/numpy")
    assert f"np.load('{bucket}/numpy/data/train/embeddings.npy', mmap_mode='r')" in said
    with fsspec.open(f"{bucket}/numpy/data/test/embeddings.npy") as file:
        assert np.load(io.BytesIO(file.read())).dtype == np.float16
    assert "shardshuffle" in export(corpus, "webdataset", f"{bucket}/web")


def test_the_command(finished: Path, tmp_path: Path, corpus: Corpus) -> None:
    for kind, ending, options in (
        ("numpy", "npy", ()),
        ("webdataset", "tar", ("--shard-mb", "5")),
        ("lance", "lance", ()),
    ):
        done = pipeline("export", finished, "--format", kind, "--to", tmp_path / kind, *options)
        assert done.returncode == 0 and f"written to {tmp_path / kind} (" in done.stdout, done
        assert (tmp_path / kind / "export.json").exists() and list((tmp_path / kind).rglob(f"*.{ending}"))


def test_json_has_words_for_every_value() -> None:
    assert json.loads(to_json({"day": date(2024, 2, 29), "none": float("nan"), "list": [{"ä": 1.5}]})) == {
        "day": "2024-02-29", "none": None, "list": [{"ä": 1.5}],
    }  # fmt: skip


@pytest.mark.parametrize("vectors", ["float16", "float32", "none"])
def test_lance_reads_its_dataset(corpus: Corpus, tmp_path: Path, vectors: str) -> None:
    import lance

    to = written(corpus, tmp_path / "to", format="lance", vectors=vectors, rules=SelectOptions(WHERE))
    found = lance.dataset(to / "sentences.lance")
    rows = found.to_table()
    wanted = corpus.to_arrow(*COLUMNS, "embedding", where=WHERE)
    for name in COLUMNS:
        assert rows[name].to_pylist() == wanted[name].to_pylist(), name
    pieces = [piece for _, piece, _, texts, _ in expected(corpus, "split-documents") for _ in texts]
    assert rows["piece"].to_pylist() == pieces
    if vectors == "none":
        assert "embedding" not in rows.column_names
        return
    assert rows.schema.field("embedding").type == pa.list_(pa.type_for_alias(vectors), 64)
    stored = embedding_matrix(wanted["embedding"])
    assert embedding_matrix(rows["embedding"]).astype(vectors).tobytes() == stored.astype(vectors).tobytes()
    nearest = found.to_table(nearest={"column": "embedding", "q": stored[5], "k": 3}, filter="chars >= 20")
    assert stored[5].tobytes() in [row.astype(np.float16).tobytes() for row in embedding_matrix(nearest["embedding"])]
    assert found.count_rows("split = 'train'") == wanted["split"].to_pylist().count("train")


def test_lance_is_for_folders_of_this_machine(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="lance writes to a folder of this machine"):
        written(corpus, "s3://bucket/lance", format="lance")


def test_lance_refuses_names_with_points_before_anything_is_selected(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corpus.catalogue, "a.b", corpus.catalogue["doc_id"])
    with pytest.raises(CorpusError, match=r"no columns with a point in their names, and here is a\.b"):
        written(corpus, tmp_path / "to", format="lance")
    assert not (tmp_path / "to").exists()


def test_damage_ends_an_export_to_lance_as_it_ends_others(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: Any) -> Iterator[Any]:
        yield from itertools.islice(rows_by_split(*_), 1)
        raise CorpusError("the file is damaged")

    monkeypatch.setattr("pipeline.export.lance_dataset.rows_by_split", damaged)
    with pytest.raises(CorpusError, match=r"^the file is damaged$"):
        written(corpus, tmp_path / "to", format="lance")
    assert not (tmp_path / "to").exists()
