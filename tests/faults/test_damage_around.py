"""Damaged files around a corpus: exports, exported models, comparisons, fetched weights, cards and settings.

A command that reads a damaged file ends with an error that is a sentence, or with the result that it has without that
damage. `PIPELINE_KILLS=30` looks at every case, otherwise at a selection.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.conftest import TINY_CARD, sample_documents, write_config, write_jsonl
from tests.faults.damage import DAMAGE, TRAIN
from tests.support.cli import pipeline, said
from tests.support.kills import KILLS
from tests.support.trainings import write_card

pytestmark = pytest.mark.faults

# What commands read → the command, and the files that it makes; of others, what it prints is compared.
SHARE = (("export", "corpus.yaml", "--format", "parquet", "--to", "half", "--share", "2/2"), ("half/data/*/*",))
AGAIN = (("export", "corpus.yaml", "--format", "parquet", "--to", "whole", "--share", "1/1"), ("whole/data/*/*",))
GENERATE = (("generate", "--model", "model", "--prompt", "prompt.txt", "--sentences", "3"), ())
ABLATE = (("ablate", "ablation.yaml"), ("ablation/results.md", "ablation/results.svg"))
COMPARE = (("compare-objectives", "science.yaml"), ("science/results.md", "science/results.svg"))
RUN = (("run", "corpus.yaml", "--set", "output=fresh", "--set", "train=null"), ("fresh/embeddings/*/*",))
TRAINED = (("train", "corpus.yaml", "--set", "train.name=anew"), ("out/train/anew/model.safetensors",))
KINDS = {
    "note of a share": ("half/shares/*", SHARE),
    "file of a share": ("half/data/*/*", SHARE),
    "record of an export": ("whole/export.json", AGAIN),
    "file of an export": ("whole/data/*/*", AGAIN),
    "header of an exported model": ("model/model.json", GENERATE),
    "weights of an exported model": ("model/model.safetensors", GENERATE),
    "scaler of an exported model": ("model/scaler.safetensors", GENERATE),
    "how an exported model reads text": ("model/text.json", GENERATE),
    "README of an exported model": ("model/README.md", GENERATE),
    "results of an ablation": ("ablation/results.json", ABLATE),
    "table of an ablation": ("ablation/results.md", ABLATE),
    "plot of an ablation": ("ablation/results.svg", ABLATE),
    "results of a comparison": ("science/results.json", COMPARE),
    "table of a comparison": ("science/results.md", COMPARE),
    "fetched encoder": ("cache/**/enc.pt", RUN),
    "fetched tokenizer": ("cache/**/tiny.model", RUN),
    "fetched decoder": ("cache/**/dec.pt", GENERATE),
    "digest of a fetched encoder": ("cache/**/enc.pt.sha256", RUN),
    "digest of a fetched tokenizer": ("cache/**/tiny.model.sha256", GENERATE),
    "card of an encoder": ("by-url.yaml", RUN),
    "card of an LCM": ("small.yaml", TRAINED),
    "settings of an ablation": ("ablation.yaml", ABLATE),
}
KINDS_OF_DAMAGE = [one for one in DAMAGE if one != "same"]
SELECTED = [
    ("file of a share", "bit"), ("file of an export", "deleted"), ("record of an export", "bit"),
    ("how an exported model reads text", "truncated"), ("table of a comparison", "deleted"),
    ("digest of a fetched tokenizer", "empty"), ("card of an encoder", "empty"), ("fetched encoder", "other"),
]  # fmt: skip
CASES = [(kind, damage) for kind in KINDS for damage in KINDS_OF_DAMAGE] if KILLS >= 30 else SELECTED


class Around:
    """A finished corpus with all that is made of it, which can be had again and again, at the same place."""

    def __init__(self, folder: Path) -> None:
        self.place, self._whole = folder / "place", folder / "whole"
        self.place.mkdir()
        self._results: dict[Sequence[str], list[str]] = {}

    def make(self) -> None:
        """Encoder and decoder are fetched by URL, and no card states their digests."""
        place = self.place
        write_jsonl(place / "in/some.jsonl", sample_documents("libreoffice-eng", 9))
        write_jsonl(place / "in/more.jsonl", sample_documents("libreoffice-deu", 2))
        (place / "prompt.txt").write_text("The file is open. It was saved on the disk.\n")
        card = yaml.safe_load(TINY_CARD.read_text())
        (place / "served").mkdir()
        for file in card["files"].values():
            shutil.copy(TINY_CARD.parent / file["path"], place / "served")
            file["url"] = f"file://{place}/served/{file.pop('path')}"
            del file["sha256"]
        (place / "by-url.yaml").write_text(yaml.safe_dump(card))
        write_card(place)
        model = {"model": str(place / "by-url.yaml")}
        train = TRAIN | {"plans": "none"}
        write_config(place, encode=model, scaler={}, autobleu=None, split={"validation": 0.3}, train=train)
        few = {"lr": 1e-2, "timeout_seconds": 60, "batch_concepts": 16, "micro_concepts": 16, "validation_concepts": 0}
        both = {"corpus": "corpus.yaml", "seeds": [0], "split": "validation", "sentences": 20, "metrics": ["l2"]}
        ablation = both | {"output": "ablation", "train": few | {"model": "small.yaml", "steps": 2}}
        (place / "ablation.yaml").write_text(yaml.safe_dump(ablation | {"selections": {"half": "u < 0.5"}}))
        base = {"train": {"model": str(place / "small.yaml"), "steps": 2}}
        science = both | {"output": "science", "train": few, "objectives": {"base": base}}
        (place / "science.yaml").write_text(yaml.safe_dump(science))
        for command in (
            ("run", "corpus.yaml"),
            ("export-model", "corpus.yaml", "--model", "m", "--to", "model"),
            ("export", "corpus.yaml", "--format", "parquet", "--to", "half", "--share", "1/2"),
            AGAIN[0],
            ABLATE[0],
            COMPARE[0],
            GENERATE[0],
        ):
            done = pipeline(*command)
            assert done.returncode == 0, said(done)
        shutil.copytree(place, self._whole)

    def restore(self) -> None:
        for path in self.place.iterdir():  # the folder itself stays: it is that of this process
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._whole, self.place, dirs_exist_ok=True)

    def damage(self, pattern: str, how: str) -> None:
        self.restore()
        path = sorted(self.place.glob(pattern))[-1]
        if how != "other":
            DAMAGE[how](path)
            return
        content = path.read_bytes()
        others = (one for one in sorted(self._whole.rglob(f"*{path.suffix}")) if one.is_file())
        path.write_bytes(next((one.read_bytes() for one in others if one.read_bytes() not in (content, b"")), b"{}"))

    def result(self, command: Sequence[str], made: Sequence[str]) -> tuple[int, str, list[str]]:
        """Exit code, what was printed, and the result of a command."""
        done = pipeline(*command)
        found = sorted(path for pattern in made for path in self.place.glob(pattern))
        digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in found)
        return done.returncode, said(done), digests if made else [done.stdout]

    def expected(self, command: Sequence[str], made: Sequence[str]) -> list[str]:
        if command not in self._results:
            self.restore()
            code, shown, self._results[command] = self.result(command, made)
            assert code == 0 and self._results[command], shown
        return self._results[command]


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Around]:
    with pytest.MonkeyPatch.context() as patch:
        found = Around(tmp_path_factory.mktemp("around"))
        patch.chdir(found.place)
        patch.setenv("PIPELINE_CACHE", str(found.place / "cache"))
        found.make()
        yield found


@pytest.mark.parametrize(("kind", "damage"), CASES)
def test_damage_is_told_or_makes_no_difference(around: Around, kind: str, damage: str) -> None:
    pattern, (command, made) = KINDS[kind]
    expected = around.expected(command, made)
    around.damage(pattern, damage)
    code, shown, result = around.result(command, made)  # a traceback comes through: it runs in this process
    assert code in (0, 1, 2) and "Traceback" not in shown, shown
    waits = "share to be written" in shown  # of a share without a note
    assert code or waits or result == expected, f"{kind}, {damage}: another result and code 0: {shown}"


def test_the_selection_is_of_these_kinds() -> None:
    assert all(kind in KINDS and damage in KINDS_OF_DAMAGE for kind, damage in SELECTED)
