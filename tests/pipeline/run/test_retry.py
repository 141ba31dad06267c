"""`retry --quarantined`: what was set aside and can be used now is in the corpus, and nothing else is done again."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from launchers.dispatch import train
from launchers.launch import launch
from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.ledger import Ledgers
from pipeline.maintenance.verify import check
from pipeline.planning.plan import make_plan
from pipeline.run.options import RunOptions
from pipeline.run.retry import quarantined_receipts, retry
from pipeline.run.run import Backend
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, data_digests, sample_documents
from tests.support.cli import pipeline
from tests.support.runs import run

MISTAKE = b'"text" . '  # of the same length as what it should be, so that nothing but reading tells them apart
RIGHT = b'"text" : '


def retried(path: Path, reason: str | None = None) -> str:
    shown = io.StringIO()
    console = Console(file=shown, width=160)
    retry(console, load_config(path), reason, RunOptions(), Backend(launch, lambda: "cpu", train))
    return shown.getvalue()


def line(name: str, text: str) -> bytes:
    record = {"id": name, "lang": "eng_Latn", "title": name, "text": text}
    return json.dumps(record).encode().replace(b'"text": ', RIGHT) + b"\n"


def write_input(folder: Path) -> None:
    """Three files: one with a mistake in its second part, one with a mistake that stays, one without any."""
    folder.mkdir()
    whole = [line(one["id"], one["text"]) for one in sample_documents("libreoffice-eng", 6)]
    long = [line(f"long {n}", " ".join(f"This is sentence {n} and {k}." for k in range(60))) for n in range(5)]
    broken = line("mended", "Nobody could read this. Now it can be read.").replace(RIGHT, MISTAKE)
    (folder / "mended.jsonl").write_bytes(b"".join([*long[:3], broken, *long[3:]]))
    (folder / "broken.jsonl").write_bytes(b"".join([*long[:2], b"{not JSON at all\n", *long[2:4]]))
    (folder / "whole.jsonl").write_bytes(b"".join(whole))


def mend(file: Path) -> None:
    """The mistake goes, and by size and time the file is as it was: a run alone does not look again."""
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(MISTAKE, RIGHT))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def files(out: Path, folder: str, chunk: str = "") -> set[str]:
    return {path.name for path in (out / folder).rglob(f"{chunk}*") if path.is_file()}


def test_what_can_be_used_now_comes_in_and_the_rest_stays(make_config: MakeConfig, tmp_path: Path) -> None:
    write_input(tmp_path / "in")
    path, out = make_config(), tmp_path / "out"
    run(path)
    chunks = {one.chunk.path.removesuffix(".jsonl"): one.chunk.id for one in Corpus(str(out)).chunks}
    mend(tmp_path / "in/mended.jsonl")
    assert make_plan(load_config(path)).nothing_to_do
    before = data_digests(out)
    embedded = {name: files(out, "embeddings", chunk) for name, chunk in chunks.items()}
    receipts = {file: file.stat().st_mtime_ns for file in (out / "receipts").rglob(f"{chunks['whole']}*")}

    shown = retried(path)
    assert "2 chunks with 2 records in quarantine to segment again" in shown
    assert [" ".join(one.split()) for one in shown.splitlines()[-2:]] == ["invalid JSON 2 1", "all 2 1"]
    after = data_digests(out)
    assert files(out, "embeddings", chunks["broken"]) == embedded["broken"]  # nothing came out otherwise
    assert files(out, "embeddings", chunks["whole"]) == embedded["whole"]
    assert receipts == {file: file.stat().st_mtime_ns for file in receipts}
    same = {key for key in before if key.startswith("embeddings/") and before[key] == after.get(key)}
    assert f"embeddings/{chunks['mended']}-00000" in same and f"embeddings/{chunks['mended']}-00001" not in same
    assert files(out, "embeddings", f"{chunks['mended']}-00000") <= embedded["mended"]
    accounting = compute_accounting(Store(str(out)), Corpus(str(out)).chunks)
    assert accounting.quarantined == {"invalid JSON": 1} and not accounting.problems and accounting.complete
    assert "mended" in Corpus(str(out)).table("doc_id")["doc_id"].to_pylist()
    assert check(Corpus(str(out)), lambda done: None) == [] and run(path).startswith("Nothing to do.")

    run(path, f"output={tmp_path / 'fresh'}")  # it is as if the mistake had never been
    assert data_digests(tmp_path / "fresh") == after


def test_receipts_of_chunks_without_quarantine_are_not_read(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, those of all chunks and parts were read, and held, three times."""
    write_input(tmp_path / "in")
    path = make_config(autobleu=None, encode=None)
    run(path)
    read, detail = list[int](), Ledgers.detail
    monkeypatch.setattr(Ledgers, "detail", lambda ledgers, row: (read.append(row), detail(ledgers, row))[1])
    chunks = make_plan(load_config(path)).chunks
    assert all(one.folded for one in chunks) and len(chunks) == 3
    found = quarantined_receipts(Store(str(tmp_path / "out")), chunks)
    assert sorted(one.source for one in found) == ["broken.jsonl", "mended.jsonl"] and len(read) == 2
    for ledger in (tmp_path / "out/ledger").iterdir():
        ledger.unlink()  # receipts are read where ledgers were compacted meanwhile, or are not written yet
    assert quarantined_receipts(Store(str(tmp_path / "out")), chunks) == found
    assert quarantined_receipts(Store(str(tmp_path / "out")), make_plan(load_config(path)).chunks) == found


def test_one_reason_only_and_after_it_was_cut_off(make_config: MakeConfig, tmp_path: Path) -> None:
    write_input(tmp_path / "in")
    with (tmp_path / "in/whole.jsonl").open("ab") as file:
        file.write(b'["a list"]\n')
    path, out = make_config(autobleu=None), tmp_path / "out"
    run(path)
    with pytest.raises(ConfigError, match="reasons are: invalid JSON, not a JSON object"):
        retried(path, "unreadable")
    assert make_plan(load_config(path)).nothing_to_do  # nothing was deleted for that
    assert "1 chunk with 1 record" in retried(path, "not a JSON object")

    mend(tmp_path / "in/mended.jsonl")
    mended = next(one for one in Corpus(str(out)).chunks if one.chunk.path == "mended.jsonl")
    for part in mended.parts[1:]:  # as far as a retry may have come that was killed
        next((out / "receipts/segment").rglob(f"{part.ref.part}.*")).unlink()
    assert "2 chunks with 2 records" in retried(path, "invalid JSON")
    assert "mended" in Corpus(str(out)).table("doc_id")["doc_id"].to_pylist()
    assert check(Corpus(str(out)), lambda done: None) == []


def test_the_command(make_config: MakeConfig, tmp_path: Path) -> None:
    write_input(tmp_path / "in")
    path = make_config(autobleu=None, encode=None)
    early = pipeline("retry", path, "--quarantined")
    assert early.returncode == 1 and "is not a corpus" in early.stderr, early
    run(path)
    mend(tmp_path / "in/mended.jsonl")
    (tmp_path / "in/whole.jsonl").rename(tmp_path / "whole")
    lacking = pipeline("retry", path, "--quarantined")
    assert lacking.returncode == 2 and "first run pipeline run with --accept-removal, then retry" in lacking.stderr
    (tmp_path / "whole").rename(tmp_path / "in/whole.jsonl")
    vague = pipeline("retry", path)
    assert vague.returncode == 2 and "say what to retry: --quarantined" in vague.stderr
    os.utime(tmp_path / "in/mended.jsonl")  # so that it counts as changed
    done = pipeline("retry", path, "--quarantined")
    assert done.returncode == 0 and "1 chunk with 1 record" in done.stdout, done
    assert re.search("invalid JSON +2 +1 ", done.stdout), done.stdout


def test_after_a_purge_it_counts_what_was_set_aside_before(make_config: MakeConfig, tmp_path: Path) -> None:
    write_input(tmp_path / "in")
    path = make_config(autobleu=None, encode=None)
    run(path)
    (tmp_path / "ids.txt").write_text("long 0\n")  # in the files of both mistakes
    assert pipeline("purge", path, "--ids", tmp_path / "ids.txt").returncode == 0
    shown = retried(path)
    assert "2 chunks with 2 records in quarantine to segment again" in shown
    assert [" ".join(one.split()) for one in shown.splitlines()[-2:]] == ["invalid JSON 2 2", "all 2 2"]
