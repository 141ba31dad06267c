"""How lines go to trackers: everything once and in order, and nobody waits for one that fails or hangs."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.training.trackers import feed, process
from pipeline.training.trackers.about import About, Attachment
from pipeline.training.trackers.feed import Feed

ABOUT = About(id="1", name="m", corpus="c", place="/c/train/m", folder="", config={}, facts={})
WRITES = """
import sys
with open(sys.argv[1], "w") as file:
    for line in sys.stdin:
        file.write(line)
        print('{"done": true}', flush=True)
"""
FAILS = """
import sys
sys.stdin.readline()
print('{"done": true}', flush=True)
sys.stdin.readline()
print('{"lost": "Trouble: no room"}', flush=True)
sys.stdin.read()
"""
HANGS = "import time; time.sleep(600)"


def lines(first: int, last: int) -> list[dict[str, Any]]:
    return [{"kind": "train", "step": step, "loss": step / 7, "note": "x" * 100} for step in range(first, last)]


def started(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> tuple[Feed, list[str]]:
    """A feed to one tracker, which is this program; it has three lines of an earlier start."""
    monkeypatch.setattr(feed, "PROGRAM", (sys.executable, "-S", "-c", program, *arguments))
    said: list[str] = []
    return Feed(["mlflow"], ABOUT, lines(1, 4), said.append), said


def test_all_lines_arrive_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = lines(1, 3000)
    taken, said = started(monkeypatch, WRITES, str(tmp_path / "got"))
    for line in wanted[3:]:
        taken.see(line)
    taken.end("done", Attachment(figures={"l2": 1.5}))
    got = [json.loads(line) for line in (tmp_path / "got").read_text("utf-8").splitlines()]
    assert got[0] == {"about": ABOUT.model_dump()}
    assert [line for one in got for line in one.get("lines", ())] == wanted
    assert max(len(one.get("lines", ())) for one in got) <= feed.AT_ONCE
    assert got[-1] == {"attachment": {"figures": {"l2": 1.5}, "files": {}}, "end": "done"}
    assert not said


def test_a_tracker_that_fails_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, said = started(monkeypatch, FAILS)
    for line in lines(4, 100):
        taken.see(line)
        time.sleep(0.002)
    taken.end("done")
    assert len(said) == 1, said
    assert said[0].startswith("MLflow is given up: Trouble: no room. The training is not affected; missing there: ")
    assert "of metrics.jsonl" in said[0]


@pytest.mark.parametrize("program", [HANGS, "raise SystemExit(3)", "import os; os.abort()"])
def test_nobody_waits_for_a_tracker_that_hangs_or_dies(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more lines than a pipe holds."""
    monkeypatch.setattr(feed, "STOP_PATIENCE", 0.1 if program == HANGS else 60.0)
    monkeypatch.setattr(feed, "KILL_SECONDS", 0.1)
    taken, said = started(monkeypatch, program)
    since = time.thread_time()
    for line in lines(4, 5000):
        taken.see(line)
    assert time.thread_time() - since < 1.0
    taken.end("stopped")
    why = "no answer for" if program == HANGS else "its process has ended"
    assert len(said) == 1 and why in said[0] and re.search(r"missing there: [\d\s]+ lines of metrics", said[0]), said


def test_a_process_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(feed, "PROGRAM", (str(tmp_path / "nothing"),))
    said: list[str] = []
    Feed(["wandb"], ABOUT, [], said.append).end("done")
    assert len(said) == 1 and "Weights & Biases is given up: its process cannot start" in said[0]


class Kept:
    """A tracker that keeps what it gets, and has some steps already."""

    def __init__(self, about: About) -> None:
        self.got: list[Any] = [about.name]

    def begin(self) -> dict[str, int]:
        return {"train": 5}

    def log(self, lines: list[dict[str, Any]]) -> None:
        if any(line["step"] == 13 for line in lines):
            raise OSError("http://me:hidden@host/x?key=abc says that sesame-open-up is wrong")
        self.got += [(line["kind"], line["step"]) for line in lines]

    def attach(self, attachment: Attachment) -> None:
        self.got.append(attachment.figures)

    def end(self, how: str) -> None:
        self.got.append(how)


def served(monkeypatch: pytest.MonkeyPatch, *messages: dict[str, Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """What a tracker gets of these messages, and the answers to them."""
    kept = Kept(ABOUT)
    monkeypatch.setattr(process, "tracker_of", lambda name, about: kept)
    waiting = [json.dumps(one) for one in ({"about": ABOUT.model_dump()}, *messages)] + [""]
    answers: list[dict[str, Any]] = []
    process.serve("wandb", lambda: waiting.pop(0), answers.append)
    return kept.got, answers


def test_steps_that_a_tracker_has_are_not_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    validation = {"kind": "validation", "step": 4, "loss": 1.0}
    got, answers = served(
        monkeypatch, {"lines": [*lines(4, 7), validation]}, {"attachment": {"figures": {"l2": 2.0}}, "end": "done"}
    )
    assert got == ["m", ("train", 6), ("validation", 4), {"l2": 2.0}, "done"]
    assert answers == [{"done": True}] * 3


def test_a_training_that_is_killed_ends_the_run_as_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, {"lines": lines(6, 7)})[0] == ["m", ("train", 6), "stopped"]


def test_errors_of_trackers_show_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "sesame-open-up")
    got, answers = served(monkeypatch, {"lines": lines(12, 14)}, {"end": "done"})
    assert got == ["m", "lost"]
    assert answers == [{"done": True}, {"lost": "OSError: http://host/x?… says that … is wrong"}]
