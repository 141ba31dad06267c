"""Documents in languages that the model does not know are told before work starts, with what can be done."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pipeline.doctor import examine
from tests.conftest import write_config, write_jsonl
from tests.support.cli import pipeline, said, warnings_of
from tests.support.languages import SENTENCES


def corpus_of(folder: Path, langs: list[str], lang: Any = None, texts: list[str] | None = None) -> Path:
    texts = texts or [f"Sentence number {at}." for at in range(len(langs))]
    rows = [{"id": str(at), "lang": one, "text": text} for at, (one, text) in enumerate(zip(langs, texts, strict=True))]
    write_jsonl(folder / "in/a.jsonl", rows)
    source = {"path": "in/*.jsonl", "id": "id", "lang": lang or {"column": "lang"}}
    return write_config(folder, input=[source], encode={"model": "sonar-tiny"}, autobleu=None)


def test_plan_run_and_doctor_warn_of_languages_that_the_model_does_not_know(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, ["eng_Latn"] * 5 + ["spa_Latn"] * 2 + ["de", "qqq_Latn", "es"])
    told = (
        r"Warning: .*corpus\.yaml:\d+: input 1: 5 records of the first 10 records of a\.jsonl \(about 50%\) are in "
        r"languages that sonar-tiny does not know: 'spa_Latn' \(2 records\), 'de' \(1 record\), "
        r"'qqq_Latn' \(1 record\), 'es' \(1 record\)\. A run sets such documents aside \(unknown language\) and goes "
        r"on\. What can be done: "
        r"spa_Latn is known to sonar \(encode: \{model: sonar\}\); for 'de' the code is deu_Latn; for 'qqq_Latn', "
        r"nearest of the model's 5 languages: .*; or leave such documents out of the input"
    )
    for command in (("plan", path), ("run", path, "--until", "segment")):
        done = pipeline(*command)
        assert done.returncode == 0 and re.search(told, done.stderr), said(done)
    shown = pipeline("quarantine", tmp_path / "out").stdout
    assert "lang is 'spa_Latn'; spa_Latn is known to sonar (encode: {model: sonar}); nearest of the model's 5" in shown
    assert "lang is 'de'; the code is deu_Latn" in shown
    (check,) = (one for one in examine(path, None) if one.name == "config")
    assert check.level == "warn" and re.search(told.removeprefix("Warning: "), check.found)
    (warning,) = json.loads(pipeline("plan", path, "--json").stdout)["warnings"]
    assert re.search(told.removeprefix("Warning: "), warning)
    assert "unknown language: 5" in pipeline("quarantine", tmp_path / "out").stdout


def test_where_no_record_has_a_known_language_it_is_an_error(tmp_path: Path) -> None:
    for langs, first in ((["spa_Latn"] * 3, "none of the first 3 records of"), (["spa_Latn"], "the first record of")):
        path = corpus_of(tmp_path, langs)
        for command in ("plan", "run"):
            done = pipeline(command, path)
            assert done.returncode == 2 and first in done.stderr and "sonar-tiny knows: 'spa_Latn'" in done.stderr
            assert ". What can be done: spa_Latn is known to sonar" in done.stderr and not (tmp_path / "out").exists()


def test_records_behind_the_first_ones_may_have_a_known_language(tmp_path: Path) -> None:
    """As in a file that is sorted by language: only what was read as a whole is refused."""
    told = "none of the first 100 records of a.jsonl has a language that sonar-tiny knows: 'ace_Latn' (100 records)"
    done = pipeline("plan", corpus_of(tmp_path, ["ace_Latn"] * 100 + ["eng_Latn"]))
    assert done.returncode == 0, said(done)
    assert "Warning: " in done.stderr and f"{told}; a run sets such documents aside (unknown" in done.stderr, said(done)
    done = pipeline("plan", corpus_of(tmp_path, ["ace_Latn"] * 101, "ace_Latn"))
    assert done.returncode == 2 and "lang is 'ace_Latn', which sonar-tiny does not know" in done.stderr, said(done)


def test_detected_languages_count_too(tmp_path: Path) -> None:
    texts = [SENTENCES["eng_Latn"], SENTENCES["deu_Latn"], SENTENCES["vie_Latn"], "1 2 3 4"]
    path = corpus_of(tmp_path, [""] * 4, "detect", texts)
    done = pipeline("plan", path)
    assert done.returncode == 0, said(done)
    assert "1 record of the first 4 records of a.jsonl (about 25%) is in languages that" in done.stderr
    assert "state the languages where they are detected wrongly" in done.stderr
    assert "in a language that is not certain enough for lang.detect.threshold 0.5" in done.stderr


def test_nothing_is_said_where_all_languages_are_known(tmp_path: Path) -> None:
    done = pipeline("plan", corpus_of(tmp_path, ["eng_Latn", "deu_Latn"]), "--json")
    assert not warnings_of(done) and json.loads(done.stdout)["warnings"] == []
