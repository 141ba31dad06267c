"""Every kind of file of a corpus, damaged in five ways: no command ends in a traceback, none is silently wrong.

Of each damage: status, verify, inspect, run and train, each on a corpus of its own with that damage; and what is left
after `verify --repair`, `run` and `train`. `PIPELINE_KILLS=30` looks at all of them, otherwise at a selection.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.kills import KILLS
from tests.support.trainings import write_card

TRAIN = {
    "model": "small.yaml", "name": "m", "steps": 2, "batch_concepts": 64, "micro_concepts": 64, "log_every": 1,
    "validate_every": 0, "validation_concepts": 20, "evaluate_sentences": 0,
}  # fmt: skip
RECORDS = {
    "header": "corpus.json",
    "view": "runs/*/view.json",
    "chunks": "runs/*/chunks.parquet",
    "settings": "runs/*/corpus.yaml",
    "events": "runs/*/events/*",
    "progress": "runs/*/progress.json",
    "summary": "runs/*/summary.json",
    "ledger": "ledger/*",
    "lease": "lock/run-*.lease",
    "recipe": "recipes/encode*",
    "chunk receipt": "chunks/*/*",
    "receipt": "receipts/encode/*/*-00001*",
    "record of a scaler": "fits/scaler*.json",
    "record of codebooks": "fits/rvq*.json",
    "scaler": "fits/scaler*.safetensors",
    "codebooks": "fits/rvq*.safetensors",
    "index": "train/index/*[0-9a-f].parquet",
    "parts of an index": "train/index/*.parts.parquet",
    "runs of an index": "train/index/*.train*",
    "record of a training": "train/m/run.json",
    "header of a model": "train/m/model.json",
    "weights": "train/m/model.safetensors",
    "scaler of a training": "train/m/scaler.safetensors",
    "metrics": "train/m/metrics.jsonl",
    "marker": "train/m/checkpoints/*.json",
    "plan of a checkpoint": "train/m/checkpoints/*/plan.json",
    "share": "train/m/checkpoints/*/*.safetensors",
}
ROWS = {
    name: f"{name}/*-00001*" for name in ("documents", "sentences", "embeddings", "status", "codes")
} | {"quarantine": "quarantine/*"}  # fmt: skip
KINDS = RECORDS | ROWS
SELECTED = [
    ("header", "deleted"), ("view", "bit"), ("chunks", "deleted"), ("settings", "truncated"), ("progress", "empty"),
    ("ledger", "truncated"), ("lease", "empty"), ("receipt", "bit"), ("record of codebooks", "other"),
    ("runs of an index", "bit"), ("parts of an index", "bit"), ("record of a training", "deleted"), ("weights", "bit"),
]  # fmt: skip


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def exchange(path: Path) -> None:
    """For the whole content of another file of that format, of another kind."""
    suffix = path.suffix if path.suffix in (".parquet", ".safetensors") else ".json"
    others = sorted(root_of(path).rglob(f"*{suffix}"))
    content = path.read_bytes()
    other = next(one for one in others if one.parent != path.parent and one.read_bytes() != content)
    path.write_bytes(other.read_bytes())


def root_of(path: Path) -> Path:
    return next(one for one in path.parents if one.name == "out")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3]),
    "bit": flip,
    "other": exchange,
}
CASES = [(kind, damage) for kind in KINDS for damage in DAMAGE] if KILLS >= 30 else SELECTED


class Damaged:
    """A finished corpus with a model, which can be had with a damage again and again, at the same place."""

    def __init__(self, folder: Path) -> None:
        self.place, self._whole = folder / "corpus", folder / "whole"
        self.config, self.out = self.place / "corpus.yaml", self.place / "out"
        bad = {"id": "bad", "lang": "xxx_Xxxx", "text": "Nobody knows this language."}
        write_jsonl(self.place / "in/some.jsonl", [*sample_documents("libreoffice-eng", 8), bad])
        write_card(self.place)
        sections = {"scaler": {}, "rvq": {"codebooks": 2, "units": 4}, "autobleu": None, "split": {"validation": 0.3}}
        write_config(self.place, **sections, train=TRAIN)
        done = pipeline("run", self.config)
        assert done.returncode == 0, said(done)
        shutil.copytree(self.place, self._whole)
        self.data, self.weights = self.results()
        self.inspected = pipeline("inspect", self.config).stdout
        self.status = stable(pipeline("status", self.config).stdout)

    def again(self, kind: str, damage: str) -> None:
        shutil.rmtree(self.place)
        shutil.copytree(self._whole, self.place)
        DAMAGE[damage](sorted(self.out.glob(KINDS[kind]))[0])

    def results(self) -> tuple[dict[str, str], bytes]:
        return data_digests(self.out), (self.out / "train/m/model.safetensors").read_bytes()


def stable(shown: str) -> str:
    """What `status` says of the corpus, without speeds and the record of the run."""
    return "\n".join(line for line in shown.splitlines() if re.match(r"(sentences|documents|chunks|embeddings)", line))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    return Damaged(tmp_path_factory.mktemp("damaged"))


@pytest.mark.faults
@pytest.mark.parametrize(("kind", "damage"), CASES)
def test_damage_is_told_and_mended(whole: Damaged, kind: str, damage: str) -> None:
    """A traceback would come through: commands are called in this process."""
    unfinished = damage == "deleted" and "receipt" in kind  # what no receipt vouches for is not there, and is said so
    whole.again(kind, damage)
    shown = pipeline("status", whole.config)
    assert shown.returncode in (0, 1), said(shown)
    assert shown.returncode or unfinished or stable(shown.stdout) == whole.status, shown.stdout
    shown = pipeline("inspect", whole.config)
    if not shown.returncode and kind in RECORDS and not unfinished:
        assert shown.stdout == whole.inspected
    found = pipeline("verify", whole.config)
    assert found.returncode in (0, 1), said(found)
    if not found.returncode:  # then it makes no difference
        assert kind in RECORDS and whole.results() == (whole.data, whole.weights)
    for command in ("run", "train"):
        whole.again(kind, damage)
        done = pipeline(command, whole.config)
        assert done.returncode in (0, 1), said(done)
        assert "Traceback" not in said(done)
        if not done.returncode:
            assert (whole.out / "train/m/model.safetensors").read_bytes() == whole.weights
        if not done.returncode and command == "run" and kind in RECORDS:  # of rows, with nothing to do, it reads none
            assert pipeline("inspect", whole.config).returncode == 0, "run said 0, and nobody can read it"
            assert whole.results()[0] == whole.data
    whole.again(kind, damage)
    repaired = pipeline("verify", whole.config, "--repair")
    assert repaired.returncode <= found.returncode  # whoever takes the lock takes damaged leases away
    if "cannot be made again" not in said(repaired):
        done = pipeline("run", whole.config)
        assert done.returncode == 0, said(repaired) + said(done)
        assert pipeline("verify", whole.config).returncode == 0
        assert whole.results() == (whole.data, whole.weights)


def test_the_selection_is_of_this_table() -> None:
    assert all(kind in KINDS and damage in DAMAGE for kind, damage in SELECTED) and len(KINDS) * len(DAMAGE) >= 160
