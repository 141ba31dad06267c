"""What a training is made of: other weights, several corpora, also after these were moved; damage is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.corpus.reader import Corpus
from pipeline.maintenance.trainings import check_trainings
from pipeline.run.options import RunOptions
from pipeline.storage.store import Store
from pipeline.training.distributed import Processes
from pipeline.training.record import read_started
from pipeline.training.worker import _Work
from tests.conftest import sample_documents, write_jsonl
from tests.support.cli import pipeline
from tests.support.records import write_record
from tests.support.runs import run
from tests.support.trainings import folder, make_corpus, take_back_to, trained


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    """A corpus.yaml; its documents make an epoch of a few steps."""
    return training_corpus


def test_weights_begin_with_a_model_of_the_same_encoder_and_its_scaler(corpus: Path, tmp_path: Path) -> None:
    """On a corpus with another scaler; not if the embeddings were those of another encoder."""
    trained(corpus, "first", steps=1)
    other = make_corpus(tmp_path, scaler={"clip": 3.0})
    trained(other, "second", init_from=str(folder(corpus, "first")), steps=1)
    scalers = [(folder(*one) / "scaler.safetensors").read_bytes() for one in ((corpus, "first"), (other, "second"))]
    assert scalers[0] == scalers[1]
    about = folder(corpus, "first") / "model.json"
    write_record(about, json.loads(re.sub(r'"encoder":"?\s*"\w+"', '"encoder": "0123"', about.read_text())))
    with pytest.raises(
        ConfigError,
        match=r"init_from: .*first is another model, of the card [a-z-]+: encoder 0123 → \w+ \(there → here",
    ):
        trained(other, "third", init_from=str(folder(corpus, "first")))


def test_a_small_corpus_of_a_mix_does_not_come_more_often(corpus: Path, tmp_path: Path) -> None:
    """Both once an epoch with weights of 1, whatever their sizes."""
    small = make_corpus(tmp_path, input=[{"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}, "limit": 5}])
    trained(corpus, "mixed", steps=1, corpora=[{"path": str(small.parent / "out")}])
    store = Store(str(corpus.parent / "out"))
    record = read_started(store, "train/mixed")
    loader = _Work(Console(), store, "train/mixed", record, Processes(0, 1, torch.device("cpu")))._loader("train", 0)
    own = loader.sources[0].index.about.splits["train"][2]
    shares = [source.weight for source in loader.sources]
    assert shares == [own, loader.sources[1].index.about.splits["train"][2]] and shares[0] > 2 * shares[1] > 0
    mix = [{"path": str(small.parent / "out")}]
    assert "purged" not in trained(corpus, "mixed", steps=1, corpora=mix)
    (tmp_path / "ids").write_text(Corpus(str(small.parent / "out")).documents(0)["doc_id"][0].as_py())
    assert pipeline("purge", small.parent / "out", "--ids", tmp_path / "ids").returncode == 0
    assert "train/mixed learned from documents that were purged since" in trained(corpus, "mixed", steps=1, corpora=mix)


def test_texts_of_the_validation_that_a_mix_trains_on_are_counted(corpus: Path, tmp_path: Path) -> None:
    """They are all in the split train of the other corpus; with equal splits nothing is said."""
    own = Corpus(str(corpus.parent / "out"))
    held_out = [of for part in own.parts for of in own.documents(part)["split"].to_pylist()].count("validation")
    other, same = make_corpus(tmp_path / "other", split={}), make_corpus(tmp_path / "same")
    said = trained(corpus, "sees-all", steps=1, corpora=[{"path": str(other.parent / "out")}])
    assert f"The training may learn from {held_out} documents of the split validation, whose text" in said
    said = trained(corpus, "sees-none", steps=1, corpora=[{"path": str(same.parent / "out")}])
    assert "of the split validation" not in said


@pytest.mark.slow
def test_gc_keeps_what_trainings_need(tmp_path: Path) -> None:
    """Also the index of a corpus that another one mixes in; and nothing goes while it is not known what they need."""
    own, other = make_corpus(tmp_path / "own"), make_corpus(tmp_path / "other")
    mix = {"steps": 2, "checkpoint_every": 1, "corpora": [{"path": str(other.parent / "out")}]}
    trained(own, "mixed", **mix)
    take_back_to(own, "mixed", 1)
    for path in (own, other):
        run(path, "segment.max_chars=70", options=RunOptions(accept_removal=True))
    indexes = sorted((other.parent / "out/train/index").iterdir())
    said = pipeline("gc", other.parent / "out", "--delete", "--yes")
    assert f"kept: {len(indexes)} files: all that the index names is here, and another corpus" in said.stdout, said
    assert sorted((other.parent / "out/train/index").iterdir()) == indexes
    assert "resuming from step 1 of 2" in trained(own, "mixed", **mix)
    said = pipeline("gc", other.parent / "out", "--older-views")
    assert "with which no model of this corpus was trained" in said.stdout, said
    record = folder(own, "mixed") / "run.json"
    record.write_text(record.read_text().replace('"pinned"', '"pinnec"'))
    done = pipeline("gc", own.parent / "out", "--delete", "--yes")
    assert done.returncode == 1 and "it is not known what train/mixed was trained on" in done.stderr, done


def test_a_mix_goes_on_after_everything_was_moved(corpus: Path, tmp_path: Path) -> None:
    """Not if a corpus of another content, or with something at the old place, is named."""
    for name in ("own", "other"):
        (tmp_path / "old" / name).mkdir(parents=True)
    own, _ = (make_corpus(tmp_path / f"old/{name}") for name in ("own", "other"))
    trained(own, "first", steps=1)
    mix = {"steps": 4, "checkpoint_every": 2}

    def named(place: Path) -> dict[str, Any]:
        start = str(place / "own/out/train/first")
        return mix | {"corpora": [{"path": str(place / "other/out")}], "init_from": start}

    trained(own, "whole", **named(tmp_path / "old"))
    trained(own, "mixed", **named(tmp_path / "old"))
    take_back_to(own, "mixed", 2)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    with pytest.raises(ConfigError, match=r"begun with other settings: train\.corpora .*; train\.init_from "):
        trained(own, "mixed", **named(tmp_path / "copy"))
    shutil.rmtree(tmp_path / "copy")
    (tmp_path / "old").rename(tmp_path / "new")
    moved = tmp_path / "new" / own.relative_to(tmp_path / "old")
    assert "resuming from step 2 of 4" in trained(moved, "mixed", **named(tmp_path / "new"))
    files = [folder(moved, name) / "model.safetensors" for name in ("whole", "mixed")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("damage", ["flipped", "another part's"])
def test_damaged_embeddings_are_not_trained_on(corpus: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(corpus.parent, tmp_path / "copy")
    path = tmp_path / "copy/corpus.yaml"
    first, second = sorted((tmp_path / "copy/out/embeddings").rglob("*.parquet"))[:2]
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data if damage == "flipped" else second.read_bytes())
    with pytest.raises(
        CorpusError, match=rf"{first.name} is not what its receipt says: .* pipeline verify .* --repair"
    ):
        trained(path, "damaged", steps=1)


def test_the_model_of_another_training_is_no_end_of_this_one(corpus: Path) -> None:
    trained(corpus, "seed-0", steps=1)
    trained(corpus, "seed-1", steps=1, seed=1)
    for name in ("model.json", "model.safetensors"):
        shutil.copy(folder(corpus, "seed-0") / name, folder(corpus, "seed-1") / name)
    said = r"seed-1/model\.json is the model of another training than run\.json says; delete it and run pipeline train"
    with pytest.raises(CorpusError, match=said):
        trained(corpus, "seed-1", steps=1, seed=1)
    found = [one for one in check_trainings(Store(str(corpus.parent / "out"))) if "/seed-1/" in one.path]
    assert len(found) == 1 and re.search(said, found[0].what)
    (folder(corpus, "seed-1") / "model.json").unlink()
    assert "trained in 1 step" in trained(corpus, "seed-1", steps=1, seed=1)


def test_the_damaged_scaler_of_a_model_is_written_again(corpus: Path) -> None:
    trained(corpus, "scaled", steps=1)
    scaler = folder(corpus, "scaled") / "scaler.safetensors"
    whole = scaler.read_bytes()
    scaler.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorpusError, match=r"scaler\.safetensors is not what .*, or delete it and run "):
        trained(corpus, "scaled", steps=1)
    scaler.unlink()
    assert "nothing to do" in trained(corpus, "scaled", steps=1)
    assert scaler.read_bytes() == whole


def test_a_corpus_that_changed_since_is_told(made_corpus: Path, tmp_path: Path) -> None:
    """What was added is not trained on, which is said; after a purge and a run, that is the reason, not lost files."""
    path = shutil.copytree(made_corpus.parent, tmp_path / "copy") / made_corpus.name
    steps = {"steps": 2, "checkpoint_every": 1}
    trained(path, "x", **steps)
    take_back_to(path, "x", 1)
    assert "has changed since" not in trained(path, "x", **steps)
    write_jsonl(tmp_path / "copy/in/more.jsonl", sample_documents("libreoffice-deu", 2))
    run(path)
    take_back_to(path, "x", 1)
    said = trained(path, "x", **steps)
    assert "the corpus has changed since train/x began" in said and "resuming from step 1 of 2" in said
    (tmp_path / "ids").write_text(Corpus(str(path.parent / "out")).documents(0)["doc_id"][0].as_py())
    assert pipeline("purge", path.parent / "out", "--ids", tmp_path / "ids").returncode == 0
    take_back_to(path, "x", 1)
    with pytest.raises(CorpusError, match=r"documents were purged since\. Bring the corpus up to date"):
        trained(path, "x", **steps)
    run(path)
    with pytest.raises(
        CorpusError, match=r"documents that it names were purged since\. Begin again on the corpus as it"
    ):
        trained(path, "x", **steps)
