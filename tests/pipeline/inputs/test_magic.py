"""Files whose first bytes show that they are not what their names say."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.inputs import Rejected, plan_chunks
from tests.support.inputs import COMPRESS, entry, only_rejected, read, read_all, texts

UTF_16 = "Über".encode("utf-16")


def test_what_a_file_begins_with_tells_that_it_is_no_jsonl(tmp_path: Path) -> None:
    wrong = {
        "a PNG image": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20,
        "UTF-16 text": '{"text": "a"}\n'.encode("utf-16") * 100,
        "a gzip file": gzip.compress(os.urandom(3000)),
        "a tar archive": b"a.txt".ljust(257, b"\0") + b"ustar\0\n\n\n",
        "one JSON value over many lines": json.dumps([{"text": "a"}] * 30, indent=1).encode(),
    }
    for name, data in wrong.items():
        for suffix, compress in COMPRESS.items():
            path = tmp_path / f"a.jsonl{suffix}"
            path.write_bytes(compress(data))
            rejected = only_rejected(read_all(entry(path)))
            assert (rejected.reason, rejected.bytes_unreadable) == ("unreadable", path.stat().st_size)
            assert name in rejected.error
        (tmp_path / "a.jsonl").write_bytes(data)
        chunks = plan_chunks(entry(tmp_path / "a.jsonl"), chunk_bytes=200)
        records = read(chunks, entry(tmp_path / "a.jsonl"))
        assert len(records) == len(chunks) > 1
        assert sum(record.bytes_unreadable for record in records if isinstance(record, Rejected)) == len(data)


def test_a_list_with_an_object_on_each_line_gets_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('[{"text": "a"},\n{"text": "b"}]\n')
    assert "one JSON value over many lines (jq -c '.[]' FILE makes" in only_rejected(read_all(entry(path))).error
    long = json.dumps({"text": "a" * 1000})
    for content, hints in (
        (f"[{long},\n{long},\n{long}]\n", [True, True, False]),  # longer than what is looked at first
        (f"[{long}\n,{long}]\n", [True, False]),
        (f"{long[:-1]},\n[INFO],\n{long}\n", [False, False]),
    ):
        path.write_text(content)
        rejected = [one for one in read_all(entry(path)) if isinstance(one, Rejected)]
        assert ["; if the file is one list, jq -c '.[]' FILE makes" in one.error for one in rejected] == hints


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl.gz", b'{"text": "a"}\n', "begins like plain JSON"),
        ("a.txt.zst", b"Text.", "begins like plain text"),
        ("a.jsonl.xz", gzip.compress(b"", mtime=0), "begins like a gzip file"),
        ("a.txt", UTF_16, "; it begins like UTF-16 text: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8 FILE > NEW)"),
        ("a.txt", "Über".encode("utf-32"), "text: convert it to UTF-8 (iconv -f UTF-32 -t UTF-8 FILE > NEW)"),
        ("a.jsonl", UTF_16, "UTF-16 text, not like lines of JSON: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8 FILE"),
        ("a.txt", "The cat’s mat.\n".encode("utf-16-le"), "to UTF-8 (iconv -f UTF-16LE -t UTF-8 FILE > NEW)"),
        ("a.txt", "Кот сидит.\n".encode("utf-16-le"), "to UTF-8 (iconv -f UTF-16LE -t UTF-8 FILE > NEW)"),
        ("a.txt", "แมวนั่ง บน เสื่อ".encode("utf-16-be"), "to UTF-8 (iconv -f UTF-16BE -t UTF-8 FILE > NEW)"),
        ("a.txt", "बिल्ली चटाई पर बैठी है।".encode("utf-16-le"), "to UTF-8 (iconv -f UTF-16LE -t UTF-8 FILE > NEW)"),
        ("a.md", "Über uns.\n".encode("utf-16-be"), "UTF-16BE text: convert it to UTF-8 (iconv -f UTF-16BE -t"),
        ("a.jsonl", '{"text": "a"}'.encode("utf-16-le"), "UTF-16LE text, not like lines of JSON: convert it to UTF"),
        ("a.txt", bytes(range(256)), "(invalid start byte), near"),
        ("a.txt", bytes(range(256)), "it has NUL bytes, as binary data has: leave it out, or write the text that it"),
        ("a.parquet", b"id,text\n1,a\n", "begins like plain text"),
        ("a.parquet", b"", "0 bytes"),
        ("a.jsonl.gz", b"", "is empty, without even a header"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_gets_a_hint(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    rejected = only_rejected(read_all(entry(tmp_path)))
    assert words in rejected.error and ("iconv" not in words or "name that fits" not in rejected.error)
    assert rejected.bytes_unreadable == len(data)


@pytest.mark.parametrize(
    ("lang", "encoding", "words"),
    [
        ("rus_Cyrl", "koi8-r", "perhaps WINDOWS-1251 or KOI8-R (a guess from rus_Cyrl: look at the result) to UTF-8 ("),
        ("ell_Grek", "cp1253", "(iconv -f WINDOWS-1253 -t UTF-8 FILE > NEW)"),
        ("jpn_Jpan", "shift-jis", "perhaps SHIFT-JIS or EUC-JP (a guess"),
        ("zho_Hans", "gb18030", "(iconv -f GB18030 -t"),
        ("zho_Hant", "big5", "(iconv -f BIG5 -t"),
        ("kor_Hang", "cp949", "(iconv -f CP949 -t"),
        ("pol_Latn", "cp1250", "(iconv -f WINDOWS-1250 -t"),
        ("tur_Latn", "cp1254", "(iconv -f WINDOWS-1254 -t"),
        ("deu_Latn", "cp1252", "(iconv -f WINDOWS-1252 -t"),
        ("kat_Geor", "latin-1", "UTF-8 (iconv -f ENCODING -t UTF-8 FILE > NEW) from its encoding, which you"),
        ("detect", "cp1251", "UTF-8 (iconv -f ENCODING -t UTF-8 FILE > NEW) from its encoding, which you"),
    ],
)
def test_an_encoding_is_guessed_from_the_stated_language(tmp_path: Path, lang: str, encoding: str, words: str) -> None:
    text = {"rus_Cyrl": "Кот", "detect": "Кот", "ell_Grek": "Γάτα", "jpn_Jpan": "猫がいる", "kor_Hang": "고양이"}
    text |= {"zho_Hans": "猫坐在垫子上", "zho_Hant": "貓坐在墊子上", "pol_Latn": "Żółw", "tur_Latn": "Ağaç"}
    raw = f"{text.get(lang, 'Über')}.\n".encode(encoding)
    (tmp_path / "a.txt").write_bytes(raw)
    assert words in only_rejected(read_all(entry(tmp_path, lang=lang))).error
    (tmp_path / "a.txt").rename(tmp_path / "a.old")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(raw))
    error = only_rejected(read_all(entry(tmp_path / "a.txt.gz", lang=lang))).error
    assert "decompress it, and convert it to UTF-8 from its encoding, " in error and "iconv" not in error


def test_a_file_that_is_mostly_utf8_is_not_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Кот сидит на ковре.\n".encode() + "Ковёр\n".encode("cp1251")[:2])
    error = only_rejected(read_all(entry(tmp_path, lang="rus_Cyrl"))).error
    assert error.endswith("; most of it is UTF-8: correct the 2 places that are not")


def test_records_of_a_file_are_not_converted_by_a_command_for_files(tmp_path: Path) -> None:
    line = '{"text": "Кот"}\n'
    for name, compress in (("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress)):
        (tmp_path / name).write_bytes(compress(line.encode() + line.encode("cp1251")))
        records = read_all(entry(tmp_path / name, lang="rus_Cyrl"))
        error = only_rejected([one for one in records if isinstance(one, Rejected)]).error
        assert error.endswith(
            "; correct this record, or let the program that made the file write it again as UTF-8; it may be "
            "WINDOWS-1251 or KOI8-R (a guess from rus_Cyrl)"
        )
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(line.encode("utf-16") * 9))
    error = only_rejected(read_all(entry(tmp_path / "b.jsonl.gz"))).error
    assert error.endswith("decompress it, and convert it to UTF-8 from UTF-16")
    pq.write_table(pa.table({"text": [line.encode("cp1251")]}), tmp_path / "a.parquet")
    error = only_rejected(read_all(entry(tmp_path / "a.parquet"))).error
    assert error.endswith("; correct this value, or let the program that made the file write it again as UTF-8")


@pytest.mark.parametrize("text", ["nul \0 inside", "\0", "a\0b\0", "one\0two\0\0", "\0" * 40, "1\x1f2\x1f3\x1f4\x1f"])
def test_a_text_with_some_nuls_is_a_document(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert texts(read_all(entry(tmp_path))) == [text]
