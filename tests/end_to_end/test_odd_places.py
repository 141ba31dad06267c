"""Folders whose names look like patterns, patterns that mean nothing, and a project's own folder `runs`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import PIPELINE, pipeline, said, warnings_of


def test_a_project_in_a_folder_with_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's name is no pattern, neither in what `init` writes nor before a pattern."""
    home = tmp_path / "books [old] *"
    write_jsonl(home / "data [1]/deep/a.jsonl", sample_documents("libreoffice-deu", 3))
    write_jsonl(tmp_path / "books o */data [1]/b.jsonl", sample_documents("libreoffice-deu", 4))
    monkeypatch.chdir(home)
    made = pipeline("init", "data [1]", "--name", "mine")
    assert made.returncode == 0 and "data [1]/**/*.jsonl" in Path("corpus.yaml").read_text(), said(made)
    done = pipeline("plan", "corpus.yaml", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["estimate"]["documents"] == 3, said(done)


@pytest.mark.parametrize(
    "path, says",
    [
        ("in/**.jsonl", "** stands in a name; alone between slashes"),
        ("in/{a,b}.jsonl", "{a,b} has no meaning in it"),
        ("${DATADIR}/*.jsonl", "variables of the environment are not expanded"),
        ("$DATADIR", "are not expanded in corpus.yaml: write their values"),
    ],
)
def test_patterns_that_mean_something_elsewhere(tmp_path: Path, path: str, says: str) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-deu", 1))
    done = pipeline("plan", write_config(tmp_path, input=[{"path": path, "lang": "deu_Latn"}]))
    assert done.returncode == 2 and says in done.stderr and "corpus.yaml:" in done.stderr, said(done)


def test_a_project_with_a_folder_of_corpora_is_no_damaged_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`runs` is where the documentation puts corpora, and where a corpus has its own runs."""
    (tmp_path / "runs/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for command in (["status", "."], ["verify", ".", "--repair"], ["gc", str(tmp_path)]):
        done = pipeline(*command)
        assert done.returncode in (1, 2) and "is not a corpus" in done.stderr, said(done)
    assert [one.name for one in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_closed_and_full_standard_streams(tmp_path: Path) -> None:
    """A closed one must not give its number to a file of the corpus, and a full one is not the corpus's disk."""
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-deu", 2))
    path = write_config(tmp_path, autobleu=None)
    command = f"{shlex.quote(str(PIPELINE))} run {shlex.quote(str(path))}"
    done = subprocess.run(["bash", "-c", f"{command} >/dev/full"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stderr
    (told,) = warnings_of(done)
    assert told.startswith("standard output cannot be written: No space left on device"), done.stderr
    assert subprocess.run(["bash", "-c", f"{command} <&- >&- 2>&-"], timeout=600).returncode == 0
    script = (
        "import os, pipeline.__main__ as main; main._open_standard_streams(); "
        "os._exit(sum(not os.get_inheritable(number) for number in range(3)))"  # processes that it starts have them too
    )
    inherited = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} <&- >&- 2>&-"
    left = f"set -o pipefail; {command} | true"  # a reader that leaves, as `head` does
    done = subprocess.run(["bash", "-c", left], capture_output=True, text=True, timeout=600)
    told = "nothing reads standard output any more; what the command does may be unfinished"
    assert done.returncode == 141 and told in done.stderr.splitlines(), done.stderr
    for reading in (f"plan {path}", f"files {tmp_path / 'out'}", f"status {tmp_path / 'out'} --json", "schema"):
        left = f"set -o pipefail; {shlex.quote(str(PIPELINE))} {reading} | true"
        done = subprocess.run(["bash", "-c", left], capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (141, ""), (reading, done)
        full = f"{shlex.quote(str(PIPELINE))} {reading} >/dev/full"
        done = subprocess.run(["bash", "-c", full], capture_output=True, text=True, timeout=600)
        assert done.returncode == 1 and done.stderr.startswith("standard output cannot be written"), (reading, done)
    for reading in ("--help", "run --help", ""):
        left = f"set -o pipefail; {shlex.quote(str(PIPELINE))} {reading} | true"
        done = subprocess.run(["bash", "-c", left], capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (141, ""), (reading, done)
    assert subprocess.run(["bash", "-c", inherited], timeout=600).returncode == 0
    assert pipeline("run", path).stdout.startswith("Nothing to do.") and pipeline("verify", path).returncode == 0
