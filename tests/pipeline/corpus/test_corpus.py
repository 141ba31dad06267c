"""Reading back: columns side by side, only what receipts name, numpy without Python objects; books, quality, damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launchers.launch import launch
from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.load import load_config
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.leftovers import sweep
from pipeline.corpus.receipts import commit
from pipeline.corpus.runs import RunRecord
from pipeline.planning.plan import make_plan
from pipeline.quality.measures import measure, worst_rows
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import run


@pytest.fixture
def corpus(make_config: MakeConfig) -> Corpus:
    """A finished corpus."""
    plan = make_plan(load_config(make_config()))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    assert not [event for event in launch(plan, record.folder) if event.kind == "failed"]
    return Corpus(plan.config.output)


def test_table_scan_and_matrix(corpus: Corpus) -> None:
    assert len(corpus.parts) > 3
    table = corpus.table("text", "embedding", "autobleu", part=0)
    assert table.column_names == ["text", "embedding", "autobleu"]
    matrix = corpus.embeddings(part=0)
    assert matrix.dtype == np.float16 and matrix.shape == (table.num_rows, 64)
    assert (matrix[3] == np.asarray(table["embedding"][3].as_py(), np.float16)).all()
    assert sum(one.num_rows for one in corpus.scan("chars")) == corpus.rows == corpus.table("chars").num_rows
    assert set(corpus.table(part=corpus.parts[0]).column_names) == set(corpus.columns)
    assert "title" in corpus.documents(0).column_names


def test_files_are_looked_for_by_one_listing_of_each_family(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, find = corpus.chunks, Store.find
    listed: list[str] = []
    monkeypatch.setattr(Store, "find", lambda *asked: (listed.append(asked[1]), find(*asked))[1])
    assert not compute_accounting(corpus.store, chunks).problems
    assert sorted(listed) == ["autobleu", "documents", "embeddings", "sentences", "status"]


def test_it_is_opened_by_its_file(corpus: Corpus, make_config: MakeConfig, tmp_path: Path) -> None:
    assert Corpus(str(make_config())).rows == corpus.rows
    (tmp_path / "wrong.yaml").write_text("name: a")
    with pytest.raises(ConfigError, match="output"):
        Corpus(str(tmp_path / "wrong.yaml"))


def test_questions_that_have_no_answer(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no column fragility; columns: doc, position, paragraph, text"):
        corpus.table("fragility")
    with pytest.raises(CorpusError, match=r"did you mean autobleu\?"):
        list(corpus.batches("autoblu"))
    with pytest.raises(CorpusError, match="no part number 99"):
        corpus.table("text", part=99)
    with pytest.raises(CorpusError, match="no part nope"):
        corpus.table("text", part="nope")
    with pytest.raises(CorpusError, match="is not a corpus") as told:
        Corpus(str(tmp_path / "nowhere"))
    assert told.value.__cause__ is None and told.value.__suppress_context__


def test_the_books_balance_and_notice_a_missing_file(corpus: Corpus) -> None:
    accounting = compute_accounting(corpus.store, corpus.chunks)
    assert accounting.complete and not accounting.problems
    assert accounting.documents_in == accounting.kept == 14
    assert accounting.sentences == corpus.rows
    file = next(Path(corpus.url, "embeddings").rglob("*.parquet"))
    file.unlink()
    assert any(file.name in problem for problem in compute_accounting(corpus.store, corpus.chunks).problems)


@pytest.mark.parametrize("whole", [True, False])
def test_orphans_are_swept_and_nothing_else(corpus: Corpus, whole: bool) -> None:
    before = corpus.store.find("embeddings")
    orphan = before[0].rsplit("-", 1)[0] + "-000000.parquet"
    corpus.store.write(orphan, b"half a fi")
    folder, _, name = orphan.rpartition("/")
    Path(corpus.url, folder, f".{name}.01234567.tmp").write_bytes(b"killed while writing")
    corpus.store.write(f"{orphan}.bak", b"put there by a person")
    stranger = "embeddings/0123456789ab-00000.01234567-000000.parquet"
    corpus.store.write(stranger, b"of an attempt that may still run")
    assert sweep(corpus.store, corpus.chunks, whole) == 2
    assert corpus.store.find("embeddings") == sorted([*before, stranger, f"{orphan}.bak"])


def test_damage_is_noticed_before_it_is_computed_with(corpus: Corpus, make_config: MakeConfig) -> None:
    file = next(Path(corpus.url, "sentences").rglob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    plan = make_plan(load_config(make_config(), ["encode.precision=float32"]))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    failed = [event for event in launch(plan, record.folder) if event.kind == "failed"]
    assert len(failed) == 1 and "does not vouch for" in failed[0].error


def test_another_file_of_documents_is_told(corpus: Corpus) -> None:
    """With other columns, or other documents; there is no digest to compare it with while one looks around."""
    file = max(Path(corpus.url, "documents").rglob("*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)
    whole = pq.read_table(file)
    for table, told in (
        (pa.table({"other": [1]}), "has 1 documents; part"),
        (whole.drop_columns("source"), "is damaged: it has no source"),
        (whole.slice(1), f"has {whole.num_rows - 1} documents; part"),
    ):
        pq.write_table(table, file)
        done = pipeline("inspect", corpus.url, "--where", "source != 'x'")
        assert done.returncode == 1 and told in " ".join(said(done).split()), said(done)


def test_names_of_columns_that_are_no_text_are_told(corpus: Corpus) -> None:
    for path in sorted(Path(corpus.url).glob("autobleu/*/*.parquet")):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"decoded", b"deco\xbded"))
        assert path.read_bytes() != data
    with pytest.raises(CorpusError, match=r"/autobleu/.*\.parquet cannot be read \(.*delete its receipt and run again"):
        corpus.table("decoded")
    done = pipeline("inspect", corpus.url)
    assert done.returncode == 1 and "cannot be read" in done.stderr and "Traceback" not in said(done), said(done)


def test_a_changed_bit_in_a_page_is_told(corpus: Corpus) -> None:
    """Of columns that are read on their own, without the file's digest."""
    drawn = np.random.default_rng(0)
    for family, column in (("sentences", "text"), ("embeddings", "embedding"), ("autobleu", "decoded")):
        path = max(Path(corpus.url, family).rglob("*.parquet"), key=lambda one: one.stat().st_size)
        data = path.read_bytes()
        about = pq.read_metadata(path).row_group(0)
        pages = next(one for one in map(about.column, range(about.num_columns)) if column in one.path_in_schema)
        first = pages.data_page_offset if pages.dictionary_page_offset is None else pages.dictionary_page_offset
        last = first + pages.total_compressed_size - 1
        for at in (*drawn.integers((first + last) // 2, last, 8), last):  # behind the page's header
            changed = bytearray(data)
            changed[at] ^= 1 << drawn.integers(8)
            path.write_bytes(changed)
            with pytest.raises(CorpusError, match=r"\.parquet cannot be read \(.*delete its receipt and run again"):
                Corpus(corpus.url).table(column)
        if family == "sentences":
            done = pipeline("inspect", corpus.url)
            assert done.returncode == 1 and "cannot be read" in done.stderr and "Traceback" not in said(done)
        path.write_bytes(data)
    assert Corpus(corpus.url).table("text", "embedding", "decoded")


def test_a_changed_bit_in_the_head_of_a_page_is_told(corpus: Corpus) -> None:
    path = Path(corpus.files()[0])
    data, outcomes = path.read_bytes(), set()
    for place in range(4, 24):  # the first page's head follows the format's mark
        for bit in range(8):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            try:
                Corpus(corpus.url).table("text", "row", "doc_id", part=0)
                outcomes.add("read")  # what was changed is not needed, or only `verify` finds it
            except CorpusError as error:
                outcomes.add("rows" if "rows in each column" in str(error) else "other")
    assert {"rows", "other"} <= outcomes


def test_quality_counts_every_sentence(corpus: Corpus) -> None:
    quality = measure(corpus, 10_000)
    assert quality.everything.sentences == corpus.rows
    assert sum(group.sentences for group in quality.by_lang) == corpus.rows
    assert sum(group.sentences for group in quality.by_length) == corpus.rows
    assert 0 < quality.everything.scored < corpus.rows
    scores = corpus.table("autobleu")["autobleu"].drop_null().to_numpy()
    assert quality.everything.mean == pytest.approx(scores.mean(), rel=1e-5)
    assert quality.everything.quantiles[2] == pytest.approx(np.median(scores), rel=1e-5)
    worst = worst_rows(corpus, 3, max_rows=10_000)
    assert [row.autobleu for row in worst] == sorted(scores.tolist())[:3]
    row = worst[0]
    assert corpus.table("text", part=row.part)["text"][row.row].as_py() == row.text


def test_a_deleted_receipt_is_made_again(corpus: Corpus, make_config: MakeConfig) -> None:
    before = data_digests(corpus.url)
    next(Path(corpus.url, "receipts/segment").rglob("*.json")).unlink()
    plan = make_plan(load_config(make_config()))
    assert len(plan.chunks_to_segment()) == 1
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    assert not [event for event in launch(plan, record.folder) if event.kind == "failed"]
    assert data_digests(corpus.url) == before


def test_a_receipt_whose_first_answer_was_lost_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    create = store.create

    def sent_twice(path: str, data: bytes) -> bool:
        create(path, data)
        return create(path, data)

    monkeypatch.setattr(store, "create", sent_twice)
    table = pa.table({"status": pa.array([0, 1], pa.uint8())})
    receipt, ours = commit(
        store, stage="x", part="p", fingerprint="f" * 32, recipe="r", inputs={}, families={"status": table},
        counts={}, seconds={}, device="cpu",
    )  # fmt: skip
    assert ours and store.exists(receipt.files[0].path)


def test_the_second_writer_deletes_its_own_files(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    receipts = [
        commit(
            store, stage="x", part="p", fingerprint="f" * 32, recipe="r", inputs={},
            families={"status": pa.table({"status": pa.array([0, 1], pa.uint8())})}, counts={}, seconds={},
            device="cpu",
        )
        for _ in range(2)
    ]  # fmt: skip
    assert [ours for _, ours in receipts] == [True, False]
    assert receipts[0][0] == receipts[1][0]
    assert store.find("status") == [receipts[0][0].files[0].path]


def test_readers_open_the_last_run_though_a_clock_was_ahead(make_config: MakeConfig, tmp_path: Path) -> None:
    """Of the machine of the run before, or of this one until it was put back."""
    path = make_config(autobleu=None, encode=None)
    run(path)
    (only,) = (tmp_path / "out/runs").iterdir()
    only.rename(only.with_name("20990101T000000.000000-abcdef"))
    before = len(Corpus(str(tmp_path / "out")))
    write_jsonl(tmp_path / "in/more.jsonl", sample_documents("postgresql-eng", 6)[4:])
    run(path)
    assert len(Corpus(str(tmp_path / "out"))) > before
    assert "Nothing to do" in run(path)
