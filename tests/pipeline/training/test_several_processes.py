"""Several processes of a training on this machine that fail for good: what is said is what can be done about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.base.errors import CorpusError
from tests.support.trainings import folder, take_back_to, trained


@pytest.fixture(scope="module")
def begun(made_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus.yaml of a corpus with a training of six steps that is to go on from step 4."""
    copy = tmp_path_factory.mktemp("several") / "corpus"
    shutil.copytree(made_corpus.parent, copy)
    trained(copy / made_corpus.name, "x", checkpoint_every=2)
    take_back_to(copy / made_corpus.name, "x", 4)
    return copy / made_corpus.name


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


def harm_scaler(run: Path) -> None:
    flip(run / "scaler.safetensors")


def harm_log(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])


def harm_share(run: Path) -> None:
    marker = json.loads((run / "checkpoints/step-00000004.json").read_text())
    flip(run.parents[1] / marker["folder"] / "00000-0000.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (harm_scaler, r"scaler\.safetensors was changed or damaged .*; delete it and run pipeline train"),
        (harm_log, r"line \d+ of .*metrics\.jsonl is damaged .*; delete it: only the log of that training is lost"),
        (harm_share, r"00000-0000\.safetensors was changed or damaged.*; delete step-00000004\.json beside it"),
    ],
)
def test_what_they_recorded_is_told_and_not_to_try_the_same_again(
    begun: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], harm: object, told: str
) -> None:
    shutil.copytree(begun.parent, tmp_path / "copy")
    corpus = tmp_path / "copy" / begun.name
    assert callable(harm)
    harm(folder(corpus, "x"))
    with pytest.raises(CorpusError, match=told) as found:
        trained(corpus, "x", checkpoint_every=2, processes=2)
    assert "Run the same command again" not in str(found.value)
    shown = "".join(capfd.readouterr())
    assert "Traceback" not in shown and "Connection closed" not in shown, shown
