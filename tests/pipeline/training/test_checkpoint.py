"""Checkpoints: whole ones come back bit for bit, also on S3; half, damaged and hostile ones are none."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
import yaml

from pipeline.base.errors import CorpusError
from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training import checkpoint
from pipeline.training.checkpoint_markers import _OLDER, damage, markers
from tests.support.cli import pipeline, said
from tests.support.trainings import ALONE, TRAIN, batch, make_corpus, stepper

RUN = "train/x"
SHARE = "00000-0000.safetensors"


def test_on_an_object_store(bucket: str) -> None:
    store, first = Store(f"{bucket}/it"), stepper()
    for step in range(3):
        first.step(step, [(step, batch(5, 3, seed=step))])
        checkpoint.save(store, RUN, step + 1, "pinned", first.losses, first.optimizer, ALONE, keep=2)
    assert [marker.step for marker in markers(store, RUN)] == [2, 3]
    newest = markers(store, RUN)[-1]
    assert {path.rpartition("/")[0] for path in store.find(f"{RUN}/checkpoints") if path.count("/") > 3} == {
        marker.folder for marker in markers(store, RUN)
    }
    second = stepper()
    checkpoint.load(store, newest, second.losses, second.optimizer, one=True)
    results = [one.step(3, [(3, batch(5, 3, seed=9))]).result() for one in (first, second)]
    assert results[0] == results[1]
    for mine, theirs in zip(first.losses.parameters(), second.losses.parameters(), strict=True):
        assert torch.equal(mine, theirs)

    store.delete(f"{RUN}/checkpoints/step-00000003.json")
    assert checkpoint.interrupted(store, RUN) == [newest.folder]
    with pytest.raises(CorpusError, match="exists already: another training continues train/x"):
        checkpoint.save(store, RUN, 2, "pinned", first.losses, first.optimizer, ALONE, keep=2)
    checkpoint.forget(store, RUN)
    assert store.find(RUN) == []


def test_tensors_of_many_files_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.training.shares.FILE_BYTES", 1000)
    store, first, second = Store(str(tmp_path)), stepper(), stepper()
    first.step(0, [(0, batch(5, 3, seed=0))])
    checkpoint.save(store, RUN, 1, "pinned", first.losses, first.optimizer, ALONE, keep=2)
    (marker,) = markers(store, RUN)
    assert len(marker.files) > 10 and not list(damage(store, marker))
    checkpoint.load(store, marker, second.losses, second.optimizer, one=True)
    for mine, theirs in zip(first.losses.parameters(), second.losses.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(first.optimizer.state[mine]["exp_avg"], second.optimizer.state[theirs]["exp_avg"])


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus.yaml of a corpus with a finished training of six steps."""
    folder = tmp_path_factory.mktemp("begun")
    make_corpus(folder)
    train = TRAIN | {"model": str(folder / "small.yaml"), "name": "x", "checkpoint_every": 2, "evaluate_sentences": 0}
    train["keep_checkpoints"] = 3
    config = yaml.safe_load((folder / "corpus.yaml").read_text()) | {"train": train}
    (folder / "corpus.yaml").write_text(yaml.safe_dump(config))
    whole = pipeline("train", folder / "corpus.yaml")
    assert whole.returncode == 0, said(whole)
    return folder / "corpus.yaml"


def test_it_is_told_that_the_corpus_is_of_other_settings(begun: Path) -> None:
    for options in (), ("--set", "segment.max_chars=33"):
        done = pipeline("train", begun, *options)
        assert done.returncode == 0, said(done)
        assert ("segment.max_chars" in done.stderr) == bool(options)
    assert "has changed since the newest run (segment.max_chars); this is what that run made" in said(done)


@pytest.fixture
def stopped(begun: Path, tmp_path: Path) -> Path:
    """The folder of that training, in a corpus of the test's own; `whole.safetensors`: what it ended with before."""
    shutil.copytree(begun.parent, tmp_path / "corpus")
    run = tmp_path / "corpus/out/train/x"
    (run / "model.safetensors").rename(tmp_path / "whole.safetensors")
    for name in ("model.json", "checkpoints/step-00000006.json"):
        (run / name).unlink()
    return run


def go_on(run: Path) -> CompletedProcess[str]:
    return pipeline("train", run.parents[2] / "corpus.yaml", "--set", f"train.model={run.parents[2] / 'small.yaml'}")


def marker_of(run: Path, step: int = 4) -> Path:
    return run / f"checkpoints/step-{step:08d}.json"


def changed(run: Path, step: int = 4, **values: Any) -> None:
    marker_of(run, step).write_text(json.dumps(json.loads(marker_of(run, step).read_text()) | values))


def test_a_stopped_training_ends_with_the_same_bytes(stopped: Path) -> None:
    done = go_on(stopped)
    assert done.returncode == 0 and "resuming from step 4 of 6" in said(done), said(done)
    assert (stopped / "model.safetensors").read_bytes() == (stopped.parents[3] / "whole.safetensors").read_bytes()


@pytest.mark.parametrize("where", ["../../precious", "train/x/precious", "."])
def test_a_marker_deletes_no_folder_but_its_own(stopped: Path, where: str) -> None:
    """Of the older marker, which goes when newer ones have been written."""
    places = [stopped.parents[1] / "precious", stopped / "precious", stopped.parents[2] / "precious"]
    for place in places:
        place.mkdir()
        (place / "thesis.txt").write_text("years")
    (stopped / "checkpoints/mine").mkdir()
    (stopped / "checkpoints/mine/notes.txt").write_text("years")
    changed(stopped, 2 if marker_of(stopped, 2).exists() else 4, folder=where)
    done = go_on(stopped)
    assert done.returncode == 1 and f"it names {where!r}" in said(done) and "start over with --fresh" in said(done), (
        said(done)
    )
    assert all((place / "thesis.txt").exists() for place in places)
    again = pipeline("train", stopped.parents[2] / "corpus.yaml", "--fresh")
    assert again.returncode == 0, said(again)
    assert all((place / "thesis.txt").exists() for place in (places[0], places[2]))


def test_a_marker_that_vouches_for_nothing_is_found(stopped: Path) -> None:
    changed(stopped, files={})
    for done in (pipeline("verify", stopped.parents[1]), go_on(stopped)):
        told = " ".join(said(done).split())
        assert done.returncode == 1 and "it vouches for no plan.json, which every checkpoint has" in told, told


def test_links_are_not_followed_when_folders_go(stopped: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    (stopped / "checkpoints/step-00000005.abcdef").symlink_to(mine)
    (stopped / "evaluation").symlink_to(mine)
    assert go_on(stopped).returncode == 0
    assert (mine / "thesis.txt").exists()
    assert pipeline("train", stopped.parents[2] / "corpus.yaml", "--fresh").returncode == 0
    assert (mine / "thesis.txt").exists()


@pytest.mark.parametrize("linked", ["checkpoints", "."])
def test_nothing_is_deleted_behind_a_link_out_of_the_corpus(stopped: Path, tmp_path: Path, linked: str) -> None:
    """Folders named as those of unfinished checkpoints are somebody else's there."""
    mine, link = tmp_path / "mine", stopped / linked
    theses = mine / "step-00000005.abcdef/thesis.txt", mine / "evaluation/thesis.txt"
    link.rename(mine)
    link.symlink_to(mine)
    for thesis in theses:
        thesis.parent.mkdir(exist_ok=True)
        thesis.write_text("years")
    for fresh in ((), ("--fresh",)):
        done = pipeline("train", stopped.parents[2] / "corpus.yaml", *fresh)
        told = " ".join(said(done).split())
        assert done.returncode == 1 and f"is a link out of the corpus, to {mine}: nothing is written" in told, told
        assert "resuming" not in told and all(thesis.exists() for thesis in theses)


def test_purge_names_the_models_that_learned_from_a_document(begun: Path, tmp_path: Path) -> None:
    shutil.copytree(begun.parent, tmp_path / "corpus")
    config, run = tmp_path / "corpus/corpus.yaml", "train/x"
    (index,) = json.loads((tmp_path / "corpus/out" / run / "run.json").read_text())["pinned"]["indexes"]
    assert "purged" not in said(pipeline("train", config, "--set", f"train.model={tmp_path}/corpus/small.yaml"))
    corpus = Corpus(str(tmp_path / "corpus/out"))
    (tmp_path / "ids").write_text(corpus.documents(0)["doc_id"][0].as_py())
    done = pipeline("purge", tmp_path / "corpus/out", "--ids", tmp_path / "ids")
    assert f"made with them, and not changed: index {index['digest'][:12]}" in said(done), said(done)
    assert f"made with them, and not changed: model {run}" in said(done)
    again = pipeline("train", config, "--set", f"train.model={tmp_path}/corpus/small.yaml")
    assert again.returncode == 0 and "nothing to do" in said(again), said(again)
    assert f"{run} learned from documents that were purged since" in said(again)


class _Gadget:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("command", ["train", "evaluate", "generate"])
def test_nothing_of_a_checkpoint_is_unpickled(stopped: Path, tmp_path: Path, command: str, older: bool) -> None:
    """Neither of one as earlier versions wrote them, nor where a pickle lies among or in place of our files."""
    ran, marker = tmp_path / "ran", json.loads(marker_of(stopped).read_text())
    folder = stopped.parents[1] / marker["folder"]
    poison = pickle.dumps(_Gadget(ran))
    pickle.loads(poison)
    ran.rmdir()  # it works
    (folder / ".metadata").write_bytes(poison)
    for one in [folder / "plan.json", *folder.glob("*.safetensors")]:
        one.write_bytes(poison)
    for step in (2, 4):
        if marker_of(stopped, step).exists() and older:
            kept = {key: json.loads(marker_of(stopped, step).read_text())[key] for key in _OLDER}
            marker_of(stopped, step).write_text(json.dumps(kept))
    (tmp_path / "prompt.txt").write_text("A sentence.")
    config = stopped.parents[2] / "corpus.yaml"
    more = ["--model", "x", *(["--prompt", tmp_path / "prompt.txt"] if command == "generate" else [])]
    done = go_on(stopped) if command == "train" else pipeline(command, config, *more)
    assert not ran.exists()
    assert done.returncode == 1, said(done)
    why = "an earlier version of this program, whose files can run" if older else "plan.json was changed or damaged"
    if command == "train" and not older:
        why = "00000-0000.safetensors is damaged: it has "
    assert why in said(done), said(done)


def test_of_a_marker_that_was_changed_only_that_one_is_to_be_deleted(stopped: Path) -> None:
    """An older checkpoint is whole; the digests that are shown differ, wherever it was changed."""
    assert marker_of(stopped, 2).exists()
    pinned = json.loads(marker_of(stopped).read_text())["pinned"]
    other = pinned[:20] + ("0" if pinned[20] != "0" else "1") + pinned[21:]
    changed(stopped, pinned=other)
    done = go_on(stopped)
    assert done.returncode == 1 and f"(pinned {other[:21]}, train/x is {pinned[:21]})" in said(done), said(done)
    assert "step-00000004.json is a checkpoint of another training, or was changed" in said(done)
    assert "delete it to go on from step 2, or start over with --fresh" in said(done), said(done)
    marker_of(stopped).unlink()
    done = go_on(stopped)
    assert done.returncode == 0 and "resuming from step 2 of 6" in said(done), said(done)


def test_a_marker_of_a_step_that_the_training_does_not_have_is_refused(stopped: Path) -> None:
    marker = json.loads(marker_of(stopped).read_text())
    folder = marker["folder"].replace("step-00000004", "step-00000009")
    (stopped.parents[1] / marker["folder"]).rename(stopped.parents[1] / folder)
    marker_of(stopped, 9).write_text(json.dumps(marker | {"step": 9, "folder": folder}))
    marker_of(stopped).unlink()
    done = go_on(stopped)
    assert done.returncode == 1 and "stopped at step" not in said(done), said(done)
    assert "step-00000009.json is damaged: it says that 9 steps are done, but train/x has 6" in said(done)
    assert "delete it to go on from step 2, or start over with --fresh" in said(done)
    marker_of(stopped, 9).unlink()
    done = go_on(stopped)
    assert done.returncode == 0 and "resuming from step 2 of 6" in said(done), said(done)


def test_a_training_without_its_record_says_what_to_do(stopped: Path) -> None:
    (stopped / "run.json").unlink()
    done = go_on(stopped)
    assert done.returncode == 1 and "the file train/x/run.json is missing; restore it from a copy, or" in said(done)
    assert "start the training over: pipeline train corpus.yaml --fresh" in said(done)
    again = pipeline("train", stopped.parents[2] / "corpus.yaml", "--fresh")
    assert again.returncode == 0, said(again)


def damaged_bytes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(one ^ 0xFF for one in data[middle : middle + 64])
    path.write_bytes(data)


def lost(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("harm", "name"),
    [*itertools.product([damaged_bytes, lost, emptied], ["plan.json", SHARE]), (cut_short, SHARE)],
)
def test_damage_is_found_by_training_and_by_verify(stopped: Path, harm: Any, name: str) -> None:
    folder = stopped.parents[1] / json.loads(marker_of(stopped).read_text())["folder"]
    harm(folder / name)
    done = go_on(stopped)
    assert done.returncode == 1 and name in said(done) and "delete step-00000004.json" in said(done), said(done)
    # what is found without reading all of it is told before a process, or a job that waits for long, begins
    assert ("was interrupted and does not count: removed" in said(done)) == (harm is damaged_bytes), said(done)
    config = stopped.parents[2] / "corpus.yaml"
    found = pipeline("verify", config)
    assert found.returncode == 1 and f"{folder.name}/{name}" in said(found), said(found)
    pipeline("verify", config, "--repair")
    assert not marker_of(stopped).exists()
    done = go_on(stopped)
    assert done.returncode == 0, said(done)
    assert (stopped / "model.safetensors").read_bytes() == (stopped.parents[3] / "whole.safetensors").read_bytes()
    assert pipeline("verify", config).returncode == 0
