"""`pipeline train` with settings and corpora that cannot be, and with a corpus that is not complete."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.storage.records import sealed
from pipeline.training.evaluation.end_of_training import evaluate_trained
from pipeline.training.model_file import load_model
from tests.conftest import sample_documents, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import run
from tests.support.trainings import make_corpus, trained, write_card


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_concepts": 8, "batch_concepts": 8}, "micro_concepts is 8, the context of small 16"),
        ({"batch_concepts": 100}, "batch_concepts 100 is not a multiple of micro_concepts 64; give for instance 128"),
        ({"warmup_steps": 7}, "warmup_steps 7 is more than steps 6"),
        ({"min_lr": 0.1}, "min_lr 0.1 is more than lr 0.01"),
        ({"parallel": "fsdp"}, "there is one process"),
        ({"processes": 4096}, "processes is 4096, but this machine has"),
        ({"name": "index"}, "name is index"),
        ({"weights": "fragility"}, "add sections `fragility"),
    ],
)
def test_settings_that_cannot_be(training_corpus: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(training_corpus, **({"name": "bad"} | settings))


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"inner_dim": 10**9}, r"the weights of the model huge take .* in float32, and this machine has .* of memory"),
        ({"inner_dim": 10**17, "model_dim": 10**6}, "the model huge: no model can be as large as its card says"),
    ],
)
def test_a_model_that_memory_cannot_hold(made_corpus: Path, tmp_path: Path, numbers: dict[str, int], told: str) -> None:
    """Neither trained, nor read from the record of a training that was interrupted."""
    shutil.copytree(made_corpus.parent, tmp_path / "copy")
    path = tmp_path / "copy/corpus.yaml"
    with pytest.raises(CorpusError, match=told):
        trained(path, "new", model=str(write_card(path.parent, "huge", **numbers)))
    trained(path, "begun", steps=1)
    folder = path.parent / "out/train/begun"
    (folder / "model.json").unlink()
    record = json.loads((folder / "run.json").read_text())
    record.pop("seal", None)
    record["pinned"]["card"] |= numbers | {"name": "huge"}
    (folder / "run.json").write_bytes(sealed(json.dumps(record)))
    with pytest.raises(CorpusError, match=told):
        load_model(str(folder))


def test_corpora_that_cannot_be_trained_on(tmp_path: Path) -> None:
    bare = make_corpus(tmp_path / "bare", rvq=None, split={"validation": 0.0, "test": 0.0})
    with pytest.raises(ConfigError, match=r"no documents of the split validation .*validation_concepts to 0"):
        trained(bare, "x")
    trained(bare, "x", validation_concepts=0, steps=1, evaluate_sentences=9)
    said = io.StringIO()
    evaluate_trained(Console(file=said, width=300), str(bare.parent / "out"), "train/x", lambda: "cpu")
    assert "not evaluated: no documents are in the splits test and validation" in said.getvalue()
    quantised = str(write_card(bare.parent, "quantised", kind="quant-d"))
    with pytest.raises(ConfigError, match=r"quantised models codes, .* has none: add `rvq"):
        trained(bare, "x", model=quantised, validation_concepts=0, fresh=True)
    text = bare.read_text().replace("scaler: {}\n", "")
    bare.write_text(text)
    with pytest.raises(ConfigError, match="train needs what scaler makes"):
        trained(bare, "x")


def test_starting_over_deletes_what_a_training_wrote_and_only_once_nothing_refuses(
    made_corpus: Path, tmp_path: Path
) -> None:
    shutil.copytree(made_corpus.parent, tmp_path / "copy")
    path, out = tmp_path / "copy/corpus.yaml", tmp_path / "copy/out"
    for name in ("kept", "first"):
        trained(path, name, steps=1, validation_concepts=0)
    kept = out / "train/kept"
    (kept / "notes").mkdir()
    (kept / "notes/mine.txt").touch()

    def files() -> dict[Path, bytes]:
        return {one: one.read_bytes() for one in kept.rglob("*") if one.is_file()}

    def refused(told: str, **settings: Any) -> None:
        before = files()
        with pytest.raises((ConfigError, CorpusError), match=told):
            trained(path, "kept", fresh=True, **settings)
        assert files() == before

    refused("--set train.micro_concepts=8: train.micro_concepts is 8", micro_concepts=8, batch_concepts=8)
    refused("1 micro-batches .* which 3 processes cannot share", processes=3, batch_concepts=64)
    refused("there is one process", parallel="fsdp", processes=1)
    refused("no model can be as large", model=str(write_card(path.parent, "huge", inner_dim=10**17, model_dim=10**6)))
    refused("train.init_from is this training's own folder", init_from=str(kept))
    written = path.read_text()
    path.write_text(f"{written}\nselect: {{where: split = 'train'}}\n")
    refused("no documents of the split validation")
    path.write_text(written)
    for damaged, told, settings in (
        (next((out / "embeddings").rglob("*.parquet")), "is not what its receipt says", {}),
        (next((out / "fits").glob("scaler.*.safetensors")), "scaler", {}),
        (out / "train/first/model.safetensors", "is not what model.json says", {"init_from": str(out / "train/first")}),
    ):
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
        refused(told, **settings)
        damaged.write_bytes(whole)
    (kept / "evaluation").mkdir(exist_ok=True)
    (kept / "evaluation/test.json").write_text("{}")
    (kept / ".model.safetensors.0123abcd.tmp").touch()
    assert "trained in 1 step" in trained(path, "kept", fresh=True, steps=1, lr=0.02)
    assert (kept / "notes/mine.txt").exists()
    assert not (kept / "evaluation").exists() and not list(kept.glob(".*.tmp"))


@pytest.mark.parametrize("how", ["absolute", "relative", "link", "url"])
def test_a_training_does_not_begin_with_its_own_weights(
    training_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run = training_corpus.parent / "out/train/itself"
    monkeypatch.chdir(training_corpus.parent)
    (tmp_path / "link").symlink_to(run)
    named = {"absolute": str(run), "relative": "out/train/itself/", "link": str(tmp_path / "link"), "url": run.as_uri()}
    trained(training_corpus, "itself", steps=1)
    plan = pipeline("plan", training_corpus, "--set", f"train.init_from={named[how]}", "--set", "train.name=itself")
    assert "train.init_from is this training's own folder" in said(plan)
    for fresh in (False, True):
        with pytest.raises(ConfigError, match=r"is this training's own folder, .*give train\.name another name"):
            trained(training_corpus, "itself", fresh=fresh, init_from=named[how])
    assert (run / "model.safetensors").exists()


def test_corpora_that_cannot_be_mixed_are_refused_before_anything_is_written(made_corpus: Path, tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", encode={"model": "sonar-tiny"}, rvq=None)
    mix = [{"path": str(other.parent / "out")}]
    shutil.copytree(made_corpus.parent, tmp_path / "copy")
    path = tmp_path / "copy/corpus.yaml"
    with pytest.raises(ConfigError, match="embeddings of different encoders cannot be mixed"):
        trained(path, "mixed", corpora=mix)
    quantised = str(write_card(path.parent, "quantised", kind="quant-d"))
    with pytest.raises(ConfigError, match=r"other/out has no codes of its sentences; add a section `rvq"):
        trained(path, "mixed", corpora=mix, model=quantised)
    assert not (path.parent / "out/train/mixed/run.json").exists()
    assert "train/mixed" not in said(pipeline("status", path))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("contrastive={keys: tied}", "small: contrastive is given, but objective is not contrastive"),
        ("sonar_llm={}", "small: sonar_llm is given, but objective is not sonar-llm"),
        ("objective=sonar-llm", "lcm-two-tower-tiny: objective sonar-llm belongs to the kind base"),
    ],
)
def test_a_setting_that_does_not_fit_its_model_is_told_where_it_is_set(
    training_corpus: Path, setting: str, words: str
) -> None:
    path = training_corpus.with_name("with-train.yaml")
    model = "lcm-two-tower-tiny" if "two-tower" in words else "small.yaml"
    path.write_text(f"{training_corpus.read_text()}\ntrain: {{model: {model}, name: refused, batch_concepts: 64}}\n")
    for command in ("plan", "train"):
        done = pipeline(command, path, "--set", f"train.{setting}")
        assert done.returncode == 2 and f"--set train.{setting}: {words}" in said(done), said(done)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("weights=fragility", "has no weights of its sentences (weights: fragility); add sections `fragility: {}`"),
        (
            "init_from=lcm-tiny-books",
            "train.init_from: lcm-tiny-books is of kind two-tower, train.model of kind base; name a model of the same",
        ),
    ],
)
def test_a_training_does_not_seem_to_begin_before_it_is_refused(made_corpus: Path, setting: str, words: str) -> None:
    small = f"train={{model: {made_corpus.parent / 'small.yaml'}, name: refused, batch_concepts: 64}}"
    done = pipeline("train", made_corpus, "--set", small, "--set", f"train.{setting}")
    assert done.returncode == 2 and words in said(done), said(done)
    assert "steps" not in done.stdout and "make the index again" not in said(done)


def test_a_training_says_what_is_not_segmented_yet(made_corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(made_corpus.parent, tmp_path / "copy")
    write_jsonl(tmp_path / "copy/in/more.jsonl", sample_documents("postgresql-eng", 2))
    path = tmp_path / "copy/corpus.yaml"
    run(path)
    newest = max((tmp_path / "copy/out/chunks").rglob("*.json"), key=lambda one: one.stat().st_mtime_ns)
    newest.unlink()
    found = pipeline("verify", path, "--repair")
    assert "pipeline run makes what they stand for again" in said(found) and "cannot be made" not in said(found)
    shown = trained(path, "less", steps=1)
    assert "1 chunk not segmented yet: the model is trained without them" in shown, shown
