"""`purge`: readers show nothing of a document from then on, a run takes it out for good, and nothing else changes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError, StorageError
from pipeline.config.load import load_config
from pipeline.config.select import SelectSettings
from pipeline.console.progress import RowProgress
from pipeline.coordination.lock import locked
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.tombstones import create_tombstone, read_tombstones
from pipeline.export import ExportOptions, export_corpus
from pipeline.maintenance.purge import find, purge
from pipeline.maintenance.quarantine import show_quarantine
from pipeline.maintenance.verify import check
from pipeline.planning.plan import make_plan
from pipeline.quality.explore import write_explorer
from pipeline.quality.report import write_report
from pipeline.quality.report.page import write_page
from pipeline.select.selection import Selection
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from tests.conftest import MakeConfig, data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.corpora import begin_without_packing
from tests.support.runs import run

SCORES = {"autobleu": {"sample": 0.5, "length_extra": 1, "length_factor": 1.0}, "fit": {"rows": 100}, "scaler": {}}
KEYS = [("doc_id", "ascending"), ("start", "ascending")]
QUIET = Console(file=io.StringIO())


def purged(out: Path, *ids: str, dry_run: bool = False, in_advance: bool = False) -> str:
    file = out.parent / "ids.txt"
    file.write_text("".join(f"{one}\n" for one in ids), "utf-8")
    console = Console(file=io.StringIO(), width=200)
    purge(console, Corpus(str(out)), str(file), dry_run, lambda jobs: False, in_advance)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def documents(out: Path) -> pa.Table:
    corpus = Corpus(str(out))
    return pa.concat_tables(corpus.documents(part) for part in corpus.parts)


def holders(out: Path, doc_id: str) -> set[str]:
    """Names of the parts that have a document."""
    corpus = Corpus(str(out))
    return {part for part in corpus.parts if doc_id in corpus.documents(part)["doc_id"].to_pylist()}


def contents(folder: Path) -> dict[str, str]:
    """Names of the files below a folder, and what they hold as bytes and in columns of Parquet that hold text."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        values = path.read_bytes().decode("utf-8", "replace")
        if path.name.endswith((".parquet", ".tmp")):
            names = [one.name for one in pq.read_schema(path) if re.search("string|binary", str(one.type))]
            rows = pq.read_table(path, columns=names).to_pylist()
            values += json.dumps(rows, ensure_ascii=False, default=lambda one: str(one))
        found[str(path)] = values
    return found


def mentions(folder: Path, text: str) -> list[str]:
    """Files that hold a text."""
    return [name for name, values in contents(folder).items() if text in values]


def everything(out: Path) -> pa.Table:
    return Corpus(str(out)).table(
        "text", "embedding", "autobleu", "decoded", "doc", "position", "row", "part", "doc_id"
    )


@pytest.mark.slow
def test_a_document_goes_for_good_and_nothing_else_changes(make_config: MakeConfig, tmp_path: Path) -> None:
    path, out = make_config(**SCORES), tmp_path / "out"
    run(path, "autobleu.length_extra=2", "segment.max_chars=90")  # older settings leave their results
    run(path, "report={}")
    write_explorer(Corpus(str(out)), None, 10**9)
    victim = sample_documents("libreoffice-eng", 6)[1]
    hit = holders(out, victim["id"])
    assert max(hit) < max(part for part in Corpus(str(out)).parts if part[:12] == max(hit)[:12])  # more parts follow
    text = Corpus(str(out)).table("text", "doc_id")
    sentences = text.filter(pc.equal(text["doc_id"], victim["id"]))["text"].to_pylist()
    assert sentences and len(mentions(out, sentences[1])) >= 2
    # what a kill may leave of the document
    corpus = Corpus(str(out))
    receipt = corpus.state_of(sorted(hit)[0]).receipts["segment"]
    for file in receipt.files:
        shutil.copy(out / file.path, (out / file.path).with_name(f".{Path(file.path).name}.0a1b2c3d.tmp"))
        shutil.copy(out / file.path, out / f"{file.path.rpartition('-')[0]}-0a1b2c.parquet")
    before, rows = data_digests(out), corpus.rows
    embedded = {file.name for file in (out / "embeddings").rglob("*.parquet")}
    prints = {chunk.id: print_ for chunk, print_ in make_plan(load_config(path)).view.chunks}

    shown = purged(out, victim["id"], dry_run=True)
    assert (
        f"1 id: 1 document of {len(sentences)} sentences in {len(hit)} part" in shown and "Nothing was changed" in shown
    )
    assert not (out / "tombstones").exists()
    purged(out, victim["id"])

    # every reader at once
    corpus = Corpus(str(out))
    assert corpus.rows == rows - len(sentences) and not holders(out, victim["id"])
    seen = everything(out)
    assert seen.num_rows == corpus.rows and victim["id"] not in seen["doc_id"].to_pylist()
    assert not set(corpus.table("text")["text"].to_pylist()) & {sentences[1]}
    found = corpus.batches("text", "row", "part", where=corpus.condition("chars >= 10"))
    some = pa.concat_tables(batch.table for batch in found)
    assert some.equals(corpus.table("text", "row", "part").filter(pc.greater_equal(corpus.table("chars")["chars"], 10)))
    counts = Selection(corpus, SelectSettings(where="chars >= 10")).count(RowProgress(QUIET, 0))
    assert counts.sentences == corpus.rows and counts.kept == some.num_rows
    export_corpus(QUIET, str(out), corpus, ExportOptions("lcm", str(tmp_path / "lcm")))
    assert not mentions(tmp_path / "lcm", sentences[1])
    assert not (out / "report/index.html").exists() and not (out / "report/interactive.html").exists()

    # only the chunk that held it is segmented again, only the parts that held it are encoded again
    plan = make_plan(load_config(path))
    assert [chunk.path for chunk in plan.chunks_to_segment()] == ["libreoffice-eng.jsonl"]
    changed = {chunk.id for chunk, print_ in plan.view.chunks if prints[chunk.id] != print_}
    assert changed == {chunk.id for chunk in plan.chunks_to_segment()}
    assert "removed" in run(path)
    after = data_digests(out)
    assert {key.partition("/")[2] for key in before.keys() & after.keys() if before[key] != after[key]} == hit
    assert len({file.name for file in (out / "embeddings").rglob("*.parquet")} - embedded) == len(hit)
    assert everything(out).equals(seen)  # readers saw before what is on disk now
    accounting = compute_accounting(Store(str(out)), Corpus(str(out)).chunks)
    assert accounting.dropped == {"purged": 1} and not accounting.problems and accounting.documents_in == 14
    assert check(Corpus(str(out)), lambda done: None) == []

    # nothing of it is left, whatever the settings were
    left = "".join(contents(out).values())
    for one in (*sentences[1:], victim["title"]):
        titles = [each["title"] for each in sample_documents("libreoffice-eng", 6) if each["id"] != victim["id"]]
        if len(one) > 20 and one not in titles and one not in "".join(seen["text"].to_pylist()):
            assert one not in left
    assert run(path).startswith("Nothing to do.")
    assert not read_tombstones(Store(str(out)), waiting=True).by_chunk
    run(path, "segment.max_chars=90")
    assert victim["id"] not in documents(out)["doc_id"].to_pylist()


def test_it_is_as_if_the_document_had_never_been(make_config: MakeConfig, tmp_path: Path) -> None:
    path, out = make_config(**SCORES), tmp_path / "out"
    run(path)
    ids = [one["id"] for one in sample_documents("postgresql-eng", 4)[:2]]
    purged(out, *ids)
    run(path)
    left = sample_documents("postgresql-eng", 4)[2:]
    write_jsonl(tmp_path / "in/postgresql-eng.jsonl", left)
    run(path, f"output={tmp_path / 'without'}", "scaler=null")
    columns = ("text", "start", "u", "autobleu", "decoded", "doc_id", "embedding")
    tables = [Corpus(str(one)).table(*columns) for one in (out, tmp_path / "without")]
    purged_, never = (one.take(pc.sort_indices(one.select(["doc_id", "start"]), KEYS)) for one in tables)
    assert purged_.num_rows and purged_.drop(["embedding"]).equals(never.drop(["embedding"]))
    assert np.array_equal(embedding_matrix(purged_["embedding"]), embedding_matrix(never["embedding"]))


def test_a_part_of_which_nothing_is_left(make_config: MakeConfig, tmp_path: Path) -> None:
    path, out = make_config(**SCORES, part_sentences=100), tmp_path / "out"
    long = {
        "id": "long",
        "lang": "eng_Latn",
        "title": "",
        "text": "\n\n".join(f"Number {n} is here." for n in range(250)),
    }
    write_jsonl(tmp_path / "in/z.jsonl", [long, {**long, "id": "after", "text": "It is the end."}])
    run(path, "segment.max_document_sentences=50")
    parts = holders(out, "long")
    before = data_digests(out)
    assert len(parts) == 3
    purged(out, "long")
    assert Corpus(str(out)).table("text", part=sorted(parts)[0]).num_rows == 0
    run(path, "segment.max_document_sentences=50")
    left = {part for part in Corpus(str(out)).parts if part.startswith(sorted(parts)[0][:12])}
    assert left == {sorted(parts)[2]}  # its number is still the third
    after = data_digests(out)
    assert {key for key in after if before.get(key) != after[key]} == {
        key for key in after if key.endswith(sorted(parts)[2])
    }
    assert documents(out).filter(pc.equal(documents(out)["doc_id"], "after")).num_rows == 1


def test_quarantine_and_later_arrivals(make_config: MakeConfig, tmp_path: Path) -> None:
    def document(name: str, text: str) -> dict[str, str]:
        return {"id": name, "lang": "eng_Latn", "title": "t", "text": text}

    lines = [
        document("one", "The first."),
        document("two", "The second."),
        document("two", "Secret copy of the second."),
    ]
    path, out = make_config(autobleu=None), tmp_path / "out"
    write_jsonl(tmp_path / "in/x.jsonl", [*lines, document("three", "The third.")])
    run(path)
    assert mentions(out / "quarantine", "Secret copy")
    shown = purged(out, "two", "nobody", "later")
    assert "3 ids: 1 document of 1 sentence in 1 part, 1 record in quarantine; 1 chunk to write again" in shown
    assert "in no document: later\nin no document: nobody" in shown
    assert f"in no document: {'x' * 79}…\n" in purged(out, "x" * 5000, in_advance=True)
    console = Console(file=io.StringIO())
    show_quarantine(console, Corpus(str(out)))
    assert isinstance(console.file, io.StringIO) and "Secret" not in console.file.getvalue()
    run(path)
    accounting = compute_accounting(Store(str(out)), Corpus(str(out)).chunks)
    assert accounting.dropped == {"purged": 2} and not accounting.quarantined and not mentions(out, "Secret copy")
    write_jsonl(tmp_path / "in/y.jsonl", [document("later", "It comes later."), document("four", "The fourth.")])
    assert [chunk.path for chunk in make_plan(load_config(path)).chunks_to_segment()] == ["x.jsonl … y.jsonl (2 files)"]
    run(path)
    assert "later" not in documents(out)["doc_id"].to_pylist() and "four" in documents(out)["doc_id"].to_pylist()
    assert run(path).startswith("Nothing to do.")


def test_the_command(make_config: MakeConfig, tmp_path: Path) -> None:
    path, out = make_config(), tmp_path / "out"
    run(path)
    before = json.loads(pipeline("inspect", out, "--json").stdout)["corpus_bleu"]
    pq.write_table(pa.table({"doc_id": [sample_documents("libreoffice-deu", 1)[0]["id"]]}), tmp_path / "ids.parquet")
    done = pipeline("purge", path, "--ids", tmp_path / "ids.parquet")
    assert done.returncode == 0 and "1 id: 1 document" in done.stdout and "Now run: pipeline run" in done.stdout, done
    waiting = "1 purged id to take out of 1 chunk; no reader shows them: pipeline run does it"
    assert waiting in pipeline("status", out).stdout
    assert json.loads(pipeline("inspect", out, "--json").stdout)["corpus_bleu"] == {}  # it would be of all documents
    assert "Corpus BLEU is not shown: it would still count purged documents" in said(pipeline("inspect", out))
    assert "files still hold 1 purged document, and the next run writes them again" in said(pipeline("index", path))
    assert pipeline("report", out).returncode == 0
    assert "Documents were purged since the last run" in (out / "report/index.html").read_text()
    assert re.search(r"segment +documents were purged \(1 chunk\)", pipeline("plan", path).stdout)
    for file, words in (("missing.txt", "there is no such file"), ("empty.txt", "lists no id")):
        (tmp_path / "empty.txt").write_text("\n\n")
        wrong = pipeline("purge", out, "--ids", tmp_path / file)
        assert wrong.returncode == 2 and words in wrong.stderr, wrong
    run(path)
    assert "purged id" not in pipeline("status", out).stdout
    after = json.loads(pipeline("inspect", out, "--json").stdout)["corpus_bleu"]
    assert after and after != before


class _Full(io.StringIO):
    """An output that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_what_cannot_be_printed_is_purged_all_the_same(make_config: MakeConfig, tmp_path: Path) -> None:
    run(make_config(autobleu=None))
    corpus = Corpus(str(tmp_path / "out"))
    gone = corpus.documents(corpus.parts[0])["doc_id"][0].as_py()
    (tmp_path / "ids.txt").write_text(f"{gone}\n", "utf-8")
    with pytest.raises(OSError, match="No space left"):
        purge(Console(file=_Full()), corpus, str(tmp_path / "ids.txt"), False, lambda jobs: False)
    assert gone not in documents(tmp_path / "out")["doc_id"].to_pylist()


@pytest.mark.parametrize("killed", [False, True])
def test_reports_go_also_if_a_kill_left_them(make_config: MakeConfig, tmp_path: Path, killed: bool) -> None:
    run(path := make_config(autobleu=None, encode=None))
    out, doc_id = tmp_path / "out", sample_documents("libreoffice-deu", 1)[0]["id"]
    reports = [out / "report" / name for name in ("index.html", "interactive.html", ".index.html.0a1b2c3d.tmp")]
    (out / "report").mkdir()
    for report in reports:
        report.write_text("quotes it")
    if killed:  # after the tombstone
        hits = find(Corpus(str(out)), {doc_id}).hits
        create_tombstone(Store(str(out)), {doc_id}, hits, "ids.txt")
        run(path)
    else:
        purged(out, doc_id)
    assert not [report for report in reports if report.exists()]
    run(path)
    assert "nothing was changed" in purged(out, doc_id)
    reports[2].write_text("quotes it")
    assert "reports are deleted, which may quote them (1 file)" in purged(out, doc_id) and not reports[2].exists()


@pytest.mark.parametrize("interactive", [False, True])
def test_a_report_during_which_documents_are_purged_is_deleted(
    make_config: MakeConfig, tmp_path: Path, interactive: bool
) -> None:
    run(path := make_config(autobleu=None, encode=None))
    corpus = Corpus(str(tmp_path / "out"))
    assert corpus.rows  # it is read, and then documents go
    purged(tmp_path / "out", sample_documents("libreoffice-deu", 1)[0]["id"])
    run(path)  # even if its files are there no more
    for to in (None, str(tmp_path / "page.html")):
        with pytest.raises(CorpusError, match=r"were purged from .* so .*\.html, which may quote them, is not kept"):
            write_page(corpus, to or f"{corpus.url}/report/index.html", b"quotes it")
    with pytest.raises(CorpusError, match="were purged from"):  # and what was being written is gone already
        write_page(corpus, str(tmp_path), b"quotes it")
    with pytest.raises(CorpusError):
        write_explorer(corpus, None, 10**9) if interactive else write_report(corpus)
    assert not list((tmp_path / "out/report").iterdir()) and not (tmp_path / "page.html").exists()
    again = Corpus(corpus.url)
    assert Path(write_explorer(again, None, 10**9) if interactive else write_report(again)).exists()


def test_a_report_that_cannot_be_deleted_is_named(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(make_config(autobleu=None, encode=None))
    (tmp_path / "out/report").mkdir()
    (tmp_path / "out/report/index.html").write_text("quotes it")
    delete = Store.delete

    def broken(store: Store, path: str) -> None:
        if path.startswith("report/"):
            raise OSError(5, "Input/output error")
        delete(store, path)

    monkeypatch.setattr(Store, "delete", broken)
    with pytest.raises(StorageError, match=r"are purged, but the folder .*/report cannot .* \(Input/output error\)"):
        purged(tmp_path / "out", sample_documents("libreoffice-deu", 1)[0]["id"])


def test_not_while_a_run_is_under_way(make_config: MakeConfig, tmp_path: Path) -> None:
    run(make_config(autobleu=None, encode=None))
    with locked(Store(str(tmp_path / "out")), "test", lambda jobs: False):
        with pytest.raises(CorpusError, match="is being worked on"):
            purged(tmp_path / "out", "any")
        shown = purged(tmp_path / "out", "any", dry_run=True)
        assert "in no document: any" in shown and "purge refuses ids of which none is found" in shown
        for command in (("gc", tmp_path / "out", "--delete", "--yes"), ("verify", tmp_path / "out", "--repair")):
            refused = pipeline(*command)
            assert refused.returncode == 1 and "is being worked on" in refused.stderr, refused
    assert "tombstones/" in purged(tmp_path / "out", "any", in_advance=True)


def test_ids_of_which_none_is_found_are_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    run(make_config(autobleu=None, encode=None))
    out, file = tmp_path / "out", tmp_path / "ids.txt"
    file.write_text("nobody\nnowhere\n")
    done = pipeline("purge", out, "--ids", file)
    assert done.returncode == 2 and not (out / "tombstones").exists(), said(done)
    assert "has any of the 2 ids ('nobody', 'nowhere'), so nothing was changed" in done.stderr, said(done)
    done = pipeline("purge", out, "--ids", file, "--in-advance")
    assert done.returncode == 0 and len(list((out / "tombstones").iterdir())) == 1, said(done)
    done = pipeline("purge", out, "--ids", file)
    assert done.returncode == 0 and "purged already; nothing was changed" in done.stdout, said(done)
    assert len(list((out / "tombstones").iterdir())) == 1


def test_a_damaged_tombstone_stops_every_reader(make_config: MakeConfig, tmp_path: Path) -> None:
    run(path := make_config(autobleu=None, encode=None))
    purged(tmp_path / "out", sample_documents("libreoffice-deu", 1)[0]["id"])
    (tombstone,) = (tmp_path / "out/tombstones").iterdir()
    tombstone.write_bytes(b"PAR1")
    with pytest.raises(CorpusError, match="which documents were purged"):
        Corpus(str(tmp_path / "out")).table("text")
    with pytest.raises(CorpusError, match="which documents were purged"):
        run(path)
    tombstone.unlink()
    with pytest.raises(ConfigError, match="give a text file"):
        purge(QUIET, Corpus(str(tmp_path / "out")), str(tmp_path / "nothing"), True, lambda jobs: False)


def test_a_lost_tombstone_brings_nothing_back(make_config: MakeConfig, tmp_path: Path) -> None:
    """After the documents are gone from disk, only the tombstone keeps the next run from reading them again."""
    run(path := make_config(autobleu=None, encode=None))
    out, documents = tmp_path / "out", sample_documents("libreoffice-deu", 2)
    for one in documents:
        purged(out, one["id"])
    run(path)
    first, _, second, erased = sorted((out / "tombstones").iterdir())
    content, texts = second.read_bytes(), len(Corpus(str(out)))
    for data in (None, first.read_bytes()):
        second.unlink()
        if data:
            second.write_bytes(data)
        refused = pipeline("run", path)
        assert refused.returncode == 1 and f"{second.name} is damaged" in said(refused).replace("\n", ""), said(refused)
        assert pipeline("verify", path).returncode == 1
        second.write_bytes(content)
    erased.write_bytes(b"{")
    assert pipeline("verify", path).returncode == 1 and pipeline("run", path).returncode == 0
    assert pipeline("verify", path, "--repair").returncode == 1 and not erased.exists()
    run(path)
    assert erased.exists() and pipeline("verify", path).returncode == 0
    second.unlink()
    erased.unlink()  # as the message says, and then:
    purged(out, documents[1]["id"], in_advance=True)
    run(path)
    assert len(Corpus(str(out))) == texts and pipeline("verify", path).returncode == 0


ODD = ("a", "b", "c", "d", "a\u2028b", "c\x85d", "e\x0bf", "g\x0ch", "i\x1dj", "k\nl", "m\r")


@pytest.fixture
def odd_ids(make_config: MakeConfig, tmp_path: Path) -> Path:
    """The corpus.yaml of documents whose ids hold what Unicode calls line ends."""
    write_jsonl(
        tmp_path / "in/odd.jsonl",
        [one | {"id": ODD[n]} for n, one in enumerate(sample_documents("libreoffice-eng", 11))],
    )
    path = make_config(autobleu=None)
    assert pipeline("run", path, "--until", "segment").returncode == 0
    return path


def test_ids_end_at_line_feeds_only(odd_ids: Path, tmp_path: Path) -> None:
    """Not at what else Unicode calls a line end: four documents that nobody named went with these two."""
    file = tmp_path / "ids.txt"
    file.write_text("a\u2028b\r\nc\x85d\ne\x0bf\nnobody\n", "utf-8")
    done = pipeline("purge", odd_ids, "--ids", file)
    assert done.returncode == 0, done
    assert "3 found, 1 not found; the first ids of the file: 'a\\\\u2028b', 'c\\\\x85d'" in done.stdout, done.stdout
    assert set(documents(tmp_path / "out")["doc_id"].to_pylist()) == set(ODD) - {"a\u2028b", "c\x85d", "e\x0bf"}


def test_ids_come_from_a_pipe(make_config: MakeConfig, tmp_path: Path) -> None:
    run(make_config(autobleu=None, encode=None))
    victim = str(documents(tmp_path / "out")["doc_id"][0])
    reading, writing = os.pipe()
    os.write(writing, victim.encode())
    os.close(writing)
    done = pipeline("purge", tmp_path / "out", "--ids", f"/dev/fd/{reading}")
    os.close(reading)
    assert done.returncode == 0 and victim not in documents(tmp_path / "out")["doc_id"].to_pylist(), done


def test_ids_with_line_ends_are_given_as_jsonl_or_parquet(odd_ids: Path, tmp_path: Path) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('"k\\nl"\n{"doc_id": "a\u2028b"}\n', "utf-8")
    assert pipeline("purge", odd_ids, "--ids", file).returncode == 0
    pq.write_table(pa.table({"doc_id": ["m\r"]}), tmp_path / "ids.parquet")
    assert pipeline("purge", odd_ids, "--ids", tmp_path / "ids.parquet").returncode == 0
    assert set(documents(tmp_path / "out")["doc_id"].to_pylist()) == set(ODD) - {"k\nl", "a\u2028b", "m\r"}
    for bad, why in (
        ('"a"\n["b"]\n', "line 2 is not an id"),
        ('{"id": "a"}', "line 1 is not an id"),
        ("[" * 9999, "line 1"),
    ):
        file.write_text(bad, "utf-8")
        done = pipeline("purge", odd_ids, "--ids", file)
        assert done.returncode == 2 and why in done.stderr, done
    pq.write_table(pa.table({"doc_id": ["a", None]}), tmp_path / "ids.parquet")
    done = pipeline("purge", odd_ids, "--ids", tmp_path / "ids.parquet")
    assert done.returncode == 2 and "row 1 is null" in done.stderr, done


def test_the_ledger_forgets_comparisons_that_a_purge_deletes(tmp_path: Path) -> None:
    for number, name in enumerate(("libreoffice-eng", "libreoffice-deu")):  # a chunk each
        write_jsonl(tmp_path / f"in/{number}.jsonl", sample_documents(name, 2))
    begin_without_packing(tmp_path / "out")
    run(write_config(tmp_path, autobleu=None, duplicates={}))
    purged(tmp_path / "out", sample_documents("libreoffice-eng", 1)[0]["id"])
    run(write_config(tmp_path, autobleu=None))
    assert check(Corpus(str(tmp_path / "out")), lambda done: None) == []
