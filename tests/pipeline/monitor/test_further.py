"""`plan` says of fits, training and report what `run` then does, with the key, the old value and the new one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.config.load import load_config
from pipeline.monitor.further import UNKNOWN_TIME
from pipeline.planning import rates
from tests.conftest import TINY_CARD, MakeConfig, sample_documents, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import FITS
from tests.support.trainings import TRAIN, make_corpus, trained

FITTED = {"autobleu": None, "scaler": {}, "fit": {"rows": 100}}


def test_fits_and_report(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**FITTED, report={"max_rows": 1000})
    first = pipeline("plan", path)
    assert "fit scaler: on the pilot: new" in first.stdout and "report: report/index.html is written" in first.stdout
    done = pipeline("run", path)
    assert done.returncode == 0, said(done)
    same = pipeline("plan", path)
    assert "report/index.html is up to date" in same.stdout and "Nothing to do." in same.stdout
    changed = pipeline("plan", path, "--set", "fit.rows=50")
    assert "fit scaler: on the pilot: pilot.rows: 100 → 50" in changed.stdout and "Nothing to do" not in changed.stdout
    other = pipeline("plan", path, "--set", "segment.max_chars=70")
    assert "fit scaler: on the pilot: the result of segment changed" in other.stdout
    (tmp_path / "out/report/index.html").unlink()
    lost = pipeline("plan", path)
    assert "report/index.html is written" in lost.stdout and "Nothing to do" not in lost.stdout


def test_a_plan_says_what_its_times_do_not_contain(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a decoder was fitted on this machine: a fit may take longer than all else."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rates, "LEAST_SECONDS", 0.0)
    train = {"model": "lcm-two-tower-tiny", "steps": 20, "validation_concepts": 0}
    path = make_config(**FITTED, decoder={"steps": 2000}, train=train)
    shown = pipeline("plan", path).stdout
    assert f"fit decoder: on the pilot: new; 2 000 steps, {UNKNOWN_TIME}\n" in shown
    assert f"not begun, 20 steps, {UNKNOWN_TIME}\n" in shown
    rates.keep_rate(load_config(path), "decoder", 100, 300_000, 100)
    shown = pipeline("plan", path).stdout
    assert "; 2 000 steps, about 33 min 20 s at the rate measured on this machine\n" in shown
    assert "Rates: encode from the model's card; segment roughly assumed." in shown
    assert UNKNOWN_TIME in pipeline("plan", path, "--set", "decoder.batch_tokens=64").stdout.partition("train:")[0]
    assert (
        UNKNOWN_TIME not in pipeline("plan", path, "--set", "decoder.file=a.safetensors").stdout.partition("train:")[0]
    )


def test_models_to_fetch_are_told_while_there_is_work(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    path = make_config(autobleu=None)
    line = "model: sonar: to fetch encoder (3.1 GB), tokenizer (4.9 MB)\n"
    assert line in pipeline("plan", path, "--set", "encode.model=sonar").stdout
    assert "to fetch" not in pipeline("plan", path).stdout  # tests' models are here
    assert pipeline("run", path, "--until", "segment").returncode == 0
    assert line in pipeline("plan", path, "--set", "encode.model=sonar").stdout
    noise = pipeline("plan", path, "--set", "encode.model=sonar", "--only", "noise", "--set", "noise={}").stdout
    assert "noise" in noise and "to fetch" not in noise  # what has no work needs nothing


def test_codes_need_no_model(make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their fit is evaluated by decoding, and it is here."""
    path = make_config(**FITS)
    assert pipeline("run", path).returncode == 0
    shutil.rmtree(tmp_path / "out/receipts/rvq")
    shutil.rmtree(tmp_path / "out/ledger", ignore_errors=True)
    card = yaml.safe_load(TINY_CARD.read_text())
    for role, file in card["files"].items():
        file["path"] = str(TINY_CARD.parent / file["path"])
        if role == "decoder":
            file["url"] = f"https://example.org/{Path(file.pop('path')).name}"
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    codes = ("plan", path, "--only", "rvq", "--set", f"autobleu={{model: {tmp_path / 'card.yaml'}}}")
    shown = pipeline(*codes).stdout
    assert "rvq" in shown.partition("Why")[2] and "to fetch" not in shown, shown
    assert "to fetch decoder (472.6 kB)" in pipeline(*codes, "--set", "rvq.units=4").stdout


def test_weights_of_another_model_are_refused_before_any_work(make_config: MakeConfig, tmp_path: Path) -> None:
    """`init_from` may also name a model that ships; its card ships too."""

    def with_weights(encoder: str, model: str, init_from: str = "lcm-tiny-books") -> Path:
        train = {"model": model, "init_from": init_from, "steps": 1, "validation_concepts": 0}
        return make_config(**FITTED, train=train, encode={"model": encoder})

    def refused(path: Path) -> str:
        planned, done = pipeline("plan", path), pipeline("run", path)
        assert done.returncode == 2 and not (tmp_path / "out").exists(), said(done)
        assert planned.returncode == 0 and "train.init_from: lcm-tiny-books is another model" in planned.stdout
        return done.stderr

    planned = pipeline("plan", with_weights("sonar-tiny", "lcm-two-tower-books"))
    assert "train: lcm-two-tower-books in train/lcm-two-tower-books: not begun, 1 step" in planned.stdout
    assert "of the card lcm-two-tower-books: model.model_dim 256 → 128" in refused(
        with_weights("sonar-tiny", "lcm-two-tower-tiny")
    )
    assert re.search("encoder [0-9a-f]+ → [0-9a-f]+ ", refused(with_weights(str(TINY_CARD), "lcm-two-tower-books")))
    unknown = pipeline("run", with_weights("sonar-tiny", "lcm-two-tower-books", "lcm-tiny-boks"))
    assert unknown.returncode == 2 and "lcm-tiny-boks does not exist" in unknown.stderr
    assert "or one that ships: lcm-tiny-books" in unknown.stderr


@pytest.mark.slow
def test_a_training_that_run_refuses_to_go_on_with(tmp_path: Path) -> None:
    path = make_corpus(tmp_path)
    settings = TRAIN | {"model": str(tmp_path / "small.yaml"), "name": "first", "steps": 2}
    begun = yaml.safe_load(path.read_text())

    def with_training(**changes: object) -> Path:
        path.write_text(yaml.safe_dump(begun | {"train": settings | changes}))
        return path

    planned = pipeline("plan", with_training())
    assert "in train/first: not begun, 2 steps" in planned.stdout and "Nothing to do" not in planned.stdout
    trained(path, "first", steps=2)
    finished = pipeline("plan", path)
    assert "in train/first: trained, 2 steps" in finished.stdout and "Nothing to do." in finished.stdout
    other = pipeline("plan", with_training(steps=3))
    assert "train.steps 2 → 3" in other.stdout and "Nothing to do" not in other.stdout
    write_jsonl(tmp_path / "in/more.jsonl", sample_documents("postgresql-eng", 1))
    runs = sorted((tmp_path / "out/runs").iterdir())
    refused = pipeline("run", path)
    assert refused.returncode == 2 and "train.steps 2 → 3" in refused.stderr
    assert sorted((tmp_path / "out/runs").iterdir()) == runs, "it worked before it refused"
