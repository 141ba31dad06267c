"""Counts a run's events in metrics of Ray, which every node of a cluster exports for Prometheus.

    ray_pipeline_sentences_total{corpus, stage}    sentences that a stage has brought up to date
    ray_pipeline_parts_total{corpus, stage}        parts, likewise
    ray_pipeline_documents_total{corpus}           documents of finished chunks
    ray_pipeline_read_bytes_total{corpus}          bytes of inputs of finished chunks
    ray_pipeline_failures_total{corpus, fatal}     parts and chunks that failed

The driver counts, so the node on which it runs exports them. `deploy/grafana-dashboard.json` draws them.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.corpus.events import Event
from pipeline.corpus.recipes import SEGMENT

COUNTERS = {  # name → what it counts, its labels besides the corpus
    "sentences": ("Sentences that a stage has brought up to date.", ("stage",)),
    "parts": ("Parts that a stage has brought up to date.", ("stage",)),
    "documents": ("Documents of chunks that are segmented.", ()),
    "read_bytes": ("Bytes of inputs of chunks that are segmented.", ()),
    "failures": ("Parts and chunks that failed.", ("fatal",)),
}


def measured(events: Iterator[Event], corpus: str) -> Iterator[Event]:
    """Pass events on, and count them in metrics of the Ray that this process has joined.

    `corpus`: its name, a label of every metric.
    """
    from ray.util.metrics import Counter

    counters = {
        name: Counter(f"pipeline_{name}", description=about, tag_keys=("corpus", *labels))
        for name, (about, labels) in COUNTERS.items()
    }
    for event in events:
        for name, value, labels in counts_of(event):
            if value:  # Ray's counters refuse 0
                counters[name].inc(value, {"corpus": corpus, **labels})
        yield event


def counts_of(event: Event) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Yield (name of the counter, by how much it rises, its labels) for an event."""
    if event.kind == "failed":
        yield "failures", 1, {"fatal": str(event.fatal).lower()}
    elif event.kind == "chunk":
        yield "documents", event.documents, {}
        yield "read_bytes", event.bytes, {}
    else:
        for stage in (SEGMENT,) if event.kind == "segmented" else event.computed:
            yield "parts", 1, {"stage": stage}
            yield "sentences", event.rows, {"stage": stage}
