"""What `plan --simulate` says of a corpus's size and requests, against a real run on a store that counts them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pytest
from rich.console import Console

from launchers.slurm.task import Task
from pipeline.config.load import load_config
from pipeline.corpus.counters import CHUNK
from pipeline.corpus.states import total_of
from pipeline.inputs import plan_chunks
from pipeline.planning.plan import make_plan
from pipeline.planning.requests import A_SEARCH, MULTIPART_BYTES, Requests, month_dollars, puts_of
from pipeline.planning.simulation import simulate
from pipeline.run.phases import read_phase
from pipeline.run.rewriting import version_before
from pipeline.storage.store import Store
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.faults.s3_proxy import S3Proxy
from tests.support.inputs import entry
from tests.support.workers import SLURM, order_phase

KINDS = {"PUT": "puts", "POST": "puts", "GET": "gets", "HEAD": "heads", "LIST": "lists", "DELETE": "deletes"}


class CountingStore(S3Proxy):
    """An S3 that counts requests by their kind."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kinds: Counter[str] = Counter()

    def draw(self, command: str, path: str = "") -> str:
        self.kinds[KINDS["LIST" if "list-type=2" in path else command]] += 1
        return super().draw(command, path)

    def seen(self) -> Requests:
        """Requests since `kinds` was cleared."""
        return Requests(**{kind: float(self.kinds[kind]) for kind in set(KINDS.values())})


def test_a_new_chunk_costs_a_search_for_its_earlier_versions(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "a.jsonl", sample_documents("postgresql-eng", 1))
    (chunk,) = plan_chunks(entry(tmp_path))
    clients = fsspec.get_filesystem_class("s3")
    with CountingStore(os.environ["AWS_ENDPOINT_URL"]) as counting:
        monkeypatch.setenv("AWS_ENDPOINT_URL", counting.url)
        clients.clear_instance_cache()
        store = Store(f"{bucket}/corpus")
        store.write("chunks/00/another.json", b"{}")
        counting.kinds.clear()
        assert version_before(store, chunk, "now", "recipe") is None
    clients.clear_instance_cache()
    assert counting.seen() == A_SEARCH


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [1, 3])
def test_a_simulation_agrees_with_a_counted_store_within_a_tenth(tmp_path: Path, bucket: str, claimed: int) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("postgresql-eng", 60))
    launcher = SLURM | {"chunks_per_claim": claimed, "tasks": 1, "lease_seconds": 4000}
    sections = {"part_sentences": 200, "chunk_bytes": 1 << 16, "launcher": launcher, "output": f"{bucket}/corpus"}
    path = write_config(tmp_path, **sections, autobleu={"sample": 0.02, "length_extra": 1, "length_factor": 1.0})
    clients = fsspec.get_filesystem_class("s3")
    with CountingStore(os.environ["AWS_ENDPOINT_URL"]) as counting, pytest.MonkeyPatch.context() as through:
        through.setenv("AWS_ENDPOINT_URL", counting.url)
        clients.clear_instance_cache()
        store, _, folder = order_phase(path)
        counting.kinds.clear()
        Task(Console(quiet=True), store.url, folder).work()
        seen = counting.seen()
    clients.clear_instance_cache()
    spec, plan = read_phase(store, folder), make_plan(load_config(path))
    total = total_of(plan.chunks)
    found = simulate(plan, total[f"{CHUNK}/kept"])
    assert spec.chunks >= 5 and total[f"{CHUNK}/parts"] >= 15
    assert found.chunks == pytest.approx(spec.chunks, rel=0.1)
    assert found.parts == pytest.approx(total[f"{CHUNK}/parts"], rel=0.1)
    assert found.claims(1) == pytest.approx(spec.ranges, rel=0.1)
    told = found.requests(tasks=1)
    print(told, seen)
    assert told.total == pytest.approx(seen.total, rel=0.1)
    assert told.dollars == pytest.approx(seen.dollars, rel=0.1)
    old = found.parts * (2 * len(found.stages) + len(found.storage) + 3)  # what earlier versions said
    assert old < 0.6 * seen.total


def test_large_files_are_written_in_pieces() -> None:
    assert [puts_of(size) for size in (1, MULTIPART_BYTES - 1, MULTIPART_BYTES, 166e6)] == [1, 1, 4, 6]


def test_dollars() -> None:
    assert Requests(puts=1000, lists=1000, gets=10_000, heads=10_000, deletes=1e9).dollars == pytest.approx(0.018)
    assert month_dollars(1e12) == pytest.approx(23)
    assert month_dollars(600e12) == pytest.approx(50_000 * 0.023 + 450_000 * 0.022 + 100_000 * 0.021)
