"""Small real corpora for tests: documents of the sample that ships, the small reference checkpoint as the model."""

from __future__ import annotations

import functools
import gc
import gzip
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml
from hypothesis import HealthCheck, settings

from pipeline.base import interrupts
from pipeline.corpus.states import View, read_state
from pipeline.planning import rates
from pipeline.storage import retry
from pipeline.storage.store import Store
from tests.support.s3 import forget_all, moto

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tiny networks gain nothing from threads
os.environ.setdefault("RAY_worker_niceness", "0")  # or Ray's workers wait for every other process of a busy machine
settings.register_profile(  # the same examples each time, and no limit that a busy machine breaks
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

ROOT = Path(__file__).parent.parent
TINY_CARD = Path(__file__).parent / "stages/fixtures/sonar-space-tiny/card.yaml"
MakeConfig = Callable[..., Path]
LONG = (  # files whose slow tests take minutes, the longest first
    "launchers/test_training.py", "faults/test_s3.py", "faults/test_outage.py", "launchers/test_slurm_jobs.py",
    "faults/test_kill.py", "launchers/test_ray_gpus.py", "launchers/test_gpu_run.py", "faults/test_poison.py",
    "conf/test_ray_in_slurm.py", "benchmarks/test_benchmarks.py", "faults/test_damage.py",
)  # fmt: skip

UNTIL = float(os.environ.get("PIPELINE_TESTS_UNTIL", "inf"))  # seconds since 1970: no test is begun after that


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what a slow machine could not finish before the time at which CI has to be done."""
    if time.time() > UNTIL:
        pytest.skip("not begun: the time until PIPELINE_TESTS_UNTIL is over")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for SLURM is marked so; what is marked `gpu` is skipped where torch sees none.

    Files that take minutes are begun first, so that no worker of pytest-xdist begins one when the others are done.
    """
    for item in items:
        if item.get_closest_marker("gpu") and not _sees_a_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)
    order = {f"tests/{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.relative_to(ROOT).as_posix(), len(order)))


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: runs that collect garbage need not look through it each time."""
    gc.collect()
    gc.freeze()


@functools.cache
def _sees_a_gpu() -> bool:
    import torch  # in seconds, and few tests ask

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _numbers_near_zero_stay() -> Iterator[None]:
    """A recipe takes them for zero, which would hold for all tests of its process that follow."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _nobody_is_asked_to_stop() -> Iterator[None]:
    """A process remembers the signals that asked it to stop; those of a test are not for the next ones."""
    yield
    interrupts._asked.clear()
    interrupts._raised[0] = -math.inf


@pytest.fixture(autouse=True)
def _no_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans know no rate that another test or a real run measured, and runs keep none."""
    monkeypatch.setattr(rates, "FOLDER", "rates-of-tests")
    monkeypatch.setattr(rates, "LEAST_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def _repeated_requests_are_this_tests_own() -> Iterator[None]:
    """A process counts repeated requests until a receipt tells of them: none of this test go into the next one's. Nor
    does the patience that a run told this process to have with stores.
    """
    yield
    retry.take_retry_counts()
    retry.current = retry.RetryPolicy()


def sample_documents(name: str, count: int) -> list[dict[str, Any]]:
    """The first documents of one file of the sample corpus."""
    with gzip.open(ROOT / "conf/sample" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]


def write_jsonl(path: Path, documents: list[dict[str, Any]]) -> Path:
    """Write documents one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in documents), "utf-8")
    return path


def write_config(folder: Path, **sections: Any) -> Path:
    """A corpus.yaml with the reference checkpoint; keyword arguments replace sections, None leaves one out."""
    config: dict[str, Any] = {
        "name": "test",
        "output": "out",
        "input": [{"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title"]}],
        "part_sentences": 100,
        "chunk_bytes": 1 << 17,  # JSONL files of 2 kB and more do not share chunks
        "segment": {"method": "spacy-capped", "max_chars": 80},
        "encode": {"model": str(TINY_CARD)},
        "autobleu": {"sample": 0.2, "length_extra": 1, "length_factor": 1.0},
        "launcher": "inline",
    }
    config |= sections
    path = folder / "corpus.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}), "utf-8")
    return path


def write_inputs(folder: Path) -> None:
    """Three small files: no French, whose rules take spaCy seconds to load."""
    for name, count in (("libreoffice-eng", 6), ("postgresql-eng", 4), ("libreoffice-deu", 4)):
        write_jsonl(folder / "in" / f"{name}.jsonl", sample_documents(name, count))


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """`write_config` for the three files of `write_inputs`."""

    def make(**sections: Any) -> Path:
        if not (tmp_path / "in").exists():
            write_inputs(tmp_path)
        return write_config(tmp_path, **sections)

    return make


def data_digests(output: Path | str, view: View | None = None) -> dict[str, str]:
    """family/part → digest of the bytes, of everything that the newest run's receipts vouch for."""
    from pipeline.corpus.runs import newest_view

    store = Store(str(output))
    found: dict[str, str] = {}
    for chunk in read_state(store, view or newest_view(store)):
        assert chunk.receipt, f"{chunk.chunk.path} has no receipt"
        if chunk.receipt.quarantine:
            found[f"quarantine/{chunk.chunk.id}"] = chunk.receipt.quarantine.digest
        for part in chunk.parts:
            assert not part.missing, f"{part.ref.part} lacks {part.missing}"
            for receipt in part.receipts.values():
                for file in receipt.files:
                    found[f"{file.family}/{part.ref.part}"] = file.digest
    return found


@pytest.fixture(scope="session")
def slurm() -> None:
    """The SLURM of tests/slurm/start.sh. Without it a test is skipped; in CI, which starts it, that is a failure."""
    wanted = {"main", "short", "several", "urgent"}
    try:
        done = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, timeout=60)
        why = "" if wanted <= set(done.stdout.split()) else f"partitions {done.stdout.split()}; {done.stderr.strip()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        message = f"the SLURM of tests/slurm/start.sh does not answer: {why}"
        (pytest.fail if os.environ.get("PIPELINE_TESTS_NEED_SLURM") else pytest.skip)(message)


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One endpoint for all tests of this process; what they leave in it is taken away before the next one's."""
    with moto(tmp_path_factory.mktemp("s3") / "moto.log") as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket at a real S3 endpoint."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    forget_all(s3_endpoint)
    clients = fsspec.get_filesystem_class("s3")
    clients.clear_instance_cache()
    fsspec.filesystem("s3").mkdir("corpus")
    yield "s3://corpus"
    clients.clear_instance_cache()
