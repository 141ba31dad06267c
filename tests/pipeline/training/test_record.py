"""Where the folder of a model is: at any depth, on local disks and in stores."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.errors import ConfigError, DamagedError
from pipeline.storage.store import Store
from pipeline.training.evaluation.export_model import place_of
from pipeline.training.record import located
from pipeline.training.status import Job, read_job, write_job
from stages.lcm.card import trained_lcms
from tests.support.cli import pipeline, said
from tests.support.trainings import folder, take_back_to, trained


@pytest.mark.parametrize(
    ("place", "url", "run"),
    [
        ("/corpora/news/train/base", "/corpora/news", "train/base"),
        ("/train/base/", "/", "train/base"),
        ("/model", "/", "model"),
        ("file:///model", "/", "model"),
        ("memory://bucket/news/train/base", "memory://bucket/news", "train/base"),
        ("memory://bucket/train/base", "memory://bucket", "train/base"),
        ("memory://bucket/model/", "memory://bucket", "model"),
    ],
)
def test_a_model_is_found_at_any_depth(place: str, url: str, run: str) -> None:
    store, found = located(place)
    assert (store.url, found) == (url, run)


@pytest.mark.parametrize("place", ["/", "memory://bucket", "memory://bucket/"])
def test_a_root_or_a_bucket_is_no_model(place: str) -> None:
    with pytest.raises(ConfigError, match=r"is no folder of a model; give one with a name"):
        located(place)


def test_a_model_in_a_folder_of_two_levels_is_not_looked_for_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shutil.copy(Path(trained_lcms()["lcm-tiny-books"]) / "text.json", folder)
        other = tmp_path / folder.removeprefix("/")
        other.mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert place_of(folder) == folder
        shutil.move(f"{folder}/text.json", other)
        with pytest.raises(ConfigError, match="there is no such model"):
            place_of(folder)


def test_no_place_is_not_the_working_directory() -> None:
    with pytest.raises(ConfigError, match="the place of a corpus is empty"):
        Store("")


def test_the_job_of_a_training_is_a_number_and_sealed(tmp_path: Path) -> None:
    """What it says is given to scancel: `--me` would end all jobs of a user, another digit somebody else's."""
    store, path = Store(str(tmp_path)), tmp_path / "train/x/job.json"
    written = Job(id="205", folder="/logs", code="0" * 32)
    write_job(store, "train/x", written)
    assert read_job(store, "train/x") == written
    path.write_text(path.read_text().replace("205", "206"))
    with pytest.raises(DamagedError, match=r"job\.json is damaged .*delete it, if SLURM runs no job"):
        read_job(store, "train/x")
    for wrong in ("--me", "205 206", "205\n", ""):
        path.write_text(json.dumps({"id": wrong, "folder": "/logs", "code": ""}))
        with pytest.raises(DamagedError, match=r"job\.json is damaged \(id: "):
            read_job(store, "train/x")


def _forge(path: Path, **changed: Any) -> None:
    """Change what a record says of what is pinned, without a seal, as in records of earlier versions."""
    record = json.loads(path.read_text())
    del record["seal"]
    record["pinned"] |= changed
    path.write_text(json.dumps(record))


def test_records_of_what_no_training_is_pinned_to_are_damage(training_corpus: Path) -> None:
    again = partial(trained, training_corpus, "forged", steps=2, checkpoint_every=1)
    again()
    model, run = (folder(training_corpus, "forged") / name for name in ("model.json", "run.json"))
    whole = model.read_text()
    few = {"steps": 2, "batch_concepts": 8}
    for changed, told in (
        ({"dim": 10**12}, "pinned.dim: Input should be less than or equal to 1048576"),
        ({"settings": {}}, "pinned.settings: steps: Field required"),
        ({"settings": few | {"corpora": [{"path": "x"}]}}, "corpora.0.weight: Field required"),
    ):
        _forge(model, **changed)
        for command in (("evaluate", "--model", "forged", "--split", "validation", "--metrics", "l2"), ("verify",)):
            done = pipeline(command[0], training_corpus, *command[1:])
            shown = " ".join(said(done).split())
            assert done.returncode == 1 and "model.json is damaged" in shown and told in shown, shown
        model.write_text(whole)
    take_back_to(training_corpus, "forged", 1)
    _forge(run, indexes=[])
    with pytest.raises(DamagedError, match=r"run\.json is damaged \(it has 0 indexes, and learns from 1 corpora\)"):
        again()
