"""Ledgers say what receipts say, whatever happens to either; plan and status of many parts stay small."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.plan_scale import make_up, measured
from pipeline import Corpus
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.corpus import ledger, recipe_match, states
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.ledger import FOLDER, Ledgers, compact
from pipeline.corpus.ledger_copy import LedgerCopy
from pipeline.corpus.receipts import REPEATED
from pipeline.corpus.runs import check_corpus
from pipeline.corpus.states import ChunkState, States, fold, forget_gone, read_state
from pipeline.maintenance.verify import check_ledgers
from pipeline.planning.plan import make_plan
from pipeline.storage import layout
from pipeline.storage.store import Store
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.corpora import begin_without_packing
from tests.support.records import change_record
from tests.support.runs import bring_up_to_date


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that is finished, with receipts and no ledger."""
    folder = tmp_path_factory.mktemp("ledger")
    for name, count in (("libreoffice-eng", 3), ("postgresql-eng", 2), ("libreoffice-deu", 2)):
        write_jsonl(folder / f"in/{name}.jsonl", sample_documents(name, count))
    begin_without_packing(folder / "out")
    bring_up_to_date(write_config(folder))
    return folder


@pytest.fixture
def corpus(finished: Path, tmp_path: Path) -> Path:
    """corpus.yaml of a copy; its receipts are folded."""
    shutil.copytree(finished, tmp_path / "copy")
    state = present(tmp_path / "copy/corpus.yaml")
    assert fold(state.store, state) == len(state) == 3 and not any(one.folded for one in state)
    return tmp_path / "copy/corpus.yaml"


def present(path: Path, *overrides: str) -> States:
    state = make_plan(load_config(path, overrides)).chunks
    assert isinstance(state, States)
    return state


def ledgers(path: Path) -> list[Path]:
    return sorted((path.parent / "out" / FOLDER).glob("*.parquet"))


def said(chunks: Sequence[ChunkState]) -> list[object]:
    return [
        (one.chunk, one.fingerprint, one.receipt, one.parts, one.missing, list(one.numbers), one.sentences)
        for one in chunks
    ]


def rounded(value: object) -> object:
    """Sums in another order differ in the last digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return f"{value:.9g}" if isinstance(value, float) else value


def same_as_receipts(path: Path, *overrides: str) -> States:
    """What plan, books and parts are by ledgers, which must be what they are by receipts."""
    folded = make_plan(load_config(path, overrides))
    state = folded.chunks
    assert isinstance(state, States)
    alone = read_state(state.store, state.view, ledgers=False)
    assert said(state) == said(alone)
    assert state.total == pytest.approx(alone.total) and state.columns == alone.columns
    assert rounded(vars(compute_accounting(state.store, state))) == rounded(
        vars(compute_accounting(state.store, alone))
    )
    hidden = path.parent / "out/hidden"
    (path.parent / "out" / FOLDER).rename(hidden)
    by_receipts = make_plan(load_config(path, overrides))
    hidden.rename(path.parent / "out" / FOLDER)
    works = [{name: vars(work) for name, work in plan.work.items()} for plan in (folded, by_receipts)]
    assert rounded(works[0]) == rounded(works[1])
    assert list(folded.parts_to_visit()) == list(by_receipts.parts_to_visit())
    assert list(folded.chunks_to_segment()) == list(by_receipts.chunks_to_segment())
    return state


def test_the_same_as_receipts_say(corpus: Path) -> None:
    state = same_as_receipts(corpus)
    assert all(one.folded for one in state) and not list(check_ledgers(state))
    assert fold(state.store, state) == 0
    out = Corpus(str(corpus.parent / "out"))
    assert out.rows == out.table("chars").num_rows and out.parts == sorted(out.parts)


def test_requests_repeated_for_chunks_are_in_the_books(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    path = tmp_path / "copy/corpus.yaml"
    for kind, repeated in (("chunks", 3), ("receipts/encode", 2)):
        receipt = next((path.parent / "out" / kind).rglob("*.json"))
        value = json.loads(receipt.read_text())
        change_record(receipt, counts=value["counts"] | {REPEATED: repeated})
    state = present(path)
    assert compute_accounting(state.store, state).repeated == 5
    fold(state.store, state)
    assert compute_accounting(state.store, same_as_receipts(path)).repeated == 5


@pytest.mark.parametrize(
    "setting", ["autobleu.length_extra=2", "encode.precision=float32", "segment.max_chars=90", "split.test=0.5"]
)
def test_a_changed_setting(corpus: Path, setting: str) -> None:
    state = same_as_receipts(corpus, setting)
    assert state.total[f"{setting.partition('.')[0].replace('split', 'segment')}/left"] > 0
    bring_up_to_date(corpus, setting)
    state = same_as_receipts(corpus, setting)  # receipts that no ledger knows
    assert not any(one.missing for one in state)
    assert fold(state.store, state) == 3
    assert all(one.folded for one in same_as_receipts(corpus, setting))
    assert all(one.folded for one in same_as_receipts(corpus))  # and back


def test_a_section_more(corpus: Path) -> None:
    bring_up_to_date(corpus, "encode.precision=float32", "autobleu.sample=0.1")
    state = present(corpus, "encode.precision=float32", "autobleu.sample=0.1")
    path = next((corpus.parent / "out/receipts/autobleu").rglob(f"{state[0].parts[0].ref.part}*"))
    path.unlink()
    same_as_receipts(corpus, "encode.precision=float32", "autobleu.sample=0.1")
    same_as_receipts(corpus)


def test_stages_that_stand_in_several_rows_are_put_together_without_receipts(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = ("autobleu=null", "noise={}")
    bring_up_to_date(corpus, *without)
    state = present(corpus, *without)
    assert fold(state.store, state) == len(state)
    both = said(same_as_receipts(corpus, "noise={}"))
    receipt = next((corpus.parent / "out/receipts/noise").rglob("*.json"))
    text = receipt.read_text()
    receipt.unlink()
    assert sum(bool(one.missing) for one in same_as_receipts(corpus, "noise={}")) == 1
    receipt.write_text(text)
    monkeypatch.setattr(recipe_match, "LISTED_PARTS", 0)  # as in a large corpus, whose ledgers are believed
    monkeypatch.setattr(states, "KEPT", 0)
    (corpus.parent / "out/receipts").rename(corpus.parent / "receipts")
    state = present(corpus, "noise={}")
    assert said(state) == both and not any(one.missing or one.folded for one in state)
    assert fold(state.store, state) == len(state)
    state = present(corpus, "noise={}")
    assert said(state) == both and all(one.folded for one in state)
    (corpus.parent / "receipts").rename(corpus.parent / "out/receipts")
    assert not list(check_ledgers(same_as_receipts(corpus, "noise={}")))


def test_deleted_receipts_are_made_again_and_folded_again(corpus: Path) -> None:
    before = data_digests(corpus.parent / "out")
    next((corpus.parent / "out/receipts/encode").rglob("*.json")).unlink()
    state = present(corpus)
    assert [one.folded for one in state].count(False) == 1
    forget_gone(state)
    bring_up_to_date(corpus)
    state = same_as_receipts(corpus)
    assert fold(state.store, state) == 1
    state = same_as_receipts(corpus)
    assert all(one.folded for one in state) and not list(check_ledgers(state))
    assert data_digests(corpus.parent / "out") == before


def test_folding_twice_and_compacting(corpus: Path) -> None:
    state = present(corpus)
    alone = read_state(state.store, state.view, ledgers=False)
    assert fold(state.store, alone) == 3 and len(ledgers(corpus)) == 2
    same_as_receipts(corpus)
    assert compact(state.store) == 2
    (one,) = ledgers(corpus)
    assert pq.read_metadata(one).num_rows == 3
    same_as_receipts(corpus)
    assert compact(state.store) == 0
    assert said(state) == said(alone), "what was read before is read from receipts now"


@pytest.mark.parametrize("differs", [False, True])
def test_compacting_leaves_out_what_a_newer_row_holds_too(corpus: Path, differs: bool) -> None:
    """Each phase of a run folds what it has finished. Before, the rows of all phases stayed for ever."""
    ledgers(corpus)[0].unlink()
    for overrides in (["autobleu=null"], []):
        state = present(corpus, *overrides)
        assert fold(state.store, read_state(state.store, state.view, ledgers=False)) == 3
    _, newer = ledgers(corpus)
    if differs:  # one of the newer rows is about other results of the first stage
        table = pq.read_table(newer)
        first, *others = table["prints"].to_pylist()
        prints = pa.array([bytes([first[0] ^ 1]) + first[1:], *others], pa.binary())
        pq.write_table(table.set_column(table.schema.get_field_index("prints"), "prints", prints), newer)
    assert compact(state.store) == 2
    (one,) = ledgers(corpus)
    assert pq.read_metadata(one).num_rows == 3 + differs
    if not differs:
        same_as_receipts(corpus)
        same_as_receipts(corpus, "autobleu=null")


def test_killed_between_writing_and_deleting(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = present(corpus)
    fold(state.store, read_state(state.store, state.view, ledgers=False))

    def killed(store: Store, path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Store, "delete", killed)
        compact(state.store)
    assert len(ledgers(corpus)) == 3
    same_as_receipts(corpus)
    assert compact(state.store) == 3 and len(ledgers(corpus)) == 1
    same_as_receipts(corpus)


def test_a_ledger_that_goes_while_it_is_read(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = present(corpus)
    fold(state.store, read_state(state.store, state.view, ledgers=False))
    index = ledger._index

    def compacted_meanwhile(store: Store, path: str) -> pa.Table:
        monkeypatch.setattr(ledger, "_index", index)
        compact(store)
        return index(store, path)

    monkeypatch.setattr(ledger, "_index", compacted_meanwhile)
    assert all(one.folded for one in present(corpus)) and len(ledgers(corpus)) == 1


def test_what_is_damaged_or_newer_is_refused(corpus: Path) -> None:
    (path,) = ledgers(corpus)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(CorpusError, match=r"is damaged .*; pipeline verify --repair deletes it: it is made again"):
        present(corpus)
    table = pq.read_table(pa.BufferReader(whole))
    pq.write_table(table.replace_schema_metadata({"ledger": "2"}), path)
    with pytest.raises(CorpusError, match=r"ledger of version 2; this program reads version 1"):
        present(corpus)
    path.unlink()
    assert not any(one.folded for one in present(corpus))
    header = corpus.parent / "out" / layout.CORPUS_FILE
    for text, what in (("{", "is damaged"), ("{}", "is damaged"), ('{"layout": 99}', "install the version that made")):
        header.write_text(text)
        with pytest.raises(CorpusError, match=what):
            check_corpus(Store(str(corpus.parent / "out")))


def test_verify_finds_a_ledger_that_says_something_else(corpus: Path) -> None:
    path = next((corpus.parent / "out/receipts/encode").rglob("*.json"))
    change_record(path, device="another")
    (wrong,) = check_ledgers(present(corpus))
    assert "differs from the receipts in keys, receipts" in wrong.what and wrong.receipt == wrong.path


def test_ledgers_of_versions_whose_receipts_had_fewer_fields(corpus: Path) -> None:
    """A corpus of version 0.1.0 is clean: its chunks' receipts say nothing of the content that was read."""
    (path,) = ledgers(corpus)
    for receipt in (corpus.parent / "out" / "chunks").rglob("*.json"):
        change_record(receipt, content="")
    table = pq.read_table(path)
    texts = []
    for text in table["receipts"].to_pylist():
        said = json.loads(text)
        del said["chunk"]["content"]
        texts.append(json.dumps(said))
    table = table.set_column(table.schema.get_field_index("receipts"), table.schema.field("receipts"), pa.array(texts))
    pq.write_table(table, path)
    assert not list(check_ledgers(present(corpus)))


def test_chunks_of_a_corpus_are_read_at_their_own_cost(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = present(corpus)
    asked: list[str] = []

    def listed(store: Store, *args: object, **kwargs: object) -> list[str]:
        asked.append(str(args))
        return []

    for name in ("find", "folders", "listing"):
        monkeypatch.setattr(Store, name, listed)
    alone = read_state(state.store, state.view, ledgers=False)
    assert said(alone) == said(state) and not asked, "nothing is listed for a few chunks"


@pytest.mark.parametrize("command", ["plan", "status"])
def test_many_parts(tmp_path_factory: pytest.TempPathFactory, command: str) -> None:
    """21 000 parts: thirty times the CPU that it takes, and a quarter of the memory that their receipts would need."""
    folder = tmp_path_factory.mktemp("many")
    config = make_up(folder, chunks=3000, parts=7, tail=10)
    _, cpu, peak, said = measured(command, config)
    assert (
        "encode 20965 done 35 left" if command == "plan" else "21000 parts, 2100000000 sentences, 0 problems"
    ) in said
    assert cpu < 45 and peak < 500, (cpu, peak)


def test_receipts_in_any_order_cost_three_passes_over_the_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *at, **how: (read.append(at[1]), whole(*at, **how))[1])
    found = Ledgers.read(Store(load_config(make_up(tmp_path, 20 * ledger.GROUP + 7, 1, 0)).output))
    groups, rows = 21, list(range(len(found)))
    in_order = [found.detail(row) for row in rows]
    assert len(read) == groups
    random.Random(0).shuffle(rows)
    assert all(found.detail(row) == in_order[row] for row in rows)
    assert len(read) <= 3 * groups


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A corpus with a ledger of several row groups."""
    return Store(load_config(make_up(tmp_path_factory.mktemp("long"), 6 * ledger.GROUP, 1, 0)).output)


def every(found: Ledgers) -> list[object]:
    """The receipts of all rows, after each was asked for in another order."""
    rows = list(range(len(found)))
    random.Random(0).shuffle(rows)
    return [one for _, one in sorted((row, repr(found.detail(row))) for row in rows)]


@pytest.mark.parametrize("trouble", ["no folder", "full", "full later", "damaged"])
def test_receipts_are_read_where_ledgers_cannot_be_copied(
    long: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    wanted, found = every(Ledgers.read(long)), Ledgers.read(long)
    monkeypatch.setattr("sys.stderr", io.StringIO())  # pytest's is a file, for which the limit counts as well
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if trouble == "no folder":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    if trouble == "damaged":
        assert every(found) == wanted and not caplog.messages
        os.pwrite(found._copy._opened(), bytes(found._copy._ends[-1]), 0)
    try:
        if trouble.startswith("full"):  # a write that reaches the limit ends there without an error, the next one fails
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_001 if trouble == "full later" else 100, limits[1]))
        assert every(found) == wanted == every(found)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(caplog.messages) == 1 and "set TMPDIR to a folder with space" in caplog.messages[0]


def test_forked_processes_copy_ledgers_each_to_its_own_file() -> None:
    copy, texts = LedgerCopy(), pa.array(["of the parent"])
    copy.add(0, texts)
    if not (child := os.fork()):
        copy.add(1, pa.array(["of the child!"]))
        os._exit(copy.text(1, 0) != "of the child!")
    copy.add(2, texts)
    assert os.waitpid(child, 0)[1] == 0 and 1 not in copy
    assert copy.text(0, 0) == copy.text(2, 0) == "of the parent"
