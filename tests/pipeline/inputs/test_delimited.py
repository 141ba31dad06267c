"""CSV and TSV become Parquet with the same text, whoever wrote them."""

from __future__ import annotations

import csv
import gzip
import io
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.inputs.delimited import main, read_delimited
from pipeline.inputs.listing import format_hint


@pytest.mark.parametrize(
    ("name", "sep", "mark"),
    [
        ("a.csv", ",", ""),
        ("a.csv", ";", "\ufeff"),
        ("a.csv.gz", ";", ""),
        ("a.csv", "\t", ""),
        ("a.csv", "|", "\ufeff"),
        ("a.tsv", "\t", "\ufeff"),
    ],
)
def test_what_spreadsheets_write(
    tmp_path: Path, name: str, sep: str, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["text", "id"], ['He said "no",\nthen; left\t|.', "007"], ["Grüße, NA", "NA"], ["", "8"]]
    for table in (rows, [row[:1] for row in rows[:-1]]):
        written = io.StringIO()
        csv.writer(written, delimiter=sep).writerows(table)
        raw = f"{mark}{written.getvalue()}".encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        assert main([str(tmp_path / name), str(tmp_path / "b.parquet")]) == 0, capsys.readouterr()
        found = pq.read_table(tmp_path / "b.parquet")
        assert [found.column_names, *map(list, zip(*found.to_pydict().values(), strict=True))] == table
        assert f"{len(table) - 1} rows of" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(
    ("written", "texts"),
    [
        (
            'id\ttext\n1\tOne.\n2\t"Hi" he said.\n3\t"Well,\n4\tFour.\n5\t"Good night."\n',
            ["One.", '"Hi" he said.', '"Well,', "Four.", '"Good night."'],
        ),
        ('text\tid\r\n"Well, she began.\t1\r\nFive\u2028here."\t2', ['"Well, she began.', 'Five\u2028here."']),
        ('id\ttext\n1\t"He said ""no""."\n2\t"Two\tor\nthree"\n', ['He said "no".', "Two\tor\nthree"]),
        ('text\n"Hi" he said.\nTwo.\n', ['"Hi" he said.', "Two."]),
        ('text\tid\n"Well, she began.\t1\nFive here."\t2\nSix.\t3\n', ['"Well, she began.', 'Five here."', "Six."]),
        ('id\ttext\n1\t"Well,\n\n2\tTwo.\n3\t"Yes\n4\tFour\n', ['"Well,', "Two.", '"Yes', "Four"]),
        ('\r\nid,text\r\n1,One\r\n\r\n2,"Two, or\n\nthree"\r\n', ["One", "Two, or\n\nthree"]),
        (",text\n0,One\n", ["One"]),
        ('"a;b;c",text\n1,One\n', ["One"]),
        ('"id\nx",text\n1,One\n', ["One"]),
        ("id,text\n" + "1,你好世界\n" * 99, ["你好世界"] * 99),
        ("sep=;\r\nid,a;text\r\n1;One\r\n", ["One"]),
        ("sep=\t\nid\ttext\n1\tOne\n", ["One"]),
        ("sep=~\nid~text\n1~One, two\n", ["One, two"]),
    ],
)
def test_quotation_marks_that_enclose_no_field_stay(encoding: str, written: str, texts: list[str]) -> None:
    assert read_delimited(written.encode(encoding))[0]["text"].to_pylist() == texts


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"id,text\n1,One,two\n2,Three\n", "line 2 has 3 fields, the first one 2"),
        (b'id,text\n1,"abc\n2,def\n', "line 3: unexpected end of data"),
        (b'id\ttext\n1\t"Well,\n2\tTwo\tmore\n3\t"Yes\n', "line 4: "),
        (b"sep=,\nid,text\n1,One,two\n", "line 3 has 3 fields, the first one 2"),
        (b"id,text\n1,Stra\xdfe\n", "byte 14 is not UTF-8; convert the file to UTF-8 first: iconv"),
        (b"text,text\n1,One\n", "does not name each column once, but has these: ['text']"),
        (b"", "there is no line with the names of columns"),
        (b"\n\n", "there is no line with the names of columns"),
    ],
)
def test_what_is_no_table_is_refused_and_nothing_is_written(
    tmp_path: Path, raw: bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_bytes(raw)
    assert main([str(tmp_path / "a.csv"), str(tmp_path / "b.parquet")]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'a.csv'}: " in said and told in said
    assert main([str(tmp_path / "none.csv"), str(tmp_path / "b.parquet")]) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


def test_a_file_is_not_replaced_by_its_own_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,One\n")
    (tmp_path / "b.csv").symlink_to("a.csv")
    for name in ("a.csv", "b.csv"):
        assert main([str(tmp_path / "a.csv"), str(tmp_path / name)]) == 2
        assert "OUT is the same file" in capsys.readouterr().err
    assert (tmp_path / "a.csv").read_bytes() == b"id,text\n1,One\n"


def test_a_compressed_file_that_was_cut_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,text\n1,One\n" * 100)[:30])
    assert main([str(tmp_path / "a.csv.gz"), str(tmp_path / "b.parquet")]) == 1
    assert "ended before" in capsys.readouterr().err and not (tmp_path / "b.parquet").exists()


def test_the_advice_is_a_command_that_works(tmp_path: Path) -> None:
    (tmp_path / "IN.csv").write_text("id\ttext\n1\tOne.\n")
    command = format_hint("in.tsv").partition(": python ")[2].split()
    subprocess.run([sys.executable, *command], check=True, cwd=tmp_path)
    assert pq.read_table(tmp_path / "OUT.parquet").to_pylist() == [{"id": "1", "text": "One."}]
