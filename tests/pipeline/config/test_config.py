"""Every mistake in a corpus.yaml is reported at once: file, line, key, value, what is allowed."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.config.stages import STAGES
from stages.cards import CardError
from stages.segment.sat.card import load_sat_card
from stages.sonar.card import load_card
from stages.stage import Settings, role
from tests.conftest import ROOT
from tests.support.cli import pipeline

GOOD = """\
name: test
output: out
input:
  - {path: in/*.jsonl, lang: eng_Latn}
encode: {}
autobleu:
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "corpus.yaml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        ("lang: eng_Latn", "lang: no", "lang is false; YAML reads no, off, yes and on .* quotes, or the code nob_Latn"),
        ("name: test", "name: yes", "name is true; YAML reads .* write the word in quotes; allowed: string"),
        (
            "lang: eng_Latn",
            "lang: und, chunk_bytes: 9",
            "unknown key input 1: chunk_bytes; chunk_bytes belongs to the top",
        ),
        ("input:", "inputs:", "unknown key inputs; did you mean input?"),
    ],
)
def test_usual_mistakes_have_a_hint_and_one_line(tmp_path: Path, good: str, bad: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")) as caught:
        load_config(write(tmp_path, GOOD.replace(good, bad)))
    assert len(str(caught.value).splitlines()) == 1, caught.value


def test_short_forms_and_relative_paths(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD + "launcher: inline\n"))
    assert config.output == str(tmp_path / "out")
    assert config.input[0].path == str(tmp_path / "in/*.jsonl")
    assert config.launcher.kind == "inline"
    assert [stage.name for stage in config.row_stages()] == ["encode", "autobleu"]
    assert load_config(write(tmp_path, GOOD.replace("output: out", "output: s3://b/c"))).output == "s3://b/c"


def test_all_mistakes_at_once_with_line_key_value_and_what_is_allowed(tmp_path: Path) -> None:
    text = GOOD + "segment: {method: spacey, max_chars: 0, max_chrs: 3}\npart_sentences: many\nsplitt: {}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    message = str(caught.value)
    assert re.search(r"corpus\.yaml:7: segment\.max_chars is 0; allowed: greater than or equal to 10", message)
    assert re.search(r"corpus\.yaml:7: segment\.method is \"spacey\"; did you mean spacy\? allowed: 'spacy'", message)
    assert re.search(r"corpus\.yaml:7: unknown key segment\.max_chrs; did you mean max_chars\?", message)
    assert re.search(r'corpus\.yaml:8: part_sentences is "many"; allowed: integer', message)
    assert re.search(r"corpus\.yaml:9: unknown key splitt; did you mean split\?", message)
    assert len(message.splitlines()) == 5


def test_what_is_wrong_in_a_section_whose_name_is_misspelt_is_told_as_well(tmp_path: Path) -> None:
    text = GOOD + "segmnt: {method: spacy, max_chars: 0}\nlanguage: {modl: x}\nlauncer: {tasks: 2, tme: 3}\ntrain: {}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    told = [line.partition("corpus.yaml:")[2] for line in str(caught.value).splitlines()]
    begins = (
        "7: unknown key segmnt; did you mean segment?",
        "7: segment.max_chars is 0; ",
        "8: unknown key language.modl;",
    )
    more = ("9: unknown key launcer; did you mean launcher?", "9: unknown key launcher.tme; did you mean time?")
    assert all(sum(one.startswith(start) for one in told) == 1 for start in begins + more), told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "keys and values"),
        ("name: [", "not YAML"),
        (GOOD + "name: again\n", "corpus.yaml:7: the key name is repeated .first in line 1"),
        (GOOD.replace("encode: {}\n", ""), "autobleu needs what encode makes"),
        (GOOD.replace("name: test\n", ""), "name is missing; name of the corpus"),
        (
            GOOD.replace("lang: eng_Latn", "lang: eng_Latn, keep: [text]"),
            r"keep names text, which the corpus itself uses; .* in docs/reference/corpus-format\.md are reserved\)",
        ),
        (GOOD.replace("in/*.jsonl", "in").replace("output: out", "output: in/out"), "lies inside input"),
        (GOOD + "segment: {model: other}\nencode: {model: sonar-tiny}\n", "is repeated"),
        (GOOD.replace("encode: {}", "encode: {model: a}") + "segment: {model: b}\n", "segment.model is b"),
    ],
)
def test_what_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_set_overrides_nested_keys_and_list_entries(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = load_config(path, ["encode.batch_tokens=4096", "input.0.limit=5", "segment.max_tokens=null"])
    assert config.encode and config.encode.batch_tokens == 4096
    assert config.input[0].limit == 5
    assert config.segment.max_tokens is None
    trained = load_config(path, ["train.lr=1e-3", "train.eps=1E-8", "train.batch_concepts=256", "scaler={}"]).train
    assert trained and (trained.lr, trained.eps, trained.micro_concepts) == (1e-3, 1e-8, 256)
    assert load_config(path, ["train.lr=1e-3", "train=null"]).train is None
    assert load_config(path, ["scaler="]).scaler and not load_config(path, ["scaler=null"]).scaler
    with pytest.raises(ConfigError, match=r"^--set aa.bb.cc=1: unknown key aa; "):
        load_config(path, ["aa.bb.cc=1"])
    with pytest.raises(ConfigError, match=r"^--set train.lr=-1e3: train.lr is -1000.0; allowed: greater than 0"):
        load_config(path, ["train.lr=-1e3"])
    for wrong, message in (("encode", "key=value"), ("input.7.limit=1", "0 to 0"), ("name.x=1", "has no keys")):
        with pytest.raises(ConfigError, match=message):
            load_config(path, [wrong])


@pytest.mark.parametrize("null", ["null", "~", "Null"])
def test_null_leaves_a_section_out_and_an_empty_one_is_its_defaults(tmp_path: Path, null: str) -> None:
    head = "name: a\noutput: o\ninput: [{path: in/*.jsonl, lang: eng_Latn}]\n"
    path = write(tmp_path, head + "".join(f"{name}: {null}\n" for name in ("encode", "autobleu", "report", "train")))
    left_out = load_config(path)
    assert (left_out.encode, left_out.autobleu, left_out.report, left_out.train) == (None,) * 4
    again = load_config(path, ["encode.model=sonar-tiny", "autobleu.sample=0.5"])
    assert again.autobleu and again.autobleu.sample == 0.5
    empty = load_config(write(tmp_path, f"{head}encode:\nautobleu:\nreport: {{}}\n"))
    assert empty.encode and empty.autobleu and empty.report is not None


@pytest.mark.parametrize(
    "line, says",
    [
        ("input: data/*.jsonl", 'input is "data/*.jsonl"; allowed: a list: [data/*.jsonl]'),
        ("input: {path: a}", 'input is {"path": "a"}; allowed: a list: [a, b], or lines that begin with -.'),
        ("input: []", "input is []; allowed: a list of 1 or more."),
        ("input: [a.jsonl]", 'input 1 is "a.jsonl"; allowed: keys and values: {key: value, …}, or {} for defaults. '),
        ("autobleu: true", "autobleu is true; allowed: keys and values: {key: value, …}, or {} for defaults."),
    ],
)  # fmt: skip
def test_wrong_kinds_of_values_are_told_in_the_words_of_yaml(tmp_path: Path, line: str, says: str) -> None:
    head = "" if line.startswith("input") else "input: [{path: a.jsonl, lang: eng_Latn}]\n"
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_config(write(tmp_path, f"name: a\noutput: o\n{head}{line}\n"))


@pytest.mark.parametrize("time", ["24:00:00", "1:30", "2-12:00"])
def test_numbers_with_colons_stay_text(tmp_path: Path, time: str) -> None:
    """YAML 1.1 would read them to base 60: 24:00:00 as 86400, which a time limit takes as minutes."""
    path = write(tmp_path, GOOD + f"launcher: {{kind: slurm, time: {time}}}\n")
    assert load_config(path).launcher.time == time
    assert load_config(path, [f"launcher.time={time}"]).launcher.time == time


@pytest.mark.parametrize(
    "override",
    [
        "output=s3://me:hidden@bucket/corpus",
        "input.0.path=https://host/a.jsonl?X-Amz-Signature=hidden",
        "input.0.path=https://account.blob.core.windows.net/in/a.jsonl?sv=1&sig=hidden",
        "launcher={kind: slurm, setup: [export AWS_SECRET_ACCESS_KEY=hidden]}",
    ],
)
def test_credentials_are_refused_and_not_repeated(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"holds credentials .*environment variables") as caught:
        load_config(write(tmp_path, GOOD), [override])
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "output=abfs://container@account.dfs.core.windows.net/corpus",
        "input.0.path=https://host/a.jsonl?download=true",
        "launcher={kind: slurm, setup: [export AWS_SECRET_ACCESS_KEY=$(cat ~/.key)]}",
    ],
)
def test_what_only_looks_like_credentials_is_taken(tmp_path: Path, override: str) -> None:
    assert load_config(write(tmp_path, GOOD), [override])


def test_the_tokenizer_of_segment_and_the_decoder_follow_encode(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD.replace("encode: {}", "encode: {model: other}")))
    assert config.segment.model == "other"
    assert config.autobleu and config.autobleu.model == "other"
    config = load_config(write(tmp_path, GOOD), ["encode.model=cards/mine.yaml", "segment.sat=cards/sat.yaml"])
    assert config.encode and config.encode.model == config.segment.model == str(tmp_path / "cards/mine.yaml")
    assert config.segment.sat == str(tmp_path / "cards/sat.yaml")


def models(kind: type[BaseModel]) -> set[type[Settings]]:
    found = set(Settings.__subclasses__())
    for one in list(found):
        found |= set(one.__subclasses__())
    return {one for one in found if one.model_fields}


def test_every_setting_says_whether_it_carries_meaning() -> None:
    for model in models(RunConfig):
        for name, info in model.model_fields.items():
            assert role(info.json_schema_extra) in ("meaning", "execution"), f"{model.__name__}.{name}"
            assert info.description, f"{model.__name__}.{name} has no description"


def test_the_sample_configuration_loads() -> None:
    config = load_config(ROOT / "conf/sample.yaml")
    assert config.name == "sample"
    assert config.output == str(ROOT / "runs/sample")


@pytest.mark.parametrize("text", [GOOD, GOOD.replace("encode: {}\nautobleu:\n", ""), "sample", "sample-full"])
def test_what_a_run_keeps_of_its_configuration_makes_the_same_one(tmp_path: Path, text: str) -> None:
    config = load_config(write(tmp_path, text) if text.startswith("name") else ROOT / f"conf/{text}.yaml")
    (tmp_path / "runs").mkdir()
    again = load_config(write(tmp_path / "runs", config.as_yaml()))
    assert again == config
    assert [name for name in STAGES if getattr(again, name)] == [name for name in STAGES if getattr(config, name)]


_HANG = "\n".join(
    [
        "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)),
    ]
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_HANG, "holds more than 100000 values"),
        ("name: &a [*a]", r"\*a refers to itself"),
        ("name: &a {b: *a}", r"\*a refers to itself"),
        ("name: " + "[" * 5000, "more than 50 deep"),
        ("name: " + "{a: " * 5000, "more than 50 deep"),
        ("name: " + "1" * 5000, "a number has more than 1000 digits"),
        ("name: 0x" + "f" * 4000, "a number has more than 1000 digits"),
        ("name: 0b" + "1" * 90_000, "a number has more than 1000 digits"),
        ("name: !!int 0x" + "f" * 4000, "a number has more than 1000 digits"),
        (r'name: "\ud800"', "line 1: a text has a surrogate"),
        (r'name: "\ud83d\ude00"', r"write the character itself, or as \\U with eight digits"),
        ('seed: !!int "0x ' + "f" * 4000 + '"', "line 1: a number has more than 1000 digits"),
        ('seed: !!int "0b' + "１" * 4000 + '"', "line 1: a number has more than 1000 digits"),
        ("seed: !!bool maybe", "a value is not of the type that its tag"),
        ("seed: !!timestamp 1", "a value is not of the type that its tag"),
        ("name: 2024-13-45", "a value cannot be read"),
        ("name: " + "x" * (5 << 20), "at most 4194304 are read"),
        ("name: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
)
def test_yaml_neither_hangs_nor_breaks(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "corpus.yaml").write_text(text)
    started = time.process_time()
    done = pipeline("plan", tmp_path / "corpus.yaml")
    assert done.returncode == 2 and re.search(why, done.stderr), done
    (tmp_path / "card.yaml").write_text(text)
    with pytest.raises(CardError, match=why):
        load_card(str(tmp_path / "card.yaml"))
    with pytest.raises(CardError, match=why):
        load_sat_card(str(tmp_path / "card.yaml"))
    if len(text) < 100:
        with pytest.raises(ConfigError, match=f"--set .*(?s:.)*{why}"):
            load_config(Path("sample"), [f"name={text.partition(': ')[2]}"])
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; a corpus.yaml is keys and values"),
        ("- a\n", "holds a list; a corpus.yaml"),
        ("? [a]\n: b\n", "(?s)is not YAML: .*unhashable key"),
        ("name: a\ninput:\n\t- path: in\n", "(?s)in line 3, column 1.*; indent with spaces, not with tabs"),
        ("\nseed: " + "9" * 5000, "line 2: a number has more than 1000 digits"),
    ],
)
def test_what_is_no_configuration_at_all(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, text))
    assert str(caught.value).startswith(str(tmp_path))


def test_text_of_another_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.write_bytes(path.read_bytes() + "# caf\u00e9\n".encode("latin-1"))
    lines = GOOD.count("\n") + 1
    with pytest.raises(ConfigError, match=rf"{path}:{lines}: not UTF-8 text \(.*; convert it: iconv -f ENCODING"):
        load_config(path)


def test_values_are_shown_by_their_beginning(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.name is \"nnn.*at most 100") as caught:
        load_config(write(tmp_path, GOOD), ["train.name=" + "n" * 300])
    assert "n" * 101 not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lr", "1e300"),
        ("min_lr", "1e300"),
        ("eps", "1e300"),
        ("weight_decay", "1e300"),
        ("clip_norm", "1e300"),
        ("weight", "1e300"),
        ("epochs", "1e300"),
        ("batch_concepts", "1000000000000"),
        ("micro_concepts", "1000000000000"),
        ("timeout_seconds", "1" + "0" * 16),
    ],
)
def test_numbers_of_a_training_that_torch_or_memory_cannot_take_are_refused(
    tmp_path: Path, setting: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=rf"train\.{setting} is .*allowed: less than or equal to") as caught:
        load_config(write(tmp_path, GOOD), ["scaler={}", f"train.{setting}={value}"])
    assert "\n" not in str(caught.value)
