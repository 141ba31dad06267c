"""`export`: text and embeddings come back bit for bit as the releases' trainers read them, none lost or doubled."""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from fsspec.implementations.memory import MemoryFileSystem
from rich.console import Console

import pipeline.export as exporting
from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError, PipelineError, StorageError
from pipeline.config.select import SelectSettings
from pipeline.console.progress import RowProgress
from pipeline.export.lcm import write_lcm
from pipeline.export.pieces import ExportTask
from pipeline.select.command import SelectOptions
from pipeline.select.selection import Selection
from pipeline.storage import export_target, layout
from pipeline.storage.export_target import ExportTarget
from pipeline.storage.store import Store
from stages.scaler.robust import RobustScaler
from tests.pipeline.export.exported import WHERE, Sequence, expected, export
from tests.support.cli import pipeline
from tests.support.corpora import make_corpus

TEXT, EMBEDDINGS = "text_sentences", "text_sentences_sonar_emb"


def read_as_the_lcm_release(path: str, split: str) -> Iterator[pa.Table]:
    """Partition filter first, then row group after row group, the two columns of the card, no nulls."""
    filters = pq.filters_to_expression(pc.equal(pc.field("split"), split))
    dataset = pq.ParquetDataset(path, filters=filters)
    for fragment in dataset._dataset.get_fragments(dataset._filter_expression):
        for group in fragment.split_by_row_group():
            table = group.to_table(columns=[TEXT, EMBEDDINGS, "doc_id", "piece", "__filename"], use_threads=False)
            assert table.drop_null().num_rows == table.num_rows
            yield table


@pytest.mark.parametrize("broken", ["split-documents", "drop-sentences"])
def test_lcm_comes_back_as_the_release_reads_it(corpus: Corpus, tmp_path: Path, broken: str) -> None:
    said = export(corpus, "lcm", tmp_path / "to", SelectOptions(WHERE, broken))
    card = yaml.safe_load((tmp_path / "to/datacard.yaml").read_text())
    assert re.fullmatch("[a-zA-Z0-9_]+", card["name"])
    wanted = expected(corpus, broken)
    found: list[Sequence] = []
    for split in ("train", "validation", "test"):
        for table in read_as_the_lcm_release(card["parquet_path"]["s3"], split):
            kind = pa.list_(pa.list_(pa.float16(), 64))
            assert table.schema.field(card["source_column"]).type == kind
            assert table.schema.field(card["source_text_column"]).type == pa.list_(pa.string())
            sizes = pc.list_value_length(table[EMBEDDINGS])
            assert sizes == pc.list_value_length(table[TEXT])  # the release drops rows where they differ
            assert table.num_rows == 1 or pc.sum(sizes).as_py() <= 2 * layout.ROW_GROUP_ROWS
            vectors = table[EMBEDDINGS].to_pandas().map(lambda one: torch.from_numpy(np.vstack(one)))
            for row, tensor in zip(table.to_pylist(), vectors, strict=True):
                assert tensor.dtype == torch.float16 and tensor.shape == (len(row[TEXT]), 64)
                embeddings = [one.tobytes() for one in tensor.numpy()]
                found.append((row["doc_id"], row["piece"], split, row[TEXT], embeddings))
    assert sorted(found) == sorted(wanted)
    about = json.loads((tmp_path / "to/export.json").read_text())
    assert about["written"]["sequences"] == len(wanted) < about["sentences"] == corpus.rows
    assert about["written"]["sentences"] == sum(len(one[3]) for one in wanted)
    assert len({one[2] for one in wanted}) == len(about["written"]["by_split"]) > 1
    assert f"train on {card['name']}=train" in said


def test_lcm_takes_the_suffix_and_the_wrapping_of_the_release(corpus: Corpus, tmp_path: Path) -> None:
    export(corpus, "lcm", tmp_path / "to", SelectOptions(WHERE))
    table = next(read_as_the_lcm_release(str(tmp_path / "to/data"), "train"))
    column = table[EMBEDDINGS].combine_chunks()
    float32 = pa.FixedSizeListArray.from_arrays(pa.array(np.full(64, 0.5, np.float32)), 64)  # "End of text."
    suffix = pa.ListArray.from_arrays([0, 1], float32).cast(column.type)
    joined = pa.concat_arrays([pc.list_flatten(column.slice(0, 1)), pc.list_flatten(suffix)])
    assert joined[-1].as_py() == [0.5] * 64
    offsets = pa.array([0, 1, len(column.flatten())], pa.int32())
    wrapped = pa.ListArray.from_arrays(offsets, column.flatten())
    schema = pa.schema([table.schema.field(EMBEDDINGS)])
    assert pa.Table.from_pydict({EMBEDDINGS: wrapped}, schema=schema).num_rows == 2


def test_sub_documents_of_the_lcm_layout_have_keys_of_their_own(tmp_path: Path) -> None:
    segment = {"method": "spacy-capped", "max_chars": 200, "max_document_sentences": 5}
    corpus = Corpus(str(make_corpus(tmp_path / "long", until="encode", segment=segment)))
    export(corpus, "lcm", tmp_path / "to", SelectOptions("chars >= 20"))
    rows = pads.dataset(tmp_path / "to/data").to_table(["doc_id", "subdocument", "piece"]).to_pylist()
    keys = {(row["doc_id"], row["subdocument"], row["piece"]) for row in rows}
    assert len(keys) == len(rows) > len({(row["doc_id"], row["piece"]) for row in rows})


def test_lcm_embeddings_are_packed_as_the_corpus_packs_them(corpus: Corpus, tmp_path: Path) -> None:
    export(corpus, "lcm", tmp_path / "to")
    for path in (tmp_path / "to/data").rglob("*.parquet"):
        columns = [pq.read_metadata(path).row_group(0).column(index) for index in range(2)]
        assert columns[1].path_in_schema == f"{EMBEDDINGS}.list.element.list.element"
        assert "BYTE_STREAM_SPLIT" in columns[1].encodings and columns[1].compression == "ZSTD"


def test_a_normalizer_goes_with_its_card(corpus: Corpus, tmp_path: Path) -> None:
    scaler = RobustScaler(median=torch.arange(64.0), iqr=torch.full((64,), 0.5))
    said = export(corpus, "lcm", tmp_path / "to", scaler=scaler)
    card = yaml.safe_load((tmp_path / "to/normalizer.yaml").read_text())
    assert card["model_config"] == {"dim": 64} and card["model_arch"] == "base" and card["name"] in said
    state = torch.load(card["checkpoint"].removeprefix("file://"))["model"]
    assert (state["center"] == scaler.median).all() and (state["scale"] == scaler.iqr).all()
    export(corpus, "lcm", tmp_path / "clipped", scaler=replace(scaler, clip=3.0))
    assert yaml.safe_load((tmp_path / "clipped/normalizer.yaml").read_text())["model_arch"] == "clipping"
    with pytest.raises(ConfigError, match="no place for a scaler"):
        export(corpus, "sonar-llm", tmp_path / "other", scaler=scaler)


def test_sonar_llm_comes_back_as_its_trainer_reads_it(corpus: Corpus, tmp_path: Path) -> None:
    shown = export(corpus, "sonar-llm", tmp_path / "to", SelectOptions(WHERE))
    name = str(tmp_path / "to/tiny_stories_sonar_embeddings_{}.pt")
    end = torch.load(tmp_path / "to/sonar_eos_embedding.pt")
    buckets = [torch.load(name.format(f"train_bucket_{number}"))["train"] for number in range(100)]
    items = {
        "train": [item for bucket in buckets for item in bucket],
        "validation": torch.load(name.format("val"))["validation"],
        "test": torch.load(name.format("test"))["test"],
    }
    wanted = expected(corpus, "split-documents")
    for split, found in items.items():
        of_split = [one for one in wanted if one[2] == split]
        assert len(found) == len(of_split) > 0
        for item, (_, _, _, sentences, embeddings) in zip(found, of_split, strict=True):
            assert item["sentences"] == sentences and item["original_text"] == " ".join(sentences)
            tensor = torch.tensor([*item["embeddings"], end], dtype=torch.float32)  # as its dataset joins them
            assert [one.tobytes() for one in tensor.numpy().astype(np.float16)[:-1]] == embeddings
    sizes = [len(bucket) for bucket in buckets]
    assert max(sizes) - min(sizes) <= 1
    assert (f"Too little to train on: {sum(sizes)} sequences for 100 buckets" in shown) == (min(sizes) == 0)
    few = export(corpus, "sonar-llm", tmp_path / "few", SelectOptions("split == 'train' and position == 0"))
    assert "Too little to train on" in few and "There is no validation sequence" in few and "There is no" not in shown
    rows = corpus.table("text", "embedding").to_pylist()
    assert end == next(row["embedding"] for row in rows if row["text"] == "End of sequence.")


@pytest.mark.parametrize(
    ("kind", "to", "rules", "error", "words"),
    [
        ("llm", "{tmp}/to", SelectOptions(), ConfigError, "--format llm: allowed are parquet, numpy, webdataset, "),
        ("lcm", "{corpus}/to", SelectOptions(), ConfigError, "inside the corpus"),
        ("lcm", "{tmp}/full", SelectOptions(), ConfigError, "is not empty, and nothing is overwritten"),
        ("lcm", "{tmp}/full/file", SelectOptions(), ConfigError, "is a file"),
        ("lcm", "{tmp}/to", SelectOptions("txt == 'a'"), ConfigError, "did you mean text?"),
        ("lcm", "{tmp}/to", SelectOptions("chars > "), ConfigError, "--where"),
        ("lcm", "{tmp}/to", SelectOptions("autobleu > 3"), ConfigError, "autobleu is null or autobleu > 3"),
        ("lcm", "{tmp}/to", SelectOptions("chars < 0"), CorpusError, "keeps no sentence"),
        ("sonar-llm", "{tmp}/to", SelectOptions(broken="drop"), ConfigError, "'drop-sentences'"),
    ],
)
def test_what_cannot_be_exported_is_said_before_anything_is_written(
    corpus: Corpus, tmp_path: Path, kind: str, to: str, rules: SelectOptions, error: type[PipelineError], words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    with pytest.raises(error) as caught:
        export(corpus, kind, to.format(tmp=tmp_path, corpus=corpus.url), rules)
    assert words in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full"]


def test_a_corpus_that_is_not_finished_is_not_exported(tmp_path: Path) -> None:
    url = make_corpus(tmp_path, until="segment")
    refused = pipeline("export", url, "--format", "lcm", "--to", tmp_path / "to")
    assert refused.returncode == 1 and "embedding: its stage has not run on all parts" in refused.stderr, refused
    next((url / "chunks").rglob("*.json")).unlink()
    with pytest.raises(CorpusError, match="no finished part yet"):
        export(Corpus(str(url)), "lcm", tmp_path / "to")


@pytest.mark.parametrize("family", ["embeddings", "sentences"])
def test_files_that_are_not_what_receipts_say_are_not_exported(finished: Path, tmp_path: Path, family: str) -> None:
    """An embedding that was overwritten by NaN, say, would be there in silence."""
    shutil.copytree(finished, tmp_path / "out")
    path = min((tmp_path / "out" / family).rglob("*.parquet"))
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, table.schema[0], table.column(0).take(pa.array(range(len(table))[::-1]))), path)
    with pytest.raises(CorpusError, match=f"{path.name} is not what its receipt says"):
        export(Corpus(str(tmp_path / "out")), "parquet", tmp_path / "to", SelectOptions())
    assert not (tmp_path / "to").exists()


def test_a_store_that_cannot_create_exclusively_takes_exports_too(corpus: Corpus) -> None:
    class Plain(MemoryFileSystem):
        protocol = "plain"

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: object) -> None:
            if mode == "create":
                raise NotImplementedError("File mode not supported")
            super().pipe_file(path, value, mode=mode, **more)

    fsspec.register_implementation("plain", Plain, clobber=True)
    export(corpus, "parquet", "plain://export", SelectOptions())
    names = {str(one).rpartition("/")[2] for one in Plain().find("plain://export")}
    assert "export.json" in names and "export.lock" not in names


def test_an_export_that_is_stopped_is_not_taken_for_a_whole_one(corpus: Corpus, tmp_path: Path) -> None:
    class Stops(RowProgress):
        def add(self, rows: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        progress = Stops(Console(file=io.StringIO()), corpus.rows)
        target = ExportTarget(str(tmp_path / "to"), corpus.url)
        write_lcm(ExportTask(Selection(corpus, SelectSettings()), target, progress))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_two_exports_at_a_time_do_not_mix(corpus: Corpus, tmp_path: Path, bucket: str) -> None:
    """Both look at the folder while it is empty; the second one is refused, however far the first one is."""
    for to in (str(tmp_path / "new/to"), f"{bucket}/both"):
        first, second = (ExportTarget(to, corpus.url) for _ in range(2))
        with first.claimed():
            with pytest.raises(ConfigError, match=r"another export writes to --to .* holds export\.lock"):
                ExportTarget(to, corpus.url)
            with pytest.raises(ConfigError, match="another export writes to"), second.claimed():
                raise AssertionError
            first.write_text("data/a", "text")
        first.write_text("export.json", "{}")
        with pytest.raises(ConfigError, match="is not empty"), second.claimed():
            raise AssertionError
        store = Store(to)
        assert store.exists("data/a") and store.exists("export.json") and not store.exists("export.lock")


def test_exports_that_race_or_are_killed(tmp_path: Path) -> None:
    to, url = tmp_path / "to", make_corpus(tmp_path, autobleu=None)
    arguments = [str(one) for one in ("export", url, "--format", "parquet", "--to", to)]
    both = [subprocess.Popen([sys.executable, "-m", "pipeline", *arguments], stderr=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate()[1] for one in both]
    assert sorted(one.returncode for one in both) == [0, 2], said
    about = json.loads((to / "export.json").read_text())
    found = sum(pq.read_metadata(path).num_rows for path in to.rglob("*.parquet"))
    assert about["written"]["sentences"] == found and not (to / "export.lock").exists()
    shutil.rmtree(to)
    dies = "import os; import pipeline.export as e; e.write_wide = lambda *_: os.kill(os.getpid(), 9)\n"
    killed = subprocess.Popen([sys.executable, "-c", f"{dies}from pipeline.cli import main; main()", *arguments])
    assert killed.wait() == -9 and f"process {killed.pid} on " in (to / "export.lock").read_text()
    refused = pipeline(*arguments)
    assert refused.returncode == 2 and "if that export no longer runs, delete what is there" in refused.stderr, refused
    shutil.rmtree(to)
    assert pipeline(*arguments).returncode == 0


def test_an_export_ends_if_something_else_changes_its_folder(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = exporting.write_wide
    to = tmp_path / "to"

    def adds(*arguments: Any) -> Any:
        written = writes(*arguments)
        (to / "data/other.parquet").write_bytes(b"")
        return written

    def loses(*arguments: Any) -> Any:
        written = writes(*arguments)
        sorted(to.rglob("*.parquet"))[0].unlink()
        return written

    for meanwhile, words in ((adds, r"holds other files \(data/other.parquet\)"), (loses, r"lacks files \(data/test/")):
        monkeypatch.setattr(exporting, "write_wide", meanwhile)
        with pytest.raises(CorpusError, match=f"{words}.* than this export has written.* delete it, and export again"):
            export(corpus, "parquet", to)
        assert not (to / "export.json").exists() and not (to / "export.lock").exists()
        shutil.rmtree(to)


@pytest.mark.parametrize("kind", [kind for kind in exporting.FORMATS if kind != "hub"])
def test_an_export_that_fails_leaves_nothing(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The last thing that can fail is the balance, after all files are written."""

    def fails(*_: Any) -> None:
        raise StorageError("No space left on device")

    (tmp_path / "there").mkdir()
    monkeypatch.setattr(exporting, "_balance", fails)
    for to in (tmp_path / "new/to", tmp_path / "there"):
        with pytest.raises(StorageError, match="No space left"):
            export(corpus, kind, to)
    assert not (tmp_path / "new").exists() and not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize("to", ["hf://datasets/me/mine", "https://host/out", "memory://out"])
def test_a_place_where_nothing_can_be_kept_is_refused_before_it_is_asked(corpus: Corpus, to: str) -> None:
    done = pipeline("export", corpus.url, "--format", "parquet", "--to", to)
    assert done.returncode == 2 and f"--to {to}: " in done.stderr and "give a folder, or a URL" in done.stderr, done


def test_an_export_to_a_full_disk_leaves_nothing(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, written = tmp_path / "to", export_target._Digested.write

    def full(file: export_target._Digested, data: Any) -> int:
        if list(to.rglob("*.parquet")):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(export_target._Digested, "write", full)
        with pytest.raises(PipelineError, match=r"No space left on device; fix that"):
            export(corpus, "parquet", to)
    assert not to.exists()
    export(corpus, "parquet", to)


def test_object_stores_take_it(corpus: Corpus, bucket: str) -> None:
    export(corpus, "lcm", f"{bucket}/lcm")
    with fsspec.open(f"{bucket}/lcm/datacard.yaml") as file:
        card = yaml.safe_load(file)
    assert card["parquet_path"] == {"s3": f"{bucket}/lcm/data"}
    dataset = pq.ParquetDataset(f"{bucket.removeprefix('s3://')}/lcm/data", filesystem=fsspec.filesystem("s3"))
    assert pc.sum(pc.list_value_length(dataset.read([TEXT])[TEXT])).as_py() == corpus.rows
    with pytest.raises(ConfigError, match="is not empty"):
        export(corpus, "lcm", f"{bucket}/lcm")


def test_the_command(tmp_path: Path) -> None:
    url = make_corpus(tmp_path, autobleu=None)
    arguments = ("export", url, "--format", "lcm", "--to", tmp_path / "to", "--where", "chars >= 20")
    done = pipeline(*arguments)
    assert done.returncode == 0 and f"written to {tmp_path / 'to'}" in done.stdout, done
    again = pipeline(*arguments)
    assert again.returncode == 2 and "is not empty" in again.stderr and "Traceback" not in again.stderr
    assert "pipeline export" in pipeline("export", "--help").stdout
