"""What a run's events count in Ray's metrics; tests/launchers/test_ray_cluster.py reads them from a cluster."""

from __future__ import annotations

from collections import Counter

from launchers.ray_metrics import COUNTERS, counts_of
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef


def test_every_event_counts() -> None:
    ref = PartRef(part="a-00000", fingerprint="0" * 32)
    events = [
        Event(kind="segmented", where=ref.part, ref=ref, rows=10),
        Event(kind="part", where=ref.part, rows=10, computed=("encode", "autobleu")),
        Event(kind="part", where=ref.part, rows=10),  # nothing was to do
        Event(kind="chunk", where="in/a.jsonl", rows=10, documents=3, bytes=900),
        Event(kind="failed", where="in/b.jsonl", error="damaged"),
        Event(kind="failed", where="Ray", error="gone", fatal=True),
    ]
    found: Counter[tuple[str, ...]] = Counter()
    for event in events:
        for name, value, labels in counts_of(event):
            assert set(labels) == set(COUNTERS[name][1])
            found[name, *labels.values()] += value
    assert found == {
        ("sentences", "segment"): 10, ("sentences", "encode"): 10, ("sentences", "autobleu"): 10,
        ("parts", "segment"): 1, ("parts", "encode"): 1, ("parts", "autobleu"): 1,
        ("documents",): 3, ("read_bytes",): 900, ("failures", "false"): 1, ("failures", "true"): 1,
    }  # fmt: skip
