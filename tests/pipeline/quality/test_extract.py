"""`inspect --where … --to FILE`: the rows that were asked for, in every format; whole files or none; harmless CSV."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import zstandard
from rich.console import Console

from launchers.launch import launch
from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError, PipelineError
from pipeline.config.load import load_config
from pipeline.console.progress import RowProgress
from pipeline.corpus.runs import RunRecord
from pipeline.planning.plan import make_plan
from pipeline.quality.extract import Extracted, extract
from pipeline.storage.store import Store
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline

FORMULAS = ["=HYPERLINK(A1)", "+1 is a sum.", "-2 is one too.", "@SUM(1+1)", "\t=1+1", "＝1＋1", " =2+2"]
TITLE = 'A "title", of\ntwo lines, not a formula: = + - @'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose documents have titles that a spreadsheet would evaluate."""
    folder = tmp_path_factory.mktemp("extract")
    documents = [*sample_documents("libreoffice-eng", 5), *sample_documents("libreoffice-deu", 5)]
    titles = [*FORMULAS, TITLE, "", None]
    write_jsonl(folder / "in.jsonl", [one | {"title": title} for one, title in zip(documents, titles, strict=True)])
    source = {"path": "in.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title"]}
    path = write_config(folder, input=[source], autobleu=None)
    plan = make_plan(load_config(path))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    assert not [event for event in launch(plan, record.folder) if event.kind == "failed"]
    return folder / "out"


@pytest.fixture
def corpus(finished: Path) -> Corpus:
    return Corpus(str(finished))


def write(corpus: Corpus, target: object, where: str | None = None, **options: Any) -> Extracted:
    condition = corpus.condition(where) if where else None
    with RowProgress(Console(file=io.StringIO()), corpus.rows) as progress:
        return extract(corpus, str(target), progress, where=condition, **options)


WHERE = "lang == 'deu_Latn' and chars > 5 or title is null"
COLUMNS = ("text", "title", "chars", "u", "part", "row")


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz", "jsonl", "jsonl.zst"])
def test_every_format_holds_the_rows_that_were_asked_for(corpus: Corpus, tmp_path: Path, ending: str) -> None:
    wanted = corpus.table(*COLUMNS, "lang").to_pylist()
    wanted = [row for row in wanted if (row["lang"] == "deu_Latn" and row["chars"] > 5) or row["title"] is None]
    wanted = [{name: row[name] for name in COLUMNS} for row in wanted]
    path = tmp_path / "new" / f"rows.{ending}"
    done = write(corpus, path, WHERE, columns=COLUMNS)
    assert (done.read, done.written, done.bytes) == (corpus.rows, len(wanted), path.stat().st_size)
    assert 0 < done.written < done.read
    data = path.read_bytes()
    data = gzip.decompress(data) if ending.endswith("gz") else data
    data = zstandard.ZstdDecompressor().decompressobj().decompress(data) if ending.endswith("zst") else data
    if ending == "parquet":
        assert pq.read_table(path).to_pylist() == wanted
        assert pq.read_schema(path).equals(corpus.schema(*COLUMNS))
    elif ending.startswith("jsonl"):
        assert [json.loads(line) for line in data.decode().splitlines()] == wanted
    else:
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
        assert [(row["part"], row["row"]) for row in rows] == [(row["part"], str(row["row"])) for row in wanted]
        assert [float(row["u"]) for row in rows] == pytest.approx([row["u"] for row in wanted])
        assert pyarrow.csv.read_csv(io.BytesIO(data)).column_names == list(COLUMNS)


def test_csv_runs_nothing_in_a_spreadsheet_and_other_formats_have_every_text_as_it_is(
    corpus: Corpus, tmp_path: Path
) -> None:
    done = write(corpus, tmp_path / "a.csv", columns=["title", "row"])
    assert (tmp_path / "a.csv").read_bytes().startswith(b"\xef\xbb\xbf"), "Excel takes it for another encoding"
    with (tmp_path / "a.csv").open(encoding="utf-8-sig", newline="") as file:
        found = [row["title"] for row in csv.DictReader(file)]
    exact = [title or "" for title in corpus.table("title")["title"].to_pylist()]
    assert set(found) == {*(f"'{formula}" for formula in FORMULAS), TITLE, ""}
    assert [title.removeprefix("'") for title in found] == exact
    assert done.quoted == sum(title in FORMULAS for title in exact) > len(FORMULAS)
    done = write(corpus, tmp_path / "a.jsonl", columns=["title"])
    assert done.quoted == 0
    lines = (tmp_path / "a.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["title"] or "" for line in lines] == exact


def test_vectors_go_into_parquet(corpus: Corpus, tmp_path: Path) -> None:
    write(corpus, tmp_path / "a.parquet", "chars > 20", columns=["embedding", "chars"])
    table = pq.read_table(tmp_path / "a.parquet")
    kept = corpus.table("chars")["chars"].to_numpy() > 20
    matrix = np.concatenate([corpus.embeddings(part) for part in corpus.parts])[kept]
    assert (np.asarray(table["embedding"].to_pylist(), np.float16) == matrix).all()


def test_without_columns_all_that_say_something_of_a_sentence_and_no_vectors(corpus: Corpus, tmp_path: Path) -> None:
    write(corpus, tmp_path / "a.parquet")
    names = pq.read_schema(tmp_path / "a.parquet").names
    assert {"text", "lang", "chars", "status", "doc_id", "split", "title", "part", "row"} <= set(names)
    assert not {"embedding", "text_hash", "first_row"} & set(names)


def test_no_row_is_a_file_too(corpus: Corpus, tmp_path: Path) -> None:
    assert write(corpus, tmp_path / "a.csv", "chars < 0", columns=["text", "row"]).written == 0
    assert (tmp_path / "a.csv").read_text("utf-8-sig") == '"text","row"\n'
    assert write(corpus, tmp_path / "a.parquet", "chars < 0").written == 0
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("target", "columns", "words"),
    [
        ("{tmp}/a.xlsx", [], "allowed: .parquet .csv .jsonl"),
        ("{tmp}/a.parquet.gz", [], "allowed"),
        ("{tmp}/a.csv", ["embedding"], "only .parquet takes"),
        ("{tmp}/a.csv", ["txt"], "did you mean text?"),
        ("{tmp}/a.csv", ["autobleu"], "its stage has not run"),
        ("{tmp}/a.csv", ["text", "text"], "is repeated"),
        ("{corpus}/a.csv", [], "inside the corpus"),
        ("{tmp}/folder.csv", [], "is a folder"),
    ],
)
def test_what_cannot_be_written_is_said_first(
    corpus: Corpus, tmp_path: Path, target: str, columns: list[str], words: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError) as caught:
        write(corpus, target.format(tmp=tmp_path, corpus=corpus.url), columns=columns)
    assert words in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


@pytest.mark.filterwarnings("error")  # of a writer that is left open
def test_a_file_that_cannot_be_made_whole_leaves_the_older_one(corpus: Corpus, tmp_path: Path) -> None:
    target = tmp_path / "a.parquet"
    target.write_bytes(b"older")

    class Breaks(RowProgress):
        def see(self, read: int, found: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(corpus, str(target), Breaks(Console(file=io.StringIO()), corpus.rows))
    assert target.read_bytes() == b"older" and list(tmp_path.iterdir()) == [target]
    with pytest.raises(PipelineError, match=r"a\.parquet/b\.csv cannot be written: .*; fix that"):
        write(corpus, target / "b.csv")
    write(corpus, target)
    assert pq.read_metadata(target).num_rows == corpus.rows and list(tmp_path.iterdir()) == [target]


@pytest.fixture
def damaged(corpus: Corpus) -> Iterator[Path]:
    """A data file of the corpus, cut short for a while."""
    path = sorted(Path(corpus.url, "sentences").rglob("*.parquet"))[-1]
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    yield path
    path.write_bytes(data)


def test_a_damaged_corpus_is_named(corpus: Corpus, tmp_path: Path, damaged: Path) -> None:
    with pytest.raises(CorpusError, match=damaged.name):
        write(corpus, tmp_path / "a.csv")
    assert not list(tmp_path.iterdir())


def test_object_stores_take_it(corpus: Corpus, bucket: str) -> None:
    fs = fsspec.filesystem("s3")
    for _ in range(2):  # the second replaces the first
        done = write(corpus, f"{bucket}/out/worst.parquet", "chars > 20")
    with fs.open("corpus/out/worst.parquet") as file:
        assert pq.read_table(file).num_rows == done.written
    assert fs.find("corpus/out") == ["corpus/out/worst.parquet"]
    with pytest.raises(PipelineError, match=r"s3://nowhere/a\.csv"):
        write(corpus, "s3://nowhere/a.csv")


def test_the_command_tells_the_counts(corpus: Corpus, tmp_path: Path) -> None:
    target = tmp_path / "a.csv"
    done = pipeline("inspect", corpus.url, "--where", "lang == 'eng_Latn'", "--to", target, "--columns", "text, title")
    assert done.returncode == 0, done
    assert f"of {corpus.rows} rows written to {target}" in done.stdout and "begin like a formula" in done.stdout
    some = pipeline("inspect", corpus.url, "--to", target, "--max-rows", 1)
    assert "without --max-rows all are read" in some.stdout
    for wrong, words in (
        (("--columns", "text"), "needs --to FILE"),
        (("--to", target, "--worst", 3), "choose rows by --where"),
        (("--where", "txt == 'a'"), "did you mean text?"),
    ):
        refused = pipeline("inspect", corpus.url, *wrong)
        assert refused.returncode == 2 and words in refused.stderr, refused
