"""How much commands say: -q, -v, --log-level, and what is said in any case; how long they take to say it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.base.messages import set_log, warn
from pipeline.cli import COMMANDS
from tests.conftest import MakeConfig, write_jsonl
from tests.support.cli import PIPELINE, pipeline


def test_a_quiet_run_says_nothing_unless_something_is_wrong(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(autobleu=None)
    done = pipeline("run", "-q", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "14 in = 14 kept" in pipeline("-q", "status", path).stdout  # that is what was asked for
    assert "14 in = 14 kept" in pipeline("run", path).stdout  # the next command is not quiet
    unscored = pipeline("inspect", path).stdout
    assert "No sentence has an AutoBLEU yet" in unscored and "tokens" in unscored and "p50" not in unscored, unscored
    one = {"id": "z", "lang": "eng_Latn", "title": "Short", "text": "One sentence."}
    write_jsonl(tmp_path / "in/z.jsonl", [one, one | {"text": 7}])
    path.write_text(path.read_text().replace("in/*.jsonl", "in/z.jsonl"))
    refused = pipeline("-q", "run", path)
    assert refused.returncode == 2 and "--accept-removal" in refused.stderr and not refused.stdout
    agreed = pipeline("run", path, "-q", "--accept-removal")
    assert agreed.returncode == 0 and not agreed.stdout and "leaves: " in agreed.stderr, agreed
    assert "1 record in quarantine of 2" in agreed.stderr, agreed


def test_the_log_goes_to_standard_error(make_config: MakeConfig) -> None:
    path = make_config(autobleu=None)
    plain = pipeline("plan", path, "--json")
    assert "INFO" not in plain.stderr
    chatty = pipeline("plan", "-v", path, "--json")
    assert chatty.stdout == plain.stdout and "INFO pipeline.console.activity: checking the inputs" in chatty.stderr
    steps = pipeline("-vv", "run", path).stderr
    assert "INFO pipeline.run.run: next step: main, 3 chunks to segment" in steps
    assert "DEBUG pipeline.run.run: " in steps and '"kind": "part"' in steps
    assert "INFO" in pipeline("plan", "--log-level", "INFO", path).stderr


def test_as_json_every_line_of_standard_error_is_an_object(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log, warnings and errors; a following command without the option writes text again."""
    path = make_config(autobleu=None)
    done = pipeline("run", "-vv", "--log-format", "json", path)
    assert done.returncode == 0 and "14 in = 14 kept" in done.stdout
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert all(datetime.fromisoformat(line["time"]).tzinfo == UTC for line in lines)
    step = next(line for line in lines if line["message"].startswith("next step: main"))
    assert (step["level"], step["logger"]) == ("info", "pipeline.run.run")
    parts = [line["event"] for line in lines if line.get("event", {}).get("kind") == "part"]
    assert parts and all(isinstance(one, dict) for one in parts)

    monkeypatch.setenv("PIPELINE_LOG_FORMAT", "json")
    written = path.read_text("utf-8")
    path.write_text(f"{written}\nautobleus: {{}}\n", "utf-8")
    refused = pipeline("plan", path)
    assert refused.returncode == 2
    (error,) = [json.loads(line) for line in refused.stderr.splitlines()]
    assert error["level"] == "error" and "did you mean autobleu?" in error["message"]

    monkeypatch.delenv("PIPELINE_LOG_FORMAT")
    assert pipeline("plan", path).stderr.startswith(str(path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--bogus"), "No such option: --bogus"),
        (("rnu",), "Did you mean 'run'?"),
        (("run",), "Missing argument 'CORPUS.YAML'."),
        (("inspect", "runs/x", "--worst", "many"), "Invalid value for '--worst'"),
        (("run", ""), "CORPUS.YAML is empty"),
    ],
)
def test_wrong_usage_is_told_as_json_where_that_is_asked_for(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: str) -> str:
        done = pipeline(*given)
        assert done.returncode == 2 and words in done.stderr and not done.stdout, done
        return done.stderr

    for given in (("--log-format", "json", *arguments), (*arguments, "--log-format=JSON")):
        (error,) = map(json.loads, refused(*given).splitlines())
        assert error["level"] == "error" and words in error["message"]
    monkeypatch.setenv("PIPELINE_LOG_FORMAT", "json")
    json.loads(refused(*arguments))
    assert pipeline().stderr == "" and "Start with" in pipeline().stdout
    monkeypatch.delenv("PIPELINE_LOG_FORMAT")
    assert not refused(*arguments).startswith("{")


def test_a_traceback_and_signs_that_steer_terminals_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_log("info", "json")
    log = logging.getLogger("pipeline.somewhere")
    try:
        raise ValueError("of a test")
    except ValueError:
        log.exception("two\nlines \x1b[31m and ü")
    console = Console(quiet=True)
    warn(console, "a part failed [/]\nand another")
    set_log("warning")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"] == "two\nlines \x1b[31m and ü" and "ValueError: of a test" in first["exception"]
    assert (second["level"], second["message"]) == ("warning", "a part failed [/]\nand another")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-q", "-v"), "leave out one of them"),
        (("--log-level", "loud"), "give one of debug, info, warning, error"),
        (("--log-format", "xml"), "give one of text, json"),
    ],
)
def test_options_that_contradict_are_refused(make_config: MakeConfig, options: tuple[str, ...], words: str) -> None:
    refused = pipeline("plan", make_config(), *options)
    assert refused.returncode == 2 and words in refused.stderr


def test_every_command_has_the_options() -> None:
    from typer.main import get_command

    from pipeline.cli import app

    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        names = {option for one in command.params for option in one.opts}
        assert {"-v", "-q", "--log-level", "--log-format"} <= names, name
    assert sum(map(len, COMMANDS.values())) > 20


def test_what_must_not_be_missed_goes_to_standard_error_of_a_quiet_console(capsys: pytest.CaptureFixture[str]) -> None:
    warn(Console(quiet=True), "a part failed [/] \\x1b")
    assert capsys.readouterr() == ("", "a part failed [/] \\x1b\n")
    shown = io.StringIO()
    warn(Console(file=shown, width=80), "a part failed")
    assert shown.getvalue() == "a part failed\n" and capsys.readouterr() == ("", "")


def test_looking_at_a_corpus_imports_nothing_large(make_config: MakeConfig) -> None:
    path = make_config(autobleu=None)
    assert pipeline("run", path).returncode == 0
    for command in ("status", "plan"):
        told = subprocess.run(
            [sys.executable, "-X", "importtime", PIPELINE, command, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        imported = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
        assert imported >= {"pyarrow", "pydantic"}
        large = {
            "pandas.core",
            "sacrebleu",
            "torch",
            "ray",
            "submitit",
            "spacy",
            "matplotlib",
            "transformers",
            "pyarrow.dataset",
        }
        assert not imported & large, (command, imported & large)
