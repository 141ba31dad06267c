"""A disk without space stops a run in words; when there is space again, it goes on to the same bytes."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from tests.conftest import MakeConfig, data_digests
from tests.support.cli import PIPELINE, pipeline
from tests.support.runs import bring_up_to_date

pytestmark = pytest.mark.faults

FREE = 160 << 10  # bytes; the whole corpus takes about three times as many
LARGEST = 10 << 10  # bytes of a file: most of embeddings have more, whatever they were computed in


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB at the output's place, in memory."""
    folder = tmp_path / "out"
    folder.mkdir()
    if not shutil.which("mount"):
        pytest.skip("there is no `mount` here")
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def check_resumed(path: Path, output: Path, whole: Path) -> None:
    """A run brings what a run without trouble brings, and nothing is there that the failed one left."""
    bring_up_to_date(path)
    bring_up_to_date(path, f"output={whole}")
    assert data_digests(output) == data_digests(whole)
    corpus = Corpus(str(output))
    accounting = compute_accounting(corpus.store, corpus.chunks)
    assert accounting.complete and not accounting.problems
    assert not list(output.rglob("*.tmp"))


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_full_disk(make_config: MakeConfig, tmp_path: Path, small_disk: Path, launcher: str) -> None:
    path = make_config()
    ballast = small_disk.parent / "out/ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - FREE))
    full = pipeline("run", path, "--launcher", launcher)
    assert full.returncode == 1, full
    # Ray's workers and this process write at the same time: whose file is the first without space is told on its way.
    said = " ".join((full.stdout if launcher == "inline" else full.stdout + full.stderr).split())
    assert "No space left on device; make space on that disk, then run the same command again" in said, full
    if launcher == "inline":
        assert said.count("No space left") == 1, "something else was tried on the full disk"
    assert str(small_disk) in full.stderr and "Traceback" not in full.stdout + full.stderr
    receipts = list((small_disk / "receipts").rglob("*.json"))
    assert receipts or launcher == "local", "the disk was full before anything was finished"
    ballast.unlink()
    check_resumed(path, small_disk, tmp_path / "whole")
    assert all(receipt.exists() for receipt in receipts), "what was finished was done again"


def test_a_limit_on_the_size_of_files(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    limited = subprocess.run(
        [PIPELINE, "run", str(path)],
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, resource.RLIM_INFINITY)),
    )
    assert limited.returncode == 1, limited
    said = " ".join(limited.stdout.split())
    assert "File too large; raise the limit on the size of files (ulimit -f), then run the same command" in said, (
        limited
    )
    assert "Traceback" not in limited.stdout + limited.stderr
    check_resumed(path, tmp_path / "out", tmp_path / "whole")
