"""Trackers of a training: which may be asked for, and what Weights & Biases and MLflow then have of it."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.base.errors import ConfigError, DamagedError
from pipeline.base.extras import PACKAGES
from pipeline.config.load import load_config
from pipeline.config.train import TrainSettings
from pipeline.planning.checks import load_checked
from pipeline.planning.section_checks import tracker_problems
from pipeline.storage.store import Store
from pipeline.training.evaluation.end_of_training import evaluate_trained
from pipeline.training.record import read_started
from pipeline.training.status import read_metrics
from pipeline.training.trackers import feed
from pipeline.training.trackers.about import about
from tests.support.cli import pipeline, said
from tests.support.trainings import folder, steps_of, take_back_to, trained
from tests.support.wandb_files import read_run


def lines_of(corpus: Path, name: str, kind: str = "train") -> list[dict[str, Any]]:
    """As metrics.jsonl has them."""
    return [one for one in read_metrics(Store(str(corpus.parent / "out")), f"train/{name}") if one["kind"] == kind]


@pytest.mark.parametrize(
    "given, message",
    [
        ("[tensorboard, wandbb]", 'is "wandbb"; did you mean wandb? allowed: \'tensorboard\', \'wandb\' or \'mlflow\''),
        ("[mlflow, mlflow]", "mlflow is named twice; name each once"),
        ("wandb", 'train.trackers is "wandb"; allowed: a list: [wandb]'),
    ],
)  # fmt: skip
def test_wrong_trackers_are_told_with_their_line(made_corpus: Path, tmp_path: Path, given: str, message: str) -> None:
    path = tmp_path / "corpus.yaml"
    path.write_text(f"{made_corpus.read_text('utf-8')}\ntrain:\n  steps: 6\n  trackers: {given}\n", "utf-8")
    line = path.read_text("utf-8").split("\n").index(f"  trackers: {given}") + 1
    with pytest.raises(ConfigError) as told:
        load_config(path)
    assert f"{path}:{line}: train.trackers" in str(told.value) and message in str(told.value)


def test_a_damaged_identity_is_named_and_never_another_one(training_corpus: Path) -> None:
    trained(training_corpus, "known", trackers=[], steps=2)
    store = Store(str(training_corpus.parent / "out"))
    path = folder(training_corpus, "known") / "trackers.json"

    def known() -> str:
        return about(store, "train/known", read_started(store, "train/known")).id

    before, whole = known(), path.read_bytes()
    assert known() == before and "trackers.json" not in said(pipeline("verify", training_corpus))
    digit = whole.index(b'"id":"') + 6
    changed = whole[:digit] + (b"1" if whole[digit:][:1] == b"0" else b"0") + whole[digit + 1 :]
    for data in (changed, whole[:20], b"", b"{}"):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=r"trackers\.json is damaged .*delete it: trackers then take"):
            known()
        verified = pipeline("verify", training_corpus)
        assert verified.returncode == 1 and "train/known/trackers.json" in said(verified)
    path.write_bytes(whole)


def test_a_missing_extra_is_told_before_anything_is_done(
    training_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By plan, run and doctor, whose checks these are, and by train, which then deletes nothing for --fresh."""
    names = (*PACKAGES["wandb"], *PACKAGES["mlflow"])
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    written = training_corpus.read_text("utf-8")
    training_corpus.write_text(f"{written}\ntrain:\n  trackers: [wandb, mlflow]\n", "utf-8")
    try:
        with pytest.raises(ConfigError) as told:
            load_checked(training_corpus)
        line = written.count("\n") + 3
        assert f"{training_corpus}:{line}: train.trackers: The packages {', '.join(names)} are not" in str(told.value)
        assert "pip install 'sonar-pipeline[wandb,mlflow]'" in str(told.value)
    finally:
        training_corpus.write_text(written, "utf-8")
    kept = folder(training_corpus, "lacking") / "file"
    kept.parent.mkdir(parents=True)
    kept.touch()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in ("wandb", "tensorboard"):
        with pytest.raises(ConfigError, match=f"The package {name} is not installed here"):
            trained(training_corpus, "lacking", fresh=True, trackers=[name])
    assert kept.exists()
    assert "trained in 2 steps" in trained(training_corpus, "lacking", trackers=[], steps=2)


def test_a_store_needs_a_place_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr("pipeline.planning.section_checks.missing_extras", lambda needed: None)
    asked = TrainSettings(trackers=("wandb", "mlflow"))
    mlflow, wandb = tracker_problems(asked, "s3://bucket/corpus")
    assert "set MLFLOW_TRACKING_URI" in mlflow and "set WANDB_DIR" in wandb
    assert not list(tracker_problems(asked, "/data/corpus"))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert not list(tracker_problems(asked, "s3://bucket/corpus"))


def test_trackers_are_how_a_training_is_done_not_what(training_corpus: Path) -> None:
    """Another choice changes no loss, and goes on with what is begun."""
    trained(training_corpus, "plain", checkpoint_every=2)
    wanted = steps_of(training_corpus, "plain")
    board = folder(training_corpus, "plain") / "tensorboard"
    assert list(board.iterdir())
    shutil.rmtree(board)
    take_back_to(training_corpus, "plain", 4)
    assert "resuming from step 4" in trained(training_corpus, "plain", trackers=[])
    assert steps_of(training_corpus, "plain") == wanted
    assert not board.exists()
    assert "tensorboard" not in TrainSettings().pinned().get("trackers", ())


def test_a_training_imports_no_library_of_trackers() -> None:
    """They are imported by processes of their own, where they are asked for; these import no network."""
    program = (
        "import sys, pipeline.training.trackers.feed, pipeline.training.trackers.process; "
        "print({'wandb', 'mlflow', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
def test_wandb_and_mlflow_have_each_step_once(training_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a training that was killed behind its checkpoint, too, and with the figures of its evaluation."""
    pytest.importorskip("wandb")
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    settings: dict[str, Any] = {"trackers": ["wandb", "mlflow"], "checkpoint_every": 2}
    trained(training_corpus, "plain", fresh=True)
    trained(training_corpus, "tracked", **settings)
    own = folder(training_corpus, "tracked")
    (before,) = own.glob("wandb/offline-run-*")
    take_back_to(training_corpus, "tracked", 4)
    trained(training_corpus, "tracked", **settings)
    evaluate_trained(Console(file=io.StringIO()), str(training_corpus.parent / "out"), "train/tracked", lambda: "cpu")
    assert steps_of(training_corpus, "tracked") == steps_of(training_corpus, "plain")

    lines, (validation,) = lines_of(training_corpus, "tracked"), lines_of(training_corpus, "tracked", "validation")
    (file,) = own.glob("wandb/offline-run-*/*.wandb")
    assert not before.exists()
    config, history, summary = read_run(file)
    assert [one["_step"] for one in history] == [1, 2, 3, 4, 5, 6]
    for logged, line in zip(history, lines, strict=True):
        numbers = {f"train/{key}": value for key, value in line.items() if value is not None}
        assert numbers.items() - {("train/kind", "train"), ("train/step", line["step"])} <= logged.items()
    assert history[-1]["validation/loss"] == validation["loss"]
    record = json.loads((own / "run.json").read_text("utf-8"))
    assert config["model"]["name"] == "small" and config["train"]["lr"] == 1e-2
    assert config["facts"]["index"] == record["pinned"]["indexes"][0]["digest"]

    figures = json.loads((own / "evaluation" / "test.json").read_text("utf-8"))["models"]["tracked"]["metrics"]
    assert summary["evaluation/test/l2"] == pytest.approx(figures["l2"]["mean"])

    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{own}/mlflow/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("out").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["model.name"] == "small"
    assert run.data.tags["index"] == config["facts"]["index"]
    for name in ("loss", "norm", "lr"):
        found = client.get_metric_history(run.info.run_id, f"train/{name}")
        assert [(one.step, one.value) for one in found] == [(line["step"], line[name]) for line in lines]
    (found,) = client.get_metric_history(run.info.run_id, "validation/loss")
    assert (found.step, found.value) == (6, validation["loss"])
    assert run.data.metrics["evaluation/test/l2"] == pytest.approx(figures["l2"]["mean"])
    artifacts = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"card.json", "training.json", "evaluation"}
    secret = b"0123456789abcdef0123456789abcdef01234567"
    assert not [one for one in own.rglob("*") if one.is_file() and secret in one.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_server_that_never_answers_changes_nothing(
    training_corpus: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    pytest.importorskip(tracker)
    monkeypatch.setattr(feed, "END_PATIENCE", 1.0)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
        monkeypatch.setenv("WANDB_BASE_URL", place)
        monkeypatch.setenv("WANDB_MODE", "online")
        shown = trained(training_corpus, f"down-{tracker}", trackers=[tracker])
    trained(training_corpus, "plain", fresh=True)
    assert steps_of(training_corpus, f"down-{tracker}") == steps_of(training_corpus, "plain")
    assert shown.count("is given up: no answer for") == 1 and "missing there: 7 lines of metrics.jsonl" in shown
