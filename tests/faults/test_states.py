"""Commands that change a corpus, killed before each of their changes to it: readers work, and again gives the same.

`run` itself is in `test_kill.py`; here is the one after a purge, which copies rows. `PIPELINE_KILLS=30` kills before
every change, otherwise before one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from pipeline.base.errors import CorpusError
from pipeline.corpus.exports import exports_of
from pipeline.storage.store import Store
from pipeline.training.checkpoint import interrupted
from pipeline.training.checkpoint_markers import markers
from pipeline.training.model_file import load_model
from pipeline.training.status import read_metrics
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.kills import KILLS
from tests.support.processes import start
from tests.support.trainings import write_card

pytestmark = pytest.mark.faults

EVERY = KILLS >= 30
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
    """changes: that it makes at least, so that a count that sees none is found."""
    name, *options = (str(finished / one) if one == "ids.txt" else one for one in command)
    place = tmp_path / "place"
    path = place / "corpus.yaml"

    def whole() -> dict[str, str]:
        done = pipeline("run", path)
        assert done.returncode == 0, said(done)
        return data_digests(place / "out")

    expected: dict[str, str] = {}
    tried = 0
    for change in itertools.count(1) if EVERY else [(changes + 1) // 2]:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(finished, place)
        pipeline("run", path)  # at this place
        prepare(place)
        if not expected:
            pipeline(name, path, *options)
            expected = whole()
            shutil.rmtree(place)
            shutil.copytree(finished, place)
            pipeline("run", path)
            prepare(place)
        process = start(name, path, *options, die_before=(change, place / "out"))
        if process.wait() != -signal.SIGKILL:  # it made fewer
            break
        tried += 1
        for reader, *more in READERS if prepare is nothing else ():
            shown = pipeline(reader, path, *more)
            assert shown.returncode in (0, 1) and "Traceback" not in said(shown), said(shown)
        again = pipeline(name, path, *options)
        assert again.returncode in (0, 1), said(again)
        assert whole() == expected, f"killed before change {change} of {name}"
        assert pipeline("verify", path).returncode == 0
    assert tried >= (changes if EVERY else 1), f"only {tried} changes of {name} were seen"


def kills(changes: int) -> Iterator[int]:
    """Before which changes a command of so many is killed."""
    return itertools.count(1) if EVERY else iter([(changes + 1) // 2])


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


def test_a_training_killed_before_every_change(finished: Path, tmp_path: Path) -> None:
    """Three steps, each with a checkpoint of which only the newest is kept: the same weights, each step logged once."""
    place = tmp_path / "place"

    def prepared() -> Path:
        path = at(place, finished)
        write_card(place)
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"train": TRAIN}))
        return path

    def results(path: Path) -> tuple[bytes, list[tuple[str, int]], list[int]]:
        done = pipeline("train", path)
        assert done.returncode == 0, said(done)
        store = Store(str(place / "out"))
        assert not interrupted(store, "train/m"), "a checkpoint that was interrupted was left"
        steps = [(one["kind"], int(one["step"])) for one in read_metrics(store, "train/m")]
        weights = (place / "out/train/m/model.safetensors").read_bytes()
        return weights, steps, [one.step for one in markers(store, "train/m")]

    expected = results(prepared())
    assert expected[1:] == ([("train", 1), ("train", 2), ("train", 3), ("validation", 3)], [3])
    tried = 0
    for change in kills(40):
        path = prepared()
        process = start("train", path, die_before=(change, place / "out"))
        if process.wait() != -signal.SIGKILL:
            assert process.returncode == 0, process.communicate()[0]
            break
        tried += 1
        look(path)
        verified = pipeline("verify", path)
        assert verified.returncode == 0, said(verified)
        try:
            load_model(str(place / "out/train/m"))
        except CorpusError as error:
            assert not markers(Store(str(place / "out")), "train/m"), error
        assert results(path) == expected, f"killed before change {change} of train"
    assert tried >= (30 if EVERY else 1), f"only {tried} changes of train were seen"


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
    tried = 0
    for change in kills(24):
        path = at(place, grown)
        process = start("run", path, *refit, die_before=(change, place / "out"))
        if process.wait() != -signal.SIGKILL:
            break
        tried += 1
        look(path)
        verified = pipeline("verify", path)
        assert verified.returncode == 0, said(verified)
        done = pipeline("run", path, *refit)
        assert done.returncode == 0, said(done)
        assert data_digests(place / "out") == expected, f"killed before change {change} of run --refit"
    assert tried >= (20 if EVERY else 1), f"only {tried} changes of run --refit were seen"


def tree(folder: Path) -> dict[str, str]:
    """Every file with its digest."""
    found = sorted(one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in found}


@pytest.mark.parametrize(("format", "changes"), [("parquet", 2), ("lcm", 4), ("sonar-llm", 6)])
def test_an_export_killed_before_every_change(finished: Path, tmp_path: Path, format: str, changes: int) -> None:
    """What is there has no export.json, which is written last, and is not written over; nothing of the corpus changes
    but its record.
    """
    place, to = tmp_path / "place", tmp_path / "place/export"
    path = at(place, finished)
    assert pipeline("run", path).returncode == 0
    corpus = tree(place / "out")

    def recorded() -> list[tuple[str, str]]:
        return [(one.place, one.format) for one in exports_of(Store(str(place / "out"))).records]

    done = pipeline("export", path, "--format", format, "--to", to)
    assert done.returncode == 0, said(done)
    expected = tree(to)
    assert recorded() == [("../export", format)]
    tried = 0
    for change in kills(changes):
        shutil.rmtree(to)
        shutil.rmtree(place / "out/exports")
        process = start("export", path, "--format", format, "--to", to, die_before=(change, place))
        if process.wait() != -signal.SIGKILL:
            break
        tried += 1
        look(path)
        assert recorded() in ([], [("../export", format)]) and pipeline("verify", path).returncode == 0
        assert not (to / "export.json").exists(), "nothing is left to do once an export is complete"
        left = list(to.rglob("*"))
        again = pipeline("export", path, "--format", format, "--to", to)
        if left:
            refused = re.search(r"was (not finished|killed there)", " ".join(said(again).split()))
            assert again.returncode == 2 and refused, said(again)
            shutil.rmtree(to)
            again = pipeline("export", path, "--format", format, "--to", to)
        assert again.returncode == 0, said(again)
        assert tree(to) == expected, f"killed before change {change} of export"
        assert recorded() == [("../export", format)]
        others = {name: one for name, one in tree(place / "out").items() if not name.startswith("exports/")}
        assert others == corpus
    assert tried >= (changes if EVERY else 1), f"only {tried} changes of export were seen"


def test_a_report_killed_before_every_change_and_a_selection_that_makes_none(finished: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    path = at(place, finished)
    assert pipeline("run", path).returncode == 0
    corpus = tree(place / "out")
    for change in itertools.count(1):
        process = start("report", path, die_before=(change, place / "out"))
        if process.wait() != -signal.SIGKILL:
            assert process.returncode == 0, process.communicate()[0]
            break
        look(path)
        pages = list((place / "out/report").glob("*.html")) if (place / "out/report").exists() else []
        assert all(page.read_text("utf-8").rstrip().endswith("</html>") for page in pages)
        assert pipeline("verify", path).returncode == 0
    assert change >= 2
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
