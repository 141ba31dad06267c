"""Bad input through whole runs: good documents come out as if the bad ones were not there; the bad ones are counted,
each with its reason and its place.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from launchers.launch import launch
from pipeline.cli import main
from pipeline.config.load import load_config
from pipeline.corpus.accounting import Accounting, compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import RunRecord
from pipeline.inputs.packing import TEXT
from pipeline.planning.plan import make_plan
from pipeline.storage.store import Store
from tests.conftest import data_digests
from tests.end_to_end.bad_corpus import (
    BAD_FILES,
    BAD_LINES,
    FILES_THAT_CANNOT_BE_OPENED,
    ROW,
    SCRIPTS,
    UNREADABLE,
    lines,
    parquet,
    record,
    some,
    write_bad,
    write_good,
)
from tests.support.corpora import begin_without_packing
from tests.support.rights import without_rights_of_root

AUTOBLEU = {"length_extra": 1, "length_factor": 1.0, "sample": 0.1}


def write_config(root: Path, folder: str, **sections: Any) -> Path:
    """`<folder>.yaml` for the documents in `<folder>`, with the model that ships."""
    keep = ["number"] if folder in ("good", "bad") else []
    config: dict[str, Any] = {
        "name": folder,
        "output": f"out/{folder}",
        "input": [{"path": folder, "name": "in", "id": "id", "lang": {"column": "lang"}, "keep": keep}],
        "part_sentences": 100,
        "encode": {"model": "sonar-tiny"},
        "launcher": "inline",
    }
    if folder in ("good", "bad"):  # chunks of the same files, whatever other files there are
        begin_without_packing(root / config["output"], packed=TEXT)
    path = root / f"{folder}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (config | sections).items() if value}), "utf-8")
    return path


def type_in(command: str, path: Path | str, *options: str) -> tuple[int, str]:
    """A command in this process, with all that it imported: exit code and output."""
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        patch.setattr(sys, "argv", ["pipeline", command, str(path), *options])
        with pytest.raises(SystemExit) as ended:
            main()
    assert "Traceback" not in shown.getvalue() and "\x1b" not in shown.getvalue()
    return int(ended.value.code or 0), shown.getvalue()


def run(root: Path, folder: str, **sections: Any) -> tuple[int, str]:
    return type_in("run", write_config(root, folder, **sections))


def quarantine(output: Path) -> list[dict[str, Any]]:
    """Everything that stands in quarantine."""
    corpus = Corpus(str(output))
    files = [one.receipt.quarantine for one in corpus.chunks if one.receipt and one.receipt.quarantine]
    return [row for file in files for row in pq.read_table(output / file.path).to_pylist()]


def books_of(output: Path) -> Accounting:
    corpus = Corpus(str(output))
    return compute_accounting(corpus.store, corpus.chunks)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of a corpus with nothing bad in it."""
    root = tmp_path_factory.mktemp("good")
    write_good(root / "good")
    code, shown = run(root, "good", autobleu=AUTOBLEU)
    assert code == 0 and "0 dropped + 0 quarantined" in shown, shown
    return data_digests(root / "out/good")


@pytest.mark.parametrize("launcher", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_the_good_come_out_whole_and_the_bad_are_accounted_for(
    good: dict[str, str], tmp_path: Path, launcher: str
) -> None:
    write_bad(tmp_path / "bad")
    code, shown = run(tmp_path, "bad", autobleu=AUTOBLEU, launcher=launcher)
    assert code == 0, shown
    output = tmp_path / "out/bad"
    data = {name: one for name, one in data_digests(output).items() if not name.startswith("quarantine/")}
    assert data == good and len(data) >= 5 * 14

    rows = quarantine(output)
    expected: Counter[str] = Counter(reason for _, reason, _ in BAD_LINES)
    for file in BAD_FILES.values():
        expected.update(file.quarantined)
    expected.update(["text is null", "duplicate id", "unknown language"])  # rows.parquet
    expected["unreadable"] += FILES_THAT_CANNOT_BE_OPENED
    assert Counter(row["reason"] for row in rows) == expected
    for name, file in BAD_FILES.items():
        errors = [row["error"] for row in rows if row["record"].startswith(name)]
        assert len(errors) == sum(file.quarantined.values()) and all(file.says in error for error in errors), errors

    data_lines = (tmp_path / "bad/lines.jsonl").read_bytes().split(b"\n")
    listed = [row for row in rows if row["record"].startswith("lines.jsonl ")]
    for row, (line, reason, says) in zip(listed, BAD_LINES, strict=True):
        assert row["reason"] == reason and re.search(says, row["error"]), row
        number, byte = map(int, re.findall(r"\d+", row["record"]))
        assert byte == sum(len(before) + 1 for before in data_lines[: number - 1])
        assert data_lines[number - 1] == line + b"\r"
        if row["stage"] == "input":
            assert row["payload_bytes"] == len(line) + 1 and (line + b"\r").startswith(row["payload"])

    accounting = books_of(output)
    assert accounting.complete and not accounting.problems
    assert accounting.dropped == {"no text": 2, "blank line": 2}
    undecoded = [file.data for file in BAD_FILES.values() if file.quarantined == UNREADABLE and not file.good]
    undecoded += [*BAD_FILES["latin-1.jsonl"].data.splitlines(), BAD_LINES[0][0] + b"\r", some("name")]
    assert accounting.bytes_unreadable == sum(map(len, undecoded))
    assert accounting.documents_in == accounting.kept + sum(accounting.dropped.values()) + sum(expected.values())
    assert re.search(rf"= {accounting.kept} kept \+ 4 .*dropped \+ {sum(expected.values())} ", shown), shown


def test_texts_of_every_script_come_out_whole(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/a.jsonl").write_bytes(lines(*(record(key, text * 30) for key, text in SCRIPTS.items())))
    assert run(tmp_path, "scripts", segment={"max_chars": 60})[0] == 0
    corpus = Corpus(str(tmp_path / "out/scripts"))
    texts = dict.fromkeys(SCRIPTS, "")
    for part in corpus.parts:
        documents = corpus.documents(part)["doc_id"].to_pylist()
        table = corpus.table("doc", "text", "status", part=part)
        assert set(table["status"].to_pylist()) == {0}
        for doc, text in zip(table["doc"].to_pylist(), table["text"].to_pylist(), strict=True):
            assert 0 < len(text) <= 60
            assert not unicodedata.category(text[0]).startswith("M") and "\u200d" not in text[0] + text[-1]
            texts[documents[doc]] += text.replace(" ", "")
    assert texts == {key: (text * 30).replace(" ", "") for key, text in SCRIPTS.items()}


def test_text_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = {
        "good.md": b"# Title\n\nText.",
        "empty.txt": b"",
        "blank.txt": b"\n \n",
        "latin-1.txt": "Fraîche.".encode("latin-1"),
        "utf-16.txt": "Text.".encode("utf-16"),
        "truncated.txt.gz": gzip.compress(os.urandom(100))[:-20],
        "zero-bytes.txt.gz": b"",
    }
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    code, shown = run(tmp_path, "in", input=[{"path": "in", "lang": "eng_Latn"}], encode=None)
    assert code == 0, shown
    accounting = books_of(tmp_path / "out/in")
    assert (accounting.documents_in, accounting.kept, accounting.dropped) == (7, 1, {"no text": 2})
    assert accounting.quarantined == {"not UTF-8": 2, "unreadable": 2}
    assert {row["record"]: row["payload"] for row in quarantine(tmp_path / "out/in")}["latin-1.txt"] == b"Fra\xeeche."


def test_a_folder_of_which_nothing_is_kept_says_so(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(b'{"text": 1}\n{"text": 2}\n{"text": " "}\n')
    code, shown = run(tmp_path, "in", input=[{"path": "in", "lang": "eng_Latn"}])
    assert code == 1
    assert (
        "3 in = 0 kept" in shown
        and "No document was kept" in shown
        and "are `text:` and `id:` the right columns?" in shown
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"path": "in", "lang": "eng_Lat"}, "input 1: lang is 'eng_Lat', which sonar-tiny does not know; nearest"),
        ({"path": "in", "lang": "swh_Latn"}, "languages: "),
        ({"path": "in", "keep": ["text", "title"]}, "keep names text, which the corpus itself uses; leave them out"),
        ({"path": "in", "keep": ["doc_id"]}, "keep names doc_id, which the corpus itself uses"),
        ({"path": "in/pipe.jsonl"}, "pipe.jsonl: it is not a regular file"),
        ({"path": "in/self.jsonl"}, "symbolic links"),
        ({"path": "in/no\x1b\nthing"}, r"nothing matches"),
        ({"path": "in", "text": "body", "format": "parquet"}, "text is 'body', but the first record of a.parquet of"),
    ],
)
def test_what_a_person_has_to_put_right_is_said_before_anything_runs(
    tmp_path: Path, source: dict[str, Any], words: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.parquet").write_bytes(parquet(ROW))
    if "parquet" not in source.values():
        (tmp_path / "in/a.jsonl").write_bytes(some("a"))
    (tmp_path / "in/self.jsonl").symlink_to("self.jsonl")
    os.mkfifo(tmp_path / "in/pipe.jsonl")
    code, shown = run(tmp_path, "in", input=[{"lang": "eng_Latn", **source}])
    assert code == 2 and words in shown, shown
    assert not (tmp_path / "out").exists()


def test_two_patterns_that_match_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(some("a"))
    (tmp_path / "in/b.jsonl").write_bytes(some("b"))
    source = {"lang": "eng_Latn", "id": "id"}
    code, shown = run(tmp_path, "in", input=[{"path": "in/*.jsonl", **source}, {"path": "in/b.jsonl", **source}])
    assert code == 2 and "both match" in shown and "b.jsonl" in shown, shown
    (place,) = re.findall(r"^(\S+\.yaml):(\d+): inputs ", shown, re.MULTILINE)
    assert "in/b.jsonl" in Path(place[0]).read_text().splitlines()[int(place[1]) - 1], "the line of the second one"


def test_files_that_change_after_planning_fail_alone_and_are_read_by_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("good", "gone", "shorter", "longer"):
        (folder / f"{name}.jsonl").write_bytes(some(name, 5))
    begin_without_packing(tmp_path / "out/in")
    path = write_config(tmp_path, "in", encode=None)
    plan = make_plan(load_config(path))
    record_of_run = RunRecord(Store(plan.config.output), plan.config, plan.view)
    (folder / "gone.jsonl").unlink()
    (folder / "shorter.jsonl").write_bytes(some("shorter", 4))
    (folder / "longer.jsonl").write_bytes(some("longer", 6))
    events = list(launch(plan, record_of_run.folder))
    failed = {event.where: event.error for event in events if event.kind == "failed"}
    assert failed.keys() == {"gone.jsonl", "shorter.jsonl", "longer.jsonl"}
    assert all("since the run was planned; start the run again" in error for error in failed.values())
    assert [event.where for event in events if event.kind == "chunk"] == ["good.jsonl"]
    code, shown = type_in("run", path)
    assert code == 0 and "15 in = 15 kept" in shown, shown


@pytest.mark.skipif(sys.platform != "linux", reason="permissions of root are dropped the Linux way")
def test_what_may_not_be_read_is_quarantined_until_it_may(tmp_path: Path) -> None:
    for name in ("good", "file", "folder/inside"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / f"{name}.jsonl").write_bytes(some(name))
    (tmp_path / "in/file.jsonl").chmod(0)
    (tmp_path / "in/folder").chmod(0)
    path = write_config(tmp_path, "in", encode=None)
    with without_rights_of_root():
        code, shown = type_in("run", path)
    assert code == 0, shown
    if "0 quarantined" in shown:
        pytest.skip("this user may read everything and cannot give up that right")
    assert "5 in = 3 kept + 0 dropped + 2 " in shown and "unreadable 2" in shown, shown
    assert {row["record"]: row["error"] for row in quarantine(tmp_path / "out/in")} == {
        "file.jsonl": "Permission denied; let this user read it, or leave it out of `path:`",
        "folder": "the folder cannot be listed: Permission denied; let this user read it, or leave it out of `path:`",
    }
    (tmp_path / "in").chmod(0)
    with without_rights_of_root():
        code, shown = type_in("plan", path)
    assert code == 2 and "the folder cannot be listed: Permission denied" in shown, shown
    for name in ("", "file.jsonl", "folder"):
        (tmp_path / "in" / name).chmod(0o755)
    code, shown = type_in("run", path)
    assert code == 0 and "9 in = 9 kept + 0 dropped + 0 quarantined" in shown, shown
