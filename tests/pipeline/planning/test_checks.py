"""Everything that is wrong with a corpus.yaml is said at once, before anything is computed, by plan, run and doctor."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.base.errors import ConfigError
from pipeline.doctor import examine
from pipeline.planning.checks import load_checked
from tests.conftest import MakeConfig, write_jsonl
from tests.support.cli import pipeline, said

BAD = """\
name: bad
output: out
input:
  - {path: dta/*.jsonl, lang: eng_Latn}
  - {path: in/*.jsonl, id: idd, lang: {column: lang}, keep: [titel]}
  - {path: in2/*.jsonl, text: body, lang: eng_Lat}
segment: {max_chars: 0}
encode: {model: sonar-tny}
autobleu: {sample: 1.5}
select: "autobleau >= 30"
scaler: {file: fits/none.safetensors}
rvq: {units: 65536}
train: {model: lcm-two-tower-tny, answers: ansewr, weights: fragility}
split: {validation: 0.0, by: texts}
launcher: {kind: ray}
"""
SAID = [
    (4, r"input 1: nothing matches .*dta/\*\.jsonl"),
    (5, r"input 2: id is 'idd', but .* no such column; did you mean id\?"),
    (5, r"input 2: keep is 'titel', .* did you mean title\? columns: id, lang, title, source, text"),
    (6, r"input 3: lang is 'eng_Lat', which .* nearest .* eng_Latn"),
    (6, r"input 3: text is 'body'"),
    (7, r"segment\.max_chars is 0; allowed: greater than or equal to 10"),
    (8, r"encode\.model is sonar-tny – .*did you mean sonar-tiny"),
    (9, r"autobleu\.sample is 1\.5; allowed: less than or equal to 1\."),
    (10, r"select\.where: there is no column autobleau; did you mean autobleu"),
    (11, r"scaler\.file .*fits/none\.safetensors does not exist"),
    (13, r"train\.model is lcm-two-tower-tny – .*did you mean lcm-two-tower-tiny"),
    (13, r"train\.weights is fragility, which nothing makes here"),
    (13, r"train\.answers is 'ansewr', which no input keeps"),
    (14, r"split\.by is \"texts\"; did you mean text\? allowed: 'text'\."),
    (14, r"split\.validation is 0"),
    (15, r"launcher\.kind is ray, but there is no address"),
]


@pytest.fixture
def bad(make_config: MakeConfig, tmp_path: Path) -> Path:
    make_config()
    write_jsonl(tmp_path / "in2/one.jsonl", [{"id": "one", "text": "One sentence."}])
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    return path


def test_all_at_once_with_lines_in_plan_run_and_doctor(bad: Path, tmp_path: Path) -> None:
    for command in ("plan", "run", "doctor"):
        if command == "doctor":
            shown = re.sub(r"\s+", " ", pipeline("doctor", bad, "--no-ray").stdout)
        else:
            done = pipeline(command, bad)
            shown = done.stderr
            assert done.returncode == 2 and not (tmp_path / "out").exists()
        for line, what in SAID:
            if command == "doctor" and line == 15:
                continue  # asked apart
            words = rf"bad\.yaml:{line}: {what}"
            assert re.search(words.replace(" ", r"\s+") if command == "doctor" else words, shown), (words, shown)
    lines = [one for one in pipeline("plan", bad).stderr.split("\n") if "bad.yaml:" in one]
    assert len(lines) == len(SAID) and lines == sorted(lines, key=lambda one: int(one.split(":")[1]))
    assert not re.search(r"input in-|input dta-|input\.\d", "\n".join(lines)), "names that nobody has written"


def problems(path: Path, *overrides: str) -> list[str]:
    try:
        load_checked(path, overrides)
    except ConfigError as error:
        return str(error).split("\n")
    return []


@pytest.mark.parametrize(
    ("of_input", "what"),
    [
        ("", "input is missing"),
        ("inputs: [{path: in2/*.jsonl, lang: eng_Latn}]", "unknown key inputs; did you mean input"),
        ("input: 5", "input is 5; allowed: a list"),
        ("input: []", "input is []"),
        ("input: [{path: in2/*.jsonl}]", "input 1: lang is missing"),
    ],
)
def test_a_wrong_input_hides_no_other_mistake(bad: Path, of_input: str, what: str) -> None:
    lines = BAD.split("\n")
    bad.write_text("\n".join([*lines[:2], of_input, *lines[6:]]))
    said = problems(bad)
    assert sum(what in one for one in said) == 1, said
    for line, other in SAID[7:8] + SAID[10:11]:
        assert any(re.search(rf"bad\.yaml:{line - 3}: {other}", one) for one in said), said


def test_columns_of_a_wrong_input_are_not_said_to_be_lacking(bad: Path) -> None:
    file = "name: bad\noutput: out\ninput: [{path: in2/*.jsonl, lang: eng_Latn, %s: {year: int64}}]\nselect: %s\n"
    for key, column, told in (("keep", "yaer", 1), ("keep", "month", 1), ("kep", "year", 0), ("kep", "charss", 1)):
        bad.write_text(file % (key, f"{column} > 2000"))
        said = problems(bad)
        assert sum("there is no column" in one for one in said) == told, said


def test_nothing_is_said_of_what_is_right(make_config: MakeConfig) -> None:
    path = make_config(scaler={}, select="autobleu is null or autobleu >= 30", train={"model": "lcm-two-tower-tiny"})
    assert problems(path, "split.validation=0.2") == []


def test_a_decoder_of_another_encoder(make_config: MakeConfig) -> None:
    path = make_config(encode={"model": "sonar-tiny"}, segment={}, scaler={}, fragility={"model": "sonar-tiny-1"})
    told = "fragility.model sonar-tiny-1 decodes embeddings of another encoder (90da184c"
    (one,) = problems(path)
    assert told in one and "than sonar-tiny (2ed6d241" in one
    (one,) = problems(path, "fragility.model=sonar-tiny-noised", "autobleu.model=sonar-tiny-1")
    assert told.replace("fragility", "autobleu") in one
    assert not problems(path, "fragility.model=sonar-tiny-noised", "autobleu.model=sonar-tiny")


def test_a_card_with_more_languages_than_its_vocabulary_has_room_for(make_config: MakeConfig, tmp_path: Path) -> None:
    languages = ["eng_Latn", "deu_Latn", "fra_Latn", "rus_Cyrl", "zho_Hans", "jpn_Jpan"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"base": "sonar-tiny", "name": "mine", "languages": languages}))
    (one,) = problems(make_config(), "encode.model=mine.yaml")
    assert "card mine: 8000 pieces and 6 languages need ids up to 8006, vocab_size is 8006; correct vocab_size" in one


def test_weights_in_place_of_their_card(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    (tmp_path / "mine.safetensors").touch()
    (one,) = problems(path, "autobleu.model=mine.safetensors")
    assert f"no model is called '{tmp_path / 'mine.safetensors'}'; use one of sonar" in one
    (tmp_path / "mine.yaml").touch()
    (one,) = problems(path, "autobleu.model=mine.safetensors")
    assert f"mine.safetensors holds weights; give the card that describes them: {tmp_path / 'mine.yaml'}" in one


def test_a_condition_that_does_not_say_what_becomes_of_rows_outside_of_a_sample(make_config: MakeConfig) -> None:
    (one,) = problems(make_config(), "select=autobleu >= 30")
    assert "--set select=autobleu >= 30: select.where: autobleu is null in rows that are not sampled" in one
    assert "(autobleu is null or autobleu >= 30)" in one
    assert not problems(make_config(), "select=autobleu >= 30", "autobleu.sample=1.0")


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("autobleu.sample={row: 5}", "unknown key autobleu.sample.row; did you mean rows?"),
        ("autobleu.sample=[1]", "autobleu.sample is [1]; allowed: "),
        ("split.by={colum: title}", "unknown key split.by.colum; did you mean column?"),
        ("split.by={column: 5}", "split.by.column is 5; allowed: string"),
        ("input.0.lang={colum: lang}", "unknown key input 1: lang.colum; did you mean column?"),
    ],
)
def test_a_key_of_several_kinds_gives_one_mistake(make_config: MakeConfig, override: str, what: str) -> None:
    (one,) = problems(make_config(), override)
    assert what in one


def test_nothing_is_said_of_a_default_that_stands_for_a_wrong_value(make_config: MakeConfig) -> None:
    (one,) = problems(make_config(), "rvq={codebooks: 8, units: 1e3}")
    assert "rvq.units is 1000.0; allowed: integer" in one
    (one,) = problems(make_config(), "rvq={codebooks: 8}")
    assert "rvq.units is 8192, but the inputs hold fewer than" in one


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("s3:///corpora", "output s3:///corpora names no bucket; write s3://BUCKET/FOLDER"),
        ("htp://host/out", "output htp://host/out: Protocol not known: htp; give a folder, or a URL"),
        ("https://host/out", "output https://host/out: nothing can be written to a web server; give a folder"),
        ("hf://datasets/me/mine", "output hf://datasets/me/mine: the Hub makes a commit of every file, and none only"),
        ("memory://out", "output memory://out: what is written there is lost when the command ends; give a folder"),
    ],
)
def test_a_url_that_can_be_no_output_is_told_with_its_line(make_config: MakeConfig, output: str, what: str) -> None:
    assert re.match(rf".*corpus\.yaml:\d+: {re.escape(what)}", "\n".join(problems(make_config(output=output))))


def test_columns_of_parquet_and_of_the_split(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["One."], "title": ["a"], "site": ["b"]}), tmp_path / "in/one.parquet")
    entry = {"path": "in/*.parquet", "lang": "eng_Latn"}
    assert not problems(make_config(input=[entry], split={"by": {"column_hash": "site"}}))
    found = problems(make_config(input=[{**entry, "keep": ["titel"]}], split={"by": {"column_hash": "sites"}}))
    assert any("titel" in one for one in found)
    (split,) = problems(make_config(input=[entry], split={"by": {"column_hash": "sites"}}))
    assert "split.by is 'sites'" in split and "did you mean site" in split


def test_a_column_that_later_records_have_is_no_mistake_and_bad_records_are_none(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    many = [{"id": str(n), "lang": "eng_Latn", "text": "One."} for n in range(300)]
    write_jsonl(tmp_path / "in/many.jsonl", [*many, {"id": "x", "lang": "eng_Latn", "text": "One.", "year": 1}])
    entry = {"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}}
    assert not problems(make_config(input=[{**entry, "keep": ["year"]}]))
    (tmp_path / "in/many.jsonl").write_text(
        '{"id": "a", "lang"\n{"text": 5, "id": "b", "lang": "eng_Latn"}\n'
        '{"text": "One.", "id": "c", "lang": "eng_Latn"}\n'
    )
    assert not problems(make_config(input=[entry]))
    (tmp_path / "in/many.jsonl").write_text(
        '{"text": "One.", "id": "c", "lang": "eng_Latn"}\n{"text": "One.", "year": 1, "year": 2}\n'
    )
    assert not problems(make_config(input=[{**entry, "keep": ["year"]}]))


def test_too_many_units_and_an_output_that_cannot_be_written(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(rvq={"units": 65536}, scaler={})
    (units,) = problems(path)
    assert "rvq.units is 65536, but the inputs hold fewer than" in units
    assert problems(path, "rvq.units=16") == []
    assert "more than the 20 sentences" in problems(path, "rvq.units=32", "rvq.rows=20")[0]
    (tmp_path / "file").write_text("")
    (output,) = problems(path, "rvq=null", f"output={tmp_path / 'file/out'}")
    assert "which is not a folder" in output


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (os.ST_RDONLY, "Read-only file system (%s); mount that file system for writing, or give a new corpus another"),
        (0, "Permission denied (%s); let this user write there, or give a new corpus another output"),
    ],
)
def test_an_output_on_a_file_system_that_is_read_only_is_no_matter_of_permissions(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, flags: int, why: str
) -> None:
    path = make_config()
    monkeypatch.setattr("pipeline.storage.local_files.os.access", lambda _, mode, **__: not mode & os.W_OK)
    monkeypatch.setattr("pipeline.storage.local_files.os.statvfs", lambda *_: SimpleNamespace(f_flag=flags))
    (output,) = problems(path)
    assert why % path.parent in output


def test_too_few_scored_sentences_for_a_predictor(make_config: MakeConfig) -> None:
    path = make_config(scaler={}, fragility={"sample": 0.001}, predictor={})
    (told,) = problems(path)
    assert re.search(r"yaml:\d+: predictor learns from .* from 100 at least; the inputs hold at most about", told)
    assert "raise fragility.sample to 0." in told and "fit.scored_rows" in told
    assert problems(path, "fragility.sample=0.9") == problems(path, "fit.scored_rows=2000000") == []
    assert problems(path, "fit.rows=90", "fragility.sample=1.0") == []  # the pilot ends with a chunk


def test_too_many_units_for_the_sentences_of_a_small_corpus(make_config: MakeConfig) -> None:
    path = make_config(rvq={"codebooks": 1, "units": 2000}, scaler={})
    (told,) = problems(path)  # 14 documents: by their size they could hold more, by their text they do not
    assert "rvq.units is 2000, but the inputs hold fewer than 1" in told
    for old in (path.parent / "in").iterdir():
        old.unlink()
    write_jsonl(path.parent / "in/a.jsonl", [{"id": "1", "lang": "eng_Latn", "title": "t", "text": "One sentence."}])
    (told,) = problems(path)
    assert "give more documents (39 sentences per unit" in told, "two units are the least"


def test_a_training_that_its_model_or_the_splits_of_a_small_corpus_forbid(make_config: MakeConfig) -> None:
    train = {"model": "lcm-base-tiny", "steps": 4, "validation_concepts": 20}
    path = make_config(scaler={}, train=train, split={"validation": 0.0001})
    (told,) = problems(path)
    assert "split: none of the 14 documents of the inputs is in the split validation, which train needs" in told
    assert problems(path, "train.validation_concepts=0", "train.micro_concepts=128") == []
    (told,) = problems(path, "train.micro_concepts=64", "split.validation=0.4")
    assert "train.micro_concepts is 64, the context of lcm-base-tiny 128" in told
    assert pipeline("run", path).returncode == 2 and not (path.parent / "out").exists()


def test_an_input_that_disappears_between_plan_and_run(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    assert pipeline("plan", path).returncode == 0
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    done = pipeline("run", path)
    assert done.returncode == 2 and "corpus.yaml:" in said(done) and "nothing matches" in said(done)


def test_types_of_kept_columns_are_checked_with_everything_else(make_config: MakeConfig, tmp_path: Path) -> None:
    values = [{"year": 2010, "when": "2010-01-31", "ok": True, "note": "x"}, {"year": "n.d.", "ok": None, "note": "y"}]
    rows = [one | {"text": "A sentence.", "id": str(at), "lang": "eng_Latn"} for at, one in enumerate(values)]
    write_jsonl(tmp_path / "in/a.jsonl", rows)
    entry = {"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}}

    def found(keep: Any, where: str) -> str:
        return "\n".join(
            problems(make_config(input=[entry | {"keep": keep}], encode=None, autobleu=None, select=where))
        )

    declared = {"year": "int32", "when": "timestamp", "ok": "bool", "note": "string"}
    assert found(declared, "note == 'x' and year is not null and year > 2000") == ""
    assert found(declared, "when is null or when > '2010-01-01'") == ""
    assert found(["note", "ok"], "note == 'x' and ok is not null and not ok") == ""
    told = found(["year"], "year > 2000")  # a number and a text
    assert "year holds text; this is a number" in told
    ways = "keep: {year: float64}, or int64 or uint64 if all are whole numbers"
    assert told.endswith(f"{ways}; values that do not fit become null and are counted"), told
    assert "year is null in documents that do not say it" not in found(["year"], "year == '2010'")
    assert "ok is null in documents that do not say it, and `ok` does not say" in found(["ok"], "ok")
    assert "keep says that note is int64, and no value in the first 2 records" in found({"note": "int64"}, "chars > 1")
    assert found({"year": "int64"}, "chars > 1") == ""  # one fits
    (tmp_path / "out").mkdir()
    (tmp_path / "out/corpus.json").write_text("{}")
    assert found(["year"], "year == '2010'") == ""  # as a corpus of text alone has it


def test_records_that_a_run_would_set_aside_are_told_by_plan_and_run(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("Der Brief kam – für 5 €.", encoding="cp1252")
    (tmp_path / "notes/b.txt").write_text("The ship arrived.")
    blobs = {"id": list("123"), "text": ["One sentence.", "Another one.", "A third."], "blob": [b"\xff", b"\xfe", b"x"]}
    (tmp_path / "tables").mkdir()
    pq.write_table(pa.table(blobs), tmp_path / "tables/a.parquet")
    path = make_config(
        input=[
            {"path": "notes/*.txt", "lang": "deu_Latn"},
            {"path": "tables/*.parquet", "id": "id", "lang": "eng_Latn", "keep": ["blob"]},
        ]
    )
    told = (
        r"input 1: 1 record of the first 2 records of 2 files \(about 50%\) is set aside by a run \(not UTF-8\), with "
        r"this error for the first: byte 0x96 at 14 .*iconv -f WINDOWS-1252",
        r"input 2: 2 records of the first 3 records of a\.parquet \(about 67%\) are set aside by a run \(not UTF-8\).*"
        r": keep: blob is not UTF-8; leave blob out of `keep`, or write it .* as base64\); byte 0xff at 0 is not UTF-8",
    )
    for command in (("plan", path), ("run", path, "--until", "segment")):
        done = pipeline(*command)
        assert done.returncode == 0 and all(re.search(one, done.stderr) for one in told), said(done)


def test_several_reasons_to_set_records_aside_are_one_warning(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"text": "Fine."}\n{"text": 5}\n{"id": 1}\n{"text": 6}\n')
    done = pipeline("plan", make_config(input=[{"path": "in/a.jsonl", "lang": "eng_Latn"}]))
    (told,) = (line for line in done.stderr.splitlines() if "aside" in line)
    assert "input 1: 3 records of the first 4 records of a.jsonl (about 75%) are set aside by a run: 2 records" in told
    assert "2 records (text is not a string), with this error for the first: text is 5" in told
    assert "; 1 record (text column missing), with this error for the first: there is no 'text'" in told


def test_the_only_record_is_not_counted(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/crlf.md").write_text("12 34 5\r\n")
    done = pipeline("plan", make_config(input=[{"path": "in/*.md", "lang": "detect"}]))
    assert "input 1: the first record of crlf.md is in a language that is not certain enough" in said(done)


def test_where_a_run_would_set_all_records_aside_it_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": "Fine."}])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.jsonl").write_bytes('{"text": "Fraîche."}\n{"text": 1}\n{"text": 2}\n'.encode("latin-1"))
    paths = ("in/*.jsonl", "bad/*.jsonl")
    path = make_config(input=[{"path": one, "lang": "fra_Latn"} for one in paths])
    told = (
        "input 2: none of the first 3 records of a.jsonl becomes a document; a run would set aside 1 record (not "
        "UTF-8), with this error for the first: byte 0xee at 13 is not UTF-8"
    )
    (problem,) = problems(path)
    assert told in problem and "; 2 records (text is not a string), with this error for the first: text is 1" in problem
    assert problem.endswith("Mend the input, name other columns in `text`, `id` and `lang`, or leave this input out")
    for command in ("plan", "run"):
        done = pipeline(command, path)
        assert done.returncode == 2 and told in done.stderr and not (tmp_path / "out").exists(), said(done)
    (check,) = (one for one in examine(path, None) if one.name == "config")
    assert check.level == "bad" and told in check.found


def test_a_record_that_cannot_be_read_does_not_make_a_sample_whole(make_config: MakeConfig, tmp_path: Path) -> None:
    rows = [f'{{"id": "{at}", "lang": "eng_Latn", "text": "Number {at}."}}' for at in range(200)]
    (tmp_path / "long").mkdir()
    (tmp_path / "long/a.jsonl").write_text("\n".join(["{broken", *rows]))
    source = {"path": "long/*.jsonl", "id": "id", "lang": {"column": "lang"}}
    path = make_config(input=[source], scaler={}, rvq={"codebooks": 2, "units": 200})
    assert pipeline("plan", path).returncode == 0, "99 of the first 100 records are no more than a sample"
    assert "# 99 documents" not in said(pipeline("init", tmp_path / "long", "--to", "-"))
