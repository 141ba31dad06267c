"""`--json`: one object for scripts, whose keys stay; docs/reference/json.md names each of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.as_json import plain
from pipeline.monitor.phase_status import PhaseState, WorkerState
from tests.conftest import ROOT, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, pipeline_process, said

KEYS = {
    "status": "corpus name fine run accounting trainings exports",
    "plan": "corpus name nothing_to_do estimate stages chunks_to_segment same_files further view warnings",
    "doctor": "fine checks",
    "models": "sonar sat lcm trained",
    "verify": "corpus fine wrong repaired",
    "gc": "corpus files bytes kept deleted",
    "quarantine": "corpus reasons bytes_unreadable records",
    "select": "corpus select digest counts chunks_not_segmented",
    "inspect": "corpus where quantiles by_lang by_length everything rows_read rows least_sample unscored_parts "
    "corpus_bleu scores worst",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished corpus with one record in quarantine."""
    folder = tmp_path_factory.mktemp("json")
    write_jsonl(folder / "in/a.jsonl", [*sample_documents("libreoffice-eng", 3), {"id": "x", "lang": "eng_Latn"}])
    path = write_config(folder)
    assert pipeline("run", path).returncode == 0
    return path


def of(command: str, *arguments: object, code: int = 0) -> dict[str, Any]:
    done = pipeline(command, *arguments, "--json")
    assert done.returncode == code, said(done)
    found: dict[str, Any] = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(found)[:2] == ["schema", "command"] and (found["schema"], found["command"]) == (1, command)
    return found


@pytest.mark.parametrize("command", KEYS)
def test_keys_stay_and_are_documented(corpus: Path, command: str) -> None:
    arguments = {"models": (), "doctor": (corpus, "--no-ray")}.get(command, (corpus,))
    found = of(command, *arguments)
    assert list(found)[2:] == KEYS[command].split()
    page = (ROOT / "docs/reference/json.md").read_text("utf-8")
    section = re.split(r"^## ", page, flags=re.MULTILINE)
    (mine,) = (one for one in section if one.startswith(f"`{command}`"))
    assert all(f"`{key}`" in mine for key in KEYS[command].split()), mine


def test_keys_of_phases_and_of_their_workers_stay() -> None:
    worker = WorkerState("slurm-6_0", "node", "00000", 1.0, 1, 9, 9.0, 0.0, quiet=False, lost=False)
    found = plain(PhaseState("main", claims=1, held=1, workers=[worker]))
    assert {"kind", "number", "over", "claims", "done", "held", "lost", "chunks", "chunks_done"} <= found.keys()
    assert {"name", "host", "claim", "seconds", "parts", "sentences", "rate", "silent"} <= found["workers"][0].keys()


def test_what_they_say(corpus: Path) -> None:
    status = of("status", corpus)
    assert status["fine"] and status["run"]["done"] and status["run"]["launcher"] == "inline"
    assert status["accounting"]["documents_in"] == 4 and status["accounting"]["quarantined"] == {
        "text column missing": 1
    }
    assert of("plan", corpus)["nothing_to_do"]
    changed = of("plan", corpus, "--set", "autobleu.sample=1.0")
    assert not changed["nothing_to_do"]
    (autobleu,) = (one for one in changed["stages"] if one["stage"] == "autobleu")
    assert autobleu["left"] == 1 and autobleu["reasons"] == {"autobleu.sample: 0.2 → 1.0": 1}
    (record,) = of("quarantine", corpus)["records"]
    assert record["reason"] == "text column missing" and "a.jsonl line 4" in record["place"]
    counts = of("select", corpus)["counts"]
    assert counts["sentences"] == counts["kept"] == of("inspect", corpus)["rows"] > 0
    assert of("inspect", corpus, "--where", "chars > 99999")["everything"]["mean"] is None


def test_what_is_wrong_has_the_exit_code_it_has_without(corpus: Path, tmp_path: Path) -> None:
    (file,) = corpus.parent.glob("out/sentences/*/*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        found = of("verify", corpus, code=1)
    finally:
        file.write_bytes(whole)
    assert not found["fine"] and found["wrong"][0]["path"].startswith("sentences/")
    for command, options in (("status", ["--watch"]), ("inspect", ["--to", tmp_path / "x.csv"])):
        refused = pipeline(command, corpus, *options, "--json")
        assert refused.returncode == 2 and "--json" in refused.stderr and not refused.stdout


@pytest.mark.parametrize(("shell", "line"), [("bash", "--refit"), ("zsh", '"--refit":"'), ("fish", "--refit\t")])
def test_shells_complete_commands_and_options(shell: str, line: str) -> None:
    """One candidate per line, also where its description is longer than a terminal is wide."""

    def completed(*words: str) -> list[str]:
        asked = {
            "_PIPELINE_COMPLETE": f"complete_{shell}", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": " ".join(words), "_TYPER_COMPLETE_FISH_ACTION": "get-args", "COLUMNS": "80",
        }  # fmt: skip
        return pipeline_process(env=asked).stdout.splitlines()

    options = completed("pipeline", "run", "--")
    assert any(one.removeprefix("_arguments '*: :((").startswith(line) for one in options), options
    assert all("--" in one for one in options), options
    assert "plan" in completed("pipeline", "pl")[0]


def test_completion_is_offered() -> None:
    done = pipeline("--help")
    assert "--install-completion" in done.stdout and "--show-completion" in done.stdout
