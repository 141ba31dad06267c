"""`pipeline train` on a real corpus: resume is exact, processes agree, and lost ones are reported."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from launchers.dispatch import slurm_cluster
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.load import load_config
from pipeline.config.train import TrainSettings
from pipeline.corpus.reader import Corpus
from pipeline.maintenance.records import repair
from pipeline.maintenance.verify import check
from pipeline.monitor.trainings import show_trainings
from pipeline.storage.store import Store
from pipeline.training import checkpoint
from pipeline.training.checkpoint_markers import Marker, markers
from pipeline.training.data.loader import share_of_files
from pipeline.training.distributed import Processes
from pipeline.training.evaluation.end_of_training import evaluate_trained
from pipeline.training.model_file import load_model
from pipeline.training.not_finite import NotFiniteError
from pipeline.training.record import changed_since, read_started
from pipeline.training.run import alone, processes_of, train
from pipeline.training.run import check as checked
from pipeline.training.worker import _NotedSignals, _Work, work
from tests.support.records import write_record
from tests.support.trainings import TRAIN, OneOfTwo, folder, make_corpus, steps_of, trained, write_card

TWO_TOWER = {
    "kind": "two-tower",
    "layers": None,
    "contextualizer_layers": 1,
    "denoiser_layers": 1,
    "diffusion": {"steps": 10},
}


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    """A corpus.yaml; its documents make an epoch of a few steps."""
    return training_corpus


def two_tower(corpus: Path) -> str:
    changes = {key: value for key, value in TWO_TOWER.items() if value is not None}
    path = write_card(corpus.parent, "two", **changes)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("layers:")))
    return str(path)


@contextlib.contextmanager
def damaged(path: Path) -> Iterator[None]:
    """While a bit of it is another."""
    good = path.read_bytes()
    path.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    yield
    path.write_bytes(good)


def stop_after(path: Path) -> threading.Thread:
    """Sends SIGTERM to this process once a file is there."""

    def watch() -> None:
        end = time.monotonic() + 600  # of a busy machine
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_stopped_in_mid_epoch_goes_on_bit_for_bit(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"model": two_tower(corpus), "steps": 30}
    trained(corpus, "whole", **settings)
    save = checkpoint.save

    def asked_to_stop(store: Store, run: str, step: int, *rest: Any) -> None:
        save(store, run, step, *rest)
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "save", asked_to_stop)
        trained(corpus, "stopped", **settings, checkpoint_every=5)
    done = markers(Store(str(corpus.parent / "out")), "train/stopped")[-1].step
    assert 5 <= done <= 10
    assert f"resuming from step {done} of 30" in trained(corpus, "stopped", **settings)
    whole, stopped = steps_of(corpus, "whole"), steps_of(corpus, "stopped")
    assert len(whole) == 30 and whole == stopped
    assert sum(loss for _, loss, _ in whole[-10:]) < sum(loss for _, loss, _ in whole[:10])
    weights = [(folder(corpus, name) / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert weights[0] == weights[1]
    assert "nothing to do" in trained(corpus, "stopped", **settings)


def test_an_interrupted_checkpoint_does_not_count(corpus: Path) -> None:
    trained(corpus, "partial", checkpoint_every=2)
    before = steps_of(corpus, "partial")
    folder_of_run = folder(corpus, "partial")
    (folder_of_run / "checkpoints" / "step-00000006.json").unlink()
    (folder_of_run / "model.json").unlink()
    shown = trained(corpus, "partial", checkpoint_every=2)
    assert "step-00000006" in shown and "was interrupted and does not count" in shown
    assert "resuming from step 4 of 6" in shown
    assert steps_of(corpus, "partial") == before
    assert len(list((folder_of_run / "checkpoints").glob("*.json"))) == 2  # the newest are kept


def test_processes_that_are_started_again_remove_what_was_interrupted(corpus: Path) -> None:
    """Also where nobody runs `pipeline train` before them: jobs that are queued again, restarts in a job."""
    trained(corpus, "again")
    url, half = str(corpus.parent / "out"), folder(corpus, "again") / "checkpoints" / "step-00000004.abcdef"
    (half / "share").parent.mkdir()
    (half / "share").write_bytes(b"half")
    (folder(corpus, "again") / "model.json").unlink()
    shown = io.StringIO()
    work(Console(file=shown, width=300), url, "train/again")
    assert "step-00000004.abcdef was interrupted and does not count: removed" in shown.getvalue()
    assert "resuming from step 6 of 6" in shown.getvalue()
    assert not half.exists() and (folder(corpus, "again") / "model.json").exists()


def test_all_processes_go_on_from_the_checkpoint_that_the_first_sees(corpus: Path) -> None:
    trained(corpus, "seen", checkpoint_every=3)
    store = Store(str(corpus.parent / "out"))
    there, record = markers(store, "train/seen"), read_started(store, "train/seen")

    def newest(processes: Processes) -> Marker | None:
        return _Work(Console(), store, "train/seen", record, processes).newest()

    first = OneOfTwo(0)
    assert newest(first) == there[-1]
    for marker in store.find("train/seen/checkpoints", "step-00000006.json"):
        store.delete(marker)
    assert newest(OneOfTwo(1, other=first.said)) == there[-1]  # its own listing shows an older one
    assert newest(OneOfTwo(1)) is None  # the first shows none


def copy_checkpoints(old: Path, new: Path) -> None:
    """As if they were those of another training: the files that they name lie in its folder."""
    shutil.copytree(old / "checkpoints", new / "checkpoints", dirs_exist_ok=True)
    for path in (new / "checkpoints").glob("step-*.json"):
        path.write_text(path.read_text().replace(f"train/{old.name}/", f"train/{new.name}/"))


def test_a_checkpoint_of_another_training_is_refused(corpus: Path) -> None:
    for name, lr in (("theirs", 1e-2), ("ours", 2e-2)):
        trained(corpus, name, lr=lr)
    shutil.rmtree(folder(corpus, "ours") / "checkpoints")
    copy_checkpoints(folder(corpus, "theirs"), folder(corpus, "ours"))
    (folder(corpus, "ours") / "model.json").unlink()
    with pytest.raises(CorpusError, match=r"ours/checkpoints/step-00000006.json is a checkpoint of another training"):
        trained(corpus, "ours", lr=2e-2)
    assert "resuming from" not in trained(corpus, "ours", lr=2e-2, fresh=True)
    assert "nothing to do" in trained(corpus, "theirs")


def test_settings_that_decide_losses_stay(corpus: Path) -> None:
    trained(corpus, "pinned")
    deep = str(write_card(corpus.parent, "small-deep", layers=3))
    with pytest.raises(
        ConfigError, match=r"train/pinned was begun .*model.name small → small-deep; model.layers 2 → 3"
    ):
        trained(corpus, "pinned", model=deep)
    with pytest.raises(ConfigError, match=r"train.lr 0.01 → 0.02"):
        trained(corpus, "pinned", lr=0.02)
    trained(corpus, "pinned", log_every=2)  # of execution
    assert "nothing to do" not in trained(corpus, "pinned", fresh=True, lr=0.02)


def test_another_encoder_makes_another_training(corpus: Path) -> None:
    trained(corpus, "encoded", steps=1)
    one = load_config(corpus, ("train.model=small.yaml", "train.name=encoded", "train.steps=1"))
    settings = one.train.model_copy(update=TRAIN | {"steps": 1}) if one.train else None
    one = one.model_copy(update={"train": settings})
    store = Store(one.output)
    assert one.encode and not changed_since(store, one)
    other = one.model_copy(update={"encode": one.encode.model_copy(update={"model": "sonar-tiny"})})
    said = r"weights of encode\.model [0-9a-f]{8} → [0-9a-f]{8} \(sonar-tiny\)"
    (changed,) = changed_since(store, other)
    assert re.fullmatch(said, changed)
    with pytest.raises(ConfigError, match=rf"train/encoded was begun with other settings: {said}"):
        checked(Console(quiet=True), other)
    new = other.model_copy(update={"train": other.train.model_copy(update={"name": "new"}) if other.train else None})
    with pytest.raises(
        ConfigError, match=r"embeddings of sonar-space-tiny .* encode.model is sonar-tiny \(.*pipeline run"
    ):
        checked(Console(quiet=True), new)


def test_a_finished_one_without_checkpoints_is_still_what_it_was(corpus: Path) -> None:
    trained(corpus, "slim")
    shutil.rmtree(folder(corpus, "slim") / "checkpoints")
    before = {path: path.read_bytes() for path in folder(corpus, "slim").iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=r"train/slim was begun with other settings: train.steps 6 → 8\. Restore"):
        trained(corpus, "slim", steps=8)
    with pytest.raises(ConfigError, match=r"model.kind base → two-tower"):
        trained(corpus, "slim", model=two_tower(corpus))
    assert "is trained: nothing to do" in trained(corpus, "slim")
    assert before == {path: path.read_bytes() for path in folder(corpus, "slim").iterdir() if path.is_file()}


def take_back(run: Path, step: int) -> None:
    """A finished run of training as it was before the checkpoint after so many steps."""
    for path in (run / "model.json", run / "model.safetensors", *(run / "checkpoints").glob(f"step-{step:08d}.json")):
        path.unlink()


def test_an_index_that_was_deleted_is_made_again(corpus: Path) -> None:
    indexes, run = corpus.parent / "out/train/index", folder(corpus, "indexed-again")
    trained(corpus, "indexed-again", checkpoint_every=3)
    take_back(run, 6)
    shutil.rmtree(indexes)
    assert "resuming from step 3 of 6" in trained(corpus, "indexed-again", checkpoint_every=3)
    take_back(run, 6)
    shutil.rmtree(indexes)
    record = run / "run.json"
    digest = json.loads(record.read_text())["pinned"]["indexes"][0]["digest"]
    another = json.loads(record.read_text().replace(digest, "0" * 32))  # as if the corpus gave another one now
    write_record(record, another)
    with pytest.raises(CorpusError, match=r"the index 0{12} .* is gone, and the corpus has changed since; .*--fresh"):
        trained(corpus, "indexed-again")


def test_lines_of_the_log_do_not_span_a_checkpoint(corpus: Path) -> None:
    trained(corpus, "even", log_every=4, checkpoint_every=3, steps=9)
    assert [step for step, _, _ in steps_of(corpus, "even")] == [3, 4, 6, 8, 9]
    shutil.copytree(folder(corpus, "even"), folder(corpus, "resumed"))
    copy_checkpoints(folder(corpus, "even"), folder(corpus, "resumed"))
    take_back(folder(corpus, "resumed"), 9)
    assert "resuming from step 6 of 9" in trained(corpus, "resumed", log_every=4, checkpoint_every=3, steps=9)
    assert steps_of(corpus, "resumed") == steps_of(corpus, "even")


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), _NotedSignals() as asked_to_stop:
        signal.raise_signal(signal.SIGTERM)
        assert asked_to_stop()
        signal.raise_signal(signal.SIGTERM)  # as a scheduler repeats it
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_training_ends_with_is_of_its_own_selection_and_last_step(corpus: Path) -> None:
    url = str(corpus.parent / "out")
    config = load_config(corpus, ["select={where: chars >= 40}", "train.evaluate_sentences=30"])
    settings = TrainSettings(
        model=str(corpus.parent / "small.yaml"), name="own", micro_concepts=64, batch_concepts=64, steps=3
    )
    config = config.model_copy(update={"train": settings})
    train(Console(file=io.StringIO()), config)
    text = io.StringIO()

    def end() -> str:
        evaluate_trained(Console(file=text, width=300), url, "train/own", lambda: "cpu")
        return text.getvalue()

    assert "own" in end()
    table = folder(corpus, "own") / "evaluation/test.json"
    first = table.read_text()
    found = json.loads(first)
    assert found.pop("seal")
    pinned = json.loads((folder(corpus, "own") / "run.json").read_text())["pinned"]
    assert found["index"] == pinned["indexes"][0]["digest"] and found["models"]["own"]["steps"] == 3
    assert end() == text.getvalue() and table.read_text() == first
    table.write_text(first.replace('"mean": ', '"mean": 1', 1))  # a digit more
    end()
    assert table.read_text() == first
    found["models"] = {"own (step 2 of 3)": found["models"]["own"] | {"steps": 2}}  # somebody looked while it trained
    table.write_text(json.dumps(found))
    end()
    assert json.loads(table.read_text())["models"]["own"]["steps"] == 3
    end()
    before = table.read_text()
    record = folder(corpus, "own") / "run.json"
    started = json.loads(record.read_text())
    for changed in ({"evaluate_sentences": 2000}, {"sampling": {"steps": 5, "end_cosine": 0.5}}):
        started["settings"] |= changed
        write_record(record, started)
        end()
        assert table.read_text() != before, changed
        before = table.read_text()
        end()
        assert table.read_text() == before, changed
    assert json.loads(before)["models"]["own"]["sampling"]["steps"] == 5
    started["settings"]["evaluate_sentences"] = 20
    write_record(record, started)
    end()
    assert table.read_text() == before  # it has more than that


def test_a_training_that_was_begun_before_a_setting_existed_goes_on(corpus: Path) -> None:
    trained(corpus, "old", checkpoint_every=3)
    record = folder(corpus, "old") / "run.json"
    then = json.loads(record.read_text())
    assert then["pinned"]["settings"].pop("lanes") == then["settings"].pop("lanes") == 8
    write_record(record, then)
    store = Store(str(corpus.parent / "out"))
    digest = read_started(store, "train/old").pinned.digest
    for marker in store.find("train/old/checkpoints", "step-"):
        if marker.endswith("3.json"):
            store.write(marker, json.dumps(json.loads(store.read(marker)) | {"pinned": digest}).encode())
        elif marker.endswith("6.json"):
            store.delete(marker)
    (folder(corpus, "old") / "model.json").unlink()
    with pytest.raises(ConfigError, match=r"train/old was begun with other settings: train.lanes 8 → 16\. Restore"):
        trained(corpus, "old", lanes=16)
    assert "resuming from step 3 of 6" in trained(corpus, "old", checkpoint_every=3)
    assert read_started(store, "train/old").pinned.digest == digest


def test_a_training_goes_on_with_the_own_attention_that_it_began_with(corpus: Path) -> None:
    full = two_tower(corpus)
    trained(corpus, "full-attention", model=full, checkpoint_every=3)
    newer = corpus.parent / "newer" / "two.yaml"
    newer.parent.mkdir()
    newer.write_text(Path(full).read_text() + "own_attention: value\n")
    assert "nothing to do" in trained(corpus, "full-attention", model=str(newer))
    take_back(folder(corpus, "full-attention"), 6)
    before = steps_of(corpus, "full-attention")
    shown = trained(corpus, "full-attention", model=str(newer))
    assert "continues with own_attention: full, as it began" in shown and "resuming from step 3 of 6" in shown
    assert steps_of(corpus, "full-attention") == before
    trained(corpus, "values", model=str(newer), init_from=str(folder(corpus, "full-attention")), steps=1)
    card = load_model(str(folder(corpus, "values")))[1].card
    assert card.own_attention == "value"
    with pytest.raises(ConfigError, match=r"is another model, of the card [a-z-]+: model\.own_attention value → None"):
        trained(corpus, "x", model=full, init_from=str(folder(corpus, "values")))


def test_each_process_of_a_new_training_reads_files_of_its_own(corpus: Path) -> None:
    assert [TrainSettings().with_lanes(count).streams for count in (1, 3, 8, 256)] == [8, 9, 8, 256]
    assert share_of_files(TrainSettings().streams, 256) == 32  # as before: so many processes read each file
    assert share_of_files(TrainSettings().with_lanes(256).streams, 256) == 1
    assert TrainSettings(lanes=4).with_lanes(256).streams == 4
    card = f"train.model={corpus.parent / 'small.yaml'}"
    nodes = ("launcher.kind=slurm", "launcher.train_nodes=32", "launcher.gpus_per_node=8")
    assert processes_of(load_config(corpus, (card, *nodes))) == 256
    store, three = (
        Store(str(corpus.parent / "out")),
        load_config(corpus, (card, "train.name=nine", "train.processes=3", "train.batch_concepts=6144")),
    )
    assert checked(Console(quiet=True), three).started.settings.lanes == 9
    trained(corpus, "nine", steps=1)
    assert read_started(store, "train/nine").settings.lanes == 8
    settings = three.train.model_copy(update=TRAIN | {"steps": 1}) if three.train else None
    more = three.model_copy(update={"train": settings})
    assert not changed_since(store, more), "a training that was begun keeps its order with more processes"
    assert checked(Console(quiet=True), more).started.settings.lanes == 8


@pytest.mark.parametrize(
    ("lanes", "said"),
    [
        (8, None),
        (4, None),
        (6, r"6 streams for 4 processes: every file .* read by 2 of them; with train\.lanes 8 each reads its own"),
        (2, r"2 streams for 4 processes: every file .* read by 2 of them; with train\.lanes 4 each reads its own"),
        (1, r"1 stream for 4 processes: every file .* read by 4 of them; the corpus is too small for train\.lanes 2"),
    ],
)
def test_who_reads_the_same_files_is_said(corpus: Path, lanes: int, said: str | None) -> None:
    trained(corpus, "lanes", steps=1)
    store, shown = Store(str(corpus.parent / "out")), io.StringIO()
    record = read_started(store, "train/lanes")
    record = record.model_copy(
        update={"settings": record.settings.model_copy(update={"lanes": max(2, lanes), "batch_concepts": 256})}
    )
    console, four = Console(file=shown, width=300), Processes(0, 4, torch.device("cpu"))
    _Work(console, store, "train/lanes", record, four).say_who_reads(lanes)
    assert re.match(said, shown.getvalue()) if said else not shown.getvalue()


@pytest.mark.slow
def test_two_processes_with_shares_of_the_model_agree_with_one(corpus: Path) -> None:
    settings: dict[str, Any] = {"model": two_tower(corpus)}
    trained(corpus, "one", **settings)
    trained(corpus, "shares", **settings, processes=2, parallel="fsdp")
    one, shares = steps_of(corpus, "one"), steps_of(corpus, "shares")
    assert len(shares) == 6
    for mine, theirs in zip(one, shares, strict=True):
        assert theirs == pytest.approx(mine, rel=1e-5)
    weights = [load_model(str(folder(corpus, name)))[0].state_dict() for name in ("one", "shares")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-4)


def worker_of_rank(rank: int) -> int:
    """The process of a rank among the children of this one."""
    wanted = f"RANK={rank}".encode()
    for children in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for child in children.read_text().split():
            place = Path("/proc", child)
            environment = (place / "environ").read_bytes().split(b"\0")
            if wanted in environment and b"pipeline.training.worker" in (place / "cmdline").read_bytes():
                return int(child)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.faults
def test_a_killed_process_ends_the_others_and_one_goes_on(corpus: Path) -> None:
    settings: dict[str, Any] = {"steps": 2000, "checkpoint_every": 5}
    marker = folder(corpus, "killed") / "checkpoints" / "step-00000005.json"
    killed: list[float] = []

    def kill() -> None:
        while not marker.exists():
            time.sleep(0.01)
        os.kill(worker_of_rank(1), signal.SIGKILL)
        killed.append(time.monotonic())

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(CorpusError, match=r"process 1 of 2 was killed by signal 9.*goes on from step"):
        trained(corpus, "killed", **settings, processes=2)
    thread.join()
    assert time.monotonic() - killed[0] < 300
    watcher = stop_after(marker.with_name("step-00000100.json"))
    with pytest.raises(KeyboardInterrupt):
        trained(corpus, "killed", **settings)
    watcher.join()
    watcher = stop_after(folder(corpus, "alive") / "checkpoints" / "step-00000100.json")
    with pytest.raises(KeyboardInterrupt):
        trained(corpus, "alive", **settings)
    watcher.join()
    for mine, theirs in zip(steps_of(corpus, "alive")[:100], steps_of(corpus, "killed")[:100], strict=True):
        assert theirs == pytest.approx(mine, rel=1e-3)


def test_two_do_not_train_the_same(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path)  # in which no other training failed
    store, shown = Store(str(corpus.parent / "out")), io.StringIO()
    trained(corpus, "taken")
    with alone(store, TrainSettings(name="taken")):
        assert show_trainings(Console(file=shown, width=300), store, slurm_cluster())
        assert "train/taken: trained, 6 steps, being trained since " in shown.getvalue()
        assert f"(process {os.getpid()})" in shown.getvalue()
        with pytest.raises(CorpusError, match=r"out/train/taken is being trained since .* give train.name another"):
            trained(corpus, "taken", fresh=True)
        trained(corpus, "other")
    assert "nothing to do" in trained(corpus, "taken")


def test_a_loss_that_is_not_finite_stops(corpus: Path) -> None:
    with pytest.raises(NotFiniteError, match=r"in step \d the loss is (nan|inf)(.|\n)*row \d+ of part") as found:
        trained(corpus, "burst", lr=1e30, checkpoint_every=1)
    assert str(found.value).endswith(f"train.init_from={folder(corpus, 'burst')}")
    assert list((folder(corpus, "burst") / "not-finite").iterdir())


def test_a_model_is_read_back(corpus: Path) -> None:
    shown = trained(corpus, "kept")
    model, about = load_model(str(folder(corpus, "kept")))
    assert f"validation loss {about.validation:.4f}" in shown
    assert (about.steps, about.card.name) == (6, "small")
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    with damaged(folder(corpus, "kept") / "model.safetensors"):
        with pytest.raises(CorpusError, match=r"is not what model\.json says"):
            load_model(str(folder(corpus, "kept")))
        found = check(Corpus(str(corpus.parent / "out")), lambda done: None)
        (wrong,) = (one for one in found if one.path.startswith("train/kept/"))  # not what other tests damaged
        assert wrong.path == "train/kept/model.safetensors" and "digest" in wrong.what
        assert repair(Store(str(corpus.parent / "out")), [wrong])[0] == 1  # as before the end of the training
    for words in ("trained in 6 steps", "is trained: nothing to do"):  # read from its last checkpoint, from a new file
        again, _ = load_model(str(folder(corpus, "kept")))
        assert all(torch.equal(weights[name], one) for name, one in again.state_dict().items())
        assert words in trained(corpus, "kept")
    tuned = trained(corpus, "tuned", init_from=str(folder(corpus, "kept")), steps=1)
    assert "trained" in tuned
    assert steps_of(corpus, "tuned")[0][1] < steps_of(corpus, "kept")[0][1]
    scalers = [(folder(corpus, name) / "scaler.safetensors").read_bytes() for name in ("kept", "tuned")]
    assert scalers[0] == scalers[1]
    wide = str(write_card(corpus.parent, "wide", inner_dim=48))
    with pytest.raises(
        ConfigError,
        match=r"init_from: .*kept is another model, of the card [a-z-]+: model.inner_dim 32 → 48 \(there → here",
    ):
        trained(corpus, "strange", model=wide, init_from=str(folder(corpus, "kept")))
    with pytest.raises(CorpusError, match=r"holds no trained model; those of this corpus: .*train/kept"):
        load_model(str(folder(corpus, "none")))
