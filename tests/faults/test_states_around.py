"""What commands make of a finished corpus, killed before each change: readers work, and again gives the same.

`PIPELINE_KILLS=30` kills before every change, otherwise before a few.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest
import yaml

from pipeline.corpus.exports import exports_of
from pipeline.storage.store import Store
from tests.conftest import TINY_CARD, sample_documents, write_config, write_jsonl
from tests.faults.damage import DECODER, TRAIN
from tests.support.cli import pipeline, said
from tests.support.kills import killed
from tests.support.trainings import write_card

pytestmark = pytest.mark.faults

READERS = (("status",), ("inspect", "--max-rows", "20"), ("gc",))
SMALL = {"lr": 1e-2, "timeout_seconds": 60, "batch_concepts": 16, "micro_concepts": 16, "validation_concepts": 0}
TUNED = "out/fits/decoder.*.yaml"
COMPARED = {"corpus": "corpus.yaml", "seeds": [0], "split": "validation", "sentences": 20, "metrics": ["l2"]}
ON_VALIDATION = ("--split", "validation", "--sentences", "20")
OF_ATTEMPTS = ("out/lock/", "out/runs/", "out/exports/", "out/train/")  # with names that are random
EXPORT = ("export", "corpus.yaml", "--to", "made", "--format")
FORMATS = {"parquet": 4, "lcm": 6, "sonar-llm": 8, "hub": 8, "numpy": 6, "webdataset": 4}

# arguments, what is done before, the files that are made, and how many changes there are at least
COMMANDS = {
    "evaluate": (("evaluate", "corpus.yaml", *ON_VALIDATION, "--metrics", "l2"), (), "out/train/m/evaluation/*", 2),
    "report --interactive": (("report", "corpus.yaml", "--interactive"), (), "out/report/*", 1),
    "export-model": (("export-model", "corpus.yaml", "--model", "m", "--to", "made"), (), "made/**/*", 5),
    "compare-decoders": (
        ("compare-decoders", "corpus.yaml", str(TINY_CARD), TUNED, *ON_VALIDATION, "--noise", "0.5",
         "--external", "none", "--to", "made"), (), "made/**/*", 6,
    ),
    "ablate": (("ablate", "ablation.yaml"), (), "out/train/*/model.safetensors", 40),
    "compare-objectives": (("compare-objectives", "science.yaml"), (), "out/train/*/model.safetensors", 20),
    **{f"export --format {one}": ((*EXPORT, one), (), "made/**/*", changes) for one, changes in FORMATS.items()},
    "export --format lance": ((*EXPORT, "lance"), (), "made/*.lance", 3),
    "export --share 1/2": ((*EXPORT, "lcm", "--share", "1/2"), (), "made/**/*", 3),
    "export --share 2/2": (
        (*EXPORT, "parquet", "--share", "2/2"), (*EXPORT, "parquet", "--share", "1/2"), "made/**/*", 4,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the process, with a finished corpus; `whole` beside it has the same."""
    folder = tmp_path_factory.mktemp("around") / "place"
    write_jsonl(folder / "in/some.jsonl", sample_documents("libreoffice-eng", 9))
    write_jsonl(folder / "in/more.jsonl", sample_documents("libreoffice-deu", 2))
    write_card(folder)
    write_config(
        folder, scaler={}, rvq={"codebooks": 2, "units": 4}, decoder=DECODER, split={"validation": 0.3},
        train=TRAIN | {"plans": "none"},
    )  # fmt: skip
    few = SMALL | {"model": "small.yaml", "steps": 2}
    ablation = COMPARED | {"output": "ablation", "train": few, "selections": {"half": "u < 0.5"}}
    (folder / "ablation.yaml").write_text(yaml.safe_dump(ablation))
    base = {"train": {"model": str(folder / "small.yaml"), "steps": 2}}
    science = COMPARED | {"output": "science", "train": SMALL, "objectives": {"base": base}}
    (folder / "science.yaml").write_text(yaml.safe_dump(science))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = pipeline("run", "corpus.yaml")
        assert done.returncode == 0, said(done)
        shutil.copytree(folder, folder.parent / "whole")
        yield folder


def content(folder: Path, pattern: str) -> dict[str, str]:
    """Every file with its digest; a Lance dataset, whose files have random names, with its rows."""
    found = {}
    for path in sorted(folder.glob(pattern)):
        name = str(path.relative_to(folder))
        if path.suffix == ".lance" and path.is_dir():
            found[name] = repr(lance.dataset(path).to_table().to_pylist())
        elif path.is_file() and ".lance/" not in name and not re.fullmatch(r"\..*\.tmp", path.name):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_before_every_change(place: Path, name: str) -> None:
    command, before, made, changes = COMMANDS[name]

    def prepared() -> tuple[str, ...]:
        for path in place.iterdir():  # the folder itself stays: it is that of this process
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(place.parent / "whole", place, dirs_exist_ok=True)
        if before:
            done = pipeline(*before)
            assert done.returncode == 0, said(done)
        return tuple(str(next(place.glob(one))) if one == TUNED else one for one in command)

    def recorded() -> list[tuple[str, str]]:
        return [(one.place, one.format) for one in exports_of(Store(str(place / "out"))).records]

    def again() -> None:
        done = pipeline(*arguments)
        if done.returncode == 2:  # nothing is written over
            refused = re.search(r"was (not finished|killed there)", " ".join(said(done).split()))
            assert refused and "made" in command and not (place / "made/export.json").exists(), said(done)
            shutil.rmtree(place / "made")
            done = pipeline(*arguments)
        assert done.returncode == 0, said(done)

    arguments = prepared()
    again()
    expected, drawn, kept = content(place, made), content(place, "*/results.svg"), recorded()
    corpus = content(place, "out/**/*").keys()
    for how in killed(prepared, place, changes):
        for reader, *more in READERS:
            shown = pipeline(reader, "corpus.yaml", *more)
            assert shown.returncode in (0, 1) and "Traceback" not in said(shown), said(shown)
        verified = pipeline("verify", "corpus.yaml")
        assert verified.returncode == 0, f"{how}: {said(verified)}"
        assert recorded() in ([], kept), how
        again()
        assert content(place, made) == expected, how
        assert content(place, "*/results.svg") == drawn, how
        assert recorded() == kept, how
        left = content(place, "out/**/*").keys() ^ corpus
        assert all(one.startswith(("out/lock/", "out/runs/", "out/exports/", "out/train/")) for one in left), (
            f"{how}: {left}"
        )
