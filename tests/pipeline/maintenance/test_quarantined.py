"""What `pipeline quarantine` shows of the records that were set aside."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import pipeline.run.chunk_accounting as quarantine
from pipeline.base.errors import ConfigError
from pipeline.corpus.reader import Corpus
from pipeline.maintenance.quarantine import show_quarantine
from tests.conftest import MakeConfig
from tests.support.runs import bring_up_to_date

GOOD = json.dumps({"id": "good", "lang": "eng_Latn", "text": "It works."})


def make_corpus(make_config: MakeConfig, folder: Path, lines: list[str]) -> Corpus:
    (folder / "in").mkdir()
    (folder / "in/x.jsonl").write_text("".join(line + "\n" for line in [GOOD, *lines]), "utf-8")
    bring_up_to_date(make_config(encode=None, autobleu=None))
    return Corpus(str(folder / "out"))


def shown(corpus: Corpus, reason: str | None = None, most: int = 3) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    show_quarantine(console, corpus, reason, most)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_every_reason_with_some_of_its_records(make_config: MakeConfig, tmp_path: Path) -> None:
    corpus = make_corpus(make_config, tmp_path, ["no json"] * 5 + ["[1]", '{"\x1b]0;title": "[bold]"}', GOOD])
    file = f"{tmp_path}/in/x.jsonl"
    assert shown(corpus, most=1) == [
        "invalid JSON: 6",
        f"  {file} line 2, byte {len(GOOD) + 1}",
        "    Expecting value at character 0, near 'no json'",
        "    no json",
        "  … and 5 more: --reason 'invalid JSON' --most 20",
        "not a JSON object: 1",
        f"  {file} line 7, byte {len(GOOD) + 41}",
        "    the line is a list of 1; write one object per line: {…} (jq -c '.[]' FILE makes them of a list)",
        "    [1]",
        "duplicate id: 1",
        f"  {file} line 9, byte {len(GOOD) + 69}",
        "    an earlier document of this file has the id 'good' too; the first one is kept",
        "    It works.",
        f"8 records in quarantine, 0 B could not be decoded; all of them: {tmp_path}/out/quarantine/**/*.parquet",
    ]
    one = shown(corpus, "invalid JSON", 20)
    assert len([line for line in one if line.startswith(f"  {file}")]) == 6
    assert '    {" ]0;title": "[bold]"}' in one and not any("\x1b" in line for line in one)
    with pytest.raises(ConfigError, match="reasons are: duplicate id, invalid JSON, not a JSON object"):
        show_quarantine(Console(), corpus, "unreadable")


def test_a_row_that_stands_for_many_records(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "LISTED", 1)
    lines = shown(make_corpus(make_config, tmp_path, ["no json"] * 5))
    assert f"  {tmp_path}/in/x.jsonl line 3, byte {len(GOOD) + 9} (4 records)" in lines
    assert not any("more:" in line for line in lines)


def test_an_empty_quarantine(make_config: MakeConfig, tmp_path: Path) -> None:
    lines = shown(make_corpus(make_config, tmp_path, []))
    assert "".join(lines).replace(" ", "") == f"Nothingisinthequarantineof{tmp_path}/out."  # in lines of 100 characters
