"""Ids that stand in several of the first records are told before work starts, with what becomes of the documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.corpus.reader import Corpus
from tests.conftest import write_config, write_jsonl
from tests.support.cli import pipeline


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            None,
            "yaml:5: the first 4 documents have only 2 ids; 3 of them have 'a': later ones in the same file",
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


def test_ids_of_several_files_are_all_kept_where_nothing_says_what_is_meant(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"in/{name}.jsonl", [{"id": "1", "text": f"Sentence of {name}."}])
    path = write_config(tmp_path, input=[{"path": "in/*.jsonl", "id": "id", "lang": "eng_Latn"}], autobleu=None)
    (warning,) = json.loads(pipeline("plan", path, "--json").stdout)["warnings"]
    assert "the first 2 documents have only 1 id; 2 of them have '1': all of them are kept. Set" in warning
    assert pipeline("run", path, "--until", "segment").returncode == 0
    assert Corpus(str(tmp_path / "out")).rows == 2


@pytest.mark.parametrize(("rule", "kept"), [(None, 2), ("error", 0), ("keep-first", 1), ("keep-all", 2)])
def test_text_files_of_two_inputs_can_have_the_same_path(rule: str | None, kept: int, tmp_path: Path) -> None:
    inputs = []
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0001.txt").write_text(f"A sentence of {name}.")
        inputs.append({"path": f"{name}/*.txt", "lang": "eng_Latn"})
    path = write_config(tmp_path, input=inputs, autobleu=None, duplicate_ids=rule)
    done = pipeline("run", path, "--until", "segment")
    shown = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode == 0) == (rule != "error"), done
    assert ("have only 1 id; 2 of them have '0001.txt'" in shown) == (rule != "keep-all"), shown
    if rule == "error":
        assert "1 id in more than one document (2 documents in all): '0001.txt'" in shown
        return
    corpus = Corpus(str(tmp_path / "out"))
    texts = sorted(text for part in corpus.parts for text in corpus.table("text", part=part)["text"].to_pylist())
    assert texts == ["A sentence of test.", "A sentence of train."][-kept:]
    assert ("1 id stands in more than one document (2 documents in all)" in shown) == (rule is None)


def test_generated_ids_are_not_looked_at(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": "The same."}, {"text": "The same."}])
    path = write_config(tmp_path, input=[{"path": "in/*.jsonl", "lang": "eng_Latn"}], autobleu=None)
    assert json.loads(pipeline("plan", path, "--json").stdout)["warnings"] == []
