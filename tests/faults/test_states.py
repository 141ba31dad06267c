"""Commands that change a corpus, killed before each of their changes to it: readers work, and again gives the same.

`run` itself is in `test_kill.py`. `PIPELINE_KILLS=30` kills before every change, otherwise before one.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.kills import KILLS
from tests.support.processes import start

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


@pytest.mark.parametrize(
    ("command", "prepare", "changes"),
    [
        (("purge", "--ids", "ids.txt"), nothing, 4),
        (("retry", "--quarantined"), nothing, 20),
        (("gc", "--delete", "--yes", "--older-views"), nothing, 5),
        (("verify", "--repair"), damage, 6),
        (("index",), nothing, 3),
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
