"""Two wheels are built: a small one of the code and cards, and one of weights and the sample. They work elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow
CODE_BYTES = 2_000_000  # of its wheel, at most
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheels of the code and of the models, built from what git has."""
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    dist = folder / "dist"
    subprocess.run([*PIP, "wheel", "-q", "--no-deps", "-w", str(dist), str(source), str(source / "conf")], check=True)
    (code,), (models,) = dist.glob("sonar_pipeline-*.whl"), dist.glob("sonar_pipeline_models-*.whl")
    return code, models


def _install(site: Path, *wheels: Path) -> Path:
    subprocess.run(
        [*PIP, "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", str(site), *map(str, wheels)],
        check=True,
    )
    return site


def _run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def test_each_file_is_in_one_wheel(wheels: tuple[Path, Path]) -> None:
    code, models = (set(zipfile.ZipFile(one).namelist()) for one in wheels)
    assert wheels[0].stat().st_size < CODE_BYTES
    assert not code & models
    assert not [name for name in code | models if name.startswith("tests")]
    assert {"conf/sample.yaml", "conf/models/sonar-tiny.yaml", "pipeline/py.typed"} <= code
    assert {"conf/sample/austen-eng.jsonl.gz", "conf/models/sonar-tiny/encoder.safetensors"} <= models
    assert all(name.startswith(("conf/", "sonar_pipeline_models-")) for name in models)


def test_the_sample_runs_elsewhere_and_says_what_it_lacks(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    alone, both = _install(tmp_path / "code", wheels[0]), _install(tmp_path / "both", *wheels)
    work = tmp_path / "elsewhere"
    work.mkdir()
    where = _run(
        both, work, "-c", "import pipeline, conf, stages; print(pipeline.__file__, conf.__file__, stages.__file__)"
    )
    assert where.stdout.count(str(both)) == 3, where
    sample = ["-m", "pipeline.cli", "run", "sample", "--launcher", "inline", "--set", "input.0.limit=3"]
    refused = _run(alone, work, *sample)
    assert refused.returncode == 2 and not (work / "runs").exists(), refused
    assert "sonar-pipeline-models" in refused.stderr and "pip install 'sonar-pipeline[models]'" in refused.stderr
    run = _run(both, work, *sample)
    assert run.returncode == 0, run
    assert (work / "runs/sample/corpus.json").exists()
    for command in (["status", "runs/sample"], ["inspect", "runs/sample"], ["models"]):
        read = _run(alone, work, "-m", "pipeline.cli", *command)
        assert read.returncode == 0, read
