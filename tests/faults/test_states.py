"""Commands that change a corpus, killed before each of their changes to it: readers work, and again gives the same.

`run` itself is in `test_kill.py`; here is the one after a purge, which copies rows. What commands make of a finished
corpus is in `test_states_around.py`. `PIPELINE_KILLS=30` kills before every change, otherwise before a few.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline.base.errors import CorpusError
from pipeline.corpus.ledger import Ledgers
from pipeline.storage.store import Store
from pipeline.training.checkpoint import interrupted
from pipeline.training.checkpoint_markers import markers
from pipeline.training.model_file import load_model
from pipeline.training.status import read_metrics
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.folding import fold_all
from tests.support.kills import killed
from tests.support.processes import start
from tests.support.runs import bring_up_to_date
from tests.support.trainings import write_card

pytestmark = pytest.mark.faults

READERS = (("status",), ("inspect", "--max-rows", "20"), ("quarantine",), ("gc",))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two files with a bad record each, and results of other settings."""
    folder = tmp_path_factory.mktemp("states")
    for name, documents in (
        ("eng", sample_documents("libreoffice-eng", 3)),
        ("deu", sample_documents("libreoffice-deu", 2)),
    ):
        bad = {"id": f"bad-{name}", "lang": "xxx_Xxxx", "text": "Nobody knows this language."}
        write_jsonl(folder / f"in/{name}.jsonl", [*documents, bad])
    path = write_config(folder, scaler={}, rvq={"codebooks": 2, "units": 4}, autobleu=None, split={"validation": 0.3})
    for changed in ("rvq.units=8", "rvq.units=4"):
        done = pipeline("run", path, "--set", changed)
        assert done.returncode == 0, said(done)
    (folder / "ids.txt").write_text(json.loads((folder / "in/eng.jsonl").read_text().split("\n")[0])["id"] + "\n")
    return folder


def damage(place: Path) -> None:
    for pattern in ("receipts/encode/*/*", "recipes/rvq*", "ledger/*"):
        sorted((place / "out").glob(pattern))[0].write_bytes(b"{")


def nothing(place: Path) -> None:
    return


def purged(place: Path) -> None:
    """A run then copies what is left."""
    done = pipeline("purge", place / "corpus.yaml", "--ids", place / "ids.txt")
    assert done.returncode == 0, said(done)


@pytest.mark.parametrize(
    ("command", "prepare", "changes"),
    [
        (("purge", "--ids", "ids.txt"), nothing, 4),
        (("retry", "--quarantined"), nothing, 20),
        (("gc", "--delete", "--yes", "--older-views"), nothing, 5),
        (("verify", "--repair"), damage, 6),
        (("index",), nothing, 3),
        (("run",), purged, 30),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_killed_before_every_change(
    finished: Path, tmp_path: Path, command: tuple[str, ...], prepare: Callable[[Path], None], changes: int
) -> None:
    name, *options = (str(finished / one) if one == "ids.txt" else one for one in command)
    place = tmp_path / "place"
    path = place / "corpus.yaml"

    def whole() -> dict[str, str]:
        done = pipeline("run", path)
        assert done.returncode == 0, said(done)
        return data_digests(place / "out")

    def prepared() -> tuple[object, ...]:
        at(place, finished)
        pipeline("run", path)  # at this place
        prepare(place)
        return name, path, *options

    pipeline(*prepared())
    expected = whole()
    for how in killed(prepared, place / "out", changes):
        if prepare is nothing:
            look(path)
        again = pipeline(name, path, *options)
        assert again.returncode in (0, 1), said(again)
        assert whole() == expected, how
        assert pipeline("verify", path).returncode == 0


def at(place: Path, finished: Path) -> Path:
    """A copy of the finished corpus at a place; its corpus.yaml."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(finished, place)
    return place / "corpus.yaml"


def look(path: Path) -> None:
    for reader, *more in READERS:
        shown = pipeline(reader, path, *more)
        assert shown.returncode in (0, 1) and "Traceback" not in said(shown), said(shown)


TRAIN = {
    "model": "small.yaml", "name": "m", "steps": 3, "batch_concepts": 64, "micro_concepts": 64, "log_every": 1,
    "validate_every": 0, "validation_concepts": 20, "evaluate_sentences": 0, "checkpoint_every": 1,
    "keep_checkpoints": 1,
}  # fmt: skip


def test_folding_while_a_run_goes_on_killed_before_every_change(finished: Path, tmp_path: Path) -> None:
    """Ledgers of what an older run left, files of attempts that were killed, and chunks that are in no ledger."""
    place = tmp_path / "place"
    path = place / "corpus.yaml"

    def prepared() -> tuple[object, ...]:
        at(place, finished)
        path.write_text(path.read_text().replace("max_chars: 80", "max_chars: 60"))
        bring_up_to_date(path)
        for file in (place / "out/sentences").rglob("*.parquet"):
            file.with_name(f"{file.name[:-14]}000000.parquet").write_bytes(b"of an attempt that was killed")
        return (path,)

    prepared()
    fold_all(path)
    expected = data_digests(place / "out")
    rows = len(Ledgers.read(Store(str(place / "out"))))
    assert rows > 2
    for how in killed(prepared, place / "out", 4, module="tests.support.folding"):
        look(path)
        fold_all(path)
        assert data_digests(place / "out") == expected, how
        assert len(Ledgers.read(Store(str(place / "out")))) == rows
    assert pipeline("run", path).returncode == 0 and pipeline("verify", path).returncode == 0


def test_a_training_killed_before_every_change(finished: Path, tmp_path: Path) -> None:
    """Three steps, each with a checkpoint of which only the newest is kept: the same weights, each step logged once."""
    place = tmp_path / "place"

    def prepared() -> tuple[str, Path]:
        path = at(place, finished)
        write_card(place)
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"train": TRAIN}))
        return "train", path

    def results(path: Path) -> tuple[bytes, list[tuple[str, int]], list[int]]:
        done = pipeline("train", path)
        assert done.returncode == 0, said(done)
        store = Store(str(place / "out"))
        assert not interrupted(store, "train/m"), "a checkpoint that was interrupted was left"
        steps = [(one["kind"], int(one["step"])) for one in read_metrics(store, "train/m")]
        weights = (place / "out/train/m/model.safetensors").read_bytes()
        return weights, steps, [one.step for one in markers(store, "train/m")]

    _, path = prepared()
    expected = results(path)
    assert expected[1:] == ([("train", 1), ("train", 2), ("train", 3), ("validation", 3)], [3])
    for how in killed(prepared, place / "out", 40):
        look(path)
        verified = pipeline("verify", path)
        assert verified.returncode == 0, said(verified)
        try:
            load_model(str(place / "out/train/m"))
        except CorpusError as error:
            assert not markers(Store(str(place / "out")), "train/m"), error
        assert results(path) == expected, how


def test_fits_made_again_killed_before_every_change(finished: Path, tmp_path: Path) -> None:
    """Of a corpus that has grown since its fits."""
    place, grown = tmp_path / "place", tmp_path / "grown"
    path = at(grown, finished)
    write_jsonl(grown / "in/more.jsonl", sample_documents("postgresql-eng", 2))
    assert pipeline("run", path).returncode == 0
    refit = ("--refit", "scaler", "--refit", "rvq")
    path = at(place, grown)
    before = data_digests(place / "out")
    done = pipeline("run", path, *refit)
    assert done.returncode == 0, said(done)
    expected = data_digests(place / "out")
    assert {name.partition("/")[0] for name in before if before[name] != expected[name]} == {"codes"}
    for how in killed(lambda: ("run", at(place, grown), *refit), place / "out", 24):
        look(path)
        verified = pipeline("verify", path)
        assert verified.returncode == 0, said(verified)
        done = pipeline("run", path, *refit)
        assert done.returncode == 0, said(done)
        assert data_digests(place / "out") == expected, how


def tree(folder: Path) -> dict[str, str]:
    """Every file with its digest."""
    found = sorted(one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in found}


def test_a_report_killed_before_every_change_and_a_selection_that_makes_none(finished: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    path = at(place, finished)
    assert pipeline("run", path).returncode == 0
    corpus = tree(place / "out")
    for _ in killed(lambda: ("report", path), place / "out", 1):
        look(path)
        pages = list((place / "out/report").glob("*.html")) if (place / "out/report").exists() else []
        assert all(page.read_text("utf-8").rstrip().endswith("</html>") for page in pages)
        assert pipeline("verify", path).returncode == 0
    assert pipeline("report", path).returncode == 0
    left = list((place / "out/report").glob(".*"))
    assert left and "left by a killed write" not in said(pipeline("gc", path)), "that may be under way"
    for one in left:
        os.utime(one, (time.time() - 90_000,) * 2)
    assert "left by a killed write" in said(pipeline("gc", path))
    assert pipeline("gc", path, "--delete", "--yes").returncode == 0
    new = tree(place / "out").keys() - corpus.keys()
    assert {one for one in new if not one.startswith("lock/")} == {"report/index.html"}
    (place / "out/report/index.html").unlink()
    process = start("select", path, die_before=(1, place / "out"))
    assert process.wait() == 0, process.communicate()[0]
    assert not [one for one in tree(place / "out").keys() - corpus.keys() if not one.startswith("lock/")]
