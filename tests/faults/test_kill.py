"""kill -9 at seeded moments, Ctrl-C, SIGTERM; resumed: nothing lost, nothing twice, the same bytes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.support.cli import pipeline
from tests.support.kills import EVERY, KILLS, USUAL, check_resumed, files, killed
from tests.support.processes import Process, start
from tests.support.runs import bring_up_to_date

pytestmark = pytest.mark.faults


def kill_after(run: Callable[[], Process], folder: Path, new_files: int, delay: float) -> bool:
    """Start, wait until so many files are new, kill the whole process group. False if it was done before."""
    before = files(folder)
    process = run()
    deadline = time.monotonic() + 600  # of a busy machine
    while files(folder) < before + new_files and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.003)
    time.sleep(delay)
    killed = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return killed


@pytest.mark.parametrize(("launcher", "kills"), [("inline", KILLS), ("local", KILLS if EVERY else 2)])
def test_killed_and_resumed(make_config: MakeConfig, tmp_path: Path, launcher: str, kills: int) -> None:
    if kills > USUAL:  # enough work that none of them comes too late
        documents = [one for name in ("eng", "deu") for one in sample_documents(f"libreoffice-{name}", kills // 2)]
        write_jsonl(tmp_path / "in/some.jsonl", documents)
    rvq = {"codebooks": 2, "units": 16, "initialization": "kmeans"}
    path = make_config(segment={"method": "spacy-capped", "max_chars": 12}, scaler={}, rvq=rvq)  # many small parts
    assert pipeline("run", path, "--set", f"output={tmp_path / 'whole'}").returncode == 0
    expected = data_digests(tmp_path / "whole")

    def run() -> Process:
        return start("run", path, "--launcher", launcher, session=True)

    moments = random.Random(f"kill {launcher}")
    killed = 0
    for _ in range(kills):
        # a run begins with 2 to 7 files of its own; a part brings 9 (5 of data, 3 receipts, 1 mark of its start)
        killed += kill_after(run, tmp_path / "out", moments.randint(4, 12), moments.uniform(0, 0.03))
    assert killed == kills, "the run was over before the last kill: use a larger corpus"
    check_resumed(path, tmp_path / "out", expected, launcher)


DECODER = {"steps": 6, "batch_tokens": 256, "warmup": 2, "precision": "float32", "checkpoint_seconds": 1e-9}
SECTIONS: dict[str, tuple[dict[str, Any], int]] = {  # and how many changes there are at least
    "fits": ({"scaler": {}, "rvq": {"codebooks": 2, "units": 4}}, 40),
    "scores": (
        {
            "plans": {"column": "topics"}, "language": {}, "noise": {}, "scaler": {},
            "rvq": {"codebooks": 2, "units": 4},
            "duplicates": {"near": {}, "semantic": {"cosine": 0.9}}, "duplicate_ids": "keep-first",
            "autobleu": {"sample": 0.1, "length_extra": 1, "length_factor": 1.0},
            "fragility": {"sample": 1, "noise_levels": [0.1], "precision": "float32"}, "predictor": {},
        }, 60,
    ),
    "decoder": ({"scaler": {}, "decoder": DECODER}, 30),
}  # fmt: skip


@pytest.mark.parametrize(
    ("sections", "place"),
    [*((one, "disk") for one in SECTIONS), *((one, "S3") for one in SECTIONS if EVERY or one == "scores")],
)
def test_killed_before_every_change(
    make_config: MakeConfig, tmp_path: Path, request: pytest.FixtureRequest, sections: str, place: str
) -> None:
    """Few documents through stages and fits: every state that a kill can leave."""
    documents = sample_documents("libreoffice-eng", 1 if sections == "fits" else 3)
    topics = [one | {"topics": ["A page of help", one["title"]]} for one in documents]
    write_jsonl(tmp_path / "in/a.jsonl", topics if sections == "scores" else documents)
    settings, changes = SECTIONS[sections]
    keep = ["title", "topics"] if sections == "scores" else ["title"]
    source = {"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": keep}
    path = make_config(**{"input": [source], "part_sentences": 1000, "autobleu": None} | settings)
    whole = f"output={tmp_path / 'whole'}"
    assert pipeline("run", path, "--set", whole).returncode == 0
    expected = data_digests(tmp_path / "whole")
    outputs = request.getfixturevalue("bucket") if place == "S3" else tmp_path
    attempts = itertools.count(1)
    output = ""

    def prepared() -> tuple[object, ...]:
        nonlocal output
        output = f"{outputs}/killed-{next(attempts)}"
        return "run", path, "--set", f"output={output}"

    for _ in killed(prepared, f"{outputs}/killed", changes):
        check_resumed(path, output, expected, "inline")


@pytest.mark.parametrize(
    ("launcher", "sign"), [("inline", signal.SIGINT), ("local", signal.SIGINT), ("local", signal.SIGTERM)]
)
def test_interrupted_and_resumed(make_config: MakeConfig, tmp_path: Path, launcher: str, sign: signal.Signals) -> None:
    """Ctrl-C as a terminal sends it, to all processes of the group; SIGTERM as a machine that shuts down sends it."""
    path = make_config(segment={"method": "spacy-capped", "max_chars": 30})
    bring_up_to_date(path, f"output={tmp_path / 'whole'}")
    process = start("run", path, "--launcher", launcher, session=True)
    deadline = time.monotonic() + 600  # of a busy machine
    while not list((tmp_path / "out/receipts").rglob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, sign)
    shown, _ = process.communicate(timeout=600)
    # Where all get SIGTERM at once, Ray's node may end first; then Ray ends this process without another word.
    if (launcher, sign, process.returncode) != ("local", signal.SIGTERM, 1):
        assert process.returncode == 130, shown
        assert "Interrupted. Finished work is kept: run the same command again" in shown and "Traceback" not in shown
        (summary,) = (tmp_path / "out/runs").glob("*/summary.json")
        assert json.loads(summary.read_text())["interrupted"]
    deadline = time.monotonic() + 60  # Ray's processes end by themselves, soon after the one that started them
    with pytest.raises(ProcessLookupError):  # no process of the group is left
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    check_resumed(path, tmp_path / "out", data_digests(tmp_path / "whole"), "inline")
