"""What is booked always fits, on every node, and nothing is left without an actor."""

from __future__ import annotations

import pytest

from launchers.pools import Node, pools
from pipeline.config.launcher import LauncherSettings

CLUSTERS = {
    "a laptop": [Node(2)],
    "two nodes of one CPU": [Node(1), Node(1)],
    "unequal nodes": [Node(4), Node(16), Node(6)],
    "a head without CPUs": [Node(0), Node(8), Node(8)],
    "GPUs": [Node(96, 8), Node(96, 8)],
    "GPUs, few CPUs": [Node(2, 8)],
    "GPUs and CPU nodes": [Node(32, 4), Node(64), Node(64)],
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("sat", [False, True])
@pytest.mark.parametrize("segmenters", [None, 3])
def test_everything_fits(name: str, sat: bool, segmenters: int | None) -> None:
    nodes = CLUSTERS[name]
    found = pools(nodes, LauncherSettings(segmenters=segmenters), sat)
    gpus = sum(node.gpus for node in nodes)
    assert found.segmenters >= 1 and (found.segmenters == segmenters or segmenters is None)
    cpus = found.visitors * found.visitor_cpus + found.segmenters * found.segmenter_cpus
    assert 0 < cpus <= sum(node.cpus for node in nodes)
    assert min(found.visitor_cpus, found.segmenter_cpus) > 0
    if gpus:
        assert (found.visitors, found.device) == (gpus, "cuda"), "one per GPU"
        assert found.visitor_gpus > 0.5, "never two on a GPU"
        assert found.bundled == sat
        if sat:  # a visitor and its segmenters fit onto a GPU, and as many such bundles onto a node as it has GPUs
            count = found.segmenters_per_gpu
            assert found.segmenters <= gpus * count < found.segmenters + gpus
            assert found.visitor_gpus + count * found.segmenter_gpus <= 1 and found.segmenter_gpus > 0
            bundle = found.visitor_cpus + count * found.segmenter_cpus
            assert all(node.gpus * bundle <= node.cpus + 1e-9 for node in nodes if node.gpus)
    else:
        busy = [node for node in nodes if node.cpus]
        assert found.visitors >= len(busy) and found.device == "cpu"
        assert all(
            node.cpus - found.visitor_cpus < found.visitor_cpus for node in busy if node.cpus < 2 * found.threads
        )
        assert found.visitors * found.threads <= sum(node.cpus for node in nodes)


def test_nodes_of_a_kind_are_used_alike() -> None:
    found = pools([Node(1), Node(1)], LauncherSettings(), sat=False)
    assert (found.visitors, found.visitor_cpus, found.segmenters, found.segmenter_cpus) == (2, 0.8, 2, 0.2)
    found = pools([Node(96, 8)] * 2, LauncherSettings(), sat=True)
    assert (found.visitors, found.visitor_gpus, found.segmenters, found.segmenter_gpus) == (16, 0.8, 32, 0.1)
    found = pools([Node(96, 8)], LauncherSettings(segmenters=20), sat=True)
    assert (found.segmenters_per_gpu, found.segmenter_gpus, found.visitor_gpus) == (3, 0.066, 0.8)


@pytest.mark.parametrize(
    ("needed", "segmenters"), [(None, 95_000), (2.5, 20_000), (0.025, 200), (1e-9, 1), (1e9, 95_000)]
)
def test_segmenters_are_as_many_as_visitors_need(needed: float | None, segmenters: int) -> None:
    """Of 1000 nodes; there is room for more of them, of the same size, if visitors wait."""
    found = pools([Node(96, 8)] * 1000, LauncherSettings(), False, lambda gpu, threads: needed)
    assert (found.visitors, found.segmenters, found.most_segmenters) == (8000, segmenters, 95_000)
    assert 8 * found.visitor_cpus + 95 * found.segmenter_cpus <= 96
    assert pools([Node(96, 8)], LauncherSettings(segmenters=7), False, lambda gpu, threads: needed).segmenters == 7
