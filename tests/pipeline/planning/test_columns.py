"""Columns in which `pipeline init` finds texts (lists, objects, several together), and commands that join them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.load import load_config
from tests.conftest import write_jsonl
from tests.pipeline.planning.drafts import ENGLISH, drafted, here
from tests.support.cli import pipeline, said

__all__ = ["here"]


def test_dates_and_addresses_are_not_taken_for_texts(tmp_path: Path) -> None:
    rows = [
        {"body": {"text": ENGLISH}, "date": "2024-01-02T03:04:05Z", "url": f"https://example.org/{n}"} for n in "ab"
    ]
    write_jsonl(tmp_path / "nested.jsonl", rows)
    done = pipeline("init", "nested.jsonl", "--to", "-")
    assert done.returncode == 2 and "no column holds texts; columns: body, date, url; texts" in done.stderr, said(done)


def test_text_in_an_object_is_told_with_a_command_that_works(tmp_path: Path) -> None:
    rows = [{"id": 1, "my data": {"the text": ENGLISH, "n": 1}}, {"id": 2, "my data": {"the text": None}}, {"id": 3}]
    write_jsonl(Path("FILE"), rows)
    Path("FILE").rename("a.jsonl")
    told = pipeline("init", "a.jsonl").stderr
    assert "texts lie in an object (my data, the text)" in told
    Path("a.jsonl").rename("FILE")
    program = told[told.index("jq -c") :].partition(", or leave")[0]
    subprocess.run(program, shell=True, check=True)
    read = [json.loads(line)["text"] for line in Path("NEW.jsonl").read_text("utf-8").splitlines()]
    assert read == [ENGLISH, None, None]
    pq.write_table(pa.Table.from_pylist(rows), "IN.parquet")
    told = pipeline("init", "IN.parquet").stderr
    program = (
        told[told.index("python -c") :].partition(", or leave")[0].replace("python", shlex.quote(sys.executable), 1)
    )
    subprocess.run(program, shell=True, check=True)
    assert pq.read_table("OUT.parquet")["text"].to_pylist() == [ENGLISH, None, None]


ROWS = [
    {"docid": n, "doc": f"d{n}", "title": f"A short title {n}", "paragraphs": [ENGLISH] * 3, "n": n // 2}
    for n in range(4)
]


def test_texts_in_a_list_are_told_with_a_way_to_join_them(tmp_path: Path) -> None:
    write_jsonl(Path("lists.jsonl"), ROWS)
    done = pipeline("init", "lists.jsonl")
    joined = "jq -c '.text = ([.paragraphs[]? | values] | join(\"\\n\\n\"))' FILE > NEW.jsonl"
    assert done.returncode == 0 and "lists.jsonl: most of the text lies in a list, paragraphs" in done.stdout, said(
        done
    )
    assert joined in done.stdout
    assert joined in Path("corpus.yaml").read_text() and load_config("corpus.yaml").input[0].text == "title"
    sections = [{"id": n, "title": f"Title no. {n}", "sections": [{"heading": "One", "body": ENGLISH}]} for n in "ab"]
    pq.write_table(pa.Table.from_pylist(sections), "lists.parquet")
    told = pipeline("init", "lists.parquet", "--to", "-").stdout
    odd = [*sections, {"id": "c", "sections": [{"body": None}]}, {"id": "d"}]
    pq.write_table(pa.Table.from_pylist(odd), "IN.parquet")
    program = shlex.split(told[told.index("python -c '") :].partition("\n")[0])[2]
    subprocess.run([sys.executable, "-c", program], check=True)
    assert pq.read_table("OUT.parquet")["text"].to_pylist() == [ENGLISH, ENGLISH, "", ""]


@pytest.mark.parametrize(
    ("key", "messages", "told"),
    [
        (
            "messages",
            [{"role": "user", "content": ENGLISH}, {"role": "assistant", "content": "Yes."}],
            "[]?.content? |",
        ),
        (
            "my turns",
            [ENGLISH, "Yes."],
            'jq -c \'.text = ([.["my turns"][]? | values] | join("\\n\\n"))\' FILE > NEW.jsonl',
        ),
        ("messages", [{"content": {"text": ENGLISH}}], "jq -c '.messages[]' FILE"),
        ("messages", [{"content": [{"text": ENGLISH}]}], "[]?.content? | if"),
    ],
)
def test_turns_of_a_conversation_stay_together(key: str, messages: list[object], told: str) -> None:
    write_jsonl(Path("chat.jsonl"), [{"conversation_id": n, key: messages} for n in "ab"])
    done = pipeline("init", "chat.jsonl", "--to", "-")
    assert done.returncode == 2 and f"lie in a list, {key}" in done.stderr and told in done.stderr, said(done)


def test_turns_with_parts_are_joined_as_well(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Part one."}, {"type": "image_url", "image_url": {"url": "a"}}, "Part two."]
    turns = [{"content": ENGLISH}, {"content": parts}, {"content": None}, {"role": "user"}, {"content": {"a": "b"}}]
    write_jsonl(Path("a.jsonl"), [{"messages": [{"content": ENGLISH}] * 9}, {"messages": turns}, {"messages": "None."}])
    told = pipeline("init", "a.jsonl", "--to", "-").stderr
    Path("a.jsonl").rename("FILE")
    subprocess.run(
        told[told.index("jq -c") :].partition(" (where")[0].partition(", or leave")[0], shell=True, check=True
    )
    joined = [json.loads(line)["text"] for line in Path("NEW.jsonl").read_text("utf-8").splitlines()]
    assert joined == ["\n\n".join([ENGLISH] * 9), f"{ENGLISH}\n\nPart one.\n\nPart two.", ""]


def test_parts_of_turns_in_parquet_are_joined() -> None:
    rows = [{"messages": [{"content": [{"text": ENGLISH}, {"text": None}, {"text": "On."}]}, {"content": None}, None]}]
    pq.write_table(pa.Table.from_pylist([*rows, {"messages": None}]), "IN.parquet")
    told = pipeline("init", "IN.parquet", "--to", "-").stderr
    program = shlex.split(told[told.index("python -c '") :].partition(", or leave")[0])[2]
    subprocess.run([sys.executable, "-c", program], check=True)
    assert pq.read_table("OUT.parquet")["text"].to_pylist() == [f"{ENGLISH}\n\nOn.", ""]


def test_texts_deep_in_an_object_are_told(tmp_path: Path) -> None:
    nodes = {"n1": {"message": {"content": {"parts": [ENGLISH]}}}, "n2": {"message": None}}
    write_jsonl(Path("a.jsonl"), [{"title": f"How to do it, part {n}", "mapping": nodes, "n": {"a": 1}} for n in "ab"])
    done = pipeline("init", "a.jsonl", "--to", "-")
    assert f"most of the text lies in objects, mapping ({2 * len(ENGLISH)} characters" in done.stdout, said(done)
    assert "objects, n" not in done.stdout


def test_columns_that_are_called_like_an_id_or_are_unique(tmp_path: Path) -> None:
    rows = [{name: value for name, value in one.items() if name != "paragraphs"} for one in ROWS]
    write_jsonl(tmp_path / "a.jsonl", rows)
    assert drafted("a.jsonl").input[0].id == "docid"
    authors = [{"author_id": n % 150, "text": ENGLISH} for n in range(300)]  # distinct in the first records only
    write_jsonl(tmp_path / "authors.jsonl", authors)
    assert "# id: COLUMN" in pipeline("init", "authors.jsonl", "--to", "-").stdout
    write_jsonl(tmp_path / "b.jsonl", [{**one, "docid": None} for one in rows])
    text = pipeline("init", "b.jsonl", "--to", "-").stdout
    assert "no column is named like an id; with distinct values: doc; ids are generated" in text
    assert "# keep: [n]" in text and "# doc: corpora use such names themselves" in text


def test_other_columns_with_texts_are_told(tmp_path: Path) -> None:
    rows = [{"instruction": f"Say it {n}.", "input": "", "output": ENGLISH, "tag": "a b"} for n in range(3)]
    write_jsonl(tmp_path / "a.jsonl", rows)
    text = pipeline("init", "a.jsonl", "--to", "-").stdout
    assert "text: output" in text and "# instruction is text also, and is not read" in text
    assert "jq -c '.text = ([.instruction, .output | values] | join(\"\\n\\n\"))' FILE" in text
    joined = [{**one, "text": f"{one['instruction']}\n\n{one['output']}"} for one in rows]
    write_jsonl(tmp_path / "b.jsonl", joined)
    assert "text also" not in pipeline("init", "b.jsonl", "--to", "-").stdout
