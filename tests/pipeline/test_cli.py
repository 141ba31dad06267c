"""The commands as a person types them: output, exit codes, errors in words."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from pipeline.base.errors import ConfigError
from pipeline.cli import KEPT, app
from pipeline.commands import compare
from pipeline.corpus.reader import Corpus
from pipeline.training.evaluation.measure import METRICS
from tests.conftest import MakeConfig, sample_documents, write_jsonl
from tests.support.cli import pipeline, pipeline_process
from tests.support.processes import start
from tests.support.runs import bring_up_to_date


def test_a_corpus_from_first_plan_to_inspect(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    plan = pipeline("plan", path)
    assert plan.returncode == 0 and re.search(r"segment +0 chunks +3 chunks", plan.stdout), plan
    run = pipeline_process("run", path)
    assert run.returncode == 0, run
    assert re.search(r"documents +14 in = 14 kept \+ 0 dropped \+ 0 quarantined", run.stdout)
    assert "done in" in run.stdout
    again = pipeline("run", path)
    assert again.returncode == 0 and "Nothing to do" in again.stdout
    status = pipeline("status", tmp_path / "out")
    assert status.returncode == 0 and "14 in = 14 kept" in status.stdout
    inspect = pipeline("inspect", path, "--worst", "2", "--lang", "deu_Latn")
    assert inspect.returncode == 0 and inspect.stdout.count("→") == 2, inspect
    assert "deu_Latn" in inspect.stdout and "eng_Latn" not in inspect.stdout
    summary = json.loads(next((tmp_path / "out/runs").glob("*/summary.json")).read_text())
    assert summary["done"] and not summary["failures"]
    assert "has changed" not in inspect.stderr
    path.write_text(path.read_text() + "select: chars > 10\n")
    assert "has changed" not in pipeline("status", path).stderr
    path.write_text(
        path.read_text().replace("max_chars: 80", "max_chars: 70").replace("autobleu:", "scaler: {}\nautobleu:")
    )
    edited = pipeline("status", path)
    assert edited.returncode == 0 and "newest run (segment.max_chars, scaler)" in edited.stderr, edited


AT_AN_IMPORT = """
import os, signal, sys
module, sys.argv[1:] = sys.argv[1], ["plan", "sample"]
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run where it is ignored
from pipeline.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ""),
        ("pipeline.commands.train", ""),
        ("pyarrow", "Interrupted.\n"),
        ("pipeline.planning.plan", "Interrupted.\n"),
    ],
)
def test_ctrl_c_while_modules_are_imported(module: str, words: str) -> None:
    """Those of the program end it without a word, those of a command interrupt that."""
    done = subprocess.run([sys.executable, "-c", AT_AN_IMPORT, module], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", words), done


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("pipeline.training.evaluation.evaluate", ["evaluate", "out"], "Interrupted."),
        ("pipeline.training.comparison.compare", ["ablate", "a.yaml"], KEPT[compare.ablate]),
        ("pipeline.training.comparison.compare", ["compare-objectives", "a.yaml"], KEPT[compare.compare_objectives]),
        ("pipeline.quality.decoders", ["compare-decoders", "out", "a", "b"], "Interrupted."),
        ("pipeline.training.evaluation.generate", ["generate", "out", "--model", "a"], "Interrupted."),
    ],
)
def test_an_interrupted_command_says_so(module: str, arguments: list[str], words: str) -> None:
    program = AT_AN_IMPORT.replace('["plan", "sample"]', repr(arguments))
    done = subprocess.run([sys.executable, "-c", program, module], capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr.startswith("Interrupted.") and words in done.stderr, done


def test_the_program_begins_where_ctrl_c_is_handled() -> None:
    assert "pipeline = pipeline.__main__:main" in (Path(__file__).parents[2] / "setup.cfg").read_text()


def test_an_output_that_is_not_utf_8(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    path.write_text(re.sub("name: .*", "name: 中 → ü", path.read_text()), encoding="utf-8")
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    run = pipeline_process("run", path, "--until", "segment", env=ascii_only)
    assert run.returncode == 0 and "\\u4e2d \\u2192 \\xfc" in run.stdout, run
    assert len(list((tmp_path / "out/runs").glob("*/summary.json"))) == 1
    assert json.loads(pipeline_process("status", path, "--json", env=ascii_only).stdout)["name"] == "中 → ü"


def test_stages_one_after_the_other(make_config: MakeConfig) -> None:
    path = make_config()
    assert pipeline("run", path, "--until", "segment").returncode == 0
    status = pipeline("status", path)
    assert re.search(r"no encode yet: \d+ parts", status.stdout)
    too_early = pipeline("run", path, "--only", "autobleu")
    assert too_early.returncode == 1 and "needs embeddings.embedding" in too_early.stdout
    assert pipeline("run", path, "--only", "encode").returncode == 0
    assert pipeline("run", path, "--only", "autobleu").returncode == 0


def test_a_sample_that_draws_no_row_is_told_before_and_after(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(autobleu={"sample": 1e-7})
    assert re.search(
        r"autobleu\.sample 1e-07 draws none, probably, of about \d+ sentences", pipeline("plan", path).stdout
    )
    run = pipeline("run", path)
    told = re.search(r"drew none of the (\d+) sentences here.*\{sample: (0\.[0-9]+)\}", run.stdout)
    assert run.returncode == 0 and told and "add a section" not in run.stdout, run
    assert told[0] in pipeline("inspect", tmp_path / "out").stdout
    assert "drew none of the" in pipeline("inspect", tmp_path / "out", "--where", "chars > 70").stdout
    again = pipeline("run", path, "--set", f"autobleu.sample={told[2]}")
    assert again.returncode == 0 and "drew none" not in again.stdout, again


def test_inspect_says_how_many_parts_are_not_scored_yet(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    bring_up_to_date(path)
    done = len(Corpus(str(tmp_path / "out")).parts)
    write_jsonl(tmp_path / "in/more.jsonl", sample_documents("libreoffice-eng", 8)[6:])
    assert pipeline("run", path, "--until", "segment").returncode == 0
    left = len(Corpus(str(tmp_path / "out")).parts) - done
    shown = pipeline("inspect", path).stdout
    assert re.search(rf"once every part has it; {left} parts? ha(s|ve) none yet: run again", shown), shown
    assert "add a section" not in shown


def test_plan_and_status_count_the_same_rows_of_a_sample(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(autobleu={"sample": 0.3})
    assert pipeline("run", path).returncode == 0
    (rate,) = re.findall(r"autobleu (\S+(?: \d+)?)/s", pipeline("status", tmp_path / "out").stdout)
    assert re.search(rf"autobleu +\d+ parts +0 parts +0 +{rate} +–", pipeline("plan", path).stdout)
    more = pipeline("plan", path, "--set", "autobleu.length_extra=9").stdout
    found = re.search(r"autobleu +0 parts +\d+ parts +([\d ]+?)  ", more)
    rows = Corpus(str(tmp_path / "out")).rows
    assert found and int(found[1].replace(" ", "")) == round(0.3 * rows), more


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "nowhere.yaml"), 2, "cannot read nowhere.yaml"),
        (("run", "smaple"), 2, "those are: sample"),
        (("run", "{config}", "--set", "encode.batch=3"), 2, "did you mean batch_tokens"),
        (("run", "{config}", "--set", "encode.model=nope"), 2, "nope"),
        (("run", "{config}", "--only", "rvq"), 2, "allowed: segment, encode, autobleu"),
        (("run", "{config}", "--launcher", "slrum"), 2, "launcher.kind"),
        (("run", "{config}", "--wrong"), 2, "--wrong"),
        (("run", "{config}", "--set", "input.0.path=in/*.nothing"), 2, "nothing"),
        (("status", "{folder}"), 1, "is not a corpus"),
        (("status", ""), 2, "CORPUS is empty; give the folder or URL of a corpus, or its YAML file"),
        (("plan", " "), 2, "CORPUS.YAML is empty; give the corpus.yaml to use"),
        (("doctor", ""), 2, "CORPUS.YAML is empty"),
        (("init", "in", ""), 2, "DATA is empty; give files, folders"),
        (("inspect", "{folder}", "--where", ""), 2, "--where is empty; give a value (only rows"),
        (("run", "{config}", "--set", ""), 2, "--set is empty"),
        (("inspect", "{folder}"), 1, "is not a corpus"),
    ],
)
def test_exit_codes_and_words(
    make_config: MakeConfig, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    path = make_config()
    result = pipeline(*(one.format(config=path, folder=tmp_path) for one in arguments))
    assert result.returncode == code, result
    assert words in result.stderr, result.stderr
    assert "Traceback" not in result.stderr


def test_names_that_are_not_utf8_are_refused_and_what_lies_there_is_not_called_damaged(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_config()
    assert pipeline("run", path).returncode == 0
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    (tmp_path / "out").rename(odd / "out")
    path.rename(odd / path.name)
    before = sorted(odd.rglob("*"))
    for arguments in (
        ("status", odd / "out"),
        ("verify", odd / "out", "--repair"),
        ("inspect", "runs/x", "--where", f"doc_id == '{odd.name}'"),
        ("export", "runs/x", "--format", "parquet", "--to", odd / "e"),
        ("init", odd, "--to", "-"),
    ):
        done = pipeline(*arguments)
        assert (done.returncode, "caf\\udce9" in done.stderr, "is not UTF-8" in done.stderr) == (2, True, True), done
    with pytest.raises(ConfigError, match=r"caf\\udce9/out: the name of a folder is not UTF-8"):
        Corpus(str(odd / "out"))
    monkeypatch.chdir(odd)
    for arguments in (("plan", path.name), ("run", path.name), ("status", "out"), ("init", "in.jsonl")):
        done = pipeline(*arguments)
        assert done.returncode == 2 and "the name of the working directory" in done.stderr, done
    with pytest.raises(ConfigError, match="the name of a folder is not UTF-8"):
        Corpus("out")
    assert sorted(odd.rglob("*")) == before
    (odd / "out").rename(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    assert pipeline("verify", "out").returncode == 0


def test_ctrl_c_keeps_what_is_finished(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    process = start("run", path, apart=True)
    deadline = time.monotonic() + 600  # of a busy machine
    while not list((tmp_path / "out/receipts").rglob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "run the same command again" in errors and "Traceback" not in errors
    assert pipeline("run", path).returncode == 0


def test_a_working_directory_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = pipeline("status", "corpus")
    assert done.returncode == 1 and "the working directory was deleted" in done.stderr, done
    assert "change to another one, or give full paths" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "plan",
        "status",
        "inspect",
        "quarantine",
        "purge",
        "retry",
        "models",
        "schema",
        "doctor",
        "select",
        "export",
        "report",
        "verify",
        "gc",
    ],
)
def test_help_has_an_example(command: str) -> None:
    assert f"pipeline {command}" in pipeline(command, "--help").stdout


def test_no_help_loses_brackets_that_look_like_markup() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    texts = [one.help for command in group.commands.values() for one in (command, *command.params) if one.help]
    assert len(texts) > 100 and not [text for text in texts if re.search(r"(?<!\\)\[[a-z/#@]", text)]


def test_paragraphs_of_the_help_are_as_wide_as_the_terminal() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        assert not re.search(r"\S\n\S", command.help or ""), name


@pytest.mark.parametrize("command", ["export", "evaluate", "compare-segmenters", "compare-decoders", "flops"])
def test_a_narrow_terminal_cuts_no_word_off(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = pipeline(command, "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 60 and len(lines) > 60
    assert not [one for one in lines if re.search(r"[\w.-]…\s*│|--\S+…", one)]


def test_the_list_of_commands_is_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert "…" not in pipeline("--help").stdout


def test_every_metric_is_explained() -> None:
    told = pipeline("evaluate", "--help").stdout.partition("Examples")[0]
    assert set(METRICS) <= set(re.findall(r"\w+", told))


@pytest.mark.slow  # imports torch in a process of its own
@pytest.mark.parametrize(("given", "found"), [({}, "'1000'"), ({"GOMP_SPINCOUNT": "7"}, "'7'")])
def test_waiting_threads_spin_for_a_moment_only(given: dict[str, str], found: str) -> None:
    program = """
import sys
from pipeline.cli import main
sys.argv = ["pipeline", "--version"]
try:
    main()
except SystemExit:
    import torch
"""
    unset = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment = unset | {"OMP_DISPLAY_ENV": "verbose"} | given
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert re.search(rf"GOMP_SPINCOUNT = {found}", ran.stderr), ran.stderr


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "MemoryError('Unable to allocate 256. MiB')",
            "memory ran out (Unable to allocate 256. MiB): this process may",
        ),
        ("MemoryError()", "memory ran out (MemoryError): this process may have too little (ulimit -v, or the limit of"),
        ('RuntimeError("can\'t start new thread")', "the system allows no more threads: raise the limit (ulimit -u,"),
    ],
)
def test_what_the_system_does_not_give_is_told(error: str, told: str) -> None:
    program = f"from pipeline import cli\ndef fails(**_): raise {error}\ncli.app = fails\ncli.main()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = " ".join(ran.stderr.split())
    assert ran.returncode == 1 and told in said and said.endswith("finished work is kept"), ran
