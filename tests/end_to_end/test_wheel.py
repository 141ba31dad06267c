"""A built wheel carries configurations, the sample and the weights, and works outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def test_the_wheel_runs_the_sample_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "source"
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
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(tmp_path / "dist"), str(source)], check=True)
    wheel = next((tmp_path / "dist").glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith("tests")]
    for needed in (
        "conf/sample.yaml",
        "conf/models/sonar-tiny.yaml",
        "conf/sample/austen-eng.jsonl.gz",
        "pipeline/py.typed",
    ):
        assert needed in names, needed
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-compile", "--target", str(site), str(wheel)], check=True)
    work = tmp_path / "elsewhere"
    work.mkdir()
    environment = os.environ | {"PYTHONPATH": str(site)}
    where = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pipeline, conf, stages; print(pipeline.__file__, conf.__file__, stages.__file__)",
        ],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.count(str(site)) == 3, where.stdout
    run = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "run", "sample", "--launcher", "inline", "--set", "input.0.limit=3"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run
    assert (work / "runs/sample/corpus.json").exists()
