"""Bad input through whole runs: good documents come out as if the bad ones were not there; the bad ones are counted,
each with its reason and its place.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard

from launchers import launch
from pipeline.books import Books, keep_books
from pipeline.cli import main
from pipeline.config import load_config
from pipeline.corpus import Corpus
from pipeline.plan import make_plan
from pipeline.runs import RunRecord
from pipeline.store import Store
from tests.conftest import TINY_CARD, data_digests

Run = Callable[..., tuple[int, str]]

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def record(doc_id: Any, text: Any = "The house is red. The water runs.", **more: Any) -> bytes:
    return json.dumps({"id": doc_id, "lang": "eng_Latn", "text": text, **more}, ensure_ascii=False).encode()


def lines(*records: bytes) -> bytes:
    return b"".join(one + b"\n" for one in records)


def some(name: str, count: int = 3) -> bytes:
    return lines(*(record(f"{name}-{n}", f"Document {n} of {name}. It is good.") for n in range(count)))


def parquet(*rows: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def zipped(data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.jsonl", data)
    return sink.getvalue()


@dataclass(frozen=True)
class BadFile:
    """`good`: the same file without what is bad in it. `quarantined`: how many, by reason. `says`: in every error."""

    data: bytes
    quarantined: dict[str, int]
    says: str = ""
    good: bytes = b""


UNREADABLE = {"unreadable": 1}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
ROW = {"id": "row", "lang": "eng_Latn", "text": "A good row. Two sentences."}

BAD_FILES = {
    "empty.jsonl": BadFile(b"", {}),
    "empty.jsonl.gz": BadFile(gzip.compress(b""), {}),
    "zero-bytes.jsonl.gz": BadFile(b"", UNREADABLE, "is empty, without even a header"),
    "zero-bytes.parquet": BadFile(b"", UNREADABLE, "0 bytes"),
    "plain-text.parquet": BadFile(b"Just text.\n" * 50, UNREADABLE, "begins like plain text"),
    "zip.jsonl.gz": BadFile(zipped(some("zip")), UNREADABLE, "begins like a zip archive"),
    "image.jsonl": BadFile(PNG, UNREADABLE, "begins like a PNG image"),
    "parquet.jsonl": BadFile(parquet(ROW), UNREADABLE, "begins like a Parquet file"),
    "not-compressed.jsonl.zst": BadFile(some("plain"), UNREADABLE, "begins like plain JSON"),
    "utf-16.jsonl": BadFile(some("16").decode().encode("utf-16"), UNREADABLE, "begins like UTF-16 text"),
    "pretty.json": BadFile(json.dumps([ROW], indent=2).encode(), UNREADABLE, "one JSON value over many lines"),
    "latin-1.jsonl": BadFile(
        lines(record("l1", "Fraîche."), record("l2", "Été.")).decode().encode("latin-1"), {"not UTF-8": 2}, "can't decode"
    ),
    "no-text-column.parquet": BadFile(
        parquet({"id": "a", "lang": "eng_Latn", "body": "x"}, {"id": "b", "lang": "eng_Latn", "body": "y"}),
        {"text column missing": 2},
        "no 'text' among",
    ),
    **{
        f"truncated.jsonl{suffix}": BadFile(
            compress(some(suffix)) + compress(record("last", os.urandom(2000).hex()))[:-300],
            UNREADABLE,
            "ends in the middle",
            good=compress(some(suffix)),
        )
        for suffix, compress in COMPRESS.items()
    },
}  # fmt: skip

FAMILY = "👨‍👩‍👧‍👦"
SCRIPTS = {
    "word": "word",
    "emoji": "😀",
    "families": f"{FAMILY} 👩🏽‍🚀🏳️‍🌈",
    "chinese": "这是第一句。这是第二句，没有空格。",
    "thai": "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "arabic": "مرحبا بالعالم. كيف حالك؟",
}
GOOD_LINES = [
    *(record(key, text) for key, text in SCRIPTS.items()),
    record("control characters", "One\0 two\x07.\r\nThree\x1b[31m four."),
    record("numbers", "Numbers.", number=10**400, nan=float("nan")),
    record(10**20, "An id that is a huge integer."),
    record("twice", "The first of two documents with one id."),
    record("across chunks", "An id that a document of another chunk has too."),
]
DEEP = 100_000
BAD_LINES: list[tuple[bytes, str, str]] = [  # line, reason, words of the error
    (b'{"id": "x", "lang": "eng_Latn", "text": "\xff"}', "not UTF-8", "0xff"),
    (record("null", None), "text is null", "text is null"),
    (record("number", 3), "text is not a string", "int 3"),
    (record("list", ["a"]), "text is not a string", "list ['a']"),
    (b'{"id": "none", "lang": "eng_Latn"}', "text column missing", "no 'text' among 'id', 'lang'"),
    (record("twice", "The second of two documents with one id."), "duplicate id", "the id 'twice'"),
    (record(""), "id is empty", "id is empty"),
    (record(None), "id is null", "id is null"),
    (record("lang-1", lang="eng_Lat"), "unknown language", "'eng_Lat'; nearest of the model's 3 languages: eng_Latn"),
    (record("lang-2", lang="de"), "unknown language", "'de'; nearest of the model's 3 languages: deu_Latn"),
    (record("lang-3", lang=None), "lang is not a string", "NoneType"),
    (b'{"id": "half", "lang": "eng_Latn", "text": "\\ud800"}', "not encodable", "surrogates not allowed"),
    (b'{"id": "half key", "lang": "eng_Latn", "\\ud800": "a"}', "text column missing", r"\ud800"),
    (b'{"text": ' + b"[" * DEEP + b"]" * DEEP + b"}", "invalid JSON", "recursion"),
    (b'{"id": "deep", "text": ' + b"[" * 900 + b"]" * 900 + b"}", "text is not a string", "list [["),
    (b'{"id": "key", "lang": "eng_Latn", "text": "a", "text": "b"}', "duplicate key", "'text' stands twice"),
    (b'{"id": "nan", "lang": "eng_Latn", "text": NaN}', "text is not a string", "float nan"),
    (b'{"id": ' + b"9" * 5000 + b', "text": "a"}', "invalid JSON", "4300 digits"),
    (b'{"id": "cut off", "lang": "eng_La', "invalid JSON", "Unterminated string"),
    (b'["a list"]', "not a JSON object", "write one object a line"),
]
DROPPED_LINES = [record("empty", ""), record("blank", " \t\u2028\u00a0\0"), b"", b"  "]

GOOD_ROWS = [ROW, ROW | {"id": "row-2", "text": "Another good row."}]
BAD_ROWS = [ROW | {"id": "null", "text": None}, ROW, ROW | {"id": "lang", "lang": "xyz"}]


def mixed(good: list[Any], bad: list[Any]) -> list[Any]:
    """Good ones first and last, the rest by turns."""
    rest = list(good)
    out = []
    for one in bad:
        out += [rest.pop(0)] if len(rest) > 1 else []
        out.append(one)
    return out + rest


def write_good(folder: Path) -> None:
    """A corpus with nothing bad in it: some of the documents in every file that has bad ones in `write_bad`."""
    folder.mkdir()
    for name, file in BAD_FILES.items():
        if file.good:
            (folder / name).write_bytes(file.good)
    (folder / "lines.jsonl").write_bytes(lines(*GOOD_LINES))
    (folder / "rows.parquet").write_bytes(parquet(*GOOD_ROWS))
    for number, name in enumerate(["a b", "a#b", "a%20b", "a:b", "a?b", "a\nb"]):
        (folder / f"{name}.jsonl").write_bytes(some(f"name-{number}", 1))
    (folder / "more.jsonl").write_bytes(lines(record("across chunks", "The same id as a document of another chunk.")))


def write_bad(folder: Path) -> None:
    """The same, and everything bad."""
    write_good(folder)
    for name, file in BAD_FILES.items():
        (folder / name).write_bytes(file.data)
    bad = [line for line, _, _ in BAD_LINES] + DROPPED_LINES
    (folder / "lines.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(mixed(GOOD_LINES, bad)))
    (folder / "rows.parquet").write_bytes(parquet(*mixed(GOOD_ROWS, BAD_ROWS)))
    (folder / "dangling.jsonl").symlink_to("nowhere")
    (folder / "self.jsonl").symlink_to("self.jsonl")
    (folder / "around").symlink_to(".")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "not-utf-8-\udcff.jsonl").write_bytes(some("name"))


FILES_THAT_CANNOT_BE_OPENED = 5


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(folder, command, *options, **sections)` writes `<folder>.yaml`, types the command: (exit code, output)."""

    def command(folder: str, *options: str, do: str = "run", **sections: Any) -> tuple[int, str]:
        config: dict[str, Any] = {
            "name": folder,
            "output": f"out/{folder}",
            "input": [{"path": folder, "name": "in", "id": "id", "lang": {"column": "lang"}, "keep": ["number"]}],
            "part_sentences": 100,
            "encode": {"model": str(TINY_CARD)},
            "launcher": "inline",
        }
        path = tmp_path / f"{folder}.yaml"
        path.write_text(yaml.safe_dump(config | sections), "utf-8")
        monkeypatch.setattr(sys, "argv", ["pipeline", do, str(path), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return int(ended.value.code or 0), captured.out + captured.err

    return command


def quarantine(output: Path) -> list[dict[str, Any]]:
    """Everything that stands in quarantine."""
    corpus = Corpus(str(output))
    files = [one.receipt.quarantine for one in corpus.chunks if one.receipt and one.receipt.quarantine]
    return [row for file in files for row in pq.read_table(output / file.path).to_pylist()]


def books_of(output: Path) -> Books:
    corpus = Corpus(str(output))
    return keep_books(corpus.store, corpus.chunks)


def data_of(output: Path) -> dict[str, str]:
    return {name: digest for name, digest in data_digests(output).items() if not name.startswith("quarantine/")}


def test_the_good_come_out_whole_and_the_bad_are_accounted_for(run: Run, tmp_path: Path) -> None:
    write_good(tmp_path / "good")
    code, shown = run("good", autobleu={"length_extra": 1, "length_factor": 1.0, "sample": 0.1})
    assert code == 0 and "0 quarantined" in shown, shown
    write_bad(tmp_path / "bad")
    code, shown = run("bad", autobleu={"length_extra": 1, "length_factor": 1.0, "sample": 0.1})
    assert code == 0, shown
    good = data_of(tmp_path / "out/good")
    assert data_of(tmp_path / "out/bad") == good and len(good) >= 5 * 13

    rows = quarantine(tmp_path / "out/bad")
    expected: Counter[str] = Counter(reason for _, reason, _ in BAD_LINES)
    for file in BAD_FILES.values():
        expected.update(file.quarantined)
    expected.update(["text is null", "duplicate id", "unknown language"])  # BAD_ROWS
    expected["unreadable"] += FILES_THAT_CANNOT_BE_OPENED
    assert Counter(row["reason"] for row in rows) == expected
    for name, file in BAD_FILES.items():
        errors = [row["error"] for row in rows if row["record"].startswith(name)]
        assert len(errors) == sum(file.quarantined.values()) and all(file.says in error for error in errors), errors

    data = (tmp_path / "bad/lines.jsonl").read_bytes()
    listed = [row for row in rows if row["record"].startswith("lines.jsonl:")]
    for row, (line, reason, says) in zip(listed, BAD_LINES, strict=True):
        assert row["reason"] == reason and says in row["error"], row
        if row["stage"] == "input":  # at its place, in full length
            assert data[int(row["record"].rpartition(":")[2]) :].startswith(line + b"\r\n")
            assert row["payload_bytes"] == len(line) + 1 and (line + b"\r").startswith(row["payload"])

    books = books_of(tmp_path / "out/bad")
    assert books.complete and not books.problems
    assert books.dropped == {"no text": 2, "blank line": 2}
    undecoded = sum(len(BAD_FILES[name].data) for name in BAD_FILES if "latin" in name or not BAD_FILES[name].good)
    assert 0.5 * undecoded < books.bytes_unreadable < undecoded
    assert books.documents_in == books.kept + sum(books.dropped.values()) + sum(expected.values())
    assert f"{sum(expected.values())} (duplicate id 2, duplicate key 1" in shown
    assert "quarantine/*.parquet lists each record" in shown


def test_texts_of_every_script_come_out_whole(run: Run, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/a.jsonl").write_bytes(lines(*(record(key, text * 30) for key, text in SCRIPTS.items())))
    assert run("scripts", segment={"max_chars": 60})[0] == 0
    corpus = Corpus(str(tmp_path / "out/scripts"))
    texts = dict.fromkeys(SCRIPTS, "")
    for part in corpus.parts:
        documents = corpus.documents(part)["doc_id"].to_pylist()
        table = corpus.table("doc", "text", part=part)
        for doc, text in zip(table["doc"].to_pylist(), table["text"].to_pylist(), strict=True):
            assert 0 < len(text) <= 60
            assert not unicodedata.category(text[0]).startswith("M") and "\u200d" not in text[0] + text[-1]
            texts[documents[doc]] += text.replace(" ", "")
    assert texts == {key: (text * 30).replace(" ", "") for key, text in SCRIPTS.items()}


def test_ray_sees_the_same(run: Run, tmp_path: Path) -> None:
    write_bad(tmp_path / "bad")
    assert run("bad")[0] == 0
    expected = data_digests(tmp_path / "out/bad")
    code, shown = run("bad", output="out/ray", launcher="local")
    assert code == 0, shown
    assert data_digests(tmp_path / "out/ray") == expected
    assert books_of(tmp_path / "out/ray").quarantined == books_of(tmp_path / "out/bad").quarantined


def test_a_folder_of_which_nothing_is_kept_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(some("a"))
    code, shown = run("in", input=[{"path": "in", "text": "body", "lang": "eng_Latn"}])
    assert code == 0
    assert "3 in = 0 kept" in shown and "is `text:` the right column?" in shown


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"path": "in", "lang": "eng_Lat"}, "input.0.lang is 'eng_Lat', which sonar-space-tiny does not know; nearest"),
        ({"path": "in", "lang": "swh_Latn"}, "languages: "),
        ({"path": "in", "keep": ["text", "title"]}, "keep names text, which the corpus itself uses; leave them out"),
        ({"path": "in", "keep": ["doc_id"]}, "taken are: autobleu, chars, decoded, doc, doc_id"),
        ({"path": "in/pipe.jsonl"}, "pipe.jsonl: it is no regular file"),
        ({"path": "in/self.jsonl"}, "symbolic links"),
        ({"path": "in/nothing"}, "nothing matches"),
        ({"path": "in", "text": "body", "format": "parquet"}, "no Parquet file has a column 'body'"),
    ],
)
def test_what_a_person_has_to_put_right_is_said_before_anything_runs(
    run: Run, tmp_path: Path, source: dict[str, Any], words: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.parquet").write_bytes(parquet(ROW))
    if "parquet" not in source.values():
        (tmp_path / "in/a.jsonl").write_bytes(some("a"))
    (tmp_path / "in/self.jsonl").symlink_to("self.jsonl")
    os.mkfifo(tmp_path / "in/pipe.jsonl")
    code, shown = run("in", input=[{"lang": "eng_Latn", **source}])
    assert code == 2 and words in shown, shown
    assert not (tmp_path / "out").exists()


def test_two_patterns_that_match_the_same_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(some("a"))
    (tmp_path / "in/b.jsonl").write_bytes(some("b"))
    source = {"lang": "eng_Latn", "id": "id"}
    code, shown = run("in", input=[{"path": "in/*.jsonl", **source}, {"path": "in/b.jsonl", **source}])
    assert code == 2 and "both match" in shown and "b.jsonl" in shown, shown


def test_files_that_change_after_planning_fail_alone_and_are_read_by_the_next_run(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("good", "gone", "shorter", "longer"):
        (folder / f"{name}.jsonl").write_bytes(some(name, 5))
    assert run("in", do="plan")[0] == 0
    plan = make_plan(load_config(tmp_path / "in.yaml"))
    record_of_run = RunRecord(Store(plan.config.output), plan.config, plan.view)
    (folder / "gone.jsonl").unlink()
    (folder / "shorter.jsonl").write_bytes(some("shorter", 4))
    (folder / "longer.jsonl").write_bytes(some("longer", 6))
    events = list(launch(plan, record_of_run.folder))
    failed = {event.where: event.error for event in events if event.kind == "failed"}
    assert failed.keys() == {"gone.jsonl", "shorter.jsonl", "longer.jsonl"}
    assert all("since the run was planned; start the run again" in error for error in failed.values())
    assert [event.where for event in events if event.kind == "chunk"] == ["good.jsonl"]
    code, shown = run("in")
    assert code == 0 and "15 in = 15 kept" in shown, shown


def allowed(*, everything: bool) -> Callable[[], None]:
    """For a child: root without the right to pass over permissions (other users have no such right)."""

    def drop() -> None:
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in () if everything else (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP

    return drop


def pipeline(*arguments: object, everything: bool = True) -> tuple[int, str, int, float]:
    """A process of its own: exit code, output, memory at most in MB, CPU seconds."""
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "pipeline"), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=allowed(everything=everything),
    )
    assert process.stdout
    shown = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, shown, used.ru_maxrss // 1024, used.ru_utime + used.ru_stime


@pytest.mark.skipif(sys.platform != "linux", reason="permissions of root are dropped the Linux way")
def test_what_may_not_be_read_is_quarantined_until_it_may(run: Run, tmp_path: Path) -> None:
    for name in ("good", "file", "folder/inside"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / f"{name}.jsonl").write_bytes(some(name))
    (tmp_path / "in/file.jsonl").chmod(0)
    (tmp_path / "in/folder").chmod(0)
    assert run("in", do="plan", encode=None)[0] == 0  # writes in.yaml
    code, shown, _, _ = pipeline("run", tmp_path / "in.yaml", everything=False)
    assert code == 0, shown
    if "0 quarantined" in shown:
        pytest.skip("this user may read everything and cannot give up that right")
    assert "5 in = 3 kept + 0 dropped + 2 (unreadable 2) quarantined" in shown
    assert {(row["record"], row["error"]) for row in quarantine(tmp_path / "out/in")} == {
        ("file.jsonl", "Permission denied"),
        ("folder", "the folder cannot be listed: Permission denied"),
    }
    (tmp_path / "in/file.jsonl").chmod(0o644)
    (tmp_path / "in/folder").chmod(0o755)
    code, shown, _, _ = pipeline("run", tmp_path / "in.yaml", everything=False)
    assert code == 0 and "9 in = 9 kept + 0 dropped + 0 quarantined" in shown, shown


def test_a_document_of_50_megabytes_in_one_line(tmp_path: Path) -> None:
    """Cut into numbered sub-documents; seen: 0.9 GB at most, half of it spaCy and torch, and 0.4 s of CPU a megabyte
    for text without any boundary (English with short sentences: 3 s).
    """
    size, limit = 50 << 20, 5000
    (tmp_path / "in").mkdir()
    text = "x" * size
    (tmp_path / "in/a.jsonl").write_bytes(lines(record("first"), record("large", text), record("last")))
    config = {
        "name": "large",
        "output": "out",
        "input": [{"path": "in", "id": "id", "lang": {"column": "lang"}}],
        "segment": {"model": str(TINY_CARD), "max_chars": limit, "max_tokens": None, "max_document_sentences": 4000},
        "part_sentences": 5000,
        "launcher": "inline",
    }
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(config))
    code, shown, megabytes, seconds = pipeline("run", tmp_path / "large.yaml")
    assert code == 0 and "3 in = 3 kept" in shown, shown
    assert megabytes < 1500 and seconds < 120, (megabytes, seconds)
    corpus = Corpus(str(tmp_path / "out"))
    rows = [row for part in corpus.parts for row in corpus.documents(part).to_pylist()]
    assert [(row["doc_id"], row["subdocument"]) for row in rows] == [
        ("first", 0), ("large", 0), ("large", 1), ("large", 2), ("last", 0)
    ]  # fmt: skip
    assert len(corpus.parts) == 2
    chars = corpus.table("chars")["chars"].to_numpy()
    assert chars.max() <= limit and chars.sum() == size + 2 * len("The house is red.The water runs.")
