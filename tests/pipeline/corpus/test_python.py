"""A corpus from Python: what it says of itself, as tables of other libraries, its files, and what is nearest in it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError, StorageError
from pipeline.corpus import nearest_index
from pipeline.corpus.frames import to_pandas
from pipeline.corpus.nearest import Metric
from pipeline.storage import layout
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import bring_up_to_date, run

ROW_GROUP_ROWS = 16  # so that parts have several row groups


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a corpus of two files, with the first document twice."""
    folder = tmp_path_factory.mktemp("python")
    some = sample_documents("libreoffice-eng", 6)
    write_jsonl(folder / "in/eng.jsonl", [*some, some[0] | {"id": "again"}])
    write_jsonl(folder / "in/deu.jsonl", sample_documents("libreoffice-deu", 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        bring_up_to_date(write_config(folder, part_sentences=100, autobleu=None))
    return folder


@pytest.fixture
def corpus(made: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """That corpus."""
    monkeypatch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    return Corpus(str(made / "out"))


def test_it_says_what_it_is(corpus: Corpus) -> None:
    assert len(corpus) == corpus.rows > 3 * ROW_GROUP_ROWS and corpus
    assert repr(corpus).startswith(f"Corpus({corpus.url!r}): {corpus.rows} sentences in {len(corpus.parts)} parts; ")
    assert "embedding" in repr(corpus) and "title" in repr(corpus)


def test_an_empty_corpus_is_not_false(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/none.jsonl", [{"id": "x", "lang": "eng_Latn"}])
    bring_up_to_date(write_config(tmp_path, autobleu=None))
    empty = Corpus(str(tmp_path / "out"))
    assert empty and len(empty) == 0 and "0 sentences in 0 parts; columns: none yet" in repr(empty)
    with pytest.raises(CorpusError, match="out has no sentence; see: pipeline status"):
        empty.to_arrow()


def test_arrow_pandas_polars_and_datasets_have_the_same_rows(corpus: Corpus) -> None:
    table = corpus.to_arrow("text", "title", "chars", where="chars >= 30")
    assert 0 < table.num_rows < len(corpus) and min(table["chars"].to_pylist()) >= 30
    assert corpus.to_arrow().column_names == corpus.columns and corpus.to_arrow().num_rows == len(corpus)
    assert corpus.to_arrow("chars", where="chars < 0").equals(corpus.to_arrow("chars").slice(0, 0))
    frame = corpus.to_pandas("text", "title", "chars", where="chars >= 30")
    assert frame.to_dict("list") == table.to_pydict()
    assert corpus.to_pandas("embedding")["embedding"][3].dtype == np.float16


def test_pandas_has_every_digit_of_integers_beside_nulls() -> None:
    large = [1234567890123456789, None, 1234567890123456791]
    columns: dict[str, pa.Array] = {
        "id": pa.array(large),
        "hash": pa.array([2**64 - 1, None, 2**64 - 2], pa.uint64()),
        "of": pa.array([{"id": one} for one in large]),
        "all": pa.array([large, None, [1]]),
        "plain": pa.array([1, 2, 3], pa.int32()),
    }
    frame = to_pandas(pa.table(columns))
    assert frame["id"].dropna().tolist() == [large[0], large[2]] and str(frame.dtypes["id"]) == "Int64"
    assert frame["hash"].dropna().tolist() == [2**64 - 1, 2**64 - 2] and str(frame.dtypes["hash"]) == "UInt64"
    assert [one["id"] for one in frame["of"]] == large and list(frame["all"][0]) == large
    assert str(frame.dtypes["plain"]) == "int32"


def test_polars(corpus: Corpus) -> None:
    frame = corpus.to_polars("text", "chars", "embedding")
    assert frame["text"].to_list() == corpus.to_arrow("text")["text"].to_pylist()
    assert (np.stack(frame["embedding"].to_numpy()) == _matrix(corpus)).all()


def test_datasets(corpus: Corpus) -> None:
    found = corpus.to_datasets("text", "embedding", where="chars >= 30")
    expected = corpus.to_arrow("text", where="chars >= 30")["text"].to_pylist()
    assert found["text"][:] == expected
    rows = list(corpus.to_datasets("text", "embedding", where="chars >= 30", streaming=True))
    assert [row["text"] for row in rows] == expected
    assert rows[5]["embedding"] == found[5]["embedding"] and len(rows[5]["embedding"]) == 64


@pytest.mark.parametrize("name", ["pandas", "polars", "datasets"])
def test_a_missing_package_is_named_with_what_installs_it(
    corpus: Corpus, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as Python marks a module that must not be found
    with pytest.raises(CorpusError, match=rf"Corpus.to_{name} needs the package {name}.* pip install {name}$"):
        getattr(corpus, f"to_{name}")("text")


def test_torch_rows_are_all_rows_once_with_workers_too(corpus: Corpus) -> None:
    rows = list(corpus.torch("text", "embedding"))
    assert [row["text"] for row in rows] == corpus.to_arrow("text")["text"].to_pylist()
    assert rows[0]["embedding"].dtype == torch.float16
    assert (torch.stack([row["embedding"] for row in rows]).numpy() == _matrix(corpus)).all()
    shares = [[row["text"] for row in corpus.torch("text", rank=rank, world=2)] for rank in range(2)]
    assert all(shares) and sorted(shares[0] + shares[1]) == sorted(row["text"] for row in rows)
    assert list(corpus.torch("chars", where="chars < 0")) == []
    with pytest.raises(ValueError, match="rank is 2 and world is 2"):
        corpus.torch("text", rank=2, world=2)


@pytest.mark.slow
def test_workers_of_a_loader_read_different_parts(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/eng.jsonl", sample_documents("libreoffice-eng", 6))
    bring_up_to_date(write_config(tmp_path, autobleu=None))
    corpus = Corpus(str(tmp_path / "out"))
    loader = DataLoader(corpus.torch("chars"), batch_size=8, num_workers=2, multiprocessing_context="spawn")
    found = torch.cat([batch["chars"] for batch in loader])
    assert len(corpus.parts) > 1 and sorted(found.tolist()) == sorted(corpus.to_arrow("chars")["chars"].to_pylist())


def test_files_are_those_of_the_receipts(corpus: Corpus) -> None:
    stranger = corpus.parts[0] + ".00000000-000000.parquet"
    Path(corpus.url, "sentences", stranger).write_bytes(b"left by an attempt that was killed")
    texts = pa.concat_tables([pq.read_table(one, columns=["text"]) for one in corpus.files()])
    assert texts["text"].to_pylist() == corpus.to_arrow("text")["text"].to_pylist()
    assert len(corpus.files("embeddings")) == len(corpus.files("documents")) == len(corpus.parts)
    with pytest.raises(CorpusError, match="there is no family sentence; allowed: sentences, language, noise, hashes"):
        corpus.files("sentence")
    with pytest.raises(CorpusError, match="has no file of codes"):
        corpus.files("codes")


def test_files_with_purged_documents_are_not_given(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/eng.jsonl", sample_documents("libreoffice-eng", 3))
    path = write_config(tmp_path, autobleu=None)
    bring_up_to_date(path)
    corpus = Corpus(str(tmp_path / "out"))
    gone, rows = corpus.documents(0)["doc_id"][1].as_py(), len(corpus)
    (tmp_path / "ids.txt").write_text(f"{gone}\n")
    done = pipeline("purge", tmp_path / "out", "--ids", tmp_path / "ids.txt")
    assert done.returncode == 0, said(done)
    corpus = Corpus(corpus.url)
    with pytest.raises(CorpusError, match="still hold purged documents"):
        corpus.files()
    assert gone not in corpus.to_arrow("doc_id")["doc_id"].to_pylist()
    assert len(corpus) == corpus.to_arrow("doc").num_rows < rows
    last = corpus.nearest(-1, k=1, where="chars > 0")
    assert corpus.place(-1) == (corpus.parts[-1], len(corpus) - 1) and last.num_rows == 1
    run(path)
    assert len(Corpus(corpus.url).files()) == 1


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_nearest_to_a_row_is_what_numpy_finds(corpus: Corpus, metric: str) -> None:
    matrix = _matrix(corpus).astype(np.float64)
    texts = corpus.to_arrow("text")["text"].to_pylist()
    for row in (0, 37, len(corpus) - 1):
        if metric == "cosine":
            badness = -(matrix @ matrix[row]) / np.linalg.norm(matrix, axis=1) / np.linalg.norm(matrix[row])
        else:
            badness = np.linalg.norm(matrix - matrix[row], axis=1)
        badness[row] = np.inf
        found = corpus.nearest(row, 5, metric=metric)
        expected = np.sort(badness)[:5]
        sign = -1 if metric == "cosine" else 1
        assert found["score"].to_numpy() * sign == pytest.approx(expected, abs=2e-3)
        assert found.column_names == ["score", "part", "row", "text", "lang"]
        places = list(zip(found["part"].to_pylist(), found["row"].to_pylist(), strict=True))
        numbers = [next(n for n in range(len(corpus)) if corpus.place(n) == place) for place in places]
        assert [texts[n] for n in numbers] == found["text"].to_pylist() and row not in numbers
        assert corpus.nearest(corpus.place(row), 5, metric=metric).equals(found)


def test_equal_rows_come_in_the_order_of_the_corpus(corpus: Corpus) -> None:
    """The first document stands in the corpus twice."""
    ids = corpus.to_arrow("doc_id")["doc_id"].to_pylist()
    first, again = ids.index(sample_documents("libreoffice-eng", 1)[0]["id"]), ids.index("again")
    found = corpus.nearest(_matrix(corpus)[first], 2, "doc_id")
    numbers = [corpus.place(first), corpus.place(again)]
    places = list(zip(found["part"].to_pylist(), found["row"].to_pylist(), strict=True))
    assert places == sorted(numbers) and found["score"][0] == found["score"][1]
    assert found["score"][0].as_py() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_an_index_finds_what_an_exact_search_finds(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: Metric
) -> None:
    monkeypatch.setattr(nearest_index, "POINTS_PER_LIST", 16)  # several lists for these few rows
    corpus.build_index(tmp_path / "index", metric)
    index = corpus.open_index(tmp_path / "index")
    assert len(index) == len(corpus) and index.probes > 1
    for row in (0, 17, len(corpus) - 1):
        assert corpus.nearest(row, 5, metric=metric, index=index).equals(corpus.nearest(row, 5, metric=metric))
    vector = _matrix(corpus)[3].astype(np.float32) + 0.01
    assert corpus.nearest(vector, 2, metric=metric, index=index).equals(corpus.nearest(vector, 2, metric=metric))
    again = corpus.build_index(metric=metric)
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "index").read_bytes()


def test_an_index_that_is_not_written_whole_replaces_none(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = corpus.build_index(tmp_path / "index")
    whole = (tmp_path / "index").read_bytes()

    def half(arrays: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(whole[: len(whole) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", half)
    with pytest.raises(OSError, match="No space left"):
        index.save(tmp_path / "index")
    assert [path.read_bytes() == whole for path in tmp_path.iterdir()] == [True]


def test_an_index_is_refused_where_it_does_not_fit(corpus: Corpus, tmp_path: Path) -> None:
    index = corpus.build_index(tmp_path / "index")
    with pytest.raises(ConfigError, match="leave out `where`"):
        corpus.nearest(0, 2, where="chars > 3", index=index)
    with pytest.raises(ConfigError, match="is for metric='cosine', not 'euclidean'"):
        corpus.nearest(0, 2, metric="euclidean", index=index)
    for place, why in ((tmp_path, "is a folder"), (tmp_path / "no/index", "lies in .*/no, which is no folder")):
        with pytest.raises(CorpusError, match=why):
            corpus.build_index(place)
    with pytest.raises(StorageError, match="no/index cannot be written"):
        index.save(tmp_path / "no/index")
    index.identity = "another"
    with pytest.raises(ConfigError, match="has changed since; build it again"):
        corpus.nearest(0, 2, index=index)
    with pytest.raises(CorpusError, match=r"build it: corpus\.build_index\("):
        corpus.open_index(tmp_path / "none")
    whole = (tmp_path / "index").read_bytes()
    for place in (*range(0, len(whole), len(whole) // 40), None):
        changed = bytearray(whole if place is not None else whole[:-9])
        if place is not None:
            changed[place] ^= 1  # of a vector, it would only be another neighbour
        (tmp_path / "index").write_bytes(changed)
        with pytest.raises(CorpusError, match=r"is damaged .* build it again"):
            corpus.open_index(tmp_path / "index")


def test_nearest_to_a_sentence(corpus: Corpus) -> None:
    text, lang = (corpus.to_arrow(name)[name][5].as_py() for name in ("text", "lang"))
    found = corpus.nearest(text, 3, "text", "title", lang=lang)
    assert found["text"][0].as_py() == text and found["score"][0].as_py() > 0.999
    german = corpus.nearest(text, 3, lang=lang, where="lang == 'deu_Latn'")
    assert set(german["lang"].to_pylist()) == {"deu_Latn"}
    assert len(corpus.nearest(text, 10_000, lang=lang)) == len(corpus)


def test_a_sentence_is_in_the_only_language_of_the_corpus(tmp_path: Path) -> None:
    documents = sample_documents("libreoffice-eng", 3)
    write_jsonl(tmp_path / "in/eng.jsonl", [one | {"language": "eng_Latn"} for one in documents])
    source = {"path": "in/*.jsonl", "lang": {"column": "language"}, "id": "id"}
    path = write_config(tmp_path, input=[source], autobleu=None)
    bring_up_to_date(path)
    corpus = Corpus(str(tmp_path / "out"))
    text = corpus.to_arrow("text")["text"][2].as_py()
    assert corpus.nearest(text, 2).equals(corpus.nearest(text, 2, lang="eng_Latn"))


def test_questions_without_an_answer(corpus: Corpus) -> None:
    with pytest.raises(
        ConfigError, match=r"in which language is the sentence\? those of .* several, among them .* and "
    ):
        corpus.nearest("Hello.")
    with pytest.raises(ConfigError, match="lang is 'eng', which sonar-space-tiny does not know"):
        corpus.nearest("Hello.", lang="eng")
    with pytest.raises(CorpusError, match=r"64 finite numbers, not all 0; this one is of shape \(3,\)"):
        corpus.nearest([1.0, 2.0, 3.0])
    with pytest.raises(CorpusError, match="there is no row number 100000"):
        corpus.nearest(100_000)
    with pytest.raises(CorpusError, match="metric is 'dot' and k is 10; allowed: cosine, euclidean"):
        corpus.nearest(0, metric="dot")  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="there is no column titel"):
        corpus.nearest(0, 1, "titel")


def _matrix(corpus: Corpus) -> np.ndarray:
    return np.concatenate([corpus.embeddings(part) for part in corpus.parts])
