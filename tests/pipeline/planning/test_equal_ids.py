"""Ids that stand in several of the first records are told before work starts, with what becomes of the documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import write_config, write_jsonl
from tests.support.cli import pipeline


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            None,
            "yaml:5: the first 4 documents have only 2 ids; 3 of them have 'a': later ones in the same chunk",
        ),
        ("error", "the first 4 documents have only 2 ids; 3 of them have 'a': the run will end before it segments."),
        ("keep-first", "the first document of each id is kept; later ones are set aside"),
        ("keep-all", ""),
    ],
)
def test_what_becomes_of_them(rule: str | None, told: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"id": one, "text": f"Sentence {at}."} for at, one in enumerate("aaba")])
    path = write_config(
        tmp_path, input=[{"path": "in/*.jsonl", "id": "id", "lang": "eng_Latn"}], autobleu=None, duplicate_ids=rule
    )
    warnings = json.loads(pipeline("plan", path, "--json").stdout)["warnings"]
    assert told in " ".join(warnings) and len(warnings) == bool(told), warnings
    done = pipeline("run", path, "--until", "segment")
    assert (done.returncode == 0) == (rule != "error") and told in " ".join(done.stderr.split()), done
    if rule == "error":
        assert "1 id in more than one document (3 documents in all): 'a'" in done.stderr, done


def test_generated_ids_are_not_looked_at(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": "The same."}, {"text": "The same."}])
    path = write_config(tmp_path, input=[{"path": "in/*.jsonl", "lang": "eng_Latn"}], autobleu=None)
    assert json.loads(pipeline("plan", path, "--json").stdout)["warnings"] == []
